"""The sides of a join: their keys, the names of their columns, and the form in which their rows are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.errors import Invalid
from tidegate.operators.inputs import key_problems, need_keys, refuse_reserved_columns
from tidegate.records.names import listed, quoted
from tidegate.spark.frame_facts import select_sql
from tidegate.spark.row_id import row_id
from tidegate.state.columns import OWN as STATE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.context import OperatorContext

__all__ = [
    "LEFT_ONLY",
    "JoinKeys",
    "changed_rows",
    "check_sides",
    "copies",
    "joined_columns",
    "left_columns",
    "names_from_right",
    "refuse_missing",
    "side_rows",
]


LEFT_ONLY: Final = ("semi", "anti")
"""The joins that only emit columns of the left side."""
RIGHT_PREFIX: Final = "_theirs_"
"""The prefix of a right column that has the name of a left key. With `prefix=`, the result can have both."""


@dataclass(frozen=True)
class JoinKeys:
    """The columns that two sides are joined by. Both sides are stored under the left side's names."""

    left: list[str]
    right: list[str]

    @staticmethod
    def from_declaration(on: str | Sequence[str] | Mapping[str, str]) -> JoinKeys:
        """Return the columns for a declaration: the same names on both sides, or a mapping from left to right."""
        if not isinstance(on, Mapping):
            return JoinKeys(listed(on), listed(on))
        return JoinKeys(list(on), list(on.values()))

    @property
    def texts(self) -> list[str]:
        """The pairs for users, and for comparison."""
        pairs = zip(self.left, self.right, strict=True)
        return [name if name == right_name else f"{name} = {right_name}" for name, right_name in pairs]

    def problems(self) -> list[str]:
        """Return the problems of the declaration."""
        return key_problems(self.left, "on") or key_problems(self.right, "on")

    def right_names(self, columns: Sequence[str]) -> dict[str, str]:
        """Return new names for columns of the right side: keys as on the left, and clashing columns with a prefix."""
        names = dict(zip(self.right, self.left, strict=True))
        left_keys = {name.casefold() for name in self.left}
        for name in columns:
            if name not in names and name.casefold() in left_keys:
                names[name] = f"{RIGHT_PREFIX}{name}"
        return names

    def rename_right(self, frame: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the right side's rows under these names."""
        if self.left == self.right:
            return frame
        need_keys(frame, self.right, "on", context)
        names = self.right_names(frame.columns)
        refuse_reserved_columns(frame, context, [name for name in names.values() if name.startswith(RIGHT_PREFIX)])
        return select_sql(frame, (f"{quoted(name)} AS {quoted(names.get(name, name))}" for name in frame.columns))

    def names_in_result(self, left: Sequence[str], right: Sequence[str], prefix: str | None) -> dict[str, list[str]]:
        """Return the names of the right side's columns in the result. left, right: the columns of both sides."""
        new_names = self.right_names(right)
        renamed = [new_names.get(name, name) for name in right]
        values = names_from_right(left, [name for name in renamed if name not in self.left], prefix)
        return {name: [values.get(new_name, new_name)] for name, new_name in zip(right, renamed, strict=True)}

    def project_right(self, right: DataFrame, how: str) -> DataFrame:
        """Return the renamed right rows with the columns that the join needs: for semi and anti joins, just the
        keys."""
        if how in LEFT_ONLY:
            return right.select(*map(quoted, self.left))
        return right


def side_rows(rows: DataFrame, like: DataFrame, on: Sequence[str]) -> DataFrame:
    """Return rows in stored form: keys, an id computed from the columns of `like`, values, and the number of copies."""
    from pyspark.sql import functions as F

    values = [name for name in like.columns if name not in on]
    with_id = rows.withColumn("_row", row_id(like))
    firsts = (F.first(quoted(name)).alias(name) for name in values)
    return with_id.groupBy(*map(quoted, on), "_row").agg(*firsts, F.count("*").alias("_n"))


def changed_rows(
    frame: DataFrame, retractions: DataFrame | None, on: Sequence[str], context: OperatorContext
) -> DataFrame:
    """Return each changed row of a stream, with the change of its number of copies in `_n`."""
    from pyspark.sql import functions as F

    rows = side_rows(frame, frame, on)
    if retractions is not None:
        names = [quoted(name) for name in rows.columns if name != "_n"]
        rows = rows.unionByName(side_rows(retractions, frame, on).select(*names, (-F.col("_n")).alias("_n")))
        values = []
        for name in rows.columns:
            if name not in (*on, "_row", "_n"):
                values.append(F.first(quoted(name)).alias(name))
        rows = rows.groupBy(*map(quoted, on), "_row").agg(*values, F.sum("_n").alias("_n")).where("_n <> 0")
    return context.persist(rows)


def refuse_missing(before: Sequence[str], changes: Sequence[str], context: OperatorContext) -> None:
    """Raise Invalid if a stream with retractions lacks a column of the stored rows."""
    if missing := [name for name in before if name not in (*changes, *STATE_COLUMNS)]:
        raise Invalid(
            f"operator {context.uid!r}: its input no longer has {', '.join(map(repr, missing))}, and retracts "
            "rows that had",
            expected="every column of the stored rows, because a row is retracted by its whole content",
            help="put the column back, null if need be; or give the operator a new uid, so that it starts afresh",
            reason="STATE_CHANGED",
        )


def copies(rows: DataFrame, count: str) -> DataFrame:
    """Repeat each row as often as its count says."""
    from pyspark.sql import functions as F

    return rows.withColumn("_copy", F.explode(F.expr(f"sequence(1L, {count})"))).drop("_copy")


def joined_columns(
    pairs: DataFrame, on: Sequence[str], columns: Sequence[Sequence[str]], prefix: str | None
) -> DataFrame:
    """Return the keys, then the left columns, then the right ones, of pairs `l` and `r`."""
    from pyspark.sql import functions as F

    left, right = columns
    keys = (F.expr(f"coalesce(l.{quoted(name)}, r.{quoted(name)})").alias(name) for name in on)
    return pairs.select(
        *keys,
        *(F.col(f"l.{quoted(name)}").alias(name) for name in left),
        *(F.col(f"r.{quoted(name)}").alias(new) for name, new in names_from_right(left, right, prefix).items()),
    )


def left_columns(rows: DataFrame, on: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return the keys, then the other columns, of rows `l`."""
    from pyspark.sql import functions as F

    return rows.select(*(F.col(f"l.{quoted(name)}").alias(name) for name in (*on, *columns)))


def names_from_right(left: Sequence[str], right: Sequence[str], prefix: str | None) -> dict[str, str]:
    """Return the names of the right side's columns in a join's result."""
    left_names = {name.casefold() for name in left}
    names = {}
    for name in right:
        if name.startswith(RIGHT_PREFIX):
            names[name] = f"{prefix or ''}{name.removeprefix(RIGHT_PREFIX)}"
        elif prefix is not None and name.casefold() in left_names:
            names[name] = f"{prefix}{name}"
        else:
            names[name] = name
    return names


def _type_names(side: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in side.schema.fields}


def check_sides(
    sides: Sequence[DataFrame], on: Sequence[str], prefix: str | None, context: OperatorContext, how: str = "inner"
) -> None:
    """Raise Invalid if the sides cannot be joined: keys are missing or differ in type, or other columns share a
    name."""
    left, right = sides
    for side in sides:
        need_keys(side, on, "on", context)
        refuse_reserved_columns(side, context)
    left_types, right_types = map(_type_names, sides)
    problems = []
    for name in on:
        if left_types[name] != right_types[name]:
            problems.append(f"{name!r} is {left_types[name]} on the left, {right_types[name]} on the right")
    for name in _clashing_names(left, right, on, prefix) if how not in LEFT_ONLY else ():
        problems.append(f"both sides have a column {name!r}")
    if problems:
        raise Invalid(
            "\n    ".join([f"operator {context.uid!r} cannot join its sides:", *problems]),
            expected="keys of the same types, and no other column on both sides",
            help='cast keys in an upstream stage; rename a column there, or add prefix="…" to those of the right side',
            reason="BAD_JOIN",
        )


def _clashing_names(left: DataFrame, right: DataFrame, on: Sequence[str], prefix: str | None) -> list[str]:
    """Return the right side's columns whose names would occur twice in the result."""
    left_names = {name.casefold() for name in left.columns}
    right_names = {name.removeprefix(RIGHT_PREFIX) for name in right.columns if name not in on}
    clashing = sorted(name for name in right_names if name.casefold() in left_names)
    if prefix is None:
        return clashing
    all_names = left_names | {name.casefold() for name in right_names}
    return [name for name in clashing if f"{prefix}{name}".casefold() in all_names]
