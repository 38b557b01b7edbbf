"""A checkpoint from which no line can continue is refused before anything is begun, and the dry run says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySource
from tests.simulation.line_storage import ShadowedSink
from tidegate import Pipeline
from tidegate.backfill import begin
from tidegate.backfill.choosing import outlook
from tidegate.errors import Rejected
from tidegate.lifecycle import control
from tidegate.records.records import Drain


class Renamed(ToyWorld):
    """Somebody may give its source another name."""

    reads = "in"

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self.name)
        pipeline.source(self.reads, ToySource(self.feed, self.bound)).sink("a", ShadowedSink("a", self.tables))
        return pipeline


@pytest.fixture
def world(tmp_path: Path) -> Renamed:
    """Event time ends with the second checkpoint; the pipeline is resumed nevertheless."""
    world = Renamed(tmp_path)
    world.checkpoint("first", rows=1)
    world.checkpoint("last", rows=1, drain=Drain(by="mia"))
    control.resume(world.ledger, "mia", after_end=True)
    world.checkpoint("later", rows=1)
    return world


def is_refused(world: Renamed, origin: int, why: str) -> Rejected:
    (problem,) = outlook(world.coordinator(), origin)["problems"]
    assert why in problem
    with pytest.raises(Rejected) as refused:
        begin(world.coordinator(), "fix", origin, by="ann")
    assert (refused.value.reason, why in str(refused.value)) == ("CANNOT_BACKFILL", True)
    assert (list(world.ledger.lines()), list(world.ledger.pins())) == ([], []), "nothing was begun, or is retained"
    return refused.value


def test_no_backfill_begins_before_the_pipeline_has_completed_anything(tmp_path: Path) -> None:
    world = Renamed(tmp_path)
    world.coordinator().abort(world.trigger("aborted"), "TEST")
    refused = is_refused(world, 0, "it has completed no checkpoint yet")
    assert "let it complete one" in refused.help
    assert "--cuts" not in refused.help, "that is for checkpoints that are gone"


def test_no_backfill_begins_where_event_time_has_ended(world: Renamed) -> None:
    is_refused(world, 2, "event time ended")
    assert outlook(world.coordinator(), 1)["possible"] is True


def test_no_backfill_begins_from_where_the_code_cannot_continue(world: Renamed) -> None:
    world.reads = "elsewhere"
    is_refused(world, 1, "read source in")
