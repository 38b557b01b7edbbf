"""Kernels whose rows wait for the watermark, against plain Python: several checkpoints in a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.kernels import State, apply, looked_up, table
from tidegate.operators.by_workers.waiting import WaitingRows
from tidegate.operators.join.as_of_by_workers import AsOfInWorkers
from tidegate.operators.join.by_workers import FROM_RIGHT, JoinSide

KEYS = st.sampled_from([None, "a", "b"])
TIMES = st.one_of(st.none(), st.integers(0, 12))
MARKS = st.lists(st.integers(0, 14), min_size=4, max_size=4).map(sorted)
"""The watermarks of four checkpoints."""
KEYED = [("_group", pa.int32()), ("k", pa.string()), ("_row", pa.string())]
ENDING = [("_at", pa.int64()), ("_n", pa.int64())]


def is_late(at: int, before: int | None) -> bool:
    return before is not None and at < before


def found(state: State, arrived: pa.Table, now: int) -> list[dict[str, Any]]:
    """What workers look up of rows that wait: copies of those that arrive, and those that are ready."""
    nothing = pa.array([False] * arrived.num_rows)
    wanted = looked_up(state, arrived, nothing)
    return [row for row in state.values() if row in wanted or row["_at"] < now]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.booleans(), KEYS, TIMES, st.integers(0, 3)), max_size=10), min_size=1, max_size=4),
    MARKS,
    st.booleans(),
)
def test_a_row_meets_the_newest_version_that_is_not_newer_once_the_watermark_has_passed_it(
    batches: list[list[tuple[Any, ...]]], marks: list[int], outer: bool
) -> None:
    sides = (
        JoinSide({"x": "l0"}, ["x"], [("x", "x")], None, outer=False),
        JoinSide({"y": "r0"}, ["y"], [("y", "y")], None, outer=False),
    )
    arriving = [*KEYED, ("_at", pa.int64()), (FROM_RIGHT, pa.bool_()), ("l0", pa.string()), ("r0", pa.string())]
    fields = [[*KEYED, ("x", pa.string()), *ENDING], [*KEYED, ("y", pa.string()), ("_at", pa.int64())]]
    states: list[State] = [{}, {}]
    waiting: list[tuple[Any, int, str]] = []
    versions: set[tuple[str, int, str]] = set()
    before: int | None = None
    for batch, now in zip(batches, marks, strict=False):
        rows = [
            {FROM_RIGHT: right, "k": k, "_at": at, "_row": f"{at} {v}", "r0" if right else "l0": f"{k} {at} {v}"}
            for right, k, at, v in batch
            if not right or (at is not None and k is not None)
        ]
        late = Counter(row["l0"] for row in rows if "l0" in row and (row["_at"] is None or is_late(row["_at"], before)))
        for row in rows:
            if row.get(FROM_RIGHT):
                versions.add((row["k"], row["_at"], row["_row"]))
            elif row["_at"] is not None and not is_late(row["_at"], before):
                waiting.append((row["k"], row["_at"], row["l0"]))
        wanted: Counter[Any] = Counter()
        for k, at, x in waiting:
            held = [version for version in versions if version[0] == k and version[1] <= at]
            if at < now and (held or outer):
                y = max(held, key=lambda version: version[1:]) if held else None
                wanted[k, x, None if y is None else f"{y[0]} {y[2]}"] += 1
        waiting = [row for row in waiting if row[1] >= now]

        work = AsOfInWorkers(["k"], sides, WaitingRows(["k"], {"x": "l0"}, before, now), outer)
        arrived = table(rows, arriving)
        ready = found(states[0], arrived, now)
        whole = looked_up(states[1], arrived, work.meeting(arrived, 1))
        also = [row for row in states[1].values() if row["k"] in {other["k"] for other in ready}]
        of_keys = [row for row in states[1].values() if row in whole or row in also]
        folded = work(arrived, [table(ready, fields[0]), table(of_keys, fields[1])])
        assert Counter((row["k"], row["x"], row["y"]) for some in folded.given for row in some.to_pylist()) == wanted
        assert Counter(folded.apart["late"]["x"].to_pylist()) == late
        assert sum(folded.counts.values()) == late.total()
        for state, changes in zip(states, folded.changes, strict=True):
            apply(state, changes, ["k", "_row"])
        assert Counter(x for row in states[0].values() for x in [row["x"]] * row["_n"]) == Counter(
            x for _, _, x in waiting
        )
        before = now


def test_a_version_is_forgotten_when_a_newer_one_holds_for_all_rows_to_come() -> None:
    sides = (
        JoinSide({"x": "l0"}, ["x"], [("x", "x")], None, outer=False),
        JoinSide({"y": "r0"}, ["y"], [("y", "y")], None, outer=False),
    )
    arriving = [*KEYED, ("_at", pa.int64()), (FROM_RIGHT, pa.bool_()), ("l0", pa.string()), ("r0", pa.string())]
    fields = [[*KEYED, ("x", pa.string()), *ENDING], [*KEYED, ("y", pa.string()), ("_at", pa.int64())]]
    state: State = {}
    kept = []
    for now in (0, 5, 6):
        rows = [{FROM_RIGHT: True, "k": "a", "_at": at, "_row": f"{at}", "r0": f"{at}"} for at in (1, 3, 6)]
        work = AsOfInWorkers(["k"], sides, WaitingRows(["k"], {"x": "l0"}, None, now), outer=False)
        folded = work(table(rows, arriving), [table([], fields[0]), table(list(state.values()), fields[1])])
        apply(state, folded.changes[1], ["k", "_row"])
        kept.append(sorted(row["_at"] for row in state.values()))
    assert kept == [[1, 3, 6], [3, 6], [6]]
