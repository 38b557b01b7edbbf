"""Speeds up jobs with little input: plans without adaptive execution, and one worker for few rows.

Adaptive execution runs each shuffle as a separate job, and plans the rest again with the sizes that it has seen. This
pays for large input, but for small input it dominates the cost of a query. It is only turned off on a Spark server
that tidegate has started on this machine, which shuffles into few partitions. Elsewhere, adaptive execution is what
merges many small tasks and files into few.

Distributing a few rows among workers takes longer than processing them in one worker, because the shuffle needs a stage
with a task for each input file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.pipeline.graph.graph import Node
from tidegate.pipeline.graph.nodes import GateNode, StageNode, replaced_rows_of
from tidegate.pipeline.selection import sql_of
from tidegate.records.records import Amount
from tidegate.spark.frame_facts import is_known_empty
from tidegate.spark.materialize import stored_rows
from tidegate.spark.storage.same_disk import is_tidegate_server, on_one_machine
from tidegate.state.keyed import MIN_WRITTEN_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["amounts_of", "is_small", "is_small_input", "planned_simply"]

SMALL_BYTES: Final = 32_000_000
FEW_ROWS: Final = 20_000
FEW_BYTES: Final = 4_000_000
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def is_small(amounts: Iterable[Amount]) -> bool:
    """Return whether the input is small. False if its size is unknown, as without any amounts.

    Few rows are small if only their number is known, as of a topic.
    """
    parts = list(amounts)
    return bool(parts) and sum(map(_share_of_small, parts)) <= 1


def is_small_input(amounts: Iterable[Amount]) -> bool:
    """Return whether these are few rows. False if their number is unknown, as without any amounts."""
    parts = list(amounts)
    return bool(parts) and sum(map(_share_of_small_input, parts)) <= 1


def _share_of_small(amount: Amount) -> float:
    if amount.bytes is not None:
        return amount.bytes / SMALL_BYTES
    return _share_of_small_input(amount)


def _share_of_small_input(amount: Amount) -> float:
    limits = ((amount.rows, FEW_ROWS), (amount.bytes, FEW_BYTES))
    return max((number / limit for number, limit in limits if number is not None), default=float("inf"))


def amounts_of(
    stream: str, makers: Mapping[str, Node], streams: Mapping[str, DataFrame], read: Mapping[str, Amount]
) -> list[Amount]:
    """Return upper bounds for a stream and its retractions, without computing rows.

    A stage that only selects columns emits at most as many rows as it reads. Nothing is known about a stage of Python:
    neither how many rows it emits, nor how long each takes.

    makers: the job's stages, by the streams that they emit. read: the amounts that the job reads, by stream.
    """
    frames = [streams[name] for name in (stream, replaced_rows_of(stream)) if name in streams]
    counts = [_rows_of(frame) for frame in frames]
    if counts and None not in counts:
        return [Amount(rows=count) for count in counts]
    if stream in read:
        return [read[stream]]
    maker = makers.get(stream)
    if isinstance(maker, GateNode) or (isinstance(maker, StageNode) and sql_of(maker.function) is not None):
        amounts: list[Amount] = []
        for input in maker.inputs:
            amounts += amounts_of(input, makers, streams, read)
        return amounts
    return [Amount()]


def _rows_of(frame: DataFrame) -> int | None:
    if is_known_empty(frame):
        return 0
    stored = stored_rows(frame)
    return stored.rows if stored is not None else None


@contextlib.contextmanager
def planned_simply(spark: SparkSession) -> Iterator[None]:
    """Turn off adaptive execution in the block, where this pays."""
    if not (is_tidegate_server(spark) and on_one_machine(spark)):
        yield
        return
    adapts = spark.conf.get(_ADAPTIVE)
    if adapts != "true" or int(str(spark.conf.get("spark.sql.shuffle.partitions"))) > MIN_WRITTEN_PARTITIONS:
        yield
        return
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # if the session is lost, it is not used again
            spark.conf.set(_ADAPTIVE, adapts)
