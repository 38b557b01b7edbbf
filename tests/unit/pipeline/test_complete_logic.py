"""Whether a hash of a function tells all that it does."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F

from tidegate.pipeline.graph.fingerprint import complete_logic_of, logic_of

RATE = 2
RATES = {"AT": [1, 2.0], "DE": None}
NOT_A_CONSTANT = SimpleNamespace(rate=2)


def helper(frame: Any) -> Any:
    return frame.where(F.col("amount") > RATE)


def reads_a_file(frame: Any) -> Any:
    return frame.where(Path("rule.sql").read_text())


def remembers(frame: Any) -> Any:
    global RATE
    RATE += 1
    return frame


class Rule:
    def __init__(self, rate: object) -> None:
        self.rate = rate

    def __call__(self, frame: Any) -> Any:
        return frame.where(F.lit(self.rate))


COMPLETE: dict[str, Callable[..., Any]] = {
    "constants and functions of its own module": lambda frame: helper(frame).withColumn("r", F.lit(RATES["AT"])),
    "arguments": functools.partial(lambda frame, rate: frame.where(F.lit(rate)), rate=3),
    "classes of libraries": lambda row: datetime(2024, 1, 1, tzinfo=UTC) > row and isinstance(row, int),
    "an object with constants": Rule(2),
}
INCOMPLETE: dict[str, Callable[..., Any]] = {
    "a file": lambda frame: reads_a_file(frame),
    "the environment": lambda frame: frame.where(os.getenv("RULE")),
    "the time": lambda row: datetime.now(UTC) > row,
    "chance": lambda row: random.random() > row,
    "chance in Spark": lambda frame: frame.where(F.rand() > 0),
    "another table": lambda frame: frame.join(frame.sparkSession.table("rates")),
    "an object": lambda frame: frame.where(F.lit(NOT_A_CONSTANT.rate)),
    "a class of its own": lambda frame: Rule(2)(frame),
    "an argument that is an object": functools.partial(lambda frame, rule: frame, rule=NOT_A_CONSTANT),
    "an object with objects": Rule(NOT_A_CONSTANT),
    "what the last call has left": remembers,
    "a class": Rule,
}


@pytest.mark.parametrize("name", COMPLETE)
def test_a_function_is_known_by_its_code_and_constants(name: str) -> None:
    assert complete_logic_of(COMPLETE[name]) == logic_of(COMPLETE[name])


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_function_that_looks_elsewhere_is_not_known(name: str) -> None:
    assert complete_logic_of(INCOMPLETE[name]) is None
