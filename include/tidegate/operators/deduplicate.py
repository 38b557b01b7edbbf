"""Rows whose key has not been seen before.

The first checkpoint that has a row of a key gives it; of several in one checkpoint it is the earliest in event time,
then the one with the least hash of all that it holds: rows have no other order that every source could tell. So
duplicates that are copies give the same however the input is cut. Where they differ, which one stays depends on the
cut: `latest` or `top_n` choose by an order of their own, and replace rows for that.

With `within`, a row is a duplicate of one that was given if their event times are less than that apart. What is older
than the watermark less `within` can meet no row any more that is not late, so it is forgotten without a trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.by_workers.deduplicated import FirstRows, RowsApart
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.inputs import columns_of, key_problems, need_keys, refuse_own, same
from tidegate.operators.join.time_bounds import LATE, bounds_in, need_time, split_late
from tidegate.operators.retractions.key import ChangelogKey, key_of
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import time_micros, time_problems
from tidegate.spark.known import is_known_empty
from tidegate.spark.row_id import half_fields, row_halves, row_id
from tidegate.state.folding import Remembered, fold_rows
from tidegate.state.lateness import Lateness, on_time_sql, passed_before_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.state.record import Ttl

__all__ = ["Deduplicate"]


class Deduplicate(Operator):
    """`by`: the columns that make rows duplicates. `within`: for how long, in event time; None: without a limit."""

    kind: ClassVar[str] = "deduplicate"

    def __init__(
        self,
        by: Sequence[str],
        within: str | None = None,
        event_time: str | None = None,
        expiry: Expiry = NEVER,
    ) -> None:
        self.by = listed(by)
        self.within = within
        self.event_time = event_time
        self.expiry = expiry

    @property
    def told_by(self) -> list[str]:
        return self.by

    @property
    def by_cuts(self) -> list[str]:
        first = "which of several different rows of a key is the first: that of the earlier checkpoint"
        return [*super().by_cuts, first, *self.expiry.by_cuts]

    @property
    def uses_event_time(self) -> bool:
        """True if it needs watermarks."""
        return self.within is not None or self.expiry.uses_event_time

    def event_time_problems(self, columns: Sequence[Sequence[str]]) -> list[str]:
        return time_problems(columns[0], self.event_time) if self.within is not None else []

    def ttl(self, part: str, context: OperatorContext) -> Ttl | None:
        return self.expiry.ttl(context)

    @property
    def keeps_for_ever(self) -> str | None:
        return f"each {', '.join(self.by)}" if self.within is None and self.expiry == NEVER else None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (LATE,) if self.within is not None else ()

    @property
    def possible_outputs(self) -> Mapping[str, str]:
        return {LATE: 'within="1 day"'}

    @property
    def goes_by(self) -> tuple[str | None, ...]:
        return (self.event_time,) if self.within is not None else ()

    def lateness(self, place: int) -> Lateness | None:
        """What is older than the watermark less `within` is forgotten: of a late row nobody can say whether it is a
        duplicate."""
        return Lateness() if self.within is not None else None

    @property
    def known_by(self) -> list[str] | None:
        return self.by if self.within is None and self.expiry == NEVER else None

    def changelog_key(
        self, inputs: Sequence[ChangelogKey | None], columns: Sequence[Sequence[str]] | None = None
    ) -> ChangelogKey | None:
        return key_of(self.by) if self.known_by is not None else None

    def describe(self) -> Json:
        return {"by": self.by, "within": self.within, "event_time": self.event_time} | self.expiry.describe()

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "within a time": self.within is not None, "event_time": [self.event_time]}

    def problems(self) -> list[str]:
        problems = key_problems(self.by)
        if self.within is not None:
            bounds = bounds_in(self.within)
            problems += [bounds] if isinstance(bounds, str) else []
            if self.expiry.after is not None:
                problems.append("within says how long a key is remembered, and state_ttl too: leave one out")
        return problems + self.expiry.problems()

    def interval_problems(self) -> list[str]:
        return self.expiry.interval_problems()

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows = inputs[0]
        need_keys(rows, self.by, "by", context)
        refuse_own(rows, context)
        distinct = self._by_workers(rows, context)
        if distinct is not None:
            return distinct
        if self.within is None:
            return {"": self._for_ever(rows, context)}
        on_time, late = split_late(rows, need_time(self.event_time, 0, context), context)
        return {"": self._within(on_time, rows.columns, context), LATE: late}

    def _by_workers(self, rows: DataFrame, context: OperatorContext) -> dict[str, DataFrame] | None:
        """Return the streams as workers compute them. None: they cannot."""
        from pyspark.sql import functions as F
        from pyspark.sql import types as T

        fields = {field.name: field for field in rows.schema.fields}
        keys = [fields[name] for name in self.by]
        columns = {name: name if name in self.by else f"_tidegate_{n}" for n, name in enumerate(fields)}
        is_empty, ends = is_known_empty(rows), None
        work: FirstRows | RowsApart
        if self.within is None:
            times = self._time(rows, context)
            at = times[-1] if times else F.lit(None).cast("long")
            state = Remembered(context.state(self.by, ttl=self.ttl("", context)), keys)
            work = FirstRows(self.by, columns)
        else:
            bounds, now = bounds_in(self.within), context.watermarks.now_micros
            assert not isinstance(bounds, str)
            at = time_micros(rows, need_time(self.event_time, 0, context), f"operator {context.uid!r}")
            ends = None if now is None else now - bounds[1]
            work = RowsApart(self.by, columns, bounds[1], context.watermarks.before_micros, ends)
            state = Remembered(
                context.state([*self.by, "_at"], grouped_by=self.by),
                [*keys, T.StructField("_at", T.LongType())],
                "_at",
                None if is_empty and not context.watermarks.moved else ends,
            )
        named = (F.col(quoted(name)).alias(alias) for name, alias in columns.items())
        batch = rows.select(*named, at.alias("_at"), *map(F.expr, row_halves(rows)))
        arriving = [T.StructField(alias, fields[name].dataType) for name, alias in columns.items()]
        arriving += [T.StructField("_at", T.LongType()), *half_fields()]
        given = list(fields.values())
        folded = fold_rows(
            batch,
            arriving,
            self.by,
            [state],
            work,
            given,
            is_empty=is_empty,
            keeps_rows=False,
            apart={name: given for name in self.outputs if name in context.taken},
        )
        if folded is None:
            return None
        context.count(folded.counts)
        return {"": folded.rows, **folded.apart}

    def _for_ever(self, rows: DataFrame, context: OperatorContext) -> DataFrame:
        from pyspark.sql import functions as F

        key_columns = list(map(quoted, self.by))
        state = context.state(self.by, ttl=self.ttl("", context))
        time = self._time(rows, context)
        row = F.min_by(F.struct(*columns_of(rows)), F.struct(*time, row_id(rows))).alias("_row")
        firsts = rows.groupBy(*key_columns).agg(row)
        if not state.is_empty:
            firsts = context.persist(firsts)
            stored = state.of(firsts)
            assert stored is not None
            known_keys = stored.select(*(F.col(name).alias(f"_aside{place}") for place, name in enumerate(key_columns)))
            firsts = firsts.join(known_keys, same(self.by, known_keys.columns, nulls=True), "left_anti")
        firsts = context.persist(firsts)
        state.put(firsts.select(*key_columns))
        return firsts.select("_row.*")

    def _time(self, rows: DataFrame, context: OperatorContext) -> list[Column]:
        """Return the columns that make a row earlier than another: none if neither it nor its sources name any."""
        if self.event_time is None and context.event_times[0] not in rows.columns:
            return []
        micros = time_micros(rows, self.event_time or str(context.event_times[0]), f"operator {context.uid!r}")
        return [micros.isNull(), micros]

    def _within(self, rows: DataFrame, columns: Sequence[str], context: OperatorContext) -> DataFrame:
        """Take each key's times in order: a time is new if it is far enough from all new ones before it and all stored
        ones."""
        from pyspark.sql import functions as F

        bounds = bounds_in(self.within)
        assert not isinstance(bounds, str)
        far, keys, key_columns = bounds[1], [*self.by, "_at"], list(map(quoted, self.by))
        like = rows.select(*map(quoted, columns))
        row = F.min_by(F.struct(*columns_of(like)), row_id(like)).alias("_row")
        first = context.persist(rows.groupBy(*map(quoted, keys)).agg(row))
        state = context.state(keys, grouped_by=self.by)
        times = first.select(*key_columns, "_at", F.lit(True).alias("_new"))
        stored = state.of(first.select(*key_columns).distinct(), on=self.by)
        if stored is not None:
            times = times.unionByName(stored.select(*key_columns, "_at", F.lit(False).alias("_new")))
        stored_times = "coalesce(collect_list(_at) FILTER (WHERE NOT _new), CAST(array() AS ARRAY<BIGINT>))"
        new = "sort_array(collect_list(_at) FILTER (WHERE _new))"
        fold = f"aggregate(new, given, (k, t) -> IF(exists(k, o -> abs(t - o) < {far}L), k, array_append(k, t)))"
        lists = times.groupBy(*key_columns).agg(F.expr(stored_times).alias("given"), F.expr(new).alias("new"))
        chosen = lists.select(*key_columns, F.explode(F.expr(f"array_except({fold}, given)")).alias("_at"))
        new_keys = chosen.select(*(F.col(quoted(name)).alias(f"_aside{place}") for place, name in enumerate(keys)))
        new_rows = context.persist(first.join(new_keys, same(keys, new_keys.columns, nulls=True), "left_semi"))
        changes = new_rows.select(*key_columns, "_at", F.lit(False).alias("_deleted"))
        now = context.watermarks.now_micros
        if now is not None:
            changes = changes.where(on_time_sql("_at", now - far))
            old = state.rows(passed_before_sql("_at", now - far))
            if old is not None:
                changes = changes.unionByName(old.select(*key_columns, "_at", F.lit(True).alias("_deleted")))
        state.put(changes, deletes=True)
        return new_rows.select("_row.*")
