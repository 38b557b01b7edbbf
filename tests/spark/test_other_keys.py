"""`make cuts` and `make lives` in short, of keys that are not a stream's own and of what is mended; and whether the
defects that they are for would be found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.spark.graphs_of_other_keys import FOLLOWERS, MAKERS, drawn, pairs_of
from tests.spark.planted_defects import PLANTED
from tests.spark.random_cuts import CutStory, Graph, counted, states_of_values, told
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.sinks import DeltaUpsert

pytestmark = in_turn(seconds=60)

SEEDS = (0, 1, 2, 3, 4, 6)


@pytest.mark.parametrize("seed", turn_of(SEEDS, 6))
def test_tables_are_right_by_whatever_keys_they_go(tmp_path: Path, spark: Any, seed: int) -> None:
    graph = drawn(seed)
    story = replace(CutStory.of(graph, seed, checkpoints=2), in_jobs=False, watched=True)
    story.faults[:] = ["crash", ""]
    assert told(graph, story, story.run(graph, tmp_path / "play", spark)) == []


def test_seeds_go_through_all_pairs() -> None:
    """Of what gives a changelog and what takes it by other keys."""
    seeds = range(len(MAKERS) * len(FOLLOWERS))
    assert {pair for seed in seeds for pair in pairs_of(seed)} == {(m, f) for m in MAKERS for f in FOLLOWERS}


@pytest.mark.parametrize("number", turn_of(list(PLANTED), 4))
def test_a_defect_that_is_planted_again_is_found(tmp_path: Path, spark: Any, number: str) -> None:
    planted = PLANTED[number]
    with planted.planted():
        assert planted.tell(tmp_path / "play", spark) != []


def test_attempts_may_count_otherwise_how_often_a_value_has_come_that_stays(tmp_path: Path, spark: Any) -> None:
    """One attempt is computed by workers, who get three rows of a value as one, and the next by algebra. Where rows are
    taken back the number must be right."""

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k long, v long")
        totals = rows.aggregate(by=[], kinds="count(distinct v)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["kinds"]))
        newest = rows.latest(by="k", order_by="v", uid="newest")
        sizes = newest.aggregate(by=[], kinds="count(distinct v)", uid="sizes")
        sizes.sink("sizes", DeltaUpsert("tables/sizes", keys=["kinds"]))

    values = [7, 7, 7, 8, 8, 9, 9, 7]
    events = [("rows", {"k": k, "v": v}) for k, v in enumerate(values)]
    kinds = counted([{"kinds": 3}])
    graph = Graph("values", build, lambda _: events, lambda _: {"totals": kinds, "sizes": kinds})
    story = CutStory(events, cuts=[5], faults=["crash", "crash"], tasks=[2, -1, -2, 3], large=True)
    play = story.run(graph, tmp_path / "play", spark)
    assert told(graph, story, play) == []
    assert [name.split(".")[0] for name in states_of_values(play.graph())] == ["totals"]
