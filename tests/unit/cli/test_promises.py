"""explain, watch and metrics: they say of each promise whether it is kept, and since when not."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tidegate.cli.forms import FORMS
from tidegate.records.records import Promise


@pytest.fixture
def promising(project: Any) -> Any:
    """A checkpoint whose pipeline promises a table that is never older than an hour, or than a moment."""

    def promised(fresh_s: float) -> None:
        project.complete(1, None, promises={"good": Promise(fresh_s=fresh_s, jobs=["main"], sources=["events"])})

    return promised


def test_a_kept_promise_is_told_with_the_state(promising: Any, tidegate: Any) -> None:
    promising(3600.0)
    said = tidegate("explain", "orders")
    assert "Promise kept: sink good is at most 1 h old: it has the input up to " in said.out
    document = tidegate("explain", "orders", "--json").json
    assert document["state"] == "well"
    assert [(promise["sink"], promise["kept"]) for promise in document["promises"]] == [("good", True)]
    msgspec.convert(document, FORMS["explain"]["PIPELINE"])
    msgspec.convert(tidegate("watch", "orders", "--once", "--json").json, FORMS["watch"]["--once"])


def test_a_broken_promise_is_told_with_by_how_much(promising: Any, tidegate: Any) -> None:
    promising(0.001)
    said = tidegate("explain", "orders")
    assert "Pipeline orders breaks a promise: sink good is more than 0.001 s old since " in said.out
    assert re.search(r"Promise broken, by \d+ (s|min).*: sink good ", said.out)
    assert tidegate("explain", "orders", "--json").json["state"] == "stale"
    assert "Promise broken: sink good" in tidegate("watch", "orders", "--once").out
    assert 'tidegate_promiseBroken{pipeline="orders",sink="good"} 1' in tidegate("metrics", "orders").out
