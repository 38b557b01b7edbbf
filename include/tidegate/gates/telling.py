"""What is told of bad values: a few of them, as short texts; of private columns none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tidegate.gates.shown import shown
from tidegate.gates.suite import Rule
from tidegate.model.records import Json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["SAMPLES", "hide", "private_of", "short", "tell", "text", "texts_of"]

SAMPLES = 20
"""So many are told of each rule."""
SAMPLE_LENGTH = 256
_TELLS_NO_VALUE = ("unique_value_count", "proportion", "row_count", "column_count", "to_exist", "type")


def private_of(rule: Rule, private: Collection[str]) -> bool:
    """Whether a rule speaks of a private column."""
    spoken_of = {column.split(".")[0] for column in rule.columns}
    return bool(private) and (rule.type == "unexpected_rows_expectation" or not spoken_of.isdisjoint(private))


def hide(result: Json, rule: Rule, private: Collection[str]) -> None:
    """Take values of private columns out of a result."""
    if not private_of(rule, private):
        return
    said = result["result"]
    if not any(word in rule.type for word in _TELLS_NO_VALUE):
        for key in ("observed_value", "details"):
            if key in said:
                said[key] = None
        said |= {key: [] for key in said if key.startswith("partial_")}
    if result["exception_info"]["raised_exception"]:
        result["exception_info"]["exception_message"] = "not told: the column is private"  # it may hold a value


def short(value: Any) -> Any:
    """A result without long lists and long texts."""
    if isinstance(value, dict):
        return {key: short(each) for key, each in list(value.items())[:100]}
    if isinstance(value, list | tuple):
        return [short(each) for each in value[:SAMPLES]]
    return value[:SAMPLE_LENGTH] if isinstance(value, str) and len(value) > SAMPLE_LENGTH else value


def tell(result: Json, rule: Rule, samples: Sequence[Sequence[str | None]]) -> None:
    """Put samples into a result: of each the values of the rule's columns."""
    told = result["result"]["partial_unexpected_list"]
    told += [_shaped(rule, list(sample)) for sample in samples]


def text(frame: DataFrame, name: str) -> Column:
    """A column's values as short texts."""
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes).get(name, "string")
    column = f.col(name)
    if kind == "binary":
        column = f.hex(f.substring(column, 1, SAMPLE_LENGTH // 2))
    elif kind.startswith(("struct", "array", "map", "variant")):
        column = f.to_json(column)
    return f.left(column.cast("string"), f.lit(SAMPLE_LENGTH))


def _shaped(rule: Rule, values: list[str | None]) -> Any:
    """As Great Expectations shapes them: a value, a pair, or values by column."""
    if "column" in rule.kwargs:
        return values[0]
    return values if "column_A" in rule.kwargs else dict(zip(rule.columns, values, strict=True))


def texts_of(
    rows: Mapping[int, pa.Table], columns: Mapping[int, Sequence[str]], like: DataFrame
) -> dict[int, list[list[str | None]]]:
    """A few rows that are in this process, as Spark shows them.

    rows, columns: by number, rows of `like`, and the columns of them that are shown.
    """
    conf = like.sparkSession.conf
    zone = cache(lambda: str(conf.get("spark.sql.session.timeZone", "UTC")))
    told: dict[int, list[list[str | None]]] = {}
    asked: dict[int, pa.Table] = {}
    for number, table in rows.items():
        try:
            texts = [shown(table[name], zone, SAMPLE_LENGTH) for name in columns[number]]
        except (KeyError, ValueError):  # a field of an object, an object, or a time that Python has no word for
            asked[number] = table
        else:
            told[number] = [list(row) for row in zip(*texts, strict=True)]
    return told | {number: _by_spark(table, columns[number], like) for number, table in asked.items()}


def _by_spark(rows: pa.Table, columns: Sequence[str], like: DataFrame) -> list[list[str | None]]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType([field for field in like.schema.fields if field.name in rows.column_names])
    frame = like.sparkSession.createDataFrame(rows.select(schema.names), schema)
    return [list(row[0]) for row in frame.select(f.array(*[text(like, name) for name in columns])).collect()]
