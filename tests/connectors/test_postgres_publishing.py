"""Publishing to a real PostgreSQL without Spark: rows and mark in one transaction, owners, rollbacks, refusals."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.kit.postgres_sinks import CONNECTION, PostgresPublished, connections, staged_columns
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.records.place import Place
from tidegate.sinks import PostgresAppend, PostgresUpsert


@pytest.fixture
def appended(tmp_path, place):
    return PostgresPublished(tmp_path, place)


@pytest.fixture
def publishing(tmp_path, place):
    """Make a sink's stand-in for a pipeline: `publishing(sink, uid=…)`."""

    def make(sink, **identity):
        return PostgresPublished(tmp_path, identity.pop("place", place), sink, **identity)

    return make


def upsert(**changed):
    return PostgresUpsert("t", connection=CONNECTION, keys=["k"], **changed)


def rows(postgres, columns="k, v"):
    return postgres.run(f"SELECT {columns} FROM t ORDER BY 1, 2")


# -- appending -------------------------------------------------------------------------------------------------


def test_rows_and_the_mark_arrive_together(appended, postgres):
    assert appended.head().last_entry is None
    done = appended.checkpoint(1, (1, "a"), (2, None))
    assert (done.version, done.rows, done.uri) == (1, 2, "postgres:shop/public.t")
    appended.checkpoint(2, (3, "c"))
    assert rows(postgres) == [(1, "a"), (2, None), (3, "c")]
    assert appended.head().last_entry == 2
    assert appended.sink.locate(2, appended.context).version == 2
    assert appended.sink.locate(3, appended.context) is None


def test_publishing_twice_is_publishing_once(appended, postgres):
    old, staged = appended.head(), appended.stage(1, (1, "a"))
    assert appended.publish(1, staged, head=old) is not None
    assert appended.publish(1, staged) is None
    assert appended.publish(1, staged, head=old) is None
    assert rows(postgres) == [(1, "a")]


@pytest.mark.parametrize("between", ["find_mark", "find_table"])
def test_a_first_publish_between_two_questions_is_not_taken_for_a_damaged_table(
    appended, publishing, place, postgres, monkeypatch, between
):
    """Another publisher makes the table and moves the mark at once, while this one asks for one after the other."""
    import tidegate.connectors.postgres.sink as asked

    staged, real, published = appended.stage(1, (1, "a")), getattr(asked, between), []

    def then_another_publishes(*arguments):
        answer = real(*arguments)
        if not published:
            published.append(True)
            publishing(PostgresAppend("t", connection=CONNECTION)).publish(1, staged)
        return answer

    monkeypatch.setattr(asked, between, then_another_publishes)
    assert appended.head().last_entry in (None, 1)
    assert rows(postgres) == [(1, "a")]
    assert appended.head().last_entry == 1


def test_marks_that_were_dropped_and_made_again_do_not_let_the_first_checkpoint_be_published_again(appended, postgres):
    appended.sink.check(appended.context)
    staged = appended.noted(appended.stage(1, (1, "a")))
    appended.publish(1, staged)
    for accepted, then in ((1, [(1, "a")]), (None, [(1, "a"), (1, "a")])):
        postgres.run("DROP TABLE tidegate_published")
        appended.sink.check(appended.context)
        with pytest.raises(Invalid, match="was dropped and created again") as refused:
            appended.publish(1, staged)
        assert refused.value.reason == "MARKS_GONE"
        assert rows(postgres) == [(1, "a")]
        appended.sink.set_mark(accepted, appended.context)
        appended.sink.check(appended.context)
        assert appended.head().last_entry == accepted
        appended.publish(1, staged)
        assert rows(postgres) == then
        assert appended.head().last_entry == 1


def test_four_publishers_at_once_publish_once(appended, postgres):
    appended.checkpoint(1, (1, "a"))
    head, staged, found = appended.head(), appended.stage(2, (2, "b")), []
    start = threading.Barrier(4)

    def go():
        start.wait()
        found.append(appended.publish(2, staged, head=head))

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([done for done in found if done is not None]) == 1
    assert len(found) == 4
    assert rows(postgres) == [(1, "a"), (2, "b")]


def test_rows_of_several_jobs_are_loaded_together(appended, postgres):
    assert appended.publish(1, appended.stage(1, (1, "a")), appended.stage(1, (2, "b"), attempt="b")) is not None
    assert rows(postgres) == [(1, "a"), (2, "b")]


def test_staged_files_that_are_gone_are_told(appended, tmp_path):
    staged = appended.stage(1, (1, "a"))
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Corrupt, match="1 files that checkpoint 1 staged are gone"):
        appended.publish(1, staged)


def test_a_table_with_wider_columns_takes_the_rows(appended, postgres):
    postgres.run(
        "CREATE TABLE t (n bigint GENERATED ALWAYS AS IDENTITY, k numeric(30, 2), v varchar, at date DEFAULT now())"
    )
    appended.checkpoint(1, (1, "a"))
    assert [(int(k), v, n) for k, v, n in rows(postgres, "k, v, n")] == [(1, "a", 1)]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("CREATE TABLE t (k integer, v text)", "'k' is now integer, and was bigint"),
        ('CREATE TABLE t ("K" bigint, v text)', "'k' is written 'K' in the table"),
        ("CREATE TABLE t (k bigint)", "'v' (text) is not in the table"),
        ("CREATE TABLE t (k bigint, v text, x text)", "'x' (text) is in the table, but not in the output"),
        ("CREATE TABLE t (k bigint NOT NULL, v text)", "'k' must now not be null"),
        ("CREATE TABLE t (k bigint, v varchar(1))", "'v' is now character varying(1), and was text"),
        ("CREATE TABLE t (k bigint, v uuid)", "'v' is now uuid, and was text"),
        ("CREATE TABLE t (k bigint, v text GENERATED ALWAYS AS ('x') STORED)", "'v' is generated by the table itself"),
    ],
)
def test_a_table_that_was_changed_since_the_rows_were_staged_is_told_and_nothing_is_written(
    appended, postgres, table, said
):
    staged = appended.stage(1, (1, "a"))
    postgres.run(table)
    with pytest.raises(Invalid) as refused:
        appended.publish(1, staged)
    assert said in refused.value.what
    assert refused.value.reason == "TABLE_CHANGED"
    assert postgres.run("SELECT count(*) FROM t") == [(0,)]
    assert appended.head().last_entry is None
    postgres.run("DROP TABLE t")
    assert appended.publish(1, staged) is not None


def test_new_columns_are_added_if_the_sink_says_so(publishing, postgres):
    postgres.run("CREATE TABLE t (k bigint, x text)", "INSERT INTO t VALUES (0, 'theirs')")
    sink = publishing(PostgresAppend("t", connection=CONNECTION, schema_evolution="add"))
    sink.checkpoint(1, (1, "a"))
    assert rows(postgres, "k, v, x") == [(0, None, "theirs"), (1, "a", None)]


INTEGERS, BIGINTS = {"k": "long", "n": "integer"}, {"k": "long", "n": "long"}
BIG = 5_000_000_000


@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_column_becomes_wider_in_the_transaction_that_publishes_the_rows(publishing, postgres, kind):
    sink = PostgresAppend("t", connection=CONNECTION, allow_rollback=True, schema_evolution="widen")
    if kind == "upsert":
        sink = upsert(allow_rollback=True, schema_evolution="widen")
    published = publishing(sink, types=INTEGERS)
    published.checkpoint(1, (1, 1), (2, 2))
    published.types = BIGINTS
    published.checkpoint(2, (3, BIG))
    assert rows(postgres, "k, n") == [(1, 1), (2, 2), (3, BIG)]
    published.types = INTEGERS
    published.roll_back(3, 1)
    assert rows(postgres, "k, n") == [(1, 1), (2, 2)]
    published.checkpoint(4, (4, 4))
    assert rows(postgres, "k, n, pg_typeof(n)::text") == [(1, 1, "bigint"), (2, 2, "bigint"), (4, 4, "bigint")]


def test_narrow_rows_are_published_to_a_column_of_doubles(publishing, postgres):
    sink = PostgresAppend("t", connection=CONNECTION, schema_evolution="widen")
    published = publishing(sink, types=INTEGERS)
    narrow = published.stage(1, (1, 1))
    published.types = {"k": "long", "n": "double"}
    wide = published.stage(2, (2, 2.5))
    assert published.publish(2, narrow, wide) is not None
    published.types = INTEGERS
    published.checkpoint(3, (3, 3))
    assert rows(postgres, "k, n") == [(1, 1.0), (2, 2.5), (3, 3.0)]


def test_pending_rows_are_added_once_the_table_fits_all_of_them(publishing, postgres):
    postgres.run(
        "CREATE TABLE known (k bigint PRIMARY KEY)",
        "INSERT INTO known VALUES (1), (2)",
        "CREATE TABLE t (k bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED, n integer)",
    )
    published = publishing(PostgresAppend("t", connection=CONNECTION, schema_evolution="widen"), types=INTEGERS)
    narrow = published.stage(1, (1, 1))
    published.types = BIGINTS
    assert published.publish(2, narrow, published.stage(2, (2, BIG))) is not None
    assert rows(postgres, "k, n") == [(1, 1), (2, BIG)]


def test_a_crash_in_the_transaction_leaves_neither_the_wider_type_nor_a_row(publishing, postgres, monkeypatch):
    published = publishing(PostgresAppend("t", connection=CONNECTION, schema_evolution="widen"), types=INTEGERS)
    published.checkpoint(1, (1, 1))
    published.types = BIGINTS
    staged = published.stage(2, (2, BIG))

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PostgresAppend, "add", dies)
        with pytest.raises(KeyboardInterrupt):
            published.publish(2, staged)
    assert rows(postgres, "k, n, pg_typeof(n)::text") == [(1, 1, "integer")]
    assert published.publish(2, staged) is not None
    assert rows(postgres, "k, n") == [(1, 1), (2, BIG)]


def test_columns_are_added_and_made_wider_at_once(publishing, postgres):
    postgres.run("CREATE TABLE t (k integer, n smallint, r real, d numeric(6,2), day date)")
    types = {"k": "long", "n": "double", "r": "double", "v": "string"}
    published = publishing(PostgresAppend("t", connection=CONNECTION, schema_evolution="widen"), types=types)
    published.checkpoint(1, (BIG, 0.5, 0.1, "new"))
    shown = "k, n, r, v, pg_typeof(k)::text, pg_typeof(n)::text, pg_typeof(r)::text"
    assert rows(postgres, shown) == [(BIG, 0.5, 0.1, "new", "bigint", "double precision", "double precision")]


@pytest.mark.parametrize(
    ("obstacle", "named"),
    [
        ("CREATE VIEW shown AS SELECT n FROM t", "rule _RETURN on view shown"),
        ("ALTER TABLE t ADD COLUMN twice integer GENERATED ALWAYS AS (n * 2) STORED", "default value for column twice"),
        ("CREATE POLICY few ON t USING (n < 5)", "policy few on table t"),
        ("DROP PUBLICATION IF EXISTS few; CREATE PUBLICATION few FOR TABLE t WHERE (n < 5)", "in publication few"),
        ("CREATE FUNCTION lowest() RETURNS integer BEGIN ATOMIC SELECT min(n) FROM t; END", "function lowest()"),
    ],
)
def test_what_keeps_a_column_from_becoming_wider_is_named_before_anything_is_staged(
    publishing, postgres, obstacle, named
):
    postgres.run("CREATE TABLE t (k bigint, n integer)", obstacle)
    published = publishing(PostgresAppend("t", connection=CONNECTION, schema_evolution="widen"))
    (problem,) = published.sink.output_problems(staged_columns(BIGINTS), published.context)
    assert problem.startswith("'n' (integer) must become wider, which PostgreSQL refuses because of")
    assert named in problem
    assert published.sink.output_problems(staged_columns(INTEGERS), published.context) == []


def test_a_history_that_would_not_recognise_its_rows_is_named(publishing, postgres):
    postgres.run("CREATE TABLE t (k bigint PRIMARY KEY, n real)")
    doubles = staged_columns({"k": "long", "n": "double"})
    published = publishing(upsert(allow_rollback=True, schema_evolution="widen"))
    (problem,) = published.sink.output_problems(doubles, published.context)
    assert "'n' is double precision; the table has real, and with allow_rollback=True it cannot become wider" in problem
    without = publishing(upsert(schema_evolution="widen"))
    assert without.sink.output_problems(doubles, without.context) == []


def test_a_constraint_that_refuses_a_row_is_told_and_nothing_is_written(appended, postgres):
    postgres.run("CREATE TABLE t (k bigint CHECK (k < 5), v text)")
    staged = appended.stage(1, (1, "a"), (7, "secret"))
    with pytest.raises(Invalid, match='violates check constraint "t_k_check"') as refused:
        appended.publish(1, staged)
    assert "secret" not in str(refused.value)
    assert rows(postgres) == []
    postgres.run("ALTER TABLE t DROP CONSTRAINT t_k_check")
    assert appended.publish(1, staged) is not None


@pytest.mark.parametrize("code", ["23514", "22023", "MY001"])
def test_what_a_trigger_says_of_a_row_is_not_told_whatever_code_it_raises(appended, postgres, code):
    postgres.run(
        "CREATE TABLE t (k bigint, v text)",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION 'v is %', NEW.v USING ERRCODE = '{code}', CONSTRAINT = 'c'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    staged = appended.stage(1, (1, "SECRET-77"))
    with pytest.raises(Invalid, match="a function or trigger refuses it") as refused:
        appended.publish(1, staged)
    assert "SECRET-77" not in str(refused.value)
    assert "SECRET-77" in refused.value.quoted, "for whoever may read rows"


# -- owners and damage -----------------------------------------------------------------------------------------


def test_a_pipeline_that_was_started_afresh_is_refused_until_it_takes_over(appended, publishing, postgres):
    appended.checkpoint(3, (3, "old"))
    fresh = publishing(PostgresAppend("t", connection=CONNECTION), uid="u2")
    for look in (fresh.sink.check, fresh.sink.head):
        with pytest.raises(Invalid, match="another pipeline named 'p'") as refused:
            look(fresh.context)
        assert refused.value.reason == "OTHER_OWNER"
    taking = publishing(PostgresAppend("t", connection=CONNECTION, take_over=True), uid="u2")
    taking.checkpoint(1, (1, "new"))
    assert fresh.head().last_entry == 1, "once it has taken over, the declaration may forget it"
    with pytest.raises(Invalid, match="another pipeline named 'p'"):
        appended.head()
    assert rows(postgres) == [(1, "new"), (3, "old")]


def test_two_pipelines_share_a_table_unless_one_of_them_may_roll_back(appended, publishing, postgres):
    appended.checkpoint(1, (1, "a"))
    other = publishing(PostgresAppend("t", connection=CONNECTION), pipeline="q", uid="u9")
    other.checkpoint(7, (7, "q"))
    assert (appended.head().last_entry, other.head().last_entry) == (1, 7)
    assert rows(postgres) == [(1, "a"), (7, "q")]
    alone = publishing(PostgresAppend("t", connection=CONNECTION, allow_rollback=True))
    with pytest.raises(Invalid, match="is also published by sink 's' of pipeline 'q'"):
        alone.sink.check(alone.context)


@pytest.mark.parametrize("damage", ["DROP TABLE t", "DROP TABLE t; CREATE TABLE t (k bigint, v text)"])
def test_a_table_that_was_dropped_or_made_again_is_told(appended, postgres, damage):
    appended.checkpoint(1, (1, "a"))
    staged = appended.stage(2, (2, "b"))
    postgres.run(damage)
    for look in (appended.head, lambda: appended.publish(2, staged), lambda: appended.sink.check(appended.context)):
        with pytest.raises(Corrupt, match="up to checkpoint 1") as refused:
            look()
        assert refused.value.reason == "TABLE_DAMAGED"


def test_a_table_that_was_restored_with_its_marks_continues_after_the_statement_that_the_error_names(
    appended, postgres
):
    appended.checkpoint(1, (1, "a"))
    postgres.run("ALTER TABLE t RENAME TO old", "CREATE TABLE t AS SELECT * FROM old")
    with pytest.raises(Corrupt) as refused:
        appended.head()
    postgres.run(refused.value.help.partition("its marks: ")[2])
    appended.checkpoint(2, (2, "b"))
    assert rows(postgres) == [(1, "a"), (2, "b")]


# -- upserts ---------------------------------------------------------------------------------------------------


def test_an_upsert_keeps_one_row_for_each_key(publishing, postgres):
    published = publishing(upsert())
    published.checkpoint(1, (1, "a"), (2, "b"))
    published.checkpoint(2, (2, "B"), (3, "c"))
    assert rows(postgres) == [(1, "a"), (2, "B"), (3, "c")]
    published.checkpoint(3, (1, "", True), (3, "C", False), (9, "", True))
    assert rows(postgres) == [(2, "B"), (3, "C")]


def test_withdrawn_keys_are_removed_unless_there_is_a_new_row(publishing, postgres):
    published = publishing(upsert())
    published.checkpoint(1, (1, "a"), (2, "b"), (3, "c"))
    published.checkpoint(2, (2, "B"), removed=[1, 2, 8])
    assert rows(postgres) == [(2, "B"), (3, "c")]


def test_of_several_batches_the_later_one_counts(publishing, postgres):
    published = publishing(upsert())
    batches = [
        published.stage(1, (1, "first"), (2, "first"), attempt="a"),
        published.stage(1, (1, "later"), attempt="b"),
    ]
    assert published.publish(1, *batches) is not None
    assert rows(postgres) == [(1, "later"), (2, "first")]


def test_a_late_row_never_replaces_or_removes_a_newer_one(publishing, postgres):
    published = publishing(upsert(order_by=["v"]))
    published.checkpoint(1, (1, "b"), (2, "b"), (3, None), (4, "B"), (5, "b"))
    published.checkpoint(2, (1, "a"), (2, "c"), (3, "a"), (4, "a"), (5, None))
    assert rows(postgres) == [(1, "b"), (2, "c"), (3, "a"), (4, "a"), (5, "b")]
    published.checkpoint(3, (1, "a", True), (2, "d", True))
    assert rows(postgres) == [(1, "b"), (3, "a"), (4, "a"), (5, "b")]


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]])
def test_not_a_number_is_greatest_however_the_rows_are_cut(publishing, postgres, cuts):
    rows_in = [(1, "one", 1.0), (1, "not a number", float("nan")), (1, "none", None)]
    published = publishing(upsert(order_by=["a"]), types={"k": "long", "v": "string", "a": "double"})
    for id, (first, last) in enumerate(itertools.pairwise(cuts), 1):
        assert published.publish(id, published.settled(id, *rows_in[first:last])) is not None
    assert rows(postgres) == [(1, "not a number")]
    assert published.publish(9, published.settled(9, (1, "later", float("nan")))) is not None
    assert rows(postgres) == [(1, "later")], "it equals itself"


@pytest.mark.parametrize(
    ("column", "index"),
    [('text COLLATE "any_case" PRIMARY KEY', ""), ("text NOT NULL", 'CREATE UNIQUE INDEX ON t (k COLLATE "any_case")')],
)
def test_a_key_whose_collation_takes_different_texts_for_equal_is_refused_before_anything_is_decided(
    publishing, postgres, column, index
):
    postgres.run(
        "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        f"CREATE TABLE t (k {column}, v text)",
        *([index] if index else []),
    )
    published = publishing(upsert(), types={"k": "string", "v": "string"})
    with pytest.raises(Invalid, match="key column 'k' has a nondeterministic collation|unique index on") as refused:
        published.sink.check(published.context)
    assert refused.value.reason == "BAD_TABLE"
    if index:
        postgres.run("DROP INDEX t_k_idx; CREATE UNIQUE INDEX ON t (k)")
    else:
        postgres.run(refused.value.what.rpartition("in the table: ")[2])
    published.sink.check(published.context)
    published.checkpoint(1, ("a", "1"), ("A", "2"))
    assert sorted(rows(postgres)) == [("A", "2"), ("a", "1")]


def test_a_table_without_a_unique_key_is_refused_with_the_statement_that_makes_one(publishing, postgres):
    postgres.run("CREATE TABLE t (k bigint NOT NULL, v text)")
    published = publishing(upsert())
    with pytest.raises(Invalid, match="no primary key or unique index on exactly the keys") as refused:
        published.sink.check(published.context)
    postgres.run(refused.value.what.rpartition("same key: ")[2])
    published.checkpoint(1, (1, "a"))
    published.checkpoint(2, (1, "b"))
    assert rows(postgres) == [(1, "b")]


def test_columns_that_the_table_fills_itself_stay_as_they_are(publishing, postgres):
    postgres.run("CREATE TABLE t (k bigint PRIMARY KEY, v varchar, made text DEFAULT 'first')")
    published = publishing(upsert())
    published.checkpoint(1, (1, "a"))
    postgres.run("UPDATE t SET made = 'mine'")
    published.checkpoint(2, (1, "b"), (2, "b"))
    assert rows(postgres, "k, v, made") == [(1, "b", "mine"), (2, "b", "first")]


def test_keys_may_be_uuids_and_order_a_wider_number(publishing, postgres):
    postgres.run("CREATE TABLE t (v uuid PRIMARY KEY, k numeric)")
    published = publishing(PostgresUpsert("t", connection=CONNECTION, keys=["v"], order_by=["k"], allow_rollback=True))
    one = "00000000-0000-0000-0000-00000000000a"
    staged = published.stage(1, (2, one.upper()))
    for field in staged["columns"]["fields"]:
        field["metadata"]["held_as"] = {"v": "uuid", "k": "numeric"}[field["name"]]
    assert published.publish(1, staged) is not None
    assert [(str(v), int(k)) for v, k in postgres.run("SELECT v, k FROM t")] == [(one, 2)]


# -- rollbacks -------------------------------------------------------------------------------------------------


def test_without_being_asked_nothing_is_kept_and_a_rollback_says_so(appended):
    appended.checkpoint(1, (1, "a"))
    way = appended.sink.restore_plan(1, None, [], appended.context)
    assert "declared without allow_rollback=True" in way.rows_stay_reason
    assert (way.exists, way.not_published_yet, way.version) == (True, False, 1)


def test_an_append_goes_back_to_any_checkpoint(publishing, postgres):
    published = publishing(PostgresAppend("t", connection=CONNECTION, allow_rollback=True))
    for id in range(1, 6):
        published.checkpoint(id, (id, "ours"))
    postgres.run("INSERT INTO t VALUES (100, 'theirs')")
    assert published.roll_back(6, 3).version == 6
    assert rows(postgres) == [(1, "ours"), (2, "ours"), (3, "ours"), (100, "theirs")]
    assert published.head().last_entry == 6
    published.checkpoint(7, (4, "again"))
    undone = published.sink.restore_plan(5, None, [], published.context)
    assert "an earlier rollback has removed that checkpoint's rows" in undone.rows_stay_reason
    published.roll_back(8, 1)
    assert rows(postgres) == [(1, "ours"), (100, "theirs")]
    published.roll_back(9, None)
    assert rows(postgres) == [(100, "theirs")]


def test_a_rollback_that_keeps_rows_moves_only_the_mark(publishing, postgres):
    published = publishing(PostgresAppend("t", connection=CONNECTION, allow_rollback=True))
    late = published.stage(2, (2, "b"))
    published.checkpoint(1, (1, "a"))
    head = published.head()
    published.roll_back(3, 1, how="keep")
    assert published.publish(2, late, head=head) is None
    assert published.publish(2, late) is None
    assert rows(postgres) == [(1, "a")]
    assert published.head().last_entry == 3


def test_an_upsert_puts_back_what_it_has_replaced_and_removed(publishing, postgres):
    published, states = publishing(upsert(allow_rollback=True)), {}
    batches = {
        1: [(1, "a"), (2, "b")],
        2: [(2, "B"), (3, "c")],
        3: [(1, "", True), (3, "C", False)],
        4: [(1, "back"), (4, "d")],
        5: [(4, "", True), (2, "β", False), (5, "e", False)],
    }
    for id, batch in batches.items():
        published.checkpoint(id, *batch)
        states[id] = rows(postgres)
    for id, to in ((6, 4), (7, 2), (8, 1)):
        published.roll_back(id, to)
        assert rows(postgres) == states[to]
    published.checkpoint(9, (2, "new"))
    published.roll_back(10, 1)
    assert rows(postgres) == states[1]
    published.roll_back(11, None)
    assert rows(postgres) == []


def test_a_rollback_restores_every_type_and_columns_that_others_have_added(publishing, postgres):
    postgres.run(
        "CREATE TABLE t (k bigint PRIMARY KEY, v text, n numeric, f double precision DEFAULT 'NaN', b bytea, "
        "at timestamptz, a text[], j jsonb)",
        "INSERT INTO t VALUES (1, 'é\"', 1.10, 'Infinity', '\\x00ff', '2026-01-02 03:04:05.678901+05', "
        "'{x,NULL}', '{\"a\": [1]}')",
    )
    before = postgres.run("SELECT * FROM t")
    published = publishing(upsert(allow_rollback=True, schema_evolution="add"))
    published.checkpoint(1, (1, "", True))
    postgres.run("ALTER TABLE t ADD COLUMN extra text")
    published.checkpoint(2, (2, "b"))
    published.roll_back(3, None)
    assert [row[:-1] for row in postgres.run("SELECT * FROM t")] == before


def test_a_rollback_leaves_columns_alone_that_were_added_since(publishing, postgres):
    """A column that must not be null would refuse the rows, after the decision; others may have filled it."""
    published = publishing(upsert(allow_rollback=True))
    published.checkpoint(1, (1, "a"), (2, "b"))
    published.checkpoint(2, (1, "", True), (2, "B", False))
    postgres.run("ALTER TABLE t ADD COLUMN note text NOT NULL DEFAULT 'none'", "UPDATE t SET note = 'theirs'")
    published.roll_back(3, 1, how="discard")
    assert rows(postgres, "k, v, note") == [(1, "a", "none"), (2, "b", "theirs")]


def test_rows_that_are_put_back_have_the_numbers_that_they_had(publishing, postgres):
    postgres.run(
        "CREATE TABLE t (k bigint PRIMARY KEY, v text, n bigint GENERATED ALWAYS AS IDENTITY, m serial, "
        "twice bigint GENERATED ALWAYS AS (k * 2) STORED)"
    )
    published = publishing(upsert(allow_rollback=True))
    published.checkpoint(1, (1, "a"), (2, "b"))
    before = rows(postgres, "*")
    published.checkpoint(2, (1, "", True), (2, "B", False), (3, "c", False))
    published.roll_back(3, 1)
    assert rows(postgres, "*") == before
    published.checkpoint(4, (4, "d"))
    assert rows(postgres, "n, m, k")[-1][2] == 4


def test_rows_that_others_have_changed_are_lost_only_if_somebody_chooses_so(publishing, postgres):
    published = publishing(upsert(allow_rollback=True))
    for id in (1, 2):
        published.checkpoint(id, (1, f"{id}"), (2, f"{id}"), (3, f"{id}"))
    published.checkpoint(3, (3, "", True))
    quiet = published.sink.restore_plan(1, None, [], published.context)
    assert quiet.foreign_commits == ()
    postgres.run("UPDATE t SET v = 'theirs' WHERE k = 1", "INSERT INTO t VALUES (3, 'theirs'), (4, 'theirs')")
    way = published.sink.restore_plan(1, None, [], published.context)
    assert way.foreign_commits == ("2 rows that this pipeline wrote were changed or removed",)
    with pytest.raises(Rejected, match="were changed by other programs"):
        published.roll_back(4, 1)
    assert published.head().last_entry == 3
    assert rows(postgres) == [(1, "theirs"), (2, "2"), (3, "theirs"), (4, "theirs")]
    published.roll_back(4, 1, how="discard")
    assert rows(postgres) == [(1, "1"), (2, "1"), (3, "1"), (4, "theirs")]


def test_what_is_kept_is_forgotten_with_old_checkpoints(publishing, postgres):
    published = publishing(upsert(allow_rollback=True))
    done = [published.checkpoint(id, (id % 2, f"{id}")) for id in range(1, 6)]
    published.sink.delete_history(done[2], published.context)
    assert postgres.run("SELECT min(checkpoint), count(*) FROM tidegate_history") == [(4, 2)]
    way = published.sink.restore_plan(2, None, [], published.context)
    assert "only checkpoints after 3 can be undone" in way.rows_stay_reason
    published.roll_back(6, 3)
    assert rows(postgres) == [(0, "2"), (1, "3")]


def test_what_came_before_rollbacks_were_allowed_stays(publishing, postgres):
    publishing(upsert()).checkpoint(1, (1, "a"))
    published = publishing(upsert(allow_rollback=True))
    way = published.sink.restore_plan(None, None, [], published.context)
    assert "nothing was published to it since" in way.rows_stay_reason
    published.checkpoint(2, (1, "b"))
    assert (
        "only checkpoints after 1 can be undone"
        in published.sink.restore_plan(None, None, [], published.context).rows_stay_reason
    )
    published.roll_back(3, 1)
    assert rows(postgres) == [(1, "a")]


# -- bad input -------------------------------------------------------------------------------------------------


def test_an_unknown_connection_is_told(publishing):
    published = publishing(PostgresAppend("t", connection="other"))
    with pytest.raises(Invalid, match="connection 'other' does not exist"):
        published.head()


@pytest.mark.parametrize(
    ("changed", "kind", "reason"),
    [
        ({"password": "wr0ng-pa55word"}, Invalid, "BAD_LOGIN"),
        ({"user": "nobody"}, Invalid, "BAD_LOGIN"),
        ({"sslmode": "require"}, Invalid, "BAD_LOGIN"),
        ({"dbname": "nowhere"}, Invalid, "NO_DATABASE"),
        ({"colour": "wr0ng-pa55word"}, Invalid, "BAD_CONNECTION"),
        ({"sslmode": "wr0ng-pa55word"}, Invalid, "BAD_CONNECTION"),
        ({"port": "1"}, Unavailable, "DATABASE_AWAY"),
        ({"host": "nowhere.invalid"}, Unavailable, "DATABASE_AWAY"),
    ],
)
def test_a_connection_that_does_not_work_says_why_and_shows_no_secret(
    publishing, postgres, tmp_path, changed, kind, reason
):
    place = Place(str(tmp_path), connections=connections(postgres, **changed))
    published = publishing(PostgresAppend("t", connection=CONNECTION), place=place)
    with pytest.raises(kind) as refused:
        published.sink.check(published.context)
    assert refused.value.reason == reason
    assert "connection 'shop'" in refused.value.what
    assert refused.value.__cause__ is None
    shown = f"{refused.value} {refused.value.__reduce__()}"
    assert postgres.options["password"] not in shown
    assert "wr0ng-pa55word" not in shown or "sslmode" in changed
    assert postgres.options["password"] not in repr(place) + repr(published.context)


def test_a_schema_that_does_not_exist_is_told(publishing):
    published = publishing(PostgresAppend("other.t", connection=CONNECTION))
    with pytest.raises(Invalid, match="schema 'other' does not exist") as refused:
        published.sink.check(published.context)
    assert refused.value.reason == "NO_SCHEMA"


def test_missing_rights_are_told_with_the_statements_that_grant_them(publishing, postgres, tmp_path):
    postgres.run(
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN PASSWORD 'clerk'",
        "CREATE TABLE t (k bigint PRIMARY KEY, v text)",
        "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC",
    )
    place = Place(str(tmp_path), connections=connections(postgres, user="clerk", password="clerk"))
    published = publishing(upsert(allow_rollback=True), place=place)
    with pytest.raises(Invalid, match="user 'clerk' lacks rights") as refused:
        published.sink.check(published.context)
    assert refused.value.reason == "NO_RIGHTS"
    postgres.run(*refused.value.help.removeprefix("ask an owner to run: ").split("; "))
    published.sink.check(published.context)
    published.checkpoint(1, (1, "a"))
    published.checkpoint(2, (1, "b"))
    published.roll_back(3, 1)
    assert rows(postgres) == [(1, "a")]
    postgres.run("DROP OWNED BY clerk", "GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")


@pytest.mark.parametrize(
    "table",
    [
        ["CREATE UNLOGGED TABLE t (k bigint, v text)"],
        [
            "CREATE TABLE t (k bigint, v text) PARTITION BY RANGE (k)",
            "CREATE UNLOGGED TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (9)",
        ],
    ],
)
def test_a_table_that_a_crash_empties_is_no_target(publishing, postgres, table):
    """The mark would survive, and say that the rows are there."""
    postgres.run(*table)
    published = publishing(PostgresAppend("t", connection=CONNECTION))
    with pytest.raises(Invalid, match="is unlogged"):
        published.sink.check(published.context)


def test_a_view_is_no_target(publishing, postgres):
    postgres.run("CREATE VIEW t AS SELECT 1::bigint AS k, 'a'::text AS v")
    published = publishing(PostgresAppend("t", connection=CONNECTION))
    with pytest.raises(Invalid, match="it is not a table, but a view"):
        published.sink.check(published.context)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (PostgresAppend("", connection="shop"), "table is ''"),
        (PostgresAppend("a.b.c", connection="shop"), "a schema and a name such as 'shop.sales'"),
        (PostgresAppend("x" * 64, connection="shop"), "longer than 63 bytes"),
        (PostgresAppend("t", connection="shop.eu"), "without a dot"),
        (PostgresAppend("t", connection="shop", schema_evolution="yes"), 'write "refuse", "add" or "widen"'),
        (PostgresUpsert("t", connection="shop", keys=[]), "keys is empty"),
        (PostgresUpsert("t", connection="shop", keys=["a", "A"]), "keys names 'A', 'a' twice"),
        (PostgresUpsert("t", connection="shop", keys=["a"], omit=["a"]), "omit names 'a'"),
        (PostgresUpsert("t", connection="shop", keys=["a"], delete_when=" "), "delete_when is empty"),
    ],
)
def test_every_problem_of_a_declaration_is_told(sink, said):
    assert any(said in problem for problem in sink.problems()), sink.problems()


def test_two_sinks_on_one_table_have_one_target():
    place = Place("/data")
    assert PostgresAppend("t", connection="shop").target(place) == upsert_target("public.t", place)


def upsert_target(table, place):
    return PostgresUpsert(table, connection="shop", keys=["k"]).target(place)


def test_a_description_holds_the_connections_name_only(place):
    sink = upsert(order_by="v", allow_rollback=True)
    assert sink.describe() == {
        "kind": "postgres-upsert",
        "table": "t",
        "connection": "shop",
        "schema_evolution": "refuse",
        "allow_rollback": True,
        "keys": ["k"],
        "order_by": ["v"],
        "delete_when": None,
        "omit": [],
    }
