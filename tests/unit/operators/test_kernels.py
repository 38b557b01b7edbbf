"""Operators as workers compute them, against plain Python: several checkpoints in a row."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.kernels import apply, looked_up, stored, table
from tidegate.operators.distinct.kernel import (
    ARRIVED_LIFE,
    CARRIES_AGGREGATES,
    COUNT_BITS,
    LIFE,
    NewValues,
    new_column,
)
from tidegate.operators.join.current_rows import CurrentRowsJoin
from tidegate.operators.join.kernel import FROM_RIGHT, IntervalJoinKernel, JoinSide
from tidegate.operators.kernels.deduplicated import DeduplicateWithin, FirstPerKey
from tidegate.operators.kernels.greatest import LatestRow
from tidegate.operators.kernels.merged import MergeAggregates
from tidegate.operators.kernels.ranked import TopRows
from tidegate.state.arrow.kernel_worker import IS_CURRENT, Tied

KEYS = st.sampled_from([None, "a", "b"])
TIMES = st.one_of(st.none(), st.integers(0, 12))
ARRIVED = [("_group", pa.int32()), ("k", pa.string()), ("_at", pa.int64()), ("_row", pa.string()), ("v", pa.string())]


# -- deduplication ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(KEYS, TIMES, st.integers(0, 3)), max_size=8), max_size=4))
def test_the_first_row_of_each_key_comes_once(batches: list[list[tuple[Any, ...]]]) -> None:
    state: dict[Any, dict[str, Any]] = {}
    known: set[Any] = set()
    for batch in batches:
        rows = [{"k": k, "_at": at, "_row": f"{v}", "v": f"{k} {at} {v}"} for k, at, v in batch]
        folded = FirstPerKey(["k"], {"k": "k", "v": "v"})(
            table(rows, ARRIVED), [stored(state, [("_group", pa.int32()), ("k", pa.string())])]
        )
        firsts = {}
        for row in sorted(rows, key=lambda row: (row["_at"] is None, row["_at"] or 0, row["_row"])):
            firsts.setdefault(row["k"], row["v"])
        wanted = Counter(firsts[k] for k in firsts.keys() - known)
        assert Counter(row["v"] for chunk in folded.rows for row in chunk.to_pylist()) == wanted
        known |= firsts.keys()
        apply(state, folded.changes[0], ["k"])
        assert {key for (key,) in state} == known


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.tuples(KEYS, st.integers(1, 7), st.integers(0, 3)), max_size=8), max_size=4))
def test_each_distinct_value_counts_once(arriving: list[list[tuple[Any, ...]]]) -> None:
    """Of three counts, two have a state together, and one has its own: a value is for some of them, or for all."""
    places = {0: (0, "_n"), 1: (0, "_n_big"), 2: (1, "_n")}
    fields = [("_group", pa.int32()), ("k", pa.string()), ("_value0", pa.int64())]
    stored_fields = [[*fields, ("_n", pa.int64()), ("_n_big", pa.int64())], [*fields, ("_n", pa.int64())]]
    states: list[dict[Any, dict[str, Any]]] = [{}, {}]
    known: set[Any] = set()
    for some in arriving:
        arrived = table(
            [{"k": k, COUNT_BITS: bits, "_value0": value} for k, bits, value in some],
            [*fields, (COUNT_BITS, pa.int64())],
        )
        batch = Counter((k, count, value) for k, bits, value in some for count in places if bits & (1 << count))
        before = [stored(state, columns) for state, columns in zip(states, stored_fields, strict=True)]
        folded = NewValues(["k"], ["_value0"], [["_n", "_n_big"], ["_n"]])(arrived, before)
        grown: Counter[Any] = Counter()
        for row in (row for chunk in folded.rows for row in chunk.to_pylist()):
            grown.update({(row["k"], count): row[new_column(count)] or 0 for count in places})
        new = batch.keys() - known
        assert +grown == Counter((k, count) for k, count, _ in new)
        assert all(rows.num_rows <= len({(k, value) for k, _, value in new}) for rows in folded.changes)
        known |= new
        for state, changes in zip(states, folded.changes, strict=True):
            apply(state, changes, ["k", "_value0"])
        for count, (place, name) in places.items():
            there = {(k, value): row[name] for (k, value), row in states[place].items() if row[name]}
            assert there.keys() == {(k, value) for k, at, value in known if at == count}
            assert all(there[k, value] == batch[k, at, value] for k, at, value in new if at == count)


BATCH_OF_LIVES = st.tuples(
    st.lists(st.tuples(KEYS, st.integers(1, 3), st.integers(0, 3)), max_size=8), st.frozensets(KEYS)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(BATCH_OF_LIVES, max_size=5))
def test_a_value_counts_once_in_each_life_of_its_key(arriving: list[tuple[Any, ...]]) -> None:
    """Before each batch some keys were forgotten. What was stored before that could happen says nothing of lives."""
    fields = [("_group", pa.int32()), ("k", pa.string()), ("_value0", pa.int64())]
    columns = [*fields, (LIFE, pa.int64()), ("_n", pa.int64()), ("_n_big", pa.int64())]
    names = ["_n", "_n_big"]
    state: dict[Any, dict[str, Any]] = {}
    begun: dict[Any, int] = {}
    known: set[Any] = set()
    for checkpoint, (some, forgotten) in enumerate(arriving):
        known = {each for each in known if each[0] not in forgotten}
        begun |= dict.fromkeys(forgotten, checkpoint)
        arrived = table(
            [{"k": k, ARRIVED_LIFE: begun.get(k, 0), COUNT_BITS: bits, "_value0": value} for k, bits, value in some],
            [*fields, (ARRIVED_LIFE, pa.int64()), (COUNT_BITS, pa.int64())],
        )
        folded = NewValues(["k"], ["_value0"], [names], has_lives=True)(arrived, [stored(state, columns)])
        grown: Counter[Any] = Counter()
        for row in (row for chunk in folded.rows for row in chunk.to_pylist()):
            grown.update({(row["k"], count): row[new_column(count)] or 0 for count in (0, 1)})
        new = {(k, count, value) for k, bits, value in some for count in (0, 1) if bits & 1 << count} - known
        assert +grown == Counter((k, count) for k, count, _ in new)
        known |= new
        apply(state, folded.changes[0], ["k", "_value0"])
        for row in state.values():
            row[LIFE] = row[LIFE] or None
        counting = [row for (k, _), row in state.items() if (row[LIFE] or 0) == begun.get(k, 0)]
        there = {(row["k"], count, row["_value0"]) for row in counting for count in (0, 1) if row[names[count]] > 0}
        assert there == known, "what is stored for the life that a key has is what has counted in it"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 3)), st.integers(-9, 9)), max_size=12))
def test_what_comes_along_with_values_is_merged_once_for_each_row(rows: list[tuple[Any, ...]]) -> None:
    """Each row arrives twice, for two counts of other values; only the first time it brings its number and its word."""
    brought = [("n", pa.int64()), ("word", pa.string()), (CARRIES_AGGREGATES, pa.bool_())]
    fields = [("_group", pa.int32()), ("k", pa.string()), ("_value0", pa.int64())]
    first = [
        {"k": k, "_value0": value, COUNT_BITS: 1, "n": number, "word": f"{number}", CARRIES_AGGREGATES: True}
        for k, value, number in rows
    ]
    again = [
        {"k": k, "_value0": 7, COUNT_BITS: 2, "n": None, "word": None, CARRIES_AGGREGATES: False} for k, _, _ in rows
    ]
    arrived = table([*first, *again], [*fields, (COUNT_BITS, pa.int64()), *brought])
    nothing = [stored({}, [*fields, ("_n", pa.int64())])] * 2
    folded = NewValues(["k"], ["_value0"], [["_n"], ["_n"]], {"n": "sum", "word": "max"})(arrived, nothing)
    given_out = [row for chunk in folded.rows for row in chunk.to_pylist()]
    sums: Counter[Any] = Counter()
    words: dict[Any, str] = {}
    grown: Counter[Any] = Counter()
    for row in given_out:
        sums[row["k"]] += row["n"] or 0
        words[row["k"]] = max(words.get(row["k"], ""), row["word"] or "")
        grown.update({(row["k"], count): row[new_column(count)] or 0 for count in (0, 1)})
    assert {k: sums[k] for k in words} == {k: sum(n for key, _, n in rows if key == k) for k, _, _ in rows}
    assert words == {k: max(f"{n}" for key, _, n in rows if key == k) for k, _, _ in rows}
    values = {(k, value) for k, value, _ in rows if value is not None}
    assert +grown == Counter((k, 0) for k, _ in values) + Counter((k, 1) for k in words)
    assert sum(row["word"] is not None for row in given_out) == len(words), "a row for each key"
    assert all(rows["_value0"].null_count == 0 for rows in folded.changes)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.tuples(KEYS, TIMES, st.integers(0, 2)), max_size=8), max_size=5),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_rows_apart_are_those_that_plain_python_takes(
    batches: list[list[tuple[Any, ...]]], apart: int, delay: int
) -> None:
    state: dict[Any, dict[str, Any]] = {}
    taken: dict[Any, list[int]] = {}
    fields = [("_group", pa.int32()), ("k", pa.string()), ("_at", pa.int64())]
    late: int | None = None
    highest: int | None = None
    for batch in batches:
        rows = [{"k": k, "_at": at, "_row": f"{v}", "v": f"{k} {at} {v}"} for k, at, v in batch]
        times = [row["_at"] for row in rows if row["_at"] is not None]
        highest = max([*times, *([highest] if highest is not None else [])], default=None)
        now = None if highest is None else highest - delay
        over = None if now is None else now - apart
        work = DeduplicateWithin(["k"], {"k": "k", "v": "v"}, apart, late, over)
        folded = work(table(rows, ARRIVED), [stored(state, fields)])
        wanted = Counter[str]()
        counts = Counter(without_time=sum(row["_at"] is None for row in rows))
        for row in sorted((row for row in rows if row["_at"] is not None), key=lambda row: (row["_at"], row["_row"])):
            if late is not None and row["_at"] < late:
                counts["late"] += 1
            elif all(abs(row["_at"] - other) >= apart for other in taken.get(row["k"], [])):
                taken.setdefault(row["k"], []).append(row["_at"])
                wanted[row["v"]] += 1
        assert Counter(row["v"] for chunk in folded.rows for row in chunk.to_pylist()) == wanted
        assert +Counter(folded.counts) == +counts
        apply(state, folded.changes[0], ["k", "_at"])
        left = {(k, at) for k, all_of_key in taken.items() for at in all_of_key if over is None or at >= over}
        assert set(state) == left, "what can meet no row any more is forgotten, and nothing else"
        late = now


# -- join ------------------------------------------------------------------------------------------------

FAR_APART = 1 << 52
"""Times so far apart that a key and a time do not fit into one number."""
BOUNDS = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(sorted)
JOINED = [
    *(("_group", pa.int32()), ("k", pa.string()), ("_at", pa.int64()), ("_row", pa.string()), (FROM_RIGHT, pa.bool_())),
    *(("l0", pa.int64()), ("r0", pa.int64())),
]
KEPT = [
    *(("_group", pa.int32()), ("k", pa.string()), ("_row", pa.string()), ("v", pa.int64()), ("_at", pa.int64())),
    *(("_n", pa.int64()), ("_matched", pa.bool_())),
]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.booleans(), KEYS, TIMES, st.integers(0, 1)), max_size=8), max_size=5),
    BOUNDS,
    st.integers(0, 3),
    st.sampled_from(["inner", "left", "full", "semi", "anti"]),
    st.sampled_from([1, FAR_APART]),
)
def test_a_join_gives_what_plain_python_gives_however_its_rows_are_cut(
    batches: list[list[tuple[Any, ...]]], bounds: list[int], delay: int, how: str, unit: int
) -> None:
    low, high, delay = bounds[0] * unit, bounds[1] * unit, delay * unit
    states: list[dict[Any, dict[str, Any]]] = [{}, {}]
    everything: list[list[dict[str, Any]]] = [[], []]
    emitted = Counter[Any]()
    late = highest = None
    for batch in [*batches, [(True, "end", 1_000, 0), (False, "end", 1_000, 0)]]:
        rows = [
            {
                FROM_RIGHT: right,
                "k": k,
                "_at": None if at is None else at * unit,
                "_row": f"{k}{at}{v}",
                ("r0" if right else "l0"): v,
            }
            for right, k, at, v in batch
        ]
        times = [row["_at"] for row in rows if row["_at"] is not None]
        highest = max([*times, *([highest] if highest is not None else [])], default=None)
        now = None if highest is None else highest - delay
        ends = [None if now is None else now - high, None if now is None else now + low]
        outer = [how in ("left", "full", "anti"), how == "full"]
        left_only = how in ("semi", "anti")
        named = [(("left", "v"),), () if left_only else (("right", "v"),)]
        sides = [
            JoinSide(
                {"v": alias},
                ["v"],
                named[place],
                ends[place],
                outer[place],
                emits_once_matched=how == "semi" and place == 0,
            )
            for place, alias in enumerate(("l0", "r0"))
        ]
        waits = how not in ("inner", "semi")
        work = IntervalJoinKernel(
            ["k"], (sides[0], sides[1]), low, high, late, nulls_wait=waits, emits_pairs=not left_only
        )
        folded = work(table(rows, JOINED), [stored(state, KEPT) for state in states])
        for rows_given in folded.rows:
            emitted.update((row["k"], row["left"], row.get("right")) for row in rows_given.to_pylist())
        for row in rows:
            if row["_at"] is not None and (late is None or row["_at"] >= late):
                everything[row[FROM_RIGHT]].append(row)
        for place, state in enumerate(states):
            apply(state, folded.changes[place], ["k", "_row"])
            assert all(ends[place] is None or row["_at"] >= ends[place] for row in state.values())
        late = now
    assert emitted == expected(everything, low, high, outer, ends, how)


CHANGED = [
    *(("_group", pa.int32()), ("k", pa.string()), ("_n", pa.int64()), ("_row", pa.string()), (FROM_RIGHT, pa.bool_())),
    *(("l0", pa.int64()), ("r0", pa.int64())),
]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.booleans(), KEYS, st.integers(0, 1)), max_size=8), max_size=5),
    st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_join_of_current_rows_gives_what_plain_python_gives_for_those_that_hold(
    batches: list[list[tuple[Any, ...]]], how: str, takes_back: bool, chance: Any
) -> None:
    """Whether rows are taken back or only added; of what is stored it gets what it asks for."""
    replaces, left_only = takes_back or how not in ("inner", "semi"), how in ("semi", "anti")
    states: list[dict[Any, dict[str, Any]]] = [{}, {}]
    held: list[Counter[tuple[Any, int]]] = [Counter(), Counter()]
    shown: Counter[Any] = Counter()
    kept = [["v"], [] if left_only else ["v"]]
    stored_as = [(name, kind) for name, kind in KEPT if name not in ("_at", "_matched")]
    columns = [stored_as, [each for each in stored_as if each[0] != "v" or not left_only]]
    named = [(("left", "v"),), () if left_only else (("right", "v"),)]
    sides = [JoinSide({"v": alias}, kept[place], named[place], None, False) for place, alias in enumerate(("l0", "r0"))]
    work = CurrentRowsJoin(["k"], (sides[0], sides[1]), how, replaces)
    for batch in batches:
        changes = [(right, k, v, 1) for right, k, v in batch if replaces or k is not None]
        if takes_back:
            for place, rows in enumerate(held):
                changes += [(place == 1, k, v, -1) for k, v in rows.elements() if chance.random() < 0.3]
        for right, k, v, sign in changes:
            held[right][k, v] += sign
        rows = [
            {FROM_RIGHT: right, "k": k, "_n": n, "_row": f"{k}{'' if right and left_only else v}", side: v}
            for right, k, v, n in changes
            for side in ("r0" if right else "l0",)
        ]
        arrived = table(rows, CHANGED)
        stored = [
            table(looked_up(states[place], arrived, work.needs_match(arrived, place)), columns[place])
            for place in (0, 1)
        ]
        folded = work(arrived, stored)
        for given_rows in folded.rows:
            for row in given_rows.to_pylist():
                sign = -1 if replaces and not row[IS_CURRENT] else 1
                shown[row["k"], row["left"], row.get("right")] += sign
        for place, state in enumerate(states):
            apply(state, folded.changes[place], ["k", "_row"])
        shown = Counter({row: count for row, count in shown.items() if count})
        assert shown == joined(*(+rows for rows in held), how)


def joined(left: Counter[tuple[Any, int]], right: Counter[tuple[Any, int]], how: str) -> Counter[Any]:
    """The join of all rows that hold."""
    wanted: Counter[Any] = Counter()
    for k, v in left.elements():
        partners = [w for other, w in right.elements() if k is not None and other == k]
        if how in ("semi", "anti"):
            wanted[k, v, None] += bool(partners) is (how == "semi")
            continue
        wanted.update((k, v, w) for w in partners)
        wanted[k, v, None] += how in ("left", "full") and not partners
    if how in ("right", "full"):
        known = {k for k, _ in left if k is not None}
        wanted.update((k, None, w) for k, w in right.elements() if k not in known)
    return +wanted


def expected(
    sides: list[list[dict[str, Any]]], low: int, high: int, outer: list[bool], ends: list[Any], how: str
) -> Counter[Any]:
    """What the join of all rows on time gives at once, as far as it waits for nothing any more."""
    wanted = Counter[Any]()
    met: list[set[int]] = [set(), set()]
    for left in sides[0]:
        for right in sides[1]:
            if left["k"] is not None and left["k"] == right["k"] and low <= right["_at"] - left["_at"] <= high:
                wanted[(left["k"], left["l0"], right["r0"])] += 1
                met[0].add(id(left))
                met[1].add(id(right))
    if how in ("semi", "anti"):
        wanted = Counter((row["k"], row["l0"], None) for row in sides[0] if how == "semi" and id(row) in met[0])
    for place in (0, 1):
        for row in sides[place] if outer[place] else ():
            if id(row) not in met[place] and row["_at"] < ends[place]:
                wanted[(row["k"], row.get("l0"), row.get("r0"))] += 1
    return wanted


# -- the first rows of each key ----------------------------------------------------------------------------


def in_pieces(work: Any, arrived: pa.Table) -> pa.Table:
    """The batch as a worker holds it that has no room for all of it: with fewer rows at every step."""
    held = arrived.slice(0, 0)
    for begin in range(0, arrived.num_rows, 3):
        held = work.combine(pa.concat_tables([held, arrived.slice(begin, 3)]).combine_chunks())
    return held


AMOUNTS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan")]))
RANKED = [
    ("_group", pa.int32()), ("k", pa.string()), ("_row", pa.string()), ("x", pa.float64()), ("y", pa.int64()),
    ("_n", pa.int64()),
]  # fmt: skip
Ranked = tuple[Any, Any, Any]


def in_order(row: Ranked) -> tuple[Any, ...]:
    """Greatest x first, NaN being greater than all, then least y; null is last in both."""
    _, x, y = row
    not_a_number = x is not None and math.isnan(x)
    return (x is None, not not_a_number, 0.0 if x is None or not_a_number else -x, y is None, y or 0, row_of(row))


def row_of(row: Ranked) -> str:
    """Tells rows apart by all that they hold: -0 and 0 are one."""
    key, x, y = row
    return f"{key} {x if x is None else x + 0.0} {y}"


def firsts(rows: Counter[Ranked], n: int, how: str) -> Counter[tuple[str, int]]:
    """The first rows of each key, with their ranks."""
    found: Counter[tuple[str, int]] = Counter()
    for key in {key for key, _, _ in rows}:
        ordered = sorted((row for row in rows.elements() if row[0] == key), key=in_order)
        equals = [in_order(row)[:-1] for row in ordered]
        distinct = sorted(set(equals))
        ranks = {
            "row_number": list(range(1, len(ordered) + 1)),
            "rank": [equals.index(each) + 1 for each in equals],
            "dense_rank": [distinct.index(each) + 1 for each in equals],
        }[how]
        found.update((row_of(row), rank) for row, rank in zip(ordered, ranks, strict=True) if rank <= n)
    return found


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(KEYS, AMOUNTS, st.one_of(st.none(), st.integers(0, 2))), max_size=8), max_size=4),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["row_number", "rank", "dense_rank"]),
    st.randoms(use_true_random=False),
)
def test_the_first_rows_of_each_key_are_those_of_plain_python(
    batches: list[list[Ranked]], n: int, takes_back: bool, how: str, chance: Any
) -> None:
    state: dict[Any, dict[str, Any]] = {}
    rows: Counter[Ranked] = Counter()
    shown: Counter[tuple[str, int]] = Counter()
    work = TopRows(["k"], ["x", "y"], [("x", False), ("y", True)], n, takes_back, ["k", "x", "y"], "rank", how)
    for batch in batches:
        back = [row for row in rows.elements() if chance.random() < 0.3] if takes_back else []
        rows += Counter(batch)
        rows -= Counter(back)
        changes = [
            {"k": k, "_row": row_of((k, x, y)), "x": x, "y": y, "_n": sign}
            for sign, some in ((1, batch), (-1, back))
            for k, x, y in some
        ]
        folded = work(in_pieces(work, table(changes, RANKED)), [_touched(state, changes)])
        apply(state, folded.changes[0], ["k", "_row"])
        for chunk in folded.rows:
            for row in chunk.to_pylist():
                shown[row_of((row["k"], row["x"], row["y"])), row["rank"]] += 1 if row[IS_CURRENT] else -1
        shown = Counter({row: count for row, count in shown.items() if count})
        assert shown == firsts(rows, n, how)
        if not takes_back:
            assert sum(row["_n"] for row in state.values()) >= sum(shown.values()), "the first ones are kept"
            assert len(state) <= len(shown), "and no others"


def _touched(state: dict[Any, dict[str, Any]], changes: list[dict[str, Any]]) -> pa.Table:
    """The stored rows under the keys that the batch has."""
    keys = {change["k"] for change in changes}
    return table([row for row in state.values() if row["k"] in keys], RANKED)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(KEYS, AMOUNTS, st.one_of(st.none(), st.booleans()), st.integers(0, 2)), max_size=8),
        max_size=4,
    )
)
def test_the_greatest_row_of_each_key_is_that_of_plain_python(batches: list[list[tuple[Any, ...]]]) -> None:
    fields = [("_group", pa.int32()), ("k", pa.string()), ("x", pa.float64()), ("y", pa.bool_()), ("v", pa.int64())]
    state: dict[Any, dict[str, Any]] = {}
    greatest: dict[Any, tuple[Any, ...]] = {}
    shown: Counter[Any] = Counter()
    work = LatestRow(["k"], ["x", "y"], ["v", "k", "x", "y"])
    for batch in batches:
        before, undecided = dict(greatest), False
        for row in batch:
            old = greatest.get(row[0])
            if old is None or _size(row) > _size(old):
                greatest[row[0]] = row
        for row in batch:  # by the order alone nobody knows which of the two it is: the ids of stored rows are needed
            old = before.get(row[0])
            undecided |= old is not None and _size(row)[:-1] == _size(old)[:-1] and repr(row) != repr(old)
        rows = [{"k": k, "x": x, "y": y, "v": v, "_row": f"{v}"} for k, x, y, v in batch]
        keys = {row["k"] for row in rows}
        known = table([row for row in state.values() if row["k"] in keys], fields)
        arrived = in_pieces(work, table(rows, [*fields, ("_row", pa.string())]))
        try:
            folded = work(arrived, [known])
        except Tied:
            assert undecided
            ids = pa.array([f"{v}" for v in known["v"].to_pylist()], pa.string())
            folded = work(arrived, [known.append_column("_row", ids)])
        apply(state, folded.changes[0], ["k"])
        for chunk in folded.rows:
            for row in chunk.to_pylist():
                shown[_told(row)] += 1 if row[IS_CURRENT] else -1
        shown = Counter({row: count for row, count in shown.items() if count})
        assert shown == Counter(_told({"k": k, "x": x, "y": y, "v": v}) for k, x, y, v in greatest.values())
        assert Counter(map(_told, state.values())) == shown


def _size(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """By x and y, null being least and NaN the greatest number; then by what tells rows apart."""
    _, x, y, v = row
    not_a_number = x is not None and math.isnan(x)
    return (x is not None, not_a_number, 0.0 if x is None or not_a_number else x + 0.0, y is not None, bool(y), v)


def _told(row: dict[str, Any]) -> str:
    x = row["x"]
    return f"{row['k']} {x if x is None else x + 0.0} {row['y']} {row['v']}"


# -- aggregates ------------------------------------------------------------------------------------------

PARTIALS = [
    ("_group", pa.int32()), ("k", pa.string()), ("total", pa.int64()), ("most", pa.int64()), ("_rows", pa.int64())
]  # fmt: skip
VALUES = st.lists(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(-3, 3))), max_size=8), max_size=4)


def total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@settings(deadline=None)
@given(VALUES)
def test_partial_values_are_merged_and_what_they_were_is_told(batches: list[list[tuple[Any, Any]]]) -> None:
    state: dict[Any, dict[str, Any]] = {}
    so_far: dict[Any, list[int | None]] = defaultdict(list)
    work = MergeAggregates(["k"], {"total": "sum", "most": "max"}, None)
    for batch in batches:
        keys = {key for key, _ in batch}
        before = {key: so_far[key].copy() for key in keys if so_far[key]}
        for key, value in batch:
            so_far[key].append(value)
        arrived = table([{"k": key, "total": value, "most": value} for key, value in batch], PARTIALS[:-1])
        folded = work(in_pieces(work, arrived), [table([row for row in state.values() if row["k"] in keys], PARTIALS)])
        apply(state, folded.changes[0], ["k"])
        given = [row for chunk in folded.rows for row in chunk.to_pylist()]
        for is_now, expected in ((True, {key: so_far[key] for key in keys}), (False, before)):
            assert {row["k"]: (row["total"], row["most"]) for row in given if row[IS_CURRENT] is is_now} == {
                key: (total(values), max((v for v in values if v is not None), default=None))
                for key, values in expected.items()
            }


@settings(deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_a_key_whose_last_row_is_taken_back_is_gone(batches: list[list[tuple[Any, Any]]], chance: Any) -> None:
    state: dict[Any, dict[str, Any]] = {}
    rows: Counter[tuple[Any, Any]] = Counter()
    work = MergeAggregates(["k"], {"total": "sum", "_rows": "sum"}, "_rows")
    for batch in batches:
        before = {key: total([v for k, v in rows.elements() if k == key] or [0]) for key, _ in rows}
        rows += Counter(batch)  # what comes can be taken back in the same checkpoint
        back = [row for row in rows.elements() if chance.random() < 0.4]
        rows -= Counter(back)
        changes = [(row, 1) for row in batch] + [(row, -1) for row in back]
        keys = {key for (key, _), _ in changes}
        arrived = [
            {"k": key, "total": None if value is None else sign * value, "_rows": sign}
            for (key, value), sign in changes
        ]
        known = table([row for row in state.values() if row["k"] in keys], PARTIALS)
        folded = work(in_pieces(work, table(arrived, PARTIALS).drop_columns("most")), [known])
        apply(state, folded.changes[0], ["k"])
        assert {key: row["_rows"] for (key,), row in state.items()} == Counter(k for k, _ in rows.elements())
        given = [row for chunk in folded.rows for row in chunk.to_pylist()]
        assert {row["k"] for row in given if not row[IS_CURRENT]} == before.keys() & keys
        for row in given:
            values = [v for k, v in rows.elements() if k == row["k"]]
            assert not row[IS_CURRENT] or (row["total"] or 0) == (total(values) or 0)
