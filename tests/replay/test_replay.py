"""`make replay` in short: one life, and whether the defects that it is for would be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.replay.life import Life
from tests.replay.pipelines import Drawn
from tests.replay.planted_defects import PLANTED

LIVES = [
    (0, "replays"),
    (1, "replays_all"),
    (2, "replays_beside_a_twin"),
    (3, "replays_by_its_own_cuts"),
    (4, "proposes"),
]
"""Seeds, and the backfills that take turns."""


@pytest.mark.parametrize(("seed", "backfill"), turn_of(LIVES, 5))
def test_a_backfill_changes_no_row_that_it_must_not_change(
    spark: Any, tmp_path: Path, seed: int, backfill: str
) -> None:
    acts = ("reads_a_day", "releases", backfill)
    told = Life(seed, tmp_path / "life", spark, Drawn(seed, count=1)).live(0, acts)
    assert told.wrong == [], "\n".join([*told.story, *told.wrong])
    assert told.backfills == 1
    assert told.rows > 10


@in_turn(seconds=45)
@pytest.mark.parametrize("number", turn_of(list(PLANTED), 7))
def test_a_defect_that_is_planted_again_is_found(spark: Any, tmp_path: Path, number: str) -> None:
    planted = PLANTED[number]
    with planted.planted():
        life = Life(planted.seed, tmp_path / "life", spark, Drawn(planted.seed, planted.pieces, planted.gates))
        told = life.live(0, planted.acts)
    assert planted.is_found(told), told.wrong
