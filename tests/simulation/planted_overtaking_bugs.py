"""Bugs that are planted where checkpoints go past jobs: rules O1 to O4 of docs/protocol.md.

R4 is not among them: an ack below a rollback has taken rows from below it, too, which are on nobody's lineage any more,
so that O1 leaves it out as well. A day that was thought to show it had shown a job that waits for a lost attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from tests.simulation.planted_bugs import Patches, Plant
from tidegate import coordinator
from tidegate.checkpoint import manifests, planning
from tidegate.execution.job import run_job
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import retention
from tidegate.protocol import progress, rules
from tidegate.protocol.progress import JobProgress
from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import Handle


def _whatever_it_continues_from() -> Patches:
    """O1: the newest ack, wherever its chain leads."""

    def chain(job: str, last: Acked, held: Handle | None, counting: Sequence[Entry]) -> tuple[Acked, ...]:
        return (last,)

    yield mock.patch.object(progress, "_chain", chain)
    yield mock.patch.object(progress, "_unread_after", _left)


def _acks_of_what_was_aborted() -> Patches:
    """O1: an ack counts though it, or what it has taken, was aborted."""

    def all_below(ledger: Ledger, entry: Entry | None, base: Entry | None) -> list[Entry]:
        if entry is None or base is None or not progress.allows_overtaking([entry, base]):
            return []
        found = (ledger.entry(id) for id in range(entry.id - 1, max(entry.id - 8, 0), -1))
        return [each for each in found if each is not None and each.id != base.id and each.control is None]

    yield from _line(all_below)
    yield mock.patch.object(progress, "_unread_after", _left)


def _line(all_below: Callable[..., list[Entry]]) -> Patches:
    yield mock.patch.object(manifests, "ancestors", all_below)
    yield mock.patch.object(coordinator, "ancestors", all_below)
    yield mock.patch.object(run_job, "ancestors", all_below)


def _left(chain: Sequence[Acked], sent: Sequence[Any]) -> list[Any]:
    taken = [handle for acked in chain for handles in acked.ack.inputs.values() for handle in handles]
    return [each for each in sent if each.ack not in taken]


def _publish_the_last_ack_only() -> Patches:
    """O2: of the acks since the base's manifest."""
    real = manifests._counted

    def counted(line: Sequence[Entry]) -> Any:
        jobs, acks, in_flight = real(line)
        return jobs, list({ack.job: ack for ack in acks}.values()), in_flight

    yield mock.patch.object(manifests, "_counted", counted)


def _forget_what_is_in_flight() -> Patches:
    """O2: of what older checkpoints have in flight, nothing is carried on."""
    real = progress.job_progress

    def progress_of(line: Sequence[Entry]) -> JobProgress:
        found = real(line)
        own = {job: tuple(e for e in left if e.ack.entry >= line[0].id) for job, left in found.in_flight.items()}
        return JobProgress(found.chosen, found.chains, {job: left for job, left in own.items() if left})

    yield mock.patch.object(manifests, "job_progress", progress_of)
    yield mock.patch.object(manifests, "manifest_flaws", lambda manifest, entry: iter(()))


def _let_go_of_what_is_late() -> Patches:
    """O3: an ack in a checkpoint that is completed already is taken for one that lost."""
    real = retention.superseded_attempts

    def void(ledger: Ledger, entry: Entry) -> set[str]:
        held = set(entry.manifest.jobs.values()) if entry.manifest is not None else set()
        return real(ledger, entry) | {a.ack.attempt for a in entry.acks.values() if a.handle not in held}

    yield mock.patch.object(retention, "superseded_attempts", void)


def _go_past_whatever_it_is() -> Patches:
    """O4: also with what is to be aligned."""
    yield mock.patch.object(planning.CheckpointOptions, "waits_for_all", False)


def _begin_from_the_newest_ack() -> Patches:
    """O4: a job continues from the last ack there is."""
    real = rules.job_progress

    def progress_of(line: Sequence[Entry]) -> JobProgress:
        found = real(line)
        newest: Mapping[str, Handle] = {
            job: next((e.acks[job].handle for e in line if job in e.acks), handle)
            for job, handle in found.chosen.items()
        }
        return JobProgress(newest, found.chains, found.in_flight)

    yield mock.patch.object(rules, "job_progress", progress_of)


def _retire_what_is_rested_on() -> Patches:
    """Retention goes by age, not by what a retained checkpoint continues from."""
    yield mock.patch.object(retention, "lowest_ack", lambda entry: entry.id)


PLANTED_BUSY: dict[str, Plant] = {
    "O1: whatever it goes on from": Plant(_whatever_it_continues_from, 600, (7,)),
    "O1: rest on what was aborted": Plant(_acks_of_what_was_aborted, 600),
    "O2: publish the last ack only": Plant(_publish_the_last_ack_only, 600, (85,)),
    "O2: forget what is in flight": Plant(_forget_what_is_in_flight, 600, (467,)),
    "O3: let go of what is late": Plant(_let_go_of_what_is_late, 600, (36,)),
    "O4: go past whatever it is": Plant(_go_past_whatever_it_is, 600, (6,)),
    "O4: begin from the newest ack": Plant(_begin_from_the_newest_ack, 1200, (764,)),
    "retire what is rested on": Plant(_retire_what_is_rested_on, 600),
}
