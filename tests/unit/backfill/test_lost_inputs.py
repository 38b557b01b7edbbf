"""A backfill with recorded cuts looks up tables as of then: it begins only if all of these versions are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.delta_sources import Table
from tests.kit.toy_gate import ToyGate
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySource
from tests.simulation.line_storage import ShadowedSink
from tidegate import Pipeline
from tidegate.backfill import begin
from tidegate.backfill.choosing import outlook
from tidegate.errors import Rejected
from tidegate.gates import Expectations
from tidegate.operators.join.join import TableJoin
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sources import SourceContext
from tidegate.testing.source_contract import MemoryBlobs


class LooksUp(ToyGate):
    """A gate that looks up a table, which has another version each time. Its plans are long, so they lie in side
    files."""

    def __init__(self, lost: set[int]) -> None:
        super().__init__(0, 0, "approve")
        self.lost, self.version = lost, 0

    @property
    def reads_tables(self) -> bool:
        return False

    def fix_inputs(self, context: SourceContext) -> Json:
        self.version += 1
        return {"version": self.version, "padding": "x" * 40_000}

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        return [f"version {v} is gone" for fixed in recorded.values() if (v := fixed["version"]) in self.lost]


class Looked(ToyWorld):
    lost: set[int]

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        rows = pipeline.source("in", ToySource(self.feed, self.bound)).gate(self.gates["rates"], name="rates")
        rows.sink("a", ShadowedSink("a", self.tables))
        return pipeline


@pytest.fixture
def world(tmp_path: Path) -> Looked:
    lost: set[int] = set()
    world = Looked(tmp_path)
    world.gates, world.lost = {"rates": LooksUp(lost)}, lost
    for number in range(4):
        world.checkpoint(f"r{number}", rows=1)
    return world


def test_recorded_cuts_name_all_versions_that_are_gone_before_anything_is_begun(world: Looked) -> None:
    world.lost |= {1, 2, 4}
    with pytest.raises(Rejected) as refused:
        begin(world.coordinator(), "fix", 1, by="ann", cuts="recorded")
    said = str(refused.value)
    assert refused.value.reason == "CANNOT_BACKFILL"
    named = [f"gate 'rates': version {number} is gone" in said for number in (1, 2, 4)]
    assert named == [False, True, True], "the first one is of the checkpoint that it begins after"
    assert "--cuts own" in refused.value.help
    assert world.ledger.lines() == []
    assert world.ledger.pins() == []
    assert outlook(world.coordinator(), 1, "recorded")["possible"] is False


def test_own_cuts_and_later_ones_do_not_need_them(world: Looked) -> None:
    world.lost |= {2}
    assert outlook(world.coordinator(), 1, "own")["possible"] is True
    assert outlook(world.coordinator(), 2, "recorded")["possible"] is True
    begin(world.coordinator(), "fix", 2, by="ann", cuts="recorded")


# -- tables ------------------------------------------------------------------------------------------------


@pytest.fixture
def rates(tmp_path: Path) -> Table:
    return Table(tmp_path / "rates")


def place(tmp_path: Path) -> SourceContext:
    return SourceContext("p", "lookup", Place(str(tmp_path)), MemoryBlobs())


class Looking(NamedTuple):
    fix_inputs: Callable[[SourceContext], Any]
    lost_inputs: Callable[[Mapping[int, Json], SourceContext], Iterable[str]]


def looking(kind: str, tmp_path: Path) -> Looking:
    """An operator, or a gate, that looks up the table."""
    if kind == "join":
        inputs = TableJoin("rates", "id").spec().inputs
        return Looking(inputs.fix_table, inputs.lost_versions)
    gate = _suite(tmp_path)
    return Looking(gate.fix_inputs, gate.lost_inputs)


def _suite(tmp_path: Path) -> Expectations:
    (tmp_path / "suite.yaml").write_text("expectations: []\n")
    return Expectations(str(tmp_path / "suite.yaml"), over="rates")


@pytest.mark.parametrize("kind", ["join", "gate"])
def test_a_version_of_a_table_is_gone_with_its_files_and_each_is_told_once(
    tmp_path: Path, rates: Table, kind: str
) -> None:
    node, context = looking(kind, tmp_path), place(tmp_path)
    recorded: dict[int, Json] = {}
    for id, name in enumerate(["a", "b", None, "who=SECRET/c"], start=5):
        if name is not None:
            rates.append(name)
        recorded[id] = node.fix_inputs(context)
    assert list(node.lost_inputs(recorded, context)) == []
    (rates.folder / "b").unlink()
    found = list(node.lost_inputs(recorded, context))
    assert [text.partition(" of ")[0] for text in found] == ["version 2", "version 3"]
    assert "checkpoint 6, 7 has looked up, is gone: file 'b' is gone (VACUUM?)" in found[0]
    assert "checkpoint 8 has" in found[1]
    (rates.folder / "who=SECRET/c").unlink()
    assert "'b' is gone (VACUUM?) and 1 more" in list(node.lost_inputs(recorded, context))[1]
    assert "SECRET" not in str(list(node.lost_inputs({8: recorded[8]}, context)))


@pytest.mark.parametrize("kind", ["join", "gate"])
def test_a_table_that_was_made_again_has_none_of_the_versions(tmp_path: Path, rates: Table, kind: str) -> None:
    node, context = looking(kind, tmp_path), place(tmp_path)
    rates.append("a")
    recorded = {5: node.fix_inputs(context)}
    rates.drop()
    Table(tmp_path / "rates", "t2").append("a")
    (text,) = node.lost_inputs(recorded, context)
    assert "version 1 of" in text
    assert "the table was dropped and created again" in text


def test_what_a_gate_of_a_version_before_0_2_has_fixed_is_the_table_alone(tmp_path: Path, rates: Table) -> None:
    node, context = _suite(tmp_path), place(tmp_path)
    rates.append("a")
    over = node.fix_inputs(context)["over"]
    assert node.fix_inputs_again(over, context)["over"] == over
    (rates.folder / "a").unlink()
    assert len(list(node.lost_inputs({1: over}, context))) == 1
