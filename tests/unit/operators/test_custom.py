"""Operators of one's own: those of the guide keep the contract, and others are told what is wrong."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.streaks import Alerts, Carts, Streaks
from tidegate.errors import Invalid
from tidegate.operators import Clock, KeyedOperator, StepResult
from tidegate.testing import OperatorContract

DAY, HOUR = date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)


class TestStreaks(OperatorContract):
    def operator(self) -> KeyedOperator:
        return Streaks()

    def schema(self) -> Any:
        return pa.schema([("customer", pa.string()), ("day", pa.date32())])

    def rows(self, dice: random.Random) -> list[dict[str, Any]]:
        return [{"customer": dice.choice("abc"), "day": DAY + timedelta(days=dice.randrange(9))} for _ in range(30)]


class TestCarts(OperatorContract):
    delay = timedelta(minutes=5)

    def operator(self) -> KeyedOperator:
        return Carts(minutes=10)

    def schema(self) -> Any:
        return pa.schema([("cart", pa.string()), ("item", pa.string()), ("at", pa.timestamp("us", "UTC"))])

    def rows(self, dice: random.Random) -> list[dict[str, Any]]:
        return [
            {"cart": dice.choice("abc"), "item": f"item {n}", "at": HOUR + timedelta(minutes=2 * n - dice.randrange(5))}
            for n in range(40)
        ]


class TestAlerts(OperatorContract):
    delay = timedelta(minutes=5)

    def operator(self) -> KeyedOperator:
        return Alerts(limit=50.0)

    def schema(self) -> Any:
        return pa.schema([("sensor", pa.string()), ("level", pa.float64()), ("at", pa.timestamp("us", "UTC"))])

    def rows(self, dice: random.Random) -> list[dict[str, Any]]:
        return readings(dice)


def readings(dice: random.Random) -> list[dict[str, Any]]:
    minutes = [n - dice.randrange(5) for n in range(40)]
    return [
        {"sensor": dice.choice("ab"), "level": dice.choice([40.0, 60.0]), "at": HOUR + timedelta(minutes=m)}
        for m in minutes
    ]


class Hasty(Alerts):
    """Does not wait for earlier readings, as one is tempted to write it."""

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        return super().step(arrived, stored, Clock(clock.planned, HOUR + timedelta(days=1)))


class TestOfHasty(TestAlerts):
    __test__ = False

    def operator(self) -> KeyedOperator:
        return Hasty(limit=50.0)


def test_an_operator_that_works_on_rows_as_they_come_does_not_keep_the_contract_and_is_told_why() -> None:
    said = []
    for seed in range(20):
        try:
            TestOfHasty().test_what_it_gives_does_not_depend_on_how_rows_are_cut_into_checkpoints(seed)
        except AssertionError as error:
            said.append(str(error))
    assert len(said) >= 5
    assert all("until the watermark has passed them" in text for text in said)


class Wrong(KeyedOperator):
    by = ("k",)
    state = "n bigint"
    emits = "k string, n bigint"

    def __init__(self, how: str) -> None:
        self.how = how

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        keys = ["a", "a"] if self.how == "twice" else ["elsewhere"] if self.how == "other" else ["a"]
        rows = [{"k": key, "n": 1} for key in keys]
        types = pa.schema([("k", pa.string()), ("n", pa.string() if self.how == "types" else pa.int64())])
        table = pa.Table.from_pylist([{"k": row["k"], "n": "x" if self.how == "types" else 1} for row in rows], types)
        if self.how == "rows are a list":
            return StepResult(rows=rows)  # type: ignore[arg-type]
        if self.how.startswith("rows"):
            texts = pa.table({"k": ["a"], "n": ["5"]})
            return StepResult(rows=table.select(["k"]) if self.how == "rows lack" else texts)
        if self.how == "nothing":
            return None  # type: ignore[return-value]
        return StepResult(state=table.select(["k"]) if self.how == "lacks" else table)


class TestOfWrong(OperatorContract):
    """What is found in an operator that is wrong. Not collected: each of its tests would fail."""

    __test__ = False

    def __init__(self, operator: KeyedOperator) -> None:
        self._operator = operator

    def operator(self) -> KeyedOperator:
        return self._operator

    def schema(self) -> Any:
        return pa.schema([("k", pa.string()), ("v", pa.int64())])

    def rows(self, dice: random.Random) -> list[dict[str, Any]]:
        return [{"k": "a", "v": dice.randrange(9)} for _ in range(20)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("twice", "step returned a key twice"),
        ("other", "step returned a key that it did not get"),
        ("types", "state has other types"),
        ("lacks", "state lacks 'n'"),
        ("nothing", "step returned NoneType"),
        ("rows lack", "rows lacks 'n'"),
        ("rows are texts", "rows has other types"),
        ("rows are a list", "rows is a list"),
    ],
)
def test_what_a_function_returns_is_checked(how: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as refused:
        TestOfWrong(Wrong(how)).test_two_attempts_give_the_same(0)
    assert refused.value.reason == "BAD_STEP"


class Shows(Wrong):
    """Shows a row for the key "b" only, or what is wrong."""

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        keys = sorted(set(arrived["k"].to_pylist()))
        return StepResult(state=pa.table({"k": keys, "n": [1] * len(keys)}))

    def shows(self, state: pa.Table) -> pa.Table:
        rows = [row for row in state.to_pylist() if self.how != "some" or row["k"] == "b"]
        rows = [rows[0]] * len(rows) if self.how == "twice" and rows else rows
        rows = [*rows, *rows] if self.how == "more" else rows
        return pa.Table.from_pylist(rows, pa.schema([("k", pa.string()), ("n", pa.int64())]))


def test_an_attribute_that_shows_uses_is_part_of_what_the_state_means() -> None:
    assert Shows("some").meaning(False) != Shows("twice").meaning(False), "rows would be taken back that were not given"
    assert Alerts(50.0).meaning(False) == Alerts(5.0).meaning(False), "only step uses it: what is stored goes on"


def test_a_key_may_show_no_row() -> None:
    played = TestOfWrong(Shows("some"))._played([[{"k": k, "v": 1} for k in "abc"], [{"k": "b", "v": 1}]])
    assert played.output == {"{'k': 'b', 'n': 1}": 1}
    assert len(played.state) == 3


@pytest.mark.parametrize("how", ["more", "twice"])
def test_a_key_shows_one_row_at_most(how: str) -> None:
    with pytest.raises(Invalid, match="rows of 3 keys") as refused:
        TestOfWrong(Shows(how))._played([[{"k": k, "v": 1} for k in "abc"]])
    assert "correct Shows.shows" in refused.value.help


class Seen(Wrong):
    """Notes what it gets."""

    def __init__(self) -> None:
        super().__init__("")
        self.got: list[tuple[list[Any], list[Any]]] = []

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        self.got.append((arrived["k"].to_pylist(), stored["k"].to_pylist()))
        keys = sorted(set(arrived["k"].to_pylist()))
        return StepResult(state=pa.table({"k": keys, "n": [1] * len(keys)}))


def test_rows_come_in_the_order_of_keys_whatever_order_they_came_in() -> None:
    operator = Seen()
    contract = TestOfWrong(operator)
    contract._played([[{"k": k, "v": 1} for k in "bca"], [{"k": k, "v": 1} for k in "cab"]])
    assert operator.got == [(["a", "b", "c"], []), (["a", "b", "c"], ["a", "b", "c"])]


class Last(Wrong):
    """Remembers the row that came last: that depends on the cut, and on the order."""

    def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
        rows = [{"k": row["k"], "n": len(arrived)} for row in arrived.to_pylist()[-1:]]
        table = pa.Table.from_pylist(rows, stored.schema)
        return StepResult(state=table, rows=table)


def test_an_operator_that_goes_by_the_cut_does_not_keep_the_contract() -> None:
    found = 0
    for seed in range(20):
        try:
            TestOfWrong(Last("")).test_what_it_gives_does_not_depend_on_how_rows_are_cut_into_checkpoints(seed)
        except AssertionError:
            found += 1
    assert found > 5


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"by": "k"}, "write a list of columns"),
        ({"by": ()}, "it has no key"),
        ({"state": "n bigint,"}, "state='n bigint,'"),
        ({"state": "k string"}, "state has k, which by names"),
        ({"state": "_n int"}, "state has '_n'"),
        ({"emits": "k strin"}, "emits='k strin'"),
        ({"due": "n"}, "due='n' is bigint: expected a timestamp"),
        ({"due": "until"}, "due='until' is no column of state"),
        ({"by": ("K",), "state": "k int"}, "state has k, which by names"),
        ({"how": object()}, "its text must be the same in every process"),
    ],
)
def test_a_declaration_is_checked(attributes: dict[str, Any], said: str) -> None:
    operator = Wrong("")
    for name, value in attributes.items():
        setattr(operator, name, value)
    assert any(said in problem for problem in operator.problems()), operator.problems()


def test_a_class_that_says_nothing_is_told_what_is_missing() -> None:
    class Silent(KeyedOperator):
        def step(self, arrived: pa.Table, stored: pa.Table, clock: Clock) -> StepResult:
            return StepResult()

    problems: Sequence[str] = Silent().problems()
    assert problems == ["Silent does not say by", "Silent does not say state", "Silent does not say emits"]


@pytest.mark.parametrize("operator", [Streaks, Carts, Alerts])
def test_the_guide_shows_the_operators_that_are_tested_here(operator: type[KeyedOperator]) -> None:
    guide = Path("docs/guides/writing-an-operator.md").read_text(encoding="utf-8")
    source = inspect.getsource(operator)
    assert source in guide
    assert len(source.splitlines()) < 60
