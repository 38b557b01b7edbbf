"""When proposals expire, and where they begin after a swap."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate import seams
from tidegate.errors import Unavailable
from tidegate.proposal import expiry, replay

OLD = "2020-01-01T00:00:00.000+00:00"


def live(*names: str, created: str = OLD) -> Any:
    lines = [SimpleNamespace(name=name, created=created) for name in names]
    return SimpleNamespace(ledger=SimpleNamespace(proposals=lambda: lines))


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


def test_the_store_is_not_asked_for_ages_before_a_proposal_can_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(expiry, "idle_seconds", lambda _, name: asked.append(name) or 1e9)
    monkeypatch.setattr(expiry, "discard_named", lambda *_: None)
    day = 86400.0
    for age, ttl, expired in ((3 * day, 14 * day, []), (13 * day, 14 * day, []), (13.99 * day, 14 * day, ["it"])):
        created = (seams.now() - timedelta(seconds=age)).isoformat()
        assert expiry.discard_expired(live("it", created=created), ttl) == expired
    assert asked == ["it"]


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
