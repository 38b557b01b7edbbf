"""The sides of a join: what they are joined by, how their columns are named, and their rows as a join keeps them."""

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
"""The joins that only say which rows of the left side have a partner, or have none."""
RIGHT_PREFIX: Final = "_theirs_"
"""Prefix for a column of the right side whose name is a key's on the left: with `prefix=` the user can have both."""


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
        """Return the names here of the right side's columns: keys as on the left; other columns with a left key's name,
        prefixed."""
        names = dict(zip(self.right, self.left, strict=True))
        ours = {name.casefold() for name in self.left}
        clashing = [name for name in columns if name not in names and name.casefold() in ours]
        return names | {name: f"{RIGHT_PREFIX}{name}" for name in clashing}

    def rename_right(self, frame: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the right side's rows under these names."""
        if self.left == self.right:
            return frame
        need_keys(frame, self.right, "on", context)
        names = self.right_names(frame.columns)
        refuse_reserved_columns(frame, context, [name for name in names.values() if name.startswith(RIGHT_PREFIX)])
        return select_sql(frame, (f"{quoted(name)} AS {quoted(names.get(name, name))}" for name in frame.columns))

    def names_in_result(self, left: Sequence[str], right: Sequence[str], prefix: str | None) -> dict[str, list[str]]:
        """Return the names in a join's result of the right side's columns, of sides with these columns."""
        here = self.right_names(right)
        turned = [here.get(name, name) for name in right]
        others = names_from_right(left, [name for name in turned if name not in self.left], prefix)
        return {name: [others.get(new, new)] for name, new in zip(right, turned, strict=True)}

    def project_right(self, right: DataFrame, how: str) -> DataFrame:
        """Return the right side's rows, turned already: its keys only, if the join gives nothing else of them."""
        return right.select(*map(quoted, self.left)) if how in LEFT_ONLY else right


def side_rows(rows: DataFrame, like: DataFrame, on: Sequence[str]) -> DataFrame:
    """Return rows in a side's form: keys, an id made of the columns of `like`, values, and the number of copies."""
    from pyspark.sql import functions as F

    values = [name for name in like.columns if name not in on]
    named = rows.withColumn("_row", row_id(like))
    grouped = named.groupBy(*map(quoted, on), "_row")
    firsts = (F.first(quoted(name)).alias(name) for name in values)
    return grouped.agg(*firsts, F.count("*").alias("_n"))


def changed_rows(
    frame: DataFrame, withdrawn: DataFrame | None, on: Sequence[str], context: OperatorContext
) -> DataFrame:
    """Return by how many copies of each row (`_n`) a stream changes. withdrawn: the rows that it takes back."""
    from pyspark.sql import functions as F

    rows = side_rows(frame, frame, on)
    if withdrawn is not None:
        names = [quoted(name) for name in rows.columns if name != "_n"]
        rows = rows.unionByName(side_rows(withdrawn, frame, on).select(*names, (-F.col("_n")).alias("_n")))
        values = [F.first(quoted(name)).alias(name) for name in rows.columns if name not in (*on, "_row", "_n")]
        rows = rows.groupBy(*map(quoted, on), "_row").agg(*values, F.sum("_n").alias("_n")).where("_n <> 0")
    return context.persist(rows)


def refuse_missing(before: Sequence[str], changes: Sequence[str], context: OperatorContext) -> None:
    """Raise Invalid if a stream that takes back rows lacks a column that stored ones have."""
    if missing := [name for name in before if name not in (*changes, *STATE_COLUMNS)]:
        raise Invalid(
            f"operator {context.uid!r}: its input no longer has {', '.join(map(repr, missing))}, and takes "
            "back rows that had",
            expected="every column that there was, as long as rows are taken back by all that they hold",
            help="put the column back, null if need be; or give the operator a uid of its own: it starts afresh",
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
    """Return the names in a join's result of the right side's columns."""
    left_names = {name.casefold() for name in left}
    named = {
        name: f"{prefix}{name}" if prefix is not None and name.casefold() in left_names else name for name in right
    }
    return named | {
        name: f"{prefix or ''}{name.removeprefix(RIGHT_PREFIX)}" for name in right if name.startswith(RIGHT_PREFIX)
    }


def check_sides(
    sides: Sequence[DataFrame], on: Sequence[str], prefix: str | None, context: OperatorContext, how: str = "inner"
) -> None:
    """Raise Invalid if the sides cannot be joined: keys are missing or differ in type, or other columns share a
    name."""
    left, right = sides
    for side in sides:
        need_keys(side, on, "on", context)
        refuse_reserved_columns(side, context)
    kinds = [{field.name: field.dataType.simpleString() for field in side.schema.fields} for side in sides]
    unlike = [
        f"{name!r} is {kinds[0][name]} here, {kinds[1][name]} there" for name in on if kinds[0][name] != kinds[1][name]
    ]
    theirs = {name.removeprefix(RIGHT_PREFIX) for name in right.columns if name not in on}
    ours = {name.casefold() for name in left.columns}
    clash = sorted(name for name in theirs if name.casefold() in ours) if how not in LEFT_ONLY else []
    if clash and prefix is not None:
        all_names = ours | {name.casefold() for name in theirs}
        clash = [name for name in clash if f"{prefix}{name}".casefold() in all_names]
    if unlike or clash:
        twice = [f"both sides have a column {name!r}" for name in clash]
        raise Invalid(
            "\n    ".join([f"operator {context.uid!r} cannot join its sides:", *unlike, *twice]),
            expected="keys of the same types, and no other column on both sides",
            help='cast keys in a stage before; rename a column there, or say prefix="…" for those of the other side',
            reason="BAD_JOIN",
        )
