"""A Delta table whose columns become wider, without Spark: what the log says, and what a crash or a race leaves."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.delta import actions, head, log_file, schema, stamp
from tests.kit.sinks import Published
from tidegate import seams
from tidegate.connectors.delta.sink.table import StagedBatch
from tidegate.delta import Location, create, open_table
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert

BIG = 5_000_000_000
NARROW, WIDE = schema(k="long", n="integer"), schema(k="long", n="long")


def narrow(*rows: tuple[int, int]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "n": pa.array([n for _, n in rows], pa.int32())})


def wide(*rows: tuple[int, int]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "n": pa.array([n for _, n in rows], pa.int64())})


def shop(folder: Any, sink: str = "append") -> Published:
    if sink == "append":
        return Published(folder, DeltaAppend("t", schema_evolution="widen"))
    return Published(folder, DeltaUpsert("t", keys=["k"], schema_evolution="widen"))


@pytest.mark.parametrize("sink", ["append", "upsert"])
def test_a_column_becomes_wider_in_a_commit_before_the_rows(tmp_path: Any, sink: str) -> None:
    world = shop(tmp_path, sink)
    world.checkpoint(1, narrow((1, 1), (2, 2)), NARROW)
    done = world.checkpoint(2, wide((2, BIG)), WIDE)
    assert done.version == 2
    assert not any("add" in action or "remove" in action for action in actions(world.location, 1))
    expected = {"append": [(1, 1), (2, 2), (2, BIG)], "upsert": [(1, 1), (2, BIG)]}[sink]
    assert world.rows() == expected
    table = head(world.location)
    assert table.schema["fields"][1]["metadata"] == {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}
    assert table.configuration["delta.enableTypeWidening"] == "true"
    assert table.protocol.features == {"appendOnly", "invariants", "typeWidening"}


@pytest.mark.parametrize("sink", ["append", "upsert"])
def test_pending_rows_of_both_types_are_published_together(tmp_path: Any, sink: str) -> None:
    world = shop(tmp_path, sink)
    batches = [world.stage(1, narrow((1, 1)), NARROW), world.stage(2, wide((2, BIG)), WIDE)]
    assert world.publish(2, *batches) is None, "the table begins with the narrow type"
    assert world.publish(2, *batches) is not None
    assert world.rows() == [(1, 1), (2, BIG)]
    later = [world.stage(3, narrow((3, 3)), NARROW), world.stage(4, wide((1, BIG)), WIDE)]
    assert world.publish(4, *later) is not None
    assert (3, 3) in world.rows()


@pytest.mark.parametrize("point", ["S10.publish.before", "S10.publish.after"])
@pytest.mark.parametrize("passing", [1, 2])
def test_a_crash_between_the_wider_type_and_the_rows_is_repaired_by_the_next_publish(
    tmp_path: Any, point: str, passing: int
) -> None:
    world = shop(tmp_path)
    world.checkpoint(1, narrow((1, 1)), NARROW)
    batch = world.stage(2, wide((2, BIG)), WIDE)
    left = [passing]

    def crash(at: str) -> None:
        if at == point:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    with seams.installed(seams.Seams(fault=crash)), pytest.raises(KeyboardInterrupt):
        world.publish(2, batch)
    if world.head().last_entry != 2:
        assert world.publish(2, batch) is not None
    assert world.rows() == [(1, 1), (2, BIG)]
    assert not log_file(world.location, 3).exists()


def test_a_foreign_commit_in_between_is_a_lost_race_then_a_success(tmp_path: Any) -> None:
    world = shop(tmp_path)
    world.checkpoint(1, narrow((1, 1)), NARROW)
    before, batch = world.head(), world.stage(2, wide((2, BIG)), WIDE)
    write_deltalake(world.location.url, narrow((7, 7)), mode="append")
    assert world.publish(2, batch, head=before) is None
    assert world.publish(2, batch) is not None
    assert world.rows() == [(1, 1), (2, BIG), (7, 7)]


def test_a_table_that_is_wider_takes_columns_too_and_no_narrower_type(tmp_path: Any) -> None:
    world = shop(tmp_path)
    world.checkpoint(1, narrow((1, 1)), NARROW)
    world.checkpoint(2, wide((2, BIG)), WIDE)
    more = schema(k="long", n="long", vip="boolean")
    world.checkpoint(3, wide((3, 3)).append_column("vip", pa.array([True])), more)
    assert world.rows() == [(1, 1, None), (2, BIG, None), (3, 3, True)]
    assert world.checkpoint(4, narrow((4, 4)), NARROW), "its files may have the narrower type"
    assert (4, 4, None) in world.rows()
    texts = schema(k="long", n="string")
    with pytest.raises(Invalid, match="'n' is string; the table has bigint"):
        world.publish(5, world.stage(5, pa.table({"k": [5], "n": ["5"]}), texts))


def test_decimals_floats_and_dates_become_wider(tmp_path: Any) -> None:
    world = shop(tmp_path)
    day = date.fromisoformat("2026-11-30")
    first = pa.table(
        {
            "d": pa.array([Decimal("1.25")], pa.decimal128(6, 2)),
            "f": pa.array([0.5], pa.float32()),
            "t": pa.array([day], pa.date32()),
        }
    )
    world.checkpoint(1, first, schema(d="decimal(6,2)", f="float", t="date"))
    noon = datetime.fromisoformat("2026-11-30T12:00:00")
    second = pa.table(
        {
            "d": pa.array([Decimal("12345.6789")], pa.decimal128(9, 4)),
            "f": pa.array([0.1], pa.float64()),
            "t": pa.array([noon], pa.timestamp("us")),
        }
    )
    world.checkpoint(2, second, schema(d="decimal(9,4)", f="double", t="timestamp_ntz"))
    midnight = datetime.fromisoformat("2026-11-30T00:00:00")
    assert world.rows() == [(Decimal("1.2500"), 0.5, midnight), (Decimal("12345.6789"), 0.1, noon)]
    assert "timestampNtz" in head(world.location).protocol.features


def test_the_log_is_summarized_as_for_every_table(tmp_path: Any) -> None:
    sink = DeltaAppend("t", schema_evolution="widen", properties={"delta.checkpointInterval": "3"})
    world = Published(tmp_path, sink)
    world.checkpoint(1, narrow((1, 1)), NARROW)
    for id in range(2, 8):
        world.checkpoint(id, wide((id, BIG)), WIDE)
    assert world.location.local("_delta_log/_last_checkpoint").exists()
    table = open_table(Location(world.location.url))
    assert table is not None
    assert table.schema["fields"][1]["type"] == "long"
    assert len(world.rows()) == 7


def test_without_the_policy_the_table_is_as_it_was(tmp_path: Any) -> None:
    world = Published(tmp_path, DeltaAppend("t", schema_evolution="add"))
    world.checkpoint(1, narrow((1, 1)), NARROW)
    with pytest.raises(Invalid, match="'n' is bigint; the table has int"):
        world.publish(2, world.stage(2, wide((2, BIG)), WIDE))
    assert world.head().version == 0


def test_a_partition_column_keeps_its_type(tmp_path: Any) -> None:
    world = Published(tmp_path, DeltaAppend("t", partition_by=["day"], schema_evolution="widen"))
    days, times = schema(k="long", day="date"), schema(k="long", day="timestamp_ntz")
    create(world.location, days, [], stamp(1), partition_by=["day"])
    before = head(world.location)
    with pytest.raises(Invalid, match="'day' is timestamp_ntz; the table has date") as refused:
        world.sink.fitting(times, world.context, before)
    assert "cast to the table's types" in refused.value.help
    batch = StagedBatch(columns=times, files=[])
    with pytest.raises(Invalid, match="'day' is timestamp_ntz; the table has date"):
        world.sink.evolved(before, [batch], stamp(2))
    assert world.sink.evolved(before, [StagedBatch(columns=days, files=[])], stamp(2)) == before
    assert head(world.location).version == before.version


def test_a_time_without_a_zone_inside_a_new_column_needs_its_feature(tmp_path: Any) -> None:
    world = shop(tmp_path)
    world.checkpoint(1, narrow((1, 1)), NARROW)
    noon = datetime.fromisoformat("2026-11-30T12:00:00")
    seen = {"type": "array", "elementType": "timestamp_ntz", "containsNull": True}
    rows = wide((2, BIG)).append_column("seen", pa.array([[noon]], pa.list_(pa.timestamp("us"))))
    world.checkpoint(2, rows, schema(k="long", n="long", seen=seen))
    assert "timestampNtz" in head(world.location).protocol.features
    assert world.rows() == [(1, 1, None), (2, BIG, [noon])]
