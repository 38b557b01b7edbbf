"""Pipelines that fail because of what is in a row, each in a way of its own: the row's values are a canary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CANARIES", "FAILING", "WORD"]

WORD, NUMBER = "SECRET-CUSTOMER-77", 77_007_700_77
CANARIES = (WORD, str(NUMBER), f"{NUMBER:,}")
"""How the values may be written."""

SUITE = """
name: highest
expectations:
  - type: expect_column_max_to_be_between
    kwargs: {column: id, max_value: 5}
  - type: expect_column_values_to_be_in_set
    kwargs: {column: customer, value_set: [somebody]}
"""


def _feed(folder: Path, text: str = "", times: int = 1) -> None:
    landing = folder / "data" / "in"
    landing.mkdir(parents=True)
    row = json.dumps({"id": NUMBER, "customer": WORD})
    (landing / "1.json").write_text(text or "".join(f"{row}\n" for _ in range(times)))


def _pipeline(name: str, folder: Path, schema: str = "id long, customer string") -> Pipeline:
    return Pipeline(name, tolerable_failed_checkpoints=0, root=str(folder / "ledger"), data=str(folder / "data"))


def malformed(folder: Path) -> Pipeline:
    """The file is cut off in the middle of a record."""
    _feed(folder, f'{{"id": {NUMBER}, "customer": "{WORD}"')
    pipeline = _pipeline("malformed", folder)
    pipeline.source("in", Files("in/*.json", schema="id long, customer string")).sink("out", DeltaAppend("out"))
    return pipeline


def miscast(folder: Path) -> Pipeline:
    """A stage casts a word to a number."""
    _feed(folder)
    pipeline = _pipeline("miscast", folder)
    rows = pipeline.source("in", Files("in/*.json", schema="id long, customer string"))

    @pipeline.stage(rows)
    def cast(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("cast(customer AS int) AS customer")

    cast.sink("out", DeltaAppend("out"))
    return pipeline


def python_function(folder: Path) -> Pipeline:
    """A Python function in Spark takes no words."""
    _feed(folder)
    pipeline = _pipeline("python_function", folder)
    rows = pipeline.source("in", Files("in/*.json", schema="id long, customer string"))

    @pipeline.stage(rows)
    def counted(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        return rows.select(udf(lambda customer: int(customer), "int")("customer").alias("customer"))

    counted.sink("out", DeltaAppend("out"))
    return pipeline


def collected(folder: Path) -> Pipeline:
    """A stage collects rows, and takes no words either."""
    _feed(folder)
    pipeline = _pipeline("collected", folder)
    rows = pipeline.source("in", Files("in/*.json", schema="id long, customer string"))

    @pipeline.stage(rows)
    def looked_at(rows: DataFrame) -> DataFrame:
        int(rows.collect()[0].customer)
        return rows

    looked_at.sink("out", DeltaAppend("out"))
    return pipeline


def raised(folder: Path) -> Pipeline:
    """A stage's SQL raises an error of its own, which quotes the row."""
    _feed(folder)
    pipeline = _pipeline("raised", folder)
    rows = pipeline.source("in", Files("in/*.json", schema="id long, customer string"))

    @pipeline.stage(rows)
    def refused(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("if(id > 0, raise_error(concat('bad customer ', customer, id)), id) AS id")

    refused.sink("out", DeltaAppend("out"))
    return pipeline


def contradicting(folder: Path) -> Pipeline:
    """Two rows have one key, and differ."""
    rows = [{"id": NUMBER, "customer": f"{WORD}{n}"} for n in range(2)]
    _feed(folder, "".join(f"{json.dumps(row)}\n" for row in rows))
    pipeline = _pipeline("contradicting", folder)
    read = pipeline.source("in", Files("in/*.json", schema="id long, customer string"))
    read.sink("out", DeltaUpsert("out", keys=["id"]))
    return pipeline


def judged(folder: Path) -> Pipeline:
    """A gate finds values that must not be there."""
    _feed(folder, times=2)
    suite = folder / "data" / "highest.yaml"
    suite.write_text(SUITE)
    pipeline = _pipeline("judged", folder)
    rows = pipeline.source("in", Files("in/*.json", schema="id long, customer string"))
    rows.gate(Expectations(str(suite)), name="checked").sink("out", DeltaAppend("out"))
    return pipeline


FAILING: dict[str, Callable[[Path], Pipeline]] = {
    make.__name__: make for make in (malformed, miscast, python_function, collected, raised, contradicting, judged)
}
