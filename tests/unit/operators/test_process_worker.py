"""What a key's function is called with, and in which order: rows and timers of event time, moment by moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import Invalid
from tidegate.operators.process.worker import AT, ROW, SIDE, Entries, ProcessKernel, Timers

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMER = pa.struct([("kind", pa.string()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
SCHEMA = pa.schema(
    [
        ("_kind", pa.int32()),
        ("_out", pa.struct([("said", pa.string())])),
        ("_key", pa.struct([("k", pa.string())])),
        ("_state", pa.struct([("n", pa.int64())])),
        ("_timers", pa.list_(TIMER)),
        ("_deleted", pa.bool_()),
        ("_out0", pa.struct([("why", pa.string())])),
    ]
)


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def micros(number: float | None) -> int | None:
    return None if number is None else (minute(number) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def called(
    function: Callable[..., Any],
    *,
    rows: list[tuple[float | None, int]] = [],  # noqa: B006
    timers: list[tuple[str, str, float]] = [],  # noqa: B006
    watermark: float | None = None,
    reached: float | None = None,
    alone: bool = False,
) -> tuple[list[str], list[tuple[str, str, datetime]]]:
    """What the function said, and the timers that it left, if they changed. rows: minute and value. reached: event time
    comes to its end at `watermark`; by the rows it would be there."""
    made = made_by(function, rows=rows, timers=timers, watermark=watermark, reached=reached, alone=alone)
    said = [row["_out"]["said"] for row in made if row["_kind"] == 0]
    left = [(t["kind"], t["name"], t["at"]) for row in made if row["_kind"] == 2 for t in row["_timers"]]
    return said, left


def made_by(
    function: Callable[..., Any],
    *,
    rows: list[tuple[float | None, int]],
    timers: list[tuple[str, str, float]] = [],  # noqa: B006
    watermark: float | None = None,
    reached: float | None = None,
    waits: bool = False,
    alone: bool = False,
) -> list[dict[str, Any]]:
    """What the call comes to: rows, state and timers, each of a kind."""
    work = ProcessKernel(
        uid="told",
        function=function,
        schema=SCHEMA,
        rows=["v", AT, ROW],
        stored_columns=["k", "n", "_timers"],
        keys=["k"],
        values=["n"],
        order_by=[],
        clock=minute(0),
        watermark=None if watermark is None else minute(watermark),
        waits=waits,
        reached=None if reached is None else minute(reached),
        ends=reached is not None,
        alone=alone,
        sides={"odd": 0},
    )
    given = pa.table(
        {
            "c0": pa.array([v for _, v in rows], pa.int64()),
            "c1": pa.array([micros(at) for at, _ in rows], pa.int64()),
            "c2": pa.array([f"{v:032x}" for _, v in rows], pa.string()),
        }
    )
    set_before = [{"kind": kind, "name": name, "at": minute(at)} for kind, name, at in timers]
    held = pa.table({"c0": ["a"], "c1": pa.array([None], pa.int64()), "c2": pa.array([set_before], pa.list_(TIMER))})
    made: list[dict[str, Any]] = work(given, held).to_pylist()
    return made


def says(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
    """What it is called with; a row sets a timer so many minutes behind its own time."""
    fired = [timer.name for timer in timers.fired]
    yield {"said": f"{rows['v'].to_pylist()} {fired}"}


def test_rows_and_timers_come_in_order_of_event_time() -> None:
    said, left = called(
        says,
        rows=[(3, 30), (1, 10), (1, 11), (5, 50)],
        timers=[("event", "two", 2), ("event", "one", 1), ("event", "nine", 9), ("clock", "past", -1)],
        watermark=6,
    )
    assert said == ["[] ['past']", "[] ['one']", "[10, 11] []", "[] ['two']", "[30] []", "[50] []"]
    assert left == [("event", "nine", minute(9))]


def test_rows_that_come_as_they_are_there_come_at_once_and_timers_behind_them() -> None:
    said, _ = called(says, rows=[(None, 3), (None, 1)], timers=[("event", "two", 2), ("event", "one", 1)], watermark=6)
    assert said == ["[1, 3] []", "[] ['one']", "[] ['two']"]
    assert called(says, timers=[("event", "two", 2)])[0] == [], "no watermark is known"


def test_a_timer_of_the_past_fires_before_anything_later_and_one_that_is_moved_does_not() -> None:
    def moves(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        yield from says(key, rows, state, timers)
        for value in rows["v"].to_pylist():
            timers.event(minute(value), "at" if value < 100 else "moved")
            timers.clock(minute(-5), "next")

    said, left = called(moves, rows=[(2, 1), (4, 100), (5, 200), (6, 9)], timers=[("event", "at", 1)], watermark=10)
    expected = ["[] ['at']", "[1] []", "[] ['at']", "[100] []", "[200] []", "[9] []", "[] ['at']"]
    assert said == expected
    assert left == [("clock", "next", minute(-5)), ("event", "moved", minute(200))], "the clock's is for the next time"


def test_timers_without_end_are_told() -> None:
    def endless(key: Any, rows: Any, state: Any, timers: Timers) -> None:
        timers.event(timers.watermark or START)

    with pytest.raises(Invalid, match=r"process 'told' has set 10000 timers in a row that were due at once") as told:
        called(endless, rows=[(None, 1)], watermark=1)
    assert told.value.help == "set timers later than timers.watermark"


END = 5_000_000


def test_a_timer_that_renews_itself_fires_as_far_as_rows_have_come_and_once_more_at_the_end() -> None:
    def hourly(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        for timer in timers.fired:
            yield {"said": f"{timer.name} at {(timer.at - START) // timedelta(minutes=1)}"}
            timers.event(timer.at + timedelta(hours=1), timer.name)

    said, left = called(hourly, timers=[("event", "a", 60), ("event", "b", 90)], watermark=END, reached=185)
    assert said == ["a at 60", "b at 90", "a at 120", "b at 150", "a at 180", "b at 210", "a at 240"]
    assert left == [], "behind the end nothing comes"


def test_timers_that_renew_each_other_come_to_an_end_and_those_that_others_set_fire() -> None:
    def turns(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        yield {"said": f"{rows['v'].to_pylist()} {[timer.name for timer in timers.fired]}"}
        for timer in timers.fired:
            timers.event(timer.at + timedelta(minutes=1), {"a": "b", "b": "a"}[timer.name])
        for value in rows["v"].to_pylist():
            timers.event(minute(value), "a")

    said, left = called(turns, rows=[(1, 300)], watermark=END, reached=2)
    assert (said, left) == (["[300] []", "[] ['a']", "[] ['b']"], [])


def test_timers_under_ever_new_names_come_to_an_end() -> None:
    def grows(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        yield {"said": "again"}
        for timer in timers.fired:
            timers.event(timer.at + timedelta(minutes=1), f"{timer.name}+"[-5:] + str(timer.at))

    said, left = called(grows, timers=[("event", "a", 60)], watermark=END, reached=2)
    assert (len(said), left) == (10_000, [])


def test_a_timer_that_is_cancelled_does_not_fire() -> None:
    def cancels(key: Any, rows: Any, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        yield from says(key, rows, state, timers)
        timers.cancel("two")

    timers = [("clock", "two", -1.0), ("clock", "one", -2.0), ("event", "two", 1.0)]
    assert called(cancels, timers=timers, watermark=2) == (["[] ['one']"], [])


def test_a_function_that_changes_the_key_that_it_is_given_changes_nothing_but_its_copy() -> None:
    def changes(key: Any, rows: Any, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        yield {"said": key.pop("k")}
        key["k"] = "another"
        state.n = 1
        timers.event(minute(99))

    made = made_by(changes, rows=[(1, 10), (2, 20)])
    assert [row["_kind"] for row in made] == [0, 0, 1, 2]
    assert [row["_out"]["said"] for row in made[:2]] == ["a", "a"], "each call is given the key"
    assert {row["_key"]["k"] for row in made} == {"a"}, "its state and timers are written under the key that has them"


def test_a_generator_may_give_one_dict_again_and_again() -> None:
    def counts(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, str]]:
        row = {}
        for value in rows["v"].to_pylist():
            row["said"] = str(value)
            yield row

    assert called(counts, rows=[(None, 1), (None, 2), (None, 3)])[0] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "given",
    [pa.table({"sayd": ["hello"]}), pa.table({"sayd": pa.array([], pa.string())}), pa.array([{"sayd": "hello"}])],
    ids=["table", "empty table", "array"],
)
def test_columns_that_the_output_does_not_have_are_refused_however_rows_are_given(given: Any) -> None:
    with pytest.raises(
        Invalid, match=r"process 'told' gave columns that its output does not have: \['sayd'\]; it has said"
    ):
        called(lambda key, rows, state, timers: given, rows=[(None, 1)])
    assert called(lambda key, rows, state, timers: pa.table({"said": ["hello"]}), rows=[(None, 1)])[0] == ["hello"]


def test_a_row_for_an_output_that_is_not_declared_is_refused() -> None:
    with pytest.raises(Invalid, match=r"gave a row for an output that it does not have; its outputs are odd"):
        called(lambda key, rows, state, timers: [("big", {"said": "hello"})], rows=[(None, 1)])


def test_each_output_has_its_own_rows_and_columns() -> None:
    both = [{"said": "even"}, ("odd", {"why": "one"})]
    made = made_by(lambda key, rows, state, timers: both, rows=[(None, 1)])
    told = [(row["_out"], row["_out0"]) for row in made if row["_kind"] in (0, SIDE)]
    assert told == [({"said": "even"}, None), (None, {"why": "one"})]
    with pytest.raises(Invalid, match=r"columns that its output 'odd' does not have: \['said'\]; it has why"):
        made_by(lambda key, rows, state, timers: [("odd", {"said": "one"})], rows=[(None, 1)])


def test_timers_of_the_clock_wait_while_history_is_told() -> None:
    made = made_by(says, rows=[(None, 1)], timers=[("clock", "past", -1)], waits=True)
    assert [row["_out"]["said"] for row in made] == ["[1] []"], "its timers are as they were"


# -- in an interval pipeline -----------------------------------------------------------------------------


def test_within_an_interval_nothing_is_left_for_later_whatever_its_time() -> None:
    """A timer behind the end of time would otherwise wait for a checkpoint that never comes."""

    def waits(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        yield {"said": f"{rows['v'].to_pylist()} {[timer.name for timer in timers.fired]}"}
        if len(rows):
            timers.event(datetime(9999, 12, 31, tzinfo=UTC), "last")

    assert called(waits, rows=[(1, 7)], watermark=END, reached=60)[0] == ["[7] []"]
    assert called(waits, rows=[(1, 7)], watermark=END, reached=60, alone=True) == (["[7] []", "[] ['last']"], [])


def test_within_an_interval_no_timer_can_wait_for_the_clock() -> None:
    def asks(key: Any, rows: pa.Table, state: Any, timers: Timers) -> Iterator[dict[str, str]]:
        timers.clock(minute(1))
        yield {"said": "nothing"}

    with pytest.raises(Invalid, match=r"timers\.clock requests a call in a later checkpoint") as told:
        called(asks, rows=[(1, 7)], watermark=END, reached=60, alone=True)
    assert (told.value.help or "").startswith("set timers.event")


def test_a_call_has_the_entries_that_its_rows_name_and_no_others() -> None:
    seen = Entries("seen", "product", {"n": None, "at": []}, {"tea": {"n": 2, "at": [1]}, "ink": {"n": 5, "at": []}})
    seen._choose_entries([pa.table({"product": ["tea", "pen", None]})])
    seen["tea"].n += 1
    seen["tea"].at.append(7)
    seen["pen"].n = 1
    assert seen[None].n is None, "looked at only"
    with pytest.raises(KeyError, match="no row of this call has 'ink' in 'product'"):
        seen["ink"]
    assert list(seen._changed()) == [("tea", {"n": 3, "at": [1, 7]}), ("pen", {"n": 1, "at": []})]
    seen._choose_entries([pa.table({"other": ["tea"]})])
    with pytest.raises(KeyError):
        seen["tea"]
