"""Rows that come back from quarantine, in the job that lets them go on, and marks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidegate.checkpoint.coordinator import Coordinator
from tidegate.gates.quarantine import QuarantineSink
from tidegate.model.records import Plan, Request
from tidegate.sources.base import SourceContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.gates.returning import Returning

__all__ = ["returning"]


def returning(
    coordinator: Coordinator, plan: Plan, name: str, sink: QuarantineSink, spark: SparkSession
) -> Returning | None:
    """What the plan says is to come back from a quarantine of this name; None: nothing."""
    part = plan.sources.get(name)
    if part is None or part.empty:
        return None
    ledger = coordinator.ledger
    splits = ledger.unpack(part.splits)
    requests = [msgspec.convert(each, Request) for each in splits["requests"]]
    context = SourceContext(coordinator.graph.name, name, coordinator.place, ledger)
    source = sink.source(ledger.home)
    source.verify(splits["table"], context)
    return sink.returning(source.read(spark, splits["table"], context), requests, plan.id)
