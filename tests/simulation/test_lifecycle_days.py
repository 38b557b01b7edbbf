"""Days on which a pipeline is forked, copied and brought to its end: that they are bad enough, and what they find."""

import pytest

from tests.kit.sampling import turn_of
from tests.simulation.planted_lifecycle_bugs import PLANTED_LIFE
from tests.simulation.simulate import simulate_seed


def test_all_of_it_happens() -> None:
    told = [what for seed in range(250) for _, _, what in simulate_seed(seed).events]
    for expected, at_least in [
        ("has forked checkpoint", 15),
        ("has forked copy", 1),
        ("the fork went back to", 3),
        ("has copied checkpoint", 10),
        ("the end is completed", 1),
        ("was finished", 5),
        ("create pins/day-", 5),
        ("did not: ", 20),
    ]:
        assert sum(expected in what for what in told) >= at_least, expected


@pytest.mark.parametrize("name", turn_of(list(PLANTED_LIFE), 3))
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED_LIFE[name].in_place():
        assert PLANTED_LIFE[name].is_found(), "all days went by, and nobody noticed"
