"""SQL aggregates that can be kept in a state: their partial values, how these are merged, and the result.

However rows are cut into checkpoints, the result and its type are those of Spark's aggregate over all rows at once. So
functions that depend on an order that rows do not have (`first(x)`), or that need all rows (`median`), are refused.
A function whose partial values are all sums also supports retractions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tidegate.operators.calls import Call, parse_call
from tidegate.operators.kernels.results import Result, Results
from tidegate.records.codec import sha256
from tidegate.records.names import quoted
from tidegate.spark.frame_facts import empty_if, select_sql
from tidegate.state.arrow import workers
from tidegate.state.keyed import Projection, collated_names, schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = [
    "FUNCTIONS",
    "NOT_MERGED",
    "Function",
    "RowPartials",
    "arguments",
    "clashing_columns",
    "meanings",
    "merge_columns",
    "merges_of",
    "parse",
    "parse_functions",
    "partial_columns",
    "partials_of_rows",
    "pre_aggregate",
    "project_in_workers",
    "row_partials",
    "to_partials",
    "why_columns_are_not_merged",
    "why_not_merged",
]


@dataclass(frozen=True)
class AggregateLayout:
    """How a function is stored, in SQL. `{x}`, `{y}` are its arguments, `{p}` is a partial value's column."""

    partials: dict[str, str]
    """Suffix of the partial's column → its SQL over rows."""
    merges: dict[str, str]
    """Suffix → the SQL that merges partials into one."""
    result: str
    arguments: int = 1
    spark: str = ""
    """The SQL that Spark computes over all rows at once, if it differs from the call."""
    sums: bool = False
    """Whether all partial values are sums, so that rows can be retracted."""
    bound: bool = False
    """Whether the last argument is the maximum number of values."""


def _identity_layout(name: str) -> AggregateLayout:
    return AggregateLayout({"": f"{name}({{x}})"}, {"": f"{name}({{p}})"}, "{p}")


def _sums(result: str, **partials: str) -> AggregateLayout:
    texts = {f"_{suffix}": text for suffix, text in partials.items()}
    return AggregateLayout(texts, {suffix: f"sum({{p{suffix}}})" for suffix in texts}, result, sums=True)


def _arg_extreme(name: str, minimum: bool) -> AggregateLayout:
    """min_by or max_by. Ties take the smallest or largest value, so the result is deterministic."""
    extreme = "min" if minimum else "max"
    pair = "CASE WHEN {y} IS NOT NULL THEN named_struct('y', {y}, 'x', {x}) END"
    spark = f"{extreme}_by({{x}}, {{y}})"
    return AggregateLayout({"": f"{extreme}({pair})"}, {"": f"{extreme}({{p}})"}, "{p}.x", arguments=2, spark=spark)


NARROW: Final = 22
"""The number of digits of a mean up to which `/` is exact enough: the sum has at most 28, which leaves ten to round."""
_NO_MOMENTS = "named_struct('n', 0L, 'mean', 0D, 'm2', 0D)"
_MERGED_MOMENTS = (
    "aggregate(sort_array(collect_list({p})), " + _NO_MOMENTS + ", (a, b) -> IF(b.n = 0, a, named_struct("
    "'n', a.n + b.n, 'mean', a.mean + (b.mean - a.mean) * b.n / (a.n + b.n), "
    "'m2', a.m2 + b.m2 + (b.mean - a.mean) * (b.mean - a.mean) * a.n * b.n / (a.n + b.n))))"
)


def _moments(result: str) -> AggregateLayout:
    """Count, mean and sum of squared deviations, which merge without the cancellation of sums of squares."""
    parts = (
        "'n', count({x}), 'mean', coalesce(avg(CAST({x} AS DOUBLE)), 0D), 'm2', coalesce(var_pop({x}) * count({x}), 0D)"
    )
    return AggregateLayout({"": f"named_struct({parts})"}, {"": _MERGED_MOMENTS}, result)


def _smallest_values(distinct: bool) -> AggregateLayout:
    """The smallest values up to a maximum number, sorted, so that the order of arrival does not matter."""
    name = "collect_set" if distinct else "collect_list"
    if distinct:
        merged = "array_distinct(flatten(collect_list({p})))"
    else:
        merged = "flatten(collect_list({p}))"
    return AggregateLayout(
        {"": f"slice(sort_array({name}({{x}})), 1, {{y}})"},
        {"": f"slice(sort_array({merged}), 1, {{y}})"},
        "{p}",
        arguments=2,
        spark=f"slice(sort_array({name}({{x}})), 1, {{y}})",
        bound=True,
    )


# A count of rows is at least 0: null means that the function was added later, and the key has not been counted yet. A
# retracted row has null there, too.
_COUNT: Final = AggregateLayout({"": "count({x})"}, {"": "sum({p})"}, "{p}", sums=True)
_DISTINCT: Final = AggregateLayout({}, {"": "sum({p})"}, "{p}", sums=True)
_SPARSE: Final = AggregateLayout({}, {"": "sum({p})"}, "coalesce({p}, 0L)", sums=True)
_MEAN: Final = _sums("{p_sum} / nullif({p_count}, 0)", sum="sum({x})", count="count({x})")
# Spark's `/` has too few digits after the point for a wide sum, so it divides the integer part and the rest separately.
_REST = "(abs({p_sum}) % CAST(nullif({p_count}, 0) AS DECIMAL(20, 0)))"
_FRACTION = f"CAST({_REST} / CAST({{p_count}} AS DECIMAL(20, 0)) AS DECIMAL({{digits}} + 1, {{digits}}))"
_WHOLE = f"CAST((abs({{p_sum}}) - {_REST}) / CAST({{p_count}} AS DECIMAL(20, 0)) AS DECIMAL(38, 0))"
_WIDE = (
    f"concat(IF({{p_sum}} < 0, '-', ''), {_WHOLE} + CAST(floor({_FRACTION}) AS DECIMAL(1, 0)), '.', "
    f"substring(CAST({_FRACTION} AS STRING), 3))"
)
_ALL, _ANY = "IF({p_n} = 0, NULL, {p_true} = {p_n})", "IF({p_n} = 0, NULL, {p_true} > 0)"
_VAR_SAMP, _VAR_POP = "IF({p}.n > 1, {p}.m2 / ({p}.n - 1), NULL)", "IF({p}.n > 0, {p}.m2 / {p}.n, NULL)"
_SKETCH = AggregateLayout(
    {"": "hll_sketch_agg(CASE WHEN {x} IS NOT NULL THEN xxhash64({x}) END)"},
    {"": "hll_union_agg({p})"},
    "hll_sketch_estimate({p})",
)

FUNCTIONS: Final = {
    "sum": _identity_layout("sum"),
    "count": _COUNT,
    "count_if": AggregateLayout({"": "count_if({x})"}, {"": "sum({p})"}, "{p}", sums=True),
    "avg": _MEAN,
    "mean": _MEAN,
    "min": _identity_layout("min"),
    "max": _identity_layout("max"),
    "min_by": _arg_extreme("min_by", minimum=True),
    "max_by": _arg_extreme("max_by", minimum=False),
    "first": _arg_extreme("first", minimum=True),
    "last": _arg_extreme("last", minimum=False),
    "bool_and": _identity_layout("bool_and"),
    "every": _identity_layout("every"),
    "bool_or": _identity_layout("bool_or"),
    "some": _identity_layout("some"),
    "any": _identity_layout("any"),
    "bit_and": _identity_layout("bit_and"),
    "bit_or": _identity_layout("bit_or"),
    "bit_xor": _identity_layout("bit_xor"),
    **dict.fromkeys(("stddev", "std", "stddev_samp"), _moments(f"sqrt({_VAR_SAMP})")),
    **dict.fromkeys(("variance", "var_samp"), _moments(_VAR_SAMP)),
    "stddev_pop": _moments(f"sqrt({_VAR_POP})"),
    "var_pop": _moments(_VAR_POP),
    "approx_count_distinct": _SKETCH,
    "collect_list": _smallest_values(distinct=False),
    "collect_set": _smallest_values(distinct=True),
}
"""The functions that can be kept. `count` also allows `distinct`, and any number of arguments."""

_RETRACTABLE_SUM: Final = _sums("IF({p_n} = 0, NULL, {p_sum})", sum="sum({x})", n="count({x})")
_RETRACTABLE: Final = {
    "sum": _RETRACTABLE_SUM,
    **dict.fromkeys(("bool_and", "every"), _sums(_ALL, n="count({x})", true="count_if({x})")),
    **dict.fromkeys(("bool_or", "some", "any"), _sums(_ANY, n="count({x})", true="count_if({x})")),
}
"""The layouts over inputs with retractions, where they differ."""

_BY_WORKERS: Final = {
    "{p}": "same",
    _SPARSE.result: "or zero",
    _RETRACTABLE_SUM.result: "unless none",
    _MEAN.result: "mean",
}
"""The results that workers can compute, each with its key in `kernels/results.py`."""


@dataclass(frozen=True)
class Function:
    """One declared aggregate."""

    name: str
    call: Call
    shape: AggregateLayout

    @property
    def argument(self) -> str:
        """The SQL of its argument."""
        return ", ".join(self.call.arguments)

    @property
    def distinct_part(self) -> str | None:
        """The keyed state with the values of its argument, if it is an exact `count(distinct …)`. Functions with
        different conditions share it."""
        values = ", ".join(self.distinct_arguments)
        if not self.call.distinct:
            return None
        return f"distinct-{sha256(values.encode())[:12]}"

    @property
    def distinct_arguments(self) -> tuple[str, ...]:
        """The arguments, without the condition."""
        return self._written.arguments

    @property
    def distinct_where(self) -> str | None:
        """The condition under which values count."""
        return self._written.where

    @property
    def distinct_column(self) -> str:
        """The column of that state with the number of rows that have a value."""
        if self.distinct_where is None:
            return "_n"
        return f"_n_{sha256(self.distinct_where.encode())[:12]}"

    @property
    def _written(self) -> Call:
        written = parse_call(self.call.text)
        assert isinstance(written, Call)
        return written

    @property
    def columns(self) -> list[str]:
        """The partials' columns."""
        return [f"{self.name}{suffix}" for suffix in self.shape.merges]

    @property
    def spark(self) -> str:
        """The SQL for Spark over all rows at once. Its type is that of the result."""
        if not self.shape.spark:
            distinct = "DISTINCT " if self.call.distinct else ""
            return f"{self.call.name}({distinct}{self.argument})"
        return self._filled(self.shape.spark)

    def in_windows(self) -> Function:
        """Return the function for keys with few values each: an exact `count(distinct …)` stores them with the key.

        The values are sorted, so that every attempt stages the same rows.
        """
        if not self.call.distinct:
            return self
        no_nulls = " AND ".join(f"({argument}) IS NOT NULL" for argument in self.call.arguments).replace("{", "{{")
        values = f"sort_array(collect_set(CASE WHEN {no_nulls.replace('}', '}}')} THEN struct({{x}}) END))"
        merged = "sort_array(array_distinct(flatten(collect_list({p}))))"
        result = "IF({p} IS NULL, NULL, CAST(cardinality({p}) AS BIGINT))"
        return replace(self, shape=AggregateLayout({"": values}, {"": merged}, result))

    def sparse(self) -> Function:
        """Return an exact `count(distinct …)` as earlier versions stored it, with null for 0."""
        if self.call.distinct:
            return replace(self, shape=_SPARSE)
        return self

    def over_updates(self) -> Function | str:
        """Return the function over an input with retractions, or why it cannot support them."""
        shape = _RETRACTABLE.get(self.call.name, self.shape)
        if shape.sums:
            return replace(self, shape=shape)
        retractable = sorted(name for name, shape in (FUNCTIONS | _RETRACTABLE).items() if shape.sums)
        return (
            f"{self.name}={self.call.text!r}: {self.call.name} cannot retract a row, and the input replaces rows "
            f"that it has emitted; {', '.join(retractable)} can"
        )

    def typed(self, spark_type: str) -> Function:
        """Return the function for arguments of a type. spark_type: the type of Spark's result. It is double for a mean,
        unless it is decimal."""
        if self.shape is not _MEAN:
            return self
        decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", spark_type)
        if decimal is None:
            partials = self.shape.partials | {"_sum": "sum(CAST({x} AS DOUBLE))"}
            return replace(self, shape=replace(self.shape, partials=partials))
        precision, scale = int(decimal[1]), int(decimal[2])
        if precision <= NARROW:
            return self
        wide = _WIDE.replace("{digits} + 1", str(scale + 1)).replace("{digits}", str(scale))
        return replace(self, shape=replace(self.shape, result=wide))

    def partials(self) -> list[Column]:
        """Return the columns that aggregate rows to partial values."""
        return [self._column(text, suffix) for suffix, text in self.shape.partials.items()]

    @property
    def partials_sql(self) -> dict[str, str]:
        """The same in SQL, by column."""
        return {f"{self.name}{suffix}": self._filled(text, suffix) for suffix, text in self.shape.partials.items()}

    def merges(self) -> list[Column]:
        """Return the columns that merge partial values of one key."""
        return [self._column(text, suffix) for suffix, text in self.shape.merges.items()]

    def result(self, spark_type: str) -> str:
        """Return the SQL of the result, cast to this type, with its name."""
        return f"{self._filled(f'CAST({self.shape.result} AS {spark_type})')} AS {quoted(self.name)}"

    def result_in_workers(self, spark_type: str, stored: Mapping[str, str]) -> Result | None:
        """Return the result as workers compute it, or None if they cannot. stored: the types of the partials'
        columns."""
        how = _BY_WORKERS.get(self.shape.result)
        if how is None or stored.get(self.columns[0]) != spark_type:
            return None
        if how == "mean" and spark_type != "double":
            return None
        return Result(how, self.columns)

    def _column(self, text: str, suffix: str) -> Column:
        from pyspark.sql import functions as F

        return F.expr(self._filled(text, suffix)).alias(f"{self.name}{suffix}")

    def _filled(self, text: str, suffix: str = "") -> str:
        names = {f"p{suffix}": quoted(f"{self.name}{suffix}") for suffix in self.shape.merges}
        names["p"] = quoted(f"{self.name}{suffix}")
        if self.call.name == "count" or self.shape.arguments == 1:
            return text.format(x=self.argument, **names)
        x, y = self.call.arguments
        return text.format(x=x, y=y, **names)


def parse(name: str, text: object) -> Function | str:
    """Parse a declared aggregate, or return what is wrong with it."""
    if not isinstance(text, str):
        return f'{name}={text!r} is no aggregate: write a call as text, such as {name}="sum(amount)"'
    call = parse_call(text)
    if isinstance(call, str):
        return f"{name}={text!r} {call}"
    shape = FUNCTIONS.get(call.name)
    if shape is None:
        return f"{name}={text!r}: {call.name} cannot be kept; these can: {', '.join(FUNCTIONS)}"
    problem = _reason_not_stored(call, shape)
    if problem is not None:
        return f"{name}={text!r}: {problem}"
    if call.distinct:
        shape = _DISTINCT
    if call.where is not None:
        call = call.filtered(keep_last=shape.bound)
    return Function(name, call, shape)


def parse_functions(functions: Mapping[str, str]) -> list[Function]:
    """Return the declared aggregates, without those that cannot be parsed."""
    parsed = [parse(name, text) for name, text in functions.items()]
    return [function for function in parsed if isinstance(function, Function)]


def clashing_columns(functions: Sequence[Function], used_as: Mapping[str, str]) -> list[str]:
    """Return a problem for each column of a partial value that has the name of another column.

    used_as: the names in use, in lower case, each with its use.
    """
    used, problems = dict(used_as), []
    for function in functions:
        for column in sorted({function.name, *function.columns}):
            use = used.get(column.casefold())
            if use is not None:
                problems.append(f"{function.name!r} needs a column {column!r}, which is {use}: name it differently")
            used[column.casefold()] = f"of {function.name!r}"
    return problems


def meanings(functions: Mapping[str, str], *, in_windows: bool = False) -> dict[str, object]:
    """Return the identity of each result, independent of its notation, to compare with an earlier one."""
    return {function.name: _identity(function, in_windows) for function in parse_functions(functions)}


def _identity(function: Function, in_windows: bool) -> str:
    call = function.call
    if not call.distinct:
        return f"{call.name}({', '.join(call.arguments)})"
    if function.distinct_where is None or in_windows:
        return f"{call.name}(distinct {', '.join(call.arguments)})"
    # Its values share a state with those of other conditions. An earlier version had a state for each condition.
    return f"count(distinct {', '.join(function.distinct_arguments)}) filter (where {function.distinct_where[1:-1]})"


def arguments(functions: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL argument of each result."""
    return {function.name: function.argument for function in parse_functions(functions)}


def _reason_not_stored(call: Call, shape: AggregateLayout) -> str | None:
    """Return why this call cannot be kept although its function can, or None."""
    count = len(call.arguments)
    if call.distinct and call.name in ("min", "max"):
        return f"{call.name} of distinct values is {call.name} of all: leave out distinct"
    if call.distinct and call.name != "count":
        return f"{call.name} of distinct values cannot be kept; count(distinct …) can"
    if call.name == "count":
        if not count or (call.distinct and call.arguments == ("*",)):
            return "count has no argument: write count(*) or name a column"
        return None
    if call.name in ("first", "last") and (count != 2 or call.arguments[1].lower() in ("true", "false")):
        return f"rows have no order of their own: name the column that orders them, as in {call.name}(x, at)"
    if shape.bound and (count != 2 or not re.fullmatch(r"[1-9]\d{0,5}", call.arguments[1])):
        return f"say how many values are kept at most, as in {call.name}({call.arguments[0] if count else 'x'}, 100)"
    if count != shape.arguments or "*" in call.arguments:
        return f"{call.name} takes {shape.arguments} argument{'s' if shape.arguments > 1 else ''}, here are {count}"
    return None


_PARTIAL = re.compile(r"(sum|min|max|count|count_if)\((.*)\)", re.DOTALL)
_MERGE = re.compile(r"(sum|min|max)\(\{p\w*\}\)")


@dataclass(frozen=True)
class RowPartials:
    """Rows with their keys and partial values, and the operation that merges each partial value."""

    rows: DataFrame
    ops: dict[str, str]
    fixed: dict[str, int] = field(default_factory=dict)
    """The columns with the same value in all rows."""


def partial_columns(functions: Iterable[Function]) -> list[Column]:
    """Return the columns that aggregate rows to the partial values of all functions."""
    return list(itertools.chain.from_iterable(function.partials() for function in functions))


def merge_columns(functions: Iterable[Function]) -> list[Column]:
    """Return the columns that merge the partial values of all functions, of one key."""
    return list(itertools.chain.from_iterable(function.merges() for function in functions))


def merges_of(functions: Sequence[Function]) -> dict[str, str] | None:
    """Return how kernels merge each column of partial values: "sum", "min" or "max". None: they cannot merge all."""
    ops: dict[str, str] = {}
    for function in functions:
        for suffix, text in function.shape.merges.items():
            merge = _MERGE.fullmatch(text)
            if function.distinct_part or merge is None:
                return None
            ops[f"{function.name}{suffix}"] = merge[1]
    return ops


def partials_of_rows(function: Function) -> dict[str, str] | None:
    """Return the SQL of a function's partial values for single rows, by column, or None if it is unknown."""
    texts: dict[str, str] = {}
    for suffix, partial in function.shape.partials.items():
        text = _partial_of_row(partial, function.argument)
        if text is None:
            return None
        texts[f"{function.name}{suffix}"] = text
    return texts


def row_partials(
    functions: Sequence[Function], types: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the SQL of single rows' partial values, and the operation that merges each, or None if a function has
    another layout.

    types: those of the partial values, by their SQL.
    """
    ops = merges_of(functions)
    texts: dict[str, str] = {}
    sql: dict[str, str] = {}
    for function in functions:
        row_texts = partials_of_rows(function)
        if row_texts is None:
            return None
        texts |= row_texts
        sql |= function.partials_sql
    if not ops or ops.keys() != texts.keys():
        return None
    return {name: f"CAST({text} AS {types[sql[name]]})" for name, text in texts.items()}, ops


NOT_MERGED = "it has a function that is more than sums, counts, least and greatest values"
"""The reason why workers cannot merge partial values if `to_partials` returns None."""


def to_partials(
    functions: Sequence[Function],
    rows: DataFrame,
    by: Sequence[str],
    types: Mapping[str, str],
    before: Sequence[str] = (),
) -> RowPartials | None:
    """Return the rows as partial values, or None if a function has another layout.

    types: those of the partial values, by their SQL. before: the SQL of keys that are no columns yet.
    """
    partials = row_partials(functions, types)
    if partials is None:
        return None
    texts, ops = partials
    columns = (f"{text} AS {quoted(name)}" for name, text in texts.items())
    fixed = {}
    for function in functions:
        if function.call.name == "count" and function.argument == "*":
            fixed[function.name] = 1
    return RowPartials(empty_if(rows, select_sql(rows, [*before, *map(quoted, by), *columns])), ops, fixed)


def why_not_merged(partials: RowPartials) -> str | None:
    """Return why workers cannot merge such partial values as Spark does, or None if they can."""
    fields = [field for field in partials.rows.schema.fields if field.name in partials.ops]
    return why_columns_are_not_merged(fields, partials.ops)


def why_columns_are_not_merged(fields: Sequence[StructField], ops: Mapping[str, str]) -> str | None:
    """Return why workers cannot merge these columns of partial values as Spark does, or None if they can."""
    if collated := collated_names(fields):
        return f"column {collated[0]} has a collation"
    return workers.why_not_merged(schema_of(fields), (), ops)


def pre_aggregate(partials: RowPartials, keys: Sequence[str], weight: str | None = None) -> RowPartials:
    """Let Spark merge the partial values of each key before it shuffles them, so that workers get fewer rows.

    weight: a column for the number of rows that were merged into one.
    """
    from pyspark.sql import functions as F

    rows, ops = partials.rows, partials.ops
    types = {field.name: field.dataType for field in rows.schema.fields}
    columns = []
    for name, op in ops.items():
        columns.append(F.expr(f"{op}({quoted(name)})").cast(types[name]).alias(name))
    if weight is not None:
        columns.append(F.count("*").alias(weight))
    return RowPartials(empty_if(rows, rows.groupBy(*map(quoted, keys)).agg(*columns)), ops)


def project_in_workers(
    functions: Sequence[Function], results: Mapping[str, str], keys: Sequence[str], fields: Sequence[StructField]
) -> Projection | None:
    """Return how workers compute the results from stored rows with these columns, or None if only Spark can.

    results: the types of the results. keys: stored columns that are passed through.
    """
    from pyspark.sql.types import StructField

    stored = {field.name: field for field in fields}
    types = {name: field.dataType.simpleString() for name, field in stored.items()}
    columns = {}
    result_fields = [stored[name] for name in keys]
    for function in functions:
        result = function.result_in_workers(results[function.name], types)
        if result is None:
            return None
        columns[function.name] = result
        result_fields.append(StructField(function.name, stored[result.partial_columns[0]].dataType))
    return Projection(Results(keys, columns), result_fields)


def _partial_of_row(partial: str, argument: str) -> str | None:
    """Return the SQL of a partial value of a single row, or None if it is unknown."""
    match = _PARTIAL.fullmatch(partial)
    if match is None or not _is_single_expression(argument):
        return None
    inner = match[2].replace("{x}", f"({argument})") if argument != "*" else "1"
    if "{" in inner or "(" in match[2].replace("CAST({x} AS DOUBLE)", ""):
        return None
    if match[1] == "count":
        return f"CASE WHEN {inner} IS NOT NULL THEN 1 ELSE 0 END"
    if match[1] == "count_if":
        return f"CASE WHEN {inner} THEN 1 ELSE 0 END"
    return inner


def _is_single_expression(argument: str) -> bool:
    """Return whether it is one expression, without DISTINCT before it or FILTER after it."""
    if not argument.strip() or re.match(r"(distinct|all)\b", argument, re.IGNORECASE):
        return False
    depth, quote = 0, ""
    for letter in argument:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        if depth < 0 or (letter == "," and not depth and not quote):
            return False
    return depth == 0 and not quote
