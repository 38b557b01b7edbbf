"""A pipeline with a gate and a state on the cluster, whose driver and workers fail where they are told to."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.world import Place, place
from tests.kit.s3 import BUCKET, S3Server
from tidegate import Pipeline
from tidegate.connectors.delta.sink import prerewritten
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files
from tidegate.spark.server import server as connect_server
from tidegate.testing import RunningPipeline, run

__all__ = ["FAULTS", "Failing", "Fault", "failing"]

NAME = "faults"
SUITE = """
name: amounts
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, min_value: 0}}
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}}
"""
KEYS, ROWS, BAD = 7, 100, 25
"""Customers of a file, most of them of the one before, too; rows of a file; every so-manieth row is bad."""
SPECULATION = {
    "speculation": "true",
    "speculation_interval": "100ms",
    "speculation_minTaskRuntime": "200ms",
    "speculation_task_duration_threshold": "1s",
}
TABLE, STATE, ASIDE, AHEAD = "/data/rows/", "/state/totals/", "/quarantine/checked/", "/ahead/"
"""Which files: the appended rows, what the aggregate remembers, bad rows, files of the upsert rewritten ahead."""


class Fault(NamedTuple):
    """What happens to one upload of a worker: its executor is killed, its task fails, or takes two minutes."""

    what: str
    when: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} {self.when} {self.where.strip('/')}"


FAULTS = (
    Fault("kill", "after", TABLE),
    Fault("slow", "before", STATE),
    Fault("fail", "after", STATE),
    Fault("kill", "before", TABLE),
    Fault("kill", "after", AHEAD),
    Fault("fail", "after", TABLE),
    Fault("slow", "after", TABLE),
    Fault("kill", "after", STATE),
    Fault("fail", "before", STATE),
    Fault("kill", "before", ASIDE),
    Fault("slow", "after", ASIDE),
    Fault("slow", "before", AHEAD),
)
"""Those first that resemble each other least."""


def shop() -> Pipeline:
    pipeline = Pipeline(NAME)
    orders = pipeline.source("orders", Files("landing/*.json", schema="id long, customer long, amount double"))
    checked = orders.gate(Expectations("amounts", on_failure="quarantine"), name="checked")
    checked.sink("rows", DeltaAppend("rows"))
    totals = checked.aggregate(by="customer", orders="count(*)", spent="sum(amount)", uid="totals")
    totals.sink("by_customer", DeltaUpsert("by_customer", keys=["customer"]))
    return pipeline


def orders_of(number: int) -> list[dict[str, Any]]:
    """The rows of one file. Amounts are whole, so that sums are the same in every order."""
    return [
        {"id": number * ROWS + n, "customer": number + n % KEYS, "amount": -1.0 if n % BAD == 0 else float(n)}
        for n in range(ROWS)
    ]


class Failing:
    """The pipeline, the cluster, and what has landed so far."""

    def __init__(self, where: Place, world: RunningPipeline, hook: Path) -> None:
        self.where, self.world, self.hook = where, world, hook
        self.landed = 0

    @property
    def server(self) -> S3Server:
        return self.where.server

    def land(self) -> None:
        """Let one more file land."""
        self.landed += 1
        lines = "\n".join(map(json.dumps, orders_of(self.landed)))
        self.server.put(f"{NAME}/data/landing/{self.landed}.json", lines.encode())

    def checkpoint(self, fault: Fault | None = None) -> str | None:
        """Make a checkpoint, during which it happens; the tables must be right. Return the file during whose upload it
        has happened."""
        self.land()
        if fault is not None:
            told = {"what": fault.what, "when": fault.when, "where": fault.where, "seconds": 120}
            (self.hook / "fault.new").write_text(json.dumps(told))
            (self.hook / "fault.new").rename(self.hook / "fault.json")
        self.world.checkpoint()
        self.check()
        if fault is None:
            return None
        assert not (self.hook / "fault.json").exists(), f"nothing was uploaded to {fault.where}"
        return (self.hook / "met.txt").read_text().splitlines()[-1].split(" ", 1)[1]

    def crash_at(self, point: str, times_passed: int = 0) -> None:
        """Let the driver die at a point; the next checkpoint makes up for it, and the tables must be right."""
        self.land()
        self.world.crash_at(point, times_passed)
        self.checkpoint()

    def check(self) -> None:
        """The tables have what plain Python makes of all that landed, and nothing else lies beside them."""
        landed = [row for number in range(1, self.landed + 1) for row in orders_of(number)]
        good = [row for row in landed if row["amount"] >= 0]
        assert sorted(row["id"] for row in self.world.rows("rows")) == [row["id"] for row in good]
        aside = self._table("ledger/faults/quarantine/checked").to_pyarrow_table(columns=["id"])
        assert sorted(aside["id"].to_pylist()) == [row["id"] for row in landed if row["amount"] < 0]
        counts: Counter[int] = Counter(row["customer"] for row in good)
        sums: Counter[int] = Counter()
        for row in good:
            sums[row["customer"]] += row["amount"]
        found = {row["customer"]: (row["orders"], row["spent"]) for row in self.world.rows("by_customer")}
        assert found == {customer: (counts[customer], sums[customer]) for customer in counts}

    def staged(self, where: str = "/") -> set[str]:
        """The objects below a folder that hold rows."""
        found = self.server.objects(f"{NAME}{where}")
        return {f"s3://{BUCKET}/{key}" for key in found if key.endswith(".parquet")}

    def missing(self) -> set[str]:
        """The files that the table of rows names and that are not there."""
        return set(self._table("data/rows").file_uris()) - self.staged(TABLE)

    def _table(self, path: str) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(f"s3://{BUCKET}/{NAME}/{path}", storage_options=self.server.options)


@contextlib.contextmanager
def failing(home: Path) -> Iterator[Failing]:
    """Start all of it, after a first checkpoint in which nothing happened."""
    with place(home) as where, pytest.MonkeyPatch.context() as patch:
        hook = home / "workers" / "hook"
        shutil.copytree(Path(__file__).with_name("in_workers"), hook)
        suites = where.driver / "include" / "expectations"
        suites.mkdir(parents=True)
        (suites / "amounts.yaml").write_text(SUITE)
        patch.chdir(where.driver)
        patch.setattr(prerewritten, "MIN_BYTES", 0)
        for name, value in where.environment(where.driver).items():
            patch.setenv(name, value)
        settings = where.spark("connect", executorEnv_PYTHONPATH=str(hook), **SPECULATION)
        with run(shop(), where.driver, settings=settings | where.server.settings(NAME)) as world:
            found = Failing(where, world, hook)
            found.checkpoint()
            yield found
        connect_server.stop(where.driver / ".tidegate" / "spark", force=True)
