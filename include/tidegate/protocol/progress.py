"""Find how far each job is, where a checkpoint may overtake a busy one (docs/protocol.md, section 7). Pure.

    lineage     an entry and the entries that it rests on, down to where a job's last ack may be
    held        the state in the lineage's last completed manifest: each job's ack, and the input it had not read
    chain       acks of a job, each the `prev` of the next; the first one follows the held ack
    eligible    an ack at the end of a chain within the lineage that has read exactly what was sent, in order
    void        every other ack: two attempts continued from the same ack, or an entry between them was aborted

A manifest takes each job's farthest eligible ack, with everything that its chain has staged; rows that jobs have sent
since then are in flight. So it does not matter whether a job that seemed busy is running or dead: its work counts once
or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import Handle, InFlight

__all__ = ["JobProgress", "allows_overtaking", "job_progress", "missing", "not_waited_for", "overtaken_jobs"]


@dataclass(frozen=True)
class JobProgress:
    """The progress of each job as of the first entry of a lineage."""

    chosen: Mapping[str, Handle]
    """For each job, its farthest eligible ack."""
    chains: Mapping[str, tuple[Acked, ...]]
    """For each job, its acks since the last completed manifest."""
    in_flight: Mapping[str, tuple[InFlight, ...]]
    """For each job, the input that it has not read yet."""

    def is_at(self, job: str, id: int) -> bool:
        """Return whether the job's counting ack is the one of checkpoint `id`."""
        handle = self.chosen.get(job)
        return handle is not None and handle.entry == id


def allows_overtaking(lineage: Sequence[Entry]) -> bool:
    """Return whether jobs may be at different entries here.

    If no job may be overtaken and none lags, every ack counts.
    """
    if any(entry.plan.overtaking is not None for entry in lineage):
        return True
    floor = _floor(lineage)
    return floor is not None and floor.manifest is not None and bool(floor.manifest.in_flight)


def job_progress(lineage: Sequence[Entry]) -> JobProgress:
    """O1, O2: compute the progress of each job. `lineage` reaches down to at least the last completed entry."""
    entry, floor = lineage[0], _floor(lineage)
    held_acks: Mapping[str, Handle] = {}
    held_input: Mapping[str, Sequence[InFlight]] = {}
    if floor is not None and floor.manifest is not None:
        held_acks, held_input = floor.manifest.jobs, floor.manifest.in_flight
    counting = _counting(lineage)
    chains: dict[str, tuple[Acked, ...]] = {}
    in_flight: dict[str, tuple[InFlight, ...]] = {}
    chosen: dict[str, Handle] = {}
    for job in entry.plan.acks:
        held_ack = held_acks.get(job)
        sent = [*held_input.get(job, ()), *_sent_since(entry.plan.takes.get(job, {}), chains)]
        chain, unread = _farthest_chain(job, held_ack, counting, sent)
        chains[job] = chain
        if unread:
            in_flight[job] = tuple(unread)
        end = chain[-1].handle if chain else held_ack
        if end is not None:
            chosen[job] = end
    return JobProgress(chosen, chains, in_flight)


def _farthest_chain(
    job: str, held_ack: Handle | None, counting: Sequence[Entry], sent: Sequence[InFlight]
) -> tuple[tuple[Acked, ...], Sequence[InFlight]]:
    """Return the chain to the job's farthest eligible ack, empty if it has none, and the input that it left unread."""
    for entry in counting:
        last = entry.acks.get(job)
        if last is None:
            continue
        chain = _chain(job, last, held_ack, counting)
        if chain is None:
            continue
        unread = _unread_after(chain, sent)
        if unread is not None:
            return chain, unread
    return (), sent


def _floor(lineage: Sequence[Entry]) -> Entry | None:
    """Return the last completed entry below the first one. Its manifest covers everything below."""
    return next((entry for entry in lineage[1:] if entry.manifest is not None), None)


def _counting(lineage: Sequence[Entry]) -> list[Entry]:
    """Return the entries whose acks may count, highest first. Below a rollback only acks in its manifest count (R4)."""
    counting = []
    for entry in lineage:
        if entry.rollback is not None:
            break
        counting.append(entry)
    return counting


def _chain(job: str, last: Acked, held_ack: Handle | None, counting: Sequence[Entry]) -> tuple[Acked, ...] | None:
    """Return the acks from the held one to `last`, in order. None if `last` does not continue the held one."""
    acks = {entry.acks[job].handle: entry.acks[job] for entry in counting if job in entry.acks}
    chain = [last]
    while (prev := chain[-1].ack.prev) != held_ack:
        if prev is None or prev not in acks:
            return None
        chain.append(acks[prev])
    return tuple(reversed(chain))


def _sent_since(producers: Mapping[str, str], chains: Mapping[str, Sequence[Acked]]) -> list[InFlight]:
    """Return the rows that upstream jobs have sent since the manifest, in the order of reading.

    producers: the streams that the job reads, and the upstream job that sends each.
    """
    sent = []
    for job in dict.fromkeys(producers.values()):
        streams = [stream for stream, producer in producers.items() if producer == job]
        for acked in chains.get(job, ()):
            channels = {}
            for stream in streams:
                if stream in acked.ack.channels:
                    channels[stream] = acked.ack.channels[stream]
            sent.append(InFlight(job=job, ack=acked.handle, channels=channels))
    return sorted(sent, key=lambda part: part.ack.entry)


def _unread_after(chain: Sequence[Acked], sent: Sequence[InFlight]) -> list[InFlight] | None:
    """Return the input that the chain has not read. None if it has not read exactly what was sent, in order."""
    unread = list(sent)
    for acked in chain:
        for upstream, handles in acked.ack.inputs.items():
            read = [part for part in unread if part.job == upstream][: len(handles)]
            if [part.ack for part in read] != handles:
                return None
            unread = [part for part in unread if part not in read]
    return unread


def overtaken_jobs(entry: Entry) -> dict[str, dict[str, Any]]:
    """Return, for display, the jobs that a completed checkpoint overtook: the checkpoint of each one's last ack, or
    None, and the checkpoints whose rows it had not read yet."""
    if entry.manifest is None or entry.rollback is not None:
        return {}
    jobs = {}
    for job, unread in entry.manifest.in_flight.items():
        ack = entry.manifest.jobs.get(job)
        ids = sorted({part.ack.entry for part in unread})
        jobs[job] = {"at": ack.entry if ack is not None else None, "in_flight": ids}
    return jobs


# -- missing acks ------------------------------------------------------------------------------------------


def not_waited_for(entry: Entry, passed: Collection[str] = ()) -> frozenset[str]:
    """Return the jobs without an ack that the entry may be completed without.

    passed: the jobs that later entries found busy. A job that is busy there is busy here too; and if the entry does not
    wait for a job, it cannot wait for the jobs downstream of it.
    """
    skipped: set[str] = set()
    for job in entry.plan.acks:
        if job in entry.acks or job not in entry.overtakable:
            continue
        upstream = set(entry.plan.takes.get(job, {}).values())
        if job in entry.overtaken or job in passed or upstream & skipped:
            skipped.add(job)
    return frozenset(skipped)


def missing(entry: Entry, passed: Collection[str] = ()) -> list[str]:
    """Return the jobs whose acks the entry waits for."""
    skipped = not_waited_for(entry, passed)
    return [job for job in entry.plan.acks if job not in entry.acks and job not in skipped]
