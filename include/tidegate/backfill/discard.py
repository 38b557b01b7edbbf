"""Discard: end a backfill, swapped in or not, and remove the files that no entry names (L8).

tombstone  created and durable before the log is read: a later swap finds it, and ends
files      shadows and copies, except those that the backfill's completed swap names
records    the backfill's own ledger; the tombstone stays
pin        last, so that retention spares the records that the clean-up has to read
"""

from __future__ import annotations

from dataclasses import replace

from tidegate import seams
from tidegate.backfill.open_backfill import OpenBackfill, open_line, pin_owner
from tidegate.backfill.swap import release_pipeline
from tidegate.backfill.way_back import create_undo_savepoint
from tidegate.coordinator import Coordinator
from tidegate.delta import Location
from tidegate.errors import Invalid
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle import final_cleanup
from tidegate.protocol import backfill as backfill_rules
from tidegate.protocol import rules
from tidegate.protocol.view import Entry
from tidegate.records.records import BackfillDiscarded, Json
from tidegate.state.table import StateSink

__all__ = ["discard", "discard_named", "release_name"]


def discard(line: OpenBackfill, by: str) -> int | None:
    """End the backfill. Return the entry that has swapped it in, or None. Repeatable."""
    live, ledger, run = line.live, line.live.ledger, line.record.run
    ledger.discard_line(BackfillDiscarded(**stamp(seams.new_id()), name=line.name, by=by))
    while isinstance(answer := backfill_rules.on_discard(ledger.view(run), run), rules.Abort):
        live.abort(answer.id, answer.reason, answer.detail)
    swapped = None
    if answer.named_by is not None:
        swapped = live.real_entry(answer.named_by)
    if swapped is not None:
        create_undo_savepoint(ledger, swapped.plan)  # the process that swapped may have ended before it could
    if answer.named_by is None or swapped is not None:
        _remove_files(line, swapped)
    if answer.named_by is None:
        _remove_unknown_shadows(line)
    release_pipeline(line, "discarded")
    ledger.delete_line(line.name)
    ledger.delete_pin(pin_owner(line.name))
    final_cleanup.resume_cleanup(
        live, ledger.view()
    )  # if the pipeline was cancelled for good, the pin had spared entries
    return answer.named_by


def discard_named(live: Coordinator, name: str, by: str) -> int | None:
    """End the backfill of this name in any state. Return the entry that has swapped it in, or None."""
    ledger = live.ledger
    record = ledger.line(name)
    if record is not None:
        return discard(open_line(live, record), by)
    if any(pin.owner == pin_owner(name) for pin in ledger.pins()):
        release_name(ledger, name, by)
    elif ledger.line_discarded(name) is None:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no backfill or proposal {name!r}",
            expected=", ".join(line.name for line in ledger.lines()) or "one that is there: the pipeline has none",
            help="name one of these; if there is none, there is nothing to do",
            reason="NO_BACKFILL",
        )
    return None


def release_name(ledger: Ledger, name: str, by: str) -> None:
    """End a backfill that has a pin and no record: its process ended, or was refused, before it began."""
    ledger.discard_line(BackfillDiscarded(**stamp(seams.new_id()), name=name, by=by))
    if ledger.line(name) is None:
        ledger.delete_pin(pin_owner(name))


def _remove_files(line: OpenBackfill, swapped: Entry | None) -> None:
    """Remove the backfill's files from the folders of the pipeline's tables. swapped: the entry that names some of
    them.

    Copies of states and quarantine that a swap names belong to the pipeline from then on: retention removes them.
    """
    live = line.live
    identity = line.backfill.ledger.identity_or_none()
    contexts = live.contexts(live.graph.tables)
    for name, sinking in live.graph.tables.items():
        context, sink = contexts[name], sinking.sink
        shadow = line.backfill.graph.sinks.get(name)
        if shadow is not None:
            sink.drop_shadow(shadow.sink, _swapped_rows(line, swapped, name), context)
        elif swapped is None and identity is not None:
            backfill_context = replace(context, uid=identity.uid)
            location = sink.location(context) if isinstance(sink, StateSink) else sink.delta_table(context)
            if location is not None:
                location.remove_folder(backfill_context.folder)


def _remove_unknown_shadows(line: OpenBackfill) -> None:
    """Remove the shadows of sinks that the present code does not have."""
    for name, url in line.record.shadows.items():
        if name not in line.backfill.graph.sinks:
            parent, _, folder = url.rpartition("/")
            Location(parent, line.live.place.options).remove_folder(folder)


def _swapped_rows(line: OpenBackfill, swapped: Entry | None, table: str) -> list[Json]:
    """Return the committables that the swap brings to a table."""
    if swapped is None or swapped.manifest is None or table not in swapped.manifest.tables:
        return []
    return [line.live.ledger.unpack(payload) for payload in swapped.manifest.tables[table].committables]
