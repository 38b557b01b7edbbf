"""The kernel of changes that wait, against plain Python: several checkpoints in a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.kernels import State, apply, table
from tidegate.operators.kernels.net_changes import NetChanges
from tidegate.state.arrow.kernel_worker import IS_CURRENT

FIELDS = [("_group", pa.int32()), ("_row", pa.string()), ("v", pa.int64()), ("_n", pa.int64())]
ROWS = st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from([1, 1, -1])), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=6), st.booleans())
def test_what_remains_is_given_and_nothing_waits_after_that(
    checkpoints: list[tuple[list[tuple[int | None, int]], bool]], is_reduced: bool
) -> None:
    state: State = {}
    waiting: Counter[Any] = Counter()
    for rows, gives in checkpoints:
        for v, n in rows:
            waiting[v] += n
        work = NetChanges(["v"], gives, retracts=True)
        arrived = table([{"_row": f"of {v}", "v": v, "_n": n} for v, n in rows], FIELDS)
        arrived = work.combine(arrived) if is_reduced else arrived
        folded = work(arrived, [found(state, arrived, everything=gives)])
        given: Counter[Any] = Counter()
        for row in (row for some in folded.rows for row in some.to_pylist()):
            given[row["v"]] += 1 if row[IS_CURRENT] else -1
        assert given == (waiting if gives else Counter())
        apply(state, folded.changes[0], ["_row"])
        waiting = Counter() if gives else waiting
        assert {row["v"]: row["_n"] for row in state.values()} == {v: n for v, n in waiting.items() if n}


def found(state: State, arrived: pa.Table, *, everything: bool) -> pa.Table:
    """What workers look up: all, or rows that are as those that arrive."""
    keys = set(arrived["_row"].to_pylist())
    return table([row for key, row in state.items() if everything or key[0] in keys], FIELDS)


def test_many_copies_are_given_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.operators.join.kernel.CHUNK_ROWS", 3)
    work = NetChanges(["v"], emits=True, retracts=False)
    arrived = table([{"_row": "of 1", "v": 1, "_n": 7}, {"_row": "of 2", "v": 2, "_n": 2}], FIELDS)
    parts = [some["v"].to_pylist() for some in work(arrived, [table([], FIELDS)]).rows]
    assert parts == [[1, 1, 1], [1, 1, 1], [1, 2, 2]]
