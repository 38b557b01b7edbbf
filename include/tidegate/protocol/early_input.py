"""At least once: which acks' channels a job takes. All that is there, not only what belongs to its checkpoint. Pure.

    own      its own checkpoint's, unless it has taken them before, in a lower one
    ahead    those of later checkpoints that rest on this one, as far as each maker has come

What is taken ahead is remembered in the job's ack, by the ack that it came from. So when its turn comes, it is not
taken once more; if that later checkpoint is aborted, its input comes again under another ack, and is taken again: it is
there twice. Nothing is lost either way: what the job's ack does not name, it has not taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.protocol.view import Entry
from tidegate.records.records import Handle, InFlight

__all__ = ["InputSelection", "taking"]


@dataclass(frozen=True)
class InputSelection:
    """What a job takes in one checkpoint."""

    now: tuple[InFlight, ...]
    """In the order in which it does."""
    ahead: tuple[Handle, ...]
    """For its ack: what it has taken by then of later checkpoints."""


def taking(
    entry: Entry, above: Iterable[Entry], before: Collection[Handle], streams: Mapping[str, str]
) -> InputSelection:
    """above: the entries behind it, in order. before: what the ack that the job goes on from has taken ahead.

    streams: those that it takes, and the jobs that make them.
    """
    makers = list(dict.fromkeys(streams.values()))
    found = [each for maker in makers if (each := _sent(entry, maker, streams)) is not None]
    going = set(makers)
    for later in _resting_on(entry, above):
        given = {maker: _sent(later, maker, streams) for maker in makers if maker in going}
        going = {maker for maker, each in given.items() if each is not None}
        found += [each for each in given.values() if each is not None]
    now = tuple(each for each in found if each.ack not in before)
    taken = {*before, *(each.ack for each in now)}
    ahead = sorted((handle for handle in taken if handle.entry > entry.id), key=lambda each: (each.entry, each.sha))
    return InputSelection(now, tuple(ahead))


def _resting_on(entry: Entry, above: Iterable[Entry]) -> Sequence[Entry]:
    """Those that count as far as this one does, and were planned by the same code, in the same mode."""
    found: list[Entry] = []
    at = entry
    for later in above:
        same = later.plan.code_fingerprint == entry.plan.code_fingerprint and later.plan.through is not None
        if later.plan.base == at.id and same and not later.aborted and later.restart is None:
            found.append(later)
            at = later
    return found


def _sent(entry: Entry, maker: str, streams: Mapping[str, str]) -> InFlight | None:
    """What a job has sent in an entry; None: nothing yet, or not all of these streams."""
    wanted = [stream for stream, made_by in streams.items() if made_by == maker]
    acked = entry.acks.get(maker)
    if acked is None or any(stream not in acked.ack.channels for stream in wanted):
        return None
    return InFlight(job=maker, ack=acked.handle, channels={stream: acked.ack.channels[stream] for stream in wanted})
