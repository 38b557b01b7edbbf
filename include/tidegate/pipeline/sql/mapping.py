"""Defines which parts of SQL map to operators. All other parts are refused: nothing is ignored silently."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.operators.functions import FUNCTIONS
from tidegate.pipeline.sql.reading import from_of

if TYPE_CHECKING:
    from sqlglot import exp

    from tidegate.pipeline.sql.reading import Query

__all__ = [
    "WINDOWS_ARE_TABLES",
    "Ranked",
    "conjuncts",
    "has_aggregate",
    "is_aggregate",
    "is_rank",
    "ranked",
    "refuse_functions",
    "refuse_uncompiled_parts",
]

_COMPILED_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Select": ("with_", "with", "expressions", "distinct", "from_", "from", "joins", "where", "group", "having"),
    "Union": ("with_", "with", "this", "expression", "distinct", "by_name"),
    "Subquery": ("this", "alias"),
    "Table": ("this", "db", "alias"),
    "TableAlias": ("this",),
    "Distinct": (),
    "Join": ("this", "side", "kind", "on", "using"),
    "Group": ("expressions",),
    "Window": ("this", "partition_by", "order", "over"),
}
"""The parts of each kind of node that are compiled, under sqlglot's names."""
_HELP: Final = {
    **dict.fromkeys(
        ("limit", "offset"), "a stream has no end that rows could be counted from: take row_number() per key"
    ),
    **dict.fromkeys(("order", "sort", "cluster", "distribute"), "a table has no order: order when you read it"),
    **dict.fromkeys(
        ("cube", "rollup", "grouping_sets", "totals", "all"),
        "name the keys; for other groups, write a SELECT each, and combine them: UNION ALL",
    ),
    "on": "take row_number() per key",
    "spec": "a rank counts all rows before: leave it out",
    "qualify": "write SELECT * FROM (SELECT *, row_number() OVER (…) AS n …) WHERE n <= 3",
    "sample": "a retry would draw other rows",
    "into": "give the stream a sink",
    "hint": "leave it out",
    "method": "say JOIN … ON",
    "columns": "name the columns in the SELECT: AS",
    "version": "of a table's version, declare a source that starts there; of what another stream holds at each row's "
    "time, use orders.join(rates, on=…, as_of=True) in place of FOR SYSTEM_TIME AS OF",
    "catalog": "name a stream of the pipeline",
}
_CHANGING: Final = (
    *(
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "monotonically_increasing_id",
        "spark_partition_id",
    ),
    *("now", "current_timestamp", "current_date", "curdate", "current_time", "localtimestamp"),
    *("current_user", "session_user", "user", "version", "current_timezone"),
    *("current_database", "current_schema", "current_catalog", "input_file_name"),
    *("input_file_block_start", "input_file_block_length", "reflect", "java_method", "try_reflect", "aes_encrypt"),
)
"""Functions with another result in a retry or in another session."""
_DAYS: Final = ("now", "today", "tomorrow", "yesterday")
"""Texts that Spark casts to a time that depends on the clock."""
_AGGREGATES: Final = frozenset(
    (
        *FUNCTIONS,
        *("any_value", "approx_percentile", "approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine"),
        *("array_agg", "bitmap_and_agg", "bitmap_construct_agg", "bitmap_or_agg"),
        *("collect_list", "corr", "count_distinct", "count_min_sketch", "covar_pop", "covar_samp", "first_value"),
        *("grouping", "grouping_id", "histogram_numeric", "hll_sketch_agg", "hll_union_agg"),
        *("kll_merge_agg_bigint", "kll_merge_agg_double", "kll_merge_agg_float", "kll_sketch_agg_bigint"),
        *("kll_sketch_agg_double", "kll_sketch_agg_float", "kurtosis", "last_value", "listagg", "max_by"),
        *("measure", "median", "min_by", "mode", "percentile", "percentile_approx", "percentile_cont"),
        *("percentile_disc", "product", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2"),
        *("regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "schema_of_json_agg", "skewness", "string_agg"),
        *("theta_intersection_agg", "theta_sketch_agg", "theta_union_agg", "try_avg", "try_sum"),
        *("tuple_intersection_agg_double", "tuple_intersection_agg_integer", "tuple_sketch_agg_double"),
        *("tuple_sketch_agg_integer", "tuple_union_agg_double", "tuple_union_agg_integer", "vector_avg"),
    )
)
"""Spark's aggregates. A stage would compute them over each checkpoint's rows."""


_OLD_WINDOWS: Final = ("tumble", "hop", "session", "cumulate")
"""Flink's windows in GROUP BY."""
WINDOWS_ARE_TABLES: Final = (
    "write FROM TABLE(TUMBLE(TABLE …, DESCRIPTOR(at), INTERVAL '5' MINUTE)), or HOP, or SESSION, and GROUP BY "
    "window_start, window_end"
)


def refuse_uncompiled_parts(query: Query, node: exp.Expression) -> None:
    """Raise an error if a node has a part that is not compiled."""
    from sqlglot import exp

    compiled_parts = _COMPILED_PARTS[type(node).__name__]
    for part, value in node.args.items():
        if value and part not in compiled_parts:
            first = value[0] if isinstance(value, list) else value
            has_place = isinstance(first, exp.Expression) and any("start" in inner.meta for inner in first.walk())
            if part == "version":
                name = "AS OF"
            else:
                name = part.strip("_").replace("_", " ").upper()
            help = _HELP.get(part, "do it in a stage")
            raise query.refuse(first if has_place else node, f"{name} has no operator", help)
    for part in ("alias", "distinct"):
        inner = node.args.get(part)
        if isinstance(inner, exp.TableAlias | exp.Distinct):
            refuse_uncompiled_parts(query, inner)
    if isinstance(node, exp.TableAlias) and not isinstance(node.this, exp.Identifier):
        raise query.refuse(node, "this is no name", "write AS, and a name")


def refuse_functions(query: Query, tree: exp.Select) -> None:
    """Raise an error if a SELECT has an expression that no stage or operator computes in the same way."""
    from sqlglot import exp

    for each in _nodes_outside_from(tree):
        if isinstance(each, exp.Window):
            _refuse_window(query, tree, each)
        if isinstance(each, exp.Select):
            help = (
                "JOIN it: IN and EXISTS are a LEFT SEMI JOIN, NOT EXISTS a LEFT ANTI JOIN; of HAVING, around the groups"
            )
            raise query.refuse(each, "a subquery in an expression", help)
        if isinstance(each, exp.Placeholder | exp.Parameter):
            raise query.refuse(each, "a parameter", "put its value into the text")
        if _function(each) in ("window", "session_window", "window_time"):
            raise query.refuse(each, "this window has no operator", WINDOWS_ARE_TABLES)
        if _is_old_window(each):
            raise query.refuse(each, "a window as a function, which Spark does not have", WINDOWS_ARE_TABLES)
        if _function(each) == "proctime":
            help = 'take a column of the rows; a window by the clock: orders.window(…, time="processing")'
            raise query.refuse(each, "the time of processing, which a retry would compute anew", help)
        if isinstance(each, exp.Where) and has_aggregate(each):
            raise query.refuse(each, "an aggregate in WHERE", "write HAVING, or a SELECT … WHERE around this one")
        if isinstance(each, exp.Concat):
            raise query.refuse(each, "two texts beside each other", r"write one text: a quote within it is \'")
        literal = each.this if isinstance(each, exp.Cast) else None
        is_day = isinstance(literal, exp.Literal) and literal.name.strip().lower() in _DAYS
        if is_day or _function(each) in _CHANGING or _reads_clock(each):
            raise query.refuse(each, "a retry would compute something else", "take a column of the rows")


def _is_old_window(node: Any) -> bool:
    """Return whether it is a window in GROUP BY, in Flink's old syntax, or a bound of one."""
    from sqlglot import exp

    kind, _, part = _function(node).partition("_")
    if kind not in _OLD_WINDOWS:
        return False
    has_length = any(isinstance(each, exp.Interval) for each in node.iter_expressions())
    return part in ("", "start", "end", "rowtime", "proctime") and has_length


def is_rank(node: Any) -> bool:
    """Return whether it is a function that numbers rows."""
    from sqlglot import exp

    return isinstance(node, exp.RowNumber | exp.Rank | exp.DenseRank)


def _refuse_window(query: Query, tree: exp.Select, window: exp.Window) -> None:
    from sqlglot import exp

    if not is_rank(window.this):
        what = f"{_function(window.this).upper() or 'this'} OVER rows has no operator"
        if _function(window.this) == "lag":
            help = 'use the stream\'s own over(…), as in orders.over(by="country", before="lag(amount)")'
        elif _function(window.this) in ("sum", "count", "count_if", "avg", "min", "max"):
            help = "use the stream's own over(…), in order of event time, or GROUP BY"
        else:
            help = "compute it in `process`"
        raise query.refuse(window, what, help)
    outer = tree.find_ancestor(exp.Select)
    ranking = ranked(outer) if outer is not None else None
    if ranking is None or ranking.inner is not tree or ranking.numbered.this is not window:
        if isinstance(window.parent, exp.Alias):
            number = window.parent.alias.lower()
        else:
            number = ""
        where = outer.args.get("where") if outer is not None and number else None
        is_asked = where is not None and any(each.name.lower() == number for each in where.find_all(exp.Column))
        if is_asked and outer is not None and not outer.args.get("joins"):
            help = f"bound it as well, as in WHERE {number} <= 3 AND …, which takes those among the first rows"
            raise query.refuse(where, "a bound of a rank that is not its first rows", help)
        raise query.refuse(window, "a rank without a bound", "put SELECT … WHERE n <= 3 around it")
    refuse_uncompiled_parts(query, window)


def _reads_clock(node: exp.Expression) -> bool:
    """Return whether it is unix_timestamp() without an argument, or a function of the clock without parentheses."""
    from sqlglot import exp

    if isinstance(node, exp.Column):
        is_bare = len(node.parts) == 1 and not node.this.args.get("quoted")
        return is_bare and node.name.lower() in ("current_time", "localtimestamp")
    return _function(node) == "unix_timestamp" and not node.expressions


def is_aggregate(node: Any) -> bool:
    """Return whether it is an aggregate."""
    return _function(node) in _AGGREGATES


def conjuncts(condition: Any) -> list[Any]:
    """Return the conditions that AND connects."""
    from sqlglot import exp

    condition = condition.unnest()
    if not isinstance(condition, exp.And):
        return [condition]
    conditions = []
    for part in condition.flatten():
        conditions += conjuncts(part)
    return conditions


def has_aggregate(node: exp.Expression) -> bool:
    """Return whether an expression contains an aggregate."""
    from sqlglot import exp

    return any(is_aggregate(each) and each.find_ancestor(exp.Window) is None for each in node.walk())


def _function(node: Any) -> str:
    """Return a function's name, or "" for other nodes."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    if isinstance(node, exp.Any):
        return "any"
    if isinstance(node, exp.Func):
        return node.sql_name().lower()
    return ""


def _nodes_outside_from(tree: exp.Select) -> Iterator[Any]:
    """Yield the nodes of a SELECT, except for its FROM and WITH."""
    from sqlglot import exp

    for part, value in tree.args.items():
        if part in ("from_", "from", "with_", "with"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, exp.Join):
                node = node.args.get("on")
            if isinstance(node, exp.Expression):
                yield from node.walk()


@dataclass(frozen=True)
class Ranked:
    """A SELECT of the first rows of each key: an inner SELECT with a rank, and an outer one with its bound."""

    inner: exp.Select
    numbered: exp.Expression
    """The rank, with its alias."""
    n: int
    other_conditions: Any
    """The other conditions of the outer SELECT."""


def _is_named_rank(expression: exp.Expression) -> bool:
    from sqlglot import exp

    window = expression.this if isinstance(expression, exp.Alias) else None
    return isinstance(window, exp.Window) and is_rank(window.this)


def ranked(tree: exp.Select) -> Ranked | None:
    """Return the parts of a SELECT of the first rows of each key, or None for other SELECTs."""
    from sqlglot import exp

    from_clause, where = from_of(tree), tree.args.get("where")
    if from_clause is None or not isinstance(from_clause.this, exp.Subquery):
        return None
    inner = from_clause.this.this
    if not isinstance(inner, exp.Select) or where is None or tree.args.get("joins"):
        return None
    ranks = [expression for expression in inner.expressions if _is_named_rank(expression)]
    if len(ranks) != 1:
        return None
    conditions, rank = conjuncts(where.this), ranks[0].alias.lower()
    for index, condition in enumerate(conditions):
        column, bound = condition.this, condition.args.get("expression")
        if not isinstance(column, exp.Column):
            continue
        if [part.name.lower() for part in column.parts] not in ([rank], [from_clause.this.alias.lower(), rank]):
            continue
        if not isinstance(bound, exp.Literal) or bound.is_string or not re.fullmatch("[0-9]+", bound.name):
            continue
        n = int(bound.name) - isinstance(condition, exp.LT)
        if isinstance(condition, exp.LTE | exp.LT) or (isinstance(condition, exp.EQ) and n == 1):
            others = conditions[:index] + conditions[index + 1 :]
            return Ranked(inner, ranks[0], n, exp.and_(*others) if others else None)
    return None
