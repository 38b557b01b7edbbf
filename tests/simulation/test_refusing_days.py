"""Days on which people divert what a target refuses go well, and bugs that are planted there are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.simulate import simulate_seed
from tidegate.protocol import rules

DAYS = 60


def test_every_row_is_in_the_table_or_in_quarantine_once() -> None:
    days = {seed: simulate_seed(seed, "refused") for seed in range(DAYS)}
    assert {seed: day.problem for seed, day in days.items() if day.problem} == {}
    stories = [day.story() for day in days.values()]
    diverted = sum("diverted by" in story for story in stories)
    assert diverted > DAYS // 10, "on many days somebody diverts rows"


def fill_quarantine_before_the_table_shows_whether_it_took_the_rows(patch: Callable[..., None]) -> None:
    on_publish = rules.on_publish

    def at_once(*args: Any) -> rules.Publishing:
        answer = on_publish(*args)
        if isinstance(answer, rules.AwaitDivert):
            return rules.Publish(answer.id, args[2], diverted=True)
        return answer

    patch(rules, "on_publish", at_once)


def note_that_every_divert_applied(patch: Callable[..., None]) -> None:
    on_publish = rules.on_publish

    def noted(*args: Any) -> rules.Publishing:
        answer = on_publish(*args)
        if isinstance(answer, rules.SettleDivert):
            return rules.SettleDivert(answer.id, applied=True)
        return answer

    patch(rules, "on_publish", noted)


@pytest.mark.parametrize(
    "plant",
    [fill_quarantine_before_the_table_shows_whether_it_took_the_rows, note_that_every_divert_applied],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch.setattr)
    assert any(simulate_seed(seed, "refused").problem for seed in range(300))
