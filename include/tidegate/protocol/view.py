"""The input of the protocol: the end of the log as one reader saw it.

Facts in a view never change, but newer ones may exist. Every action that rests on a view is settled by a create.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.records.interval import Interval
from tidegate.records.records import Ack, Answer, Control, Decision, Handle, Manifest, Plan, Rollback

__all__ = ["Acked", "Entry", "View", "rollback_of"]


@dataclass(frozen=True)
class Acked:
    """An ack and the hash that names it."""

    ack: Ack
    handle: Handle


@dataclass(frozen=True)
class Entry:
    """One entry of the log: its plan, and its other records so far."""

    plan: Plan
    acks: Mapping[str, Acked] = field(default_factory=dict)
    decision: Decision | None = None
    manifest: Manifest | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """The answers to the gates that hold it, by gate."""
    overtaken: frozenset[str] = frozenset()
    """The jobs that the checkpoint overtook."""

    @property
    def id(self) -> int:
        return self.plan.id

    @property
    def interval(self) -> Interval | None:
        """The data interval of its run, if the run has one."""
        if self.plan.interval:
            return Interval.of_record(self.plan.interval)
        return None

    def owns(self, attempt: str) -> bool:
        """Return whether an attempt at a job was made for this plan.

        A retired entry with the same id may have had another plan (see PipelineContext.counts), and a table may still
        contain the files that its attempts staged.
        """
        return attempt.startswith(f"{self.plan.attempt}-")

    @property
    def acks_agree(self) -> bool:
        """True if the manifest was made from these acks.

        A process that was paused while the id was retired may have completed the new entry with the old one's manifest.
        """
        handles = self.manifest.jobs if self.manifest is not None else {}
        # The manifest of a rollback names no acks of its own entry, unless it is a swap: then it names all of them.
        named = {job: handle for job, handle in handles.items() if handle.entry == self.id}
        late = set(self.overtakable)  # such a job may ack after the decision, or not at all
        existing = {}
        for job, acked in self.acks.items():
            if job in named or job not in late:
                existing[job] = acked.handle
        return named == existing and named.keys() >= set(self.plan.acks) - late

    @property
    def overtakable(self) -> tuple[str, ...]:
        """The jobs that it need not wait for while they are busy with an earlier one."""
        if self.plan.overtaking is not None:
            return tuple(self.plan.overtaking.jobs)
        return ()

    @property
    def control(self) -> Control | None:
        """The action that the entry records, if it is not a checkpoint."""
        return self.plan.control

    @property
    def rollback(self) -> Rollback | None:
        """The rollback that the entry records, if it is one."""
        return self.plan.rollback

    @property
    def open(self) -> bool:
        """True if this is a checkpoint that is not decided yet."""
        return self.decision is None and self.plan.control is None

    @property
    def completed(self) -> bool:
        return self.decision is not None and self.decision.outcome == "completed"

    @property
    def aborted(self) -> bool:
        """True if the entry never counts. That includes every entry that is not a checkpoint."""
        decided = self.decision is not None and self.decision.outcome == "aborted"
        return decided or self.plan.control is not None


def rollback_of(id: int, rollbacks: Sequence[tuple[int, int]]) -> int | None:
    """Return the rollback that undid entry `id`. None if the entry counts.

    rollbacks: all completed ones, as (entry, its target), ascending.
    A rollback may itself be undone: then the entries that it had undone, up to the new target, count again.
    """
    below = None
    for rollback, target in reversed(rollbacks):
        if below is None or rollback < below:
            if target < id < rollback:
                return rollback
            below = target + 1
    return None


@dataclass(frozen=True)
class View:
    """The entries from the last settled one on, ascending. The first is the oldest that matters.

    No id is missing, except where a view reaches down to a checkpoint that was spared when its neighbours were retired.
    """

    entries: tuple[Entry, ...]
    settled: int = 0
    """The hint from which the view starts: everything up to this id is decided and published."""
    own_outside_view: tuple[Entry | int, ...] = ()
    """Entries of the calling run below the view; of a retired one only the id."""

    def get(self, id: int | None) -> Entry | None:
        """Return the entry with this id, if it is in the view."""
        if id is None or not self.entries or not self.entries[0].id <= id <= self.entries[-1].id:
            return None
        index = id - self.entries[0].id
        if index >= len(self.entries) or self.entries[index].id != id:  # retention has removed an id in between
            index = bisect_left(self.entries, id, key=lambda entry: entry.id)
        if self.entries[index].id == id:
            return self.entries[index]
        return None

    def rollback_of(self, id: int) -> int | None:
        """Return the rollback that undid entry `id`. None if the entry counts, as far as this view shows."""
        rollbacks = []
        for e in self.entries:
            if e.rollback is not None and e.completed:
                rollbacks.append((e.id, e.rollback.target))
        return rollback_of(id, rollbacks)

    @property
    def last_id(self) -> int:
        """The highest id in the log; 0 for an empty one."""
        return self.entries[-1].id if self.entries else 0

    @property
    def last_completed(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.completed), None)

    def still_open(self) -> Iterator[Entry]:
        """Return the undecided entries, lowest first."""
        return (entry for entry in self.entries if entry.open)
