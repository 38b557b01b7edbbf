"""From the tree to streams: each part of a SELECT becomes the stage or the operator that is the same.

    FROM a, WHERE, HAVING, expressions    a stage
    DISTINCT                              deduplicate; of rows that replace others, aggregate
    GROUP BY, or aggregates alone         aggregate; without GROUP BY of all rows, by=[]
    GROUP BY over TUMBLE, HOP, SESSION    window
    JOIN, with times BETWEEN, or < and >  join with `within`; without times, of what both sides hold now; each in turn
    UNION ALL                             union, by the names of the columns
    ROW_NUMBER(), RANK() … <= n           top_n; the newest row by descending columns: latest

What would be something else, or nearly the same, is refused with its place: so is each part of a SELECT, of a table and
of a join that is not named here.
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
    refuse_other_parts,
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
"""The join that each JOIN is."""
_WINDOW_COLUMNS: Final = ("window_start", "window_end")


def compile_sql(
    pipeline: Pipeline, text: str, name: str, state_ttl: str | float | None = None, ttl_time: str = "processing"
) -> Stream:
    """Declare what a SELECT says; return its stream, which is called `name`."""
    expiry: dict[str, Any] = {} if state_ttl is None else {"state_ttl": state_ttl, "ttl_time": ttl_time}
    compiler = _Compiler(pipeline, parse_query(text), name, expiry)
    stream = compiler.select()
    refuse_rewritten(compiler.query)
    if expiry and not compiler.expires:
        raise Invalid(
            f"SQL {name!r} has state_ttl={state_ttl!r}, and nothing in it is kept permanently",
            expected="a GROUP BY, DISTINCT, rank or JOIN without bounds; what is kept of a window goes with it",
            help="leave out state_ttl",
            reason="BAD_PIPELINE",
        )
    return stream


@dataclass
class _Compiler:
    """One statement."""

    pipeline: Pipeline
    query: Query
    name: str
    expiry: Mapping[str, Any] = field(default_factory=dict)
    """When operators forget what they would keep permanently."""
    expires: bool = False
    """Whether there are such."""
    named_streams: dict[str, Stream] = field(default_factory=dict)
    """The streams that WITH has named."""
    kinds: dict[str, int] = field(default_factory=dict)

    def select(self) -> Stream:
        """Compile the whole statement; what it gives has the statement's name."""
        stream = self._of(self.query.tree)
        if stream.name == self.name:
            return stream
        return self.pipeline.stage(stream, name=self.name)(_unchanged)

    # -- one SELECT ----------------------------------------------------------------------------------------

    def _of(self, tree: exp.Expression) -> Stream:
        """Compile a SELECT. What its WITH names is known in it, and nowhere else."""
        outside, self.named_streams = self.named_streams, dict(self.named_streams)
        try:
            with self._record_place(tree):
                return self._selected(tree)
        finally:
            self.named_streams = outside

    @contextlib.contextmanager
    def _record_place(self, tree: exp.Expression) -> Iterator[None]:
        """Record where each operator that is declared in the block stands, unless an inner block already has: what an
        operator refuses is told when the graph is complete."""
        stages = self.pipeline._stages
        before = len(stages)
        yield
        for number, stage in enumerate(stages[before:], before):
            if isinstance(stage, OperatorNode) and not stage.written_at:
                stages[number] = replace(stage, written_at=self.query.place(tree))

    def _selected(self, tree: exp.Expression) -> Stream:
        from sqlglot import exp

        if isinstance(tree, exp.Subquery):
            refuse_other_parts(self.query, tree)
            return self._of(tree.this)
        if not isinstance(tree, exp.Select | exp.Union):
            raise self.query.refuse(tree, "only SELECT becomes a stream", "write one SELECT; several streams: one each")
        refuse_other_parts(self.query, tree)
        named: set[str] = set()
        _inline_rank(tree)
        for each in tree.ctes:
            name = each.alias.lower()
            if name in named:
                raise self.query.refuse(each, "two parts of WITH have this name", "name one of them differently")
            refuse_other_parts(self.query, each.args["alias"])
            self.named_streams[name] = self._of(each.this)
            named.add(name)
        if isinstance(tree, exp.Union):
            return self._united(tree)
        refuse_functions(self.query, tree)
        read = self._read(tree, windowed=True)
        if (window := self._window_of(tree)) is not None:
            return self._windowed(tree, read, window)
        if tree.args.get("group") or any(has_aggregate(each) for each in tree.expressions):
            return self._grouped(tree, read)
        if (having := tree.args.get("having")) is not None:
            raise self.query.refuse(having, "HAVING without GROUP BY", "write WHERE, or GROUP BY the keys")
        return self._plain(tree, read)

    def _read(self, tree: exp.Select, *, windowed: bool = False) -> _Input:
        """Return what is behind FROM and WHERE. windowed: rows may have windows."""
        if (first_rows := ranked(tree)) is not None:
            return self._top(tree, first_rows)
        if tree.args.get("joins"):
            return self._joined(tree)
        stream, alias = self._from(tree, windowed=windowed)
        columns, where = StreamColumns(self.query, alias), tree.args.get("where")
        return _Input(stream, columns, columns.text(where.this) if where is not None else None)

    def _united(self, tree: exp.Union) -> Stream:
        """Compile the SELECTs of a UNION ALL: SQL pairs columns by place, and a union by name, so both must agree."""
        from sqlglot import exp

        parts: list[Any] = [tree]
        while isinstance(parts[0], exp.Union):
            if parts[0].args.get("distinct") or parts[0].args.get("by_name"):
                raise self.query.refuse(
                    parts[0].expression, "a UNION of another kind", "write UNION ALL; SELECT DISTINCT around it"
                )
            first = parts.pop(0)
            refuse_other_parts(self.query, first)
            parts[:0] = [first.this, first.expression]
        names: list[str] = []
        for each in parts:
            select = each.unnest()
            own = [] if not isinstance(select, exp.Select) else [name_of(part) for part in select.expressions]
            if not own or "" in own:
                raise self.query.refuse(each, "a part of a UNION ALL without names", "name the columns of each SELECT")
            if names and own != names:
                help = f"name them alike, in the same order: {', '.join(names)}"
                raise self.query.refuse(each, "a part of a UNION ALL with other columns", help)
            names = own
        streams = [self._of(each) for each in parts]
        return streams[0].union(*streams[1:], name=self._uid("union", tree))

    def _plain(self, tree: exp.Select, read: _Input) -> Stream:
        rows = self._stage(tree, read.stream, read.where, [read.columns.selected(each) for each in tree.expressions])
        if not tree.args.get("distinct"):
            return rows
        for each in tree.expressions:
            if each.is_star:
                raise self.query.refuse(each, "DISTINCT * has no key", "name the columns")
            if not name_of(each):
                raise self.query.refuse(each, "an expression without a name", "write AS, and a name")
        by = [name_of(each) for each in tree.expressions]
        if rows.name not in updating_streams(self.pipeline._stages):
            return rows.deduplicate(by=by, uid=self._uid("distinct", tree), **self._forgetting())
        # A row may be taken back: then it stays as long as another one is like it.
        count = {free_name("rows", by): "count(*)"}
        uid = self._uid("counted", tree, last=False)
        counted = rows.aggregate(by=by, **count, uid=uid, **self._forgetting())
        return counted.select(*map(quoted, by), name=self._uid("distinct", tree))

    def _from(self, tree: exp.Select, *, windowed: bool = False) -> tuple[Stream, str]:
        """Return the stream behind FROM, and the name that its columns may be qualified with."""
        found = from_of(tree)
        if found is None:
            raise self.query.refuse(tree, "it reads no stream", "say FROM, and a stream's name")
        return self._source(found.this, windowed=windowed)

    def _source(self, node: exp.Expression, *, windowed: bool = False) -> tuple[Stream, str]:
        """windowed: rows may have windows."""
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            return self._of(node), node.alias
        if not isinstance(node, exp.Table):
            raise self.query.refuse(node, "this is no stream", "name one, or put a SELECT in parentheses")
        refuse_other_parts(self.query, node)
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
        there = self.pipeline.streams
        if name not in there:
            help = f"name one that is declared before: {', '.join(sorted(there))}"
            raise self.query.refuse(node, f"there is no stream {name!r}", help)
        return self.pipeline.stream(name), alias

    # -- aggregates ----------------------------------------------------------------------------------------

    def _window_of(self, tree: exp.Select) -> Any:
        found = from_of(tree)
        return self.query.windows.get(found.this.name) if found is not None else None

    def _grouped(self, tree: exp.Select, read: _Input) -> Stream:
        groups = self._groups(tree, read, _options("aggregate"))
        given = [*groups.keys, *groups.functions]
        uid = self._uid("aggregate", tree, last=groups.are_output_columns(given))
        result = groups.rows.aggregate(by=list(groups.keys), **groups.functions, uid=uid, **self._forgetting())
        return self._arranged(tree, result, groups, given)

    def _windowed(self, tree: exp.Select, read: _Input, window: Any) -> Stream:
        self._refuse_computed_bounds(tree, read)
        if window.kind == "SESSION" and (where := tree.args.get("where")) is not None:
            help = "filter in a SELECT of its own: TABLE(SESSION(TABLE good, …))"
            raise self.query.refuse(where, "a WHERE that is behind the sessions", help)
        groups = self._groups(tree, read, _options("window"))
        if not set(_WINDOW_COLUMNS) & set(groups.keys):
            raise self.query.refuse(
                tree, "a window is not grouped by", "GROUP BY window_start, window_end, and the keys"
            )
        by = [key for key in groups.keys if key not in _WINDOW_COLUMNS]
        if window.kind == "SESSION" and sorted(window.partition_by) != sorted(groups.keys[key] for key in by):
            help = f"write PARTITION BY {', '.join(by)}" if by else "leave out PARTITION BY"
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
        given = [*_WINDOW_COLUMNS, *by, *groups.functions]
        uid = self._uid("window", tree, last=groups.are_output_columns(given))
        result = groups.rows.window(by=by, event_time=window.event_time, uid=uid, **options)
        return self._arranged(tree, result, groups, given)

    def _refuse_computed_bounds(self, tree: exp.Select, read: _Input) -> None:
        """Raise an error where more is done with a window's bounds than to group by them and to select them: rows do
        not have them yet."""
        from sqlglot import exp

        where, group = tree.args.get("where"), tree.args.get("group")
        having = tree.args.get("having")
        within = [each for each in having.find_all(exp.Func) if is_aggregate(each)] if having else []
        parts = [*tree.expressions, *([where] if where else []), *(group.expressions if group else []), *within]
        for part in parts:
            for each in part.find_all(exp.Column):
                bare = part is each or (isinstance(part, exp.Alias) and part.this is each and part.alias == each.name)
                if each.name in _WINDOW_COLUMNS and read.columns.base(each) in _WINDOW_COLUMNS and not bare:
                    help = "do it in a SELECT around this one"
                    raise self.query.refuse(each, "this computes with a window's bound, or renames it", help)

    def _groups(self, tree: exp.Select, read: _Input, options: Collection[str]) -> Groups:
        """Return what a SELECT with aggregates groups, by what, and what it computes of each group.

        options: names that no aggregate can have, since the operator's options have them.
        """
        from sqlglot import exp

        names = [name_of(each) for each in tree.expressions]
        for each, name in zip(tree.expressions, names, strict=True):
            if each.is_star:
                raise self.query.refuse(each, "* beside GROUP BY", "name the columns")
            if not name:
                what = "an aggregate" if has_aggregate(each) else "an expression"
                raise self.query.refuse(each, f"{what} without a name", "write AS, and a name")
            if [each.lower() for each in names].count(name.lower()) > 1:
                raise self.query.refuse(each, f"two columns are called {name!r}", "name one of them differently: AS")
        keys, computed = self._keys(tree, read)
        grouping = Grouping(self.query, read.columns, keys, computed, {*options, *names})
        columns = []
        for each, name in zip(tree.expressions, names, strict=True):
            value = each.unalias()
            if isinstance(value, exp.Filter) or is_aggregate(value):
                if name not in options:
                    grouping.reserved_names.discard(name)
                grouping.selected[name] = grouping.aggregate(value, name, anew=True)
                columns.append((quoted(grouping.selected[name]), name))
            elif key := grouping.key_of(value):
                grouping.selected[name] = key
                columns.append((quoted(key), name))
            else:
                columns.append((grouping.text(value), name))
        having = tree.args.get("having")
        condition = grouping.text(having.this) if having is not None else None
        if not grouping.functions:  # the groups alone
            grouping.functions[free_name("rows", {*grouping.reserved_names, *keys})] = "COUNT(*)"
        if tree.args.get("distinct") and not {quoted(key) for key in keys} <= {text for text, _ in columns}:
            raise self.query.refuse(tree, "DISTINCT of a part of the keys", "put SELECT DISTINCT … around it")
        rows = read.stream
        if read.where is not None or computed:
            rows = self.pipeline.stage(rows, name=self._uid("rows", tree, last=False))(_keyed(read.where, computed))
        return Groups(rows, keys, grouping.functions, columns, condition)

    def _keys(self, tree: exp.Select, read: _Input) -> tuple[dict[str, str], dict[str, str]]:
        """Return the keys, each with what it is of the columns that are read, and those that have to be computed."""
        from sqlglot import exp

        group = tree.args.get("group")
        if group is not None:
            refuse_other_parts(self.query, group)
        shown: dict[str, str] = {}
        for each in tree.expressions:
            if not has_aggregate(each):
                with contextlib.suppress(Invalid):  # told where it is computed
                    shown.setdefault(read.columns.meaning(each.unalias()), name_of(each))
        renamed = {each.alias for each in tree.expressions if isinstance(each, exp.Alias)}
        keys: dict[str, str] = {}
        computed: dict[str, str] = {}
        for written in group.expressions if group is not None else []:
            each = written.unnest()
            if isinstance(each, exp.Literal) and not each.is_string and each.name in _places(tree):
                each = tree.expressions[int(each.name) - 1].unalias()
            if (kind := each.key.upper() if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets) else "") != "":
                kind = kind.replace("GROUPINGSETS", "GROUPING SETS")
                help = "SELECT each grouping by itself, and combine them: UNION ALL"
                raise self.query.refuse(written, f"{kind} has no operator", help)
            meaning = "" if isinstance(each, exp.Literal) or has_aggregate(each) else read.columns.meaning(each)
            own = read.columns.name(each)
            name = shown.get(meaning, own if len(getattr(each, "parts", "")) > 1 or own not in renamed else "")
            if not name:
                help = "select the same expression AS a name, and group by the expression, or by its place"
                raise self.query.refuse(written, "this key is no column of the stream", help)
            if keys.setdefault(name, meaning) != meaning:
                raise self.query.refuse(written, f"two keys are called {name!r}", "name one of them differently: AS")
            if name != own:
                computed[name] = read.columns.text(each)
        return keys, computed

    def _arranged(self, tree: exp.Select, stream: Stream, groups: Groups, given: Sequence[str]) -> Stream:
        if groups.are_output_columns(given):
            return stream
        columns = [text if text == quoted(name) else f"{text} AS {quoted(name)}" for text, name in groups.columns]
        return self._stage(tree, stream, groups.having, columns)

    # -- the first rows of each key ------------------------------------------------------------------------

    def _top(self, tree: exp.Select, first_rows: Ranked) -> _Input:
        """Return the first rows of each key, and what else the SELECT around them asks for."""
        from sqlglot import exp

        inner, window = first_rows.inner, first_rows.numbered.this
        refuse_other_parts(self.query, from_of(tree).this)
        refuse_other_parts(self.query, inner)
        refuse_functions(self.query, inner)
        others = [each for each in inner.expressions if each is not first_rows.numbered]
        more = [part for part in ("joins", "group", "having", "distinct", "with_", "with") if inner.args.get(part)]
        read = self._read(inner) if not more else None
        if read is None or len(others) != 1 or not read.columns.is_all(others[0]):
            raise self.query.refuse(inner, "a rank beside columns", "choose columns outside")
        source, columns = read.stream, read.columns
        if read.where is not None:
            source = source.where(read.where, name=self._uid("rows", inner, last=False))
        by = [self._column(each, columns) for each in window.args.get("partition_by") or []]
        order = window.args.get("order")
        if not by or order is None:
            raise self.query.refuse(window, "a rank without a key or an order", "say PARTITION BY and ORDER BY")
        for each in order.expressions:
            if each.args.get("nulls_first"):
                raise self.query.refuse(each, "nulls first", "write NULLS LAST: that is where they are here")
        terms = [(self._column(each.this, columns), bool(each.args.get("desc"))) for each in order.expressions]
        outside = StreamColumns(self.query, from_of(tree).this.alias)
        name, rest = first_rows.numbered.alias, first_rows.other_conditions
        where = outside.text(rest) if rest is not None else None
        asked = [*tree.expressions, *filter(None, (rest, tree.args.get("group"), tree.args.get("having")))]
        is_shown = any(
            each.name == name if isinstance(each, exp.Column) else not is_counted(each)
            for part in asked
            for each in part.find_all(exp.Column, exp.Star)
        )
        is_number = isinstance(window.this, exp.RowNumber)
        if first_rows.n == 1 and is_number and not is_shown and all(desc for _, desc in terms):
            uid = self._uid("latest", tree, last=False)
            with self._record_place(first_rows.numbered):
                newest = source.latest(by=by, order_by=[each for each, _ in terms], uid=uid, **self._forgetting())
            return _Input(newest, outside, where)
        order_by = [f"{each} {'desc' if desc else 'asc'}" for each, desc in terms]
        ties = "row_number" if is_number else "rank" if isinstance(window.this, exp.Rank) else "dense_rank"
        uid = self._uid("top", tree, last=False)
        with self._record_place(first_rows.numbered):
            forgetting = self._forgetting()
            first = source.top_n(first_rows.n, by=by, order_by=order_by, rank=ties, uid=uid, **forgetting)
        renamed = self.pipeline.stage(first, name=self._uid("numbered", tree, last=False))(_renamed("rank", name))
        return _Input(renamed, outside, where)

    def _column(self, node: exp.Expression, columns: Columns) -> str:
        if not (name := columns.name(node)):
            raise self.query.refuse(node, "this is no column", "compute it in a SELECT around the stream first")
        return name

    # -- joins ---------------------------------------------------------------------------------------------

    def _joined(self, tree: exp.Select) -> _Input:
        if any(each.is_star for each in tree.expressions):
            raise self.query.refuse(tree.expressions[0], "* of a JOIN", "name the columns")
        stream, first = self._from(tree)
        sides = JoinedColumns(self.query, [first], event_times={first: self.pipeline._event_time_of(stream.name)})
        joined = self.pipeline.stage(stream, name=self._uid("left", tree, last=False))(_prefixed(first, {}))
        conditions: list[exp.Expression] = []
        for join in tree.args["joins"]:
            with self._record_place(join.args.get("on") or next(iter(join.args.get("using") or ()), join)):
                joined, rest = self._join(tree, join, joined, sides)
            if conditions and (side := (join.side or "").upper()) in ("FULL", "RIGHT"):
                help = "put the join before it into a SELECT of its own, with that condition"
                raise self.query.refuse(conditions[0], f"a condition before a {side} JOIN", help)
            conditions += rest
        conditions += [tree.args["where"].this] if tree.args.get("where") else []
        where = " AND ".join(f"({sides.text(each)})" for each in conditions)
        return _Input(joined, sides, where or None)

    def _join(self, tree: exp.Select, join: exp.Join, left: Stream, sides: JoinedColumns) -> tuple[Stream, list[Any]]:
        """Join one more stream; return also the conditions that are about the joined rows."""
        refuse_other_parts(self.query, join)
        how = _HOWS.get(f"{join.side} {join.kind}".strip().upper())
        if how is None:
            help = "JOIN, LEFT, RIGHT, FULL, LEFT SEMI and LEFT ANTI JOIN have an operator"
            raise self.query.refuse(join, "this kind of JOIN", help)
        right, theirs = self._source(join.this)
        if sides.alias(theirs):
            raise self.query.refuse(join, f"two sides are called {theirs!r}", "name one of them differently: AS")
        sides.event_times[theirs] = self.pipeline._event_time_of(right.name)
        on, times, rest = self._conditions(join, sides, theirs)
        of_right = [each for each in rest if how in ("left", *LEFT_ONLY) and _is_about(each, theirs)]
        rest = [each for each in rest if each not in of_right]
        if of_right:
            text = StreamColumns(self.query, theirs).text
            where = " AND ".join(f"({text(each)})" for each in of_right)
            right = right.where(where, name=self._uid("right-rows", tree, last=False))
        if rest and how != "inner":
            raise self.query.refuse(rest[0], f"this condition of a {how.upper()} JOIN", _instead(rest[0], how, theirs))
        pairs = {mine: joined_name(theirs, name) for mine, name in on}
        copies: dict[str, str] = {}
        if how == "inner":
            sides.equal |= {other: mine for mine, other in pairs.items()}
        elif how not in LEFT_ONLY:
            # Where a side has no row, its own key is null: so the joined key is a column of its own.
            number = len(sides.aliases)
            keys = {f"on_{number}_{place}": mine for place, mine in enumerate(pairs)}
            left = self.pipeline.stage(left, name=self._uid("keyed", tree, last=False))(_copied(keys))
            copies = {key: name for key, (_, name) in zip(keys, on, strict=True)}
            pairs = {key: key for key in keys}
        if join.args.get("using"):
            sides.shared |= {name: mine for mine, (_, name) in zip(pairs, on, strict=True)}
        if how not in LEFT_ONLY:
            sides.aliases.append(theirs)
        right = self.pipeline.stage(right, name=self._uid("right", tree, last=False))(_prefixed(theirs, copies))
        options: dict[str, Any] = {"how": how, "on": pairs}
        if times is not None:
            low, high, at = times
            options |= {"within": (f"{low:.15g} s", f"{high:.15g} s"), "event_time": at}
        else:
            options |= self._forgetting()
        return left.join(right, **options, uid=self._uid("join", tree, last=False)), rest

    def _conditions(self, join: exp.Expression, sides: JoinedColumns, theirs: str) -> Any:
        """Return the pairs of a column of the left side and one of the right, the bounds of time with both columns, and
        what else is asked for."""
        from sqlglot import exp

        condition, help = join.args.get("on"), f"say ON {sides.aliases[-1]}.… = {theirs}.…"
        if using := join.args.get("using"):
            return [(sides.using(each), each.name) for each in using], None, []
        if condition is None:
            raise self.query.refuse(join, "a JOIN without ON", help)
        on: list[tuple[str, str]] = []
        times: tuple[float, float, tuple[str, str]] | None = None
        rest: list[Any] = []
        for each in conjuncts(condition):
            columns = [each.this, each.args.get("expression")]
            if isinstance(each, exp.EQ) and all(isinstance(column, exp.Column) for column in columns):
                pairs = [column for column in columns if len(column.parts) == 2]
                own = [sides.name(column) for column in pairs if sides.alias(column.table)]
                others = [column.name for column in pairs if column.table.lower() == theirs.lower()]
                if own and others and not any(own[0] == mine or others[0] == other for mine, other in on):
                    on.append((own[0], others[0]))
                    continue
            if isinstance(each, exp.Between) and times is None and (found := self._bounds(each, sides, theirs)):
                times = found
                continue
            rest.append(each)
        if not on:
            raise self.query.refuse(join, "a JOIN without equal columns", help)
        if times is None:
            times, rest = self._compared(rest, sides, theirs)
        return on, times, rest

    def _compared(self, conditions: list[Any], sides: JoinedColumns, theirs: str) -> Any:
        """Return the bounds that comparisons set to both sides' event times, and the conditions that are left: `<` and
        `>` leave out the bounds themselves, so they are asked of the joined rows, too."""
        from sqlglot import exp

        found: dict[str, list[tuple[Any, bool, float, bool]]] = {}
        for each in conditions:
            if not isinstance(each, exp.GT | exp.GTE | exp.LT | exp.LTE):
                continue
            with contextlib.suppress(Invalid):  # an interval such as a month: no length of time
                (one, earlier), (other, later) = map(self._shifted, (each.this, each.expression))
                if not all(isinstance(column, exp.Column) and len(column.parts) == 2 for column in (one, other)):
                    continue
                is_least, seconds = isinstance(each, exp.GT | exp.GTE), later - earlier
                if one.table.lower() != theirs.lower():
                    one, other, is_least, seconds = other, one, not is_least, -seconds
                alias = sides.alias(other.table)
                if one.table.lower() != theirs.lower() or not alias:
                    continue
                if (other.name, one.name) == (sides.event_times[alias], sides.event_times[theirs]):
                    has_interval = bool(each.find(exp.Interval))
                    found.setdefault(sides.name(other), []).append((each, is_least, seconds, has_interval))
        for mine, bounds in found.items():
            least = [seconds for _, is_least, seconds, _ in bounds if is_least]
            most = [seconds for _, is_least, seconds, _ in bounds if not is_least]
            if least and most and max(least) <= min(most) and any(has_interval for *_, has_interval in bounds):
                times = max(least), min(most), (mine, joined_name(theirs, str(sides.event_times[theirs])))
                met = [each for each, *_ in bounds if isinstance(each, exp.GTE | exp.LTE)]
                return times, [each for each in conditions if not any(each is one for one in met)]
        return None, conditions

    def _bounds(self, between: exp.Expression, sides: JoinedColumns, theirs: str) -> Any:
        """Return how much earlier and later the other side's time may be. None: this is about something else."""
        from sqlglot import exp

        time: Any = between.this
        (base, before), (same, after) = self._shifted(between.args["low"]), self._shifted(between.args["high"])
        if not all(isinstance(each, exp.Column) for each in (time, base, same)) or base != same:
            return None
        if base is between.args["low"] and same is between.args["high"]:
            return None  # of numbers, for example: times are apart by an interval
        if time.table.lower() == theirs.lower() and sides.alias(base.table):
            return before, after, (sides.name(base), joined_name(theirs, time.name))
        if base.table.lower() == theirs.lower() and sides.alias(time.table):
            return -after, -before, (sides.name(time), joined_name(theirs, base.name))
        return None

    def _shifted(self, node: exp.Expression) -> tuple[Any, float]:
        from sqlglot import exp

        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            seconds = seconds_of(self.query, node.expression)
            return node.this, seconds if isinstance(node, exp.Add) else -seconds
        return node, 0.0

    # -- what all need -------------------------------------------------------------------------------------

    def _stage(self, tree: exp.Select, source: Stream, where: str | None, columns: Sequence[str]) -> Stream:
        return source.select(*columns, where=where, name=self._uid("select", tree))

    def _forgetting(self) -> Mapping[str, Any]:
        """Return when an operator forgets what it would keep permanently."""
        self.expires = True
        return self.expiry

    def _uid(self, kind: str, tree: exp.Expression, *, last: bool = True) -> str:
        """Return the name of a part: that of the statement for what the outermost SELECT ends with."""
        if last and tree is self.query.tree and not (kind != "distinct" and tree.args.get("distinct")):
            return self.name
        self.kinds[kind] = number = self.kinds.get(kind, 0) + 1
        return f"{self.name}-{kind}" + (f"-{number}" if number > 1 else "")


@dataclass(frozen=True)
class _Input:
    """What a SELECT reads: a stream, or several that are joined."""

    stream: Stream
    columns: Columns
    where: str | None
    """Which of its rows."""


def _places(tree: exp.Select) -> list[str]:
    """Return the places that GROUP BY can name."""
    return [str(place) for place in range(1, len(tree.expressions) + 1)]


def _inline_rank(tree: Any) -> None:
    """Put a rank that WITH names where it is read, with its bound: they are one operator."""
    from sqlglot import exp

    found = from_of(tree)
    if found is None or not isinstance(found.this, exp.Table) or found.this.db:
        return
    name = found.this.name.lower()
    named = [cte for cte in tree.ctes if cte.alias.lower() == name and any(map(is_rank, cte.walk()))]
    readers = [each for each in tree.find_all(exp.Table) if each.name.lower() == name]
    if len(named) == len(readers) == 1:
        alias = exp.TableAlias(this=exp.to_identifier(found.this.alias or found.this.name))
        select = named[0].this
        named[0].pop()
        found.this.replace(exp.Subquery(this=select, alias=alias))


def _instead(condition: exp.Expression, how: str, theirs: str) -> str:
    """Return what to write instead of a condition in ON of a JOIN that is not inner.

    It says which rows find another one, and rows that find none come all the same: a filter would lose them. A key that
    is null finds none either.
    """
    from sqlglot import exp

    sides = {each.parts[0].name for each in condition.find_all(exp.Column) if len(each.parts) > 1}
    if len(sides) == 1:
        (side,) = sides
        text = condition.sql("spark")[:_MAX_QUOTED_LENGTH]
        return (
            f"in a SELECT around {side}, add CASE WHEN {text} THEN key END AS key_if, and "
            "join by key_if in place of the key: a filter would lose rows that come without a partner"
        )
    if how == "full":
        return "without a partner under it, rows cannot be told here: use an inner JOIN, or the streams' own join(…)"
    of = theirs if how == "right" else "the left side"
    return (
        f"join under it with JOIN in a SELECT of its own, and {how.upper()} JOIN the result by what tells each row of "
        f"{of} from all others: a filter would lose rows that come without a partner"
    )


def _is_about(condition: exp.Expression, alias: str) -> bool:
    """Return whether a condition is about the columns of one side only."""
    from sqlglot import exp

    columns = condition.find_all(exp.Column)
    return all(len(each.parts) > 1 and each.parts[0].name.lower() == alias.lower() for each in columns)


_MAX_QUOTED_LENGTH = 60
"""How much of a condition a help repeats."""


@cache
def _options(operator: str) -> frozenset[str]:
    """Return the names of an operator's options."""
    from tidegate.pipeline.declare import Stream

    parameters = inspect.signature(getattr(Stream, operator)).parameters.values()
    return frozenset(each.name for each in parameters if each.kind is not each.VAR_KEYWORD)


def _unchanged(rows: Any) -> Any:
    return rows


def _keyed(where: str | None, computed: Mapping[str, str]) -> Callable[[Any], Any]:
    keys = dict(computed)

    def keyed(frame: Any) -> Any:
        from pyspark.sql import functions as F

        filtered = frame if where is None else frame.where(where)
        return filtered.withColumns({name: F.expr(text) for name, text in keys.items()})

    return keyed


def _prefixed(alias: str, copies: Mapping[str, str]) -> Callable[[Any], Any]:
    """copies: more columns, each with the one that it is a copy of."""
    copied = dict(copies)

    def prefixed(frame: Any) -> Any:
        from pyspark.sql import functions as F

        more = (F.col(quoted(name)).alias(copy) for copy, name in copied.items())
        names = [joined_name(alias, name) for name in frame.columns]
        return frame.select("*", *more).toDF(*names, *copied) if copied else frame.toDF(*names)

    return prefixed


def _copied(copies: Mapping[str, str]) -> Callable[[Any], Any]:
    copied = dict(copies)

    def with_copies(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.withColumns({copy: F.col(quoted(name)) for copy, name in copied.items()})

    return with_copies


def _renamed(old: str, new: str) -> Callable[[Any], Any]:
    def renamed(frame: Any) -> Any:
        return frame.withColumnRenamed(old, new)

    return renamed
