"""Rows that are added to a real table of PostgreSQL: each is planned once, however long its transaction runs."""

from __future__ import annotations

import datetime
import threading
from decimal import Decimal

import psycopg
import pytest

from tests.kit.postgres_sinks import CONNECTION, connections
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.records.records import Lag
from tidegate.sources import PostgresTable, SourceContext
from tidegate.testing.source_contract import MemoryBlobs

MAKE = (
    "CREATE TABLE e (id bigint, v text, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    "CREATE INDEX ON e (xid)",
)


@pytest.fixture
def context(place):
    return SourceContext("p", "events", place, MemoryBlobs())


@pytest.fixture
def events(postgres):
    postgres.run(*MAKE)
    return postgres


def source(**changed):
    return PostgresTable("e", connection=CONNECTION, xid_column="xid", **changed)


def ids(postgres, splits):
    where = f"xid >= '{splits['first']}'::xid8 AND xid < '{splits['end']}'::xid8"
    return [id for (id,) in postgres.run(f"SELECT id FROM e WHERE {where} ORDER BY id")]


def test_new_rows_are_planned_once_and_in_order(context, events):
    events.run("INSERT INTO e VALUES (1, 'a')", "INSERT INTO e VALUES (2, 'b')")
    first = source().plan(None, context)
    assert ids(events, first.splits) == [1, 2]
    assert (first.amount, first.is_empty, first.has_more) == (2, False, False)
    nothing = source().plan(first.end, context)
    assert nothing.is_empty
    events.run("INSERT INTO e VALUES (3, 'c')")
    second = source().plan(nothing.end, context)
    assert ids(events, second.splits) == [3]
    assert source().verify(first.splits, context).rows == 2


def test_a_transaction_that_ends_late_is_not_missed(context, events):
    with psycopg.connect(**events.options) as late:
        late.execute("INSERT INTO e VALUES (1, 'late')")
        events.run("INSERT INTO e VALUES (2, 'early')")
        first = source().plan(None, context)
        assert first.is_empty, "what came after the open transaction waits for it"
        late.commit()
    second = source().plan(first.end, context)
    assert ids(events, second.splits) == [1, 2]


def test_writers_at_once_with_rollbacks_and_pauses_lose_and_double_nothing(context, events):
    position, planned = None, []

    def write(number):
        with psycopg.connect(**events.options) as session:
            for turn in range(40):
                session.execute("INSERT INTO e SELECT %s, 'x' FROM generate_series(1, 3)", (number * 1000 + turn,))
                if turn % 7 == number:
                    session.rollback()
                elif turn % 3:
                    session.commit()
            session.commit()

    def plan():
        nonlocal position
        found = source(max_rows=10).plan(position, context)
        position = found.end
        planned.extend(ids(events, found.splits))
        assert source().verify(found.splits, context).rows == found.amount
        return found

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        plan()
    while plan().has_more:
        pass
    assert sorted(planned) == [id for (id,) in events.run("SELECT id FROM e ORDER BY id")]
    assert len(planned) > 200


def test_a_commit_that_is_not_on_the_servers_disk_yet_is_brought_there_first(context, events):
    with psycopg.connect(**events.options, autocommit=True) as session:
        session.execute("SET synchronous_commit = off")
        session.execute("INSERT INTO e VALUES (1, 'a')")
        found = source().plan(None, context)
        flushed = session.execute("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()").fetchone()
    assert ids(events, found.splits) == [1]
    assert flushed == (True,)


def test_a_bound_divides_between_transactions_only(context, events, monkeypatch):
    for id in range(5):
        events.run(f"INSERT INTO e SELECT {id}, 'x' FROM generate_series(1, 4)")
    found = source(max_rows=10).plan(None, context)
    assert (found.amount, found.has_more, found.lag) == (8, True, Lag(rows=12))
    monkeypatch.setattr("tidegate.connectors.postgres.source._COUNTED", 3)
    estimated = source(max_rows=10).plan(None, context).lag
    assert estimated is not None
    assert estimated.rows is not None
    assert estimated.rows >= 3, "the server's own estimate, of a table that it has no statistics of"
    smaller = source().plan(found.end, SourceContext("p", "events", context.place, MemoryBlobs(), at_most=2))
    assert (ids(events, smaller.splits), smaller.has_more) == ([2] * 4, True)
    assert ids(events, source().plan(smaller.end, context).splits) == [3] * 4 + [4] * 4


def test_transactions_are_read_in_the_order_of_their_numbers_when_these_get_another_digit(context, events):
    events.run("INSERT INTO e VALUES (1, 'a', '98'), (2, 'b', '99'), (3, 'c', '100'), (4, 'd', '101')")
    whole = source().plan(None, context)
    assert ids(events, whole.splits) == [1, 2, 3, 4]
    assert source().verify(whole.splits, context).rows == 4
    position, read = None, []
    for _ in range(4):
        one = source(max_rows=1).plan(position, context)
        position = one.end
        read.append(ids(events, one.splits))
    assert read == [[1], [2], [3], [4]]


def test_latest_begins_with_what_comes_after_the_first_look(context, events):
    events.run("INSERT INTO e VALUES (1, 'a')")
    beginning = source(start="latest").beginning(context)
    events.run("INSERT INTO e VALUES (2, 'b')")
    assert ids(events, source(start="latest").plan(beginning, context).splits) == [2]
    assert source().beginning(context) is None


def test_latest_leaves_out_what_was_committed_before_the_first_look_beside_a_long_transaction(spark, context, events):
    with psycopg.connect(**events.options) as long:
        long.execute("INSERT INTO e VALUES (1, 'ends after the first look')")
        events.run("INSERT INTO e VALUES (2, 'was there at the first look')")
        latest = source(start="latest", max_rows=1)
        position = latest.beginning(context)
        events.run("INSERT INTO e VALUES (3, 'came after it')")
        long.commit()
    seen = []
    while not (found := latest.plan(position, context)).is_empty:
        assert latest.verify(found.splits, context).rows == found.amount
        seen += [row["id"] for row in latest.read(spark, found.splits, context).collect()]
        position = found.end
    assert seen == [1, 3]
    assert "seen" not in position, "nothing that was there at the first look can come any more"


def test_a_position_of_an_older_version_is_read_on_and_then_says_what_was_read_last(context, events):
    events.run("INSERT INTO e VALUES (1, 'a')")
    end = source().plan(None, context).end
    horizon = events.run("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0][0]
    old = {"system": end["system"], "table": end["table"], "xid": horizon}
    assert source().plan(old, context).end == old
    events.run("INSERT INTO e VALUES (2, 'b')")
    found = source().plan(old, context)
    assert ids(events, found.splits) == [2]
    assert found.end["last"]["rows"] == 1
    until = SourceContext(
        "p", "events", context.place, MemoryBlobs(), stop_position=old | {"xid": found.end["xid"] + 5}
    )
    for _ in range(5):
        events.run("SELECT pg_current_xact_id()")
    reached = source().plan(old, until).end
    assert source().covers(reached, until.stop_position, context), "as far as a checkpoint of an older version"


def test_a_column_that_has_got_the_name_of_another_one_since_the_plan_is_told(context, events):
    events.run("ALTER TABLE e ADD COLUMN w text", "INSERT INTO e VALUES (1, 'a')")
    splits = source(columns=["v"]).plan(None, context).splits
    events.run("ALTER TABLE e DROP COLUMN v", "ALTER TABLE e RENAME COLUMN w TO v")
    with pytest.raises(Invalid, match="'v' is now the name of another column"):
        source(columns=["v"]).verify(splits, context)


def test_a_row_that_is_gone_when_it_is_read_is_told(context, events):
    events.run("INSERT INTO e VALUES (1, 'a'), (2, 'b')")
    splits = source().plan(None, context).splits
    events.run("DELETE FROM e WHERE id = 1")
    with pytest.raises(Invalid, match="has 1 rows of transactions") as refused:
        source().verify(splits, context)
    assert refused.value.reason == "ROWS_CHANGED"


def test_a_table_that_was_made_again_is_told(context, events):
    events.run("INSERT INTO e VALUES (1, 'a')")
    found = source().plan(None, context)
    events.run("DROP TABLE e", *MAKE)
    for look in (lambda: source().plan(found.end, context), lambda: source().verify(found.splits, context)):
        with pytest.raises(Invalid, match="is not the table that was read before") as refused:
            look()
        assert refused.value.reason == "TABLE_REPLACED"


def test_a_column_that_has_changed_since_the_plan_is_told(context, events):
    events.run("INSERT INTO e VALUES (1, 'a')")
    splits = source().plan(None, context).splits
    events.run("ALTER TABLE e DROP COLUMN v")
    with pytest.raises(Invalid, match="'v' was text and no longer exists"):
        source().verify(splits, context)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("SELECT 1", "NO_TABLE"),
        ("CREATE TABLE e (id int)", "NO_XID_COLUMN"),
        ("CREATE TABLE e (id int, xid bigint NOT NULL DEFAULT 1)", "NO_XID_COLUMN"),
        ("CREATE TABLE e (id int, xid xid8 NOT NULL)", "NO_XID_COLUMN"),
        ("CREATE TABLE e (id int, xid xid8 DEFAULT pg_current_xact_id())", "NO_XID_COLUMN"),
        ("CREATE TABLE e (id int, xid xid8 NOT NULL DEFAULT pg_current_xact_id())", "NO_INDEX"),
    ],
)
def test_a_table_whose_ranges_could_not_be_read_again_is_refused_with_what_to_do(context, postgres, table, reason):
    postgres.run(table)
    with pytest.raises(Invalid) as refused:
        source().plan(None, context)
    assert refused.value.reason == reason
    if reason == "NO_INDEX":
        postgres.run(refused.value.help)
        assert source().plan(None, context).is_empty


def test_a_column_that_the_table_lacks_is_told(context, events):
    with pytest.raises(Invalid, match="has no column 'w'"):
        source(columns=["id", "w"]).plan(None, context)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"xid_column": ""}, "xid_column is ''"),
        ({"columns": []}, "columns is []"),
        ({"columns": ["a", "a"]}, "each once"),
        ({"as_text": "a"}, "as_text is 'a'"),
        ({"start": "now"}, "'beginning' or 'latest'"),
        ({"max_rows": 0}, "max_rows is 0"),
    ],
)
def test_every_problem_of_a_declaration_is_told(changed, said):
    arguments = {"connection": CONNECTION, "xid_column": "xid"} | changed
    assert any(said in problem for problem in PostgresTable("e", **arguments).problems())


def test_a_description_holds_no_secret(context, events):
    assert "password" not in str(source().describe())
    assert events.options["password"] not in str(source().plan(None, context))


READ = [
    ("boolean", "true", "boolean", True),
    ("smallint", "-1", "smallint", -1),
    ("integer", "7", "int", 7),
    ("bigint", "9223372036854775807", "bigint", 9223372036854775807),
    ("real", "0.5", "float", 0.5),
    ("double precision", "'-Infinity'", "double", float("-inf")),
    ("numeric(38,3)", "-99999999999999999999999999999999999.999", "decimal(38,3)", Decimal("-" + "9" * 35 + ".999")),
    ("numeric(39,0)", "9" * 39, "string", "9" * 39),
    ("numeric", "1.1000000000000000000000000000000000000000001", "string", "1." + "1" + "0" * 41 + "1"),
    ("text", "'é'", "string", "é"),
    ("varchar(5)", "'abc'", "string", "abc"),
    ("uuid", "'00000000-0000-0000-0000-00000000000a'", "string", "00000000-0000-0000-0000-00000000000a"),
    ("jsonb", """'{"a": [1]}'""", "string", '{"a": [1]}'),
    ("interval", "'1 day'", "string", "1 day"),
    ("bytea", "'\\x00ff'", "binary", bytearray(b"\x00\xff")),
    ("date", "'0001-01-01'", "date", datetime.date(1, 1, 1)),
    (
        "timestamptz",
        "'2026-01-02 03:04:05.678901+00'",
        "timestamp",
        datetime.datetime.fromisoformat("2026-01-02 03:04:05.678901"),
    ),
    (
        "timestamp(3)",
        "'2026-01-02 03:04:05.678'",
        "timestamp_ntz",
        datetime.datetime.fromisoformat("2026-01-02 03:04:05.678"),
    ),
    ("integer[]", "'{1,NULL}'", "array<int>", [1, None]),
    ("text[]", "'{\"a,\",NULL}'", "array<string>", ["a,", None]),
    ("date[]", "'{2026-01-02}'", "array<date>", [datetime.date(2026, 1, 2)]),
    ("numeric(5,2)[]", "'{1.10}'", "string", "{1.10}"),
]


def test_every_type_is_read_as_the_guide_says(spark, context, events):
    kinds = ", ".join(f"c{number} {kind}, n{number} {kind}" for number, (kind, _, _, _) in enumerate(READ))
    values = ", ".join(f"{value}, NULL" for _, value, _, _ in READ)
    names = ", ".join(f"c{number}, n{number}" for number in range(len(READ)))
    events.run("DROP TABLE e", MAKE[0].replace("id bigint, v text", kinds), MAKE[1])
    events.run(f"INSERT INTO e ({names}) VALUES ({values})")
    splits = source().plan(None, context).splits
    frame = source().read(spark, splits, context)
    (row,) = frame.collect()
    for number, (kind, _, read_as, value) in enumerate(READ):
        assert (kind, frame.schema[f"c{number}"].dataType.simpleString()) == (kind, read_as)
        assert (kind, row[f"c{number}"], row[f"n{number}"]) == (kind, value, None)
    assert source().read(spark, splits, context).collect() == [row]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("timestamptz", "'infinity'", "infinity"),
        ("timestamp", "'-infinity'", "-infinity"),
        ("timestamptz", "'294276-01-01 00:00:00+00'", "294276-01-01 00:00:00+00"),
        ("date", "'infinity'", "infinity"),
        ("numeric(10,2)", "'NaN'", "NaN"),
        ("date[]", "'{2026-01-02,infinity}'", "{2026-01-02,infinity}"),
        ("timestamptz[]", "'{infinity}'", "{infinity}"),
        ("int[]", "'{{1,2},{3,4}}'", "{{1,2},{3,4}}"),
    ],
)
def test_a_value_that_spark_does_not_have_is_told_and_can_be_read_as_text(spark, context, events, kind, value, text):
    events.run(
        f"ALTER TABLE e ADD COLUMN c {kind}",
        f"INSERT INTO e (id, c) VALUES (1, NULL), (2, {value})",
    )
    splits = source().plan(None, context).splits
    with pytest.raises(Invalid, match=r"values that cannot be read.*column 'c'") as refused:
        source().verify(splits, context)
    assert refused.value.reason == "BAD_VALUES"
    assert "as_text=['c']" in refused.value.help
    reading = source(as_text=["c"])
    splits = reading.plan(None, context).splits
    reading.verify(splits, context)
    rows = reading.read(spark, splits, context).collect()
    assert sorted((row["id"], row["c"]) for row in rows) == [(1, None), (2, text)]


def test_texts_are_the_same_however_the_session_is_set(spark, events, context, tmp_path):
    events.run(
        "ALTER TABLE e ADD COLUMN c timestamptz, ADD COLUMN i interval",
        "INSERT INTO e (id, c, i) VALUES (1, '2026-01-02 03:04:05+00', '1 day 2 hours')",
    )
    options = {"options": "-c TimeZone=Asia/Tokyo -c DateStyle=German -c IntervalStyle=iso_8601"}
    set_otherwise = SourceContext("p", "e", Place(str(tmp_path), connections=connections(events, **options)), None)
    reading = source(columns=["c", "i"], as_text=["c"])
    splits = reading.plan(None, context).splits
    (row,) = reading.read(spark, splits, set_otherwise).collect()
    assert tuple(row) == ("2026-01-02 03:04:05+00", "1 day 02:00:00")


def test_times_at_the_edges_are_read_as_they_are(spark, context, events):
    moments = ["0044-03-15 00:00:00 BC", "0001-01-01 00:00:00", "20000-01-01 00:00:00", "294246-12-31 23:59:59.999999"]
    values = ", ".join(f"({number}, '{moment}')" for number, moment in enumerate(moments))
    events.run("ALTER TABLE e ADD COLUMN c timestamp", f"INSERT INTO e (id, c) VALUES {values}")
    splits = source().plan(None, context).splits
    source().verify(splits, context)
    frame = source().read(spark, splits, context).selectExpr("id", "cast(c AS string) AS c").orderBy("id")
    assert [row["c"] for row in frame.collect()] == [
        "-0043-03-15 00:00:00",
        "0001-01-01 00:00:00",
        "+20000-01-01 00:00:00",
        "+294246-12-31 23:59:59.999999",
    ]


def test_a_server_that_was_put_back_to_an_earlier_time_is_told(context, events):
    """Its next transactions have ids that were read before: their rows would never be read."""
    events.run("INSERT INTO e VALUES (1, 'a')")
    end = source().plan(None, context).end
    with pytest.raises(Invalid, match="to an earlier time") as refused:
        source().plan(end | {"xid": end["xid"] + 1000}, context)
    assert refused.value.reason == "TABLE_REPLACED"


def test_an_empty_range_has_all_columns(spark, context, events):
    splits = source(columns=["v"]).plan(None, context).splits
    frame = source().read(spark, splits, context)
    assert (frame.columns, frame.count()) == (["v"], 0)


def test_another_server_is_told(context, events, tmp_path):
    events.run("INSERT INTO e VALUES (1, 'a')")
    end = source().plan(None, context).end
    with pytest.raises(Invalid, match="restored, elsewhere"):
        source().plan(end | {"system": "1"}, context)
    away = Place(str(tmp_path), connections=connections(events, password="wr0ng"))
    with pytest.raises(Invalid) as refused:
        source().plan(None, SourceContext("p", "events", away, MemoryBlobs()))
    assert refused.value.reason == "BAD_LOGIN"
