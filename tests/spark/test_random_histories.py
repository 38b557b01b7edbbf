"""A short form of `make lives`, which tells many more histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import turn_of
from tests.spark.random_histories import Life, over, told


@pytest.mark.parametrize("seed", turn_of(range(7), 7))  # one of each kind
def test_whatever_befell_it_its_tables_are_as_if_nothing_had(spark: Any, tmp_path: Path, seed: int) -> None:
    life = Life(seed, tmp_path / "life", spark)
    life.live(9)
    assert told(life) == [], str(life)
    assert over(life) == [], str(life)
