"""Differences between Spark 4.0, 4.1 and 4.2.

A server of 4.0 or 4.1 does not report its work per query either. Profiles then show only queries and times, as with a
server that tidegate has not started (`spark/work.py`).
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from tidegate.versions.ranges import installed_version, release_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["NEWEST", "by_hash", "minor", "repartition_by_id"]

NEWEST = "4.2"


def minor() -> str:
    """Return the installed Spark's major and minor version, which determines the jars. The newest if none is
    installed."""
    return ".".join(map(str, release_of(installed_version("pyspark") or NEWEST)[:2]))


def repartition_by_id(rows: DataFrame, count: int, id: Column) -> DataFrame:
    """Return rows in `count` partitions, each row in the one with the number that `id`, an INT, has."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(count, id)
    return by_hash(rows, count, id)


def by_hash(rows: DataFrame, count: int, id: Column) -> DataFrame:
    """Do the same in Spark 4.0, which only spreads rows by a hash: by numbers whose hashes fall where they should."""
    from pyspark.sql import functions as F

    return rows.repartition(count, F.element_at(F.array(*map(F.lit, _numbers_for(count))), id + 1))


@functools.cache
def _numbers_for(count: int) -> tuple[int, ...]:
    """Return for each partition a number that Spark puts there."""
    numbers: dict[int, int] = {}
    for number in itertools.count():
        numbers.setdefault(_hash(number) % count, number)
        if len(numbers) == count:
            return tuple(numbers[partition] for partition in range(count))
    raise AssertionError("numbers do not end")


def _hash(number: int) -> int:
    """Return Spark's hash of an INT: Murmur3 with its seed, as a signed number."""
    mask = 0xFFFFFFFF
    mixed = number * 0xCC9E2D51 & mask
    mixed = (mixed << 15 | mixed >> 17) & mask
    hashed = 42 ^ (mixed * 0x1B873593 & mask)
    hashed = ((hashed << 13 | hashed >> 19) & mask) * 5 + 0xE6546B64 & mask
    hashed ^= 4  # the length in bytes
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & mask
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & mask
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed
