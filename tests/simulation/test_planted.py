"""The simulation has teeth: each bug that is planted into the real code is found within some days."""

import pytest

from tests.simulation.planted import PLANTED, planted
from tests.simulation.simulate import simulate_seed


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    within = PLANTED[name].within
    with planted(name):
        found = next((day for seed in range(within) if (day := simulate_seed(seed)).problem), None)
    assert found is not None, f"{within} days went by, and nobody noticed: {name}"


def test_nothing_stays_planted() -> None:
    assert simulate_seed(0).problem is None
