"""Jobs with little input: their plans need not adapt to it.

An adaptive plan runs each shuffle as a job of its own, and plans the rest anew with what that has shown. For a large
input this pays; for a small one it is most of what a query costs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from tidegate.records.records import Amount, sum_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_small", "planned_simply"]

SMALL_BYTES: Final = 8_000_000
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def is_small(amounts: Iterable[Amount]) -> bool:
    """Return whether this is known to be little input."""
    total = sum_of(amounts).bytes
    return total is not None and total <= SMALL_BYTES


@contextlib.contextmanager
def planned_simply(spark: SparkSession) -> Iterator[None]:
    """Let the session make plans that do not adapt, for the block."""
    adapts = spark.conf.get(_ADAPTIVE)
    if adapts != "true":
        yield
        return
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the session may be lost; then nobody uses it any more
            spark.conf.set(_ADAPTIVE, adapts)
