"""How far each job is, where a checkpoint may go past one that is busy (docs/protocol.md, section 7). Pure.

    the line      an entry, and below it what it rests on, down to where a job's last ack may lie
    held          what the last completed manifest of the line says: each job's ack, and what it had not taken by then
    a chain       acks of a job, each the `prev` of the next, the first behind the one that is held
    eligible      an ack at the end of such a chain, all of it on the line, which has taken just what was sent, in order
    void          every other ack: two attempts went on from the same one, or something between them was aborted

A manifest takes each job's farthest eligible ack, with all that its chain has staged; what jobs have sent since then
is in flight. So it makes no difference whether a job that was taken to be busy is, or is gone: what it does counts
once, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import Handle, InFlight

__all__ = ["JobProgress", "allows_overtaking", "behind", "missing", "not_waited_for", "progress_of"]


@dataclass(frozen=True)
class JobProgress:
    """How far each job is as of the first entry of a line."""

    chosen: Mapping[str, Handle]
    """By job, its farthest eligible ack."""
    chains: Mapping[str, tuple[Acked, ...]]
    """By job, the acks that came to it since the last completed manifest."""
    in_flight: Mapping[str, tuple[InFlight, ...]]
    """By job, what it has yet to take."""

    def is_at(self, job: str, id: int) -> bool:
        """Whether the job has done its part of checkpoint `id`, and that counts."""
        found = self.chosen.get(job)
        return found is not None and found.entry == id


def allows_overtaking(line: Sequence[Entry]) -> bool:
    """Whether jobs may be at different entries here: where none may be overtaken, or is behind, each ack counts."""
    if any(entry.plan.overtaking is not None for entry in line):
        return True
    floor = _floor(line)
    return floor is not None and floor.manifest is not None and bool(floor.manifest.in_flight)


def progress_of(line: Sequence[Entry]) -> JobProgress:
    """O1, O2: `line` begins with the entry itself and goes down, at least to the last completed one."""
    entry, floor = line[0], _floor(line)
    held = dict(floor.manifest.jobs) if floor is not None and floor.manifest is not None else {}
    before = floor.manifest.in_flight if floor is not None and floor.manifest is not None else {}
    counting = _counting(line, floor)
    chains: dict[str, tuple[Acked, ...]] = {}
    in_flight: dict[str, tuple[InFlight, ...]] = {}
    for job in entry.plan.acks:
        makers = entry.plan.takes.get(job, {})
        sent = [*before.get(job, ()), *_sent_since(makers, chains)]
        found = (_chain(job, acked, held.get(job), counting) for each in counting if (acked := each.acks.get(job)))
        left = ((chain, _not_taken(chain, sent)) for chain in found if chain is not None)
        chain, rest = next(((chain, rest) for chain, rest in left if rest is not None), ((), sent))
        chains[job] = chain
        if rest:
            in_flight[job] = tuple(rest)
    ends = {job: chain[-1].handle for job, chain in chains.items() if chain}
    chosen = {job: end for job in entry.plan.acks if (end := ends.get(job, held.get(job))) is not None}
    return JobProgress(chosen, chains, in_flight)


def _floor(line: Sequence[Entry]) -> Entry | None:
    """The last completed entry below the first one: its manifest holds all that is below."""
    return next((entry for entry in line[1:] if entry.manifest is not None), None)


def _counting(line: Sequence[Entry], floor: Entry | None) -> list[Entry]:
    """The entries whose acks may count, highest first. Below a rollback only what its manifest names does (R4)."""
    counting = []
    for entry in line:
        if entry.restart is not None:
            break
        counting.append(entry)
    return counting


def _chain(job: str, last: Acked, held: Handle | None, counting: Sequence[Entry]) -> tuple[Acked, ...] | None:
    """From what is held to `last`, in order. None: it does not lead there."""
    known = {acked.handle: acked for entry in counting if (acked := entry.acks.get(job)) is not None}
    chain = [last]
    while (prev := chain[-1].ack.prev) != held:
        if prev is None or prev not in known:
            return None
        chain.append(known[prev])
    return tuple(reversed(chain))


def _sent_since(makers: Mapping[str, str], chains: Mapping[str, Sequence[Acked]]) -> list[InFlight]:
    """What the jobs that one takes from have sent since the manifest, in the order in which it is taken."""
    sent = []
    for maker in dict.fromkeys(makers.values()):
        streams = [stream for stream, made_by in makers.items() if made_by == maker]
        for acked in chains.get(maker, ()):
            given = {stream: acked.ack.channels[stream] for stream in streams if stream in acked.ack.channels}
            sent.append(InFlight(job=maker, ack=acked.handle, channels=given))
    return sorted(sent, key=lambda each: each.ack.entry)


def _not_taken(chain: Sequence[Acked], sent: Sequence[InFlight]) -> list[InFlight] | None:
    """What is left when the chain has taken its part. None: it has taken something else."""
    rest: list[InFlight] = list(sent)
    for acked in chain:
        for maker, handles in acked.ack.inputs.items():
            waiting = [each for each in rest if each.job == maker]
            if [each.ack for each in waiting[: len(handles)]] != handles:
                return None
            rest = [each for each in rest if each.job != maker or each not in waiting[: len(handles)]]
    return rest


def behind(entry: Entry) -> dict[str, dict[str, Any]]:
    """For people: the jobs that a completed checkpoint went past, how far they were (None: nowhere), and from which
    checkpoints' rows they had yet to take."""
    if entry.manifest is None or entry.restart is not None:
        return {}
    told = {}
    for job, left in entry.manifest.in_flight.items():
        at = entry.manifest.jobs.get(job)
        ids = sorted({each.ack.entry for each in left})
        told[job] = {"at": at.entry if at is not None else None, "in_flight": ids}
    return told


# -- who is waited for -------------------------------------------------------------------------------------


def not_waited_for(entry: Entry, passed: Collection[str] = ()) -> frozenset[str]:
    """The jobs without an ack that the entry may be completed without.

    passed: the jobs that later entries have found busy. Whoever is busy there is so here; and a job that takes from one
    that is not waited for cannot be waited for.
    """
    found: set[str] = set()
    for job in entry.plan.acks:
        if job in entry.acks or job not in entry.overtakable:
            continue
        makers = set(entry.plan.takes.get(job, {}).values())
        if job in entry.overtaken or job in passed or makers & found:
            found.add(job)
    return frozenset(found)


def missing(entry: Entry, passed: Collection[str] = ()) -> list[str]:
    """The jobs whose acks the entry waits for."""
    over = not_waited_for(entry, passed)
    return [job for job in entry.plan.acks if job not in entry.acks and job not in over]
