"""Running aggregates per key: what a key's row is now, whenever its input changes.

Each function is kept as one or more partial values that can be merged, so that a checkpoint costs what its batch
costs: the batch is reduced to one row per key, joined with the state of these keys only, merged and written. The
values of an exact `count(distinct …)` are keys of a state of their own, which counts how often each is there.

Over an input that replaces rows (another aggregate, `latest` …) the rows that it takes back count negatively; a key
whose last row is taken back is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.operators.base import Operator, OperatorContext
from tidegate.operators.expiry import NEVER, Expiry
from tidegate.operators.functions import Function, arguments, meanings, parse
from tidegate.operators.inputs import key_problems, need_keys, recalled, refuse_own, result_types
from tidegate.operators.row_partials import lift
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.empty import empty_like
from tidegate.state.columns import DELETED, OWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.state.ttl import Ttl

__all__ = ["Aggregate"]

ROWS = "_rows"
"""How many rows a key has: kept only if rows can be taken back."""
OURS = (ROWS, "_n", *OWN)


class Aggregate(Operator):
    """`by`: the key columns. `functions`: output column → SQL aggregate, such as "sum(amount)"."""

    kind: ClassVar[str] = "aggregate"
    renews: ClassVar[bool] = True

    def __init__(self, by: Sequence[str], functions: Mapping[str, str], expiry: Expiry = NEVER) -> None:
        self.by = listed(by)
        self.functions = dict(functions)
        self.expiry = expiry

    @property
    def told_by(self) -> list[str]:
        return self.by

    @property
    def uses_event_time(self) -> bool:
        """Whether it asks for watermarks: its rows expire by them."""
        return self.expiry.uses_event_time

    @property
    def updates(self) -> bool:
        return True

    @property
    def results(self) -> Mapping[str, str]:
        return arguments(self.functions)

    @property
    def columns(self) -> list[str] | None:
        return [*self.by, *self.functions]

    @property
    def takes_updates(self) -> bool:
        return True

    @property
    def forgets(self) -> bool:
        return self.expiry.after is not None

    @property
    def parts(self) -> tuple[str, ...]:
        return ("", *sorted({part for each in self._parsed() if (part := each.distinct_part)}))

    def keeps(self, keys: Sequence[str], over_updates: bool) -> bool:
        return not over_updates and set(keys) == set(self.by)

    @property
    def known_by(self) -> list[str] | None:
        return self.by if self.expiry == NEVER else None

    def describe(self) -> Json:
        return {"by": self.by, "functions": self.functions, **self.expiry.describe()}

    def meaning(self, over_updates: bool) -> Json:
        return {"by": self.by, "over a stream that replaces rows": over_updates} | meanings(self.functions)

    def problems(self) -> list[str]:
        found = key_problems(self.by)
        if not self.functions:
            found.append('it computes nothing: name at least one, such as orders="count(*)"')
        found += [told for name, text in self.functions.items() if isinstance(told := parse(name, text), str)]
        taken = {name.casefold(): "a key" for name in self.by} | dict.fromkeys(OURS, "tidegate's own")
        for function in self._parsed():
            for column in {function.name, *function.columns}:
                if (other := taken.get(column.casefold())) is not None:
                    found.append(f"{function.name!r} needs a column {column!r}, which is {other}: name it differently")
                taken[column.casefold()] = f"of {function.name!r}"
        if self.expiry.after is not None:
            found += [
                f"{each.name}={each.call.text!r}: what it has counted cannot expire together with the key; leave out "
                "state_ttl, or take approx_count_distinct"
                for each in self._parsed()
                if each.distinct_part
            ]
        return found + self.expiry.problems()

    def update_problems(self) -> list[str]:
        found = [told for each in self._parsed() if isinstance(told := each.over_updates(), str)]
        if self.expiry.after is not None:
            found.append("state_ttl: a row that is taken back after its key has expired would be counted negatively")
        return found

    def _parsed(self) -> list[Function]:
        return [told for name, text in self.functions.items() if isinstance(told := parse(name, text), Function)]

    def ttl(self, part: str, context: OperatorContext) -> Ttl | None:
        return None if part else self.expiry.ttl(context)

    def shown(
        self, held: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        from pyspark.sql import functions as F

        rows = inputs[0]
        functions, results = self._typed(rows, _gone(context), context)
        if (known := held[""]) is None:
            return None
        partials = rows.groupBy(*map(quoted, self.by)).agg(*(c for f in functions for c in f.partials()), F.count("*"))
        types = {field.name: field.dataType for field in partials.schema.fields}
        lacks = [name for each in functions for name in each.columns if name not in known.columns]
        return known.withColumns({name: F.lit(None).cast(types.get(name, "long")) for name in lacks}).select(*results)

    def _typed(
        self, rows: DataFrame, gone: DataFrame | None, context: OperatorContext
    ) -> tuple[list[Function], list[Any]]:
        """The functions for input of its types, and the columns that they make of what is kept."""
        functions = self._parsed()
        if gone is not None:
            functions = [told for each in functions if isinstance(told := each.over_updates(), Function)]
        need_keys(rows, self.by, "by", context)
        refuse_own(rows, context, OURS)
        types = result_types(functions, rows, context)
        functions = self._counted([each.typed(types[each.name]) for each in functions], context)
        return functions, [*map(quoted, self.by), *(each.result(types[each.name]) for each in functions)]

    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        rows, gone = inputs[0], _gone(context)
        functions, results = self._typed(rows, gone, context)
        state = context.state(self.by, ttl=self.ttl("", context))
        if gone is None and (lifted := lift(functions, rows, self.by)):
            was_empty = state.is_empty
            changed = state.merge(lifted.rows, lifted.ops, lifted.fixed)
            before = None if was_empty or not context.replaced_is_taken else state.of(changed)
            new = changed.select(*results)
            if before is None:
                return {"": new, "-": empty_like(new)}
            return {"": new, "-": recalled(state, before, changed, context).select(*results)}
        partial = self._partial(rows, gone, functions, context)
        before = state.of(partial)
        if before is not None:
            before = recalled(state, before, partial, context)
        merged = partial if before is None else self._merged(partial.unionByName(before), partial, functions)
        if gone is None:
            changed = state.put(merged)
        else:
            changed = state.put(merged.withColumn(DELETED, merged[ROWS] <= 0), deletes=True).where(f"NOT {DELETED}")
        new = changed.select(*results)
        return {"": new, "-": new.where("false") if before is None else before.select(*results)}

    def _counted(self, functions: Sequence[Function], context: OperatorContext) -> list[Function]:
        """Earlier versions kept null for no distinct value, too: what they began goes on so."""
        state = context.state(self.by, ttl=self.ttl("", context))
        there = {field["name"] for field in state.base.columns["fields"]} if state.base is not None else set()
        distinct = [each.name for each in functions if each.distinct_part]
        before = context.memory.get("plain")
        known = before if isinstance(before, list) else []
        plain = [name for name in distinct if name not in there or name in known]
        if plain:
            context.remember["plain"] = plain
        return [each if each.name in plain else each.sparse() for each in functions]

    def _partial(
        self, rows: DataFrame, gone: DataFrame | None, functions: Sequence[Function], context: OperatorContext
    ) -> DataFrame:
        """One row per key of this checkpoint: what it adds to what was before."""
        from pyspark.sql import functions as F

        columns = [column for each in functions for column in each.partials()]
        if gone is not None or not columns:
            columns.append(F.count("*").alias(ROWS))
        by = list(map(quoted, self.by))
        found = rows.groupBy(*by).agg(*columns)
        if gone is not None:
            taken = gone.groupBy(*by).agg(*columns)
            names = [name for name in taken.columns if name not in self.by]
            found = found.unionByName(taken.select(*by, *((-taken[quoted(name)]).alias(name) for name in names)))
        parts: dict[str, list[Function]] = {}
        for each in functions:
            if each.distinct_part:
                parts.setdefault(each.distinct_part, []).append(each)
        if not parts and gone is None:
            return context.keep(found) if not context.state(self.by).is_empty else found
        for part, members in parts.items():
            found = found.unionByName(self._distinct(part, members, rows, gone, context), allowMissingColumns=True)
        found = self._merged(found, found, functions)
        zeros = {
            name: F.coalesce(quoted(name), F.lit(0))
            for each in functions
            if each.distinct_part
            for name in each.columns
        }
        return context.keep(found.withColumns(zeros) if zeros else found)

    def _merged(self, partials: DataFrame, like: DataFrame, functions: Sequence[Function]) -> DataFrame:
        """One row per key, in the types that partials have: a sum of decimal sums has a wider type."""
        from pyspark.sql import functions as F

        columns = [column for each in functions for column in each.merges()]
        if ROWS in like.columns:
            columns.append(F.sum(ROWS).alias(ROWS))
        merged = partials.groupBy(*map(quoted, self.by)).agg(*columns)
        wanted = {field.name: field.dataType.simpleString() for field in like.schema.fields}
        found = {field.name: field.dataType.simpleString() for field in merged.schema.fields}
        wider = {name: merged[quoted(name)].cast(wanted[name]) for name in found if found[name] != wanted[name]}
        return merged.withColumns(wider) if wider else merged

    def _distinct(
        self, part: str, members: Sequence[Function], rows: DataFrame, gone: DataFrame | None, context: OperatorContext
    ) -> DataFrame:
        """By how much the number of distinct values changes, for each key. The values have a state of their own."""
        from pyspark.sql import functions as F

        values = [f"_value{number}" for number in range(len(members[0].call.arguments))]
        arguments = [F.expr(text).alias(name) for text, name in zip(members[0].call.arguments, values, strict=True)]
        keys = [*self.by, *values]

        def counted(frame: DataFrame, sign: int) -> DataFrame:
            known = frame.select(*map(quoted, self.by), *arguments)
            known = known.where(" AND ".join(f"{name} IS NOT NULL" for name in values))
            return known.groupBy(*map(quoted, keys)).agg((F.count("*") * sign).alias("_n"))

        state = context.state(keys, part)
        new = counted(rows, 1) if gone is None else counted(rows, 1).unionAll(counted(gone, -1))
        new = context.keep(new)
        before = state.of(new)
        both = new.withColumn("_was", F.lit(0).cast("long"))
        if before is not None:
            both = both.unionByName(before.withColumn("_was", F.lit(1).cast("long")))
        after = both.groupBy(*map(quoted, keys)).agg(F.sum("_n").alias("_n"), F.max("_was").alias("_was"))
        after = context.keep(after)
        worth = after if gone is not None else after.where("_was = 0")
        state.put(worth.drop("_was").withColumn(DELETED, F.col("_n") <= 0), deletes=True)
        step: Column = F.sum((F.col("_n") > 0).cast("long") - F.col("_was"))
        found = after.groupBy(*map(quoted, self.by)).agg(step.alias("_step"))
        columns = [F.col("_step").alias(name) for each in members for name in each.columns]
        return found.select(*map(quoted, self.by), *columns)


def _gone(context: OperatorContext) -> DataFrame | None:
    """What the input takes back. None: it takes nothing back."""
    return context.withdrawn[0] if context.withdrawn else None
