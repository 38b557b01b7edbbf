"""What the next run will find, looked at before it comes: what it ends, publishes and goes on from, all of it verified.

Recovery is no phase of its own: whoever triggers aborts what is dead, publishes what is owed, and plans on the last
completed checkpoint. Here nothing is touched. If the last checkpoint is damaged, the newest older one is named that is
whole, with what would be lost by going back to it: that is a rollback, and nobody does it unasked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.config.keys import KEYS
from tidegate.errors import Corrupt, Rejected, TidegateError, Unavailable
from tidegate.lifecycle.rollback_proposal import examine
from tidegate.lifecycle.savepoint import savepoints
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import Entry, View, rolled_back_by

if TYPE_CHECKING:
    from tidegate.checkpoint.context import GiveUp, PipelineContext

__all__ = ["Recovery", "look"]


@dataclass(frozen=True)
class Recovery:
    """What was found. Without problems the next run goes on by itself."""

    last: int | None
    """The checkpoint that it goes on from; None: none was completed, so from the beginning."""
    dead: dict[int, str]
    """Open checkpoints that it ends, and why."""
    alive: tuple[int, ...]
    """Open ones that somebody may be working at."""
    owed: dict[str, tuple[int, ...]]
    """By table, the completed checkpoints that it has not been given yet."""
    problems: tuple[str, ...]
    """What is damaged of that, by name."""
    instead: int | None = None
    """If there are problems: the newest older checkpoint that is whole."""
    lost: tuple[int, ...] = ()
    """What would no longer count then."""


def look(pipeline: PipelineContext, give_up: GiveUp) -> Recovery:
    """Every record, version, hash and file that the next run rests on is looked at."""
    view = pipeline.ledger.view()
    last = view.last_completed
    dead = {entry.id: why for entry in view.still_open() if (why := _reason(pipeline, entry, give_up))}
    alive = tuple(entry.id for entry in view.still_open() if entry.id not in dead)
    if last is None or pipeline.graph.by_interval:
        return Recovery(last.id if last else None, dead, alive, {}, ())
    owed, problems = _owed(pipeline, view)
    problems += _damage(pipeline, last)
    instead = next(_whole(pipeline, view, last.id), None) if problems else None
    lost = _between(pipeline, view, instead, last.id) if instead is not None else ()
    return Recovery(last.id, dead, alive, owed, tuple(dict.fromkeys(problems)), instead, lost)


def _reason(pipeline: PipelineContext, entry: Entry, give_up: GiveUp) -> str | None:
    return pipeline.late(entry)[0] if pipeline.overdue(entry) else give_up(entry.plan)


def _owed(pipeline: PipelineContext, view: View) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """What each table lacks, and what of that cannot be published: its staged files are gone."""
    owed: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for name, sinking in pipeline.graph.tables.items():
        context = pipeline.context(name)
        try:
            head = sinking.sink.head(context)
        except Unavailable:
            raise
        except TidegateError as error:
            problems.append(error.what)
            continue
        entries = list(_lacking(view, name, head.last))
        if entries:
            owed[name] = tuple(entry.id for entry in entries)
        for entry in entries:
            assert entry.manifest is not None
            part = entry.manifest.tables[name]
            gone = sinking.sink.gone([pipeline.ledger.unpack(each) for each in part.committables], context)
            if gone:
                problems.append(
                    f"table {name!r}: {len(gone)} files of checkpoint {entry.id} are gone, first {gone[0]!r}"
                )
    return owed, problems


def _lacking(view: View, table: str, last: int | None) -> Iterator[Entry]:
    for entry in view.entries:
        part = entry.manifest.tables.get(table) if entry.manifest is not None else None
        if part is None or not protocol.has_unpublished(part) or view.rolled_back_by(entry.id) is not None:
            continue
        if entry.id > (last or 0):
            yield entry


def _damage(pipeline: PipelineContext, last: Entry) -> list[str]:
    """What of the checkpoint that is gone on from is not as it was written."""
    keep = dict.fromkeys(pipeline.graph.sinks, "keep")  # nothing is put back, so others' commits do not matter
    try:
        return list(examine(pipeline, last.id, keep).problems)  # type: ignore[arg-type]
    except (Corrupt, Rejected) as error:
        return [error.what]


def _whole(pipeline: PipelineContext, view: View, below: int) -> Iterator[int]:
    """Older checkpoints that one could go back to, the newest first; savepoints last, if the settings say so."""
    settings, key = pipeline.limits.record(), KEYS["prefer_checkpoint_for_recovery"]
    prefers = key.parse(settings.get(key.name, key.default))
    named = {each.entry for each in savepoints(pipeline.ledger)} if prefers else set()
    for id in sorted(pipeline.ledger.ids(before=below), key=lambda id: (id in named, -id)):
        try:
            found = examine(pipeline, id, {}, view)
        except (Corrupt, Rejected):
            continue
        if not found.problems and not found.lacking:
            yield id


def _between(pipeline: PipelineContext, view: View, low: int, high: int) -> tuple[int, ...]:
    before = pipeline.ledger.rollbacks()
    entries = ((id, view.get(id) or pipeline.ledger.entry(id)) for id in range(low + 1, high + 1))
    counted = ((id, entry) for id, entry in entries if entry is not None and rolled_back_by(id, before) is None)
    return tuple(id for id, entry in counted if entry.completed and entry.restart is None)
