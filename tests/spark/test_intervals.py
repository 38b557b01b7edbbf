"""Interval pipelines on real Spark and Delta: whatever the order, the tables hold exactly what a reference says."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as Table

from tests.kit.limits import Limits
from tests.kit.sampling import in_turn
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.coordinator import AlreadyCovered
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.execution.job.run_job import run_job
from tidegate.sinks import DeltaAppend
from tidegate.sources import DeltaTable, Files

pytestmark = in_turn(seconds=30)

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
HOURS = 10


class Hourly(World):
    """Hourly files (or a table), two sinks, and a reference in plain Python."""

    def __init__(self, root: Path, spark: Any, **sink: Any) -> None:
        self.root, self.spark, self.sink, self.name = root, spark, sink, "hourly"
        self.limits = Limits(max_concurrent_checkpoints=3, num_retained=3)
        self.reference: dict[int, list[int]] = {}
        self.source: Any = Files("landing/{start:%Y-%m-%d}/{start:%H}-*.json", schema="id long, at timestamp")

    def write(self, hour: int, ids: Iterable[int]) -> None:
        """What there is to read of an hour, from now on."""
        self.reference[hour] = list(ids)
        folder = self.root / "landing" / f"{self.interval(hour)[0]:%Y-%m-%d}"
        folder.mkdir(parents=True, exist_ok=True)
        at = (self.interval(hour)[0] + timedelta(minutes=59)).isoformat()
        lines = [json.dumps({"id": id, "at": at}) for id in self.reference[hour]]
        (folder / f"{self.interval(hour)[0]:%H}-rows.json").write_text("\n".join(lines))

    def interval(self, hour: int, hours: int = 1) -> tuple[datetime, datetime]:
        return BEGIN + timedelta(hours=hour), BEGIN + timedelta(hours=hour + hours)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        rows = pipeline.source("rows", self.source)
        rows.sink("all", DeltaAppend("tables/all", **self.sink))

        @pipeline.stage(rows)
        def even(rows: Any) -> Any:
            return rows.where("id % 2 = 0")

        even.sink("even", DeltaAppend("tables/even", **self.sink))
        return pipeline

    def make(self, run: str, hour: int, **options: Any) -> int | None:
        """One run, with all its tasks; waits for a free place as Airflow's trigger does."""
        coordinator = self.coordinator()
        while True:
            try:
                triggered = coordinator.trigger(run, interval=self.interval(hour), **options)
                break
            except Rejected as error:
                if error.reason != "CHECKPOINT_IN_PROGRESS":
                    raise
        if isinstance(triggered, AlreadyCovered) or triggered is None:
            return None
        run_job(coordinator, triggered.plan.id, "main", self.spark)
        assert coordinator.complete(triggered.plan.id).state == "completed"
        coordinator.publish()
        coordinator.retire()
        return triggered.plan.id

    def ids(self, table: str) -> list[int]:
        return sorted(row["id"] for row in self.table(table))

    def exact(self, *foreign: int) -> None:
        """Both tables hold each hour's rows as they are now; `foreign` ids are in the table `all` beside them."""
        wanted = [id for ids in self.reference.values() for id in ids]
        assert self.ids("all") == sorted([*wanted, *foreign])
        assert self.ids("even") == sorted(id for id in wanted if id % 2 == 0)

    def add_foreign(self, *ids: int, at: datetime = BEGIN) -> None:
        import pyarrow as pa
        from deltalake import write_deltalake

        schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
        rows = pa.Table.from_pylist([{"id": id, "at": at} for id in ids], schema=schema)
        write_deltalake(str(self.root / "tables" / "all"), rows, mode="append")


@pytest.fixture
def world(tmp_path: Path, spark: Any) -> World:
    world = Hourly(tmp_path, spark)
    for hour in range(HOURS):
        world.write(hour, range(100 * hour, 100 * hour + 7))
    return world


def test_in_random_order_then_backwards_again_with_other_rows(world: Hourly) -> None:
    order = list(range(HOURS))
    random.Random(3).shuffle(order)
    for hour in order:
        world.make(f"backfill {hour}", hour)
    world.exact()
    world.add_foreign(-1, -2)
    for hour in reversed(range(HOURS)):
        world.write(hour, range(100 * hour + 3, 100 * hour + 3 + hour))  # hour 0 has no rows any more
        assert world.make(f"again {hour}", hour) is None, "done; without reprocess nothing happens"
        assert world.make(f"again {hour}", hour, reprocess=True) is not None
    world.exact(-1, -2)
    history = [
        commit for commit in Table(str(world.root / "tables" / "all")).history() if "tidegate.checkpoint" in commit
    ]
    assert len(history) == 2 * HOURS, "one commit per checkpoint"


def test_three_at_once_backwards_and_made_again_at_the_same_time(world: Hourly) -> None:
    def worker(number: int, suffix: str, **options: Any) -> None:
        try:
            for hour in reversed(range(number, HOURS, 3)):
                world.make(f"{suffix} {hour}", hour, **options)
        except BaseException as error:
            failures.append(error)

    failures: list[BaseException] = []
    for suffix, options in (("first", {}), ("again", {"reprocess": True})):
        threads = [threading.Thread(target=worker, args=(n, suffix), kwargs=options) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        world.exact()
        for hour in range(0, HOURS, 2):
            world.write(hour, [100 * hour + 50, 100 * hour + 51])
    assert world.coordinator().ledger.view().last_id == 2 * HOURS


def test_rows_of_a_table_by_its_time_column(world: Hourly) -> None:
    """A table that is not written in order of time; each run reads exactly its hour, from a pinned version."""
    rows = [(id, BEGIN + timedelta(minutes=7 * id)) for id in range(40)]
    source = str(world.root / "source")
    for part in (rows[::2], rows[1::2]):
        world.spark.createDataFrame(part, "id long, at timestamp").write.format("delta").mode("append").save(source)
    world.source = DeltaTable("source", by_interval="at")
    for hour in (3, 0, 1):
        world.make(f"run {hour}", hour)
    world.reference = {
        hour: [id for id, at in rows if world.interval(hour)[0] <= at < world.interval(hour)[1]] for hour in (0, 1, 3)
    }
    world.exact()
    entry = world.coordinator().ledger.entry(1)
    assert entry is not None
    assert entry.plan.sources["rows"].summary.startswith("version 1: 2 of 4 files")


def test_a_compacted_table_is_refused_with_what_to_do_and_a_column_helps(world: Hourly) -> None:
    for hour in range(3):
        world.make(f"run {hour}", hour)
    world.add_foreign(-1, at=world.interval(1)[0] - timedelta(days=1))
    Table(str(world.root / "tables" / "all")).optimize.compact()
    last = world.coordinator().ledger.view().last_id
    world.reference = {hour: world.reference[hour] for hour in range(3)}
    world.write(1, [177])
    with pytest.raises(
        Invalid, match=r"of the 1 files that checkpoint 2 added to .*, 0 remain; version 4 \(OPTIMIZE"
    ) as error:
        world.make("again", 1, reprocess=True)
    assert error.value.reason == "INTERVAL_REWRITTEN"
    assert world.coordinator().ledger.view().last_id == last, "refused before anything was planned"
    world.sink = {"interval_column": "at"}
    assert world.make("again", 1, reprocess=True) is not None
    world.exact(-1)
    world.write(2, [])
    world.make("again 2", 2, reprocess=True)
    world.exact(-1)


def test_rows_outside_of_their_interval_are_refused_where_a_column_tells_it(world: Hourly) -> None:
    world.sink = {"interval_column": "at"}
    folder = world.root / "landing" / "2026-03-01"
    (folder / "00-late.json").write_text(json.dumps({"id": 1, "at": "2026-03-01T01:00:00Z"}))
    with pytest.raises(Invalid, match="1 rows have a 'at' outside of interval 2026-03-01T00:00/2026-03-01T01:00"):
        world.make("run", 0)


def test_a_partitioned_table_with_a_new_column(world: Hourly, tmp_path: Path) -> None:
    world.sink = {"partition_by": "id", "schema_evolution": "add"}
    for hour in range(2):
        world.write(hour, [100 * hour, 100 * hour + 1])
        world.make(f"run {hour}", hour)
    world.source = Files("landing/{start:%Y-%m-%d}/{start:%H}-*.json", schema="id long, at timestamp, note string")
    world.write(1, [100, 102])
    world.make("again", 1, reprocess=True)
    world.reference = {0: [0, 1], 1: [100, 102]}
    world.exact()


def test_an_interval_without_files_is_empty_or_not_ready_by_choice(world: Hourly) -> None:
    world.make("run", 11)
    assert world.ids("all") == []
    world.source = Files("landing/{end:%Y-%m-%d}/{start:%H}-*.json", schema="id long, at timestamp", required=True)
    with pytest.raises(Unavailable, match="has no files yet") as error:
        world.make("not yet", 12)
    assert error.value.reason == "INTERVAL_NOT_READY"


def test_columns_follow_from_interval_to_interval(tmp_path: Path, spark: Any) -> None:
    world = Hourly(tmp_path, spark, schema_evolution="add")
    pattern = "landing/{start:%Y-%m-%d}/{start:%H}-*.json"
    world.source = Files(pattern, schema="id long, at timestamp", on_new_column="evolve", on_type="rescue")
    for hour in range(3):
        world.write(hour, [100 * hour])
    for hour in (1, 2):
        path = world.root / "landing" / "2026-03-01" / f"{hour:02d}-rows.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vip": hour == 1}))

    def said() -> dict[int, tuple[bool | None, str | None]]:
        return {row["id"]: (row.get("vip"), row["_rescued"]) for row in world.table("all")}

    for hour in range(3):
        world.make(f"hour {hour}", hour)
    assert said() == {0: (None, None), 100: (None, '{"vip":true}'), 200: (False, None)}
