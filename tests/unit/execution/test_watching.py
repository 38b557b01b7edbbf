"""What the process that watches says to the one that has started it, and how long it lives."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySource
from tidegate import seams
from tidegate.errors import Unavailable
from tidegate.execution.input_watch import InputWatch
from tidegate.execution.watching import AWAY_S, LIFETIME_S, POLL_S, REPEAT_S, _Reporter, _watch_until_outdated


class WatchedToy:
    """A process that watches a toy, with a clock that only its sleep moves."""

    def __init__(self, root: Path) -> None:
        self.world = ToyWorld(root)
        self.world.checkpoint("first", 1)
        self.stream = io.BytesIO()
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def live(self) -> list[Any]:
        """Let it live to its end. Return what it has said."""
        with seams.installed(replace(seams.Seams(), monotonic=lambda: self.now_s, sleep=self.sleep)):
            _watch_until_outdated(InputWatch(self.world.coordinator(), 86_400.0), _Reporter(self.stream))
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedToy:
    monkeypatch.setattr("tidegate.execution.watching.POLL_S", 20 * POLL_S)
    return WatchedToy(tmp_path)


def test_it_says_that_it_can_look_and_ends_in_time_since_code_and_logins_change(told: WatchedToy) -> None:
    assert told.live() == [{}]
    assert LIFETIME_S <= told.now_s < 1.1 * LIFETIME_S


def test_a_problem_is_told_once_a_minute_and_its_end_at_once(told: WatchedToy, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ToySource.plan

    def away(*of: Any) -> Any:
        if 100 < told.now_s < 100 + 3 * REPEAT_S:
            raise Unavailable("the broker is away", reason="NO_BROKER")
        return plan(*of)

    monkeypatch.setattr(ToySource, "plan", away)
    assert told.live() == [{}, *[{"problem": "NO_BROKER: the broker is away"}] * 3, {}]


def test_if_it_cannot_look_for_long_it_ends_since_its_login_may_be_an_old_one(
    told: WatchedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*of: Any) -> Any:
        raise Unavailable("no such user", reason="NO_LOGIN")

    monkeypatch.setattr(ToySource, "plan", refused)
    assert {line["problem"] for line in told.live()} == {"NO_LOGIN: no such user"}
    assert AWAY_S <= told.now_s < 1.1 * AWAY_S
