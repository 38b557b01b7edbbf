"""Turns a query of Nexmark, a function of its streams, into a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate import Pipeline
from tidegate.connectors.sink import Sink
from tidegate.pipeline import Stream
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

__all__ = ["QUERIES", "SCHEMAS", "SIDE_INPUT", "Query", "query"]

SCHEMAS: Final = {
    "person": "id long, name string, email string, credit_card string, city string, state string, "
    "date_time timestamp, extra string",
    "auction": "id long, item string, description string, initial_bid long, reserve long, date_time timestamp, "
    "expires timestamp, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, date_time timestamp, extra string",
}
SIDE_INPUT: Final = "tables/side_input"
"""A Delta table for q13, with a value for each key from 0 to 9999. The generator writes it."""


@dataclass(frozen=True)
class Query:
    """A query, with the keys of its rows if it replaces rows."""

    name: str
    declare: Callable[..., Stream]
    keys: Sequence[str] = ()
    partition_by: Sequence[str] = ()

    @property
    def reads(self) -> list[str]:
        """Return the kinds of events that it reads: its function's parameters."""
        return list(inspect.signature(self.declare).parameters)

    @property
    def table(self) -> Sink:
        """Return the sink of its rows."""
        path = f"tables/{self.name}"
        if self.keys:
            return DeltaUpsert(path, keys=self.keys)
        return DeltaAppend(path, partition_by=self.partition_by)

    def pipeline(self, sink: Sink | None = None, max_files: int = 1) -> Pipeline:
        """Declare the pipeline. max_files: the number of cuts that a checkpoint reads."""
        pipeline = Pipeline(f"nexmark-{self.name}")
        events = []
        for kind in self.reads:
            source = Files(f"landing/{kind}/*.parquet", schema=SCHEMAS[kind], max_files=max_files)
            events.append(pipeline.source(kind, source, event_time="date_time", watermark="4 s"))
        self.declare(*events).sink(self.name, sink or self.table)
        return pipeline


QUERIES: dict[str, Query] = {}
"""All queries declared so far, by name."""


def query(keys: Sequence[str] = (), partition_by: Sequence[str] = ()) -> Callable[[Callable[..., Stream]], Pipeline]:
    """Turn a function of the streams `person`, `auction` and `bid`, or some of these, into a pipeline.

    keys: the keys of its rows, if it replaces rows. partition_by: columns of its table.
    """

    def declare(function: Callable[..., Stream]) -> Pipeline:
        declared = QUERIES[function.__name__] = Query(function.__name__, function, keys, partition_by)
        return declared.pipeline()

    return declare
