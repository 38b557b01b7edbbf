"""Jobs with little input: their plans need not adapt to it, and operators to which few rows come need but one worker.

An adaptive plan runs each shuffle as a job of its own, and plans the rest anew with what that has shown. For a large
input this pays; for a small one it is most of what a query costs. Only on a Spark of our own on one machine, which
shuffles into few partitions: elsewhere it is adaptive plans that make few tasks, and few files, of many.

To share a few rows out among workers takes longer than one worker takes for all of them: it is a stage of its own, with
a task for each file that is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.pipeline.graph.graph import Node
from tidegate.pipeline.graph.nodes import GateNode, StageNode, replaced_rows_of
from tidegate.pipeline.selection import sql_of
from tidegate.records.records import Amount, sum_of
from tidegate.spark.frame_facts import is_known_empty
from tidegate.spark.materialize import stored_rows
from tidegate.spark.storage.same_disk import on_one_machine, started_by_tidegate
from tidegate.state.keyed import MIN_WRITTEN_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["amounts_of", "are_few", "is_small", "planned_simply"]

SMALL_BYTES: Final = 32_000_000
FEW_ROWS: Final = 20_000
FEW_BYTES: Final = 4_000_000
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def is_small(amounts: Iterable[Amount]) -> bool:
    """Return whether this is known to be little input. Nothing at all is not known."""
    parts = list(amounts)
    total = sum_of(parts).bytes
    return bool(parts) and total is not None and total <= SMALL_BYTES


def are_few(amounts: Iterable[Amount]) -> bool:
    """Return whether these are known to be few rows. Of nothing at all it is not known."""
    parts = list(amounts)
    return bool(parts) and sum(map(_share_of_few, parts)) <= 1


def _share_of_few(amount: Amount) -> float:
    limits = ((amount.rows, FEW_ROWS), (amount.bytes, FEW_BYTES))
    return max((number / limit for number, limit in limits if number is not None), default=float("inf"))


def amounts_of(
    stream: str, makers: Mapping[str, Node], streams: Mapping[str, DataFrame], read: Mapping[str, Amount]
) -> list[Amount]:
    """Return how much is in a stream, and in that of the rows that it replaces, before any of it is computed.

    makers: the job's stages by their streams. read: the amounts that the job reads. A stage that only selects columns
    is taken to have a row for each row that it takes. Of what the user's Python computes nothing is known: neither
    how many rows it makes, nor how long each of them takes.
    """
    frames = [streams[name] for name in (stream, replaced_rows_of(stream)) if name in streams]
    counts = [_rows_of(frame) for frame in frames]
    if counts and None not in counts:
        return [Amount(rows=count) for count in counts]
    if stream in read:
        return [read[stream]]
    maker = makers.get(stream)
    if isinstance(maker, GateNode) or (isinstance(maker, StageNode) and sql_of(maker.function) is not None):
        return [amount for input in maker.inputs for amount in amounts_of(input, makers, streams, read)]
    return [Amount()]


def _rows_of(frame: DataFrame) -> int | None:
    if is_known_empty(frame):
        return 0
    stored = stored_rows(frame)
    return stored.rows if stored is not None else None


@contextlib.contextmanager
def planned_simply(spark: SparkSession) -> Iterator[None]:
    """Let the session make plans that do not adapt, for the block."""
    if not (started_by_tidegate(spark) and on_one_machine(spark)):
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
        with contextlib.suppress(Exception):  # the session may be lost; then nobody uses it any more
            spark.conf.set(_ADAPTIVE, adapts)
