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
from tests.spark.random_cuts import Story, told

pytestmark = in_turn(1, of=4)

SEEDS = (0, 1, 2, 3, 4, 6)


@pytest.mark.parametrize("seed", turn_of(SEEDS, 6, within=4))
def test_tables_are_right_by_whatever_keys_they_go(tmp_path: Path, spark: Any, seed: int) -> None:
    graph = drawn(seed)
    story = replace(Story.of(graph, seed, checkpoints=2), in_jobs=False, watched=True)
    story.faults[:] = ["crash", ""]
    assert told(graph, story, story.run(graph, tmp_path / "play", spark)) == []


def test_seeds_go_through_all_pairs() -> None:
    """Of what gives a changelog and what takes it by other keys."""
    seeds = range(len(MAKERS) * len(FOLLOWERS))
    assert {pair for seed in seeds for pair in pairs_of(seed)} == {(m, f) for m in MAKERS for f in FOLLOWERS}


@pytest.mark.parametrize("number", turn_of(list(PLANTED), 4, within=4))
def test_a_defect_that_is_planted_again_is_found(tmp_path: Path, spark: Any, number: str) -> None:
    planted = PLANTED[number]
    with planted.planted():
        assert planted.tell(tmp_path / "play", spark) != []
