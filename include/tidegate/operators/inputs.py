"""What operators check of their inputs when they run: told with the operator, its uid, and what the input has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.operators.base import OperatorContext

__all__ = ["analysed", "need_columns", "row_id"]

T = TypeVar("T")


def need_columns(frame: DataFrame, names: Iterable[str], what: str, context: OperatorContext) -> None:
    """Invalid if the input lacks one of these columns."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise Invalid(
            f"operator {context.uid!r}: {what} names {', '.join(map(repr, missing))}, which its input does not have",
            expected=f"columns of the input: {', '.join(frame.columns)}",
            help=f"correct {what}, or add the column in a stage before",
            reason="UNKNOWN_COLUMN",
        )


def analysed(plan: Callable[[], T], frame: DataFrame, context: OperatorContext) -> T:
    """What `plan` gives; Invalid if Spark refuses its expressions for an input like this one."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return plan()
    except (AnalysisException, ParseException) as error:
        said = str(error).strip().split("\n")[0]
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
        raise Invalid(
            f"operator {context.uid!r}: Spark refuses its expressions: {said}",
            expected=f"expressions of the input's columns: {columns}",
            help="correct the operator's declaration, or the stage before it",
            reason="BAD_EXPRESSION",
        ) from error


def row_id(frame: DataFrame) -> Column:
    """128 bits that tell rows apart by all that they hold, as text: the same in every attempt and checkpoint."""
    from pyspark.sql import functions as F

    columns = []
    for field in frame.schema.fields:
        column = F.col("`" + field.name.replace("`", "``") + "`")
        if "map<" in field.dataType.simpleString():  # two equal maps may hold their entries in two orders
            column = F.to_json(F.struct(column), {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"})
        # What is null leaves a hash as it was: (null, 1) must not look like (1, null).
        columns += [column.isNull(), column]
    first, second = F.xxhash64(*columns), F.xxhash64(F.lit(1), *columns)
    return F.concat(F.lpad(F.hex(first), 16, "0"), F.lpad(F.hex(second), 16, "0"))
