"""Days on which a source is renamed go well: each row is read once. Bugs that are planted there are found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.renaming_days import forget_what_old_code_would_do, keep_the_old_position
from tests.simulation.simulate import simulate_seed

DAYS = 60


def test_each_row_is_read_once_whatever_its_source_is_called() -> None:
    days = {seed: simulate_seed(seed, "renamed") for seed in range(DAYS)}
    assert {seed: day.problem for seed, day in days.items() if day.problem} == {}
    assert sum("moves in to entry" in day.story() for day in days.values()) > DAYS // 5


@pytest.mark.parametrize("plant", [keep_the_old_position, forget_what_old_code_would_do])
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch.setattr)
    assert any(simulate_seed(seed, "renamed").problem for seed in range(DAYS))
