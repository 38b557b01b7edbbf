"""Long lives, with an oracle that looks after each step whether all is there that anybody may still need."""

import pytest

from tests.kit.sampling import in_turn
from tests.simulation.planted_long_life_bugs import PLANTED_YEARS
from tests.simulation.simulate import simulate_many, simulate_seed

pytestmark = in_turn(seconds=90)

SEEDS = 120
REPLAY = "replay: python -m tests.simulation --kind years --seed {} --trace"


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_all_that_is_needed_is_there_at_each_step_of_a_long_life(first: int) -> None:
    lives = simulate_many(range(first, first + 40), "years")
    bad = [f"{life.problem}\n{REPLAY.format(life.seed)}" for life in lives if life.problem]
    assert not bad, "\n".join(bad)


def test_all_of_it_happens() -> None:
    lives = [simulate_seed(seed, "years") for seed in range(SEEDS, SEEDS + 40)]
    told = [what for life in lives for _, _, what in life.events]
    for expected, at_least in [
        ("went back to", 15),
        ("names checkpoint", 20),
        ("takes the name", 8),
        ("has forked", 1),
        ("has copied", 1),
        ("has removed", 10),
        ("/merged", 200),
        ("S12.retire.after", 200),
        ("create pins/day-", 10),
        ("asks to release", 100),
        ("is killed", 50),
        (" elsewhere", 10),
    ]:
        assert sum(expected in what for what in told) >= at_least, expected
    assert sum(life.completed for life in lives) >= 400


@pytest.mark.parametrize("name", PLANTED_YEARS)
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED_YEARS[name].in_place():
        assert PLANTED_YEARS[name].is_found("years"), "all lives went by, and nobody noticed"
