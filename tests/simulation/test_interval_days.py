"""Interval pipelines on bad days: the real coordinator, ledger and jobs, several runs for each hour."""

import pytest

from tests.simulation.planted_interval_bugs import PLANTED_HOURS
from tests.simulation.simulate import simulate_seed

SEEDS = 300


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_all_invariants_hold_on_bad_days(first: int) -> None:
    days = {seed: simulate_seed(seed, "hours") for seed in range(first, first + 100)}
    bad = [
        f"{day.problem}\nreplay: python -m tests.simulation --kind hours --seed {s} --trace"
        for s, day in days.items()
        if day.problem
    ]
    assert not bad, "\n".join(bad)
    assert sum(day.completed for day in days.values()) >= 200
    told = [what for day in days.values() for _, _, what in day.events]
    assert sum("S12.retire.after" in what for what in told) >= 30, "intervals are replaced after they were forgotten"


def test_the_same_seed_replays_identically() -> None:
    assert simulate_seed(5, "hours").digest() == simulate_seed(5, "hours").digest()


@pytest.mark.parametrize("name", PLANTED_HOURS)
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED_HOURS[name].in_place():
        assert PLANTED_HOURS[name].is_found("hours"), "all days went by, and nobody noticed"
