"""Days with quarantine go well, and bugs that are planted there are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.toy_gate import ToyGate, ToyQuarantine
from tests.kit.toys import ToySink
from tests.simulation.simulate import simulate_seed
from tidegate.checkpoint import quarantine_requests
from tidegate.gates.base import GateContext, Judgement

DAYS = 100


def test_every_row_is_somewhere_once() -> None:
    days = {seed: simulate_seed(seed, "aside") for seed in range(DAYS)}
    assert {seed: day.problem for seed, day in days.items() if day.problem} == {}
    stories = [day.story() for day in days.values()]
    asked = sum("asks to release" in story for story in stories)
    assert asked > DAYS // 5, "on many days somebody lets rows go on"
    answered = sum("says quarantine" in story for story in stories)
    assert answered > DAYS // 20, "on some days somebody sends what is held to quarantine"


def read_a_quarantine_that_is_behind(patch: Callable[..., None]) -> None:
    """A row that a checkpoint lets go on is let continue by the next one, too, if nobody waits for its mark."""
    patch(quarantine_requests, "_settled", lambda *args: True)


def release_without_a_mark(patch: Callable[..., None]) -> None:
    patch(ToyQuarantine, "prepare_marked", ToySink.prepare)


def publish_held_rows_though_a_person_sent_them_to_quarantine(patch: Callable[..., None]) -> None:
    judge = ToyGate.judge

    def publishes(self: ToyGate, frame: Any, context: GateContext) -> Judgement:
        judgement = judge(self, frame, replace(context, quarantine_held=False))
        broken = [replace(rule, policy="warn") if rule.policy == "hold" else rule for rule in judgement.broken]
        return replace(judgement, broken=tuple(broken)) if context.quarantine_held else judgement

    patch(ToyGate, "judge", publishes)


@pytest.mark.parametrize(
    ("plant", "within", "known"),
    [
        (read_a_quarantine_that_is_behind, 1500, (173, 414)),
        (release_without_a_mark, 50, ()),
        (publish_held_rows_though_a_person_sent_them_to_quarantine, 100, ()),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any, within: int, known: Any) -> None:
    plant(monkeypatch.setattr)
    assert any(simulate_seed(seed, "aside").problem for seed in (*known, *range(within)))
