"""Running aggregates per key: what a key's row is now, whenever its input changes.

Each function is kept as one or more partial values that can be merged, so that a checkpoint costs what its batch
costs: the batch is reduced to one row per key, joined with the state of these keys only, merged and written. The
values of an exact `count(distinct …)` are keys of a state of their own, which counts how often each is there. They do
not expire, but count no more once their key has (`distinct/key_generations.py`).

Over an input that replaces rows (another aggregate, `latest` …) the rows that it takes back count negatively; a key
whose last row is taken back is gone.

Without a key all rows have the same one, which is kept and not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tidegate.errors import Invalid
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.operators.distinct.kernel import GENERATION
from tidegate.operators.distinct.key_generations import (
    forget_values,
    generation_function,
    in_current_generation,
    with_generation,
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
    parse,
    parse_functions,
    pre_aggregate,
    project_in_workers,
    row_partials,
    to_partials,
    why_not_merged,
)
from tidegate.operators.inputs import Types, key_problems, need_keys, recalled, refuse_reserved_columns, types_of
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
"""The number of rows of a key: kept only if the input can take rows back."""
ALL = "_all"
"""The key of totals over all rows: the same in each."""
OURS = (ROWS, ALL, "_n", *OWN)


class Aggregate(Operator):
    """`by`: the key columns; none: one row in all. `functions`: output column → SQL aggregate, as "sum(amount)"."""

    kind: ClassVar[str] = "aggregate"

    def __init__(self, by: Sequence[str], functions: Mapping[str, str], expiry: Expiry = NEVER) -> None:
        self.by = listed(by)
        self.functions = dict(functions)
        self.expiry = expiry

    def spec(self) -> OperatorSpec:
        by, expires = list(map(str, self.by)), not self.expiry.is_never
        distinct = [function for function in self._parsed() if function.distinct_part]
        counted = f"each value that {joined([function.name for function in distinct])} counts" if distinct else None
        return OperatorSpec(
            identity=self.by,
            inputs=Inputs(
                retractions=True,
                retraction_problems=[text for each in self._parsed() if isinstance(text := each.over_updates(), str)],
            ),
            output=OutputSpec(
                columns=[*by, *self.functions],
                results=arguments(self.functions),
                results_that_share_state=[function.name for function in distinct],
            ),
            changelog=Changelog(
                updates=Updates.ALWAYS, key=key_of(by), stable_keys=[frozenset(by)] if by else [], is_kept=True
            ),
            # Values that are counted do not expire, but count no more once their key has.
            states=[StateSpec("", self.expiry), *map(StateSpec, self._distinct_states)],
            growth=Growth(
                keeps=None if expires else f"a row for each {joined(by)}" if by else counted,
                keeps_per_key=counted if expires else None,
            ),
            permanent_keys=by if by and not expires else None,
            intervals=ANY_INTERVAL,
        )

    @property
    def _distinct_states(self) -> list[str]:
        """The states with values that are counted."""
        return sorted({part for function in self._parsed() if (part := function.distinct_part)})

    def describe(self) -> Json:
        return {"by": self.by, "functions": self.functions, **self.expiry.describe()}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "over a stream that replaces rows": over_updates} | meanings(self.functions)

    def problems(self) -> list[str]:
        problems = key_problems(self.by) if self.by else []
        if not self.functions:
            problems.append('it computes nothing: name at least one, such as orders="count(*)"')
        problems += [problem for name, text in self.functions.items() if isinstance(problem := parse(name, text), str)]
        used_as = {str(name).casefold(): "a key" for name in self.by} | dict.fromkeys(self._own_names, "tidegate's own")
        problems += clashing_columns(self._parsed(), used_as)
        return problems + self.expiry.problems()

    def _parsed(self) -> list[Function]:
        return parse_functions(self.functions)

    @property
    def _own_names(self) -> list[str]:
        """Names that it uses in addition to the columns of its input."""
        return [*OURS, *([GENERATION] if not self.expiry.is_never and self._distinct_states else [])]

    @property
    def _keys(self) -> list[str]:
        """The keys of its states."""
        return self.by or [ALL]

    def _with_key(self, rows: DataFrame) -> DataFrame:
        """Return rows with the key that they all have, if none is declared."""
        from pyspark.sql import functions as F

        return rows if self.by else empty_if(rows, rows.withColumn(ALL, F.lit(0)))

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        from pyspark.sql import functions as F

        functions, results, _ = self._typed(inputs[0], _withdrawn(context), context)
        rows = self._with_key(inputs[0])
        if (stored := states[""]) is None:
            return None
        columns = (column for function in functions for column in function.partials())
        partials = rows.groupBy(*map(quoted, self._keys)).agg(*columns, F.count("*"))
        types = {field.name: field.dataType for field in partials.schema.fields}
        lacks = [name for function in functions for name in function.columns if name not in stored.columns]
        nulls = {name: F.lit(None).cast(types.get(name, "long")) for name in lacks}
        return stored.withColumns(nulls).selectExpr(*results)

    def _typed(
        self, rows: DataFrame, withdrawn: DataFrame | None, context: OperatorContext
    ) -> tuple[list[Function], list[str], Types]:
        """Return the functions for input of these types, the columns that they make of the stored partials, and the
        types."""
        functions = self._parsed()
        if withdrawn is not None:
            adapted = [function.over_updates() for function in functions]
            functions = [function for function in adapted if isinstance(function, Function)]
        need_keys(rows, self.by, "by", context)
        refuse_reserved_columns(rows, context, OURS)
        types = types_of(functions, rows, context)
        functions = self._counted([function.typed(types.results[function.name]) for function in functions], context)
        refuse_reserved_columns(
            rows, context, [name for of in _distinct_parts(functions).values() for name in value_names(of)]
        )
        results = (function.result(types.results[function.name]) for function in functions)
        return functions, [*map(quoted, self.by), *results], types

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows, withdrawn = inputs[0], _withdrawn(context)
        functions, results, types = self._typed(rows, withdrawn, context)
        rows = self._with_key(rows)
        withdrawn = withdrawn if withdrawn is None else self._with_key(withdrawn)
        state = context.state(self._keys, ttl=self.expiry.ttl(context))
        remember_reducing(context)
        if state.is_empty or state.is_analysed:
            _refuse_collations(rows, functions, context)
        declared, has_lives = functions, self._has_lives(functions, state)
        if has_lives and (ttl := self.expiry.ttl(context)) is not None:
            values = [self._values(part, of, context) for part, of in _distinct_parts(functions).items()]
            forget_values(state, values, self._keys, ttl, context)
        if all(is_known_empty(frame) for frame in (rows, withdrawn) if frame is not None) and not state.is_analysed:
            state.drop_expired()  # and no state takes or forgets a column: all of them do, or none
            nothing = self._empty_results(rows, functions, results)
            return {"": nothing, "-": nothing}
        if has_lives:
            refuse_reserved_columns(rows, context, [GENERATION])
            rows, functions = with_generation(rows, self._keys, state, context), [*functions, generation_function()]
            types = types._replace(
                partials=types.partials | dict.fromkeys(functions[-1].partials_sql.values(), "bigint")
            )
        if withdrawn is not None:
            batch, distinct = self._with_withdrawn(rows, withdrawn, functions, types, context), NO_NEW_DISTINCT
        else:
            distinct = self._new_values(rows, functions, types, context)
            batch = self._lifted(rows, functions, types, distinct, context)
        if batch is not None and (why := why_not_merged(batch)) is not None:
            context.computing.note_spark(why)
        elif batch is not None:
            return self._run_kernel(batch, declared, results, types, distinct, context, withdrawn is not None)
        partial = self._partial(rows, withdrawn, functions, distinct, context)
        before = state.lookup(partial)
        if before is not None:
            before = recalled(state, before, partial, context)
        merged = partial if before is None else self._merged(partial.unionByName(before), partial, functions)
        if withdrawn is None:
            changed = state.write_changes(merged)
        else:
            changed = state.write_changes(merged.withColumn(DELETED, merged[ROWS] <= 0), deletes=True).where(
                f"NOT {DELETED}"
            )
        new = changed.selectExpr(*results)
        return {"": new, "-": new.where("false") if before is None else before.selectExpr(*results)}

    def _empty_results(self, rows: DataFrame, functions: Sequence[Function], results: Sequence[str]) -> DataFrame:
        """Return no results."""
        from pyspark.sql import functions as F

        counts = [F.lit(None).cast("long").alias(n) for each in functions if each.distinct_part for n in each.columns]
        partials = (column for function in functions for column in function.partials())
        return empty_like(
            rows.groupBy(*map(quoted, self._keys)).agg(*partials, *counts, F.count("*")).selectExpr(*results)
        )

    def _with_withdrawn(
        self,
        rows: DataFrame,
        withdrawn: DataFrame,
        functions: Sequence[Function],
        types: Types,
        context: OperatorContext,
    ) -> RowPartials | None:
        """Return the rows as partial values, and those that are taken back with theirs negated. None: workers do not
        merge them."""
        from pyspark.sql import functions as F

        if any(function.distinct_part for function in functions):
            context.computing.note_spark("it counts distinct values of a stream that replaces rows")
            return None
        new, old = (to_partials(functions, frame, self._keys, types.partials) for frame in (rows, withdrawn))
        if new is None or old is None:
            context.computing.note_spark(NOT_MERGED)
            return None
        negated = old.rows.withColumns({name: -F.col(quoted(name)) for name in new.ops})
        both = [frame.withColumn(ROWS, F.lit(sign).cast("long")) for frame, sign in ((new.rows, 1), (negated, -1))]
        return RowPartials(both[0].unionByName(both[1]), new.ops | {ROWS: "sum"})

    def _run_kernel(
        self,
        batch: RowPartials,
        declared: Sequence[Function],
        results: Sequence[str],
        types: Types,
        distinct: NewDistinct,
        context: OperatorContext,
        takes_back: bool,
    ) -> Mapping[str, DataFrame]:
        """Return the results of each key of the batch, now and before."""
        state = context.state(self._keys, ttl=self.expiry.ttl(context))
        # What has come along with distinct values has been reduced by workers. Of a new state nobody knows how many
        # rows of a key come: then Spark reduces them before it shuffles.
        is_new = state.is_empty and sums_that_do_not_fit_fail(state.spark)
        if distinct.co_aggregates is None and (not self.by or is_new or state.has_few_keys_per_batch):
            batch = pre_aggregate(batch, self._keys)
        of = {field.name: field for field in batch.rows.schema.fields}
        brought = [field for field in of.values() if field.name not in batch.fixed]
        stored = [*(of[name] for name in self._keys), *(of[name] for name in batch.ops)]
        given = project_in_workers(declared, types.results, self.by, stored)
        folded = run_kernel(
            batch.rows.select(*(quoted(field.name) for field in brought)),
            brought,
            self._keys,
            [StateLookup(state, stored)],
            MergeAggregates(self._keys, batch.ops, ROWS if takes_back else None, batch.fixed),
            stored if given is None else given.fields,
            is_empty=is_known_empty(batch.rows),
            is_current_column=IS_CURRENT,
            wants_retractions=context.wants_retractions,
            project=None if given is None else given.function,
        )
        if given is not None:
            return {"": folded.rows, "-": folded.retractions}
        return {"": select_sql(folded.rows, results), "-": select_sql(folded.retractions, results)}

    def _counted(self, functions: Sequence[Function], context: OperatorContext) -> list[Function]:
        """Earlier versions also stored null for "no distinct value": states that they began stay that way."""
        state = context.state(self._keys, ttl=self.expiry.ttl(context))
        stored_names = {field["name"] for field in state.base.columns["fields"]} if state.base is not None else set()
        distinct = [function.name for function in functions if function.distinct_part]
        before = context.memory.get("plain")
        plain_names = before if isinstance(before, list) else []
        plain = [name for name in distinct if name not in stored_names or name in plain_names]
        if plain:
            context.remember["plain"] = plain
        return [function if function.name in plain else function.sparse() for function in functions]

    def _has_lives(self, functions: Sequence[Function], state: KeyedState) -> bool:
        """Return whether keys may begin anew: if totals expire, or did before they were declared to stay."""
        stored = state.base.columns["fields"] if state.base is not None else []
        return bool(_distinct_parts(functions)) and (
            not self.expiry.is_never or any(field["name"] == GENERATION for field in stored)
        )

    def _values(self, part: str, members: Sequence[Function], context: OperatorContext) -> KeyedState:
        """Return the state with the distinct values of these counts."""
        return context.state([*self._keys, *value_names(members)], part)

    def _new_values(
        self, rows: DataFrame, functions: Sequence[Function], types: Types, context: OperatorContext
    ) -> NewDistinct:
        """Let workers keep distinct values that are new, and merge the partial values of other functions on the way."""
        if not (parts := _distinct_parts(functions)):
            return NO_NEW_DISTINCT
        others = row_partials([function for function in functions if not function.distinct_part], types.partials)
        state = context.state(self._keys, ttl=self.expiry.ttl(context))
        along = CoAggregates(*others, state) if others is not None else None
        return new_values(rows, self._keys, parts, context, along, has_lives=_say_generation(functions))

    def _lifted(
        self,
        rows: DataFrame,
        functions: Sequence[Function],
        types: Types,
        distinct: NewDistinct,
        context: OperatorContext,
    ) -> RowPartials | None:
        """Return the rows as partial values that workers merge: of counts of distinct values how much they grow."""
        from pyspark.sql import functions as F

        names = [name for function in functions if function.distinct_part for name in function.columns]
        if distinct.co_aggregates is not None:
            return RowPartials(distinct.growth[0], {**distinct.co_aggregates, **dict.fromkeys(names, "sum")})
        plain = [function for function in functions if not function.distinct_part]
        lifted = to_partials(plain, rows, self._keys, types.partials)
        if distinct.unhandled:
            return None
        if lifted is None:
            context.computing.note_spark(NOT_MERGED)
        if lifted is None or not names:
            return lifted
        grows = lifted.rows.withColumns({name: F.lit(0).cast("long") for name in names})
        if not is_known_empty(rows):
            for frame in distinct.growth:
                grows = grows.unionByName(frame, allowMissingColumns=True)
        # What is the same in all rows is not so in those of distinct values: none of it is fixed.
        return RowPartials(empty_if(rows, grows), lifted.ops | dict.fromkeys(names, "sum"))

    def _partial(
        self,
        rows: DataFrame,
        withdrawn: DataFrame | None,
        functions: Sequence[Function],
        distinct: NewDistinct,
        context: OperatorContext,
    ) -> DataFrame:
        """Return one row per key of this checkpoint: what it adds to the stored row."""
        from pyspark.sql import functions as F

        columns = [column for function in functions for column in function.partials()]
        if withdrawn is not None or not columns:
            columns.append(F.count("*").alias(ROWS))
        key_columns = list(map(quoted, self._keys))
        fresh = rows.groupBy(*key_columns).agg(*columns)
        if withdrawn is not None:
            withdrawn_rows = withdrawn.groupBy(*key_columns).agg(*columns)
            names = [name for name in withdrawn_rows.columns if name not in self._keys]
            fresh = fresh.unionByName(
                withdrawn_rows.select(*key_columns, *((-withdrawn_rows[quoted(name)]).alias(name) for name in names))
            )
        parts = _distinct_parts(functions)
        if not parts and withdrawn is None:
            return context.persist(fresh) if not context.state(self._keys).is_empty else fresh
        frames = list(distinct.growth)
        for part, members in (parts if withdrawn is not None else distinct.unhandled).items():
            frames.append(self._distinct(part, members, rows, withdrawn, context, has_lives=_say_generation(functions)))
        for frame in frames:
            fresh = fresh.unionByName(frame, allowMissingColumns=True)
        fresh = self._merged(fresh, fresh, functions)
        zeros = {
            name: F.coalesce(quoted(name), F.lit(0))
            for function in functions
            if function.distinct_part
            for name in function.columns
        }
        return context.persist(fresh.withColumns(zeros) if zeros else fresh)

    def _merged(self, partials: DataFrame, like: DataFrame, functions: Sequence[Function]) -> DataFrame:
        """Return one row per key, cast to the types of the partials: a sum of decimal sums has a wider type."""
        from pyspark.sql import functions as F

        columns = [column for function in functions for column in function.merges()]
        if ROWS in like.columns:
            columns.append(F.sum(ROWS).alias(ROWS))
        merged = partials.groupBy(*map(quoted, self._keys)).agg(*columns)
        target_types = {field.name: field.dataType.simpleString() for field in like.schema.fields}
        merged_types = {field.name: field.dataType.simpleString() for field in merged.schema.fields}
        wider = {
            name: merged[quoted(name)].cast(target_types[name])
            for name in merged_types
            if merged_types[name] != target_types[name]
        }
        return merged.withColumns(wider) if wider else merged

    def _distinct(
        self,
        part: str,
        members: Sequence[Function],
        rows: DataFrame,
        withdrawn: DataFrame | None,
        context: OperatorContext,
        *,
        has_lives: bool,
    ) -> DataFrame:
        """Return by how much the number of distinct values of each key changes. The values have a state of their
        own."""
        from pyspark.sql import functions as F

        values, wheres = value_names(members), conditions(members)
        arguments = [F.expr(text).alias(name) for name, text in zip(values, computed_if_any(members), strict=True)]
        keys, lives = [*self._keys, *values], [GENERATION] if has_lives else []

        def counted(frame: DataFrame, sign: int) -> DataFrame:
            numbers = [F.expr(f"CASE WHEN {where} THEN {sign}L ELSE 0L END").alias(n) for n, where in wheres.items()]
            stored = frame.select(*map(quoted, self._keys), *lives, *arguments, *numbers)
            counts_somewhere = " OR ".join(f"{name} <> 0" for name in wheres)
            stored = stored.where(" AND ".join(f"{name} IS NOT NULL" for name in values)).where(counts_somewhere)
            sums = [F.sum(name).alias(name) for name in wheres]
            return stored.groupBy(*map(quoted, keys)).agg(*(F.max(name).alias(name) for name in lives), *sums)

        state = self._values(part, members, context)
        new = counted(rows, 1) if withdrawn is None else counted(rows, 1).unionAll(counted(withdrawn, -1))
        new = context.persist(new)
        before = state.lookup(new)
        if has_lives and before is not None:
            before = in_current_generation(before, new, keys)
        was = {name: f"_was{name}" for name in wheres}
        both = new.withColumns({name: F.lit(0) for name in was.values()})
        if before is not None:
            there = {name: f"coalesce({name}, 0L)" if name in before.columns else "0L" for name in wheres}
            held = [
                *(f"CAST(NULL AS BIGINT) AS {name}" for name in lives),
                *(f"{text} AS {n}" for n, text in there.items()),
            ]
            flags = [f"IF({text} > 0, 1, 0) AS {was[name]}" for name, text in there.items()]
            both = both.unionByName(before.selectExpr(*map(quoted, keys), *held, *flags))
        sums = (F.expr(f"greatest(sum({name}), 0L)").alias(name) for name in wheres)
        most = (F.max(name).alias(name) for name in (*lives, *was.values()))
        after = both.groupBy(*map(quoted, keys)).agg(*sums, *most)
        after = context.persist(after)
        is_new = " OR ".join(f"({name} > 0 AND {was[name]} = 0)" for name in wheres)
        worth = after if withdrawn is not None else after.where(is_new)
        is_gone = F.expr(" AND ".join(f"{name} <= 0" for name in wheres))
        state.write_changes(worth.drop(*was.values()).withColumn(DELETED, is_gone), deletes=True)
        steps = {name: F.expr(f"sum(IF({name} > 0, 1L, 0L) - {was[name]})") for name in wheres}
        named = [steps[each.distinct_column].alias(name) for each in members for name in each.columns]
        return after.groupBy(*map(quoted, self._keys)).agg(*named)


def _say_generation(functions: Sequence[Function]) -> bool:
    """Return whether rows say in which checkpoint the life of their key began."""
    return any(function.name == GENERATION for function in functions)


def _refuse_collations(rows: DataFrame, functions: Sequence[Function], context: OperatorContext) -> None:
    """Raise Invalid if texts that are counted have a collation: by the names that the user knows. Their states would
    refuse them, too."""
    from pyspark.sql import functions as F

    texts = [text for members in _distinct_parts(functions).values() for text in members[0].distinct_arguments]
    if not texts:
        return
    fields = rows.select(*(F.expr(text).alias(f"_value{place}") for place, text in enumerate(texts))).schema.fields
    for text, field in zip(texts, fields, strict=True):
        if collated_names([field]):
            raise Invalid(
                f"operator {context.uid!r}: count(distinct …) names texts with a collation: {text} is "
                f"{field.dataType.simpleString()}",
                expected="texts that are equal only if they are the same: plain strings, of the collation UTF8_BINARY",
                help="make equal texts the same in a stage before, as lower(…) COLLATE UTF8_BINARY does for "
                "UTF8_LCASE; or write COLLATE UTF8_BINARY alone to tell them apart",
                reason="COLLATION",
            )


def _distinct_parts(functions: Sequence[Function]) -> dict[str, list[Function]]:
    """Return the exact counts of distinct values by the state that keeps them."""
    parts: dict[str, list[Function]] = {}
    for function in functions:
        if function.distinct_part:
            parts.setdefault(function.distinct_part, []).append(function)
    return parts


def _withdrawn(context: OperatorContext) -> DataFrame | None:
    """Return the rows that the input takes back, or None if it takes none back."""
    return context.retractions[0] if context.retractions else None
