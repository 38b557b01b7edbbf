"""Many checkpoints of one pipeline, and what they leave on disk, against the formula in docs/design/going-back.md.

Real files for the ledger, toy tables; no Spark. Attempts lose, checkpoints are aborted, given names and gone back to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.limits import Limits
from tests.kit.toy_world import ToyWorld
from tidegate.lifecycle import savepoint

RETAINED, NAMED = 20, 3
LOSES, ABORTS, NAMES, BACK = 5, 7, 40, 97
"""Every so many steps an attempt loses, a checkpoint is aborted, is given a name, is gone back behind."""

SIDE_FILE = 100_000
"""Splits are longer than what lies in a record: so each checkpoint has a side file."""


@dataclass
class Soak:
    """The pipeline, and a model of what it should have left: kind and size of each entry, told by nothing else."""

    root: Path
    kinds: dict[int, str] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)
    named: list[int] = field(default_factory=list)
    costs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = ToyWorld(self.root, Limits(num_retained=RETAINED), padding=SIDE_FILE)

    def run(self, checkpoints: int) -> None:
        """All of it. What each kind of entry takes is measured once, before any is old enough to go."""
        for number in range(checkpoints):
            self._step(number, number % ABORTS == 3, number % BACK == 12, number % LOSES == 1)
            if number % NAMES == 5:
                self._name(number)
        for _ in range(2):  # a rollback's pin goes when the rollback is gone
            self.world.coordinator().retire()

    def _step(self, number: int, aborts: bool, goes_back: bool, loses: bool) -> None:
        if aborts:
            self._made("aborted", lambda: self._aborted(f"end {number}"))
        if goes_back:
            to = max(id for id, kind in self.kinds.items() if kind == "completed")
            self.targets[self._made("restart", lambda: self._back(to, f"back {number}"))] = to
        self._made("completed", lambda: self._completed(f"run {number}", loses=loses))

    def _made(self, kind: str, make: Callable[[], int]) -> int:
        before = self.size()
        id = make()
        self.kinds[id] = kind
        self.costs.setdefault(kind, self.size() - before)
        self.world.coordinator().retire()
        return id

    def _completed(self, run: str, *, loses: bool) -> int:
        world = self.world
        world.feed_more(3)
        id = world.trigger(run)
        if loses:
            world.half_work(id)
        world.work(id)
        assert world.coordinator().complete(id).state == "completed"
        world.coordinator().publish()
        return id

    def _aborted(self, run: str) -> int:
        self.world.feed_more(3)
        id = self.world.trigger(run)
        self.world.half_work(id)
        assert self.world.coordinator().abort(id, "CANCELLED").state == "aborted"
        return id

    def _back(self, to: int, run: str) -> int:
        return self.world.coordinator().roll_back(to, run=run, by="soak").id

    def _name(self, number: int) -> None:
        """Give the last one a name, and forget the oldest that has one."""
        made = savepoint.create(self.world.ledger, f"step-{number}", None, "soak")
        self.named.append(made.entry)
        for each in savepoint.savepoints(self.world.ledger)[NAMED:]:
            savepoint.dispose(self.world.ledger, each.name)
        self.named = self.named[-NAMED:]

    # -- what there is, and what there should be

    def size(self) -> int:
        """Bytes below the pipeline's folder."""
        return sum(path.stat().st_size for path in self.world.folder.rglob("*") if path.is_file())

    def retained(self) -> set[int]:
        """The ids that should be there: the last so many that were completed, all above, and all that are pinned."""
        counted = [id for id in sorted(self.kinds) if self.kinds[id] != "aborted"]
        floor = counted[-RETAINED:][0]
        kept = {id for id in self.kinds if id >= floor} | set(self.named)
        return kept | {self.targets[id] for id in kept if id in self.targets}

    def formula(self) -> int:
        """The bytes that these take."""
        return sum(self.costs[self.kinds[id]] for id in self.retained())

    def side_files(self) -> int:
        """How many there are."""
        return len(list((self.world.folder / "blobs").iterdir()))

    def orphans(self) -> int:
        """Staged files that no table names."""
        return sum(len(self.world.staged(table)) for table in "ab")
