"""When proposals expire, and where they begin after a swap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.errors import Unavailable
from tidegate.proposal import expiry, replay


def live(*names: str) -> Any:
    return SimpleNamespace(ledger=SimpleNamespace(proposals=lambda: [SimpleNamespace(name=name) for name in names]))


def test_one_that_cannot_be_removed_stops_neither_production_nor_the_removal_of_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def discard(live: Any, name: str, by: str) -> None:
        if name == "odd":
            raise KeyError("returns")

    monkeypatch.setattr(expiry, "idle_seconds", lambda *_: 7200.0)
    monkeypatch.setattr(expiry, "discard_named", discard)
    assert expiry.discard_expired(live("odd", "old"), 60.0) == ["old"]
    assert "odd" in caplog.text
    assert "returns" not in caplog.text, "it may be data"
    assert expiry.discard_expired(live("old"), None) == []

    def unavailable() -> None:
        raise Unavailable("no storage")

    broken: Any = SimpleNamespace(ledger=SimpleNamespace(proposals=unavailable))
    assert expiry.discard_expired(broken, 60.0) == []


def test_none_expires_within_an_hour_while_a_checkpoint_may_still_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "discard_named", lambda *_: None)
    for idle, expired in ((3500.0, []), (3700.0, ["young"])):
        monkeypatch.setattr(expiry, "idle_seconds", lambda *_, idle=idle: idle)
        assert expiry.discard_expired(live("young"), 1.0) == expired


@pytest.mark.parametrize(("number", "start"), [(replay.MANY, 0), (replay.MANY + 1, replay.MANY - 4)])
def test_after_a_swap_only_a_short_history_is_replayed_from_the_beginning_unasked(
    monkeypatch: pytest.MonkeyPatch, number: int, start: int
) -> None:
    ledger: Any = SimpleNamespace(rollbacks=list)
    monkeypatch.setattr(replay, "rollback_of", lambda *_: object())
    counting = range(1, number + 1)
    assert replay._counting_start(ledger, counting, number - 5, reaches_beginning=True) == start
