"""Clean up after a pipeline that was cancelled for good, if its setting `retention` says so.

    cancel     an entry of the log, `final`: after it the pipeline cannot plan, resume or roll back
    decide     open checkpoints are aborted; completed ones are published, so none of them is lost
    remove     checkpoints and files of states, by reference, by the rules of retention; the last one's at the end

Savepoints stay, with all files that they name, until they are disposed of; so do checkpoints being forked or copied.
Tables of sinks and the quarantine belong to their readers. The ledger retains the log's last records, which show the
end of the pipeline, and the indexes of runs and intervals, so that no id and no run is ever taken for a new one.

The clean-up can be interrupted anywhere. The next run, or the same command, continues it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.checkpoint.manifests import lowest_ack
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.references import states_as_of
from tidegate.connectors.sink import Publication
from tidegate.errors import TidegateError
from tidegate.history.table import remember
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle import control, retention
from tidegate.protocol.view import Entry, View
from tidegate.records.records import Discarded, Pin
from tidegate.state.table import STATE, state_sink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["delete_cancelled", "resume_cleanup"]


def resume_cleanup(pipeline: PipelineContext, view: View) -> None:
    """Continue the clean-up of a pipeline that was cancelled for good. Its runs do this instead of checkpoints."""
    if suspension.final_cancel(view) is not None:
        with contextlib.suppress(TidegateError):
            publish.publish_pending(pipeline)
            remember(pipeline.ledger, pipeline.place.options)  # an earlier publisher may have died before it
            delete_cancelled(pipeline)


def delete_cancelled(pipeline: PipelineContext) -> list[int] | None:
    """Remove everything that can be removed now. Return the removed entries, or None if the pipeline was not cancelled
    for good."""
    ledger = pipeline.ledger
    final = suspension.final_cancel(ledger.view())
    if final is None or final.control is None:
        return None
    control.abort_open(ledger, final.id, final.control.by)
    view = ledger.view(reach=final.id)
    last = view.last_completed
    if last is None or view.settled < last.id:
        return []  # publish first: the tables still need files that would be removed
    _unpin(ledger, [pin for pin in ledger.pins() if pin.kind == "day"])
    retired = _retire(pipeline, last.id)
    if _is_unfinished(ledger, last, _pinned(ledger)):
        return retired
    _unpin(ledger, _unneeded_rollback_pins(ledger))  # last, because the last checkpoint may rest on their targets
    retired += _retire(pipeline, last.id)
    if not _is_unfinished(ledger, last, _pinned(ledger)) and _claim(ledger, last, final):
        _clear(pipeline, last)
    return retired


def _retire(pipeline: PipelineContext, last: int) -> list[int]:
    """Retire all unpinned entries. Repeat while entries are removed, because that makes pins of other entries stale."""
    retired: list[int] = []
    previous: list[int] = []
    while (ids := pipeline.ledger.ids(before=last)) != previous:
        previous = ids
        retired += retention.retire_but_last(pipeline)
    return retired


def _unpin(ledger: Ledger, pins: list[Pin]) -> None:
    for pin in pins:
        ledger.delete_pin(pin.owner)


def _unneeded_rollback_pins(ledger: Ledger) -> list[Pin]:
    """Return the pins of rollbacks, except those of rollbacks that stay, which rest on their targets."""
    pins = ledger.pins()
    spared = {pin.entry for pin in pins if pin.kind != "rollback"}
    while targets := {pin.entry for pin in pins if pin.rollback in spared} - spared:
        spared |= targets
    return [pin for pin in pins if pin.rollback is not None and pin.rollback not in spared]


def _pinned(ledger: Ledger) -> set[int]:
    return {pin.entry for pin in ledger.pins()}


def _is_unfinished(ledger: Ledger, last: Entry, pinned: set[int]) -> bool:
    """Return whether entries below the last one, and below all entries that it rests on, are still to be removed.

    Storage may not have answered, or another process may be removing them.
    """
    lowest = lowest_ack(last)
    return any(id < lowest and id not in pinned for id in ledger.ids(before=last.id))


def _claim(ledger: Ledger, last: Entry, final: Entry) -> bool:
    """Create the tombstone of the last checkpoint, then check again that no pin refers to it."""
    if last.id in _pinned(ledger):
        return False
    ledger.create_discarded(Discarded(**stamp(seams.new_id()), id=last.id, control=final.id))
    return last.id not in _pinned(ledger)


def _clear(pipeline: PipelineContext, last: Entry) -> None:
    """Remove the files that only the last checkpoint names, and the samples of all unnamed entries. The tables of its
    states become empty."""
    ledger = pipeline.ledger
    retention.clear_staged(pipeline, last)
    for id in sorted({*ledger.ids(before=last.id), last.id} - _pinned(ledger)):
        ledger.delete_samples(id)
    last_states = states_as_of(ledger, last)
    spared_states = []
    for id in sorted(_pinned(ledger)):
        entry = ledger.entry(id)
        if entry is not None:
            spared_states.append(states_as_of(ledger, entry))
    assert last.manifest is not None
    for name in last.manifest.tables:
        if not name.startswith(STATE):
            continue
        sink, context = state_sink(name), pipeline.context(name)
        sink.clear(Publication(last.id, last.plan.generation, seams.new_id(), None, ()), context)
        if name in last_states:
            needed = [ledger.unpack(states[name]) for states in spared_states if name in states]
            sink.retire_files(ledger.unpack(last_states[name]), needed, context)
