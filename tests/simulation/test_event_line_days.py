"""A watched pipeline with backfills goes well: the watch stands back during a swap, and continues afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.simulate import simulate_seed
from tidegate.execution.input_watch import Arrival, InputWatch

LIVES = 25


def test_all_input_is_read_once_beside_backfills_and_rollbacks() -> None:
    lives = {seed: simulate_seed(seed, "watched") for seed in range(LIVES)}
    assert {seed: life.problem for seed, life in lives.items() if life.problem} == {}
    stories = [life.story() for life in lives.values()]
    for act in ("swaps fix", "discards fix", "went back to", "there is new input"):
        assert sum(act in story for story in stories) > LIVES // 10, f"in some lives somebody {act}"


def test_a_watch_that_takes_the_pause_of_a_swap_for_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    look = InputWatch.look

    def look_once_more(self: Any) -> Arrival | None:
        if getattr(self, "was_paused", False):
            return None
        view = self._ledger.view()
        self.was_paused = bool(view.entries) and view.entries[-1].control is not None
        return look(self)

    monkeypatch.setattr(InputWatch, "look", look_once_more)
    assert any(simulate_seed(seed, "watched").problem for seed in range(LIVES))
