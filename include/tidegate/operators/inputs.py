"""What operators check of their inputs when they run: told with the operator, its uid, and what the input has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidegate.errors import Invalid
from tidegate.state.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.operators.base import OperatorContext

__all__ = ["OWN", "analysed", "columns_of", "event_micros", "need_columns", "refuse_own", "row_id", "same"]

OWN = ("_group", "_checkpoint", "_deleted", "_row", "_at", "_n", "_was", "_now", "_matched", "_new", "_top", "_aside")
"""Names that operators and states use beside a row's own columns."""

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


def refuse_own(frame: DataFrame, context: OperatorContext, names: Iterable[str] = OWN) -> None:
    """Invalid if the input has columns of these names."""
    taken = {name.casefold() for name in names}
    if clash := [name for name in frame.columns if name.casefold() in taken]:
        raise Invalid(
            f"operator {context.uid!r}: its input has {', '.join(map(repr, clash))}, names of tidegate's own",
            expected=f"columns with other names than {', '.join(names)}",
            help="rename them in a stage before",
            reason="RESERVED_COLUMN",
        )


def columns_of(frame: DataFrame) -> list[str]:
    """The input's columns, as SQL writes them."""
    return [quoted(name) for name in frame.columns]


def same(left: Sequence[str], right: Sequence[str], *, nulls: bool) -> Column:
    """All of the columns are the same, pair by pair. nulls: null is the same as null, not unknown."""
    from pyspark.sql import functions as F

    equal = "<=>" if nulls else "="
    pairs = zip(left, right, strict=True)
    return F.expr(" AND ".join(f"{quoted(one)} {equal} {quoted(other)}" for one, other in pairs))


def event_micros(frame: DataFrame, name: str, context: OperatorContext) -> Column:
    """A time column in microseconds since 1970. A date is its first moment in UTC; without a zone it is UTC's."""
    from pyspark.sql import functions as F

    need_columns(frame, [name], "event_time", context)
    kind = frame.schema[name].dataType.simpleString()
    if kind not in ("timestamp", "timestamp_ntz", "date"):
        raise Invalid(
            f"operator {context.uid!r} goes by event time in {name!r}, which is {kind}",
            expected="a timestamp or a date",
            help=f"make one of it in a stage before, as with to_timestamp({name})",
            reason="NO_EVENT_TIME",
        )
    return F.unix_micros(F.col(quoted(name)).cast("timestamp"))


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
        column = F.col(quoted(field.name))
        if "map<" in field.dataType.simpleString():  # two equal maps may hold their entries in two orders
            column = F.to_json(F.struct(column), {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"})
        # What is null leaves a hash as it was: (null, 1) must not look like (1, null).
        columns += [column.isNull(), column]
    first, second = F.xxhash64(*columns), F.xxhash64(F.lit(1), *columns)
    return F.concat(F.lpad(F.hex(first), 16, "0"), F.lpad(F.hex(second), 16, "0"))
