"""The real coordinator, ledger and jobs, on storage that fails in every way, by many processes that die anywhere."""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.choices import ListDice, SeededDice
from tests.simulation.fault_rates import climate_of
from tests.simulation.simulate import simulate, simulate_many, simulate_seed

SEEDS = 300
REPLAY = "replay: python -m tests.simulation --seed {} --trace"


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_all_invariants_hold_on_bad_days(first: int) -> None:
    days = simulate_many(range(first, first + 100))
    bad = [f"{day.problem}\n{REPLAY.format(day.seed)}" for day in days if day.problem]
    assert not bad, "\n".join(bad)


def test_days_are_as_bad_as_they_are_meant_to_be() -> None:
    """If nobody died, nothing was lost or nothing was completed, the test above would show little."""
    told = [what for seed in range(100) for _, _, what in simulate_seed(seed).events]
    for expected, at_least in [
        ("is killed", 100),
        ("the power fails", 30),
        ("stalls until", 200),
        ("mishap: lost", 300),
        ("mishap: unclear", 15),
        ("mishap: unsynced", 15),
        ("makes foreign commit", 50),
        ("meddled in vain", 20),
        ("S12.retire.after", 100),
        ("A1.abort.after", 100),
    ]:
        assert sum(expected in what for what in told) >= at_least, expected
    assert sum(simulate_seed(seed).completed for seed in range(100)) >= 200
    assert {climate_of(SeededDice(seed)).max_concurrent_checkpoints for seed in range(100)} == {1, 2, 3}


def test_the_same_seed_replays_identically() -> None:
    for seed in (3, 7, 52, 97):
        first, second = simulate_seed(seed), simulate_seed(seed)
        assert first.events == second.events
        assert first == second
    assert simulate_seed(3).events != simulate_seed(4).events


@pytest.mark.parametrize(("kind", "seed"), [("life", 11), ("hours", 5), ("aside", 3), ("busy", 2), ("years", 5)])
def test_the_same_seed_replays_identically_in_another_process(kind: str, seed: int) -> None:
    """However sets are ordered there: what is told of a seed is of use to nobody else if it is not so."""
    told = {_in_a_process(kind, str(seed), hash_seed) for hash_seed in ("1", "2")}
    assert len(told) == 1
    assert simulate_seed(seed, kind).digest() in told.pop()


def _in_a_process(kind: str, seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--kind", kind, "--seed", seed, "--trace"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_any_trouble_every_run_makes_its_checkpoint_in_turn() -> None:
    day = simulate(ListDice([]))
    assert day.problem is None
    assert day.completed == day.checkpoints >= 2
    assert not any("mishap" in what for _, _, what in day.events)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=3000))
def test_no_choice_of_trouble_breaks_an_invariant(choices: bytes) -> None:
    """As above, but what fails shrinks to the few choices that matter."""
    day = simulate(ListDice(choices))
    assert day.problem is None, f"{day.story()}\n{day.problem}"
