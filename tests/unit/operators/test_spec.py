"""What operators promise, as data: what follows from the groups of a declaration, and what a wrong one says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidegate.operators.aggregate import Aggregate
from tidegate.operators.base import Operator
from tidegate.operators.broadcast import Broadcast
from tidegate.operators.context import OperatorContext
from tidegate.operators.custom import KeyedOperator
from tidegate.operators.deduplicate import Deduplicate
from tidegate.operators.expiry import Expiry
from tidegate.operators.join.as_of import AsOfJoin
from tidegate.operators.join.join import IntervalJoin, LatestJoin, TableJoin
from tidegate.operators.latest import Latest, TopN
from tidegate.operators.over import OverRows
from tidegate.operators.process.process import Process
from tidegate.operators.retractions.every import EmitEvery
from tidegate.operators.spec import Changelog, Growth, KeyOfInputs, OperatorSpec, Updates
from tidegate.operators.window.counted import CountWindow
from tidegate.operators.window.top_n import WindowTopN
from tidegate.operators.window.window import Window
from tidegate.records.records import Json

WRONG: Any = 7
"""What nobody may declare: as a column, a duration, a function …"""


def function(key: Any, rows: Any, state: Any, timers: Any) -> Any:
    return []


class Silent(Operator):
    kind = "silent"

    def describe(self) -> Json:
        return {}

    def run(self, inputs: Sequence[Any], context: OperatorContext) -> Mapping[str, Any]:
        return {"": inputs[0]}


class Undeclared(KeyedOperator):
    def step(self, arrived: Any, stored: Any, clock: Any) -> Any:
        raise NotImplementedError


class Misspelt(Undeclared):
    by = (WRONG,)
    state = "n itn"
    emits = "k strin"


def test_an_operator_that_says_nothing_promises_nothing() -> None:
    spec = Silent().spec()
    assert spec.state_names == ("",)
    assert spec.changelog.updates is Updates.NEVER
    assert not spec.inputs.retractions
    assert not spec.inputs.lookup_table
    assert spec.permanent_keys is None
    assert spec.changelog.find_key([None]) is None
    assert not spec.changelog.never_drops_keys([], over_updates=False)
    assert not spec.current_output_is_complete
    assert spec.output.complete_per_checkpoint_by == frozenset()
    assert "it may depend on rows of earlier checkpoints" in spec.interval_problems[0]
    assert spec.growth.keeps == "what it remembers"


WRONGLY_DECLARED = [
    Aggregate([WRONG], {"n": WRONG, "m": "median(v"}),
    Window([WRONG], {"n": WRONG}, tumbling="soon"),
    Window([], {}, hopping=("1 h",), allowed_lateness="never", emit=WRONG, late=WRONG),
    Window([], {}, session=WRONG, time=WRONG, event_time=WRONG),
    CountWindow([WRONG], {"n": WRONG}, WRONG, event_time=WRONG),
    WindowTopN(WRONG, WRONG, [WRONG], [WRONG]),
    Latest([WRONG], [WRONG]),
    Broadcast([WRONG], [WRONG]),
    TopN(WRONG, [WRONG], [WRONG], rank=WRONG),
    OverRows([WRONG], {"n": WRONG}),
    Deduplicate([WRONG], within="soon", event_time=WRONG),
    EmitEvery(0),
    IntervalJoin([WRONG], "soon", how=WRONG, event_time=("a", "b", "c")),  # type: ignore[arg-type]
    LatestJoin([WRONG], how=WRONG),
    AsOfJoin([WRONG], how=WRONG, event_time=()),  # type: ignore[arg-type]
    TableJoin("", [WRONG], how=WRONG),
    Process([WRONG], WRONG, "k strin", "n itn", in_order=True, maps={"m": WRONG}, lists={"l": WRONG}),
    Process(["k"], function, "k string", "n int", in_order=True, event_time=("a",)),  # type: ignore[arg-type]
    Undeclared(),
    Misspelt(),
]


@pytest.mark.parametrize("operator", WRONGLY_DECLARED, ids=lambda operator: type(operator).__name__)
def test_a_wrong_declaration_can_be_asked_what_it_promises(operator: Operator) -> None:
    """All that is wrong with a pipeline is told at once, so a graph asks before it knows."""
    assert operator.problems()
    spec = operator.spec()
    spec.event_time_problems([["at"], ["at"]])
    assert spec.depends_on_checkpoint_cuts is not None
    assert spec.interval_problems is not None
    assert spec.retraction_problems is not None
    assert spec.output.others is not None


def expiring(operator: str, after: str | None, time: str = "processing") -> Operator:
    expiry = Expiry(after, time)
    declared: dict[str, Operator] = {
        "aggregate": Aggregate(["k"], {"n": "count(*)", "d": "count(distinct v)"}, expiry),
        "latest": Latest(["k"], ["at"], expiry),
        "top_n": TopN(3, ["k"], ["at"], expiry=expiry),
        "join": LatestJoin("k", expiry=expiry),
        "as of": AsOfJoin("k", expiry=expiry),
        "over": OverRows(["k"], {"n": "count(*)"}, expiry=expiry),
        "windows by count": CountWindow(["k"], {"n": "count(*)"}, 5, expiry=expiry),
        "deduplicate": Deduplicate(["k"], expiry=expiry),
        "process": Process(["k"], function, "k string", "n int", expiry=expiry),
    }
    return declared[operator]


EXPIRING = ["aggregate", "latest", "top_n", "join", "as of", "over", "windows by count", "deduplicate", "process"]


@pytest.mark.parametrize("name", EXPIRING)
def test_that_rows_expire_is_said_once_and_known_everywhere(name: str) -> None:
    spec = expiring(name, "1 day").spec()
    assert spec.expires
    assert not spec.current_output_is_complete
    assert any("state_ttl" in problem for problem in spec.interval_problems)
    assert any("state_ttl" in problem for problem in spec.retraction_problems)
    assert "when a key is forgotten: 1 day by the checkpoints' clock (state_ttl)" in spec.depends_on_checkpoint_cuts
    assert spec.growth.keeps is None
    by_watermark = expiring(name, "1 day", "event").spec()
    assert by_watermark.uses_event_time
    assert "which rows come too late" in by_watermark.depends_on_checkpoint_cuts


@pytest.mark.parametrize("name", EXPIRING)
@pytest.mark.parametrize("time", ["processing", "event"])
def test_without_state_ttl_nothing_expires_by_any_time(name: str, time: str) -> None:
    spec = expiring(name, None, time).spec()
    assert not spec.expires
    assert not any("state_ttl" in text for text in [*spec.interval_problems, *spec.retraction_problems])
    assert spec.growth.keeps is not None


def test_values_that_are_counted_do_not_expire_by_themselves() -> None:
    spec = expiring("aggregate", "1 day").spec()
    values, rows = sorted(spec.states, key=lambda state: state.name == "")
    assert rows.expiry != values.expiry
    assert spec.growth.keeps_per_key == "each value that d counts"


@pytest.mark.parametrize(
    ("updates", "over_updates", "replaces"),
    [
        (Updates.NEVER, True, False),
        (Updates.IF_INPUTS_DO, False, False),
        (Updates.IF_INPUTS_DO, True, True),
        (Updates.ALWAYS, False, True),
    ],
)
def test_an_operator_replaces_rows_always_never_or_if_an_input_does(
    updates: Updates, over_updates: bool, replaces: bool
) -> None:
    assert Changelog(updates=updates).updates_over(over_updates) == replaces


def test_a_key_is_kept_only_as_long_as_no_input_replaces_rows() -> None:
    changelog = Latest(["a", "b"], ["at"]).spec().changelog
    assert changelog.never_drops_keys(["b", "a"], over_updates=False)
    assert not changelog.never_drops_keys(["b", "a"], over_updates=True)
    assert not changelog.never_drops_keys(["a"], over_updates=False)


def test_a_key_may_be_that_of_the_input() -> None:
    key = (frozenset({"k"}),)
    assert EmitEvery(3).spec().changelog.find_key([key]) == key
    assert EmitEvery(3).spec().changelog.find_key([None]) is None
    assert isinstance(LatestJoin("k").spec().changelog.key, KeyOfInputs)


def test_the_event_time_of_each_input_is_checked_under_its_name() -> None:
    spec = IntervalJoin("k", "1 hour", event_time=(None, "at")).spec()
    assert spec.event_time_problems([["a", "b"], ["at"]]) == [
        'the left side\'s sources have several columns of event time (a, b): name one, event_time="…"'
    ]
    assert [input.late_output for input in spec.timed_inputs] == ["late-left", "late-right"]
    assert spec.timed_input(2) is None


def test_what_is_not_said_of_growth_is_warned_of() -> None:
    assert OperatorSpec().growth == Growth() != Growth(keeps=None)
