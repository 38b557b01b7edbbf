"""Retention: remove old checkpoints, by reference and never by age or because a file looks unused.

The rule (docs/protocol.md, section 10). An entry may be removed if it is below the last `num_retained` completed ones
that can be rolled back to (undone ones do not count), below the rows in flight of these, and below every entry that is
still open or pending; if neither it nor an entry that rests on it is pinned; and if it is neither young nor retained
for its day (lifecycle/ages.py). First its tombstone is created, then log and pins are read again: if anything still
rests on the entry, it stays. Then the staged files of its attempts that no table names, its side files and its records
are deleted, in an order that can be interrupted anywhere.

Nothing is removed on suspicion. A staged file may be a live file of its table: it is removed only if the entry's
complete records show that its attempt lost. A file that checkpoints pass on from one to the next, as states and
positions do, is removed only if no remaining entry names it, above or below: a file that the next entry by number has
replaced may be in use after a rollback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.manifests import lowest_ack
from tidegate.checkpoint.references import blobs_of, states_named
from tidegate.checkpoint.superseded_acks import superseded_attempts
from tidegate.connectors.channel import Channel, channel_name
from tidegate.connectors.sink import Staging
from tidegate.errors import TidegateError, Unavailable
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.log import TOO_LATE
from tidegate.lifecycle.ages import Ages, DatedCheckpoints
from tidegate.protocol.backfill import spared_for_lines
from tidegate.protocol.view import Entry, rollback_of
from tidegate.records.records import Blob, Decision, Json, Pin, RetainedCount, Retired
from tidegate.state.table import StateSink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["LOGS_EVERY", "clear_staged", "discard_staged", "retire_but_last", "retire_old"]

_MAX_CONCURRENT = 16
"""How many tables in object stores are cleaned concurrently."""

LOGS_EVERY = 50
"""Old log files of the states' tables are removed once per this many entries. Delta log checkpoints are written every
100 versions."""


def retire_old(pipeline: PipelineContext) -> list[int]:
    """Retire the entries below the floor. Return their ids."""
    return _retire_old(pipeline, lambda: pipeline.settings.num_retained, Ages.from_settings(pipeline.settings.record()))


def retire_but_last(pipeline: PipelineContext) -> list[int]:
    """Retire all but the last completed entry and the pinned ones, regardless of the settings."""
    return _retire_old(pipeline, lambda: 1, Ages())


def _retire_old(pipeline: PipelineContext, num_retained: Callable[[], int], ages: Ages) -> list[int]:
    ledger = pipeline.ledger
    pins = ledger.pins()
    counted = _count_retained(ledger, num_retained(), ledger.rollbacks(pins))
    old = ledger.ids(before=_floor(ledger, counted, num_retained()))
    checkpoints = DatedCheckpoints(ledger, pins)
    if old:
        spared = _spared(ledger, ages.unpin_days(checkpoints, pins), _lowest_unpinned(old, pins))
    else:
        spared = set()
    old = ages.old(ledger, [id for id in old if id not in spared])
    pinned = ages.pin_days(checkpoints, old)
    old = [id for id in old if id not in pinned]
    if old:
        # The hint names a remaining entry; an older one, back after a power loss, would name a removed one.
        ledger.sync_hint()
    remaining = _Remaining(pipeline, counted.low if counted is not None else 1)
    retired: list[int] = []
    for id in old:  # in order, so that no id is missing except below pinned entries
        # A rollback that was decided since needs more of the entries below it. So check again before each claim, except
        # before the first one if the pins of days took no time.
        was_just_checked = ages.spare_none and not retired
        if not was_just_checked and not _is_removable(ledger, id, num_retained):
            break
        if not _retire(pipeline, id, num_retained, remaining):
            break
        retired.append(id)
    if counted is not None and not _is_recorded(ledger, counted):
        ledger.hint_retained_count(counted)
    if counted is not None and any(id % LOGS_EVERY == 0 for id in retired):
        _forget_logs(pipeline, counted.low)
    return retired


def _forget_logs(pipeline: PipelineContext, low: int) -> None:
    """Remove the history of tidegate's own tables before the lowest retained entry. Pinned entries do not need it,
    because their records name all their files."""
    published = pipeline.ledger.published(low)
    if published is None:
        return
    for name, table in published.tables.items():
        sinking = pipeline.graph.tables.get(name)
        if sinking is not None:
            with contextlib.suppress(TidegateError):
                sinking.sink.delete_history(table, pipeline.context(name))


def _lowest_unpinned(ids: Sequence[int], pins: Sequence[Pin]) -> int:
    pinned = {pin.entry for pin in pins if pin.rollback is None}  # pins of rollbacks may be stale
    return next((id for id in ids if id not in pinned), ids[-1])


def _spared(ledger: Ledger, pins: Sequence[Pin], low: int = 0) -> set[int]:
    """Return all pinned entries from `low` on, with those that they rest on. Removes stale pins.

    A pinned entry rests on lower ones only. So those below `low`, which may be one per day over years, need not be
    read.
    """
    spared: set[int] = set()
    lowest_for_backfills = spared_for_lines(pins)
    if lowest_for_backfills is not None:
        spared |= set(ledger.ids(after=max(lowest_for_backfills, low) - 1))
    for pin in pins:
        if _is_stale(ledger, pin):
            ledger.delete_pin(pin.owner)
        elif pin.entry < low:
            spared.add(pin.entry)
        else:
            spared |= _resting(ledger, pin.entry)
    return spared


def _resting(ledger: Ledger, id: int) -> set[int]:
    """Return the entry, and those with acks from which it continues, or with rows that it has in flight."""
    entry = ledger.entry(id)
    low = id
    if entry is not None and entry.manifest is not None and entry.rollback is None:
        low = lowest_ack(entry)
    return set(range(low, id + 1))


def _is_stale(ledger: Ledger, pin: Pin) -> bool:
    """Return whether a rollback's pin is stale: its entry was created by another process, is aborted, or is retired.

    An entry that does not exist yet may still be created, by a slow process that has pinned its target.
    """
    if pin.rollback is None:
        return False
    plan = ledger.plan(pin.rollback)
    if plan is None:
        view = ledger.view()
        return bool(view.entries) and pin.rollback < view.entries[0].id
    decision = ledger.decision(pin.rollback)
    return plan.attempt != pin.attempt or (decision is not None and decision.outcome == "aborted")


def retention_floor(ledger: Ledger, num_retained: int, pins: Sequence[Pin] | None = None) -> int:
    """Return the lowest id that must stay: the num_retained-th last completed one, or lower if one rests there."""
    return _floor(ledger, _count_retained(ledger, num_retained, ledger.rollbacks(pins)), num_retained)


def _floor(ledger: Ledger, counted: RetainedCount | None, num_retained: int) -> int:
    if counted is None or counted.completed < num_retained:
        return 0
    return min(_resting(ledger, min(counted.low, counted.upto)))


def _count_retained(ledger: Ledger, num_retained: int, rollbacks: Sequence[tuple[int, int]]) -> RetainedCount | None:
    """Return the range of the last num_retained completed entries that can be rolled back to, or of all if fewer exist.
    None if no entry is settled.

    Continues from the last count, so that the cost depends on the new and the removed entries. A count cannot go stale:
    only another rollback changes how many entries of a decided range count.
    """
    settled = ledger.view().settled
    if not settled:
        return None
    previous = ledger.retained_count()
    last = rollbacks[-1][0] if rollbacks else 0
    reached = max(previous.low, previous.reached) if previous is not None else 0
    if previous is None or previous.upto > settled or previous.rollback != last:
        return _counted(ledger, num_retained, settled, rollbacks, reached)
    low, completed = previous.low, previous.completed
    for id in range(previous.upto + 1, settled + 1):
        completed += _counts(ledger, id, rollbacks) or False
    while (counted := _counts(ledger, low, rollbacks)) is not True or completed > num_retained:
        if counted is None or low == settled:  # another process has retired it since, or the count was wrong
            return _counted(ledger, num_retained, settled, rollbacks, reached)
        completed -= counted
        low += 1
    if settled == previous.upto and low == previous.low:
        return previous
    return _note(low, settled, completed, last, previous.reached)


def _is_recorded(ledger: Ledger, counted: RetainedCount) -> bool:
    """Return whether the ledger has this count or a later one, so that a paused process does not reset the progress of
    retention. A count beyond the log belongs to another log, from before a copy was restored."""
    stored = ledger.retained_count()
    if stored is None:
        return False
    if stored == counted:
        return True
    is_later = stored.upto >= counted.upto and stored.rollback >= counted.rollback
    is_same_range = (stored.upto, stored.rollback) == (counted.upto, counted.rollback)
    return is_later and not is_same_range and stored.upto <= ledger.view().settled


def _counted(
    ledger: Ledger, num_retained: int, settled: int, rollbacks: Sequence[tuple[int, int]], reached: int
) -> RetainedCount:
    """Return the count, made from scratch."""
    low, completed = settled, 0
    for id in reversed(ledger.ids(before=settled + 1)):
        counted = _counts(ledger, id, rollbacks)
        if counted is not None:
            low, completed = id, completed + counted
        if completed == num_retained:
            break
    return _note(low, settled, completed, rollbacks[-1][0] if rollbacks else 0, reached)


def _note(low: int, upto: int, completed: int, rollback: int, reached: int) -> RetainedCount:
    reached = reached if reached > low else 0
    return RetainedCount(
        **stamp(seams.new_id()), low=low, upto=upto, completed=completed, rollback=rollback, reached=reached
    )


def _counts(ledger: Ledger, id: int, rollbacks: Sequence[tuple[int, int]]) -> bool | None:
    """Return whether the entry was completed, and not rolled back since. None if it no longer exists, or if its records
    were written too late by a paused process."""
    decision = ledger.decision(id)
    if decision is None or decision.reason == TOO_LATE or not ledger.has_plan(id):
        return None
    return decision.outcome == "completed" and rollback_of(id, rollbacks) is None


def discard_staged(pipeline: PipelineContext, entry: Entry) -> None:
    """Remove the staged files of an aborted entry's attempts. A failure leaves files that no record names."""
    try:
        pipeline.ledger.sync_decision(entry.id)  # W2: a power loss must not undo the abort
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
    """The entries that remain when one is removed. Each is read at most once per clean-up, and only on demand."""

    def __init__(self, pipeline: PipelineContext, low: int) -> None:
        """low: all entries from here on exist."""
        self._pipeline = pipeline
        self._low = low
        self._decided: dict[int, Entry] = {}

    def ids(self, but: int) -> list[int]:
        """Return all ids except this one, the nearest above it first.

        A listing may not show the newest entries yet; the end of the log does. An entry created later rests on one of
        these, so any file that it shares with the removed entry is named by that one too.
        """
        ledger = self._pipeline.ledger
        listed = {*ledger.ids(), *range(self._low, ledger.view().last_id + 1)} - {but}
        return sorted(listed, key=lambda id: (id < but, id))

    def entries(self, but: int) -> Iterator[Entry]:
        """Yield these entries, if they exist, and those created while these were read.

        Reading may take long, and in that time another process may have retired the entry that passed a file on to a
        new one.
        """
        read: set[int] = set()
        while new := [id for id in self.ids(but) if id not in read]:
            for entry in self._read(new):
                if entry is not None:
                    if entry.decision is not None:
                        self._decided[entry.id] = entry
                    yield entry
            read.update(new)

    def _read(self, ids: Sequence[int]) -> Iterator[Entry | None]:
        """Yield these entries, or None for those that do not exist. The first, which is often enough, is read alone."""
        at_once = self._pipeline.ledger.store.at_once
        yield from map(self._entry, ids[:1])
        for low in range(1, len(ids), at_once):
            batch = ids[low : low + at_once]
            if len(batch) == 1:
                yield self._entry(batch[0])
                continue
            with ThreadPoolExecutor(at_once) as pool:
                yield from list(pool.map(self._entry, batch))

    def _entry(self, id: int) -> Entry | None:
        return self._decided.get(id) or self._pipeline.real_entry(id)


def _retire(pipeline: PipelineContext, id: int, num_retained: Callable[[], int], remaining: _Remaining) -> bool:
    """Claim and delete one entry below the floor. Return False if it stays for now, or another process removes it."""
    try:
        return _claim(pipeline, id, num_retained) and _delete(pipeline, id, remaining)
    except Unavailable:
        return False  # the next clean-up tries again


def _claim(pipeline: PipelineContext, id: int, num_retained: Callable[[], int]) -> bool:
    ledger = pipeline.ledger
    if ledger.retired(id):
        return id not in _spared(ledger, ledger.pins(), id)
    entry = pipeline.real_entry(id)
    if entry is None:
        return True  # only files that a paused process wrote after the deletion
    if entry.open:
        # All entries this low were decided: a slow process has claimed the id again, and died before noticing.
        ledger.create_decision(Decision(**stamp(seams.new_id()), id=id, outcome="aborted", reason=TOO_LATE))
    ledger.create_retired(Retired(**stamp(seams.new_id()), id=id))
    # Create the tombstone, then check again: a process that is about to rest on the entry checks for the tombstone.
    return _is_removable(ledger, id, num_retained)


def _is_removable(ledger: Ledger, id: int, num_retained: Callable[[], int]) -> bool:
    """Return whether the entry is not needed now."""
    pins = ledger.pins()
    return id < retention_floor(ledger, num_retained(), pins) and id not in _spared(ledger, pins, id)


def _delete(pipeline: PipelineContext, id: int, remaining: _Remaining) -> bool:
    ledger = pipeline.ledger
    entry = pipeline.real_entry(id)
    if entry is None:  # interrupted after the plan: side files and staged files are already deleted
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
    """Remove the entry's channels, the staged files of losing attempts, and those of the winner that its table does not
    name: all of them, if the entry was rolled back before it was published."""
    _clear_channels(pipeline, entry)
    without_ack: set[str] = set()
    if entry.completed:
        without_ack = set(entry.plan.acks) - set(entry.acks)
    if without_ack - set(entry.overtakable):
        return  # an ack is lost, so a winner looks like a loser: leave the files rather than lose them
    rolled_back = rollback_of(entry.id, pipeline.ledger.rollbacks()) is not None
    named = entry.manifest.jobs.values() if entry.manifest is not None else ()
    winners = {acked.ack.attempt for acked in entry.acks.values() if acked.handle in named}
    # A completed entry's attempt that its manifest does not name may be named by a later one: its files are live then.
    maybe_live: set[str] = set()
    if entry.completed:
        attempts = {acked.ack.attempt for acked in entry.acks.values()}
        maybe_live = attempts - winners - superseded_attempts(pipeline.ledger, entry)
    contexts = pipeline.contexts(pipeline.graph.tables)

    def clear(name: str) -> None:
        context, sink = contexts[name], pipeline.graph.tables[name].sink
        may_be_skipped = entry.completed and not entry.plan.by_interval and rolled_back
        never_published = may_be_skipped and sink.has_skipped(entry.id, context)
        for attempt in filter(entry.owns, sink.attempts(entry.id, context)):
            if attempt in maybe_live:
                continue
            if attempt in winners and not never_published:
                remove = sink.retire
            else:
                remove = sink.discard
            remove(context, Staging(entry.id, attempt))

    names = [name for name in pipeline.graph.tables if pipeline.graph.job_of(name) not in without_ack]
    tables = {name: pipeline.graph.tables[name].sink.delta_table(contexts[name]) for name in names}
    remote = [name for name, table in tables.items() if table is not None and not table.is_local]
    if len(remote) > 1:
        with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
            list(pool.map(clear, remote))
        names = [name for name in names if name not in remote]
    for name in names:
        clear(name)


def _clear_channels(pipeline: PipelineContext, entry: Entry) -> None:
    """Remove the rows sent from job to job. The outcome is decided, so no job reads them any more."""
    streams = set(pipeline.graph.channels)
    for acked in entry.acks.values():
        streams |= acked.ack.channels.keys()
    for stream in sorted(streams):
        channel, context = Channel(stream), pipeline.context(channel_name(stream))
        for attempt in filter(entry.owns, channel.attempts(entry.id, context)):
            channel.discard(context, Staging(entry.id, attempt))


def _clear_states(pipeline: PipelineContext, entry: Entry, remaining: _Remaining) -> None:
    """Remove state files that the entry names and no remaining one does, because compaction has replaced them."""
    if not entry.completed:
        return
    ledger = pipeline.ledger
    for name, payload in states_named(entry).items():
        sinking = pipeline.graph.tables.get(name)
        if sinking is not None and isinstance(sinking.sink, StateSink):
            needed = _needed_states(ledger, name, remaining.entries(but=entry.id))
            sinking.sink.retire_files(ledger.unpack(payload), needed, pipeline.context(name))


def _needed_states(ledger: Ledger, name: str, entries: Iterator[Entry]) -> Iterator[Json]:
    """Yield the records of a state in these entries, if they still need it. An aborted one does not, nor does the last
    one of a pipeline that was cancelled for good."""
    discarded = ledger.discarded()
    for entry in entries:
        if entry.aborted or (discarded is not None and discarded.id == entry.id):
            continue
        state = states_named(entry).get(name)
        if state is not None:
            yield ledger.unpack(state)


def _clear_quarantines(pipeline: PipelineContext, entry: Entry, remaining: _Remaining) -> None:
    """Remove quarantine files that the next completed entry has rewritten, because it marked rows.

    As with states, a file is removed only if it is in no version that can be rolled back to, nor in the table now.
    """
    sinks = pipeline.graph.tables.items()
    quarantines = {}
    for name, sinking in sinks:
        if isinstance(sinking.sink, QuarantineSink):
            quarantines[name] = sinking.sink
    if not entry.completed or not quarantines:
        return
    above = next((other for other in remaining.entries(but=entry.id) if other.id > entry.id and other.completed), None)
    if above is None:
        return
    # Entries in between, which are removed, may have marked rows too.
    is_next = above.plan.base == entry.id and above.rollback is None
    for name, sink in quarantines.items():
        staged = [acked.ack.sinks[name] for acked in above.acks.values() if name in acked.ack.sinks]
        if not is_next or any(sink.replaces(pipeline.ledger.unpack(payload)) for payload in staged):
            # An aborted entry cannot be rolled back to; its base is completed, and in the list itself.
            remaining_ids = [other.id for other in remaining.entries(but=entry.id) if not other.aborted]
            sink.retire_replaced(entry.id, remaining_ids, pipeline.context(name))


def _unneeded(blobs: set[Blob], named_sets: Iterator[set[Blob]]) -> set[Blob]:
    """Return the side files that no remaining entry names, aborted ones included.

    An entry after an aborted one may continue from before it, and the files that an aborted one names are checked again
    when it is removed itself.
    """
    if not blobs:
        return blobs
    for named in named_sets:
        blobs -= named
        if not blobs:
            break
    return blobs
