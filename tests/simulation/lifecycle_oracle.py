"""What must hold of forks, copies and what a day keeps, told from bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.kit.fake_store import FakeStore
from tests.kit.toys import ToyCommit
from tests.simulation.lifecycle_days import COPIER, FORKER
from tests.simulation.oracle import Checkpoint, Oracle
from tests.simulation.world import FORK, TABLES, SimulatedWorld, Violation


class LifeOracle(Oracle):
    """Judges the pipeline, and with it what was made of it."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world)
        self.fork = ForkOracle(world, self)
        world.on_folder = self._watched

    def _watched(self, folder: str, store: FakeStore) -> None:
        if folder.startswith(COPIER):
            store.watch = lambda path, old, new: self._copied(store, path, old, new)

    def record_written(self, path: str, old: bytes | None, new: bytes) -> None:
        super().record_written(path, old, new)
        current = self.world.current
        if current is not None and current.name.startswith((FORKER, COPIER)) and not path.startswith("pins/"):
            raise Violation(f"{current.name} writes {path} into the pipeline that it was made from")
        if path.endswith("/retired.json") and old is None:
            self._taken(int(path.split("/")[1]))

    def committed(self, table: str, commit: ToyCommit) -> None:
        super().committed(table, commit)
        if commit.app_id.startswith(FORK) or (self.world.current and self.world.current.name.startswith(FORKER)):
            raise Violation(f"the fork commits to table {table!r}, which is not its own")

    def judge(self) -> None:
        super().judge()
        self.fork.judge()
        for folder, store in self.world.others.items():
            if folder.startswith(COPIER) and "savepoint.json" in store.files:
                self._whole(store, json.loads(store.files["savepoint.json"].data))

    # -- days

    def _taken(self, id: int) -> None:
        """Retention takes nothing that its day keeps: of what is on all tables, the last so many of each day."""
        per_day = self.world.climate.record()["retain_per_day"]
        entry = self.checkpoint(id)
        log = [each for each in self.log() if each.completed]
        behind = any(each.target is not None and each.target < id < each.id for each in log)
        if not per_day or not entry.completed or entry.target is not None or behind or entry.published is None:
            return
        later = [each.id for each in log if each.id > id and _day(each) == _day(entry)]
        if len(later) < per_day:
            raise Violation(f"{id} is retired, one of the last {per_day} of {_day(entry)}: later ones are {later}")

    # -- copies

    def _copied(self, store: FakeStore, path: str, old: bytes | None, new: bytes) -> None:
        if old is not None and old != new:
            raise Violation(f"{store.root}/{path} was rewritten")
        if path == "savepoint.json":
            copy = json.loads(new)
            if not self.checkpoint(copy["origin"]["entry"]).kept:
                raise Violation(f"checkpoint {copy['origin']['entry']} was retired while it was copied")
            self._whole(store, copy)

    def _whole(self, store: FakeStore, copy: dict[str, Any]) -> None:
        """Each file that it names is there for good, as it was in the pipeline's own folder."""
        files, folder = copy["files"]["data"]["files"], f"checkpoints/{copy['origin']['entry']:08d}"
        needed = {"pipeline.json", *(f"{folder}/{name}.json" for name in ("plan", "decision", "published"))}
        needed |= {f"{folder}/manifest-{copy['origin']['manifest']}.json"}
        if lacking := sorted(needed - files.keys()):
            raise Violation(f"the copy in {store.root} does not name {', '.join(lacking)}")
        for path, (size, sha) in files.items():
            found = store.files.get(path)
            if found is None or not store.durable(path):
                raise Violation(f"{store.root}/{path} is {'gone' if found is None else 'not durable'}")
            if (len(found.data), hashlib.sha256(found.data).hexdigest()) != (size, sha):
                raise Violation(f"{store.root}/{path} is not what the copy says")
            if path != "latest.json" and found.data != self.store.truth(path):
                raise Violation(f"{store.root}/{path} is not what the pipeline has")


class ForkOracle(Oracle):
    """Judges the fork: it begins with what the other one had, and from there on all holds that holds for any."""

    def __init__(self, world: SimulatedWorld, parent: Oracle) -> None:
        super().__init__(world, world.other(FORK), (FORK,))
        self.parent = parent

    def record_written(self, path: str, old: bytes | None, new: bytes) -> None:
        if path == "pipeline.json" and old is None:
            self._begun(json.loads(new)["origin"])
        if path.endswith("plan.json") and json.loads(new)["kind"] == "fork":
            self._first(json.loads(new))
        else:
            super().record_written(path, old, new)

    def _first(self, plan: dict[str, Any]) -> None:
        """Its first entry: positions, hooks and number are those of the checkpoint."""
        if "pipeline.json" in self.store.files:
            return  # somebody late: the entry is retired already, and is not completed again
        there = self.store.files.get("forking.json")
        if there is None:
            raise Violation(f"entry {plan['id']} of a fork is made, and nobody says what it is forked from")
        origin = json.loads(there.data)["origin"]
        then = self.parent.checkpoint(origin["entry"])
        if not then.completed or then.decision is None or then.decision["manifest"] != origin["manifest"]:
            raise Violation(f"the fork is made from {origin['entry']}, which is not what it says, or not completed")
        # The fork of these days has no gate, so nobody asks it to release rows.
        kept = {name: part for name, part in then.plan["sources"].items() if not name.startswith("quarantine.")}
        positions = {name: part["end"] for name, part in kept.items()}
        mine = {name: (part["start"], part["end"]) for name, part in plan["sources"].items()}
        if mine != {name: (at, at) for name, at in positions.items()} or plan["id"] != then.id:
            raise Violation(f"the fork of {then.id} begins with {plan['id']}, {mine}; that one had {positions}")
        if plan["hooks"] != then.plan["hooks"]:
            raise Violation(f"the fork of {then.id} begins with other hooks")
        self.first, self.reached = then.id, positions["in"]["at"]

    def _begun(self, origin: dict[str, Any]) -> None:
        """It is whole, for good; and what it was made of was there all the time."""
        copied = any(
            folder.startswith(COPIER) and "savepoint.json" in store.files for folder, store in self.world.others.items()
        )
        if not copied and not self.parent.checkpoint(origin["entry"]).kept:
            raise Violation(f"checkpoint {origin['entry']} was retired while it was forked")
        for name in ("plan.json", "decision.json", "acks/main.json"):
            self._durable("the fork is begun", origin["entry"], name)

    def committed(self, table: str, commit: ToyCommit) -> None:
        super().committed(table, commit)
        if "pipeline.json" not in self.store.files:
            raise Violation("the fork publishes before it is one")

    def judge(self) -> None:
        if "pipeline.json" in self.store.files:
            super().judge()
        elif self.world.tables[FORK].commits:
            raise Violation("there is no fork, and it has published")

    def _savepoints(self) -> None:
        """It has none."""


def _day(checkpoint: Checkpoint) -> str:
    assert checkpoint.decision is not None
    return str(checkpoint.decision["created"][:10])


assert FORK not in TABLES
