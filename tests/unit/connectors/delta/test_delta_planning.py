"""Which versions and files come next, from the log alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.delta_sources import SCHEMA, Table, add, cdc, files, remove, source
from tidegate.errors import Corrupt, Invalid
from tidegate.records.records import Lag
from tidegate.sources import DeltaTable, SourceContext
from tidegate.testing.source_contract import drain


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def refused(plan_of: DeltaTable, start: Any, context: SourceContext, reason: str) -> str:
    with pytest.raises(Invalid) as caught:
        plan_of.plan(start, context)
    assert caught.value.reason == reason, caught.value
    assert "'orders'" in caught.value.what
    assert caught.value.help
    return str(caught.value)


def test_first_the_table_as_it_is_then_what_is_appended(context: SourceContext, table: Table) -> None:
    table.append("b", "a")
    table.append("c")
    planned = source().plan(None, context)
    assert files(planned) == ["a", "b", "c"]
    assert (planned.is_empty, planned.has_more) == (False, False)
    assert source().plan(planned.end, context).is_empty
    assert source().plan(planned.end, context).end == planned.end
    table.append("e", "d")
    table.append("f")
    planned = source().plan(planned.end, context)
    assert files(planned) == ["e", "d", "f"]
    assert planned.summary.startswith("versions 3 to 4: 3 files")


def test_bounds_cut_snapshots_and_versions(context: SourceContext, table: Table) -> None:
    table.append(*"abcde")
    table.append("f")
    plans, end = drain(source(max_files=2), context)
    assert [files(plan) for plan in plans] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [plan.has_more for plan in plans] == [True, True, False]
    table.append(*"ghi")
    table.append("j", "k")
    plans, _ = drain(source(max_files=2), context, end)
    assert [files(plan) for plan in plans] == [["g", "h"], ["i", "j"], ["k"]]
    plans, _ = drain(source(max_bytes=25), context, end)
    assert [files(plan) for plan in plans] == [["g", "h"], ["i", "j"], ["k"]]
    plans, _ = drain(source(max_bytes=1), context, end)
    assert [len(files(plan)) for plan in plans] == [1] * 5


def test_what_waits_behind_a_range_is_told_in_files_and_bytes(
    context: SourceContext, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has 10 bytes. What a bound has left of a version counts, and what later versions bring."""
    table.append(*"abcde")
    table.append("f", "g")

    def lag(planned: Any) -> tuple[int, int]:
        return planned.lag.files, planned.lag.bytes

    plans, end = drain(source(max_files=3), context)
    assert [files(plan) for plan in plans] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert [lag(plan) for plan in plans] == [(4, 40), (1, 10), (0, 0)]
    assert plans[-1].lag == Lag(rows=0, files=0, bytes=0)
    assert source().plan(end, context).lag == Lag(rows=0, files=0, bytes=0)
    table.commit(remove("a", change=False), add("a2", change=False), operation="OPTIMIZE")
    for name in ("h", "i", "j", "k", "l"):
        table.append(name, f"{name}{name}")
    assert lag(source(max_files=1).plan(end, context)) == (9, 90)
    monkeypatch.setattr("tidegate.connectors.delta.source.lag._MAX_VERSIONS", 2)
    assert lag(source(max_files=1).plan(end, context)) == (9, 90), "one is left, and of four versions two are looked at"


def test_a_range_that_ends_at_a_version_does_not_name_the_next(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    table.append("a", "b")
    table.append("c")
    planned = source(max_files=2).plan(end, context)
    assert [number for number, _ in planned.splits["commits"]] == [1]
    assert planned.has_more


def test_a_snapshot_cut_by_bounds_is_that_of_the_first_plan(context: SourceContext, table: Table) -> None:
    table.append("a", "b", "c")
    first = source(max_files=1).plan(None, context)
    table.commit(remove("b", change=False), add("b2", change=False))
    table.append("d")
    plans, _ = drain(source(max_files=1), context, first.end)
    assert [files(plan) for plan in plans] == [["b"], ["c"], ["d"]]


def test_planned_again_from_the_same_start_it_starts_at_the_same_place(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    table.append("a")
    first = source().plan(end, context)
    table.append("b")
    assert files(first) == ["a"]
    assert files(source().plan(end, context)) == ["a", "b"]


def test_rewrites_that_change_no_row_are_skipped(context: SourceContext, table: Table) -> None:
    table.append("a", "b")
    end = source().plan(None, context).end
    table.commit(remove("a", change=False), remove("b", change=False), add("ab", change=False), operation="OPTIMIZE")
    table.commit(operation="VACUUM END")
    planned = source().plan(end, context)
    assert planned.is_empty
    assert planned.end is not None
    assert planned.end["version"] == 3
    table.append("c")
    assert files(source().plan(planned.end, context)) == ["c"]
    assert files(source().plan(end, context)) == ["c"]


def test_versions_that_change_rows_are_refused_or_skipped_by_choice(context: SourceContext, table: Table) -> None:
    table.append("a")
    end = source().plan(None, context).end
    table.commit(remove("a"), operation="DELETE")
    said = refused(source(), end, context, "ROWS_CHANGED")
    assert "version 2" in said
    assert "(DELETE) deletes rows" in said
    assert "mode='changes'" in said
    assert "ignore_deletes=True" in said
    assert source(ignore_deletes=True).plan(end, context).is_empty
    table.commit(add("c"), remove("b"), operation="UPDATE")
    assert "ignore_changes=True" in refused(source(ignore_deletes=True), end, context, "ROWS_CHANGED")
    table.append("d")
    assert files(source(ignore_changes=True).plan(end, context)) == ["d"]


def test_what_is_good_is_read_before_what_is_not(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    table.append("a")
    table.commit(remove("a"), operation="DELETE")
    planned = source().plan(end, context)
    assert files(planned) == ["a"]
    assert planned.has_more
    refused(source(), planned.end, context, "ROWS_CHANGED")


def test_start_latest_is_decided_once_and_nothing_that_comes_after_is_passed_by(
    context: SourceContext, table: Table
) -> None:
    begins = source(start="latest").beginning(context)
    assert source().beginning(context) is None
    table.append("b")
    assert files(source(start="latest").plan(begins, context)) == ["b"]


def test_start_latest_reads_only_what_comes(context: SourceContext, table: Table) -> None:
    table.append("a")
    planned = source(start="latest").plan(None, context)
    assert planned.is_empty
    assert planned.end is not None
    table.append("b")
    assert files(source(start="latest").plan(planned.end, context)) == ["b"]


def test_start_at_a_version_reads_it_and_all_after_it(context: SourceContext, table: Table) -> None:
    table.append("a")
    table.append("b")
    table.append("c")
    assert files(source(start=2).plan(None, context)) == ["b", "c"]
    assert files(source(start=0).plan(None, context)) == ["a", "b", "c"]
    assert source(start=4).plan(None, context).is_empty
    assert "versions 0 to 3" in refused(source(start=5), None, context, "NO_VERSION")
    table.path(0).unlink()
    table.path(1).unlink()
    refused(source(start=1), None, context, "NO_VERSION")


def test_an_empty_table_has_nothing_and_continues_from_there(context: SourceContext, table: Table) -> None:
    planned = source().plan(None, context)
    assert planned.is_empty
    table.append("a")
    assert files(source().plan(planned.end, context)) == ["a"]
    assert files(source().plan(None, context)) == ["a"]


def test_positions_and_splits_are_plain_json(context: SourceContext, table: Table) -> None:
    table.append("a", "b")
    for planned in (source().plan(None, context), source(max_files=1).plan(None, context)):
        assert json.loads(json.dumps([planned.end, planned.splits])) == [planned.end, planned.splits]


@pytest.mark.parametrize("position", [{}, {"offset": 1}, {"folder": "x", "after": "y", "seen": []}])
def test_a_foreign_position_is_refused(context: SourceContext, table: Table, position: dict[str, object]) -> None:
    refused(source(), position, context, "FOREIGN_POSITION")


# -- what can happen to a table (scenarios 5 and 16) ------------------------------------------------


def test_no_table(context: SourceContext) -> None:
    refused(source(), None, context, "NO_TABLE")


def test_scenario_16_a_table_that_was_dropped(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    table.drop()
    refused(source(), end, context, "TABLE_GONE")


@pytest.mark.parametrize("versions", [1, 2, 3, 5])
def test_scenario_16_a_table_that_was_created_again_is_noticed_whatever_its_version(
    context: SourceContext, table: Table, versions: int
) -> None:
    table.append("a")
    table.append("b")
    end = source().plan(None, context).end
    table.drop()
    again = Table(table.folder, "t2")
    for version in range(1, versions):
        again.append(f"x{version}")
    assert "its id is t2, it was t1" in refused(source(), end, context, "TABLE_RECREATED")


def test_scenario_16_a_table_created_again_whose_first_commits_are_gone(context: SourceContext, table: Table) -> None:
    table.append("a")
    end = source().plan(None, context).end
    table.drop()
    again = Table(table.folder, "t2")
    for version in range(1, 4):
        again.append(f"x{version}")
    make_checkpoint(again, 1)
    for version in (0, 1):
        again.path(version).unlink()
    refused(source(), end, context, "TABLE_RECREATED")


def test_scenario_5_a_version_written_again_under_the_same_number(context: SourceContext, table: Table) -> None:
    table.append("a")
    end = source().plan(None, context).end
    table.next = 1
    table.append("z")
    table.append("b")
    refused(source(), end, context, "VERSION_REWRITTEN")


def test_a_table_put_back_from_an_older_copy(context: SourceContext, table: Table) -> None:
    table.append("a")
    table.append("b")
    end = source().plan(None, context).end
    table.path(2).unlink()
    assert "ends at 1 now" in refused(source(), end, context, "VERSION_GONE")


def test_scenario_16_versions_that_were_cleaned_up_before_they_were_read(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    for name in "abcd":
        table.append(name)
    make_checkpoint(table, 3)
    for version in (0, 1, 2):
        table.path(version).unlink()
    assert "version 1 " in refused(source(), end, context, "LOG_CLEANED")


def test_clean_up_of_what_was_read_does_no_harm(context: SourceContext, table: Table) -> None:
    table.append("a")
    end = source().plan(None, context).end
    table.append("b")
    make_checkpoint(table, 2)
    table.path(0).unlink()
    table.path(1).unlink()
    assert files(source().plan(end, context)) == ["b"]


def test_a_half_read_version_that_was_cleaned_up(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    table.append("a", "b")
    end = source(max_files=1).plan(end, context).end
    table.append("c")
    make_checkpoint(table, 2)
    table.path(0).unlink()
    table.path(1).unlink()
    refused(source(), end, context, "LOG_CLEANED")


def test_a_half_read_snapshot_that_can_no_longer_be_made(context: SourceContext, table: Table) -> None:
    table.append("a", "b")
    end = source(max_files=1).plan(None, context).end
    table.append("c")
    make_checkpoint(table, 2)
    for version in (0, 1):
        table.path(version).unlink()
    with pytest.raises(Invalid) as caught:
        source().plan(end, context)
    assert caught.value.reason == "LOG_CLEANED"


def test_an_empty_or_torn_commit_is_corrupt(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    table.append("a")
    table.path(1).write_text("")
    with pytest.raises(Corrupt):
        source().plan(end, context)
    table.path(1).write_text('{"add": {"pa')
    with pytest.raises(Corrupt):
        source().plan(end, context)


# -- checkpoints of the log -------------------------------------------------------------------------


def make_checkpoint(table: Table, version: int, parts: int = 1, *, sidecar: bool = False) -> None:
    """A checkpoint like Delta's, from the commits that are there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    live: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for at in range(version + 1):
        for line in table.path(at).read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = {
                    **action["add"],
                    "partitionValues": list(action["add"]["partitionValues"].items()),
                }
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
            for kind in ("metaData", "protocol"):
                if kind in action:
                    value = dict(action[kind])
                    if kind == "metaData":
                        value["configuration"] = list(value["configuration"].items())
                        value["format"] = {"provider": "parquet"}
                    rows = [row for row in rows if kind not in row] + [{kind: value}]
    text_map = pa.map_(pa.string(), pa.string())
    add_type = pa.struct(
        [("path", pa.string()), ("partitionValues", text_map), ("size", pa.int64()), ("dataChange", pa.bool_())]
    )
    metadata_type = pa.struct(
        [
            ("id", pa.string()),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", text_map),
        ]
    )
    protocol_type = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
    schema = pa.schema([("add", add_type), ("metaData", metadata_type), ("protocol", protocol_type)])
    adds: list[dict[str, Any]] = [{"add": value} for value in live.values()]
    name = f"{version:020d}.checkpoint"
    if sidecar:
        (table.log / "_sidecars").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(adds, schema), table.log / "_sidecars" / "s1.parquet")
        schema = schema.append(pa.field("sidecar", pa.struct([("path", pa.string())])))
        rows.append({"sidecar": {"path": "s1.parquet"}})
        name += ".80a083e8-7026-4e79-81be-64bd76c43a11"
        adds = []
    every = [*rows, *adds]
    for part in range(parts):
        suffix = f".{part + 1:010d}.{parts:010d}" if parts > 1 else ""
        table_part = pa.Table.from_pylist(every[part::parts], schema)
        pq.write_table(table_part, table.log / f"{name}{suffix}.parquet")


@pytest.mark.parametrize(("parts", "sidecar"), [(1, False), (3, False), (1, True)])
def test_a_snapshot_from_a_checkpoint_is_the_same_in_the_same_order(
    context: SourceContext, table: Table, parts: int, sidecar: bool
) -> None:
    table.append("d", "a%20b", "c")
    table.commit(add("e", partitionValues={"c": "x"}), remove("c"))
    table.commit(remove("d", change=False), add("b", change=False))
    before = source(max_files=2).plan(None, context)
    make_checkpoint(table, 2, parts, sidecar=sidecar)
    for version in (0, 1, 2):
        table.path(version).unlink()
    after = source(max_files=2).plan(None, context)
    assert after == before
    assert files(after) == ["a b", "b"]
    rest = source().plan(after.end, context)
    assert files(rest) == ["e"]
    assert rest.splits["files"][0]["values"] == {"c": "x"}


def test_an_incomplete_checkpoint_is_not_used(context: SourceContext, table: Table) -> None:
    table.append("a")
    make_checkpoint(table, 1, 2)
    next(table.log.glob("*.0000000001.0000000002.parquet")).unlink()
    assert files(source().plan(None, context)) == ["a"]


# -- what a table may be ----------------------------------------------------------------------------


def protocol(*features: str, reader: int = 3) -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": reader,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


def test_plain_tables_are_read_as_parquet_and_others_by_delta_spark(context: SourceContext, table: Table) -> None:
    table.append("a")
    assert source().plan(None, context).splits["reader"] == "parquet"
    table.commit(protocol("deletionVectors", "timestampNtz", "v2Checkpoint"))
    assert source().plan(None, context).splits["reader"] == "parquet"
    table.commit(remove("a"), add("a", deletionVector={"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1}))
    assert source().plan(None, context).splits["reader"] == "delta"
    table.commit(protocol("typeWidening"))
    table.append("b")
    assert source(start=4).plan(None, context).splits["reader"] == "delta"


def test_column_mapping_needs_delta_spark(context: SourceContext, tmp_path: Path) -> None:
    table = Table(tmp_path / "table", **{"delta.columnMapping.mode": "name"})
    table.append("a")
    assert source().plan(None, context).splits["reader"] == "delta"


def test_a_range_for_delta_spark_ends_where_the_schema_changes_and_after_some_versions(
    context: SourceContext, tmp_path: Path
) -> None:
    table = Table(tmp_path / "table", **{"delta.columnMapping.mode": "name"})
    end = source().plan(None, context).end
    table.append("a")
    table.commit(table.metadata({"type": "struct", "fields": []}))
    for n in range(20):
        table.append(f"b{n}")
    plans, _ = drain(source(), context, end)
    assert [len(files(plan)) for plan in plans] == [1, 16, 4]
    assert plans[0].splits["schema"] == SCHEMA


def test_a_table_of_a_catalog_is_refused(context: SourceContext, table: Table) -> None:
    table.commit(protocol("catalogManaged"))
    table.append("a")
    with pytest.raises(Invalid) as caught:
        source().plan(None, context)
    assert caught.value.reason == "CATALOG_TABLE"


def test_the_schema_is_that_of_the_last_version_read(context: SourceContext, table: Table) -> None:
    end = source().plan(None, context).end
    wider = {
        "type": "struct",
        "fields": [*SCHEMA["fields"], {"name": "b", "type": "string", "nullable": True, "metadata": {}}],
    }
    table.append("a")
    table.commit(table.metadata(wider), add("b"))
    assert source().plan(end, context).splits["schema"] == wider
    assert source(max_files=1).plan(end, context).splits["schema"] == SCHEMA


# -- the change feed --------------------------------------------------------------------------------


@pytest.fixture
def feed(tmp_path: Path) -> Table:
    return Table(tmp_path / "table", **{"delta.enableChangeDataFeed": "true"})


def test_a_change_feed_is_read_by_whole_versions(context: SourceContext, feed: Table) -> None:
    feed.append("a")
    first = source(mode="changes").plan(None, context)
    assert files(first) == ["a"]
    assert first.splits["feed"] is None
    feed.commit(add("b"), remove("a"), cdc("_change_data/1"), cdc("_change_data/2"), operation="UPDATE")
    feed.commit(remove("b"), operation="DELETE")
    feed.commit(operation="OPTIMIZE")
    feed.append("c", "d", "e")
    plans, _ = drain(source(mode="changes", max_files=3), context, first.end)
    assert [plan.splits["feed"] for plan in plans] == [[2, 3], [5, 5]]
    assert [plan.has_more for plan in plans] == [True, False]
    plans, _ = drain(source(mode="changes", max_files=1), context, first.end)
    assert [plan.splits["feed"] for plan in plans] == [[2, 2], [3, 3], [5, 5]]


def test_a_change_feed_that_is_off_is_refused(context: SourceContext, table: Table) -> None:
    end = source(mode="changes").plan(None, context).end
    table.append("a")
    assert "is off at version 1" in refused(source(mode="changes"), end, context, "NO_CHANGE_FEED")


def test_a_change_feed_that_was_switched_off_is_read_up_to_there(context: SourceContext, feed: Table) -> None:
    end = source(mode="changes").plan(None, context).end
    feed.append("a")
    feed.configuration = {}
    feed.commit(feed.metadata())
    feed.append("b")
    planned = source(mode="changes").plan(end, context)
    assert planned.splits["feed"] == [1, 1]
    assert planned.has_more
    assert "is off at version 2" in refused(source(mode="changes"), planned.end, context, "NO_CHANGE_FEED")


def test_the_mode_may_be_changed_between_versions_only(context: SourceContext, feed: Table) -> None:
    end = source().plan(None, context).end
    feed.append("a", "b")
    half = source(max_files=1).plan(end, context).end
    refused(source(mode="changes"), half, context, "HALF_READ")
    whole = source().plan(half, context).end
    feed.commit(remove("a"), operation="DELETE")
    refused(source(), whole, context, "ROWS_CHANGED")
    assert source(mode="changes").plan(whole, context).splits["feed"] == [2, 2]


# -- declaration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": ""}, "path is ''"),
        ({"path": None}, "path is None"),
        ({"mode": "cdf"}, "mode is 'cdf'"),
        ({"start": "now"}, "start is 'now'"),
        ({"start": -1}, "start is -1"),
        ({"start": True}, "start is True"),
        ({"start": None}, "start is None"),
        ({"max_files": 0}, "max_files is 0"),
        ({"max_bytes": "1"}, "max_bytes is '1'"),
        ({"ignore_deletes": "yes"}, "ignore_deletes is 'yes'"),
        ({"ignore_changes": True, "mode": "changes"}, "ignore_changes is for mode='append'"),
    ],
)
def test_bad_declarations_are_told(arguments: dict[str, Any], said: str) -> None:
    problems = DeltaTable(**({"path": "t"} | arguments)).problems()
    assert len(problems) == 1
    assert said in problems[0]


def test_the_description_is_plain_and_complete() -> None:
    declared = source(schema="id long")
    arguments = {name: value for name, value in vars(declared).items() if name != "evolved_columns"}
    assert json.loads(json.dumps(declared.describe())) == {"kind": "delta", **arguments}
    about_columns = {"schema", "on_new_column", "on_type", "missing_columns", "rescue_column"}
    plain = {name: value for name, value in arguments.items() if name not in about_columns}
    assert source().describe() == {"kind": "delta", **plain}, "it is as ever for a pipeline that declares no columns"
    assert source().problems() == []
