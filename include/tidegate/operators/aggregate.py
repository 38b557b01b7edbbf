"""Running aggregates per key: emits a key's new row whenever its input changes.

Each function is stored as one or more partial values that can be merged, so the cost of a checkpoint depends on its
batch only: the batch is reduced to one row per key, merged with the state of these keys, and written. The values of an
exact `count(distinct …)` are keys of a separate state with the number of rows of each. They do not expire, but no
longer count once their key has expired (`distinct/key_lives.py`).

Over an input with retractions (another aggregate, `latest` …), retracted rows count negatively. A key without rows is
removed.

Without a declared key, all rows have the same one, which is stored but not emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.distinct.kernel import LIFE
from tidegate.operators.distinct.key_lives import (
    forget_values,
    in_current_life,
    life_function,
    with_life,
)
from tidegate.operators.distinct.new_values import (
    NO_NEW_DISTINCT,
    CoAggregates,
    NewDistinct,
    computed_if_any,
    conditions,
    new_values,
    value_names,
)
from tidegate.operators.distinct.pre_aggregation import remember_reducing
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.functions import (
    NOT_MERGED,
    Function,
    RowPartials,
    arguments,
    clashing_columns,
    meanings,
    merge_columns,
    parse,
    parse_functions,
    partial_columns,
    pre_aggregate,
    project_in_workers,
    row_partials,
    to_partials,
    why_not_merged,
)
from tidegate.operators.inputs import (
    Types,
    key_problems,
    need_keys,
    recalled,
    record_sketched_types,
    refuse_reserved_columns,
    types_of,
)
from tidegate.operators.kernels.merged import MergeAggregates
from tidegate.operators.retractions.key import key_of
from tidegate.operators.spec import (
    ANY_INTERVAL,
    Changelog,
    Growth,
    Inputs,
    OperatorSpec,
    OutputSpec,
    StateSpec,
    Updates,
    joined,
)
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_if, empty_like, is_known_empty, select_sql
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.columns import DELETED, OWN
from tidegate.state.kernel_driver import StateLookup, run_kernel
from tidegate.state.keyed import collated_names, sums_that_do_not_fit_fail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.state.keyed import KeyedState

__all__ = ["Aggregate"]

ROWS = "_rows"
"""The number of rows of a key. It is only stored if the input can emit retractions."""
ALL = "_all"
"""The key of totals over all rows, with the same value in each."""
RESERVED = (ROWS, ALL, "_n", *OWN)


class Aggregate(Operator):
    """`by`: the key columns, by default none, for one row in total. `functions`: an SQL aggregate for each column of
    the output, such as "sum(amount)"."""

    kind: ClassVar[str] = "aggregate"

    def __init__(self, by: Sequence[str], functions: Mapping[str, str], expiry: Expiry = NEVER) -> None:
        self.by = listed(by)
        self.functions = dict(functions)
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        by, expires = list(map(str, self.by)), not self.expiry.is_never
        distinct = [function.name for function in self._parsed() if function.distinct_part]
        retraction_problems = []
        for function in self._parsed():
            adapted = function.over_updates()
            if isinstance(adapted, str):
                retraction_problems.append(adapted)
        return OperatorSpec(
            identity=self.by,
            inputs=Inputs(retractions=True, retraction_problems=retraction_problems),
            output=OutputSpec(
                columns=[*by, *self.functions],
                results=arguments(self.functions),
                results_that_share_state=distinct,
            ),
            changelog=Changelog(
                updates=Updates.ALWAYS, key=key_of(by), stable_keys=[frozenset(by)] if by else [], is_kept=True
            ),
            states=[StateSpec("", self.expiry), *map(StateSpec, self._distinct_states)],
            growth=self._growth(by, distinct),
            permanent_keys=by if by and not expires else None,
            intervals=ANY_INTERVAL,
        )

    def _growth(self, by: Sequence[str], distinct: Sequence[str]) -> Growth:
        counted_values = None
        if distinct:
            counted_values = f"each value that {joined(distinct)} counts"
        if not self.expiry.is_never:
            return Growth(keeps=None, keeps_per_key=counted_values)
        return Growth(keeps=f"a row for each {joined(by)}" if by else counted_values)

    @property
    def _distinct_states(self) -> list[str]:
        """The states with the values of exact distinct counts."""
        return sorted(_distinct_parts(self._parsed()))

    def describe(self) -> Json:
        return {"by": self.by, "functions": self.functions, **self.expiry.describe()}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "over a stream that replaces rows": over_updates} | meanings(self.functions)

    def problems(self) -> list[str]:
        problems = key_problems(self.by) if self.by else []
        if not self.functions:
            problems.append('it computes nothing: name at least one, such as orders="count(*)"')
        for name, text in self.functions.items():
            parsed = parse(name, text)
            if isinstance(parsed, str):
                problems.append(parsed)
        used_as = {str(name).casefold(): "a key" for name in self.by}
        used_as |= dict.fromkeys(self._reserved_names, "tidegate's own")
        problems += clashing_columns(self._parsed(), used_as)
        return problems + self.expiry.problems()

    def _parsed(self) -> list[Function]:
        return parse_functions(self.functions)

    @property
    def _reserved_names(self) -> list[str]:
        """The names of columns that it adds to those of its input."""
        if not self.expiry.is_never and self._distinct_states:
            return [*RESERVED, LIFE]
        return list(RESERVED)

    @property
    def _keys(self) -> list[str]:
        """The keys of its states."""
        return self.by or [ALL]

    def _with_key(self, rows: DataFrame) -> DataFrame:
        """Add the key that all rows have, if none is declared."""
        from pyspark.sql import functions as F

        if self.by:
            return rows
        return empty_if(rows, rows.withColumn(ALL, F.lit(0)))

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        from pyspark.sql import functions as F

        functions, results, _ = self._typed(inputs[0], _retractions(context), context)
        rows = self._with_key(inputs[0])
        stored = states[""]
        if stored is None:
            return None
        partials = rows.groupBy(*map(quoted, self._keys)).agg(*partial_columns(functions), F.count("*"))
        types = {field.name: field.dataType for field in partials.schema.fields}
        nulls = {}
        for function in functions:
            for name in function.columns:
                if name not in stored.columns:
                    nulls[name] = F.lit(None).cast(types.get(name, "long"))
        return stored.withColumns(nulls).selectExpr(*results)

    def _typed(
        self, rows: DataFrame, retractions: DataFrame | None, context: OperatorContext
    ) -> tuple[list[Function], list[str], Types]:
        """Return the functions for input of these types, the SQL of the results from stored partial values, and the
        types."""
        functions = self._parsed()
        if retractions is not None:
            adapted = [function.over_updates() for function in functions]
            functions = [function for function in adapted if isinstance(function, Function)]
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context, RESERVED)
        types = types_of(functions, rows, context)
        functions = [function.typed(types.results[function.name]) for function in functions]
        functions = self._with_stored_counts(functions, context)
        for members in _distinct_parts(functions).values():
            refuse_reserved_columns(rows, context, value_names(members))
        results = (function.result(types.results[function.name]) for function in functions)
        return functions, [*map(quoted, self.by), *results], types

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows, retractions = inputs[0], _retractions(context)
        functions, results, types = self._typed(rows, retractions, context)
        rows = self._with_key(rows)
        is_empty = is_known_empty(rows)
        if retractions is not None:
            retractions = self._with_key(retractions)
            is_empty = is_empty and is_known_empty(retractions)
        record_sketched_types(functions, inputs[0], context)
        state = context.state(self._keys)
        remember_reducing(context)
        if state.is_empty or state.is_analysed:
            _refuse_collations(rows, functions, context)
        declared, has_lives = functions, self._has_lives(functions, state)
        if has_lives and (ttl := self.expiry.ttl(context)) is not None:
            values = []
            for part, members in _distinct_parts(functions).items():
                values.append(self._values(part, members, context))
            forget_values(state, values, self._keys, ttl, context)
        if is_empty and not state.is_analysed:
            state.drop_expired()  # no state adds or drops a column now: all of them do, or none
            no_results = self._empty_results(rows, functions, results)
            return {"": no_results, "-": no_results}
        if has_lives:
            refuse_reserved_columns(rows, context, [LIFE])
            rows, functions = with_life(rows, self._keys, state, context), [*functions, life_function()]
            life_types = dict.fromkeys(functions[-1].partials_sql.values(), "bigint")
            types = types._replace(partials=types.partials | life_types)
        if retractions is not None:
            batch, distinct = self._with_retractions(rows, retractions, functions, types, context), NO_NEW_DISTINCT
        else:
            distinct = self._new_values(rows, functions, types, context)
            batch = self._to_partials(rows, functions, types, distinct, context)
        if batch is not None:
            reason = why_not_merged(batch)
            if reason is None:
                return self._run_kernel(batch, declared, results, types, distinct, context, retractions is not None)
            context.computing.note_spark(reason)
        return self._run_in_spark(rows, retractions, functions, results, distinct, context)

    def _run_in_spark(
        self,
        rows: DataFrame,
        retractions: DataFrame | None,
        functions: Sequence[Function],
        results: Sequence[str],
        distinct: NewDistinct,
        context: OperatorContext,
    ) -> Mapping[str, DataFrame]:
        """Merge the batch with the state by DataFrame algebra, for functions that the kernel cannot merge."""
        state = context.state(self._keys)
        partial = self._partial(rows, retractions, functions, distinct, context)
        merged, before = partial, state.lookup(partial)
        if before is not None:
            before = recalled(state, before, partial, context)
            merged = self._merged(partial.unionByName(before), partial, functions)
        if retractions is None:
            changed = state.write_changes(merged)
        else:
            merged = merged.withColumn(DELETED, merged[ROWS] <= 0)
            changed = state.write_changes(merged, deletes=True).where(f"NOT {DELETED}")
        new = changed.selectExpr(*results)
        return {"": new, "-": new.where("false") if before is None else before.selectExpr(*results)}

    def _empty_results(self, rows: DataFrame, functions: Sequence[Function], results: Sequence[str]) -> DataFrame:
        """Return no results."""
        from pyspark.sql import functions as F

        partials = []
        for function in functions:
            partials += function.partials()
            if function.distinct_part:  # its partial value is computed from the state of its values
                for name in function.columns:
                    partials.append(F.lit(None).cast("long").alias(name))
        return empty_like(rows.groupBy(*map(quoted, self._keys)).agg(*partials, F.count("*")).selectExpr(*results))

    def _with_retractions(
        self,
        rows: DataFrame,
        retractions: DataFrame,
        functions: Sequence[Function],
        types: Types,
        context: OperatorContext,
    ) -> RowPartials | None:
        """Return the partial values of the rows, and the negated ones of retractions, or None if the kernel cannot
        merge them."""
        from pyspark.sql import functions as F

        if any(function.distinct_part for function in functions):
            context.computing.note_spark("it counts distinct values of a stream that replaces rows")
            return None
        new = to_partials(functions, rows, self._keys, types.partials)
        old = to_partials(functions, retractions, self._keys, types.partials)
        if new is None or old is None:
            context.computing.note_spark(NOT_MERGED)
            return None
        negated = old.rows.withColumns({name: -F.col(quoted(name)) for name in new.ops})
        added = new.rows.withColumn(ROWS, F.lit(1).cast("long"))
        removed = negated.withColumn(ROWS, F.lit(-1).cast("long"))
        return RowPartials(added.unionByName(removed), new.ops | {ROWS: "sum"})

    def _run_kernel(
        self,
        batch: RowPartials,
        declared: Sequence[Function],
        results: Sequence[str],
        types: Types,
        distinct: NewDistinct,
        context: OperatorContext,
        has_retractions: bool,
    ) -> Mapping[str, DataFrame]:
        """Return the results of each key of the batch, now and before."""
        state = context.state(self._keys)
        # With co-aggregates, workers have reduced the batch. Otherwise Spark pre-aggregates it before it shuffles, if
        # there are few keys. That is unknown for a new state, so it pre-aggregates then, too.
        is_new = state.is_empty and sums_that_do_not_fit_fail(state.spark)
        if distinct.co_aggregates is None and (not self.by or is_new or state.has_few_keys_per_batch):
            batch = pre_aggregate(batch, self._keys)
        fields = {field.name: field for field in batch.rows.schema.fields}
        batch_fields = [field for field in fields.values() if field.name not in batch.fixed]
        stored = [*(fields[name] for name in self._keys), *(fields[name] for name in batch.ops)]
        projection = project_in_workers(declared, types.results, self.by, stored)
        output = run_kernel(
            batch.rows.select(*(quoted(field.name) for field in batch_fields)),
            batch_fields,
            self._keys,
            [StateLookup(state, stored)],
            MergeAggregates(self._keys, batch.ops, ROWS if has_retractions else None, batch.fixed),
            stored if projection is None else projection.fields,
            is_empty=is_known_empty(batch.rows),
            is_current_column=IS_CURRENT,
            wants_retractions=context.wants_retractions,
            project=None if projection is None else projection.function,
        )
        if projection is not None:
            return {"": output.rows, "-": output.retractions}
        return {"": select_sql(output.rows, results), "-": select_sql(output.retractions, results)}

    def _with_stored_counts(self, functions: Sequence[Function], context: OperatorContext) -> list[Function]:
        """Return the functions with distinct counts as the state stores them. Earlier versions stored null for 0, and
        states that they created stay that way."""
        state = context.state(self._keys)
        if state.base is not None:
            stored_names = {field["name"] for field in state.base.columns["fields"]}
        else:
            stored_names = set()
        distinct = [function.name for function in functions if function.distinct_part]
        plain_before = context.memory.get("plain")
        if not isinstance(plain_before, list):
            plain_before = []
        plain = [name for name in distinct if name not in stored_names or name in plain_before]
        if plain:
            context.remember["plain"] = plain
        return [function if function.name in plain else function.sparse() for function in functions]

    def _has_lives(self, functions: Sequence[Function], state: KeyedState) -> bool:
        """Return whether keys have lives: if totals expire, or did under an earlier declaration."""
        if not _distinct_parts(functions):
            return False
        stored = state.base.columns["fields"] if state.base is not None else []
        return not self.expiry.is_never or any(field["name"] == LIFE for field in stored)

    def _values(self, part: str, members: Sequence[Function], context: OperatorContext) -> KeyedState:
        """Return the state with the distinct values of these counts."""
        return context.state([*self._keys, *value_names(members)], part)

    def _new_values(
        self, rows: DataFrame, functions: Sequence[Function], types: Types, context: OperatorContext
    ) -> NewDistinct:
        """Let workers store new distinct values, and merge the partial values of the other functions in the same
        query."""
        parts = _distinct_parts(functions)
        if not parts:
            return NO_NEW_DISTINCT
        other_functions = [function for function in functions if not function.distinct_part]
        partials = row_partials(other_functions, types.partials)
        co_aggregates = None
        if partials is not None:
            co_aggregates = CoAggregates(*partials, context.state(self._keys))
        has_lives = _has_life_column(functions)
        return new_values(rows, self._keys, parts, context, co_aggregates, has_lives=has_lives)

    def _to_partials(
        self,
        rows: DataFrame,
        functions: Sequence[Function],
        types: Types,
        distinct: NewDistinct,
        context: OperatorContext,
    ) -> RowPartials | None:
        """Return the rows as partial values for the kernel, with the growth of distinct counts, or None if the kernel
        cannot merge them."""
        from pyspark.sql import functions as F

        count_names: list[str] = []
        for function in functions:
            if function.distinct_part:
                count_names += function.columns
        if distinct.co_aggregates is not None:
            return RowPartials(distinct.growth[0], {**distinct.co_aggregates, **dict.fromkeys(count_names, "sum")})
        other_functions = [function for function in functions if not function.distinct_part]
        partials = to_partials(other_functions, rows, self._keys, types.partials)
        if distinct.unhandled:
            return None
        if partials is None:
            context.computing.note_spark(NOT_MERGED)
        if partials is None or not count_names:
            return partials
        union = partials.rows.withColumns({name: F.lit(0).cast("long") for name in count_names})
        if not is_known_empty(rows):
            for frame in distinct.growth:
                union = union.unionByName(frame, allowMissingColumns=True)
        # No partial value is fixed: in the frames with the growth of counts, those of other functions are null.
        return RowPartials(empty_if(rows, union), partials.ops | dict.fromkeys(count_names, "sum"))

    def _partial(
        self,
        rows: DataFrame,
        retractions: DataFrame | None,
        functions: Sequence[Function],
        distinct: NewDistinct,
        context: OperatorContext,
    ) -> DataFrame:
        """Return the batch's partial values, as one row per key."""
        from pyspark.sql import functions as F

        columns = partial_columns(functions)
        if retractions is not None or not columns:
            columns.append(F.count("*").alias(ROWS))
        key_columns = list(map(quoted, self._keys))
        partials = rows.groupBy(*key_columns).agg(*columns)
        if retractions is not None:
            retracted = retractions.groupBy(*key_columns).agg(*columns)
            names = [name for name in retracted.columns if name not in self._keys]
            negated = retracted.select(*key_columns, *((-retracted[quoted(name)]).alias(name) for name in names))
            partials = partials.unionByName(negated)
        parts = _distinct_parts(functions)
        if not parts and retractions is None:
            if context.state(self._keys).is_empty:
                return partials
            return context.persist(partials)
        has_lives = _has_life_column(functions)
        frames = list(distinct.growth)
        for part, members in (parts if retractions is not None else distinct.unhandled).items():
            frames.append(self._distinct(part, members, rows, retractions, context, has_lives=has_lives))
        for frame in frames:
            partials = partials.unionByName(frame, allowMissingColumns=True)
        partials = self._merged(partials, partials, functions)
        zeros = {}
        for members in parts.values():
            for function in members:
                for name in function.columns:
                    zeros[name] = F.coalesce(quoted(name), F.lit(0))
        return context.persist(partials.withColumns(zeros) if zeros else partials)

    def _merged(self, partials: DataFrame, like: DataFrame, functions: Sequence[Function]) -> DataFrame:
        """Return one row per key, in the types of `like`: a sum of decimals has a wider type than these."""
        from pyspark.sql import functions as F

        columns = merge_columns(functions)
        if ROWS in like.columns:
            columns.append(F.sum(ROWS).alias(ROWS))
        merged = partials.groupBy(*map(quoted, self._keys)).agg(*columns)
        target_types = {field.name: field.dataType.simpleString() for field in like.schema.fields}
        casts = {}
        for field in merged.schema.fields:
            if field.dataType.simpleString() != target_types[field.name]:
                casts[field.name] = merged[quoted(field.name)].cast(target_types[field.name])
        return merged.withColumns(casts) if casts else merged

    def _distinct(
        self,
        part: str,
        members: Sequence[Function],
        rows: DataFrame,
        retractions: DataFrame | None,
        context: OperatorContext,
        *,
        has_lives: bool,
    ) -> DataFrame:
        """Update the state of distinct values. Return the change of each key's number of distinct values."""
        from pyspark.sql import functions as F

        values, wheres = value_names(members), conditions(members)
        arguments = []
        for name, text in zip(values, computed_if_any(members), strict=True):
            arguments.append(F.expr(text).alias(name))
        keys, life = [*self._keys, *values], [LIFE] if has_lives else []

        def changes_per_value(frame: DataFrame, change: int) -> DataFrame:
            numbers = []
            for name, where in wheres.items():
                numbers.append(F.expr(f"CASE WHEN {where} THEN {change}L ELSE 0L END").alias(name))
            counted = frame.select(*map(quoted, self._keys), *life, *arguments, *numbers)
            meets_a_condition = " OR ".join(f"{name} <> 0" for name in wheres)
            counted = counted.where(" AND ".join(f"{name} IS NOT NULL" for name in values)).where(meets_a_condition)
            sums = [F.sum(name).alias(name) for name in wheres]
            return counted.groupBy(*map(quoted, keys)).agg(*(F.max(name).alias(name) for name in life), *sums)

        state = self._values(part, members, context)
        new = changes_per_value(rows, 1)
        if retractions is not None:
            new = new.unionAll(changes_per_value(retractions, -1))
        new = context.persist(new)
        before = state.lookup(new)
        if has_lives and before is not None:
            before = in_current_life(before, new, keys)
        was_counted = {name: f"_was{name}" for name in wheres}
        both = new.withColumns({name: F.lit(0) for name in was_counted.values()})
        if before is not None:
            columns = [f"CAST(NULL AS BIGINT) AS {name}" for name in life]
            for name in wheres:
                stored_count = f"coalesce({name}, 0L)" if name in before.columns else "0L"
                columns.append(f"{stored_count} AS {name}")
                columns.append(f"IF({stored_count} > 0, 1, 0) AS {was_counted[name]}")
            both = both.unionByName(before.selectExpr(*map(quoted, keys), *columns))
        sums = (F.expr(f"greatest(sum({name}), 0L)").alias(name) for name in wheres)
        maxima = (F.max(name).alias(name) for name in (*life, *was_counted.values()))
        after = both.groupBy(*map(quoted, keys)).agg(*sums, *maxima)
        after = context.persist(after)
        written = after
        if retractions is None:  # then the number of rows with a value does not matter, and need not be updated
            written = after.where(" OR ".join(f"({name} > 0 AND {was_counted[name]} = 0)" for name in wheres))
        is_deleted = F.expr(" AND ".join(f"{name} <= 0" for name in wheres))
        state.write_changes(written.drop(*was_counted.values()).withColumn(DELETED, is_deleted), deletes=True)
        growth = []
        for function in members:
            count = function.distinct_column
            change = F.expr(f"sum(IF({count} > 0, 1L, 0L) - {was_counted[count]})")
            for name in function.columns:
                growth.append(change.alias(name))
        return after.groupBy(*map(quoted, self._keys)).agg(*growth)


def _has_life_column(functions: Sequence[Function]) -> bool:
    """Return whether rows carry the life of their key."""
    return any(function.name == LIFE for function in functions)


def _refuse_collations(rows: DataFrame, functions: Sequence[Function], context: OperatorContext) -> None:
    """Raise Invalid if distinct texts to count have a collation. The states would refuse them, too, but with names that
    the user does not know."""
    from pyspark.sql import functions as F

    texts: list[str] = []
    for members in _distinct_parts(functions).values():
        texts += members[0].distinct_arguments
    if not texts:
        return
    fields = rows.select(*(F.expr(text).alias(f"_value{index}") for index, text in enumerate(texts))).schema.fields
    for text, field in zip(texts, fields, strict=True):
        if collated_names([field]):
            raise Invalid(
                f"operator {context.uid!r}: count(distinct …) names texts with a collation: {text} is "
                f"{field.dataType.simpleString()}",
                expected="texts that are only equal if they are identical: plain strings, with the collation "
                "UTF8_BINARY",
                help="make equal texts identical in an upstream stage, as lower(…) COLLATE UTF8_BINARY does for "
                "UTF8_LCASE; or only write COLLATE UTF8_BINARY to keep them distinct",
                reason="COLLATION",
            )


def _distinct_parts(functions: Sequence[Function]) -> dict[str, list[Function]]:
    """Return the exact counts of distinct values by the state with the values."""
    parts: dict[str, list[Function]] = {}
    for function in functions:
        if function.distinct_part:
            parts.setdefault(function.distinct_part, []).append(function)
    return parts


def _retractions(context: OperatorContext) -> DataFrame | None:
    """Return the input's retractions, or None if its rows are final."""
    if context.retractions:
        return context.retractions[0]
    return None
