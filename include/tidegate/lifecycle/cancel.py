"""The end for good: what a cancelled pipeline leaves is removed, if its setting `retention` says so.

    cancel     an entry of the log, `final`: nobody plans, resumes or goes back behind it
    decide     what is open is aborted; what is completed is published: nothing of that is lost
    remove     checkpoints and files of states, by reference, by the rules of retention; the last one's at the end

Savepoints stay, with all that they name, until they are disposed of; so does what is being forked or copied. Tables of
sinks and quarantine belong to whoever reads them. Of the ledger there stay the log's last records, which say what has
become of the pipeline, and the indexes of runs and intervals: so no id and no run is ever taken for a new one.

It can be broken off anywhere. Whoever comes next, a run or the same command, goes on with it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.ancestry import lowest_ack
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.references import states_as_of
from tidegate.errors import TidegateError
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle import retention
from tidegate.protocol.view import Entry, View
from tidegate.records.records import Discarded, Pin
from tidegate.sinks.base import Publication
from tidegate.state.table import STATE, state_sink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["delete_cancelled", "resume_cleanup"]


def resume_cleanup(pipeline: PipelineContext, view: View) -> None:
    """A run of a pipeline that was cancelled for good makes no checkpoint; it removes what is left, if it can."""
    if control.for_good(view) is not None:
        with contextlib.suppress(TidegateError):
            publish.publish_pending(pipeline)
            delete_cancelled(pipeline)


def delete_cancelled(pipeline: PipelineContext) -> list[int] | None:
    """Remove what can be removed now; answers with the entries that are gone. None: it was not cancelled for good."""
    ledger = pipeline.ledger
    ended = control.for_good(ledger.view())
    if ended is None or ended.control is None:
        return None
    control.end_open(ledger, ended.id, ended.control.by)
    view = ledger.view(reach=ended.id)
    last = view.last_completed
    if last is None or view.settled < last.id:
        return []  # tables come first: what they are owed lies in what would be removed
    _unpin(ledger, [pin for pin in ledger.pins() if pin.kind == "day"])
    gone = _retire(pipeline, last.id)
    if _left(ledger, last, _pinned(ledger)):
        return gone
    _unpin(ledger, _of_rollbacks(ledger))  # these say what the last one went back to, so they go behind all others
    gone += _retire(pipeline, last.id)
    if not _left(ledger, last, _pinned(ledger)) and _claim(ledger, last, ended):
        _clear(pipeline, last)
    return gone


def _retire(pipeline: PipelineContext, last: int) -> list[int]:
    """All that is not pinned. Again as long as that changes: pins of what is gone are found to be of no use."""
    gone: list[int] = []
    before: list[int] = []
    while (there := pipeline.ledger.ids(before=last)) != before:
        before = there
        gone += retention.retire_but_last(pipeline)
    return gone


def _unpin(ledger: Ledger, pins: list[Pin]) -> None:
    for pin in pins:
        ledger.delete_pin(pin.owner)


def _of_rollbacks(ledger: Ledger) -> list[Pin]:
    """The pins of rollbacks, but for those of one that is spared: that rests on what it went back to."""
    pins = ledger.pins()
    kept = {pin.entry for pin in pins if pin.kind != "rollback"}
    while more := {pin.entry for pin in pins if pin.restart in kept} - kept:
        kept |= more
    return [pin for pin in pins if pin.restart is not None and pin.restart not in kept]


def _pinned(ledger: Ledger) -> set[int]:
    return {pin.entry for pin in ledger.pins()}


def _left(ledger: Ledger, last: Entry, pinned: set[int]) -> bool:
    """Whether entries below the last one, and all that it rests on, are still to be removed: storage did not answer,
    or others are at it."""
    return any(id not in pinned for id in ledger.ids(before=last.id) if id < lowest_ack(last))


def _claim(ledger: Ledger, last: Entry, ended: Entry) -> bool:
    """The last checkpoint's tombstone; then it is looked again whether somebody refers to it."""
    if last.id in _pinned(ledger):
        return False
    ledger.create_discarded(Discarded(**stamp(seams.new_id()), id=last.id, control=ended.id))
    return last.id not in _pinned(ledger)


def _clear(pipeline: PipelineContext, last: Entry) -> None:
    """What the last checkpoint names and no savepoint does. Its states' tables show nothing from then on."""
    ledger = pipeline.ledger
    retention.clear_staged(pipeline, last)
    spared = [entry for id in sorted(_pinned(ledger)) if (entry := ledger.entry(id)) is not None]
    mine = states_as_of(ledger, last)
    assert last.manifest is not None
    for name in filter(lambda name: name.startswith(STATE), last.manifest.tables):
        sink, context = state_sink(name), pipeline.context(name)
        sink.clear(Publication(last.id, last.plan.generation, seams.new_id(), None, ()), context)
        kept = [
            ledger.unpack(found) for entry in spared if (found := states_as_of(ledger, entry).get(name)) is not None
        ]
        if (payload := mine.get(name)) is not None:
            sink.retire_files(ledger.unpack(payload), kept, context)
