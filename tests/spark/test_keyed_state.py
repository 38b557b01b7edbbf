"""Keyed state against a dictionary, on real Spark: whatever the keys are, and whoever reads and writes the files."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.merging import merged
from tests.kit.sampling import in_turn
from tidegate.delta import Location
from tidegate.errors import Invalid, Unavailable
from tidegate.state import StateTable
from tidegate.state.arrow import workers
from tidegate.state.keyed import KeyedState, StateFolder
from tidegate.state.record import Ttl

pytestmark = in_turn(seconds=30)

START = datetime(2026, 1, 1, tzinfo=UTC)


class Bed:
    """One state, checkpoint after checkpoint, without a pipeline around it."""

    def __init__(self, root: Path, spark: Any, keys: Sequence[str], groups: int = 16) -> None:
        self.location, self.spark, self.keys, self.groups = Location(str(root)), spark, keys, groups
        self.table: StateTable | None = None
        self.checkpoint = 0

    def open(self, ttl: Ttl | None = None) -> KeyedState:
        self.checkpoint += 1
        to = StateFolder(self.location, f"{self.checkpoint:04d}", self.checkpoint)
        return KeyedState(self.spark, "test 'it'", self.table, to, self.keys, self.groups, ttl)

    def done(self, state: KeyedState) -> None:
        self.table = state.finish()

    def frame(self, rows: Sequence[tuple[Any, ...]], schema: str) -> Any:
        return self.spark.createDataFrame(list(rows), schema)

    def rows(self) -> Any:
        return self.open().rows()


def plain(value: Any) -> Any:
    """A value that equals itself: NaN, rows."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def told(frame: Any, keys: int) -> dict[Any, Any]:
    """Key → values."""
    rows = [tuple(map(plain, row)) for row in frame.collect()] if frame is not None else []
    found = {row[:keys]: row[keys:] for row in rows}
    assert len(found) == len(rows), "a key twice"
    return found


NAN, ZERO = float("nan"), 0.0
MIXED = [
    (name, (n, text), number)
    for name in (None, "", "é", "a b")
    for n, text in ((1, "x"), (None, "y"), (3, None))
    for number in (NAN, ZERO, -1.5, None)
]
"""Keys of three columns: text or null, a struct with nulls in it, a float that may be NaN."""


@pytest.mark.parametrize("by_workers", [True, False])
def test_composite_nested_and_odd_keys_with_deletes_and_rescaling(
    tmp_path: Path, spark: Any, by_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_workers:
        monkeypatch.setattr(workers, "usable", lambda *_: False)
    r = random.Random(7)
    bed = Bed(tmp_path, spark, ["name", "at.it", "number"])
    keyed = "name string, `at.it` struct<n: int, text: string>, number double"
    reference: dict[Any, Any] = {}
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    for turn, size in enumerate([3, 0, 40, 1, 5, 5, 5, 5, 5, 5, 12, 2]):
        spark.conf.set("spark.sql.shuffle.partitions", [2, 3, 1][turn % 3])
        batch = {tuple(map(plain, key)): key for key in r.sample(MIXED, size)}
        state = bed.open()
        keys = bed.frame(list(batch.values()), keyed)
        assert told(state.lookup(keys), 3) == {key: reference[key] for key in batch if key in reference}
        changes = {key: (r.randint(0, 9), r.random() < 0.3) for key in batch}
        rows = [(*batch[key], v, gone) for key, (v, gone) in changes.items()]
        written = state.write_changes(bed.frame(rows, f"{keyed}, v int, _deleted boolean"), deletes=True)
        assert written.count() == size
        bed.done(state)
        reference |= {key: (v,) for key, (v, _) in changes.items()}
        for key, (_, gone) in changes.items():
            if gone:
                reference.pop(key, None)
        if turn % 4 == 3:
            assert told(bed.rows(), 3) == reference
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert told(bed.rows(), 3) == reference
    assert bed.table is not None
    assert len(bed.table.files) < 20, "merged now and then"


def test_a_state_that_the_disk_refuses_is_never_acked(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is waited for beside other work. The ack must not be written as if it had answered."""
    bed = Bed(tmp_path, spark, ["k"])
    state = bed.open()

    def refuse(location: Location, paths: Sequence[str]) -> None:
        raise Unavailable(f"{location.url}: No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(Location, "sync", refuse)
        state.write_changes(bed.frame([("a", 1)], "k string, v int"))
        with pytest.raises(Unavailable, match="No space left"):
            bed.done(state)
        state.release()
    assert bed.table is None
    again = bed.open()
    again.write_changes(bed.frame([("a", 1)], "k string, v int"))
    bed.done(again)
    assert told(bed.rows(), 1) == {("a",): (1,)}


def test_keys_of_more_columns_than_the_log_keeps_statistics_of(tmp_path: Path, spark: Any) -> None:
    """What tidegate must know of each file is told all the same: its groups, checkpoints and when it was written."""
    wide = [f"k{n}" for n in range(36)]
    bed = Bed(tmp_path, spark, [*wide, "nested"])
    ttl = Ttl(timedelta(minutes=10), START, START)
    for n in (1, 2):
        state = bed.open(ttl)
        flat = ", ".join(f"id AS {name}" for name in wide)
        state.write_changes(
            spark.sql(f"SELECT {flat}, struct(id, struct(id AS b) AS c) AS nested, {n} AS v FROM range({n})")
        )
        bed.done(state)
    assert bed.table is not None
    assert {(each.oldest, each.checkpoint) for each in bed.table.files} == {(1, 1), (2, 2)}
    assert all(each.touched == START.timestamp() * 1e6 for each in bed.table.files)
    found = bed.rows()
    assert sorted((row.k0, row.k35, row.nested.c.b, row.v) for row in found.collect()) == [(0, 0, 0, 2), (1, 1, 1, 2)]


@pytest.mark.parametrize("empty", ["known to be", "found to be"])
def test_a_checkpoint_without_rows_loses_nothing_when_runs_are_to_be_merged(
    tmp_path: Path, spark: Any, empty: str
) -> None:
    """Of rows that Spark knows to be none it runs no worker, so none merges: what is merged is told by the workers."""
    bed = Bed(tmp_path, spark, ["k"], groups=1)
    for n in range(8):
        state = bed.open()
        state.write_changes(bed.frame([(n, 1)], "k long, n long"))
        bed.done(state)
    state = bed.open()
    assert not state.changed
    rows = bed.frame([(9, 9)] if empty == "found to be" else [], "k long, n long").where("n < 5")
    merged(state, rows, {"n": "sum"})
    bed.done(state)
    assert told(bed.rows(), 1) == {(n,): (1,) for n in range(8)}
    assert bed.table is not None
    assert state.changed
    assert len(bed.table.files) == 1, "the merge is made up for"


KINDS: dict[str, tuple[str, str, Callable[[random.Random], tuple[Any, ...]]]] = {
    "numbers": ("k long", "k", lambda r: (r.randint(-60, 60),)),
    "a text, a day": (
        "k string, d date",
        "k d",
        lambda r: (r.choice([None, *"abcdefgh"]), r.choice([None, *(date(2026, 1, n) for n in range(1, 9))])),
    ),
}
OPS = {"n": "sum", "total": "sum", "least": "min", "last": "max"}
VALUES = "n long, total decimal(20,2), least int, last timestamp"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_merge_alike_whether_workers_reach_files_or_spark_brings_them(
    tmp_path: Path, spark: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches with more keys than the state, none, one key over and over, many keys; runs are merged on the way."""
    r = random.Random(kind)
    schema, names, make = KINDS[kind]
    keys = names.split()
    beds = [Bed(tmp_path / "files", spark, keys), Bed(tmp_path / "spark", spark, keys)]
    usable = workers.usable
    merged_by_workers = 0
    for size in [4, 150, 0, 1, 30, 9, 9, 9, 9, 9, 9, 300]:
        skewed = make(r)
        rows = [
            (
                *(skewed if size == 30 else make(r)),
                r.choice([None, 1, 1, 2]),
                r.choice([None, f"{r.randint(-99, 99)}.25"]),
                r.choice([None, r.randint(-5, 5)]),
                r.choice([None, START + timedelta(minutes=r.randint(0, 99))]),
            )
            for _ in range(size)
        ]
        outcomes = []
        for bed, by_workers in zip(beds, (True, False), strict=True):
            monkeypatch.setattr(workers, "usable", usable if by_workers else lambda *_: False)
            state = bed.open()
            frame = bed.frame(rows, f"{schema}, n long, total string, least int, last timestamp")
            outcomes.append(told(merged(state, frame.withColumn("total", frame.total.cast("decimal(20,2)")), OPS), 2))
            bed.done(state)
        assert outcomes[0] == outcomes[1]
        assert beds[0].table is not None
        merged_by_workers += any(each.oldest < each.checkpoint for each in beds[0].table.files)
    assert told(beds[0].rows(), len(keys)) == told(beds[1].rows(), len(keys))
    assert merged_by_workers, "some files were merged"


def test_batches_of_many_keys_do_not_fit_a_broadcast_and_small_ones_do(tmp_path: Path, spark: Any) -> None:
    bed = Bed(tmp_path, spark, ["k"])
    state = bed.open()
    state.write_changes(spark.range(2000).selectExpr("id AS k", "id * 2 AS v"))
    bed.done(state)
    limit = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    plans = {}
    try:
        for threshold in ("10485760b", "-1"):
            spark.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
            found = bed.open().lookup(spark.range(1990, 2010).selectExpr("id AS k"))
            assert told(found, 1) == {(k,): (2 * k,) for k in range(1990, 2000)}
            plans[threshold] = found._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", limit)
    assert "BroadcastHashJoin" in plans["10485760b"]
    assert "Broadcast" not in plans["-1"], "Spark chooses by size: a large batch is shuffled"


def test_many_partitions_do_not_mean_many_files(tmp_path: Path, spark: Any) -> None:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 64)
    try:
        bed = Bed(tmp_path, spark, ["k"], groups=128)
        state = bed.open()
        state.write_changes(spark.range(500).selectExpr("id AS k", "1L AS n"))
        bed.done(state)
        assert bed.table is not None
        assert len(bed.table.files) <= 8
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)


def test_rows_expire_and_their_files_go(tmp_path: Path, spark: Any) -> None:
    """A key that is not seen for ten minutes is forgotten: at once by readers, later on disk, without being read."""
    bed = Bed(tmp_path, spark, ["k"])

    def at(minute: int) -> Ttl:
        at = START + timedelta(minutes=minute)
        return Ttl(timedelta(minutes=10), at, at)

    def merge(minute: int, *keys: str) -> dict[Any, Any]:
        state = bed.open(at(minute))
        outcome = told(merged(state, bed.frame([(key, 1) for key in keys], "k string, n long"), {"n": "sum"}), 1)
        bed.done(state)
        return outcome

    assert merge(0, "a", "b") == {("a",): (1,), ("b",): (1,)}
    assert merge(9, "a") == {("a",): (2,)}
    assert told(bed.open(at(12)).rows(), 1) == {("a",): (2,)}
    assert told(bed.open(at(12)).lookup(bed.frame([("a",), ("b",)], "k string")), 1) == {("a",): (2,)}
    assert merge(12, "b") == {("b",): (1,)}, "it begins anew"
    assert bed.table is not None
    assert all(each.checkpoint > 1 for each in bed.table.files), "what has expired as a whole is dropped"
    assert merge(60, "c") == {("c",): (1,)}
    assert {each.oldest for each in bed.table.files} == {bed.checkpoint}, "nothing else is left"
    assert told(bed.open(Ttl(timedelta(minutes=10), None, None)).rows(), 1) == {("c",): (1,)}, "no event time, no end"


def test_what_is_written_anew_without_some_rows_leaves_no_file_that_nobody_names(tmp_path: Path, spark: Any) -> None:
    """A column is left out in the same checkpoint, so all of it is written anew twice."""
    bed = Bed(tmp_path, spark, ["k"])
    state = bed.open()
    merged(state, bed.frame([(key, 1, 2) for key in "abc"], "k string, n long, m long"), {"n": "sum", "m": "max"})
    bed.done(state)
    state.release()
    state = bed.open()
    state.rewrite(change=lambda rows: rows.where("k <> 'b'"))
    assert state.rows_in_files == 2
    merged(state, bed.frame([("c", 1)], "k string, n long"), {"n": "sum"})
    bed.done(state)
    state.release()
    assert bed.table is not None
    of_it = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "0002").rglob("*.parquet")}
    assert of_it == {file.file.path for file in bed.table.files if file.file.path.startswith("0002")}
    assert told(bed.rows(), 1) == {("a",): (1,), ("c",): (2,)}


@pytest.mark.parametrize("by_workers", [True, False])
def test_values_may_be_added_left_out_and_widened(
    tmp_path: Path, spark: Any, by_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_workers:
        monkeypatch.setattr(workers, "usable", lambda *_: False)
    bed = Bed(tmp_path, spark, ["k"])

    def merge(rows: list[tuple[Any, ...]], schema: str, **ops: str) -> dict[Any, Any]:
        state = bed.open()
        merged(state, bed.frame(rows, f"k string, {schema}"), ops)
        bed.done(state)
        return told(bed.rows(), 1)

    merge([("a", 1, 5), ("b", 1, 6)], "n long, least int", n="sum", least="min")
    wider = merge([("a", 1, 2**40)], "n long, least long", n="sum", least="min")
    assert wider == {("a",): (2, 5), ("b",): (1, 6)}
    added = merge([("b", 1, 7, 3)], "n long, least long, most long", n="sum", least="min", most="max")
    assert added == {("a",): (2, 5, None), ("b",): (2, 6, 3)}
    assert merge([("c", 1)], "n long", n="sum") == {("a",): (2,), ("b",): (2,), ("c",): (1,)}
    back = merge([("c", 1, 9)], "n long, least long", n="sum", least="min")
    assert back == {("a",): (2, None), ("b",): (2, None), ("c",): (2, 9)}, "what was left out does not come back"


def test_what_a_state_cannot_become_is_refused_with_all_reasons(tmp_path: Path, spark: Any) -> None:
    bed = Bed(tmp_path, spark, ["k"])
    state = bed.open()
    state.write_changes(bed.frame([(1, 1, "x", 1.5)], "k long, n long, t string, f double"))
    bed.done(state)
    with pytest.raises(Invalid) as refused:
        bed.open().write_changes(bed.frame([("1", 1, 2, 3)], "k string, n int, t long, F long"))
    assert refused.value.reason == "STATE_CHANGED"
    for text in (
        "key 'k' is string; the state has bigint: keys keep their type",
        "'n' is int; the state has bigint: the type bigint cannot change",
        "'t' is bigint; the state has string: the type string cannot change",
        "'F' is written 'f' in the state",
    ):
        assert text in str(refused.value), str(refused.value)
    other = KeyedState(spark, "test", bed.table, StateFolder(bed.location, "x", 9), ["k", "n"], 16)
    with pytest.raises(Invalid, match="its keys are k, n; the state has k"):
        other.write_changes(bed.frame([(1, 1, "x", 1.5)], "k long, n long, t string, f double"))


def test_a_sum_that_does_not_fit_fails_whoever_adds_it(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for by_workers in (True, False):
        if not by_workers:
            monkeypatch.setattr(workers, "usable", lambda *_: False)
        bed = Bed(tmp_path / str(by_workers), spark, ["k"])
        state = bed.open()
        merged(state, bed.frame([("a", 2**63 - 1)], "k string, n long"), {"n": "sum"})
        bed.done(state)
        with pytest.raises(Exception, match="(?i)overflow"):
            merged(bed.open(), bed.frame([("a", 1)], "k string, n long"), {"n": "sum"}).collect()
