"""Days with bad rows, which go into quarantine, and with people who let them go on: each row that counts is in exactly
one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.kit.toy_gate import fate_of
from tests.simulation.oracle import Oracle
from tests.simulation.world import GATE, TABLES, Violation, World


class AsideWorld(World):
    """Every third row is bad."""

    bad = 3
    lived = False


class AsideOracle(Oracle):
    """Bad rows: each waits, was given up, or was let go on; and just those that were let go on are in the tables."""

    def judge(self) -> None:
        super().judge()
        self._aside([(c.id, c.target, self._offsets(c)) for c in self.log() if c.completed])

    def _aside(self, completed: Sequence[tuple[int, int | None, Sequence[int]]]) -> None:
        """completed: the ids of what is completed, in order, where rollbacks went back to, and what was read."""
        table = self.world.tables[f"quarantine.{GATE}"]
        try:
            there = [(table.files[name][0][0], fate_of(name)) for name in table.live()]
        except KeyError as gone:
            raise Violation(f"I6: file {gone} of the quarantine is gone") from None
        twice = [offset for offset, times in Counter(offset for offset, _ in there).items() if times > 1]
        if twice:
            raise Violation(f"quarantine has offsets {twice} twice")
        counts = self._set_aside(completed)
        if sorted(offset for offset, _ in there) != counts:
            raise Violation(f"quarantine has {sorted(there)}, the checkpoints that count have set aside {counts}")
        for name in TABLES:
            skip = self.world.climate.skip if name == TABLES[1] else 0
            free = sorted(o for o, fate in there if fate == "released" and not (skip and o % skip == 0))
            shown = sorted(o for file in self._shown(name) for o in file if o % self.world.bad == 0)
            if shown != free:
                raise Violation(f"table {name!r} shows bad rows {shown}, let go on were {free}")

    def _shown(self, name: str) -> list[list[int]]:
        table = self.world.tables[name]
        return [[offset for offset, _ in table.files[file]] for file in table.live()]

    def _set_aside(self, completed: Sequence[tuple[int, int | None, Sequence[int]]]) -> list[int]:
        """The bad offsets that count: a rollback takes back what came after its target."""
        lineage: list[int] = []
        as_of: dict[int, list[int]] = {0: []}
        for id, target, offsets in completed:
            lineage = as_of[target] if target is not None else lineage
            lineage = [*lineage, *(offset for offset in offsets if offset % self.world.bad == 0)]
            as_of[id] = lineage
        return sorted(lineage)
