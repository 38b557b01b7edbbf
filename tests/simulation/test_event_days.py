"""Days by event go well: nothing waits forever, and nothing is made for nothing. Bugs that are planted are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.simulate import simulate_seed
from tidegate.coordinator import Coordinator
from tidegate.execution import input_watch
from tidegate.execution.input_watch import InputWatch

DAYS = 40


def test_all_input_is_read_though_nobody_but_the_watch_asks_for_checkpoints() -> None:
    days = {seed: simulate_seed(seed, "events") for seed in range(DAYS)}
    assert {seed: day.problem for seed, day in days.items() if day.problem} == {}
    stories = [day.story() for day in days.values()]
    for reason in ("new input", "there was no checkpoint for", "is gone", "is over"):
        assert sum(reason in story for story in stories) > 1, f"on some days a checkpoint is due because {reason}"


def wait_for_a_process_that_is_gone(patch: Callable[..., None]) -> None:
    begin = InputWatch.__init__
    patch(
        InputWatch,
        "__init__",
        lambda self, coordinator, max_pause_s, give_up=None: begin(self, coordinator, max_pause_s),
    )


def leave_a_timeout_to_others(patch: Callable[..., None]) -> None:
    patch(InputWatch, "_find_abandoned", lambda self, view: None)


def ask_once_and_never_again(patch: Callable[..., None]) -> None:
    patch(InputWatch, "_backoff", lambda self, first_s, times: 1e12)


def make_a_checkpoint_for_each_event(patch: Callable[..., None]) -> None:
    patch(Coordinator, "has_no_new_input", lambda self, plan, view: False)


def make_none_without_input(patch: Callable[..., None]) -> None:
    patch(input_watch, "is_due", lambda ledger, view, max_pause_s: not view.entries)


@pytest.mark.parametrize(
    "plant",
    [
        wait_for_a_process_that_is_gone,
        leave_a_timeout_to_others,
        ask_once_and_never_again,
        make_a_checkpoint_for_each_event,
        make_none_without_input,
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch.setattr)
    assert any(simulate_seed(seed, "events").problem for seed in range(DAYS))
