"""A small real world at least once: two jobs, an append in the first, an upsert with state in the second."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.crash.world import KEYS, NAME, Limits, World, check_ledger, rows_of
from tidegate import Pipeline
from tidegate.coordinator import Coordinator
from tidegate.ledger import open_ledger
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend, DeltaUpsert


@dataclass(frozen=True)
class AtLeastOnce(Limits):
    """The settings of such a pipeline."""

    def record(self) -> Json:
        return super().record() | {"mode": "at_least_once"}


@dataclass
class OnceWorld(World):
    """The same files, another pipeline."""

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME, mode="at_least_once")
        marked = self.marked(pipeline)
        marked.sink("log", DeltaAppend("tables/log"))
        totals = marked.job("keys").aggregate(by="key", uid="totals", n="count(*)", last="max(id)")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["key"]))
        return pipeline

    def coordinator(self) -> Coordinator:
        ledger, place = open_ledger(str(self.root / "ledger"), NAME), Place(str(self.root))
        limits = AtLeastOnce(num_retained=self.limits.num_retained)
        return Coordinator(self.pipeline().graph(place), ledger, limits, place)

    def twice(self) -> list[int]:
        """Rows that the log holds more than once."""
        counted = Counter(row["id"] for row in self.table("log"))
        return sorted(id for id, times in counted.items() if times > 1)


def check(world: OnceWorld, files: int) -> None:
    """Nothing is missing, nothing is made up; what goes by key is as if all had come once, and so is the state."""
    expected = [row for number in range(files) for row in rows_of(number)]
    log = world.table("log")
    assert {row["id"] for row in log} == {row["id"] for row in expected}
    assert len({(row["id"], row["mark"]) for row in log}) == len(log), "rows that come again are another attempt's"
    of_key = {key: [row["id"] for row in expected if row["key"] == key] for key in range(KEYS)}
    told = {row["key"]: (row["n"], row["last"]) for row in world.table("totals")}
    assert told == {key: (len(ids), max(ids)) for key, ids in of_key.items()}
    check_ledger(world)
