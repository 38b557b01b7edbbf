"""Compiles the tree of a SELECT into stages and operators.

    FROM a, WHERE, HAVING, expressions    a stage
    DISTINCT                              deduplicate; for a stream with retractions, aggregate
    GROUP BY, or aggregates alone         aggregate; without GROUP BY with by=[]
    GROUP BY over TUMBLE, HOP, SESSION    window
    JOIN                                  join; with `within` for times BETWEEN, or < and >; several one after the other
    UNION ALL                             union, by the names of the columns
    ROW_NUMBER(), RANK() … <= n           top_n; or latest, for the first row by descending columns

Everything else is refused with its line and column, even if an operator would do nearly the same.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import Invalid
from tidegate.operators.join.sides import LEFT_ONLY
from tidegate.pipeline.graph.nodes import OperatorNode
from tidegate.pipeline.graph.updates import updating_streams
from tidegate.pipeline.selection import with_expressions
from tidegate.pipeline.sql.columns import Columns, JoinedColumns, StreamColumns, is_counted, joined_name
from tidegate.pipeline.sql.grouping import Grouping, Groups, free_name
from tidegate.pipeline.sql.mapping import (
    WINDOWS_ARE_TABLES,
    Ranked,
    conjuncts,
    has_aggregate,
    is_aggregate,
    is_rank,
    ranked,
    refuse_functions,
    refuse_uncompiled_parts,
)
from tidegate.pipeline.sql.reading import Query, from_of, name_of, parse_query, refuse_rewritten, seconds_of
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from sqlglot import exp

    from tidegate.pipeline.declare import Pipeline, Stream

__all__ = ["compile_sql"]

_HOWS: Final = {
    "": "inner",
    "INNER": "inner",
    "LEFT": "left",
    "LEFT OUTER": "left",
    "RIGHT": "right",
    "RIGHT OUTER": "right",
    "FULL": "full",
    "FULL OUTER": "full",
    "SEMI": "semi",
    "LEFT SEMI": "semi",
    "ANTI": "anti",
    "LEFT ANTI": "anti",
}
"""The `how` of each kind of JOIN."""
_WINDOW_COLUMNS: Final = ("window_start", "window_end")


def compile_sql(
    pipeline: Pipeline, text: str, name: str, state_ttl: str | float | None = None, ttl_time: str = "processing"
) -> Stream:
    """Declare the stages and operators of a SELECT, and return its stream, which is called `name`."""
    if state_ttl is None:
        expiry: dict[str, Any] = {}
    else:
        expiry = {"state_ttl": state_ttl, "ttl_time": ttl_time}
    compiler = _Compiler(pipeline, parse_query(text), name, expiry)
    stream = compiler.select()
    refuse_rewritten(compiler.query)
    if expiry and not compiler.expires:
        raise Invalid(
            f"SQL {name!r} has state_ttl={state_ttl!r}, and nothing in it is kept permanently",
            expected="a GROUP BY, DISTINCT, rank or JOIN without bounds; a window's state ends with the window",
            help="leave out state_ttl",
            reason="BAD_PIPELINE",
        )
    return stream


@dataclass
class _Compiler:
    """Compiles one statement."""

    pipeline: Pipeline
    query: Query
    name: str
    expiry: Mapping[str, Any] = field(default_factory=dict)
    """The options `state_ttl` and `ttl_time` for operators that would keep rows forever."""
    expires: bool = False
    """Whether an operator uses `expiry`."""
    named_streams: dict[str, Stream] = field(default_factory=dict)
    """The streams named by WITH."""
    kinds: dict[str, int] = field(default_factory=dict)
    """How many generated names there are of each kind."""

    def select(self) -> Stream:
        """Compile the whole statement, and return its stream, which has the statement's name."""
        stream = self._compile(self.query.tree)
        if stream.name == self.name:
            return stream
        return self.pipeline.stage(stream, name=self.name)(_unchanged)

    # -- one SELECT ----------------------------------------------------------------------------------------

    def _compile(self, tree: exp.Expression) -> Stream:
        """Compile a SELECT. The names of its WITH are only valid in it."""
        outer_streams, self.named_streams = self.named_streams, dict(self.named_streams)
        try:
            with self._record_place(tree):
                return self._compile_select(tree)
        finally:
            self.named_streams = outer_streams

    @contextlib.contextmanager
    def _record_place(self, tree: exp.Expression) -> Iterator[None]:
        """Record the place in the text of operators that are declared in the block, unless an inner block has done so.

        Operators are checked when the graph is complete, and their errors then have the place.
        """
        stages = self.pipeline._stages
        before = len(stages)
        yield
        for number, stage in enumerate(stages[before:], before):
            if isinstance(stage, OperatorNode) and not stage.written_at:
                stages[number] = replace(stage, written_at=self.query.place(tree))

    def _compile_select(self, tree: exp.Expression) -> Stream:
        from sqlglot import exp

        if isinstance(tree, exp.Subquery):
            refuse_uncompiled_parts(self.query, tree)
            return self._compile(tree.this)
        if not isinstance(tree, exp.Select | exp.Union):
            raise self.query.refuse(tree, "only SELECT becomes a stream", "write one SELECT; several streams: one each")
        refuse_uncompiled_parts(self.query, tree)
        named: set[str] = set()
        _inline_rank(tree)
        for cte in tree.ctes:
            name = cte.alias.lower()
            if name in named:
                raise self.query.refuse(cte, "two parts of WITH have this name", "name one of them differently")
            refuse_uncompiled_parts(self.query, cte.args["alias"])
            self.named_streams[name] = self._compile(cte.this)
            named.add(name)
        if isinstance(tree, exp.Union):
            return self._union(tree)
        refuse_functions(self.query, tree)
        read = self._read(tree, windowed=True)
        window = self._window_of(tree)
        if window is not None:
            return self._windowed(tree, read, window)
        if tree.args.get("group") or any(has_aggregate(expression) for expression in tree.expressions):
            return self._grouped(tree, read)
        having = tree.args.get("having")
        if having is not None:
            raise self.query.refuse(having, "HAVING without GROUP BY", "write WHERE, or GROUP BY the keys")
        return self._plain(tree, read)

    def _read(self, tree: exp.Select, *, windowed: bool = False) -> _Input:
        """Compile FROM and WHERE. windowed: whether FROM may be a window table function."""
        first_rows = ranked(tree)
        if first_rows is not None:
            return self._top(tree, first_rows)
        if tree.args.get("joins"):
            return self._joined(tree)
        stream, alias = self._compile_from(tree, windowed=windowed)
        columns, where = StreamColumns(self.query, alias), tree.args.get("where")
        return _Input(stream, columns, columns.text(where.this) if where is not None else None)

    def _union(self, tree: exp.Union) -> Stream:
        """Compile a UNION ALL. SQL pairs columns by place, and `Stream.union` by name, so both must agree."""
        from sqlglot import exp

        parts: list[Any] = [tree]
        while isinstance(parts[0], exp.Union):
            if parts[0].args.get("distinct") or parts[0].args.get("by_name"):
                raise self.query.refuse(
                    parts[0].expression, "a UNION of another kind", "write UNION ALL; SELECT DISTINCT around it"
                )
            first = parts.pop(0)
            refuse_uncompiled_parts(self.query, first)
            parts[:0] = [first.this, first.expression]
        names: list[str] = []
        for part in parts:
            select = part.unnest()
            part_names: list[str] = []
            if isinstance(select, exp.Select):
                part_names = [name_of(expression) for expression in select.expressions]
            if not part_names or "" in part_names:
                raise self.query.refuse(part, "a part of a UNION ALL without names", "name the columns of each SELECT")
            if names and part_names != names:
                help = f"name them alike, in the same order: {', '.join(names)}"
                raise self.query.refuse(part, "a part of a UNION ALL with other columns", help)
            names = part_names
        streams = [self._compile(part) for part in parts]
        return streams[0].union(*streams[1:], name=self._uid("union", tree))

    def _plain(self, tree: exp.Select, read: _Input) -> Stream:
        columns = [read.columns.selected(expression) for expression in tree.expressions]
        rows = self._stage(tree, read.stream, read.where, columns)
        if not tree.args.get("distinct"):
            return rows
        for expression in tree.expressions:
            if expression.is_star:
                raise self.query.refuse(expression, "DISTINCT * has no key", "name the columns")
            if not name_of(expression):
                raise self.query.refuse(expression, "an expression without a name", "write AS, and a name")
        keys = [name_of(expression) for expression in tree.expressions]
        if rows.name not in updating_streams(self.pipeline._stages):
            return rows.deduplicate(by=keys, uid=self._uid("distinct", tree), **self._expiry())
        # Rows may be retracted, so they are counted: a row stays as long as an equal one remains.
        count = {free_name("rows", keys): "count(*)"}
        uid = self._uid("counted", tree, last=False)
        counted = rows.aggregate(by=keys, **count, uid=uid, **self._expiry())
        return counted.select(*map(quoted, keys), name=self._uid("distinct", tree))

    def _compile_from(self, tree: exp.Select, *, windowed: bool = False) -> tuple[Stream, str]:
        """Return the stream after FROM, and the name with which its columns may be qualified."""
        from_clause = from_of(tree)
        if from_clause is None:
            raise self.query.refuse(tree, "it reads no stream", "say FROM, and a stream's name")
        return self._source(from_clause.this, windowed=windowed)

    def _source(self, node: exp.Expression, *, windowed: bool = False) -> tuple[Stream, str]:
        """Return the stream of a table or subquery, and the name with which its columns may be qualified."""
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            return self._compile(node), node.alias
        if not isinstance(node, exp.Table):
            raise self.query.refuse(node, "this is no stream", "name one, or put a SELECT in parentheses")
        refuse_uncompiled_parts(self.query, node)
        name = f"{node.db}.{node.name}" if node.db else node.name
        if not isinstance(node.this, exp.Identifier):
            what = "a function in place of a stream"
            raise self.query.refuse(node, what, f"name a stream; of windows, {WINDOWS_ARE_TABLES}")
        if name in self.query.windows:
            if not windowed:
                help = "put SELECT … GROUP BY window_start, window_end in parentheses around it"
                raise self.query.refuse(node, "a window that is joined or ranked by its rows", help)
            name = self.query.windows[name].stream
        alias = node.alias or name.rpartition(".")[2]
        if name.lower() in self.named_streams and not node.db:
            return self.named_streams[name.lower()], alias
        streams = self.pipeline.streams
        if name not in streams:
            help = f"name one that is declared before: {', '.join(sorted(streams))}"
            raise self.query.refuse(node, f"there is no stream {name!r}", help)
        return self.pipeline.stream(name), alias

    # -- aggregates ----------------------------------------------------------------------------------------

    def _window_of(self, tree: exp.Select) -> Any:
        from_clause = from_of(tree)
        if from_clause is None:
            return None
        return self.query.windows.get(from_clause.this.name)

    def _grouped(self, tree: exp.Select, read: _Input) -> Stream:
        groups = self._groups(tree, read, _options("aggregate"))
        columns = [*groups.keys, *groups.functions]
        uid = self._uid("aggregate", tree, last=groups.are_output_columns(columns))
        result = groups.rows.aggregate(by=list(groups.keys), **groups.functions, uid=uid, **self._expiry())
        return self._arranged(tree, result, groups, columns)

    def _windowed(self, tree: exp.Select, read: _Input, window: Any) -> Stream:
        self._refuse_computed_bounds(tree, read)
        where = tree.args.get("where")
        if window.kind == "SESSION" and where is not None:
            help = "filter in a SELECT of its own: TABLE(SESSION(TABLE good, …))"
            raise self.query.refuse(where, "a WHERE that is behind the sessions", help)
        groups = self._groups(tree, read, _options("window"))
        if not set(_WINDOW_COLUMNS) & set(groups.keys):
            raise self.query.refuse(
                tree, "a window is not grouped by", "GROUP BY window_start, window_end, and the keys"
            )
        keys = [key for key in groups.keys if key not in _WINDOW_COLUMNS]
        if window.kind == "SESSION" and sorted(window.partition_by) != sorted(groups.keys[key] for key in keys):
            if keys:
                help = f"write PARTITION BY {', '.join(keys)}"
            else:
                help = "leave out PARTITION BY"
            raise self.query.refuse(tree, "the sessions' PARTITION BY and the GROUP BY differ", help)
        if len(window.seconds) != (2 if window.kind == "HOP" else 1):
            raise self.query.refuse(
                tree, f"{window.kind} has {len(window.seconds)} intervals", "HOP has two, others one"
            )
        shapes: dict[str, dict[str, Any]] = {
            "TUMBLE": {"tumbling": window.seconds[0]},
            "HOP": {"hopping": (window.seconds[-1], window.seconds[0])},
            "SESSION": {"session": window.seconds[0]},
        }
        options: dict[str, Any] = {**shapes[window.kind], **groups.functions}
        columns = [*_WINDOW_COLUMNS, *keys, *groups.functions]
        uid = self._uid("window", tree, last=groups.are_output_columns(columns))
        result = groups.rows.window(by=keys, event_time=window.event_time, uid=uid, **options)
        return self._arranged(tree, result, groups, columns)

    def _refuse_computed_bounds(self, tree: exp.Select, read: _Input) -> None:
        """Raise an error if window_start or window_end is used otherwise than to group by it, or to select it.

        The rows that are read do not have these columns yet.
        """
        from sqlglot import exp

        where, group, having = (tree.args.get(part) for part in ("where", "group", "having"))
        parts = list(tree.expressions)
        if where:
            parts.append(where)
        if group:
            parts += group.expressions
        if having:
            for function in having.find_all(exp.Func):
                if is_aggregate(function):
                    parts.append(function)
        for part in parts:
            for column in part.find_all(exp.Column):
                if column.name not in _WINDOW_COLUMNS or read.columns.base(column) not in _WINDOW_COLUMNS:
                    continue
                is_renamed = isinstance(part, exp.Alias) and (part.this is not column or part.alias != column.name)
                if part is not column and (is_renamed or not isinstance(part, exp.Alias)):
                    help = "do it in a SELECT around this one"
                    raise self.query.refuse(column, "this computes with a window's bound, or renames it", help)

    def _groups(self, tree: exp.Select, read: _Input, options: Collection[str]) -> Groups:
        """Compile the keys, aggregates and expressions of a SELECT with aggregates.

        options: the names of the operator's options, which no aggregate can have.
        """
        from sqlglot import exp

        names = [name_of(expression) for expression in tree.expressions]
        lower_names = [name.lower() for name in names]
        for expression, name in zip(tree.expressions, names, strict=True):
            if expression.is_star:
                raise self.query.refuse(expression, "* beside GROUP BY", "name the columns")
            if not name:
                subject = "an aggregate" if has_aggregate(expression) else "an expression"
                raise self.query.refuse(expression, f"{subject} without a name", "write AS, and a name")
            if lower_names.count(name.lower()) > 1:
                help = "name one of them differently: AS"
                raise self.query.refuse(expression, f"two columns are called {name!r}", help)
        keys, computed = self._keys(tree, read)
        grouping = Grouping(self.query, read.columns, keys, computed, {*options, *names})
        columns = []
        for expression, name in zip(tree.expressions, names, strict=True):
            value = expression.unalias()
            if isinstance(value, exp.Filter) or is_aggregate(value):
                if name not in options:
                    grouping.reserved_names.discard(name)
                grouping.selected[name] = grouping.aggregate(value, name, add=True)
                columns.append((quoted(grouping.selected[name]), name))
                continue
            key = grouping.key_of(value)
            if key:
                grouping.selected[name] = key
                columns.append((quoted(key), name))
            else:
                columns.append((grouping.text(value), name))
        having = tree.args.get("having")
        condition = grouping.text(having.this) if having is not None else None
        if not grouping.functions:  # it selects the keys only, but an aggregate needs a function
            grouping.functions[free_name("rows", {*grouping.reserved_names, *keys})] = "COUNT(*)"
        if tree.args.get("distinct") and not {quoted(key) for key in keys} <= {text for text, _ in columns}:
            raise self.query.refuse(tree, "DISTINCT of a part of the keys", "put SELECT DISTINCT … around it")
        rows = read.stream
        if read.where is not None or computed:
            rows = self.pipeline.stage(rows, name=self._uid("rows", tree, last=False))(_keyed(read.where, computed))
        return Groups(rows, keys, grouping.functions, columns, condition)

    def _keys(self, tree: exp.Select, read: _Input) -> tuple[dict[str, str], dict[str, str]]:
        """Return the keys of GROUP BY with their meanings, and the texts of those that have to be computed."""
        from sqlglot import exp

        group = tree.args.get("group")
        if group is None:
            return {}, {}
        refuse_uncompiled_parts(self.query, group)
        selected_names: dict[str, str] = {}
        for expression in tree.expressions:
            if not has_aggregate(expression):
                with contextlib.suppress(Invalid):  # raised again when the expression is compiled
                    selected_names.setdefault(read.columns.meaning(expression.unalias()), name_of(expression))
        aliases = set()
        for expression in tree.expressions:
            if isinstance(expression, exp.Alias):
                aliases.add(expression.alias)
        keys: dict[str, str] = {}
        computed: dict[str, str] = {}
        for written in group.expressions:
            key = written.unnest()
            if isinstance(key, exp.Literal) and not key.is_string and key.name in _places(tree):
                key = tree.expressions[int(key.name) - 1].unalias()
            if isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets):
                kind = key.key.upper().replace("GROUPINGSETS", "GROUPING SETS")
                help = "SELECT each grouping by itself, and combine them: UNION ALL"
                raise self.query.refuse(written, f"{kind} has no operator", help)
            if isinstance(key, exp.Literal) or has_aggregate(key):
                meaning = ""
            else:
                meaning = read.columns.meaning(key)
            column = read.columns.name(key)
            is_qualified = len(getattr(key, "parts", "")) > 1
            default = column if is_qualified or column not in aliases else ""
            name = selected_names.get(meaning, default)
            if not name:
                help = "select the same expression AS a name, and group by the expression, or by its place"
                raise self.query.refuse(written, "this key is no column of the stream", help)
            if keys.setdefault(name, meaning) != meaning:
                raise self.query.refuse(written, f"two keys are called {name!r}", "name one of them differently: AS")
            if name != column:
                computed[name] = read.columns.text(key)
        return keys, computed

    def _arranged(self, tree: exp.Select, stream: Stream, groups: Groups, operator_columns: Sequence[str]) -> Stream:
        """Add a stage for HAVING and the selected expressions, unless the operator emits these columns already."""
        if groups.are_output_columns(operator_columns):
            return stream
        columns = []
        for text, name in groups.columns:
            if text == quoted(name):
                columns.append(text)
            else:
                columns.append(f"{text} AS {quoted(name)}")
        return self._stage(tree, stream, groups.having, columns)

    # -- the first rows of each key ------------------------------------------------------------------------

    def _top(self, tree: exp.Select, first_rows: Ranked) -> _Input:
        """Compile a rank and its bound. Return the first rows of each key, with the outer SELECT's other conditions."""
        from sqlglot import exp

        inner, window = first_rows.inner, first_rows.numbered.this
        refuse_uncompiled_parts(self.query, from_of(tree).this)
        refuse_uncompiled_parts(self.query, inner)
        refuse_functions(self.query, inner)
        other_columns = []
        for expression in inner.expressions:
            if expression is not first_rows.numbered:
                other_columns.append(expression)
        unfit = []
        for part in ("joins", "group", "having", "distinct", "with_", "with"):
            if inner.args.get(part):
                unfit.append(part)
        read = self._read(inner) if not unfit else None
        if read is None or len(other_columns) != 1 or not read.columns.is_all(other_columns[0]):
            raise self.query.refuse(inner, "a rank beside columns", "choose columns outside")
        source, columns = read.stream, read.columns
        if read.where is not None:
            source = source.where(read.where, name=self._uid("rows", inner, last=False))
        keys = [self._column(key, columns) for key in window.args.get("partition_by") or []]
        order = window.args.get("order")
        if not keys or order is None:
            raise self.query.refuse(window, "a rank without a key or an order", "say PARTITION BY and ORDER BY")
        for term in order.expressions:
            if term.args.get("nulls_first"):
                raise self.query.refuse(term, "nulls first", "write NULLS LAST: that is where they are here")
        terms = []
        for term in order.expressions:
            terms.append((self._column(term.this, columns), bool(term.args.get("desc"))))
        outer_columns = StreamColumns(self.query, from_of(tree).this.alias)
        name, rest = first_rows.numbered.alias, first_rows.other_conditions
        where = outer_columns.text(rest) if rest is not None else None
        result = _Input(source, outer_columns, where)
        is_number = isinstance(window.this, exp.RowNumber)
        all_descending = all(descending for _, descending in terms)
        if first_rows.n == 1 and is_number and all_descending and not _uses_rank(tree, rest, name):
            uid = self._uid("latest", tree, last=False)
            with self._record_place(first_rows.numbered):
                order_by = [column for column, _ in terms]
                newest = source.latest(by=keys, order_by=order_by, uid=uid, **self._expiry())
            return replace(result, stream=newest)
        order_by = []
        for column, descending in terms:
            order_by.append(f"{column} {'desc' if descending else 'asc'}")
        rank = "dense_rank"
        if is_number:
            rank = "row_number"
        elif isinstance(window.this, exp.Rank):
            rank = "rank"
        uid = self._uid("top", tree, last=False)
        with self._record_place(first_rows.numbered):
            first = source.top_n(first_rows.n, by=keys, order_by=order_by, rank=rank, uid=uid, **self._expiry())
        renamed = self.pipeline.stage(first, name=self._uid("numbered", tree, last=False))(_renamed("rank", name))
        return replace(result, stream=renamed)

    def _column(self, node: exp.Expression, columns: Columns) -> str:
        name = columns.name(node)
        if not name:
            raise self.query.refuse(node, "this is no column", "compute it in a SELECT around the stream first")
        return name

    # -- joins ---------------------------------------------------------------------------------------------

    def _joined(self, tree: exp.Select) -> _Input:
        if any(expression.is_star for expression in tree.expressions):
            raise self.query.refuse(tree.expressions[0], "* of a JOIN", "name the columns")
        stream, first = self._compile_from(tree)
        sides = JoinedColumns(self.query, [first], event_times={first: self.pipeline._event_time_of(stream.name)})
        joined = self.pipeline.stage(stream, name=self._uid("left", tree, last=False))(_prefixed(first, {}))
        conditions: list[exp.Expression] = []
        for join in tree.args["joins"]:
            with self._record_place(join.args.get("on") or next(iter(join.args.get("using") or ()), join)):
                joined, rest = self._join(tree, join, joined, sides)
            side = (join.side or "").upper()
            if conditions and side in ("FULL", "RIGHT"):
                help = "put the join before it into a SELECT of its own, with that condition"
                raise self.query.refuse(conditions[0], f"a condition before a {side} JOIN", help)
            conditions += rest
        if tree.args.get("where"):
            conditions.append(tree.args["where"].this)
        where = " AND ".join(f"({sides.text(condition)})" for condition in conditions)
        return _Input(joined, sides, where or None)

    def _join(self, tree: exp.Select, join: exp.Join, left: Stream, sides: JoinedColumns) -> tuple[Stream, list[Any]]:
        """Join one more stream. Return the joined stream, and the conditions that remain for a WHERE after it."""
        refuse_uncompiled_parts(self.query, join)
        how = _HOWS.get(f"{join.side} {join.kind}".strip().upper())
        if how is None:
            help = "JOIN, LEFT, RIGHT, FULL, LEFT SEMI and LEFT ANTI JOIN have an operator"
            raise self.query.refuse(join, "this kind of JOIN", help)
        right, right_alias = self._source(join.this)
        if sides.alias(right_alias):
            raise self.query.refuse(join, f"two sides are called {right_alias!r}", "name one of them differently: AS")
        sides.event_times[right_alias] = self.pipeline._event_time_of(right.name)
        on, times, rest = self._conditions(join, sides, right_alias)
        if how in ("left", *LEFT_ONLY):
            # Conditions on the right side alone filter its rows before the join.
            right_conditions = [condition for condition in rest if _is_about(condition, right_alias)]
            rest = [condition for condition in rest if condition not in right_conditions]
            if right_conditions:
                text = StreamColumns(self.query, right_alias).text
                where = " AND ".join(f"({text(condition)})" for condition in right_conditions)
                right = right.where(where, name=self._uid("right-rows", tree, last=False))
        if rest and how != "inner":
            raise self.query.refuse(
                rest[0], f"this condition of a {how.upper()} JOIN", _instead(rest[0], how, right_alias)
            )
        pairs = {left_column: joined_name(right_alias, name) for left_column, name in on}
        copies: dict[str, str] = {}
        if how == "inner":
            for left_column, other in pairs.items():
                sides.equal[other] = left_column
        elif how not in LEFT_ONLY:
            # Where a side has no row, its own key is null: so the joined key is a column of its own.
            number = len(sides.aliases)
            keys = {f"on_{number}_{place}": left_column for place, left_column in enumerate(pairs)}
            left = self.pipeline.stage(left, name=self._uid("keyed", tree, last=False))(_copied(keys))
            copies = {key: name for key, (_, name) in zip(keys, on, strict=True)}
            pairs = {key: key for key in keys}
        if join.args.get("using"):
            for left_column, (_, name) in zip(pairs, on, strict=True):
                sides.shared[name] = left_column
        if how not in LEFT_ONLY:
            sides.aliases.append(right_alias)
        right = self.pipeline.stage(right, name=self._uid("right", tree, last=False))(_prefixed(right_alias, copies))
        options: dict[str, Any] = {"how": how, "on": pairs}
        if times is not None:
            low, high, time_columns = times
            options |= {"within": (f"{low:.15g} s", f"{high:.15g} s"), "event_time": time_columns}
        else:
            options |= self._expiry()
        return left.join(right, **options, uid=self._uid("join", tree, last=False)), rest

    def _conditions(self, join: exp.Expression, sides: JoinedColumns, right_alias: str) -> Any:
        """Split ON into pairs of equal columns (left, right), bounds on both sides' times, and other conditions."""
        from sqlglot import exp

        condition, help = join.args.get("on"), f"say ON {sides.aliases[-1]}.… = {right_alias}.…"
        using = join.args.get("using")
        if using:
            return [(sides.using(column), column.name) for column in using], None, []
        if condition is None:
            raise self.query.refuse(join, "a JOIN without ON", help)
        on: list[tuple[str, str]] = []
        times: tuple[float, float, tuple[str, str]] | None = None
        rest: list[Any] = []
        for part in conjuncts(condition):
            pair = self._equal_columns(part, sides, right_alias)
            if pair is not None and not any(pair[0] == left or pair[1] == right for left, right in on):
                on.append(pair)
                continue
            if isinstance(part, exp.Between) and times is None:
                times = self._bounds(part, sides, right_alias)
                if times is not None:
                    continue
            rest.append(part)
        if not on:
            raise self.query.refuse(join, "a JOIN without equal columns", help)
        if times is None:
            times, rest = self._compared(rest, sides, right_alias)
        return on, times, rest

    def _equal_columns(self, condition: Any, sides: JoinedColumns, right_alias: str) -> tuple[str, str] | None:
        """Return the left and the right column of a condition such as `a.x = b.y`, or None for other conditions."""
        from sqlglot import exp

        columns = [condition.this, condition.args.get("expression")]
        if not isinstance(condition, exp.EQ) or not all(isinstance(column, exp.Column) for column in columns):
            return None
        qualified = [column for column in columns if len(column.parts) == 2]
        left = [sides.name(column) for column in qualified if sides.alias(column.table)]
        right = [column.name for column in qualified if column.table.lower() == right_alias.lower()]
        return (left[0], right[0]) if left and right else None

    def _compared(self, conditions: list[Any], sides: JoinedColumns, right_alias: str) -> Any:
        """Return the bounds that comparisons set on both sides' event times, and the conditions that remain.

        `<` and `>` exclude the bounds themselves, so these conditions remain for the joined rows as well.
        """
        from sqlglot import exp

        bounds_by_time: dict[str, list[tuple[Any, bool, float, bool]]] = {}
        for condition in conditions:
            if not isinstance(condition, exp.GT | exp.GTE | exp.LT | exp.LTE):
                continue
            with contextlib.suppress(Invalid):  # an interval such as a month, which has no fixed length
                (one, earlier), (other, later) = map(self._shifted, (condition.this, condition.expression))
                if not all(isinstance(column, exp.Column) and len(column.parts) == 2 for column in (one, other)):
                    continue
                is_least, seconds = isinstance(condition, exp.GT | exp.GTE), later - earlier
                if one.table.lower() != right_alias.lower():
                    one, other, is_least, seconds = other, one, not is_least, -seconds
                alias = sides.alias(other.table)
                if one.table.lower() != right_alias.lower() or not alias:
                    continue
                if (other.name, one.name) == (sides.event_times[alias], sides.event_times[right_alias]):
                    has_interval = bool(condition.find(exp.Interval))
                    bounds_by_time.setdefault(sides.name(other), []).append(
                        (condition, is_least, seconds, has_interval)
                    )
        for left_time, bounds in bounds_by_time.items():
            lower = [seconds for _, is_least, seconds, _ in bounds if is_least]
            upper = [seconds for _, is_least, seconds, _ in bounds if not is_least]
            if lower and upper and max(lower) <= min(upper) and any(has_interval for *_, has_interval in bounds):
                right_time = joined_name(right_alias, str(sides.event_times[right_alias]))
                inclusive = set()
                for condition, *_ in bounds:
                    if isinstance(condition, exp.GTE | exp.LTE):
                        inclusive.add(id(condition))
                remaining = [condition for condition in conditions if id(condition) not in inclusive]
                return (max(lower), min(upper), (left_time, right_time)), remaining
        return None, conditions

    def _bounds(self, between: exp.Expression, sides: JoinedColumns, right_alias: str) -> Any:
        """Return how much earlier and later the right side's time may be, or None if BETWEEN is not about times."""
        from sqlglot import exp

        time: Any = between.this
        (base, before), (same, after) = self._shifted(between.args["low"]), self._shifted(between.args["high"])
        if not all(isinstance(column, exp.Column) for column in (time, base, same)) or base != same:
            return None
        if base is between.args["low"] and same is between.args["high"]:
            return None  # it has no interval, so it compares numbers, for example
        if time.table.lower() == right_alias.lower() and sides.alias(base.table):
            return before, after, (sides.name(base), joined_name(right_alias, time.name))
        if base.table.lower() == right_alias.lower() and sides.alias(time.table):
            return -after, -before, (sides.name(time), joined_name(right_alias, base.name))
        return None

    def _shifted(self, node: exp.Expression) -> tuple[Any, float]:
        from sqlglot import exp

        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            seconds = seconds_of(self.query, node.expression)
            return node.this, seconds if isinstance(node, exp.Add) else -seconds
        return node, 0.0

    # -- helpers -------------------------------------------------------------------------------------------

    def _stage(self, tree: exp.Select, source: Stream, where: str | None, columns: Sequence[str]) -> Stream:
        return source.select(*columns, where=where, name=self._uid("select", tree))

    def _expiry(self) -> Mapping[str, Any]:
        """Return the expiry options for an operator that would otherwise keep rows forever."""
        self.expires = True
        return self.expiry

    def _uid(self, kind: str, tree: exp.Expression, *, last: bool = True) -> str:
        """Return the name of a stage or operator. The last one of the statement has the statement's name."""
        if last and tree is self.query.tree and (kind == "distinct" or not tree.args.get("distinct")):
            return self.name
        self.kinds[kind] = number = self.kinds.get(kind, 0) + 1
        return f"{self.name}-{kind}" + (f"-{number}" if number > 1 else "")


@dataclass(frozen=True)
class _Input:
    """The stream that a SELECT reads, and how its columns are resolved."""

    stream: Stream
    columns: Columns
    where: str | None
    """A condition on its rows."""


def _places(tree: exp.Select) -> list[str]:
    """Return the numbers with which GROUP BY can refer to selected expressions."""
    return [str(place) for place in range(1, len(tree.expressions) + 1)]


def _uses_rank(tree: exp.Select, other_conditions: Any, name: str) -> bool:
    """Return whether a SELECT uses the column with the rank, apart from the rank's bound."""
    from sqlglot import exp

    parts = [*tree.expressions, *filter(None, (other_conditions, tree.args.get("group"), tree.args.get("having")))]
    for part in parts:
        for node in part.find_all(exp.Column, exp.Star):
            if isinstance(node, exp.Column):
                if node.name == name:
                    return True
            elif not is_counted(node):
                return True
    return False


def _inline_rank(tree: Any) -> None:
    """Move a rank from WITH to where it is read, next to its bound: together they are one operator."""
    from sqlglot import exp

    from_clause = from_of(tree)
    if from_clause is None or not isinstance(from_clause.this, exp.Table) or from_clause.this.db:
        return
    table = from_clause.this
    name = table.name.lower()
    ranks = []
    for cte in tree.ctes:
        if cte.alias.lower() == name and any(map(is_rank, cte.walk())):
            ranks.append(cte)
    readers = [reader for reader in tree.find_all(exp.Table) if reader.name.lower() == name]
    if len(ranks) == len(readers) == 1:
        alias = exp.TableAlias(this=exp.to_identifier(table.alias or table.name))
        select = ranks[0].this
        ranks[0].pop()
        table.replace(exp.Subquery(this=select, alias=alias))


def _instead(condition: exp.Expression, how: str, right_alias: str) -> str:
    """Return what to write instead of a condition in ON of an outer JOIN.

    Such a condition decides which rows have partners, and rows without one are emitted, too: a WHERE would drop them. A
    null key has no partner either.
    """
    from sqlglot import exp

    sides = set()
    for column in condition.find_all(exp.Column):
        if len(column.parts) > 1:
            sides.add(column.parts[0].name)
    if len(sides) == 1:
        (side,) = sides
        text = condition.sql("spark")[:_MAX_QUOTED_LENGTH]
        return (
            f"in a SELECT around {side}, add CASE WHEN {text} THEN key END AS key_if, and "
            "join by key_if in place of the key: a filter would lose rows that come without a partner"
        )
    if how == "full":
        return "without a partner under it, rows cannot be told here: use an inner JOIN, or the streams' own join(…)"
    outer_side = right_alias if how == "right" else "the left side"
    return (
        f"join under it with JOIN in a SELECT of its own, and {how.upper()} JOIN the result by what tells each row of "
        f"{outer_side} from all others: a filter would lose rows that come without a partner"
    )


def _is_about(condition: exp.Expression, alias: str) -> bool:
    """Return whether a condition only uses columns of one side."""
    from sqlglot import exp

    columns = condition.find_all(exp.Column)
    return all(len(column.parts) > 1 and column.parts[0].name.lower() == alias.lower() for column in columns)


_MAX_QUOTED_LENGTH = 60
"""Maximum number of characters of a condition that a help text repeats."""


@cache
def _options(operator: str) -> frozenset[str]:
    """Return the names of an operator's options."""
    from tidegate.pipeline.declare import Stream

    parameters = inspect.signature(getattr(Stream, operator)).parameters.values()
    return frozenset(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)


def _unchanged(rows: Any) -> Any:
    return rows


with_expressions(_unchanged, quoted)


def _keyed(where: str | None, computed: Mapping[str, str]) -> Callable[[Any], Any]:
    keys = dict(computed)

    def keyed(frame: Any) -> Any:
        from pyspark.sql import functions as F

        filtered = frame if where is None else frame.where(where)
        return filtered.withColumns({name: F.expr(text) for name, text in keys.items()})

    return with_expressions(keyed, lambda column: keys.get(column, quoted(column)))


def _prefixed(alias: str, copies: Mapping[str, str]) -> Callable[[Any], Any]:
    """copies: more columns, each with the one that it is a copy of."""
    copied = dict(copies)

    def prefixed(frame: Any) -> Any:
        from pyspark.sql import functions as F

        more = (F.col(quoted(name)).alias(copy) for copy, name in copied.items())
        names = [joined_name(alias, name) for name in frame.columns]
        if copied:
            return frame.select("*", *more).toDF(*names, *copied)
        return frame.toDF(*names)

    def expression_of(column: str) -> str:
        if column in copied:
            return quoted(copied[column])
        prefix = joined_name(alias, "")
        if column.startswith(prefix):
            return quoted(column.removeprefix(prefix))
        return ""

    return with_expressions(prefixed, expression_of)


def _copied(copies: Mapping[str, str]) -> Callable[[Any], Any]:
    copied = dict(copies)

    def with_copies(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.withColumns({copy: F.col(quoted(name)) for copy, name in copied.items()})

    return with_expressions(with_copies, lambda column: quoted(copied.get(column, column)))


def _renamed(old: str, new: str) -> Callable[[Any], Any]:
    def renamed(frame: Any) -> Any:
        return frame.withColumnRenamed(old, new)

    return with_expressions(renamed, lambda column: "" if column == old else quoted(old if column == new else column))
