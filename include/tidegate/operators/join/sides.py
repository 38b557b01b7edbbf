"""One side of a join: its stored rows, those that match this checkpoint's, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.errors import Invalid
from tidegate.operators.inputs import key_problems, need_keys, recalled, refuse_own, same
from tidegate.records.names import listed, quoted
from tidegate.spark.known import select_sql
from tidegate.spark.row_id import row_id
from tidegate.state.columns import OWN as STATE_COLUMNS
from tidegate.state.lateness import passed_before_sql, passed_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.base import OperatorContext
    from tidegate.state.keyed import KeyedState

__all__ = [
    "LEFT_ONLY",
    "On",
    "Side",
    "changed_rows",
    "check_sides",
    "copies",
    "joined_columns",
    "left_columns",
    "met",
    "names_from_right",
    "refuse_missing",
    "side_rows",
]


LEFT_ONLY: Final = ("semi", "anti")
"""The joins that only say which rows of the left side have a partner, or have none."""
THEIRS: Final = "_theirs_"
"""Prefix for a column of the right side whose name is a key's on the left: with `prefix=` the user can have both."""


@dataclass(frozen=True)
class On:
    """The columns that two sides are joined by. Both sides are stored under the left side's names."""

    left: list[str]
    right: list[str]

    @staticmethod
    def of(on: str | Sequence[str] | Mapping[str, str]) -> On:
        """Return the columns for a declaration: the same names on both sides, or a mapping from left to right."""
        if not isinstance(on, Mapping):
            return On(listed(on), listed(on))
        return On(list(on), list(on.values()))

    @property
    def texts(self) -> list[str]:
        """The pairs for users, and for comparison."""
        pairs = zip(self.left, self.right, strict=True)
        return [name if name == right_name else f"{name} = {right_name}" for name, right_name in pairs]

    def problems(self) -> list[str]:
        """Return the problems of the declaration."""
        return key_problems(self.left, "on") or key_problems(self.right, "on")

    def renamed(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the names here of the right side's columns: keys as on the left; other columns with a left key's name,
        prefixed."""
        names = dict(zip(self.right, self.left, strict=True))
        ours = {name.casefold() for name in self.left}
        clashing = [name for name in columns if name not in names and name.casefold() in ours]
        return names | {name: f"{THEIRS}{name}" for name in clashing}

    def turned(self, frame: DataFrame, context: OperatorContext) -> DataFrame:
        """Return the right side's rows under these names."""
        if self.left == self.right:
            return frame
        need_keys(frame, self.right, "on", context)
        names = self.renamed(frame.columns)
        refuse_own(frame, context, [name for name in names.values() if name.startswith(THEIRS)])
        return select_sql(frame, (f"{quoted(name)} AS {quoted(names.get(name, name))}" for name in frame.columns))

    def names_in_result(self, left: Sequence[str], right: Sequence[str], prefix: str | None) -> dict[str, list[str]]:
        """Return the names in a join's result of the right side's columns, of sides with these columns."""
        here = self.renamed(right)
        turned = [here.get(name, name) for name in right]
        others = names_from_right(left, [name for name in turned if name not in self.left], prefix)
        return {name: [others.get(new, new)] for name, new in zip(right, turned, strict=True)}

    def looked_at(self, right: DataFrame, how: str) -> DataFrame:
        """Return the right side's rows, turned already: its keys only, if the join gives nothing else of them."""
        return right.select(*map(quoted, self.left)) if how in LEFT_ONLY else right


@dataclass
class Side:
    """A side of an interval join in one checkpoint."""

    state: KeyedState
    on: Sequence[str]
    arrived: DataFrame
    touched: DataFrame
    """The keys of which this checkpoint has rows, on either side."""
    ends: int | None
    """Rows before this time can no longer match any other. None: there is no watermark yet."""
    outer: bool
    """Whether it matters which of its rows have had a partner by the time they are over."""
    met: DataFrame | None = field(default=None, init=False)
    found: DataFrame | None = field(default=None, init=False)
    """After `put`, for an outer side: the rows that have a partner, and had not been emitted with one: `_n` of each."""

    def rows(self, context: OperatorContext) -> DataFrame:
        """Return the rows that arrived now and the stored ones under the same keys: `_new` distinguishes them."""
        from pyspark.sql import functions as F

        rows = self.arrived.select("*", F.lit(False).alias("_matched"), F.lit(True).alias("_new"))
        before = self.state.of(self.touched, on=self.on)
        if before is not None:
            before = recalled(self.state, before, rows.drop("_new"), context)
            rows = rows.unionByName(before.withColumn("_new", F.lit(False)))
        self.met = context.persist(rows)
        return self.met

    def put(self, matched: DataFrame, context: OperatorContext) -> DataFrame | None:
        """Store changes and forget rows whose time is over; for an outer side, return those of them without a
        partner."""
        from pyspark.sql import functions as F

        assert self.met is not None
        keys = [*self.on, "_row"]
        values = [name for name in self.arrived.columns if name not in (*keys, "_n")]
        rows = self.met
        if self.outer:
            hits = matched.select(*map(quoted, keys)).distinct().withColumn("_hit", F.lit(True))
            hits = hits.select(*(F.col(quoted(k)).alias(f"_aside{n}") for n, k in enumerate(keys)), "_hit")
            rows = rows.join(hits, same(keys, [f"_aside{n}" for n in range(len(keys))], nulls=True), "left")
        else:
            rows = rows.withColumn("_hit", F.lit(False))
        now = rows.groupBy(*map(quoted, keys)).agg(
            *(F.first(quoted(name)).alias(name) for name in values),
            F.sum("_n").alias("_n"),
            F.sum(F.when(F.col("_new"), F.col("_n")).otherwise(F.lit(0))).alias("_arriving"),
            F.coalesce(F.max("_matched") | F.coalesce(F.max("_hit"), F.lit(False)), F.lit(False)).alias("_matched"),
            F.max("_new").alias("_new"),
            F.min("_new").alias("_first"),
            F.max("_matched").alias("_was"),
        )
        now = context.persist(now)
        if self.outer:
            found = now.where("_matched AND (NOT _was OR _arriving > 0)")
            self.found = found.withColumn("_n", F.expr("IF(_was, _arriving, _n)")).drop("_arriving", "_new", "_first")
        return self._settle(now, [*keys, *values, "_n", "_matched"], context)

    def _settle(self, now: DataFrame, columns: Sequence[str], context: OperatorContext) -> DataFrame | None:
        from pyspark.sql import functions as F

        names = list(map(quoted, columns))
        is_over = F.expr(passed_sql("_at", self.ends))
        live = (
            now.where(~is_over).where("_new OR (_matched AND NOT _was)").select(*names, F.lit(False).alias("_deleted"))
        )
        if self.ends is None or self.state.by_row:
            self.state.put(live, deletes=True)
            return None
        over = now.where(is_over)
        withdrawn = over.where("NOT _first").select(*names)
        alone = over.select(*names)
        old = self.state.rows(passed_before_sql("_at", self.ends))
        if old is not None:
            keys = [*self.on, "_row"]
            asides = [f"_aside{n}" for n in range(len(keys))]
            current_keys = now.select(*(F.col(quoted(k)).alias(n) for k, n in zip(keys, asides, strict=True)))
            old = recalled(self.state, old, now.select(*names), context)
            old = context.persist(old.join(current_keys, same(keys, asides, nulls=True), "left_anti").select(*names))
            withdrawn, alone = withdrawn.unionByName(old), alone.unionByName(old)
        self.state.put(live.unionByName(withdrawn.withColumn("_deleted", F.lit(True))), deletes=True)
        return alone.where("NOT _matched") if self.outer else None


def side_rows(rows: DataFrame, like: DataFrame, on: Sequence[str], extra: Sequence[str] = ()) -> DataFrame:
    """Return rows in a side's form: keys, an id made of the columns of `like`, values, and the number of copies."""
    from pyspark.sql import functions as F

    values = [name for name in like.columns if name not in on]
    named = rows.withColumn("_row", row_id(like))
    grouped = named.groupBy(*map(quoted, on), "_row")
    firsts = (F.first(quoted(name)).alias(name) for name in [*values, *extra])
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


def met(
    state: KeyedState,
    changes: DataFrame,
    touched: DataFrame,
    on: Sequence[str],
    over_updates: bool,
    context: OperatorContext,
) -> DataFrame:
    """Return all rows under the keys in `touched`: the number of copies with the changes, and without them in `_was`.

    `_touched`: whether the row has changed. over_updates: changes may take back rows, which are found by all they hold.
    """
    from pyspark.sql import functions as F

    both = changes.select("*", F.lit(0).cast("long").alias("_was"), F.lit(True).alias("_touched"))
    before = state.of(touched, on=on)
    if before is not None:
        if over_updates:
            refuse_missing(before.columns, changes.columns, context)
        old = recalled(state, before, changes, context)
        both = both.unionByName(old.withColumn("_was", F.col("_n")).withColumn("_touched", F.lit(False)))
    values = [name for name in changes.columns if name not in (*on, "_row", "_n")]
    return both.groupBy(*map(quoted, on), "_row").agg(
        *(F.first(quoted(name)).alias(name) for name in values),
        F.sum("_n").alias("_n"),
        F.max("_was").alias("_was"),
        F.max("_touched").alias("_touched"),
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
    return named | {name: f"{prefix or ''}{name.removeprefix(THEIRS)}" for name in right if name.startswith(THEIRS)}


def check_sides(
    sides: Sequence[DataFrame], on: Sequence[str], prefix: str | None, context: OperatorContext, how: str = "inner"
) -> None:
    """Raise Invalid if the sides cannot be joined: keys are missing or differ in type, or other columns share a
    name."""
    left, right = sides
    for side in sides:
        need_keys(side, on, "on", context)
        refuse_own(side, context)
    kinds = [{field.name: field.dataType.simpleString() for field in side.schema.fields} for side in sides]
    unlike = [
        f"{name!r} is {kinds[0][name]} here, {kinds[1][name]} there" for name in on if kinds[0][name] != kinds[1][name]
    ]
    theirs = {name.removeprefix(THEIRS) for name in right.columns if name not in on}
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
