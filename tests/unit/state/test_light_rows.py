"""Which rows come to workers in batches that nobody weighs: those of which a full batch is never large."""

from __future__ import annotations

from pyspark.sql import types as T

from tidegate.delta import StagedFile
from tidegate.state.arrow.workers import are_light
from tidegate.state.record import StateFile

NUMBERS = [
    T.StructField("at", T.TimestampType()),
    T.StructField("n", T.LongType()),
    T.StructField("price", T.DecimalType(12, 2)),
]
TEXT = [*NUMBERS, T.StructField("text", T.StringType())]


def stored(rows: int, size: int) -> StateFile:
    return StateFile(file=StagedFile(path="x", size=size, rows=rows), checkpoint=1, oldest=1, groups=(0, 7))


def test_numbers_and_times_are_light_whatever_is_known():
    assert are_light(NUMBERS, [])
    assert are_light(NUMBERS, [stored(1, 1 << 30)])


def test_of_texts_it_must_be_known_that_they_are_short():
    assert not are_light(TEXT, []), "nothing is stored yet"
    assert are_light(TEXT, [stored(1_000, 200_000), stored(10, 8_000)])
    assert not are_light(TEXT, [stored(1_000, 200_000), stored(1_000, 3_000_000)])
    assert are_light(TEXT, [stored(1_000_000, 200_000_000)], [stored(10, 3_000)])
    assert not are_light(TEXT, [stored(1_000_000, 200_000_000)], [stored(10, 30_000)]), "of few rows, each has much"
    assert not are_light(TEXT, [stored(1_000, 200_000)], []), "of one part nothing is stored yet"


def test_what_holds_others_is_as_long_as_they_are():
    nested = [T.StructField("all", T.ArrayType(T.LongType())), T.StructField("one", T.StructType(NUMBERS))]
    for field in nested:
        assert not are_light([field], [])
    assert not are_light([T.StructField("raw", T.BinaryType())], [stored(5, 50_000)])
