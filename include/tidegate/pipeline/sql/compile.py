"""From the tree to streams: each part of a SELECT becomes the stage or the operator that is the same.

    FROM a, WHERE, expressions            a stage
    DISTINCT                              deduplicate
    GROUP BY, or aggregates alone         aggregate; without GROUP BY of all rows, by=[]
    GROUP BY over TUMBLE, HOP, SESSION    window
    JOIN, with times BETWEEN              join with `within`; without times, of what both sides hold now; each in turn
    UNION ALL                             union, by the names of the columns
    ROW_NUMBER(), RANK() … <= n           top_n; the newest row by descending columns: latest

What would be something else, or nearly the same, is refused with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate.pipeline.sql.reading import Query, parse_query, seconds_of

if TYPE_CHECKING:
    from sqlglot import exp

    from tidegate.pipeline.declare import Pipeline, Stream

__all__ = ["compile_sql"]

_REFUSED: Final = {
    "limit": "a stream has no end that rows could be counted from: take row_number() per key",
    "offset": "a stream has no end that rows could be counted from: take row_number() per key",
    "order": "a table has no order: order when you read it",
    "sort": "a table has no order: order when you read it",
    "cluster": "a table has no order: order when you read it",
    "distribute": "a table has no order: order when you read it",
    "having": "put a SELECT … WHERE around it",
    "qualify": "write SELECT * FROM (SELECT *, row_number() OVER (…) AS n …) WHERE n <= 3",
    "laterals": "do it in a stage",
    "pivots": "do it in a stage",
    "windows": "do it in a stage",
    "sample": "a retry would draw other rows",
    "into": "give the stream a sink",
    "hint": "leave it out",
}
_CHANGING: Final = ("rand", "randn", "uuid", "now", "current_timestamp", "current_date", "shuffle")
_WINDOW_COLUMNS: Final = ("window_start", "window_end")


def compile_sql(pipeline: Pipeline, text: str, name: str) -> Stream:
    """Declare what a SELECT says; return its stream, which is called `name`."""
    return _Compiler(pipeline, parse_query(text), name).select()


@dataclass
class _Compiler:
    """One statement."""

    pipeline: Pipeline
    query: Query
    name: str
    known: dict[str, Stream] = field(default_factory=dict)
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
        from sqlglot import exp

        if isinstance(tree, exp.Subquery):
            return self._of(tree.this)
        if not isinstance(tree, exp.Select | exp.Union):
            raise self.query.refuse(tree, "only SELECT becomes a stream", "write one SELECT; several streams: one each")
        for part, help in _REFUSED.items():
            if found := tree.args.get(part):
                node = found[0] if isinstance(found, list) else found
                raise self.query.refuse(node, f"{part.upper()} has no operator", help)
        for each in tree.ctes:
            if each.alias in self.known:
                raise self.query.refuse(each, "two parts of WITH have this name", "name one of them differently")
            self.known[each.alias] = self._of(each.this)
        if isinstance(tree, exp.Union):
            return self._united(tree)
        self._check_functions(tree)
        if (ranked := _ranked(tree)) is not None:
            return self._top(tree, *ranked)
        if tree.args.get("joins"):
            return self._joined(tree)
        source, alias = self._from(tree)
        if (window := self._window_of(tree)) is not None:
            return self._windowed(tree, window)
        where = tree.args.get("where")
        if tree.args.get("group") or any(_aggregates(each) for each in tree.expressions):
            return self._grouped(tree, source, where, alias)
        return self._plain(tree, source, where, alias)

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
            parts[:0] = [first.this, first.expression]
        names: list[str] = []
        for each in parts:
            select = each.unnest()
            own = [] if not isinstance(select, exp.Select) else [part.alias_or_name for part in select.expressions]
            if not own or "*" in own or "" in own:
                raise self.query.refuse(each, "a part of a UNION ALL without names", "name the columns of each SELECT")
            if names and own != names:
                help = f"name them alike, in the same order: {', '.join(names)}"
                raise self.query.refuse(each, "a part of a UNION ALL with other columns", help)
            names = own
        streams = [self._of(each) for each in parts]
        return streams[0].union(*streams[1:], name=self._uid("union", tree))

    def _plain(self, tree: exp.Select, source: Stream, where: exp.Expression | None, alias: str) -> Stream:
        columns = [self._text(each, alias) for each in tree.expressions]
        condition = self._text(where.this, alias) if where is not None else None
        if not tree.args.get("distinct"):
            return self._stage(tree, source, condition, columns)
        if any(each.is_star for each in tree.expressions):
            raise self.query.refuse(tree.expressions[0], "DISTINCT * has no key", "name the columns")
        rows = self._stage(tree, source, condition, columns)
        return rows.deduplicate(by=[each.alias_or_name for each in tree.expressions], uid=self._uid("distinct", tree))

    def _from(self, tree: exp.Select) -> tuple[Stream, str]:
        """Return the stream behind FROM, and the name that its columns may be qualified with."""
        found = tree.args.get("from_") or tree.args.get("from")
        if found is None:
            raise self.query.refuse(tree, "it reads no stream", "say FROM, and a stream's name")
        return self._source(found.this)

    def _source(self, node: exp.Expression) -> tuple[Stream, str]:
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            return self._of(node.this), node.alias
        if not isinstance(node, exp.Table):
            raise self.query.refuse(node, "this is no stream", "name one, or put a SELECT in parentheses")
        name = f"{node.db}.{node.name}" if node.db else node.name
        if name in self.query.windows:
            name = self.query.windows[name].stream
        alias = node.alias or node.name
        if name in self.known:
            return self.known[name], alias
        there = self.pipeline.streams
        if name not in there:
            help = f"name one that is declared before: {', '.join(sorted(there))}"
            raise self.query.refuse(node, f"there is no stream {name!r}", help)
        return self.pipeline.stream(name), alias

    # -- aggregates ----------------------------------------------------------------------------------------

    def _window_of(self, tree: exp.Select) -> Any:
        found = tree.args.get("from_") or tree.args.get("from")
        return self.query.windows.get(found.this.name) if found is not None else None

    def _grouped(self, tree: exp.Select, source: Stream, where: exp.Expression | None, alias: str) -> Stream:
        rows, keys, functions, columns = self._keys_and_functions(tree, source, where, alias)
        result = rows.aggregate(
            by=keys, **functions, uid=self._uid("aggregate", tree, last=columns == [*keys, *functions])
        )
        return self._arranged(tree, result, columns, [*keys, *functions])

    def _windowed(self, tree: exp.Select, window: Any) -> Stream:
        source, alias = self._from(tree)
        rows, keys, functions, columns = self._keys_and_functions(tree, source, tree.args.get("where"), alias)
        if not set(_WINDOW_COLUMNS) & set(keys):
            raise self.query.refuse(
                tree, "a window is not grouped by", "GROUP BY window_start, window_end, and the keys"
            )
        by = [key for key in keys if key not in _WINDOW_COLUMNS]
        if window.kind == "SESSION" and sorted(window.partition_by) != sorted(by):
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
        options: dict[str, Any] = {**shapes[window.kind], **functions}
        given = [*_WINDOW_COLUMNS, *by, *functions]
        uid = self._uid("window", tree, last=columns == given)
        result = rows.window(by=by, event_time=window.event_time, uid=uid, **options)
        return self._arranged(tree, result, columns, given)

    def _keys_and_functions(
        self, tree: exp.Select, source: Stream, where: exp.Expression | None, alias: str
    ) -> tuple[Stream, list[str], dict[str, str], list[str]]:
        """Return the rows with all keys as columns, the keys, the aggregates, and the columns as they are selected."""
        from sqlglot import exp

        group = tree.args.get("group")
        grouped = list(group.expressions) if group is not None else []
        named = {each.alias: each.this for each in tree.expressions if isinstance(each, exp.Alias)}
        keys: list[str] = []
        computed: dict[str, str] = {}
        for each in grouped:
            if isinstance(each, exp.Column) and (each.name not in named or named[each.name].name == each.name):
                keys.append(each.name)
                continue
            name = next((name for name, expression in named.items() if expression == each), "")
            if not name or isinstance(each, exp.Literal):
                help = "select the same expression AS a name, and group by the expression, not by its place or name"
                raise self.query.refuse(each, "this key is no column of the stream", help)
            keys.append(name)
            computed[name] = self._text(each, alias)
        functions, columns = {}, []
        for each in tree.expressions:
            if each.is_star:
                raise self.query.refuse(each, "* beside GROUP BY", "name the columns")
            name = each.alias_or_name
            columns.append(name)
            if _aggregates(each):
                functions[name] = self._aggregate_of(each, computed, alias)
            elif name not in keys:
                raise self.query.refuse(each, "this is no key and no aggregate", "GROUP BY it, or compute it outside")
        condition = self._text(where.this, alias) if where is not None else None
        if condition is None and not computed:
            return source, keys, functions, columns
        rows = self.pipeline.stage(source, name=self._uid("rows", tree, last=False))(_keyed(condition, computed))
        return rows, keys, functions, columns

    def _aggregate_of(self, node: exp.Expression, computed: Mapping[str, str], alias: str) -> str:
        """Return the one call that a column of a SELECT with GROUP BY is."""
        from sqlglot import exp

        if not isinstance(node, exp.Alias):
            raise self.query.refuse(node, "an aggregate without a name", "write AS, and a name")
        call = node.this.this if isinstance(node.this, exp.Filter) else node.this
        if not isinstance(call, exp.AggFunc):
            raise self.query.refuse(node, "this computes with an aggregate", "compute in a SELECT around this one")
        for each in node.find_all(exp.Column):
            if each.name in computed:
                raise self.query.refuse(each, "a key that is computed has this name", "name the key differently")
        return self._text(node.this, alias)

    def _arranged(self, tree: exp.Select, stream: Stream, columns: Sequence[str], given: Sequence[str]) -> Stream:
        if list(columns) == list(given):
            return stream
        return self._stage(tree, stream, None, [_quoted(name) for name in columns])

    # -- the first rows of each key ------------------------------------------------------------------------

    def _top(self, tree: exp.Select, inner: exp.Select, numbered: exp.Expression, n: int, rest: Any) -> Stream:
        from sqlglot import exp

        source, alias = self._from(inner)
        window = numbered.this
        others = [each for each in inner.expressions if each is not numbered]
        if len(others) != 1 or not others[0].is_star or inner.args.get("joins") or inner.args.get("group"):
            raise self.query.refuse(inner, "a rank beside columns", "choose columns outside")
        if (where := inner.args.get("where")) is not None:
            source = self.pipeline.stage(source, name=self._uid("rows", inner, last=False))(
                _rows(self._text(where.this, alias), ["*"])
            )
        by = [self._column(each) for each in window.args.get("partition_by") or []]
        order = window.args.get("order")
        if not by or order is None:
            raise self.query.refuse(window, "a rank without a key or an order", "say PARTITION BY and ORDER BY")
        for each in order.expressions:
            if each.args.get("nulls_first"):
                raise self.query.refuse(each, "nulls first", "write NULLS LAST: that is where they are here")
        terms = [(self._column(each.this), bool(each.args.get("desc"))) for each in order.expressions]
        name, condition = numbered.alias, self._text(rest, "") if rest is not None else None
        chosen = [each.name for part in tree.expressions for each in part.find_all(exp.Column)]
        is_shown = any(each.is_star for each in tree.expressions) or name in chosen
        is_number = isinstance(window.this, exp.RowNumber)
        if n == 1 and is_number and not is_shown and all(desc for _, desc in terms):
            newest = source.latest(
                by=by, order_by=[each for each, _ in terms], uid=self._uid("latest", tree, last=False)
            )
            return self._stage(tree, newest, condition, [self._text(each, "") for each in tree.expressions])
        order_by = [f"{each} {'desc' if desc else 'asc'}" for each, desc in terms]
        ties = "row_number" if is_number else "rank" if isinstance(window.this, exp.Rank) else "dense_rank"
        first = source.top_n(n, by=by, order_by=order_by, rank=ties, uid=self._uid("top", tree, last=False))
        renamed = self.pipeline.stage(first, name=self._uid("numbered", tree, last=False))(_renamed("rank", name))
        return self._stage(tree, renamed, condition, [self._text(each, "") for each in tree.expressions])

    def _column(self, node: exp.Expression) -> str:
        from sqlglot import exp

        if not isinstance(node, exp.Column):
            raise self.query.refuse(node, "this is no column", "compute it in a SELECT around the stream first")
        return str(node.name)

    # -- joins ---------------------------------------------------------------------------------------------

    def _joined(self, tree: exp.Select) -> Stream:
        from sqlglot import exp

        if tree.args.get("group") or any(_aggregates(each) for each in tree.expressions):
            raise self.query.refuse(
                tree, "a JOIN and GROUP BY in one SELECT", "put a SELECT … GROUP BY around the join"
            )
        if any(each.is_star for each in tree.expressions):
            raise self.query.refuse(tree.expressions[0], "* of a JOIN", "name the columns")
        stream, first = self._from(tree)
        sides = _JoinedSides(self.query, [first], {})
        joined = self.pipeline.stage(stream, name=self._uid("left", tree, last=False))(_prefixed(first, {}))
        conditions: list[exp.Expression] = []
        for join in tree.args["joins"]:
            joined, rest = self._join(tree, join, joined, sides)
            if conditions and (join.side or "").lower() == "full":
                help = "put the join before it into a SELECT of its own, with that condition"
                raise self.query.refuse(conditions[0], "a condition before a FULL JOIN", help)
            conditions += rest
        conditions += [tree.args["where"].this] if tree.args.get("where") else []
        where = " AND ".join(f"({sides.text(each)})" for each in conditions)
        columns = [
            f"{sides.text(each.this if isinstance(each, exp.Alias) else each)} "
            f"AS {_quoted(each.alias_or_name or self._unnamed(each))}"
            for each in tree.expressions
        ]
        return self._stage(tree, joined, where or None, columns)

    def _join(self, tree: exp.Select, join: exp.Join, left: Stream, sides: _JoinedSides) -> tuple[Stream, list[Any]]:
        """Join one more stream; return also the conditions that are about the joined rows."""
        how = (join.side or "inner").lower()
        if how not in ("inner", "left", "full") or (join.kind or "").upper() not in ("", "INNER", "OUTER"):
            raise self.query.refuse(join, "this kind of JOIN", "JOIN, LEFT JOIN and FULL JOIN have an operator")
        right, theirs = self._source(join.this)
        if theirs in sides.aliases:
            raise self.query.refuse(join, f"two sides are called {theirs!r}", "name one of them differently: AS")
        on, times, rest = self._conditions(join, sides, theirs)
        if rest and how != "inner":
            raise self.query.refuse(
                rest[0], "this condition of an outer join", "put it into a SELECT around that stream"
            )
        pairs = {mine: _inner(theirs, name) for mine, name in on}
        copies: dict[str, str] = {}
        if how == "inner":
            sides.keys |= {other: mine for mine, other in pairs.items()}
        else:  # where a side has no row, its own key is null: so the joined key is a column of its own
            number = len(sides.aliases)
            keys = {f"on_{number}_{place}": mine for place, mine in enumerate(pairs)}
            left = self.pipeline.stage(left, name=self._uid("keyed", tree, last=False))(_copied(keys))
            copies = {key: name for key, (_, name) in zip(keys, on, strict=True)}
            pairs = {key: key for key in keys}
        sides.aliases.append(theirs)
        right = self.pipeline.stage(right, name=self._uid("right", tree, last=False))(_prefixed(theirs, copies))
        options: dict[str, Any] = {"how": how, "on": pairs}
        if times is not None:
            low, high, at = times
            options |= {"within": (f"{low:.15g} s", f"{high:.15g} s"), "event_time": at}
        return left.join(right, **options, uid=self._uid("join", tree, last=False)), rest

    def _unnamed(self, node: exp.Expression) -> str:
        raise self.query.refuse(node, "an expression without a name", "write AS, and a name")

    def _conditions(self, join: exp.Expression, sides: _JoinedSides, theirs: str) -> Any:
        """Return the pairs of a column of the left side and one of the right, the bounds of time with both columns, and
        what else is asked for."""
        from sqlglot import exp

        condition, help = join.args.get("on"), f"say ON {sides.aliases[-1]}.… = {theirs}.…"
        if condition is None:
            raise self.query.refuse(join, "a JOIN without ON", help)
        on: list[tuple[str, str]] = []
        times: tuple[float, float, tuple[str, str]] | None = None
        rest: list[Any] = []
        for each in condition.flatten() if isinstance(condition, exp.And) else [condition]:
            columns = [each.this, each.args.get("expression")]
            if isinstance(each, exp.EQ) and all(isinstance(column, exp.Column) for column in columns):
                own = [sides.name(column) for column in columns if column.table in sides.aliases]
                others = [column.name for column in columns if column.table == theirs]
                if own and others and not any(own[0] == mine or others[0] == other for mine, other in on):
                    on.append((own[0], others[0]))
                    continue
            if isinstance(each, exp.Between) and times is None and (found := self._bounds(each, sides, theirs)):
                times = found
                continue
            rest.append(each)
        if not on:
            raise self.query.refuse(join, "a JOIN without equal columns", help)
        return on, times, rest

    def _bounds(self, between: exp.Expression, sides: _JoinedSides, theirs: str) -> Any:
        """Return how much earlier and later the other side's time may be. None: this is about something else."""
        from sqlglot import exp

        time: Any = between.this
        (base, before), (same, after) = self._shifted(between.args["low"]), self._shifted(between.args["high"])
        if not all(isinstance(each, exp.Column) for each in (time, base, same)) or base != same:
            return None
        if time.table == theirs and base.table in sides.aliases:
            return before, after, (sides.name(base), _inner(theirs, time.name))
        if base.table == theirs and time.table in sides.aliases:
            return -after, -before, (sides.name(time), _inner(theirs, base.name))
        return None

    def _shifted(self, node: exp.Expression) -> tuple[Any, float]:
        from sqlglot import exp

        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            seconds = seconds_of(self.query, node.expression)
            return node.this, seconds if isinstance(node, exp.Add) else -seconds
        return node, 0.0

    # -- what all need -------------------------------------------------------------------------------------

    def _stage(self, tree: exp.Select, source: Stream, where: str | None, columns: Sequence[str]) -> Stream:
        name = self._uid("select", tree)
        return self.pipeline.stage(source, name=name)(_rows(where, columns))

    def _uid(self, kind: str, tree: exp.Expression, *, last: bool = True) -> str:
        """Return the name of a part: that of the statement for what the outermost SELECT ends with."""
        if last and tree is self.query.tree and not (kind != "distinct" and tree.args.get("distinct")):
            return self.name
        self.kinds[kind] = number = self.kinds.get(kind, 0) + 1
        return f"{self.name}-{kind}" + (f"-{number}" if number > 1 else "")

    def _text(self, node: exp.Expression, alias: str) -> str:
        """Return an expression of one stream's columns as Spark writes it."""
        from sqlglot import exp

        def plain(each: exp.Expression) -> exp.Expression:
            if isinstance(each, exp.Column) and each.table:
                if alias and each.table != alias:
                    raise self.query.refuse(
                        each, f"{each.table!r} is not what FROM names", f"write {alias}.{each.name}"
                    )
                return exp.column(each.this.copy())
            return each

        return str(node.copy().transform(plain).sql(dialect="spark"))

    def _check_functions(self, tree: exp.Select) -> None:
        from sqlglot import exp

        for each in _own(tree):
            if isinstance(each, exp.Window):
                if isinstance(each.this, exp.RowNumber | exp.Rank | exp.DenseRank):
                    outer = tree.find_ancestor(exp.Select)
                    if outer is not None and _ranked(outer) is not None:
                        continue
                    raise self.query.refuse(each, "a rank without a bound", "put SELECT … WHERE n <= 3 around it")
                raise self.query.refuse(
                    each, "this window over rows has no operator", "row_number(), rank() and dense_rank() have one"
                )
            if isinstance(each, exp.Select):
                raise self.query.refuse(each, "a subquery in an expression", "JOIN it")
            if isinstance(each, exp.Func) and {each.sql_name().lower(), each.name.lower()} & set(_CHANGING):
                raise self.query.refuse(each, "a retry would compute something else", "take a column of the rows")


@dataclass
class _JoinedSides:
    """The streams that are joined so far, and where their columns are in the joined rows."""

    query: Query
    aliases: list[str]
    keys: dict[str, str]
    """The columns that an inner join has left out, since each is equal to another one."""

    def name(self, node: exp.Column) -> str:
        """Return the name of a column in the joined rows."""
        if node.table not in self.aliases:
            choices = " or ".join(f"{alias}.{node.name}" for alias in self.aliases)
            raise self.query.refuse(node, "a column of either side", f"write {choices}")
        name = _inner(node.table, node.name)
        return self.keys.get(name, name)

    def text(self, node: exp.Expression) -> str:
        """Return an expression of the joined rows as Spark writes it."""
        from sqlglot import exp

        def named(each: exp.Expression) -> exp.Expression:
            if not isinstance(each, exp.Column):
                return each
            return exp.column(exp.to_identifier(self.name(each), quoted=True))

        return str(node.copy().transform(named).sql(dialect="spark"))


def _own(tree: exp.Select) -> Iterator[Any]:
    """Return the parts of a SELECT that are not those of one in its FROM or WITH."""
    from sqlglot import exp

    for part, found in tree.args.items():
        if part in ("from_", "from", "with_", "with"):
            continue
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, exp.Join):
                each = each.args.get("on")
            if isinstance(each, exp.Expression):
                yield from each.walk()


def _ranked(tree: exp.Select) -> Any:
    """Return the SELECT with the rank, its column, the bound, and the other conditions. None: it is no top n."""
    from sqlglot import exp

    found, where = tree.args.get("from_") or tree.args.get("from"), tree.args.get("where")
    inner = found.this.this if found is not None and isinstance(found.this, exp.Subquery) else None
    if not isinstance(inner, exp.Select) or where is None:
        return None
    numbered = [
        each
        for each in inner.expressions
        if isinstance(each, exp.Alias)
        and isinstance(each.this, exp.Window)
        and isinstance(each.this.this, exp.RowNumber | exp.Rank | exp.DenseRank)
    ]
    if len(numbered) != 1:
        return None
    conditions = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    for place, each in enumerate(conditions):
        bound = each.args.get("expression")
        is_bound = isinstance(each.this, exp.Column) and each.this.name == numbered[0].alias and bound is not None
        if not is_bound or not isinstance(bound, exp.Literal) or not bound.name.isdigit():
            continue
        n = int(bound.name) - isinstance(each, exp.LT)
        if isinstance(each, exp.LTE | exp.LT) or (isinstance(each, exp.EQ) and n == 1):
            others = conditions[:place] + conditions[place + 1 :]
            return inner, numbered[0], n, exp.and_(*others) if others else None
    return None


def _aggregates(node: exp.Expression) -> bool:
    from sqlglot import exp

    return any(isinstance(each, exp.AggFunc) and each.find_ancestor(exp.Window) is None for each in node.walk())


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _inner(alias: str, name: str) -> str:
    """Return the name of a side's column within a join."""
    return f"{alias}__{name}"


def _unchanged(rows: Any) -> Any:
    return rows


def _rows(where: str | None, columns: Sequence[str]) -> Callable[[Any], Any]:
    chosen = list(columns)

    def rows(frame: Any) -> Any:
        filtered = frame if where is None else frame.where(where)
        return filtered if chosen == ["*"] else filtered.selectExpr(*chosen)

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

        more = (F.col(_quoted(name)).alias(copy) for copy, name in copied.items())
        names = [_inner(alias, name) for name in frame.columns]
        return frame.select("*", *more).toDF(*names, *copied) if copied else frame.toDF(*names)

    return prefixed


def _copied(copies: Mapping[str, str]) -> Callable[[Any], Any]:
    copied = dict(copies)

    def with_copies(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.withColumns({copy: F.col(_quoted(name)) for copy, name in copied.items()})

    return with_copies


def _renamed(old: str, new: str) -> Callable[[Any], Any]:
    def renamed(frame: Any) -> Any:
        return frame.withColumnRenamed(old, new)

    return renamed
