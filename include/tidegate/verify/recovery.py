"""Reports what the next run will abort, publish and continue from. Nothing is changed.

Recovery is not a separate phase: every trigger aborts dead checkpoints, publishes pending ones, and continues from the
last completed one. If that one is damaged, the report names the newest intact checkpoint before it, and what a rollback
to it would lose. A rollback is never done without a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.config.keys import KEYS
from tidegate.errors import Corrupt, Rejected, TidegateError, Unavailable
from tidegate.lifecycle.rollback_preview import examine
from tidegate.lifecycle.savepoint import savepoints
from tidegate.protocol import rules
from tidegate.protocol.view import Entry, View, rollback_of
from tidegate.verify.checkpoint import verify_checkpoint

if TYPE_CHECKING:
    from tidegate.checkpoint.context import AbandonCheck, PipelineContext

__all__ = ["Recovery", "verify_next_run"]


@dataclass(frozen=True)
class Recovery:
    """The situation that the next run will find. Without problems it continues by itself."""

    continues_from: int | None
    """The checkpoint that it continues from; None: none was completed, so it starts at the beginning."""
    aborted: dict[int, str]
    """Open checkpoints that it aborts, and why."""
    running: tuple[int, ...]
    """Open checkpoints whose jobs may still be running."""
    unpublished: dict[str, tuple[int, ...]]
    """By table, the completed checkpoints that are not published to it yet."""
    problems: tuple[str, ...]
    """What is damaged of all this."""
    fallback: int | None = None
    """If there are problems, the newest intact checkpoint before."""
    rows_stay_in: tuple[str, ...] = ()
    """The sinks whose rows would stay then: their targets cannot take rows back."""
    undone: tuple[int, ...] = ()
    """The checkpoints that would no longer count then."""


def verify_next_run(pipeline: PipelineContext, give_up: AbandonCheck) -> Recovery:
    """Check every record, version, hash and file that the next run rests on."""
    view = pipeline.ledger.view()
    last = view.last_completed
    dead = {}
    for entry in view.still_open():
        if why := _reason(pipeline, entry, give_up):
            dead[entry.id] = why
    alive = tuple(entry.id for entry in view.still_open() if entry.id not in dead)
    if last is None or pipeline.graph.by_interval:
        return Recovery(last.id if last else None, dead, alive, {}, ())
    pending, problems = _pending(pipeline, view)
    problems += verify_checkpoint(pipeline, last.id)
    instead, keep = next(_recoverable(pipeline, view, last.id), (None, ())) if problems else (None, ())
    if instead is not None:
        lost = _between(pipeline, view, instead, last.id)
    else:
        lost = ()
    return Recovery(last.id, dead, alive, pending, tuple(dict.fromkeys(problems)), instead, keep, lost)


def _reason(pipeline: PipelineContext, entry: Entry, give_up: AbandonCheck) -> str | None:
    if pipeline.overdue(entry):
        return pipeline.why_overdue(entry)[0]
    return give_up(entry.plan)


def _pending(pipeline: PipelineContext, view: View) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Return what each table lacks, and what of that cannot be published because its staged files are gone."""
    pending: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for name, node in pipeline.graph.tables.items():
        context = pipeline.context(name)
        try:
            head = node.sink.head(context)
        except Unavailable:
            raise
        except TidegateError as error:
            problems.append(error.what)
            continue
        entries = list(_lacking(view, name, head.last_entry))
        if entries:
            pending[name] = tuple(entry.id for entry in entries)
        for entry in entries:
            assert entry.manifest is not None
            part = entry.manifest.tables[name]
            committables = [pipeline.ledger.unpack(payload) for payload in part.committables]
            lost = node.sink.missing_files(committables, context)
            if lost:
                problems.append(
                    f"table {name!r}: {len(lost)} files of checkpoint {entry.id} are gone, first {lost[0]!r}"
                )
    return pending, problems


def _lacking(view: View, table: str, last: int | None) -> Iterator[Entry]:
    for entry in view.entries:
        part = None
        if entry.manifest is not None:
            part = entry.manifest.tables.get(table)
        if part is None or not rules.has_unpublished(part) or view.rollback_of(entry.id) is not None:
            continue
        if entry.id > (last or 0):
            yield entry


def _recoverable(pipeline: PipelineContext, view: View, below: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the older checkpoints that can be returned to, newest first, each with the sinks whose rows stay;
    savepoints last, if the settings say so."""
    settings, key = pipeline.settings.record(), KEYS["prefer_checkpoint_for_recovery"]
    prefers = key.parse(settings.get(key.name, key.default))
    if prefers:
        named = {savepoint.entry for savepoint in savepoints(pipeline.ledger)}
    else:
        named = set()
    for id in sorted(pipeline.ledger.ids(before=below), key=lambda id: (id in named, -id)):
        try:
            preview = examine(pipeline, id, {}, view)
            stay = tuple(change.table for change in preview.changes if change.way.rows_stay_reason)
            if stay:
                preview = examine(pipeline, id, dict.fromkeys(stay, "keep"), view)
        except (Corrupt, Rejected):
            continue
        if not preview.problems and not preview.lacking:
            yield id, stay


def _between(pipeline: PipelineContext, view: View, low: int, high: int) -> tuple[int, ...]:
    rollbacks = pipeline.ledger.rollbacks()
    entries = ((id, view.get(id) or pipeline.ledger.entry(id)) for id in range(low + 1, high + 1))
    counted = ((id, entry) for id, entry in entries if entry is not None and rollback_of(id, rollbacks) is None)
    return tuple(id for id, entry in counted if entry.completed and entry.rollback is None)
