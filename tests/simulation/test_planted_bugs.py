"""The simulation has teeth: each bug that is planted into the real code is found within some days."""

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.simulation.planted_bugs import PLANTED
from tests.simulation.simulate import simulate_seed


@in_turn(seconds=70)
@pytest.mark.parametrize("name", turn_of(list(PLANTED), 6))
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED[name].in_place():
        assert PLANTED[name].is_found(), "all days went by, and nobody noticed"


def test_nothing_stays_planted() -> None:
    assert simulate_seed(0).problem is None
