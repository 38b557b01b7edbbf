"""All changes of a real table of PostgreSQL, from a logical slot: each once, and the same when they are read again."""

from __future__ import annotations

import datetime
import threading
from collections import Counter
from decimal import Decimal

import psycopg
import pytest

from tests.kit.postgres_sinks import CONNECTION
from tests.kit.waiting import eventually
from tidegate.errors import Invalid, Unavailable
from tidegate.sources import PostgresChanges, SourceContext
from tidegate.testing.source_contract import MemoryBlobs

SLOT = "tidegate_orders"


@pytest.fixture
def context(place):
    return SourceContext("p", "orders", place, MemoryBlobs())


@pytest.fixture
def orders(postgres):
    drop = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    postgres.run(
        drop,
        "DROP PUBLICATION IF EXISTS orders",
        "CREATE TABLE o (k bigint PRIMARY KEY, v text)",
        "CREATE TABLE other (k bigint PRIMARY KEY)",
        "CREATE PUBLICATION orders FOR TABLE o, other",
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
    )
    yield postgres
    postgres.run(drop, "DROP PUBLICATION IF EXISTS orders")


def source(**changed):
    return PostgresChanges("o", connection=CONNECTION, slot=SLOT, publication="orders", **changed)


def read(spark, context, splits):
    source().verify(splits, context)
    rows = source().read(spark, splits, context).collect()
    return [(row["_change_type"], row["k"], row["v"]) for row in sorted(rows, key=place_of)]


def place_of(row):
    return row["_commit_lsn"], row["_change_number"], row["_change_type"] != "update_preimage"


def test_changes_arrive_once_and_are_read_again_as_they_were(spark, context, orders):
    beginning = source().beginning(context)
    orders.run(
        "INSERT INTO o VALUES (1, 'a'), (2, 'b')",
        "UPDATE o SET v = 'A' WHERE k = 1",
        "BEGIN; INSERT INTO o VALUES (9, 'x'); INSERT INTO other VALUES (1); ROLLBACK",
        "INSERT INTO other VALUES (2)",
        "UPDATE o SET k = 3 WHERE k = 2",
        "DELETE FROM o WHERE k = 3",
    )
    first = source().plan(beginning, context)
    assert not first.is_empty
    expected = [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("update_postimage", 1, "A"),
        ("update_preimage", 2, None),
        ("update_postimage", 3, "b"),
        ("delete", 3, None),
    ]
    assert read(spark, context, first.splits) == expected
    orders.run("INSERT INTO o VALUES (4, 'd')", "TRUNCATE o")
    assert read(spark, context, first.splits) == expected
    second = source().plan(first.end, context)
    assert read(spark, context, second.splits) == [("insert", 4, "d"), ("truncate", None, None)]
    assert source().plan(None, context).splits["first"] == beginning["lsn"]


def test_with_full_replica_identity_every_value_is_known(spark, context, orders):
    orders.run(
        "ALTER TABLE o REPLICA IDENTITY FULL", "INSERT INTO o VALUES (1, 'a')", "UPDATE o SET v = 'A'", "DELETE FROM o"
    )
    assert read(spark, context, source().plan(None, context).splits) == [
        ("insert", 1, "a"),
        ("update_preimage", 1, "a"),
        ("update_postimage", 1, "A"),
        ("delete", 1, "A"),
    ]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_long_value_that_does_not_change_is_named_instead_of_being_null(spark, context, orders, identity):
    orders.run(
        f"ALTER TABLE o ADD COLUMN n int, REPLICA IDENTITY {identity}",
        "ALTER TABLE o ALTER COLUMN v SET STORAGE EXTERNAL",
    )
    orders.run("INSERT INTO o VALUES (1, repeat('x', 5000), 1)", "UPDATE o SET n = 2")
    splits = source().plan(None, context).splits
    rows = source().read(spark, splits, context).where("_change_type = 'update_postimage'").collect()
    assert [(len(row["v"] or ""), row["n"], row["_unchanged"]) for row in rows] == [
        (5000, 2, []) if identity == "FULL" else (0, 2, ["v"])
    ]


def test_writers_at_once_with_rollbacks_lose_and_double_nothing(spark, context, orders):
    def write(number):
        with psycopg.connect(**orders.options) as session:
            for turn in range(30):
                session.execute("INSERT INTO o VALUES (%s, 'x')", (number * 1000 + turn,))
                if turn % 7 == number:
                    session.rollback()
                elif turn % 3:
                    session.commit()
            session.commit()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    position, ranges = source().beginning(context), []

    def plan(**bounds):
        nonlocal position
        ranges.append(source(**bounds).plan(position, context))
        position = ranges[-1].end
        return ranges[-1]

    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        plan(max_bytes=3000)
    while not plan(max_bytes=20_000).is_empty:  # at least once, also if the writers were done before the first plan
        pass
    seen = Counter(k for found in ranges for _, k, _ in read(spark, context, found.splits))
    assert seen == Counter(k for (k,) in orders.run("SELECT k FROM o"))
    assert len(seen) > 80


def test_the_slot_moves_when_retention_lets_go_and_an_older_range_is_then_refused(spark, context, orders):
    orders.run("INSERT INTO o VALUES (1, 'a')")
    first = source().plan(None, context)
    orders.run("INSERT INTO o VALUES (2, 'b')")
    second = source().plan(first.end, context)
    source().release(first.end, context)
    assert read(spark, context, second.splits) == [("insert", 2, "b")]
    for look in (
        lambda: source().verify(first.splits, context),
        lambda: source().read(spark, first.splits, context),
        lambda: source().plan({**first.end, "lsn": first.splits["first"]}, context),
    ):
        with pytest.raises(Invalid, match="keeps changes from") as refused:
            look()
        assert refused.value.reason == "SLOT_ADVANCED"
    source().release(first.end, context)  # told twice
    assert read(spark, context, second.splits) == [("insert", 2, "b")]


def test_a_slot_that_the_server_has_given_up_is_told(context, orders):
    orders.run("INSERT INTO o VALUES (1, 'a')")
    found = source().plan(None, context)
    orders.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for _ in range(6):
            orders.run(
                "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)", "DROP TABLE filler"
            )
            orders.run("SELECT pg_switch_wal()", "CHECKPOINT")
        with pytest.raises(Invalid, match="has given up slot") as refused:
            source().verify(found.splits, context)
        assert refused.value.reason == "SLOT_LOST"
    finally:
        orders.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_a_slot_that_somebody_else_reads_is_waited_for_and_then_told(spark, context, orders, monkeypatch):
    monkeypatch.setattr("tidegate.connectors.postgres.changes._BUSY_SECONDS", 0.2)
    orders.run("INSERT INTO o SELECT n, 'x' FROM generate_series(1, 1000) n")
    splits = source().plan(None, context).splits
    with psycopg.connect(**orders.options, autocommit=True, replication="database") as other:
        start = f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 (proto_version '1', publication_names 'orders')"
        other.pgconn.send_query(start.encode())
        eventually("the slot is read", lambda: is_read(orders))
        with pytest.raises(Unavailable, match="is in use by another session") as refused:
            source().read(spark, splits, context)
        assert refused.value.reason == "SLOT_BUSY"
        other.pgconn.finish()
    eventually("the server has noticed", lambda: not is_read(orders))  # until then the slot cannot be dropped


def is_read(server):
    """Whether somebody reads the slot."""
    return server.run(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'") == [(True,)]


def test_columns_have_the_types_that_the_guide_names(spark, context, orders):
    orders.run(
        "ALTER TABLE o ADD COLUMN b boolean, ADD COLUMN n numeric(10,2), ADD COLUMN f double precision, "
        "ADD COLUMN y bytea, ADD COLUMN d date, ADD COLUMN tz timestamptz, ADD COLUMN t timestamp, "
        "ADD COLUMN a text[], ADD COLUMN j jsonb",
        "SET TimeZone = 'Asia/Tokyo'",
        "INSERT INTO o VALUES (1, 'é', true, 1.10, 'NaN', '\\x00ff', '2026-01-02', '2026-01-02 03:04:05.678901+00', "
        "'2026-01-02 03:04:05', '{a,NULL}', '{\"x\": 1}')",
    )
    (row,) = source().read(spark, source().plan(None, context).splits, context).collect()
    assert str(row["f"]) == "nan"
    assert [row[name] for name in ["k", "v", "b", "n", "y", "d", "tz", "t", "a", "j"]] == [
        1,
        "é",
        True,
        Decimal("1.10"),
        bytearray(b"\x00\xff"),
        datetime.date(2026, 1, 2),
        datetime.datetime.fromisoformat("2026-01-02 03:04:05.678901"),
        datetime.datetime.fromisoformat("2026-01-02 03:04:05"),
        ["a", None],
        '{"x": 1}',
    ]
    assert abs(row["_commit_timestamp"] - datetime.datetime.now(datetime.UTC).replace(tzinfo=None)).days == 0


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("timestamptz", "'infinity'", "infinity"),
        ("timestamp", "'0044-03-15 BC'", "0044-03-15 00:00:00 BC"),
        ("date", "'10000-01-01'", "10000-01-01"),
        ("numeric(10,2)", "'NaN'", "NaN"),
        ("timestamptz[]", "'{infinity}'", "{infinity}"),
        ("int[]", "'{{1,2},{3,4}}'", "{{1,2},{3,4}}"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_and_can_be_read_as_text(spark, context, orders, kind, value, text):
    orders.run(f"ALTER TABLE o ADD COLUMN c {kind}", f"INSERT INTO o (k, c) VALUES (1, NULL), (2, {value})")
    with pytest.raises(Invalid, match=r"values that cannot be read.*column 'c'") as refused:
        source().read(spark, source().plan(None, context).splits, context)
    assert refused.value.reason == "BAD_VALUES"
    reading = source(as_text=["c"])
    rows = reading.read(spark, reading.plan(None, context).splits, context).collect()
    assert sorted((row["k"], row["c"]) for row in rows) == [(1, None), (2, text)]


def test_values_of_a_type_that_a_column_had_before_can_be_read_as_text(spark, context, orders):
    orders.run(
        "INSERT INTO o VALUES (1, 'one')",
        "DELETE FROM o",
        "ALTER TABLE o ALTER v TYPE int USING 1",
        "INSERT INTO o VALUES (2, 5)",
    )
    with pytest.raises(Invalid, match="column 'v'"):
        source().read(spark, source().plan(None, context).splits, context)
    reading = source(as_text=["v"])
    rows = reading.read(spark, reading.plan(None, context).splits, context).collect()
    assert [(row["k"], row["v"]) for row in rows if row["_change_type"] == "insert"] == [(1, "one"), (2, "5")]


def test_columns_that_are_not_sent_are_not_read(spark, context, orders):
    """They would be null in every row, as if that were their value."""
    orders.run(
        "ALTER TABLE o ADD COLUMN twice bigint GENERATED ALWAYS AS (k * 2) STORED, "
        "ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY, ADD COLUMN secret text",
        "ALTER PUBLICATION orders SET TABLE o (k, v, n)",
        "INSERT INTO o VALUES (1, 'a')",
    )
    frame = source().read(spark, source().plan(None, context).splits, context)
    assert [name for name in frame.columns if not name.startswith("_")] == ["k", "v", "n"]
    assert [tuple(row)[:3] for row in frame.collect()] == [(1, "a", 1)]


def test_a_publication_that_came_after_the_slot_is_told(spark, context, orders):
    orders.run("DROP PUBLICATION orders", "INSERT INTO o VALUES (1, 'a')", "CREATE PUBLICATION orders FOR TABLE o")
    with pytest.raises(Invalid, match="did not exist yet when changes were made") as refused:
        source().read(spark, source().plan(None, context).splits, context)
    assert refused.value.reason == "NO_PUBLICATION"


def test_a_bound_from_outside_makes_no_ranges_that_are_too_small_to_be_worth_reading(context, orders):
    for first in range(0, 20000, 200):
        orders.run(f"INSERT INTO o SELECT n, repeat('x', 100) FROM generate_series({first}, {first + 199}) n")
    bounded = SourceContext("p", "orders", context.place, MemoryBlobs(), at_most=1)
    found = source().plan(None, bounded)
    assert 1_000_000 < found.amount <= 1 << 20
    assert found.has_more
    assert found.lag is not None
    assert found.lag.rows is None
    assert found.lag.bytes is not None
    assert found.lag.bytes > 1 << 20, "as much of the log as waits"
    smallest = source(max_bytes=5000).plan(None, bounded)
    assert (smallest.amount < 100_000, smallest.has_more) == (True, True), "one transaction, which is never divided"


def test_a_column_that_comes_later_is_null_before_that(spark, context, orders):
    orders.run("INSERT INTO o VALUES (1, 'a')", "ALTER TABLE o ADD COLUMN w text", "INSERT INTO o VALUES (2, 'b', 'c')")
    rows = source().read(spark, source().plan(None, context).splits, context).collect()
    assert sorted((row["k"], row["w"]) for row in rows) == [(1, None), (2, "c")]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("ALTER PUBLICATION orders DROP TABLE o", "NO_PUBLICATION"),
        ("DROP PUBLICATION orders", "NO_PUBLICATION"),
        (f"SELECT pg_drop_replication_slot('{SLOT}')", "NO_SLOT"),
        ("ALTER TABLE o ADD COLUMN _xid int", "BAD_TABLE"),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(context, orders, damage, reason):
    orders.run(damage)
    with pytest.raises(Invalid) as refused:
        source().plan(None, context)
    assert refused.value.reason == reason


def test_another_server_or_an_older_copy_is_told(context, orders):
    found = source().plan(None, context)
    with pytest.raises(Invalid, match="leads to another server"):
        source().plan({**found.end, "system": "1"}, context)
    with pytest.raises(Invalid, match="the server's log ends at"):
        source().plan({**found.end, "lsn": found.end["lsn"] + 2**40}, context)
    with pytest.raises(Invalid, match="the server's log ends at"):
        source().verify(found.splits | {"end": found.splits["end"] + 2**40}, context)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"slot": ""}, "slot is ''"), ({"publication": 1}, "publication is 1"), ({"max_bytes": 0}, "max_bytes is 0")],
)
def test_every_problem_of_a_declaration_is_told(changed, said):
    arguments = {"connection": CONNECTION, "slot": "s", "publication": "p"} | changed
    assert any(said in problem for problem in PostgresChanges("o", **arguments).problems())


@pytest.mark.parametrize("retained", [1, 3])
def test_nothing_is_lost_however_small_ranges_are_and_however_soon_the_slot_moves(spark, context, orders, retained):
    """A slot that is moved into the middle of a commit's record skips that transaction."""
    ends, seen, counts = [source().beginning(context)], [], [0]
    for k in range(40):
        orders.run(f"INSERT INTO o VALUES ({k}, 'some text that makes the log a bit longer')")
    while not (found := source(max_bytes=700).plan(ends[-1], context)).is_empty:
        seen += [k for _, k, _ in read(spark, context, found.splits)]
        ends.append(found.end)
        counts.append(len(seen))
        if len(ends) > retained:
            source().release(ends[-retained], context)
    assert seen == list(range(40))
    oldest, again = ends[-retained], []
    while not (found := source(max_bytes=700).plan(oldest, context)).is_empty:
        again += [k for _, k, _ in read(spark, context, found.splits)]
        oldest = found.end
    assert again == seen[counts[-retained] :], "after a rollback to the oldest that is retained"
    assert bool(again) == (retained > 1)


def test_a_position_of_an_older_version_within_a_commits_record_loses_nothing(spark, context, orders):
    beginning = source().beginning(context)
    for k in range(3):
        orders.run(f"INSERT INTO o VALUES ({k}, 'a')")
    second = source().plan(source(max_bytes=1).plan(beginning, context).end, context)
    commit, found = second.splits["commit"], source(max_bytes=1).plan(beginning, context)
    first_end = found.end["lsn"]
    found = source(max_bytes=1).plan(found.end, context)
    middle = {"system": beginning["system"], "lsn": (found.end["commit"]["lsn"] + found.end["lsn"]) // 2}
    assert first_end < middle["lsn"] < commit["lsn"]
    source().release(middle, context)
    assert [k for _, k, _ in read(spark, context, source().plan(middle, context).splits)] == [1, 2]


def test_a_range_that_an_older_version_has_planned_is_read_as_it_was_planned(spark, context, orders):
    beginning = source().beginning(context)
    orders.run("INSERT INTO o VALUES (1, 'a')", "ALTER TABLE o ADD COLUMN w text")
    found = source().plan(beginning, context)
    old = {name: found.splits[name] for name in ("system", "first", "end")}
    assert read(spark, context, old | {"columns": [["k", "bigint"], ["v", "text"]]}) == [("insert", 1, "a")]


def test_a_log_of_other_tables_lets_the_slot_follow_and_is_no_input_otherwise(spark, context, orders, monkeypatch):
    """Or the server would have to keep it for as long as the table does not change."""
    monkeypatch.setattr("tidegate.connectors.postgres.changes._FOREIGN_BYTES", 1 << 20)
    beginning = source().beginning(context)
    orders.run("CREATE TABLE foreign_rows AS SELECT n FROM generate_series(1, 100) n")
    assert source().plan(beginning, context).is_empty
    orders.run("INSERT INTO foreign_rows SELECT n FROM generate_series(1, 30000) n")
    found = source().plan(beginning, context)
    assert found.end["lsn"] > beginning["lsn"] + (1 << 20)
    assert read(spark, context, found.splits) == []
    assert source().plan(found.end, context).is_empty
    source().release(found.end, context)
    orders.run("INSERT INTO o VALUES (1, 'a')")
    assert read(spark, context, source().plan(found.end, context).splits) == [("insert", 1, "a")]


def test_a_plan_is_made_while_a_job_reads_the_slot(context, orders):
    orders.run("INSERT INTO o SELECT n, 'x' FROM generate_series(1, 1000) n")
    with psycopg.connect(**orders.options, autocommit=True, replication="database") as other:
        start = f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 (proto_version '1', publication_names 'orders')"
        other.pgconn.send_query(start.encode())
        eventually("the slot is read", lambda: is_read(orders))
        found = source().plan(None, context)
        other.pgconn.finish()
    assert not found.is_empty
    assert source().plan(None, context).end == found.end
    eventually("the server has noticed", lambda: not is_read(orders))


@pytest.fixture
def decoded(monkeypatch):
    """The ends of transactions that the server has decoded and sent."""
    seen, peeked = [], PostgresChanges._peeked

    def counting(self, *given):
        for xid, message in peeked(self, *given):
            if message[:1] == b"C":
                seen.append(xid)
            yield xid, message

    monkeypatch.setattr(PostgresChanges, "_peeked", counting)
    return seen


def many_ranges(context, orders, count=20):
    """Plan a range for each of so many transactions, of which the slot lets go of none. The plans."""
    plans = [source().plan(None, context)]
    for k in range(count):
        orders.run(f"INSERT INTO o VALUES ({k}, 'a')")
        plans.append(source().plan(plans[-1].end, context))
    assert [found.is_empty for found in plans] == [True] + [False] * count
    return plans


def test_what_is_decoded_follows_what_is_new_and_not_what_the_slot_retains(spark, context, orders, decoded):
    plans = many_ranges(context, orders)
    decoded.clear()
    assert source().plan(plans[-1].end, context).is_empty
    assert len(decoded) <= 1, "the last one, which proves that the server is the same"
    orders.run("INSERT INTO o VALUES (100, 'new')")
    decoded.clear()
    found = source().plan(plans[-1].end, context)
    assert len(decoded) <= 2
    decoded.clear()
    assert read(spark, context, found.splits) == [("insert", 100, "new")]
    assert len(decoded) == 1
    decoded.clear()
    assert read(spark, context, plans[10].splits) == [("insert", 9, "a")], "an older range, which is read again"
    source().release(plans[10].end, context)
    assert len(decoded) <= 2
    assert read(spark, context, plans[11].splits) == [("insert", 10, "a")]
    (left,) = orders.run("SELECT array_agg(slot_name::text) FROM pg_replication_slots")
    assert left == ([SLOT],)


def test_a_server_without_a_slot_to_spare_decodes_all_that_is_retained(spark, context, orders, decoded):
    plans = many_ranges(context, orders, 5)
    names = [f"spare_{n}" for n in range(int(orders.run("SHOW max_replication_slots")[0][0]) - 1)]
    orders.run(*(f"SELECT pg_create_physical_replication_slot('{name}')" for name in names))
    try:
        orders.run("INSERT INTO o VALUES (100, 'new')")
        decoded.clear()
        found = source().plan(plans[-1].end, context)
        assert len(decoded) == 6
        assert read(spark, context, found.splits) == [("insert", 100, "new")]
    finally:
        orders.run(*(f"SELECT pg_drop_replication_slot('{name}')" for name in names))


def test_a_transaction_that_was_open_when_another_one_was_read_is_read_after_its_end(spark, context, orders):
    """Its changes are in the log before the place from which the server decodes."""
    with psycopg.connect(**orders.options) as open_one:
        open_one.execute("INSERT INTO o VALUES (1, 'early')")
        orders.run("INSERT INTO o VALUES (2, 'b')", "CHECKPOINT")
        first = source().plan(None, context)
        orders.run("CHECKPOINT")
        open_one.execute("INSERT INTO o VALUES (3, 'late')")
        open_one.commit()
    second = source().plan(first.end, context)
    assert read(spark, context, first.splits) == [("insert", 2, "b")]
    assert read(spark, context, second.splits) == [("insert", 1, "early"), ("insert", 3, "late")]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER PUBLICATION orders DROP TABLE other",
        "ALTER PUBLICATION orders ADD TABLE third",
        "ALTER PUBLICATION orders SET TABLE o WHERE (k > 100)",
        "ALTER PUBLICATION orders SET (publish = 'update')",
        "DROP PUBLICATION orders; CREATE PUBLICATION orders FOR TABLE o",
    ],
)
def test_a_publication_that_changes_changes_nothing_of_what_was_planned_before(spark, context, orders, change):
    """What is published is decided by the publication as it was at each change. So none of it looks like an older
    copy of the server."""
    orders.run("CREATE TABLE third (k bigint PRIMARY KEY)", "INSERT INTO o VALUES (1, 'a')")
    orders.run("INSERT INTO other VALUES (1)")
    found = source().plan(None, context)
    orders.run(*change.split("; "), "INSERT INTO o VALUES (200, 'b')", "UPDATE o SET v = 'c' WHERE k = 200")
    assert read(spark, context, found.splits) == [("insert", 1, "a")]
    assert not source().plan(found.end, context).is_empty
    source().release(found.end, context)


def test_a_range_is_read_with_the_publication_that_it_was_planned_with(spark, context, orders):
    """The last commit may be of a table that the other one lacks: that is no older copy of the server."""
    orders.run("CREATE PUBLICATION only_o FOR TABLE o")
    orders.run(f"SELECT pg_drop_replication_slot('{SLOT}')")
    orders.run(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    try:
        orders.run("INSERT INTO o VALUES (1, 'a')", "INSERT INTO other VALUES (1)")
        found = source().plan(None, context)
        other = PostgresChanges("o", connection=CONNECTION, slot=SLOT, publication="only_o")
        assert [row["k"] for row in other.read(spark, found.splits, context).collect()] == [1]
        assert other.plan(found.end, context).is_empty
        orders.run("INSERT INTO o VALUES (2, 'b')")
        assert not other.plan(found.end, context).is_empty
    finally:
        orders.run("DROP PUBLICATION only_o")


def test_changes_that_waited_for_a_renamed_column_are_read_with_their_values(spark, context, orders):
    beginning = source().beginning(context)
    orders.run(
        "INSERT INTO o VALUES (1, 'a')",
        "ALTER TABLE o RENAME COLUMN v TO w",
        "INSERT INTO o VALUES (2, 'b')",
    )
    found = source().plan(beginning, context)
    assert values(spark, context, found.splits, "w") == {1: "a", 2: "b"}
    orders.run("ALTER TABLE o RENAME COLUMN w TO v", "INSERT INTO o VALUES (3, 'c')")
    assert values(spark, context, source().plan(found.end, context).splits, "v") == {3: "c"}


def test_two_columns_that_exchange_their_names_keep_their_values(spark, context, orders):
    orders.run("ALTER TABLE o ADD COLUMN w text")
    beginning = source().beginning(context)
    orders.run(
        "INSERT INTO o VALUES (1, 'v', 'w')",
        "ALTER TABLE o RENAME COLUMN v TO x; ALTER TABLE o RENAME COLUMN w TO v; ALTER TABLE o RENAME COLUMN x TO w",
        "INSERT INTO o (k, w, v) VALUES (2, 'v', 'w')",
    )
    splits = source().plan(beginning, context).splits
    assert values(spark, context, splits, "w") == {1: "v", 2: "v"}
    assert values(spark, context, splits, "v") == {1: "w", 2: "w"}


def test_a_column_that_is_renamed_beside_dropped_and_added_ones_keeps_its_values(spark, context, orders):
    orders.run("ALTER TABLE o ADD COLUMN gone text, ADD COLUMN w text, ADD COLUMN x text", "ALTER TABLE o DROP gone")
    beginning = source().beginning(context)
    orders.run("INSERT INTO o VALUES (1, 'v1', 'w1', 'x1')", "ALTER TABLE o DROP v", "ALTER TABLE o RENAME x TO y")
    orders.run("INSERT INTO o VALUES (2, 'w2', 'y2')", "ALTER TABLE o ADD COLUMN z text")
    orders.run("INSERT INTO o VALUES (3, 'w3', 'y3', 'z3')")
    splits = source().plan(beginning, context).splits
    assert values(spark, context, splits, "w") == {1: "w1", 2: "w2", 3: "w3"}
    assert values(spark, context, splits, "y") == {1: "x1", 2: "y2", 3: "y3"}
    assert values(spark, context, splits, "z") == {1: None, 2: None, 3: "z3"}


def test_a_renamed_column_that_could_be_another_one_is_refused_instead_of_being_null(context, orders):
    """An older version's position does not say which columns the table had."""
    orders.run("ALTER TABLE o ADD COLUMN gone text, ADD COLUMN w text", "ALTER TABLE o DROP gone")
    beginning = source().beginning(context)
    old = {name: beginning[name] for name in ("system", "lsn")}
    orders.run("INSERT INTO o VALUES (1, 'v', 'w')", "ALTER TABLE o RENAME COLUMN w TO x")
    with pytest.raises(Invalid, match="have columns k, v, w") as refused:
        source().plan(old, context)
    assert refused.value.reason == "COLUMNS_UNKNOWN"
    assert not source().plan(beginning, context).is_empty


def test_changes_that_waited_for_the_table_itself_to_be_renamed_are_read(spark, context, orders):
    beginning = source().beginning(context)
    orders.run("INSERT INTO o VALUES (1, 'a')", "ALTER TABLE o RENAME TO p", "INSERT INTO p VALUES (2, 'b')")
    renamed = PostgresChanges("p", connection=CONNECTION, slot=SLOT, publication="orders")
    splits = renamed.plan(beginning, context).splits
    assert sorted(row["k"] for row in renamed.read(spark, splits, context).collect()) == [1, 2]


def values(spark, context, splits, column):
    """The values of a column, by key."""
    return {row["k"]: row[column] for row in source().read(spark, splits, context).collect()}
