"""Sources that read only a sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate import Pipeline
from tidegate.backfill.sampled import with_samples
from tidegate.records.measures import Amount
from tidegate.records.records import KeySample
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

ANY: Any = None


def sampled(**columns: str) -> Any:
    pipeline = Pipeline("p")
    pipeline.source("orders", Generator(rows=5)).sink("orders", DeltaAppend("t"))
    record: Any = SimpleNamespace(sample=KeySample(share=0.5, by="id", sources=columns), origin=0)
    return with_samples(pipeline.graph(), ANY, record).sources


def test_a_source_that_todays_code_does_not_have_is_no_part_of_the_sample() -> None:
    assert list(sampled(orders="id", returns="id")) == ["orders"]


def test_the_rows_of_a_range_do_not_tell_how_many_are_in_the_sample() -> None:
    source = sampled(orders="id")["orders"].source
    assert source.verify({"from": 0, "to": 5}, ANY) == Amount(rows=None)
    assert source.verify({"from": 5, "to": 5}, ANY) == Amount(rows=0)
    assert Generator(rows=5).verify({"from": 0, "to": 5}, ANY) == Amount(rows=5)
