"""Kernels whose rows wait for the watermark, against plain Python: several checkpoints in a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.kernels import State, apply, looked_up, table
from tidegate.operators.join.as_of_kernel import AsOfInWorkers
from tidegate.operators.join.kernel import FROM_RIGHT, JoinSide
from tidegate.operators.kernels.counted import ROWS, CountedWindows
from tidegate.operators.kernels.over import NUMBER, PLACE, RowsInOrder, of_one_row
from tidegate.operators.kernels.waiting import WaitingRows

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
        JoinSide({"x": "l0"}, ["x"], [("x", "x")], None, emits_unmatched=False),
        JoinSide({"y": "r0"}, ["y"], [("y", "y")], None, emits_unmatched=False),
    )
    arriving = [*KEYED, ("_at", pa.int64()), (FROM_RIGHT, pa.bool_()), ("l0", pa.string()), ("r0", pa.string())]
    fields = [[*KEYED, ("x", pa.string()), *ENDING], [*KEYED, ("y", pa.string()), ("_at", pa.int64())]]
    states: list[State] = [{}, {}]
    waiting: list[tuple[Any, int, str]] = []
    versions: set[tuple[str, int, str]] = set()
    before: int | None = None
    for batch, now in zip(batches, marks, strict=False):
        rows = [
            {FROM_RIGHT: right, "k": k, "_at": at, "_row": f"{k} {at} {v}", "r0" if right else "l0": f"{k} {at} {v}"}
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
                wanted[k, x, None if y is None else y[2]] += 1
        waiting = [row for row in waiting if row[1] >= now]

        work = AsOfInWorkers(["k"], sides, WaitingRows(["k"], {"x": "l0"}, before, now), outer)
        arrived = table(rows, arriving)
        ready = found(states[0], arrived, now)
        whole = looked_up(states[1], arrived, work.needs_match(arrived, 1))
        also = [row for row in states[1].values() if row["k"] in {other["k"] for other in ready}]
        of_keys = [row for row in states[1].values() if row in whole or row in also]
        folded = work(arrived, [table(ready, fields[0]), table(of_keys, fields[1])])
        assert Counter((row["k"], row["x"], row["y"]) for some in folded.rows for row in some.to_pylist()) == wanted
        assert Counter(folded.side_outputs["late"]["x"].to_pylist()) == late
        assert sum(folded.counts.values()) == late.total()
        for state, changes in zip(states, folded.changes, strict=True):
            apply(state, changes, ["k", "_row"])
        assert Counter(x for row in states[0].values() for x in [row["x"]] * row["_n"]) == Counter(
            x for _, _, x in waiting
        )
        before = now


def test_a_version_is_forgotten_when_a_newer_one_holds_for_all_rows_to_come() -> None:
    sides = (
        JoinSide({"x": "l0"}, ["x"], [("x", "x")], None, emits_unmatched=False),
        JoinSide({"y": "r0"}, ["y"], [("y", "y")], None, emits_unmatched=False),
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


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.tuples(KEYS, TIMES, st.one_of(st.none(), st.integers(0, 3))), max_size=10), max_size=4),
    MARKS,
    st.one_of(st.none(), st.integers(1, 4)),
    st.integers(1, 3),
    st.booleans(),
)
def test_each_row_comes_once_with_what_the_rows_up_to_it_come_to_however_they_were_cut(
    batches: list[list[tuple[Any, ...]]], marks: list[int], frame: int | None, back: int, together: bool
) -> None:
    long = pa.int64()
    computed = {of_one_row(name): long for name in ("total", "most", "before")}
    arriving = [*KEYED, ("_at", long), ("v0", long), *computed.items()]
    waits = [*KEYED, ("v", long), *ENDING, *computed.items()]
    last = [
        *(("_group", pa.int32()), ("k", pa.string()), (PLACE, pa.int32()), ("v", long), ("_at", long)),
        *(("_row", pa.string()), ("total", long), ("most", long), (NUMBER, long), *computed.items()),
    ]
    states: list[State] = [{}, {}]
    rows_of: dict[Any, list[tuple[int, str, int | None]]] = {}
    wanted: Counter[Any] = Counter()
    shown: Counter[Any] = Counter()
    before: int | None = None
    for batch, now in zip(batches, marks, strict=False):
        for k, at, v in batch:
            if at is not None and not is_late(at, before):
                rows_of.setdefault(k, []).append((at, f"{at} {v}", v))
        work = RowsInOrder(
            ["k"],
            WaitingRows(["k"], {"v": "v0", **{name: name for name in computed}}, before, now, list(computed)),
            ["v"],
            {"total": "sum", "most": "max"},
            {"before": back},
            ["nth"],
            frame,
            max(back, (frame or 1) - 1),
            together,
        )
        arrived = table(
            [{"k": k, "_at": at, "_row": f"{k} {at} {v}", "v0": v, **dict.fromkeys(computed, v)} for k, at, v in batch],
            arriving,
        )
        ready = found(states[0], arrived, now)
        keys = {row["k"] for row in ready}
        keys |= {row["k"] for row in looked_up(states[1], arrived, work.needs_match(arrived, 1))} if batch else set()
        of_keys = [row for row in states[1].values() if row["k"] in keys]
        folded = work(arrived, [table(ready, waits), table(of_keys, last)])
        assert set(folded.side_outputs["late"].column_names) == {"k", "v"}, "nothing that was computed of them"
        for row in (row for some in folded.rows for row in some.to_pylist()):
            shown[row["k"], row["v"], row["total"], row["most"], row["before"], row["nth"]] += 1
        for state, changes, by in zip(states, folded.changes, (["k", "_row"], ["k", PLACE]), strict=True):
            apply(state, changes, by)
        before = now
    for k, rows in rows_of.items():
        rows.sort()
        for place, (at, _, v) in enumerate(rows):
            if before is not None and at < before:
                framed = rows[max(0, place + 1 - frame) if frame else 0 : place + 1]
                known = [value for *_, value in framed if value is not None]
                earlier = rows[place - back][2] if place >= back else None
                total, most = (sum(known), max(known)) if known else (None, None)
                wanted[k, v, total, most, earlier, place + 1] += 1
    assert shown == wanted
    assert all(sum(row["k"] == k for row in states[1].values()) <= max(back, (frame or 1) - 1) for k in rows_of)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.tuples(KEYS, TIMES, st.one_of(st.none(), st.integers(0, 3))), max_size=10), max_size=4),
    MARKS,
    st.integers(1, 4),
)
def test_a_window_is_given_once_it_has_so_many_rows_which_they_are_in_the_order_of_time(
    batches: list[list[tuple[Any, ...]]], marks: list[int], count: int
) -> None:
    long, moment = pa.int64(), pa.timestamp("us", "UTC")
    single = {of_one_row(name): long for name in ("total", "least")}
    arriving = [*KEYED, ("_at", long), ("v0", long), *single.items()]
    waits = [*KEYED, ("v", long), *ENDING, *single.items()]
    window = [
        *(("_group", pa.int32()), ("k", pa.string()), ("start", moment), ("end", moment), (ROWS, long)),
        *(("total", long), ("least", long)),
    ]
    states: list[State] = [{}, {}]
    rows_of: dict[Any, list[tuple[int, str, int | None]]] = {}
    shown: Counter[Any] = Counter()
    before: int | None = None
    for batch, now in zip(batches, marks, strict=False):
        for k, at, v in batch:
            if at is not None and not is_late(at, before):
                rows_of.setdefault(k, []).append((at, f"{at} {v}", v))
        waiting = WaitingRows(["k"], {"v": "v0", **{name: name for name in single}}, before, now, list(single))
        work = CountedWindows(["k"], waiting, "start", "end", {"total": "sum", "least": "min"}, count)
        arrived = table(
            [{"k": k, "_at": at, "_row": f"{k} {at} {v}", "v0": v, **dict.fromkeys(single, v)} for k, at, v in batch],
            arriving,
        )
        ready = found(states[0], arrived, now)
        keys = {row["k"] for row in ready}
        keys |= {
            row["k"]
            for row, is_so in zip(arrived.to_pylist(), work.needs_match(arrived, 1).to_pylist(), strict=True)
            if is_so
        }
        open_windows = [row for row in states[1].values() if row["k"] in keys]
        folded = work(arrived, [table(ready, waits), table(open_windows, window)])
        for some in folded.rows:
            times = [some[name].cast(long).to_pylist() for name in ("start", "end")]
            results = [some[name].to_pylist() for name in ("total", "least")]
            shown.update(zip(some["k"].to_pylist(), *times, *results, strict=True))
        for state, changes, by in zip(states, folded.changes, (["k", "_row"], ["k"]), strict=True):
            apply(state, changes, by)
        before = now
    wanted: Counter[Any] = Counter()
    for k, rows in rows_of.items():
        passed = sorted(row for row in rows if before is not None and row[0] < before)
        for begin in range(0, len(passed), count):
            some = passed[begin : begin + count]
            known = [v for *_, v in some if v is not None]
            total, least = (sum(known), min(known)) if known else (None, None)
            if len(some) == count:
                wanted[k, some[0][0], some[-1][0], total, least] += 1
        assert ((k,) in states[1]) == (len(passed) % count > 0), "only windows that are not full are kept"
    assert shown == wanted
