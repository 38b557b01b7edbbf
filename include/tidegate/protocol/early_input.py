"""At least once: select the channels that a job reads. Pure.

A job reads all input that exists, not only the input of its own checkpoint:

    own      the channels of its own checkpoint, unless it read them earlier, in a lower checkpoint
    ahead    the channels of later checkpoints that rest on this one, up to each producer's last ack

The job's ack names the acks whose channels it read ahead, so these are not read again in their own checkpoint. If that
checkpoint is aborted, its input returns under another ack and is read again: its rows exist twice. Nothing is lost
either way, because the job's ack names everything that the job has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.protocol.view import Entry
from tidegate.records.records import Handle, InFlight

__all__ = ["InputSelection", "select_input"]


@dataclass(frozen=True)
class InputSelection:
    """The input that a job reads in one checkpoint."""

    now: tuple[InFlight, ...]
    """In the order of reading."""
    ahead: tuple[Handle, ...]
    """For its ack: all acks of later checkpoints that it has read so far."""


def select_input(
    entry: Entry, above: Iterable[Entry], before: Collection[Handle], streams: Mapping[str, str]
) -> InputSelection:
    """Select the input of a job in `entry`.

    above: the entries after it, in order. before: the acks that the job's previous ack has read ahead.
    streams: the streams that the job reads, and the job that produces each.
    """
    producers = list(dict.fromkeys(streams.values()))
    sent_here = [_sent_in(producer, entry, streams) for producer in producers]
    available = [sent for sent in sent_here if sent is not None]
    for later in _entries_on(entry, above):
        still_sending = []
        for producer in producers:
            sent = _sent_in(producer, later, streams)
            if sent is not None:
                available.append(sent)
                still_sending.append(producer)
        producers = still_sending
    now = tuple(sent for sent in available if sent.ack not in before)
    read = {*before, *(sent.ack for sent in now)}
    ahead = sorted((ack for ack in read if ack.entry > entry.id), key=lambda ack: (ack.entry, ack.sha))
    return InputSelection(now, tuple(ahead))


def _entries_on(entry: Entry, above: Iterable[Entry]) -> Sequence[Entry]:
    """Return the entries that rest on this one and were planned by the same code, in the same mode."""
    descendants: list[Entry] = []
    tip = entry
    for later in above:
        same_code = later.plan.code_fingerprint == entry.plan.code_fingerprint
        at_least_once = later.plan.through is not None
        counts = not later.aborted and later.rollback is None
        if later.plan.base == tip.id and same_code and at_least_once and counts:
            descendants.append(later)
            tip = later
    return descendants


def _sent_in(job: str, entry: Entry, streams: Mapping[str, str]) -> InFlight | None:
    """Return the rows that a job has sent in an entry. None if it has not sent all of these streams yet."""
    names = [stream for stream, producer in streams.items() if producer == job]
    acked = entry.acks.get(job)
    if acked is None or any(name not in acked.ack.channels for name in names):
        return None
    return InFlight(job=job, ack=acked.handle, channels={name: acked.ack.channels[name] for name in names})
