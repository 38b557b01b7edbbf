"""Streams that replace rows: who takes those that are replaced. For nobody, they are not looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files


def _stage(counts: Any) -> None:
    @counts.pipeline.stage(counts)
    def passed(counts: Any) -> Any:
        return counts

    passed.sink("passed", DeltaAppend("passed", changelog=True))


@pytest.mark.parametrize(
    ("what", "taken"),
    [
        (lambda counts: counts.sink("log", DeltaAppend("log", changelog=True)), False),
        (lambda counts: counts.sink("now", DeltaUpsert("now", keys=["k"])), False),
        (lambda counts: counts.sink("now", DeltaUpsert("now", keys=["n"])), True),
        (
            lambda counts: counts.aggregate(by=["n"], uid="again", m="count(*)").sink(
                "m", DeltaUpsert("m", keys=["n"])
            ),
            True,
        ),
        (_stage, True),
    ],
    ids=["a log of changes", "an upsert by its keys", "an upsert by others", "an aggregate", "a stage"],
)
def test_who_takes_rows_that_are_replaced(what: Callable[[Any], None], taken: bool) -> None:
    pipeline = Pipeline("counting")
    rows = pipeline.source("rows", Files("landing/*.json", schema="k long"))
    what(rows.aggregate(by=["k"], uid="counts", n="count(*)"))
    assert pipeline.graph().replaced_is_taken("counts") == taken
