"""Every type of Spark in a real PostgreSQL, staged by a real Spark: exactly there, or refused before it is staged."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest

from tests.kit.postgres_sinks import CONNECTION, PostgresPublished
from tidegate.connectors.sink import Publication, Staging
from tidegate.errors import Invalid
from tidegate.sinks import PostgresAppend, PostgresUpsert


class StagingSink:
    """A sink that stages with Spark."""

    def __init__(self, folder, place, spark, sink=None):
        self.spark = spark
        self.published = PostgresPublished(folder, place, sink or PostgresAppend("t", connection=CONNECTION))
        self.sink, self.context = self.published.sink, self.published.context

    def prepare(self, sql, id=1, withdrawn=None):
        frame, staging = self.spark.sql(sql), Staging(id, "a")
        if withdrawn is not None:
            return self.sink.prepare_with_retractions(frame, self.spark.sql(withdrawn), self.context, staging)
        return self.sink.prepare(frame, self.context, staging)

    def load(self, sql, id=1, withdrawn=None):
        prepared = self.prepare(sql, id, withdrawn)
        head = self.sink.head(self.context)
        publication = Publication(id, 0, "m", head.last_entry, (prepared.committable,))
        assert self.sink.publish(publication, head, self.context) is not None
        return prepared


@pytest.fixture
def world(tmp_path, place, spark):
    return lambda sink=None: StagingSink(tmp_path, place, spark, sink)


MOMENT = datetime.datetime.fromisoformat("2026-01-02 03:04:05.678901")
UTC = datetime.UTC
WIDE = "-99999999999999999999999999999999999.999"

VALUES = [
    ("true", "boolean", True),
    ("cast(-128 AS tinyint)", "smallint", -128),
    ("cast(-32768 AS smallint)", "smallint", -32768),
    ("-2147483648", "integer", -2147483648),
    ("9223372036854775807L", "bigint", 9223372036854775807),
    ("cast('NaN' AS float)", "real", "NaN"),
    ("cast('-Infinity' AS double)", "double precision", "-Infinity"),
    ("0.1D", "double precision", 0.1),
    (
        "cast('-99999999999999999999999999999999999.999' AS decimal(38,3))",
        "numeric(38,3)",
        Decimal("-" + "9" * 35 + ".999"),
    ),
    ("cast('1.10' AS decimal(5,2))", "numeric(5,2)", Decimal("1.10")),
    ("'é\"\\\\ 🌊'", "text", 'é"\\ 🌊'),
    ("''", "text", ""),
    ("X'00FF'", "bytea", b"\x00\xff"),
    ("DATE'0001-01-01'", "date", datetime.date(1, 1, 1)),
    ("DATE'9999-12-31'", "date", datetime.date(9999, 12, 31)),
    ("TIMESTAMP'2026-01-02 03:04:05.678901 UTC'", "timestamp with time zone", MOMENT.replace(tzinfo=UTC)),
    ("TIMESTAMP_NTZ'2026-01-02 03:04:05.678901'", "timestamp without time zone", MOMENT),
    ("array(1, NULL, 3)", "integer[]", [1, None, 3]),
    ("array('a,\"', NULL, '')", "text[]", ['a,"', None, ""]),
    ("cast(array() AS array<bigint>)", "bigint[]", []),
    ("array(1.10BD)", "numeric(3,2)[]", [Decimal("1.10")]),
    ("array(true)", "boolean[]", [True]),
    ("array(0.5D)", "double precision[]", [0.5]),
    ("array(X'00')", "bytea[]", [b"\x00"]),
    ("array(DATE'2026-01-02')", "date[]", [datetime.date(2026, 1, 2)]),
    ("array(TIMESTAMP_NTZ'2026-01-02 03:04:05.678901')", "timestamp without time zone[]", [MOMENT]),
    ("array(TIMESTAMP'2026-01-02 03:04:05.678901 UTC')", "timestamp with time zone[]", [MOMENT.replace(tzinfo=UTC)]),
    ("array(array(1), array(2, 3))", "jsonb", [[1], [2, 3]]),
    ("map('a', 1, 'b', NULL)", "jsonb", {"a": 1, "b": None}),
    (
        "named_struct('n', CAST(NULL AS int), 's', '\\\\u0000 \"', 'd', 1.10BD, 'at', "
        "TIMESTAMP_NTZ'2026-01-02 03:04:05.678901', 'in', array(named_struct('x', true)))",
        "jsonb",
        {"n": None, "s": '\\u0000 "', "d": 1.1, "at": "2026-01-02T03:04:05.678901", "in": [{"x": True}]},
    ),
    (
        "named_struct('at', TIMESTAMP'2026-01-02 03:04:05.678901 UTC')",
        "jsonb",
        {"at": "2026-01-02T03:04:05.678901Z"},
    ),
]


@pytest.mark.parametrize("through", ["copied", "through the temporary table"])
def test_every_type_arrives_exactly(world, postgres, through):
    """The second way is that of upserts, and of tables whose columns are of other types."""
    columns = [f"{sql} AS c{number}, IF(false, {sql}, NULL) AS n{number}" for number, (sql, _, _) in enumerate(VALUES)]
    sink = PostgresUpsert("t", connection=CONNECTION, keys=["k"]) if through != "copied" else None
    made = world(sink)
    chosen = [
        column for column, (_, kind, _) in zip(columns, VALUES, strict=True) if through != "copied" or kind != "jsonb"
    ]
    made.load(f"SELECT 1 AS k, {', '.join(chosen)}")
    types = dict(
        postgres.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 't'::regclass AND attnum > 0"
        )
    )
    for number, (sql, kind, value) in enumerate(VALUES):
        if f"c{number}" not in types:
            continue
        assert (sql, types[f"c{number}"], types[f"n{number}"]) == (sql, kind, kind)
        column = f"c{number}::text" if isinstance(value, str) else f"c{number}"
        assert (sql, postgres.run(f"SELECT {column}, n{number} FROM t")) == (sql, [(value, None)])


@pytest.mark.parametrize(
    "sql",
    [
        "INTERVAL '1' DAY",
        "INTERVAL '1' MONTH",
        "NULL",
        "map(1, 'a')",
        "named_struct('a', INTERVAL '1' DAY)",
        "parse_json('{}')",
    ],
)
def test_a_type_that_postgres_cannot_hold_exactly_is_refused_before_anything_is_staged(world, sql):
    made = world()
    with pytest.raises(Invalid, match="'c' is .*for which PostgreSQL has no exact type") as refused:
        made.prepare(f"SELECT {sql} AS c")
    assert refused.value.reason == "BAD_OUTPUT"
    assert made.sink.attempts(1, made.context) == []


@pytest.mark.parametrize(
    ("sql", "table", "said"),
    [
        ("concat('a', char(0)) AS v", None, "column 'v' contains a zero byte"),
        ("cast(X'FF' AS string) AS v", None, "column 'v' is not valid UTF-8"),
        ("array('b', concat('a', char(0))) AS v", None, "column 'v' contains a text with a zero byte"),
        ("named_struct('a', char(0)) AS v", None, "column 'v' contains a zero byte"),
        ("'four' AS v", "v varchar(3)", "column 'v' is longer than 3 characters"),
        ("'four' AS v", "v uuid", "column 'v' is not a uuid"),
        ("40000 AS v", "v smallint", "column 'v' does not fit smallint"),
        ("-3000000000L AS v", "v integer", "column 'v' does not fit integer"),
        ("100BD AS v", "v numeric(3,1)", r"column 'v' does not fit numeric\(3,1\)"),
        ("-1000L AS v", "v numeric(3,0)", r"column 'v' does not fit numeric\(3,0\)"),
        ("-9223372036854775808L AS v", "v numeric(18,0)", r"column 'v' does not fit numeric\(18,0\)"),
        ("1.25BD AS v", "v numeric(3,1)", r"column 'v' does not fit numeric\(3,1\)"),
        ("0.1BD AS v", "v numeric(38,0)", r"column 'v' does not fit numeric\(38,0\)"),
        ("0 AS v", "v int CHECK (v > 0)", "the constraint 't_v_check' does not hold: .v > 0."),
        ("cast(NULL AS string) AS v", "v text NOT NULL", "column 'v' is null, and must not be"),
        ("date_from_unix_date(-2440589) AS v", None, "column 'v' is before 4714 BC"),
        ("date_from_unix_date(2145042906) AS v", None, "column 'v' is before 4714 BC or after 5874897 AD"),
        ("timestamp_micros(-210866803200000001) AS v", None, "column 'v' is before 4714 BC"),
        ("cast('-4714-12-31 23:59:59' AS timestamp_ntz) AS v", None, "column 'v' is before 4714 BC"),
        ("array(NULL, date_from_unix_date(-2440589)) AS v", None, "column 'v' is before 4714 BC"),
    ],
)
def test_a_row_that_the_table_would_refuse_is_refused_while_it_is_staged(world, postgres, sql, table, said):
    if table:
        postgres.run(f"CREATE TABLE t ({table})")
    made = world()
    with pytest.raises(Invalid, match=said) as refused:
        made.prepare(f"SELECT {sql}")
    assert refused.value.reason == "BAD_ROWS"


def test_rows_that_look_like_those_are_taken(world, postgres):
    postgres.run(
        "CREATE TABLE t (v varchar(3) NOT NULL, u uuid, j json, i smallint, d numeric(3,1), l numeric(18,0), "
        "m numeric(38,10), CHECK (i < 0))"
    )
    world().load(
        "SELECT 'äöü' AS v, upper(uuid()) AS u, named_struct('a', CAST(NULL AS int)) AS j, -32768L AS i, "
        "CAST(-99.9 AS decimal(20,5)) AS d, 999999999999999999L AS l, CAST(0.1 AS decimal(38,18)) AS m"
    )
    found = postgres.run("SELECT v, j, i, d, l, m FROM t")
    numbers = (-32768, Decimal("-99.9"), 999999999999999999, Decimal("0.1"))
    assert found == [("äöü", {"a": None}, *numbers)]


def test_an_output_that_does_not_fit_is_refused_before_anything_is_staged(world, postgres):
    postgres.run("CREATE TABLE t (k integer, v text, w date NOT NULL)")
    made = world()
    with pytest.raises(Invalid) as refused:
        made.prepare("SELECT 1L AS k, 'a' AS v, 'b' AS extra, 'c' AS Extra")
    assert "'Extra' occurs twice" in refused.value.what
    with pytest.raises(Invalid) as refused:
        made.prepare("SELECT 1.5D AS k, 'a' AS v, 'b' AS extra")
    for said in (
        "'k' is double precision; the table has integer",
        "'extra' (text) is not in the table",
        "'w' (date, not null, no default) is in the table, but not in the output",
    ):
        assert said in refused.value.what
    assert made.sink.attempts(1, made.context) == []


@pytest.mark.parametrize(
    ("arguments", "sql", "said"),
    [
        ({"keys": ["x"]}, "SELECT 1 AS k", "key column 'x' is not in the output"),
        ({"keys": ["k"]}, "SELECT 1.5D AS k", "'k' is double: keys need a type with plain equality"),
        ({"keys": ["k"], "order_by": ["o"]}, "SELECT 1 AS k, array(1) AS o", "'o' is array<int>, which has no order"),
    ],
)
def test_columns_that_the_declaration_names_must_be_there(world, arguments, sql, said):
    with pytest.raises(Invalid, match=said):
        world(PostgresUpsert("t", connection=CONNECTION, **arguments)).prepare(sql)


def test_an_upsert_keeps_the_newest_row_of_a_key_and_refuses_contradictions(world, postgres):
    made = world(PostgresUpsert("t", connection=CONNECTION, keys=["k"], order_by=["o"], delete_when="d", omit=["d"]))
    rows = (
        "SELECT * FROM VALUES (1, 1, false), (1, 3, false), (1, 2, false), (2, 5, true), (2, 4, false), (3, 1, false)"
    )
    prepared = made.load(f"{rows} AS t(k, o, d)")
    assert prepared.rows == 3
    assert postgres.run("SELECT k, o FROM t ORDER BY k") == [(1, 3), (3, 1)]
    made.load("SELECT * FROM VALUES (1, 3, true), (1, 3, true), (3, 0, true), (4, NULL, NULL) AS t(k, o, d)", id=2)
    assert postgres.run("SELECT k, o FROM t ORDER BY k") == [(3, 1), (4, None)]
    with pytest.raises(Invalid, match="1 rows contradict another row with the same key") as refused:
        made.prepare("SELECT * FROM VALUES (1, 3, true), (1, 3, false) AS t(k, o, d)", id=3)
    assert refused.value.reason == "DUPLICATE_KEYS"


def test_an_upsert_of_a_stream_that_replaces_rows_removes_what_it_withdraws(world, postgres):
    made = world(PostgresUpsert("t", connection=CONNECTION, keys=["k"]))
    made.load("SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(k, v)")
    made.load(
        "SELECT * FROM VALUES (2, 'B'), (3, 'c') AS t(k, v)",
        id=2,
        withdrawn="SELECT * FROM VALUES (1, 'a'), (2, 'b'), (CAST(NULL AS int), 'x') AS t(k, v)",
    )
    assert postgres.run("SELECT k, v FROM t ORDER BY k") == [(2, "B"), (3, "c")]


def test_a_null_key_is_refused(world):
    made = world(PostgresUpsert("t", connection=CONNECTION, keys=["k"]))
    with pytest.raises(Invalid, match="column 'k' is null, and must not be"):
        made.prepare("SELECT CAST(NULL AS int) AS k, 1 AS v")


def test_times_at_the_edges_of_what_postgres_knows_arrive(world, postgres):
    world().load(
        "SELECT date_from_unix_date(-2440588) AS a, date_from_unix_date(2145042905) AS b, "
        "timestamp_micros(-210866803200000000) AS c, cast('-4713-11-24 00:00:00' AS timestamp_ntz) AS d, "
        "timestamp_micros(9223372036854775807) AS e, array(NULL, date_from_unix_date(-2440588)) AS f"
    )
    (row,) = postgres.run(
        "SELECT a::text, b::text, (c AT TIME ZONE 'UTC')::text, d::text, e > '294246-01-01', f::text FROM t"
    )
    first = "4714-11-24 00:00:00 BC"
    assert row == ("4714-11-24 BC", "5874897-12-31", first, first, True, '{NULL,"4714-11-24 BC"}')


def test_two_texts_that_are_one_uuid_are_one_key(world, postgres):
    """Otherwise they are two rows until they are loaded, when it is too late to refuse them."""
    postgres.run("CREATE TABLE t (k uuid PRIMARY KEY, o int)")
    made = world(PostgresUpsert("t", connection=CONNECTION, keys=["k"], order_by=["o"]))
    one = "00000000-0000-0000-0000-00000000000a"
    made.load(f"SELECT * FROM VALUES ('{one}', 1), (upper('{one}'), 2) AS t(k, o)")
    assert postgres.run("SELECT k::text, o FROM t") == [(one, 2)]
    with pytest.raises(Invalid, match="contradict") as refused:
        world(PostgresUpsert("t", connection=CONNECTION, keys=["k"])).prepare(
            f"SELECT * FROM VALUES ('{one}', 1), (upper('{one}'), 2) AS t(k, o)", id=2
        )
    assert refused.value.reason == "DUPLICATE_KEYS"


def test_a_key_that_no_index_holds_is_refused_while_it_is_staged(world):
    made = world(PostgresUpsert("t", connection=CONNECTION, keys=["a", "b"]))
    made.load("SELECT repeat('ä', 1000) AS a, repeat('b', 600) AS b")
    with pytest.raises(Invalid, match="column 'a' has more than 2600 bytes with all other keys") as refused:
        made.prepare("SELECT repeat('ä', 1000) AS a, repeat('b', 601) AS b", id=2)
    assert refused.value.reason == "BAD_ROWS"


def test_no_rows_are_nothing_to_publish(world):
    assert world().prepare("SELECT 1 AS k WHERE false").committable is None
    keeping = world(PostgresUpsert("t", connection=CONNECTION, keys=["k"], delete_when="false"))
    assert keeping.prepare("SELECT 1 AS k WHERE false", id=2).committable is None
