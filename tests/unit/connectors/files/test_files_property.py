"""Any interleaving of arrivals and plans consumes each file once, or in the order of names."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.sources import files, names, put
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sources import SourceContext
from tidegate.testing.source_contract import MemoryBlobs

name = st.text(st.sampled_from("abz09 %=[]{}*?\\é漢\n"), min_size=1, max_size=4).map(lambda text: f"x{text}.json")
arrival = st.lists(name, max_size=6).map(lambda names: ("arrive", names))
plan = st.tuples(st.integers(1, 4), st.one_of(st.none(), st.integers(1, 40))).map(lambda bounds: ("plan", bounds))
abort = st.just(("abort", None))
archive = st.integers(0, 3).map(lambda count: ("archive", count))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(arrival, plan, abort, archive), max_size=30), st.sampled_from(["name", "arrival"]))
def test_each_file_is_consumed_exactly_once(steps: list[tuple[str, object]], order: Literal["name", "arrival"]) -> None:
    with tempfile.TemporaryDirectory() as root:
        landing = Path(root, "landing")
        landing.mkdir()
        context = SourceContext("shop", "orders", Place(root), MemoryBlobs())
        positions: list[Json | None] = [None]
        consumed: list[list[str]] = []
        arrived: set[str] = set()
        for what, value in [*steps, *[("plan", (5, None))] * 200]:
            if what == "arrive":
                fresh = [one for one in value if one not in arrived]  # type: ignore[attr-defined]
                put(landing, fresh)
                arrived.update(fresh)
            elif what == "archive":  # of the files consumed, whose checkpoints cannot be aborted any more
                for one in [one for part in consumed for one in part][:value]:  # type: ignore[misc]
                    (landing / one).unlink(missing_ok=True)
                positions, consumed_before = positions[-1:], [one for part in consumed for one in part]
                consumed = [consumed_before]
            elif what == "abort":
                if len(positions) > 1:
                    positions.pop()
                    consumed.pop()
            else:
                max_files, max_bytes = value  # type: ignore[misc]
                planned = files(order=order, max_files=max_files, max_bytes=max_bytes).plan(positions[-1], context)
                assert planned.is_empty == (not names(planned))
                assert len(names(planned)) <= max_files
                if planned.is_empty:
                    assert planned.end == positions[-1]
                    assert not planned.has_more
                    if value == (5, None):
                        break
                    continue
                positions.append(planned.end)
                consumed.append(names(planned))
        every = [one for part in consumed for one in part]
        assert len(set(every)) == len(every)
        if order == "arrival":
            assert set(every) == arrived
        else:
            assert every == sorted(every)
            late = arrived - set(every)
            assert all(one < max(every) for one in late)
