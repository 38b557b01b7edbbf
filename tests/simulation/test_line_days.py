"""Long lives with backfills: whatever is killed, and wherever, tables, states and quarantine are what the mended code
makes from a swap's origin on, and nothing is removed that anybody may still need."""

import pytest

from tests.kit.sampling import in_turn
from tests.simulation.planted_line_bugs import PLANTED_LINES
from tests.simulation.simulate import simulate_many, simulate_seed

pytestmark = in_turn(seconds=90)

SEEDS = 60
REPLAY = "replay: python -m tests.simulation --kind lines --seed {} --trace"


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_a_backfill_brings_what_the_mended_code_makes_and_takes_nothing_else(first: int) -> None:
    lives = simulate_many(range(first, first + 30), "lines")
    bad = [f"{life.problem}\n{REPLAY.format(life.seed)}" for life in lives if life.problem]
    assert not bad, "\n".join(bad)


def test_all_of_it_happens() -> None:
    lives = [simulate_seed(seed, "lines") for seed in range(SEEDS, SEEDS + 40)]
    told = [f"{who}: {what}" for life in lives for _, who, what in life.events]
    for expected, at_least in [
        ("begins fix", 30),
        ("at 0", 3),  # with recorded cuts, only where everything is retained
        ("with recorded cuts", 8),
        ("lying", 8),
        ("swaps fix", 20),
        ("swapped in by None", 12),
        ("was rolled back", 1),
        ("went back to", 10),
        ("names checkpoint", 15),
        ("has forked", 1),
        ("has removed", 2),
        ("backfill is killed", 8),
        ("has seen proposal", 4),
        ("suspended by suspender", 100),
        ("S12.retire.after", 250),
    ]:
        assert sum(expected in what for what in told) >= at_least, expected


@pytest.mark.parametrize("name", PLANTED_LINES)
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED_LINES[name].in_place():
        assert PLANTED_LINES[name].is_found("lines"), "all lives went by, and nobody noticed"
