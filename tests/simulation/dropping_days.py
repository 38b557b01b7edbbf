"""Days of several jobs on which somebody lets go of what is in flight between them, again and again: those rows never
come to the tables behind, and all others come once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.simulation import actors
from tests.simulation.oracle import Checkpoint
from tests.simulation.overtaking_days import TAKES, THIRD, BusyOracle, BusyWorld
from tests.simulation.world import TABLES
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.lifecycle import rollback

TABLE_OF = {"slow": TABLES[1], "last": THIRD}
BEHIND = {"slow": (TABLES[1], THIRD), "last": (THIRD,)}
"""The tables to which the rows that a job has yet to take would come."""


class DroppingWorld(BusyWorld):
    """With people who have no patience."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.climate = replace(
            self.climate, patience=0.0, max_concurrent_checkpoints=3, runs=8, suspicion=0.0, kills=0.0, slowness=600
        )

    def more_people(self) -> None:
        super().more_people()
        for number in range(2):
            self.spawn("dropper", "", lambda number=number: _dropper(self, number), self.dice.below(300))


def _dropper(world: BusyWorld, who: int) -> None:
    coordinator, times = world.coordinator(), 0
    for number in range(100):
        world.sleep(world.dice.below(30))
        ids = [id for id in actors.completed(world) if _is_behind(world, id)]
        if not ids or world.dice.chance(0.3):
            continue
        to = ids[-1]
        foreign: Any = {name: "discard" for name in TABLES if any(c.id is None for c in world.tables[name].commits)}
        run = f"drop {who} {number}"
        try:
            done = rollback.roll_back(coordinator, to, run=run, by="x", choices=foreign, drop_in_flight=True)
            world.log(f"lets go of what is in flight as of {to} by {done.id}")
            times += 1
            if times == 6:
                return
        except (Unavailable, Rejected) as error:
            world.log(f"lets go of nothing: {error.what}")
        except Invalid as error:
            if error.reason not in ("NO_SUCH_CHECKPOINT", "NOTHING_IN_FLIGHT"):
                raise


def _is_behind(world: BusyWorld, id: int) -> bool:
    """Whether something was in flight as of a checkpoint, by the bytes."""
    folder = f"checkpoints/{id:08d}/manifest-"
    manifests = [found.data for path, found in world.store.files.items() if path.startswith(folder)]
    return any(json.loads(data)["in_flight"] for data in manifests)


class DroppingOracle(BusyOracle):
    """What was let go of is found in the records, and in no table behind."""

    def _brought_by(self, completed: list[Checkpoint]) -> dict[tuple[str, int], list[int]]:
        self._by_id = {each.id: each for each in completed}
        return super()._brought_by(completed)

    def _shown_as_of(self, checkpoint: Checkpoint, before: dict[str, list[int]]) -> dict[str, list[int]]:
        shown = super()._shown_as_of(checkpoint, before)
        lost = self._lost(checkpoint)
        return {name: [row for row in rows if row not in lost[name]] for name, rows in shown.items()}

    def _lost(self, checkpoint: Checkpoint) -> dict[str, set[int]]:
        """The rows that were let go of on the checkpoint's lineage, by the tables to which they never come."""
        lost: dict[str, set[int]] = {name: set() for name in self.tables}
        at: Checkpoint | None = checkpoint
        while at is not None:
            target = self._by_id.get(at.target) if at.target is not None else None
            if target is not None and at.plan["restart"]["dropped"]:
                assert target.manifest is not None
                for job, waiting in target.manifest["in_flight"].items():
                    rows = {row for each in waiting for row in self._rows_of(TAKES[job], each["ack"]["entry"])}
                    for name in BEHIND[job]:
                        lost[name] |= rows
            base = at.plan["base"] if at.target is None else at.target
            at = self._by_id.get(base) if base is not None else None
        return lost

    def _in_flight_is_told(self, at: dict[str, int], job: str, lacks: list[int], manifest: dict[str, Any]) -> bool:
        reached = max(at.get(job, 0), manifest["let_go"].get(job, 0))
        return lacks == sorted(set(lacks)) and (bool(lacks) or reached >= at.get(TAKES[job], 0))
