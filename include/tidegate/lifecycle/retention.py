"""Retention: forget old checkpoints, by reference and never by age or by "what looks unused".

The rule (docs/protocol.md, section 10). An entry may go when it lies below the last `num_retained`
completed ones that can be gone back to (what was rolled back does not count), below all that these have in flight,
and below everything that is still open or owed, and nobody has pinned it, or what rests on it; nor may it be young,
or kept by its day (lifecycle/ages.py). First its tombstone is created, then log and pins are read again: if anything
still rests on the entry, it stays. Then what its attempts staged and no table names, its side files and its records
are deleted, in an order that can break off anywhere.

Nothing is removed on suspicion. A staged file may be a live file of its table: it is removed only if the
entry's own records, all of them, say that its attempt lost. A file that checkpoints hand on from one to the next, as
states and positions do, goes only if no entry that remains names it, wherever that lies: what the next one by number
has replaced may be in use behind a rollback.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.ancestry import lowest_ack
from tidegate.checkpoint.references import blobs_of, states_named
from tidegate.checkpoint.superseded_acks import superseded_attempts
from tidegate.errors import TidegateError, Unavailable
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.log import TOO_LATE
from tidegate.lifecycle.ages import Ages, DatedCheckpoints
from tidegate.protocol.view import Entry, rolled_back_by
from tidegate.records.records import Blob, Decision, Kept, Pin, Retired
from tidegate.sinks.base import Staging
from tidegate.sinks.channel import Channel, channel_name
from tidegate.state.table import StateSink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["LOGS_EVERY", "clear_staged", "release", "retire_but_last", "retire_old"]

LOGS_EVERY = 50
"""With every so many entries, old log files of states' tables go, too: Delta's own checkpoints come every 100."""


def retire_old(pipeline: PipelineContext) -> list[int]:
    """Retire what is below the floor; answers with the ids that are gone now."""
    return _retire_old(pipeline, lambda: pipeline.limits.num_retained, Ages.of(pipeline.limits.record()))


def retire_but_last(pipeline: PipelineContext) -> list[int]:
    """Retire all but the last completed one and what is pinned, whatever the settings keep."""
    return _retire_old(pipeline, lambda: 1, Ages())


def _retire_old(pipeline: PipelineContext, most: Callable[[], int], ages: Ages) -> list[int]:
    ledger = pipeline.ledger
    pins = ledger.pins()
    kept = _kept(ledger, most(), ledger.rollbacks(pins))
    old = ledger.ids(before=_floor(ledger, kept, most()))
    line = DatedCheckpoints(ledger)
    spared = _spared(ledger, ages.unpin_days(line, pins)) if old else set()
    old = ages.old(ledger, [id for id in old if id not in spared])
    pinned = ages.pin_days(line, old)
    old = [id for id in old if id not in pinned]
    if old:
        ledger.settle_hint()  # it names what stays; an older one, back after a power loss, would name what goes
    remaining = _Remaining(pipeline, kept.low if kept is not None else 1)
    # In order: no hole but for pins.
    # A rollback that is decided while this goes on needs more of what lies below it: so look again before each claim.
    fresh = ages == Ages()

    def retire(id: int) -> bool:
        nonlocal fresh
        may_go, fresh = fresh or _may_go(ledger, id, most), False
        return may_go and _retire(pipeline, id, most, remaining)

    gone = list(itertools.takewhile(retire, old))
    if kept is not None and kept != ledger.kept():
        ledger.hint_kept(kept)
    if kept is not None and any(id % LOGS_EVERY == 0 for id in gone):
        _forget_logs(pipeline, kept.low)
    return gone


def _forget_logs(pipeline: PipelineContext, low: int) -> None:
    """Of the tables that are our own, the history before the lowest retained entry. What is pinned needs none of it:
    its records name all its files."""
    stood = pipeline.ledger.published(low)
    for name, at in stood.tables.items() if stood is not None else ():
        if (sinking := pipeline.graph.tables.get(name)) is not None:
            with contextlib.suppress(TidegateError):
                sinking.sink.forget(at, pipeline.context(name))


def _spared(ledger: Ledger, pins: Sequence[Pin]) -> set[int]:
    """The entries that somebody refers to, wherever they lie. Pins that are of no use are removed."""
    spared = set()
    for pin in pins:
        if _is_stale(ledger, pin):
            ledger.delete_pin(pin.owner)
        else:
            spared |= _resting(ledger, pin.entry)
    return spared


def _resting(ledger: Ledger, id: int) -> set[int]:
    """The entry, and those in which acks lie that it goes on from, or what it has in flight."""
    entry = ledger.entry(id)
    behind = entry is not None and entry.manifest is not None and entry.restart is None
    return set(range(lowest_ack(entry) if behind and entry is not None else id, id + 1))


def _is_stale(ledger: Ledger, pin: Pin) -> bool:
    """Whether a rollback's pin is of no use: its entry is another's, aborted, or retired.

    An entry that is not there yet may still be made, by somebody slow who has pinned its target.
    """
    if pin.restart is None:
        return False
    plan = ledger.plan(pin.restart)
    if plan is None:
        view = ledger.view()
        return bool(view.entries) and pin.restart < view.entries[0].id
    decision = ledger.decision(pin.restart)
    return plan.attempt != pin.attempt or (decision is not None and decision.outcome == "aborted")


def retention_floor(ledger: Ledger, num_retained: int, pins: Sequence[Pin] | None = None) -> int:
    """The lowest id that must stay: the num_retained-th last completed one, or lower if something rests there."""
    return _floor(ledger, _kept(ledger, num_retained, ledger.rollbacks(pins)), num_retained)


def _floor(ledger: Ledger, kept: Kept | None, num_retained: int) -> int:
    if kept is None or kept.completed < num_retained:
        return 0
    return min(_resting(ledger, min(kept.low, kept.upto)))


def _kept(ledger: Ledger, num_retained: int, rollbacks: Sequence[tuple[int, int]]) -> Kept | None:
    """The last num_retained completed entries that can be gone back to, or as many as there are. None: none is settled.

    Goes on from what was counted last time, so that the cost follows what is new and what is dropped. That cannot go
    stale: how many of a range of decided entries count never changes, but by another rollback.
    """
    settled = ledger.view().settled
    if not settled:
        return None
    known, last = ledger.kept(), rollbacks[-1][0] if rollbacks else 0
    if known is None or known.upto > settled or known.rollback != last:
        return _counted(ledger, num_retained, settled, rollbacks)
    low, completed = known.low, known.completed
    for id in range(known.upto + 1, settled + 1):
        completed += _counts(ledger, id, rollbacks) or False
    while (done := _counts(ledger, low, rollbacks)) is not True or completed > num_retained:
        if done is None or low == settled:  # others have retired it since, or the count was wrong
            return _counted(ledger, num_retained, settled, rollbacks)
        completed -= done
        low += 1
    return known if settled == known.upto and low == known.low else _note(low, settled, completed, last)


def _counted(ledger: Ledger, num_retained: int, settled: int, rollbacks: Sequence[tuple[int, int]]) -> Kept:
    """The same, counted from the end."""
    low, completed = settled, 0
    for id in reversed(ledger.ids(before=settled + 1)):
        done = _counts(ledger, id, rollbacks)
        if done is not None:
            low, completed = id, completed + done
        if completed == num_retained:
            break
    return _note(low, settled, completed, rollbacks[-1][0] if rollbacks else 0)


def _note(low: int, upto: int, completed: int, rollback: int) -> Kept:
    return Kept(**stamp(seams.new_id()), low=low, upto=upto, completed=completed, rollback=rollback)


def _counts(ledger: Ledger, id: int, rollbacks: Sequence[tuple[int, int]]) -> bool | None:
    """Whether it was completed, and not rolled back since; None if it is not there any more, or only what somebody left
    who came too late."""
    decision = ledger.decision(id)
    if decision is None or decision.reason == TOO_LATE or not ledger.has_plan(id):
        return None
    return decision.outcome == "completed" and rolled_back_by(id, rollbacks) is None


def release(pipeline: PipelineContext, entry: Entry) -> None:
    """Remove what the attempts of an aborted entry staged. A failure leaves files that nobody names."""
    try:
        pipeline.ledger.settle_decision(entry.id)  # W2: an abort that a power loss takes back is none
    except TidegateError:
        return
    for name, sinking in pipeline.graph.tables.items():
        with contextlib.suppress(TidegateError):
            context = pipeline.context(name)
            for attempt in filter(entry.owns, sinking.sink.attempts(entry.id, context)):
                sinking.sink.discard(context, Staging(entry.id, attempt))
    with contextlib.suppress(TidegateError):
        _clear_channels(pipeline, entry)


class _Remaining:
    """The entries that stay when one goes. Each is read once in a clean-up, and only if somebody asks for it."""

    def __init__(self, pipeline: PipelineContext, low: int) -> None:
        """low: from here on all are there."""
        self._pipeline = pipeline
        self._low = low
        self._decided: dict[int, Entry] = {}

    def ids(self, but: int) -> list[int]:
        """All but this one, the nearest above it first. A listing may not show the youngest yet; the log's end does.

        What is made from now on rests on one of these, so what it shares with the one that goes that one names, too.
        """
        ledger = self._pipeline.ledger
        listed = {*ledger.ids(), *range(self._low, ledger.view().last_id + 1)} - {but}
        return sorted(listed, key=lambda id: (id < but, id))

    def entries(self, but: int) -> Iterator[Entry]:
        """These entries, as far as they are there; and those that were made while these were read, for it may have been
        long: others may have retired meanwhile what handed a file on to them."""
        seen: set[int] = set()
        while new := [id for id in self.ids(but) if id not in seen]:
            for id in new:
                entry = self._decided.get(id) or self._pipeline.real_entry(id)
                if entry is not None:
                    if entry.decision is not None:
                        self._decided[id] = entry
                    yield entry
            seen.update(new)


def _retire(pipeline: PipelineContext, id: int, most: Callable[[], int], remaining: _Remaining) -> bool:
    """Claim and delete one entry below the floor. False: it stays for now, or somebody else is at it."""
    try:
        return _claim(pipeline, id, most) and _delete(pipeline, id, remaining)
    except Unavailable:
        return False  # next time


def _claim(pipeline: PipelineContext, id: int, most: Callable[[], int]) -> bool:
    ledger = pipeline.ledger
    if ledger.retired(id):
        return id not in _spared(ledger, ledger.pins())
    entry = pipeline.real_entry(id)
    if entry is None:
        return True  # what a zombie wrote behind the deletion
    if entry.open:
        # Down here all was decided: somebody slow has claimed the id anew, and died before noticing.
        ledger.create_decision(Decision(**stamp(seams.new_id()), id=id, outcome="aborted", reason=TOO_LATE))
    ledger.create_retired(Retired(**stamp(seams.new_id()), id=id))
    # Tombstone first, then look again: whoever wants to rest on the entry looks for the tombstone.
    return _may_go(ledger, id, most)


def _may_go(ledger: Ledger, id: int, most: Callable[[], int]) -> bool:
    """Whether nobody needs the entry, as of now."""
    pins = ledger.pins()
    return id < retention_floor(ledger, most(), pins) and id not in _spared(ledger, pins)


def _delete(pipeline: PipelineContext, id: int, remaining: _Remaining) -> bool:
    ledger = pipeline.ledger
    entry = pipeline.real_entry(id)
    if entry is None:  # broken off behind the plan: side files and staged ones are gone already
        ledger.delete_entry(id, ())
        return True
    if entry.open:
        return False
    clear_staged(pipeline, entry)
    _clear_states(pipeline, entry, remaining)
    _clear_quarantines(pipeline, entry, remaining)
    unneeded = _unneeded(blobs_of(entry), map(blobs_of, remaining.entries(but=id)))
    ledger.delete_entry(id, sorted(unneeded, key=lambda blob: blob.path))
    return True


def clear_staged(pipeline: PipelineContext, entry: Entry) -> None:
    """Staged files of attempts that lost, and those of the winner that its table does not name: all of them, if the
    entry was rolled back before it was there. And what went from job to job."""
    _clear_channels(pipeline, entry)
    without = set(entry.plan.acks) - set(entry.acks) if entry.completed else set()
    if without - set(entry.overtakable):
        return  # an ack is lost, so a winner looks like a loser: rather leave what nobody needs
    rolled_back = rolled_back_by(entry.id, pipeline.ledger.rollbacks()) is not None
    named = entry.manifest.jobs.values() if entry.manifest is not None else ()
    winners = {acked.ack.attempt for acked in entry.acks.values() if acked.handle in named}
    late = {acked.ack.attempt for acked in entry.acks.values() if entry.completed} - winners
    late -= superseded_attempts(pipeline.ledger, entry)  # what is left is live by another one
    for name, sinking in pipeline.graph.tables.items():
        if pipeline.graph.job_of(name) in without:
            continue
        context, sink = pipeline.context(name), sinking.sink
        never = entry.completed and not entry.plan.by_interval and rolled_back and sink.skipped(entry.id, context)
        for attempt in filter(entry.owns, sink.attempts(entry.id, context)):
            if attempt in late:
                continue
            remove = sink.retire if attempt in winners and not never else sink.discard
            remove(context, Staging(entry.id, attempt))


def _clear_channels(pipeline: PipelineContext, entry: Entry) -> None:
    """What went from job to job. It is decided what came of it, so nobody takes it any more."""
    streams = {stream for acked in entry.acks.values() for stream in acked.ack.channels}
    for stream in sorted(streams | set(pipeline.graph.channels)):
        channel, context = Channel(stream), pipeline.context(channel_name(stream))
        for attempt in filter(entry.owns, channel.attempts(entry.id, context)):
            channel.discard(context, Staging(entry.id, attempt))


def _clear_states(pipeline: PipelineContext, entry: Entry, remaining: _Remaining) -> None:
    """State files that the entry names and none that remains does: compaction has replaced them since."""
    ledger = pipeline.ledger
    for name, payload in states_named(entry).items() if entry.completed else ():
        sinking = pipeline.graph.tables.get(name)
        if sinking is not None and isinstance(sinking.sink, StateSink):
            states = (states_named(each).get(name) for each in _with_states(ledger, remaining.entries(but=entry.id)))
            kept = (ledger.unpack(state) for state in states if state is not None)
            sinking.sink.retire_files(ledger.unpack(payload), kept, pipeline.context(name))


def _with_states(ledger: Ledger, entries: Iterator[Entry]) -> Iterator[Entry]:
    """Those that still need what they name. An aborted one does not, nor does the last one of a pipeline that was
    cancelled for good."""
    discarded = ledger.discarded()
    return (each for each in entries if not each.aborted and (discarded is None or discarded.id != each.id))


def _clear_quarantines(pipeline: PipelineContext, entry: Entry, remaining: _Remaining) -> None:
    """Files of quarantines that the next completed entry has written anew, because it marked rows: as with states,
    those that no version has that one can go back to, nor the table now."""
    completed = (each for each in remaining.entries(but=entry.id) if each.id > entry.id and each.completed)
    above = next(completed, None) if entry.completed else None
    for name, sinking in pipeline.graph.tables.items():
        sink = sinking.sink
        if above is None or not isinstance(sink, QuarantineSink):
            continue
        staged = [acked.ack.sinks[name] for acked in above.acks.values() if name in acked.ack.sinks]
        follows = above.plan.base == entry.id and above.restart is None  # else others between may have marked, too
        if not follows or any(sink.replaces(pipeline.ledger.unpack(payload)) for payload in staged):
            # Nobody goes back to an aborted one; what it rests on is completed, and asked for by its own number.
            kept = [each.id for each in remaining.entries(but=entry.id) if not each.aborted]
            sink.retire_replaced(entry.id, kept, pipeline.context(name))


def _unneeded(blobs: set[Blob], kept: Iterator[set[Blob]]) -> set[Blob]:
    """Those of the side files that none of these entries names, aborted ones included: one behind them may go on from
    before them, and whatever they name is asked for again when they go themselves."""
    for named in kept if blobs else ():
        blobs -= named
        if not blobs:
            break
    return blobs
