"""Days on which jobs are slow: all that must hold does, much is passed, and what is planted there is found."""

from __future__ import annotations

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.simulation.planted_overtaking_bugs import PLANTED_BUSY
from tests.simulation.simulate import Day, simulate_seed

DAYS = 120


@pytest.fixture(scope="module")
def days() -> dict[int, Day]:
    return {seed: simulate_seed(seed, "busy") for seed in range(DAYS)}


def test_every_row_is_in_every_table_once_but_for_what_is_in_flight(days: dict[int, Day]) -> None:
    replay = "replay: python -m tests.simulation --kind busy --seed {} --trace"
    bad = [f"{day.problem}\n{replay.format(seed)}" for seed, day in days.items() if day.problem]
    assert not bad, "\n".join(bad)


def test_much_is_passed_killed_and_rolled_back(days: dict[int, Day]) -> None:
    told = [what for day in days.values() for _, _, what in day.events]
    for expected, at_least in [
        ("goes past", 50),
        ("is killed", 500),
        ("waits for checkpoint", 100),
        ("went back to", 10),
        ("S6.overtaken.after", 50),
        ("S12.retire.after", 100),
    ]:
        assert sum(expected in what for what in told) >= at_least, expected
    assert sum(day.completed for day in days.values()) >= 400


def test_a_job_does_not_wait_for_input_from_an_attempt_that_lost() -> None:
    """Of three jobs in a row the second has acked twice, and the base was completed with the other ack: what the second
    one made for this checkpoint never counts, so the checkpoint goes past the third."""
    assert simulate_seed(2726, "behind").problem is None


@in_turn(seconds=100)
@pytest.mark.parametrize("name", turn_of(list(PLANTED_BUSY), 6))
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED_BUSY[name].in_place():
        assert PLANTED_BUSY[name].is_found("busy"), "all days went by, and nobody noticed"
