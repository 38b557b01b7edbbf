"""A server of PostgreSQL that is no longer the one that was read: a standby was promoted, an older state was restored.

Nothing new is ever skipped: either all of it is read, or the source says what has happened.
"""

from __future__ import annotations

import pytest

from tests.kit.postgres import server, standby_of
from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.sampling import in_turn
from tidegate.errors import Invalid
from tidegate.records.place import Place
from tidegate.sources import PostgresChanges, PostgresTable, SourceContext
from tidegate.testing.source_contract import MemoryBlobs

pytestmark = in_turn(seconds=30)

MAKE = (
    "CREATE TABLE e (id bigint PRIMARY KEY, v text, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    "CREATE INDEX ON e (xid)",
    "CREATE PUBLICATION e FOR TABLE e",
    "SELECT pg_create_logical_replication_slot('e', 'pgoutput')",
)


@pytest.fixture
def primary():
    with server("wal_level=logical", "fsync=off", "wal_keep_size=64MB") as started:
        started.run(*MAKE)
        yield started


@pytest.fixture
def context(tmp_path, primary):
    return context_of(tmp_path, primary)


def context_of(tmp_path, started):
    return SourceContext("p", "events", Place(str(tmp_path), connections=connections(started)), MemoryBlobs())


def rows():
    return PostgresTable("e", connection=CONNECTION, xid_column="xid")


def changes():
    return PostgresChanges("e", connection=CONNECTION, slot="e", publication="e")


def add(started, *ids):
    for id in ids:
        started.run(f"INSERT INTO e (id, v) VALUES ({id}, 'row {id}')")


def planned_ids(started, splits):
    where = f"xid >= '{splits['first']}'::xid8 AND xid < '{splits['end']}'::xid8"
    return [id for (id,) in started.run(f"SELECT id FROM e WHERE {where} ORDER BY id")]


def refusal(plan):
    with pytest.raises(Invalid) as refused:
        plan()
    return refused.value.reason


def end_of_rows_and_changes(context):
    return rows().plan(None, context).end, changes().plan(None, context).end


def test_a_cold_copy_put_back_that_lacks_what_was_read_is_refused_however_far_it_has_come_since(primary, context):
    add(primary, 1, 2)
    copy = primary.cold_copy()
    add(primary, 3, 4, 5)
    ends = end_of_rows_and_changes(context)
    primary.put_back(copy)
    add(primary, *range(103, 120))  # beyond where it was read to
    for source, end in zip((rows(), changes()), ends, strict=True):
        assert refusal(lambda source=source, end=end: source.plan(end, context)) == "OLDER_COPY"


def test_a_range_that_was_planned_is_not_read_from_an_older_copy(spark, primary, context):
    add(primary, 1, 2)
    copy = primary.cold_copy()
    add(primary, 3, 4, 5)
    of_rows, of_changes = rows().plan(None, context).splits, changes().plan(None, context).splits
    primary.put_back(copy)
    add(primary, *range(103, 120))
    assert refusal(lambda: rows().verify(of_rows, context)) == "OLDER_COPY"
    assert refusal(lambda: changes().read(spark, of_changes, context)) == "OLDER_COPY"


def test_from_a_position_that_an_older_copy_has_everything_new_in_it_is_read(primary, context):
    """That is where a rollback of the pipeline leads to."""
    add(primary, 1, 2)
    before, changed_before = end_of_rows_and_changes(context)
    primary.run("CREATE TABLE other AS SELECT n FROM generate_series(1, 10) n")  # transactions of other tables
    copy = primary.cold_copy()
    add(primary, 3, 4, 5)
    after = rows().plan(before, context).end
    primary.put_back(copy)
    add(primary, 103, 104)
    assert refusal(lambda: rows().plan(after, context)) in ("OLDER_COPY", "TABLE_REPLACED")
    assert planned_ids(primary, rows().plan(before, context).splits) == [103, 104]
    assert not changes().plan(changed_before, context).is_empty


def test_a_server_that_was_only_restarted_is_the_same(primary, context):
    add(primary, 1, 2)
    ends = end_of_rows_and_changes(context)
    primary.crash()
    primary.start()
    for source, end in zip((rows(), changes()), ends, strict=True):
        assert source.plan(end, context).is_empty
    for change in ("RENAME COLUMN v TO w", "DROP COLUMN w"):
        primary.run(f"ALTER TABLE e {change}")
        assert rows().plan(ends[0], context).is_empty, change
    primary.run("INSERT INTO e (id) VALUES (3)")
    assert planned_ids(primary, rows().plan(ends[0], context).splits) == [3]


def test_rows_that_were_deleted_after_they_were_read_are_no_matter_until_the_server_is_started_again(primary, context):
    add(primary, 1, 2)
    end = rows().plan(None, context).end
    primary.run("DELETE FROM e")
    add(primary, 3)
    assert planned_ids(primary, rows().plan(end, context).splits) == [3]
    primary.stop()
    primary.start()
    assert refusal(lambda: rows().plan(end, context)) == "OLDER_COPY"
    accepted = rows().accept(end, context, unproven=True)
    assert planned_ids(primary, rows().plan(accepted, context).splits) == [3]


def test_after_a_failover_that_lost_nothing_a_person_accepts_the_timeline_and_all_new_rows_are_read(
    primary, context, tmp_path
):
    add(primary, 1, 2)
    with standby_of(primary) as standby:
        end = rows().plan(None, context).end
        caught_up(primary, standby)
        primary.stop()
        away = context_of(tmp_path, standby)
        assert refusal(lambda: rows().plan(end, away)) == "STANDBY"
        standby.promote()
        add(standby, 3)
        assert refusal(lambda: rows().plan(end, away)) == "OTHER_TIMELINE"
        accepted = rows().accept(end, away)
        found = rows().plan(accepted, away)
        assert planned_ids(standby, found.splits) == [3]
        assert rows().plan(found.end, away).is_empty
        assert refusal(lambda: rows().accept(found.end, away)) == "NOTHING_TO_ACCEPT"


def test_after_a_failover_that_lost_rows_its_timeline_is_not_accepted(primary, context, tmp_path):
    add(primary, 1, 2)
    with standby_of(primary) as standby:
        caught_up(primary, standby)
        known = rows().plan(None, context).end
        standby.stop()
        add(primary, 3, 4, 5)
        end = rows().plan(known, context).end
        primary.stop()
        standby.start()
        standby.promote()
        add(standby, *range(103, 120))
        away = context_of(tmp_path, standby)
        assert refusal(lambda: rows().plan(end, away)) == "OTHER_TIMELINE"
        assert refusal(lambda: rows().accept(end, away)) == "OLDER_COPY"
        accepted = rows().accept(known, away)  # where a rollback leads to
        assert planned_ids(standby, rows().plan(accepted, away).splits) == list(range(103, 120))


def test_a_slot_that_was_made_again_after_a_failover_skips_nothing_without_a_word(primary, context, tmp_path):
    add(primary, 1, 2)
    with standby_of(primary) as standby:
        caught_up(primary, standby)
        standby.stop()
        add(primary, *range(3, 30))
        end = changes().plan(None, context).end
        primary.stop()
        standby.start()
        standby.promote()
        standby.run(MAKE[-1])
        add(standby, *range(103, 160))
        away = context_of(tmp_path, standby)
        assert refusal(lambda: changes().plan(end, away)) == "OTHER_TIMELINE"
        assert refusal(lambda: changes().accept(end, away)) == "OLDER_COPY"


def test_a_standby_that_has_the_slot_is_accepted_and_continues_with_the_next_change(spark, primary, context):
    add(primary, 1, 2)
    end = changes().plan(None, context).end
    copy = primary.cold_copy()
    primary.put_back(copy, signal_file="standby.signal")
    primary.promote()
    add(primary, 3)
    assert refusal(lambda: changes().plan(end, context)) == "OTHER_TIMELINE"
    found = changes().plan(changes().accept(end, context), context)
    assert [row["id"] for row in changes().read(spark, found.splits, context).collect()] == [3]
    slot = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
    for retained in (end, found.end):  # the position of the oldest checkpoint is of the old timeline for a while
        ((before,),) = primary.run(slot)
        changes().release(retained, context)
        ((confirmed,),) = primary.run(slot)
        # A position may lie in the middle of a record, up to which PostgreSQL had flushed: the slot stays before it.
        assert before < confirmed <= retained["lsn"]
        assert changes().plan(found.end, context).is_empty


def test_a_restore_to_an_earlier_time_is_accepted_from_where_it_has_all_that_was_read(primary, context):
    archive = primary.folder / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    primary.run("ALTER SYSTEM SET archive_mode = 'on'", f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f'")
    primary.stop()
    primary.start()
    base = primary.back_up()
    add(primary, 1, 2)
    known = rows().plan(None, context).end
    primary.run("SELECT pg_create_restore_point('noon')")
    add(primary, 3, 4, 5)
    end = rows().plan(known, context).end
    primary.run("SELECT pg_switch_wal()")
    primary.put_back(
        base,
        f"restore_command = 'cp {archive}/%f %p'",
        "recovery_target_name = 'noon'",
        "recovery_target_action = 'promote'",
        signal_file="recovery.signal",
    )
    primary.wait_for_writes()
    add(primary, *range(103, 120))
    assert refusal(lambda: rows().plan(end, context)) == "OTHER_TIMELINE"
    assert refusal(lambda: rows().accept(end, context)) == "OLDER_COPY"
    accepted = rows().accept(known, context)
    assert planned_ids(primary, rows().plan(accepted, context).splits) == list(range(103, 120))


def caught_up(primary, standby):
    """Wait until a standby has all that its primary has."""
    from tests.kit.waiting import eventually

    ((end,),) = primary.run("SELECT pg_current_wal_insert_lsn()")
    eventually("the standby has all", lambda: standby.run(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])
