"""Jobs with little input: their plans need not adapt to it.

An adaptive plan runs each shuffle as a job of its own, and plans the rest anew with what that has shown. For a large
input this pays; for a small one it is most of what a query costs. Only on a Spark of our own on one machine, which
shuffles into few partitions: elsewhere it is adaptive plans that make few tasks, and few files, of many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tidegate.records.records import Amount, sum_of
from tidegate.spark.storage.same_disk import on_one_machine, started_by_tidegate
from tidegate.state.keyed import MIN_WRITTEN_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_small", "planned_simply"]

SMALL_BYTES: Final = 32_000_000
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def is_small(amounts: Iterable[Amount]) -> bool:
    """Return whether this is known to be little input. Nothing at all is not known."""
    parts = list(amounts)
    total = sum_of(parts).bytes
    return bool(parts) and total is not None and total <= SMALL_BYTES


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
