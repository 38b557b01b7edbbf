"""What the protocol decides on: the end of the log as one reader saw it. Facts in it never change,
but newer ones may exist; every action that rests on a view is settled by a create.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.records.interval import Interval
from tidegate.records.records import Ack, Answer, Control, Decision, Handle, Manifest, Plan, Restart

__all__ = ["Acked", "Entry", "View", "rolled_back_by"]


@dataclass(frozen=True)
class Acked:
    """An ack and the hash that names it."""

    ack: Ack
    handle: Handle


@dataclass(frozen=True)
class Entry:
    """One checkpoint: its plan and what has been written about it so far."""

    plan: Plan
    acks: Mapping[str, Acked] = field(default_factory=dict)
    decision: Decision | None = None
    manifest: Manifest | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """What was said to the gates that hold it."""
    overtaken: frozenset[str] = frozenset()
    """The jobs that it went past."""

    @property
    def id(self) -> int:
        return self.plan.id

    @property
    def interval(self) -> Interval | None:
        """The data interval of the run that made it, if it has one."""
        return Interval.of_record(self.plan.interval) if self.plan.interval else None

    def owns(self, attempt: str) -> bool:
        """Whether an attempt at a job was made for this plan. One of the same id that was retired may have been
        another's (see Coordinator.counts), and what it staged may be live in a table."""
        return attempt.startswith(f"{self.plan.attempt}-")

    @property
    def acks_agree(self) -> bool:
        """Whether the manifest was made from these acks. One who slept while the id was retired may have completed
        what is under it now with the manifest of what was there before."""
        made_from = self.manifest.jobs if self.manifest is not None else {}
        own = {job: handle for job, handle in made_from.items() if handle.entry == self.id}
        late = set(self.overtakable)  # such a job may ack behind the decision, or not at all
        there = {job: acked.handle for job, acked in self.acks.items() if job in own or job not in late}
        # That of a rollback names none of its own.
        return own == there and own.keys() >= set(self.plan.acks) - late

    @property
    def overtakable(self) -> tuple[str, ...]:
        """The jobs that it need not wait for while they are busy with an earlier one."""
        return tuple(self.plan.overtaking.jobs) if self.plan.overtaking is not None else ()

    @property
    def control(self) -> Control | None:
        """What the entry does, if it is no checkpoint."""
        return self.plan.control

    @property
    def restart(self) -> Restart | None:
        """Where the entry goes back to, if it is a rollback."""
        return self.plan.restart

    @property
    def open(self) -> bool:
        """A checkpoint that is not decided yet."""
        return self.decision is None and self.plan.control is None

    @property
    def completed(self) -> bool:
        return self.decision is not None and self.decision.outcome == "completed"

    @property
    def aborted(self) -> bool:
        """Never counts: so it is with every entry that is no checkpoint, too."""
        decided = self.decision is not None and self.decision.outcome == "aborted"
        return decided or self.plan.control is not None


def rolled_back_by(id: int, rollbacks: Sequence[tuple[int, int]]) -> int | None:
    """The rollback that has gone back behind entry `id`, of all completed ones: (entry, its target), ascending.

    A rollback may itself be gone back behind: then what it had cancelled up to the new target counts again.
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
    """Entries from the last settled one on, ascending and without holes; the first is the oldest that matters."""

    entries: tuple[Entry, ...]
    settled: int = 0
    """The hint that the view starts from: everything up to this id is decided and published."""
    own_elsewhere: tuple[Entry | int, ...] = ()
    """Entries of the asking run below the view; just the id of one that is retired."""

    def get(self, id: int | None) -> Entry | None:
        """The entry with this id, if the view reaches it."""
        if id is None or not self.entries or not self.entries[0].id <= id <= self.entries[-1].id:
            return None
        return self.entries[id - self.entries[0].id]

    def rolled_back_by(self, id: int) -> int | None:
        """The rollback that has gone back behind entry `id`; None: the entry counts, as far as this view tells."""
        found = [(e.id, e.restart.target) for e in self.entries if e.restart is not None and e.completed]
        return rolled_back_by(id, found)

    @property
    def last_id(self) -> int:
        """The highest id in the log; 0 for an empty one."""
        return self.entries[-1].id if self.entries else 0

    @property
    def last_completed(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.completed), None)

    def still_open(self) -> Iterator[Entry]:
        """Undecided entries, lowest first."""
        return (entry for entry in self.entries if entry.open)
