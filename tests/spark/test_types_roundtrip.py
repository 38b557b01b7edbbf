"""What tidegate writes reads the same in delta-spark and in delta-rs, and both skip the right files.

Every row lies in a file of its own, so that each file's statistics are its row: a wrong bound loses the row.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.kit.delta import head, stamp
from tests.kit.sampling import in_turn
from tests.kit.sinks import Published
from tidegate.connectors.sink import Staging
from tidegate.delta import Location, live_files, read_table, restore
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=40)

FIRST, LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
TYPES: dict[str, tuple[str, list[str]]] = {
    "byte": ("tinyint", ["-128", "127", "0"]),
    "short": ("smallint", ["-32768", "32767", "0"]),
    "int": ("int", ["-2147483648", "2147483647", "0"]),
    "long": ("bigint", ["-9223372036854775808", "9223372036854775807", "0"]),
    "float": ("float", ["'NaN'", "'-Infinity'", "'-0.0'", "'1.1'"]),
    "double": ("double", ["'NaN'", "'Infinity'", "'-0.0'", "'5e-324'"]),
    "dec_small": ("decimal(5,2)", ["'-999.99'", "'999.99'", "'0.01'"]),
    "dec_mid": ("decimal(18,9)", ["'-123456789.123456789'", "'999999999.999999999'", "'0'"]),
    "dec_big": ("decimal(38,0)", [f"'-{'9' * 38}'", f"'{'9' * 38}'"]),
    "dec_fine": ("decimal(38,38)", ["'-0.12345678901234567890123456789012345678'", "'0'"]),
    "zoned": ("timestamp", [f"'{at}Z'" for at in (FIRST, LAST, "1969-12-31 23:59:59.999999")]),
    "local": ("timestamp_ntz", [f"'{at}'" for at in (FIRST, LAST, "1582-10-10 00:00:00.000001")]),
    "date": ("date", ["'0001-01-01'", "'9999-12-31'", "'1582-10-10'", "'1969-12-31'"]),
    "text": ("string", ["''", "'é 日本 🎉'", "repeat('ab', 3000)", "repeat('é', 33)", "'a\\\\n\\\\0b'"]),
    "bytes": ("binary", ["X''", "X'00FF80'"]),
    "flag": ("boolean", ["true", "false"]),
    "list": ("array<int>", ["array()", "array(null, 1)"]),
    "lists": ("array<array<struct<x: string>>>", ["array(array(named_struct('x', null)), null, array())"]),
    "map": ("map<string, decimal(9,2)>", ["map()", "map('k', null, 'é', 1.5)"]),
    "struct": (
        "struct<x: int, y: struct<z: timestamp, `a.b`: string>>",
        ["named_struct('x', 1, 'y', named_struct('z', timestamp'1969-12-31 23:59:59.999999Z', 'a.b', 'q'))",
         "named_struct('x', null, 'y', null)"],
    ),
    "with space": ("int", ["1"]),
    "with.dot": ("int", ["2"]),
    "größe": ("int", ["3"]),
    "日本": ("int", ["4"]),
    "a`b\"c'd,e;f=g{h}": ("int", ["5"]),
}  # fmt: skip
ROWS = max(len(values) for _, values in TYPES.values()) + 1


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(name: str, row: int) -> str:
    kind, values = TYPES[name]
    value = values[row] if row < len(values) else "null"
    return f"cast({value} AS {kind})"


def frame_of(spark: Any, names: list[str]) -> Any:
    """The last row is null but for its key."""
    frames = []
    for row in range(ROWS):
        values = (f"{literal(name, row)} AS {quoted(name)}" for name in names)
        frames.append(spark.range(row, row + 1).selectExpr("id AS k", *values))
    return reduce(lambda one, other: one.unionAll(other), frames)


def shown(table: pa.Table) -> list[str]:
    """Rows in a form that tells NaN, -0.0 and every digit apart and does not care how a map is ordered."""
    return [repr(row) for row in sorted(table.to_pylist(), key=lambda row: row["k"])]


def by_spark(spark: Any, target: str) -> list[str]:
    return shown(spark.read.format("delta").load(target).toArrow())


def by_rs(target: str) -> list[str]:
    return shown(read_table(open_table_at(target)))


def open_table_at(target: str) -> Any:
    return head(Location(target))


@pytest.fixture(scope="module")
def rows(spark: Any) -> pa.Table:
    return frame_of(spark, list(TYPES)).toArrow().sort_by("k")


@pytest.fixture(scope="module")
def original(rows: pa.Table) -> list[str]:
    return shown(rows)


@pytest.fixture(scope="module")
def table(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Published:
    world = Published(tmp_path_factory.mktemp("types"))
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "1")
    try:
        prepared = world.sink.prepare(frame_of(spark, list(TYPES)), world.context, Staging(1, "a"))
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert (prepared.rows, prepared.files) == (ROWS, ROWS)
    assert world.publish(1, prepared.committable or {}) is not None
    return world


def test_appended_rows_read_the_same_everywhere(spark, table, original):
    assert by_spark(spark, table.location.url) == original
    assert by_rs(table.location.url) == original


def test_they_do_after_delta_rs_has_made_a_checkpoint_of_the_log(spark, table, original):
    DeltaTable(table.location.url).create_checkpoint()
    for path in table.location.local("_delta_log").glob("*.json"):
        assert path.name == f"{0:020d}.json"
    assert by_spark(spark.newSession(), table.location.url) == original
    assert by_rs(table.location.url) == original


def test_rewritten_and_restored_rows_read_the_same_everywhere(spark, tmp_path, original):
    """Files that an upsert wrote anew, through Arrow; then the files of the version before, named once more."""
    world = Published(tmp_path, DeltaUpsert("t", keys=["k"]))
    rows = frame_of(spark, list(TYPES)).coalesce(1)
    first = world.sink.prepare(rows, world.context, Staging(1, "a")).committable
    assert world.publish(1, first or {}) is not None
    one = rows.where("k = 0")
    change = world.sink.prepare(one, world.context, Staging(2, "a")).committable
    assert world.publish(2, change or {}) is not None
    kept = [file for file in live_files(open_table_at(world.location.url)) if "merged-" in file.path]
    assert [file.rows for file in kept] == [ROWS - 1]
    assert by_spark(spark, world.location.url) == original
    assert by_rs(world.location.url) == original
    assert restore(open_table_at(world.location.url), 0, stamp(3)) is not None
    assert by_spark(spark, world.location.url) == original
    assert by_rs(world.location.url) == original


SKIPPABLE = [name for name in TYPES if not name.startswith(("bytes", "list", "map", "struct", "a`", "with ", "größe"))]
SIGNS = {"=": pc.equal, "<=": pc.less_equal, ">=": pc.greater_equal}
FLOATS = {
    "`double` = 'NaN'": [0],
    "`double` > 1e300": [0, 1],  # NaN is above everything, for Spark and in Delta
    "`double` >= 0": [0, 1, 2, 3],
    "`double` <= -0.0": [2],
    "`float` < 0": [1],
    "`float` = 0": [2],
    "`float` > 1": [0, 3],
}


def test_spark_skips_no_row_that_a_filter_wants(spark, table, rows):
    """At the borders of each type, all in one query: each branch reads only the files that its filter leaves."""
    wanted = dict(FLOATS)
    for name in SKIPPABLE:
        for row, (sign, compare) in zip((0, 1, 1), SIGNS.items(), strict=True):
            if name not in ("float", "double") and row < len(TYPES[name][1]):
                value = rows.slice(row, 1)[name][0]
                keys = rows.filter(compare(rows[name], value))["k"].to_pylist()
                wanted[f"{quoted(name)} {sign} {literal(name, row)}"] = keys
    spark.read.format("delta").load(table.location.url).createOrReplaceTempView("roundtrip")
    query = " UNION ALL ".join(
        f"SELECT {place} AS place, collect_set(k) AS keys FROM roundtrip WHERE {condition}"
        for place, condition in enumerate(wanted)
    )
    answers = {row.place: sorted(row["keys"]) for row in spark.sql(query).collect()}
    assert {condition: answers[place] for place, condition in enumerate(wanted)} == wanted


def test_spark_does_skip_files(spark, table):
    """So that the tests above test something: the other files may be gone, and no one notices."""
    wanted = spark.read.format("delta").load(table.location.url)
    hidden = {}
    for file in live_files(open_table_at(table.location.url)):
        if file.low.get("long") != 9223372036854775807:
            hidden[file.path] = table.location.local(file.path).read_bytes()
            table.location.local(file.path).unlink()
    try:
        assert [row.k for row in wanted.where("`long` = 9223372036854775807").select("k").collect()] == [1]
        assert [row.k for row in wanted.where("`date` = '9999-12-31'").select("k").collect()] == [1]
    finally:
        for path, data in hidden.items():
            table.location.local(path).write_bytes(data)


@pytest.mark.parametrize("name", [name for name in SKIPPABLE if name not in ("float", "double", "flag")])
def test_delta_rs_datasets_skip_no_row_that_a_filter_wants(table, rows, name):
    dataset = DeltaTable(table.location.url).to_pyarrow_dataset()
    for value in [value for value in rows[name].unique() if value.is_valid]:
        for compare in (*SIGNS.values(), pc.less, pc.greater):
            wanted = rows.filter(compare(rows[name], value))["k"].to_pylist()
            found = dataset.to_table(columns=["k"], filter=compare(pc.field(name), value))["k"].to_pylist()
            assert sorted(found) == wanted, (compare, value)
    for condition, mask in (
        (pc.field(name).is_null(), pc.is_null(rows[name])),
        (pc.field(name).is_valid(), pc.is_valid(rows[name])),
    ):
        found = dataset.to_table(columns=["k"], filter=condition)["k"].to_pylist()
        assert sorted(found) == rows.filter(mask)["k"].to_pylist()


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("\"double\" > 1e300", [0, 1]),  # infinity, and NaN, which is above everything
        ("\"double\" < 1", [2, 3]),
        ("\"double\" >= 0", [0, 1, 2, 3]),
        ("\"long\" = 9223372036854775807", [1]),
        ("\"text\" > 'é'", [1, 3]),
        ("\"text\" >= 'abababababababababababababababababab'", [1, 2, 3]),
        ("\"date\" < DATE '1000-01-01'", [0]),
        ("\"zoned\" < TIMESTAMP '1970-01-01T00:00:00Z'", [0, 2]),
        ("\"dec_small\" >= 999.99", [1]),
        ("\"struct\"['x'] = 1", [0]),
    ],
)  # fmt: skip
def test_delta_rs_queries_skip_right(table, condition, keys):
    assert queried(table, condition) == keys


def queried(world: Published, condition: str) -> list[int]:
    """The keys that delta-rs finds."""
    query = f"SELECT k FROM t WHERE {condition}"
    table = DeltaTable(world.location.url)
    return sorted(pa.table(QueryBuilder().register("t", table).execute(query))["k"].to_pylist())


PARTITIONS: dict[str, tuple[str, list[str]]] = {
    "text": ("string", ["'a b/c=%é\\'\"'", "'x'", "''", "'%41'", "'日本'"]),
    "date": ("date", ["'0001-01-01'", "'9999-12-31'"]),
    "zoned": ("timestamp", ["'0001-01-01 00:00:00Z'", "'2026-10-25 00:30:00Z'", "'2026-10-25 01:30:00.000001Z'"]),
    "local": ("timestamp_ntz", ["'1969-12-31 23:59:59.999999'", "'9999-12-31 00:00:00'"]),
    "price": ("decimal(9,3)", ["'-2'", "'0'", "'123456.789'"]),
    "double": ("double", ["'NaN'", "'-Infinity'", "'1e10'", "'0.1'"]),
    "flag": ("boolean", ["true", "false"]),
    "byte": ("tinyint", ["-128"]),
    "p q=r": ("bigint", ["-9223372036854775808"]),
}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_partition_values_read_the_same_everywhere(spark, tmp_path, zone):
    """One table partitioned by everything. In Berlin two of the timestamps have the same wall clock."""
    frames = []
    for row in range(6):
        values = [
            f"cast({kind[1][row] if row < len(kind[1]) else 'null'} AS {kind[0]}) AS {quoted(name)}"
            for name, kind in PARTITIONS.items()
        ]
        frames.append(spark.range(row, row + 1, 1, 1).selectExpr("id AS k", *values))
    frame = reduce(lambda one, other: one.unionAll(other), frames).coalesce(1)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        world = Published(tmp_path, DeltaAppend("t", partition_by=list(PARTITIONS)))
        prepared = world.sink.prepare(frame, world.context, Staging(1, "a"))
        assert world.publish(1, prepared.committable or {}) is not None
        # Delta has no empty partition value: empty text is null, in its own writer, too.
        expected = [row.replace("'text': ''", "'text': None") for row in in_utc(frame.toArrow())]
        read = spark.read.format("delta").load(world.location.url)
        assert in_utc(read.toArrow()) == expected
        assert in_utc(read_table(open_table_at(world.location.url))) == expected
        found = read.where("`zoned` = timestamp'2026-10-25 01:30:00.000001Z' AND `text` IS NULL").select("k").collect()
        assert [row.k for row in found] == [2]
        assert [row.k for row in read.where("`text` = 'a b/c=%é\\'\"'").select("k").collect()] == [0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert queried(world, "\"text\" = 'a b/c=%é''\"'") == [0]
    assert queried(world, '"price" < 0') == [0]


def in_utc(table: pa.Table) -> list[str]:
    """As `shown`, with moments in one zone."""
    return [
        repr(
            {
                name: value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
                for name, value in row.items()
            }
        )
        for row in sorted(table.to_pylist(), key=lambda row: row["k"])
    ]
