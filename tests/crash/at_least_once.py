"""A small real world at least once: two jobs, an append in the first, an upsert with state in the second."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tests.crash.world import KEYS, NAME, CrashWorld, check_ledger, rows_of
from tests.kit.limits import AT_LEAST_ONCE
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert


@dataclass
class OnceWorld(CrashWorld):
    """The same files, another pipeline."""

    def __post_init__(self) -> None:
        self.limits = replace(self.limits, recorded=AT_LEAST_ONCE)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME, mode="at_least_once")
        marked = self.marked(pipeline)
        marked.sink("log", DeltaAppend("tables/log"))
        totals = marked.job("keys").aggregate(by="key", uid="totals", n="count(*)", last="max(id)")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["key"]))
        return pipeline

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
