"""`make values` in short: some seeds, and whether the defects that it is for would be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.values.case import Case
from tests.values.planted_defects import PLANTED


@pytest.mark.parametrize("seed", turn_of([2, 12, 31], 3))
def test_every_reader_sees_what_spark_answers_over_all_rows_at_once(spark: Any, tmp_path: Path, seed: int) -> None:
    case = Case.of(seed)
    told = case.play(tmp_path / "case", spark)
    assert told.wrong == [], f"{case}:\n" + "\n".join(told.wrong)
    assert told.tried or told.refused or told.refused_rows


@in_turn(seconds=40)
@pytest.mark.parametrize("number", turn_of(list(PLANTED), 4))
def test_a_defect_that_is_planted_again_is_found(spark: Any, tmp_path: Path, number: str) -> None:
    planted = PLANTED[number]
    assert planted.case.play(tmp_path / "without", spark).wrong == []
    with planted.planted():
        told = planted.case.play(tmp_path / "case", spark)
    assert any(planted.found in each for each in told.wrong), told.wrong
