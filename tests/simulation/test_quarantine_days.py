"""Days with quarantine go well, and bugs that are planted there are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.toy_gate import ToyQuarantine
from tests.kit.toys import ToySink
from tests.simulation.simulate import simulate_seed
from tidegate.checkpoint import quarantine_requests

DAYS = 100


def test_every_row_is_somewhere_once() -> None:
    days = {seed: simulate_seed(seed, "aside") for seed in range(DAYS)}
    assert {seed: day.problem for seed, day in days.items() if day.problem} == {}
    asked = sum("asks to release" in day.story() for day in days.values())
    assert asked > DAYS // 5, "on many days somebody lets rows go on"


def read_a_quarantine_that_is_behind(patch: Callable[..., None]) -> None:
    """A row that a checkpoint lets go on is let go on by the next one, too, if nobody waits for its mark."""
    patch(quarantine_requests, "_settled", lambda *args: True)


def release_without_a_mark(patch: Callable[..., None]) -> None:
    patch(ToyQuarantine, "prepare_marked", ToySink.prepare)


@pytest.mark.parametrize(
    ("plant", "within", "known"),
    [(read_a_quarantine_that_is_behind, 1500, (173, 414)), (release_without_a_mark, 50, ())],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any, within: int, known: Any) -> None:
    plant(monkeypatch.setattr)
    assert any(simulate_seed(seed, "aside").problem for seed in (*known, *range(within)))
