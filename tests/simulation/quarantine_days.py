"""Days with bad rows, which go into quarantine, and with people who release them: each row that counts is in exactly
one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.kit.toy_gate import fate_of
from tests.simulation.oracle import Checkpoint, Oracle
from tests.simulation.world import GATE, TABLES, SimulatedWorld, Violation


class AsideWorld(SimulatedWorld):
    """Every third row is bad."""

    bad = 3
    lived = False

    def __post_init__(self) -> None:
        """On most of these days a person is asked, too, and has time to answer."""
        super().__post_init__()
        self.climate = replace(
            self.climate,
            holds=self.dice.one_of([0, 4, 5, 7]),
            hold_for=self.dice.one_of([1e9, 1e9, 30.0]),
            tolerable_failed_checkpoints=1_000_000,
        )
        self.graph = self._pipeline().graph()


class AsideOracle(Oracle):
    """Bad rows: each waits, was discarded or released; and just those that were released are in the tables."""

    def judge(self) -> None:
        super().judge()
        self._aside([checkpoint for checkpoint in self.log() if checkpoint.completed])

    def _aside(self, completed: Sequence[Checkpoint]) -> None:
        """completed: in the order of the log."""
        table = self.world.tables[f"quarantine.{GATE}"]
        try:
            there = [(table.files[name][0][0], fate_of(name)) for name in table.live()]
        except KeyError as gone:
            raise Violation(f"I6: file {gone} of the quarantine is gone") from None
        twice = [offset for offset, times in Counter(offset for offset, _ in there).items() if times > 1]
        if twice:
            raise Violation(f"quarantine has offsets {twice} twice")
        counts = sorted(self._lineage(completed, self._sets_aside))
        if sorted(offset for offset, _ in there) != counts:
            raise Violation(f"quarantine has {sorted(there)}, the checkpoints that count have set aside {counts}")
        for name in TABLES:
            skip = self.world.climate.skip if name == TABLES[1] else 0
            free = [o for o, fate in there if fate == "released" and not (skip and o % skip == 0)]
            good = self._lineage(completed, lambda checkpoint, name=name: self._wanted(name, checkpoint))  # type: ignore[misc]
            shown = sorted(self._shown(name))
            if shown != sorted([*good, *free]):
                raise Violation(f"table {name!r} shows {shown}, good are {good}, let go on were {free}")

    def _shown(self, name: str) -> list[int]:
        table = self.world.tables[name]
        return [offset for file in table.live() for offset, _ in table.files[file]]

    def _sets_aside(self, checkpoint: Checkpoint) -> list[int]:
        return [offset for offset in self._offsets(checkpoint) if self._is_set_aside(checkpoint, offset)]

    def _lineage(self, completed: Sequence[Checkpoint], bring: Callable[[Checkpoint], list[int]]) -> list[int]:
        """What the checkpoints that count have brought: a rollback takes back what came after its target."""
        lineage: list[int] = []
        as_of: dict[int, list[int]] = {0: []}
        for checkpoint in completed:
            if checkpoint.target is not None:
                lineage = as_of[checkpoint.target]
            lineage = [*lineage, *bring(checkpoint)]
            as_of[checkpoint.id] = lineage
        return lineage
