"""What a plan fixes for its gates: every attempt judges by the same suite, and over the same table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySink, ToySource
from tidegate import Pipeline
from tidegate.connectors.source import SourceContext
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected
from tidegate.gates import Expectations, GateContext
from tidegate.gates.expectations.origin import FileSuite
from tidegate.records.place import Place

RULE = "expectations:\n  - {{type: expect_column_values_to_not_be_null, kwargs: {{column: {column}}}}}\n"


class JudgedWorld(ToyWorld):
    gate = Expectations("rows")

    @property
    def place(self) -> Place:
        return Place(str(self.root))

    def coordinator(self) -> Coordinator:
        pipeline = Pipeline(self.name)
        judged = pipeline.source("in", ToySource(self.feed, self.bound)).gate(self.gate, name="judged")
        judged.sink("out", ToySink("out", self.tables))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, self.place)

    def judge_by(self, column: str) -> None:
        path = FileSuite("rows").path(self.place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RULE.format(column=column))

    def column_of(self, id: int) -> str:
        """What the suite says that attempts at a checkpoint judge by."""
        entry = self.ledger.entry(id)
        assert entry is not None
        payload = entry.plan.fixed_inputs["judged"]
        fixed = (self.ledger.unpack(payload), SourceContext(self.name, "judged", self.place, self.ledger))
        (rule,) = self.gate.suite_for(GateContext(self.name, "judged", self.place, planned_inputs=fixed)).rules
        return str(rule.kwargs["column"])


@pytest.fixture
def world(tmp_path: Path) -> JudgedWorld:
    return JudgedWorld(tmp_path)


def test_a_retry_judges_by_the_suite_that_the_checkpoint_was_planned_with(world: JudgedWorld) -> None:
    world.limit(max_concurrent_checkpoints=3).feed_more(9)
    world.judge_by("a")
    one = world.trigger("one")
    world.judge_by("b")
    assert world.column_of(one) == "a", "the file has changed since"
    assert world.column_of(world.trigger("two")) == "b", "no gate waits for tables that it does not read"
    FileSuite("rows").path(world.place).write_text("expectations: []\n")
    with pytest.raises(Invalid, match="the suite would pass everything"):
        world.coordinator().trigger("three")
    assert world.column_of(one) == "a"


def test_a_plan_of_an_earlier_version_has_no_suite_and_is_judged_by_the_file(world: JudgedWorld) -> None:
    world.judge_by("a")
    context = SourceContext(world.name, "judged", world.place, world.ledger)
    for fixed in (None, ({"version": 3, "files": []}, context)):
        gate = Expectations("rows", over="tables/none" if fixed else None)
        (rule,) = gate.suite_for(GateContext(world.name, "judged", world.place, planned_inputs=fixed)).rules
        assert rule.kwargs["column"] == "a"


def test_a_gate_over_a_table_waits_for_earlier_checkpoints_also_if_the_table_is_not_there_yet(
    world: JudgedWorld,
) -> None:
    world.limit(max_concurrent_checkpoints=2).feed_more(9)
    world.gate = Expectations("rows", over="tables/none")
    world.judge_by("a")
    world.trigger("one")
    with pytest.raises(Rejected) as refused:
        world.coordinator().trigger("two")
    assert refused.value.reason == "CHECKPOINT_IN_PROGRESS"
