"""A short form of `make lives`, which tells many more histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.spark.mended_lives import MendedLife
from tests.spark.random_histories import KINDS, Life, over, told

EACH = [*((Life, seed) for seed in range(len(KINDS))), *((MendedLife, seed) for seed in (1, 10))]
"""One of each kind; of the lives in which somebody mends, two of tables by other keys."""


@pytest.mark.parametrize(
    ("lives", "seed"),
    [EACH[0], *(pytest.param(*each, marks=in_turn(seconds=100)) for each in turn_of(EACH[1:], len(EACH) - 1))],
)
def test_whatever_befell_it_its_tables_are_as_if_nothing_had(
    spark: Any, tmp_path: Path, lives: type[Life], seed: int
) -> None:
    life = lives(seed, tmp_path / "life", spark)
    life.live(9)
    assert told(life) == [], str(life)
    assert over(life) == [], str(life)
