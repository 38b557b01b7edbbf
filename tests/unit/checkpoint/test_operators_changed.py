"""A pipeline whose operators mean something else than their state does is refused by the trigger: nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpoint.kit import Limits
from tidegate import Pipeline
from tidegate.checkpoint import Coordinator
from tidegate.checkpoint.coordinator import Triggered
from tidegate.errors import Invalid
from tidegate.ledger import open_ledger
from tidegate.model.place import Place
from tidegate.sinks import DeltaUpsert
from tidegate.sources import Files


def trigger(root: Path, declare: Callable[[Any], Any], run: str) -> Triggered:
    """A checkpoint is planned on what the one before leaves, done or not."""
    (root / "landing").mkdir(exist_ok=True)
    pipeline = Pipeline("orders")
    files = Files("landing/*.json", schema="k string, v long, w long, at timestamp")
    rows = pipeline.source("rows", files, event_time="at")
    declare(rows).sink("out", DeltaUpsert("tables/out", keys=["k"]))
    place = Place(str(root))
    ledger = open_ledger(str(root / "ledger"), "orders")
    triggered = Coordinator(pipeline.graph(place), ledger, Limits(max_concurrent_checkpoints=10), place).trigger(run)
    assert isinstance(triggered, Triggered)
    return triggered


def totals(**other: Any) -> Callable[[Any], Any]:
    given = {"by": ["k"], "uid": "totals", "n": "count(*)", "total": "sum(v)"} | other
    return lambda rows: rows.aggregate(**given)


def hours(**other: Any) -> Callable[[Any], Any]:
    given = {"tumbling": "1 hour", "by": ["k"], "uid": "totals", "n": "count(*)", "emit": "update"} | other
    return lambda rows: rows.window(**given)


def test_what_means_something_else_is_refused_with_all_reasons(tmp_path: Path) -> None:
    trigger(tmp_path, totals(), "one")
    with pytest.raises(Invalid) as refused:
        trigger(tmp_path, totals(by=["w"], total="max( v )"), "two")
    assert refused.value.reason == "STATE_CHANGED"
    assert "aggregate 'totals': by is ['w'] now, and was ['k']" in str(refused.value)
    assert "aggregate 'totals': total is max( v ) now, and was sum(v)" in str(refused.value)
    with pytest.raises(Invalid, match="window 'totals': it was aggregate"):
        trigger(tmp_path, hours(), "two")
    assert trigger(tmp_path, totals(), "two").plan.id == 2, "put back, it goes on"


def test_results_may_come_and_go_and_other_results_are_other_names(tmp_path: Path) -> None:
    trigger(tmp_path, totals(), "one")
    assert trigger(tmp_path, totals(total=" sum(v)", least="min(v)", state_ttl="1 day"), "two").plan.id == 2
    trigger(tmp_path, lambda rows: rows.aggregate(by=["k"], uid="totals", n="count(*)", most="max(v)"), "three")


def test_windows_keep_their_size_but_not_when_they_are_told(tmp_path: Path) -> None:
    trigger(tmp_path, hours(), "one")
    trigger(tmp_path, hours(emit="close", allowed_lateness="5 min"), "two")
    with pytest.raises(Invalid, match="tumbling is '2 hours' now, and was '1 hour'"):
        trigger(tmp_path, hours(tumbling="2 hours"), "three")
