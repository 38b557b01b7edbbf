"""Rows that a worker holds: in memory, on disk by parts, or, of one key, not at all."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.operators.kernels.ordered import ordered
from tidegate.state.arrow.spill import BufferedBatch, Limits, Spilled, TooMany, spilling
from tidegate.state.columns import GROUP

SCHEMA = pa.schema([(GROUP, pa.int32()), ("k", pa.string()), ("v", pa.int64())])


def table(rows: list[tuple[int, Any, int]], kind: pa.DataType | None = None) -> pa.Table:
    columns = {GROUP: pa.array([g for g, _, _ in rows], pa.int32()), "k": pa.array([k for _, k, _ in rows], kind)}
    return pa.table({**columns, "v": pa.array([v for _, _, v in rows], pa.int64())})


def all_parts(held: BufferedBatch) -> list[pa.Table]:
    try:
        return held.tables()[:1]
    except TooMany:
        return [each for part in held.parts() for each in all_parts(part)]


@pytest.mark.parametrize("seed", range(10))
def test_each_key_is_whole_in_one_part_and_no_row_is_lost(seed: int) -> None:
    dice = random.Random(seed)
    keys = [None, "", "é", *(f"key {n}" for n in range(40))]
    rows = [(0, key, n) for n, key in enumerate(dice.choices(keys, k=800))]
    rows = [(len(str(key)) % 4, key, n) for _, key, n in rows]
    with spilling() as spilled:
        held = BufferedBatch([SCHEMA], ["k"], range(4), Limits(1500, 1500), spilled)
        for begin in range(0, 800, 50):
            held.add(table(rows[begin : begin + 50], pa.string()))
        parts = all_parts(held)
        assert spilled.bytes > 10_000
    assert Counter(row["v"] for part in parts for row in part.to_pylist()) == Counter(range(800))
    seen = [set(part["k"].to_pylist()) for part in parts]
    assert sum(map(len, seen)) == len(set().union(*seen)), "a key is in two parts"
    assert len(parts) > 5


def test_what_is_written_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'none'},{tmp_path}")
    with spilling() as spilled:
        held = BufferedBatch([SCHEMA], ["k"], range(4), Limits(100, 100), spilled)
        held.add(table([(n % 4, f"{n}", n) for n in range(50)]))
        assert list(tmp_path.rglob("*.arrow"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fewer", [None, lambda rows: rows])
def test_of_a_key_that_memory_cannot_hold_nothing_is_held_but_its_name(fewer: Any) -> None:
    alone = BufferedBatch([SCHEMA], ["k"], range(1), Limits(1000, 1000), Spilled(), fewer, is_alone=True)
    for _ in range(200):
        alone.add(table([(0, "hot", n) for n in range(100)]))
    with pytest.raises(TooMany) as refused:
        alone.tables()
    assert refused.value.size > 100_000
    assert alone.one_key() == "k = hot"
    assert sum(rows.nbytes for rows in alone._tables[0]) < 1000


def test_texts_that_are_no_text_are_keys_all_the_same() -> None:
    """Files and brokers hold such bytes, and Spark takes them for texts."""
    bytes_ = [b"\xff", b"\xfe", b"a"] * 40
    texts = pa.array(bytes_, pa.binary()).view(pa.string())
    rows = pa.table({GROUP: pa.array([0] * 120, pa.int32()), "k": texts, "v": pa.array(range(120))})
    with spilling() as spilled:
        held = BufferedBatch([rows.schema], ["k"], range(1), Limits(200, 200), spilled)
        held.add(rows)
        parts = [part for part in all_parts(held) if part.num_rows]
    assert sorted(part.num_rows for part in parts) == [40, 40, 40]


def test_values_within_structs_are_ordered_as_by_spark_whatever_the_calendar() -> None:
    moment = pa.timestamp("us", "UTC")
    kind = pa.struct([("x", pa.float64()), ("at", moment)])
    far = 300_000_000_000_000_000
    rows: list[Any] = [
        {"x": 0.0, "at": 0},
        {"x": -0.0, "at": 0},
        {"x": float("nan"), "at": None},
        {"x": None, "at": far},
    ]
    plain = pa.struct([("x", pa.float64()), ("at", pa.int64())])
    (ranks,) = ordered(pa.array([*rows, None, {"x": 0.0, "at": far}], plain).cast(kind))
    assert ranks.to_pylist() == [1, 1, 3, 0, None, 2]
