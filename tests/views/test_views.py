"""`make views` in short: one life, and whether the defects that it is for would be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.views.life import live
from tests.views.planted_defects import PLANTED
from tests.views.routes import Web


@pytest.fixture(scope="module")
def web() -> Web:
    return Web()


@pytest.mark.usefixtures("spark")
def test_after_each_act_everything_that_shows_something_shows_what_is_so(web: Web, tmp_path: Path) -> None:
    told = live(3, tmp_path / "life", web, steps=4, share=0.3)
    assert told.wrong == [], "\n".join(told.wrong)
    assert told.looked > 50
    assert told.asked > 200


@in_turn(seconds=45)
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("number", turn_of(list(PLANTED), 3))
def test_a_defect_that_is_planted_again_is_found(web: Web, tmp_path: Path, number: str) -> None:
    planted = PLANTED[number]
    with planted.planted():
        told = live(0, tmp_path / "life", web, acts=planted.acts)
    assert any(planted.found in each for each in told.wrong), told.wrong
