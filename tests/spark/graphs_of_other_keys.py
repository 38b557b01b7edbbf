"""Random graphs in which what goes by other keys follows what gives a changelog, and what plain Python says of them.

Each seed has a graph of its own: chains of an operator that gives a changelog (MAKERS), one that takes it by other
columns (FOLLOWERS), now and then a third one; and behind each of them a table that goes by random keys. Seeds go
through all pairs of both. Streams have three columns of few different numbers, or null, so that rows share keys;
between operators columns are chosen anew: a key continues under another name, or is lost. Some rows are late, some
states expire.

What must hold: of each stream that replaces rows all that was given, and not taken back, is what plain Python says,
each row as often; each table has one row of each key that a row holds, and that row holds; tables of rows that are
final have the newest row of each key, unless that removes it. Where keys are forgotten, nothing takes back the last row
of a life: a table keeps it, and shows the next life's beside it if it goes by more than the forgotten key.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.spark.changelog_check import plain_rows
from tests.spark.random_cuts import Batches, Event, Found, Graph, Row
from tests.spark.small_pipeline import sources
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert

__all__ = ["FOLLOWERS", "MAKERS", "OTHER_KEYS", "drawn", "pairs_of"]

MAKERS = (
    "aggregate", "totals", "collect", "latest", "top", "ranks", "outer", "window", "every", "union", "process", "first",
    "fading",
)  # fmt: skip
FOLLOWERS = ("aggregate", "totals", "latest", "top", "ranks", "join", "every", "union", "where")
OF_ROWS = ("window", "process", "first", "fading")
"""What goes by event time, or by checkpoints, and so takes a source's rows themselves."""
CHAINS = 2
"""So many pairs of both has one graph."""
LARGEST = 200
"""With more rows than that nothing is joined."""

SCHEMA = "a long, b long, c long, id long, at timestamp"
COLUMNS = ("a", "b", "c")
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATE, FADES = 20 * MINUTE, 30 * MINUTE
"""How long the watermark waits, and how long a key is remembered where keys are forgotten."""

Value = int | None
Term = tuple[str, Callable[[Row], Value]]
"""A column in Spark's SQL, and what it is of a row."""
Hold = Callable[[Batches], list[Row]]
"""The rows that hold behind these checkpoints."""
Changes = Callable[[Batches], Iterator[tuple[list[Row], list[Row]]]]
"""By checkpoint, the rows that are taken back, and those that are given."""
Declare = Callable[[Mapping[str, Any]], Any]
"""Makes a stream of those before it, by their names."""


@dataclass(frozen=True)
class Node:
    """A stream of three columns."""

    name: str
    declare: Declare
    hold: Hold
    replaces: bool
    told_apart_by: tuple[str, ...] = ()
    """Of an operator that forgets rows: its table must go by these."""
    changes: Changes | None = None
    """Of such an operator: the row of a key that was forgotten is never taken back, so a table may still show it."""


@dataclass(frozen=True)
class Made:
    """What an operator gives, before columns are chosen."""

    declare: Declare
    hold: Hold
    terms: list[Term]
    replaces: bool


def column(name: str) -> Term:
    return name, lambda row: row[name]


def by_value(value: Value) -> tuple[bool, int]:
    """As Spark orders it: null is least."""
    return value is not None, value or 0


def of_source(batches: Batches, source: str) -> list[list[Row]]:
    return [[row for name, row in batch if name == source] for batch in batches]


def watermarks(rows: Sequence[Sequence[Row]]) -> Iterator[tuple[datetime | None, datetime | None, Sequence[Row]]]:
    """Each checkpoint's rows, with the watermark as of the one before and with them."""
    newest: datetime | None = None
    for batch in rows:
        before = newest
        newest = max([*([newest] if newest else []), *(row["at"] for row in batch)], default=None)
        yield (before - LATE if before else None), (newest - LATE if newest else None), batch


def groups(rows: Sequence[Row], by: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return found


# -- aggregates ----------------------------------------------------------------------------------------------


def known(rows: Sequence[Row], name: str) -> list[int]:
    return [row[name] for row in rows if row[name] is not None]


Function = tuple[str, Callable[[Sequence[Row]], Any], str]
"""The call, its result of some rows, and a number made of the result."""


def functions_of(name: str, *, grows: bool) -> list[Function]:
    """grows: no row is ever taken back."""
    any_row: list[Function] = [
        ("count(*)", len, "{}"),
        (f"count({name})", lambda rows: len(known(rows, name)), "{}"),
        (f"sum({name})", lambda rows: sum(known(rows, name)) if known(rows, name) else None, "{}"),
        (f"count(distinct {name})", lambda rows: len(set(known(rows, name))), "{}"),
        (f"count_if({name} % 2 = 0)", lambda rows: sum(v % 2 == 0 for v in known(rows, name)), "{}"),
        (
            f"count(distinct {name}) filter (where c > 2)",
            lambda rows: len({row[name] for row in rows if row[name] is not None and (row["c"] or 0) > 2}),
            "{}",
        ),
        (
            f"bool_or({name} > 1)",
            lambda rows: int(any(v > 1 for v in known(rows, name))) if known(rows, name) else None,
            "CAST({} AS long)",
        ),
    ]
    growing: list[Function] = [
        (f"min({name})", lambda rows: min(known(rows, name), default=None), "{}"),
        (f"max({name})", lambda rows: max(known(rows, name), default=None), "{}"),
        (
            f"collect_set({name}, 3)",
            lambda rows: sum(sorted(set(known(rows, name)))[:3]),
            "aggregate({}, 0L, (s, x) -> s + x)",
        ),
    ]
    return any_row + (growing if grows else [])


@dataclass
class Drawing:
    """Draws one seed's graph. What follows what is fixed by the seed's place among all pairs."""

    dice: random.Random
    events: list[Event]
    nodes: list[Node] = field(default_factory=list)

    def chain(self, maker: str, follower: str) -> None:
        node = self.grow(maker, self.dice.choice(self.nodes[:2]))
        if not node.told_apart_by:
            node = self.grow(follower, node)
            if self.dice.random() < 0.3:
                self.grow(self.dice.choice(FOLLOWERS), node)

    def grow(self, kind: str, source: Node) -> Node:
        """One more stream behind another one."""
        name = f"s{len(self.nodes)}-{kind}"
        if kind in ("every", "outer", "join") and self.is_large(source):
            kind = "aggregate"
        if kind in ("fading", "union", "where"):
            node: Node = getattr(self, f"_{kind}")(name, source)
        elif kind == "every":
            node = self._every(name, source)
        else:
            node = self.chosen(name, getattr(self, f"_{kind}")(f"{name}-it", source))
        self.nodes.append(node)
        return node

    def is_large(self, node: Node) -> bool:
        return len(node.hold([self.events])) > LARGEST

    def some(self, least: int, most: int) -> list[str]:
        return sorted(self.dice.sample(COLUMNS, self.dice.randint(least, most)))

    def other(self, than: Node) -> Node:
        """Another stream, to be joined or united with."""
        there = [node for node in self.nodes if node is not than and not node.told_apart_by and not self.is_large(node)]
        return self.dice.choice(there)

    def chosen(self, name: str, made: Made) -> Node:
        """Three columns of what an operator gives, of rows for which a condition is true."""
        terms = []
        for place in range(3):
            # The first term is a key: more often than not it stays, under whatever name.
            sql, value = made.terms[0] if place == 0 and self.dice.random() < 0.5 else self.dice.choice(made.terms)
            how = self.dice.choice(["", "", "", "third", "zero"])
            if how == "third":
                terms.append((f"{sql} % 3", lambda row, value=value: None if value(row) is None else value(row) % 3))
            elif how == "zero":
                terms.append((f"coalesce({sql}, 0)", lambda row, value=value: value(row) or 0))
            else:
                terms.append((sql, value))
        self.dice.shuffle(terms)
        columns = [f"{sql} AS {name}" for (sql, _), name in zip(terms, COLUMNS, strict=True)]
        condition, is_true = self.condition(made.terms)
        in_python = self.dice.random() < 0.3

        def declare(streams: Mapping[str, Any]) -> Any:
            stream = made.declare(streams)
            if not in_python:
                return stream.select(*columns, where=condition, name=name)

            def staged(rows: Any) -> Any:
                return (rows if condition is None else rows.where(condition)).selectExpr(*columns)

            return stream.pipeline.stage(stream, name=name)(staged)

        def hold(batches: Batches) -> list[Row]:
            rows = (row for row in made.hold(batches) if is_true(row))
            return [{name: value(row) for name, (_, value) in zip(COLUMNS, terms, strict=True)} for row in rows]

        return Node(name, declare, hold, made.replaces)

    def condition(self, terms: Sequence[Term]) -> tuple[str | None, Callable[[Row], bool]]:
        if self.dice.random() < 0.6:
            return None, lambda row: True
        sql, value = self.dice.choice(terms)
        bound = self.dice.choice([0, 1, 3])
        return f"{sql} > {bound}", lambda row: value(row) is not None and value(row) > bound  # type: ignore[operator]

    # -- what gives a changelog, or takes one

    def _aggregate(self, uid: str, source: Node, least: int = 1) -> Made:
        by = self.some(least, 2) if least else []
        functions = [
            self.dice.choice(functions_of(self.dice.choice(COLUMNS), grows=not source.replaces)) for _ in range(2)
        ]
        return self.aggregated(uid, source, by, functions)

    def aggregated(self, uid: str, source: Node, by: list[str], functions: Sequence[Function]) -> Made:
        calls = {f"r{place}": call for place, (call, _, _) in enumerate(functions)}
        results: list[Term] = []
        for place, (_, _, number) in enumerate(functions):
            results.append((number.format(f"r{place}"), lambda row, name=f"r{place}": row[name]))

        def hold(batches: Batches) -> list[Row]:
            return [
                dict(zip(by, key, strict=True)) | {f"r{place}": of(rows) for place, (_, of, _) in enumerate(functions)}
                for key, rows in groups(source.hold(batches), by).items()
            ]

        def declare(streams: Mapping[str, Any]) -> Any:
            return streams[source.name].aggregate(by=by, uid=uid, **calls)

        return Made(declare, hold, [*map(column, by), *results], replaces=True)

    def _totals(self, uid: str, source: Node) -> Made:
        return self._aggregate(uid, source, least=0)

    def _collect(self, uid: str, source: Node) -> Made:
        source = self.dice.choice(self.nodes[:2])
        name = self.dice.choice(COLUMNS)
        total = "aggregate({}, 0L, (s, x) -> s + x)"
        listed: Function = (f"collect_list({name}, 4)", lambda rows: sum(sorted(known(rows, name))[:4]), total)
        return self.aggregated(uid, source, self.some(1, 2), [listed, ("count(*)", len, "{}")])

    def _latest(self, uid: str, source: Node) -> Made:
        by = self.some(1, 2)
        order = [name for name in COLUMNS if name not in by]
        self.dice.shuffle(order)

        def hold(batches: Batches) -> list[Row]:
            of_key = groups(source.hold(batches), by).values()
            return [max(rows, key=lambda row: [by_value(row[name]) for name in order]) for rows in of_key]

        def declare(streams: Mapping[str, Any]) -> Any:
            return streams[source.name].latest(by=by, order_by=order, uid=uid)

        return Made(declare, hold, [column(name) for name in (*by, *order)], replaces=True)

    def _top(self, uid: str, source: Node) -> Made:
        by = self.some(1, 2)
        return self.ranked(uid, source, by, [name for name in COLUMNS if name not in by], "row_number")

    def _ranks(self, uid: str, source: Node) -> Made:
        by = self.some(1, 2)
        order = [self.dice.choice([name for name in COLUMNS if name not in by])]
        return self.ranked(uid, source, by, order, self.dice.choice(["rank", "dense_rank"]))

    def ranked(self, uid: str, source: Node, by: list[str], order: list[str], rank: str) -> Made:
        n, ways = self.dice.choice([1, 2, 3]), {name: self.dice.choice(["asc", "desc"]) for name in order}

        def hold(batches: Batches) -> list[Row]:
            found = []
            for rows in groups(source.hold(batches), by).values():
                places = in_order(rows, ways)
                for place, row in enumerate(places, 1):
                    better = list(itertools.takewhile(lambda other, row=row: not alike(other, row, order), places))
                    if rank == "rank":
                        place = 1 + len(better)
                    elif rank == "dense_rank":
                        place = 1 + len({tuple(other[name] for name in order) for other in better})
                    if place <= n:
                        found.append({**row, "rank": place})
            return found

        def declare(streams: Mapping[str, Any]) -> Any:
            order_by = [f"{name} {way}" for name, way in ways.items()]
            return streams[source.name].top_n(n, by=by, order_by=order_by, rank=rank, uid=uid)

        number: Term = ("CAST(rank AS long)", lambda row: row["rank"])
        others = [column(name) for name in COLUMNS if name not in by]
        return Made(declare, hold, [*map(column, by), *others, number], replaces=True)

    def _outer(self, uid: str, source: Node) -> Made:
        return self.joined(uid, source, self.dice.choice(["left", "right", "full", "anti"]))

    def _join(self, uid: str, source: Node) -> Made:
        return self.joined(uid, source, self.dice.choice(["inner", "left", "right", "full", "semi", "anti"]))

    def joined(self, uid: str, source: Node, how: str) -> Made:
        other = self.other(than=source)
        ours = self.dice.sample(COLUMNS, self.dice.choice([1, 1, 2]))
        theirs = self.dice.sample(COLUMNS, len(ours))
        rest = [name for name in COLUMNS if name not in theirs]
        one_sided = how in ("semi", "anti")

        def beside(row: Row | None) -> Row:
            return {f"p_{name}": None if row is None else row[name] for name in rest}

        def hold(batches: Batches) -> list[Row]:
            left, right = source.hold(batches), other.hold(batches)
            of_key = groups(right, theirs)
            met: set[tuple[Any, ...]] = set()
            found = []
            for row in left:
                key = tuple(row[name] for name in ours)
                partners = of_key.get(key, []) if None not in key else []
                met |= {key} if partners else set()
                if one_sided:
                    found += [row] if bool(partners) == (how == "semi") else []
                else:
                    found += [row | beside(partner) for partner in partners]
                    found += [row | beside(None)] if not partners and how in ("left", "full") else []
            for key, rows in of_key.items() if how in ("right", "full") else ():
                if key not in met:
                    alone = dict.fromkeys(COLUMNS) | dict(zip(ours, key, strict=True))
                    found += [alone | beside(row) for row in rows]
            return found

        def declare(streams: Mapping[str, Any]) -> Any:
            on = dict(zip(ours, theirs, strict=True))
            return streams[source.name].join(streams[other.name], on=on, how=how, prefix="p_", uid=uid)

        terms = [column(name) for name in (*ours, *(name for name in COLUMNS if name not in ours))]
        terms += [] if one_sided else [column(f"p_{name}") for name in rest]
        grows = how in ("inner", "semi") and not source.replaces and not other.replaces
        return Made(declare, hold, terms, replaces=not grows)

    def _every(self, name: str, source: Node) -> Node:
        few = self.dice.choice([2, 3])
        if not source.replaces:
            source = self.grow("latest", source)

        def hold(batches: Batches) -> list[Row]:
            return source.hold(batches[: len(batches) // few * few])

        return Node(name, lambda streams: streams[source.name].every(few, uid=name), hold, replaces=True)

    def _union(self, name: str, source: Node) -> Node:
        if not source.replaces:
            source = self.grow("latest", source)
        other = self.other(than=source)

        def declare(streams: Mapping[str, Any]) -> Any:
            return streams[source.name].union(streams[other.name], name=name)

        return Node(name, declare, lambda batches: source.hold(batches) + other.hold(batches), replaces=True)

    def _where(self, name: str, source: Node) -> Node:
        return self.chosen(name, Made(lambda streams: streams[source.name], source.hold, list(map(column, COLUMNS)),
                                      source.replaces))  # fmt: skip

    # -- what takes a source's rows themselves

    def _window(self, uid: str, _: Node) -> Made:
        source, by = self.dice.choice(["orders", "pays"]), self.some(0, 1)
        allowed = self.dice.choice([0, 0, 30])
        how = {"emit": "update"} if not allowed else {"allowed_lateness": f"{allowed} min", "emit": "update"}

        def hold(batches: Batches) -> list[Row]:
            counted = []
            for before, _, rows in watermarks(of_source(batches, source)):
                for row in rows:
                    start = row["at"] - (row["at"] - START) % (30 * MINUTE)
                    if before is None or start + 30 * MINUTE + allowed * MINUTE > before:
                        counted.append(row | {"start": start})
            return [
                dict(zip(["start", *by], key, strict=True)) | {"n": len(rows), "s": sum(known(rows, "c"))}
                for key, rows in groups(counted, ["start", *by]).items()
            ]

        def declare(streams: Mapping[str, Any]) -> Any:
            return streams[source].window(tumbling="30 min", by=by, uid=uid, n="count(*)", s="sum(c)", **how)

        def half(row: Row) -> int:
            return int((row["start"] - START) / (30 * MINUTE))

        micros = int(START.timestamp() * 1_000_000)
        start: Term = (f"((unix_micros(window_start) - {micros}) DIV 1800000000)", half)
        return Made(declare, hold, [start, *map(column, by), column("n"), column("s")], replaces=True)

    def _process(self, uid: str, _: Node) -> Made:
        source = self.dice.choice(["orders", "pays"])

        def hold(batches: Batches) -> list[Row]:
            counts: Counter[Any] = Counter()
            sums: Counter[Any] = Counter()
            found = []
            for rows in of_source(batches, source):
                for row in sorted(rows, key=lambda row: row["at"]):
                    counts[row["a"]] += 1
                    sums[row["a"]] += row["c"]
                    found.append({"a": row["a"], "n": counts[row["a"]], "s": sums[row["a"]]})
            return found

        def declare(streams: Mapping[str, Any]) -> Any:
            decorate = streams[source].process(
                by="a", state="n long, s long", output="a long, n long, s long", order_by="at", uid=uid
            )
            return decorate(counts_rows)

        return Made(declare, hold, [column("a"), column("n"), column("s")], replaces=False)

    def _first(self, uid: str, _: Node) -> Made:
        source, by = self.dice.choice(["orders", "pays"]), self.some(1, 2)
        ttl: dict[str, Any] = self.dice.choice([{}, {"state_ttl": "30 min", "ttl_time": "event"}])

        def hold(batches: Batches) -> list[Row]:
            found, written = [], dict[tuple[Any, ...], datetime]()
            for before, now, rows in watermarks(of_source(batches, source)):
                for key, own in groups(rows, by).items():
                    assert now is not None
                    if key not in written or (ttl and before is not None and written[key] <= before - FADES):
                        written[key] = now
                        found.append(min(own, key=lambda row: row["at"]))
            return found

        def declare(streams: Mapping[str, Any]) -> Any:
            return streams[source].deduplicate(by=by, uid=uid, **ttl)

        others = [column(name) for name in COLUMNS if name not in by]
        return Made(declare, hold, [*map(column, by), *others], replaces=False)

    def _fading(self, name: str, _: Node) -> Node:
        source = self.dice.choice(["orders", "pays"])

        def changes(batches: Batches) -> Iterator[tuple[list[Row], list[Row]]]:
            last: dict[Value, Row] = {}
            counted: dict[Value, list[Row]] = {}
            written: dict[Value, datetime] = {}
            for before, now, rows in watermarks(of_source(batches, source)):
                back, new = [], []
                for (key,), own in groups(rows, ["a"]).items():
                    assert now is not None
                    lives = key in written and (before is None or written[key] > before - FADES)
                    back += [last[key]] if lives else []
                    counted[key] = [*(counted[key] if lives else []), *own]
                    written[key] = now
                    total = sum(known(counted[key], "c")) if known(counted[key], "c") else None
                    last[key] = {"a": key, "b": len(counted[key]), "c": total}
                    new.append(last[key])
                yield back, new

        def hold(batches: Batches) -> list[Row]:
            held: list[Row] = []
            for back, new in changes(batches):
                for row in back:
                    held.remove(row)
                held += new
            return held

        def declare(streams: Mapping[str, Any]) -> Any:
            calls: dict[str, Any] = {"b": "count(*)", "c": "sum(c)"}
            return streams[source].aggregate(by="a", uid=name, state_ttl="30 min", ttl_time="event", **calls)

        return Node(name, declare, hold, replaces=True, told_apart_by=("a",), changes=changes)


def counts_rows(key: Row, rows: Any, state: Any, timers: Any) -> Iterator[Row]:
    """Says of each row of a key how many there were, and the sum of them."""
    for row in rows.to_pylist():
        state.n, state.s = (state.n or 0) + 1, (state.s or 0) + row["c"]
        yield {"a": key["a"], "n": state.n, "s": state.s}


def alike(one: Row, other: Row, names: Sequence[str]) -> bool:
    return all(one[name] == other[name] for name in names)


def in_order(rows: Sequence[Row], ways: Mapping[str, str]) -> list[Row]:
    """Null is last, whatever the way."""

    def place(row: Row) -> list[tuple[bool, int]]:
        values = ((row[name], 1 if way == "asc" else -1) for name, way in ways.items())
        return [(value is None, (value or 0) * sign) for value, sign in values]

    return sorted(rows, key=place)


class Streams(dict[str, Any]):
    """The streams of a graph by name, each made when somebody first asks for it: what nobody reads is refused."""

    def __init__(self, pipeline: Pipeline, nodes: Mapping[str, Node]) -> None:
        super().__init__()
        self.pipeline, self.nodes = pipeline, nodes

    def __missing__(self, name: str) -> Any:
        if name in self.nodes:
            self[name] = self.nodes[name].declare(self)
        else:
            self[name] = sources(self.pipeline, SCHEMA, name, event_time="at", watermark="20 min")
        return self[name]


# -- tables --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of a stream's rows."""

    node: Node
    keys: tuple[str, ...] = ()
    """None: rows are only added."""
    removes: bool = False
    """Of rows that are final: whether some of them remove their key."""

    @property
    def name(self) -> str:
        return f"t-{self.node.name}"

    @property
    def order(self) -> list[str]:
        """Of rows that are final: which one of a key is the newest."""
        return [name for name in COLUMNS if name not in self.keys]

    def age(self, row: Row) -> list[tuple[bool, int]]:
        return [by_value(row[name]) for name in self.order]

    def sink(self) -> Any:
        path = f"tables/{self.name}"
        if not self.keys:
            return DeltaAppend(path)
        if self.node.replaces:
            return DeltaUpsert(path, keys=self.keys)
        delete_when = "c % 3 = 0" if self.removes else None
        return DeltaUpsert(path, keys=self.keys, order_by=self.order, delete_when=delete_when)

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def must_show(self, batches: Batches) -> list[Row] | None:
        """All its rows. None: of those that share a key, it may show any one."""
        if not self.keys:
            return self.node.hold(batches)
        if self.node.changes is not None:
            shown: dict[tuple[Any, ...], Row] = {}
            for back, new in self.node.changes(batches):
                for row in back:
                    del shown[self.key(row)]
                shown |= {self.key(row): row for row in new}
            return list(shown.values())
        if self.node.replaces:
            return None
        newest = [max(rows, key=self.age) for rows in groups(self.node.hold(batches), self.keys).values()]
        return [row for row in newest if not (self.removes and row["c"] is not None and row["c"] % 3 == 0)]

    def wrong(self, batches: Batches, shown: list[Row]) -> Iterator[str]:
        """What the table shows that is not so."""
        there, must = plain(shown), self.must_show(batches)
        if must is not None:
            if there != (wanted := plain(must)):
                yield f"too much {list(there - wanted)}, missing {list(wanted - there)}"
            return
        held = self.node.hold(batches)
        of_key, shown_of_key = groups(held, self.keys), groups(shown, self.keys)
        if lost := of_key.keys() - shown_of_key.keys():
            yield f"lost {self.keys} of {lost}, where {[of_key[key] for key in lost]} hold"
        if left := shown_of_key.keys() - of_key.keys():
            yield f"still shows {[shown_of_key[key] for key in left]}, which nobody holds"
        twice = [rows for rows in shown_of_key.values() if len(rows) > 1]
        yield from (f"shows several rows of a key: {rows}" for rows in twice)
        if stale := there - plain(held):
            yield f"shows {list(stale)}, which do not hold: {[of_key.get(key) for key in groups(shown, self.keys)]}"


def plain(rows: Sequence[Row]) -> Counter[Any]:
    return plain_rows([{name: row[name] for name in COLUMNS} for row in rows])


def pairs_of(seed: int) -> list[tuple[str, str]]:
    """What the seed's chains begin with. Side by side are pairs that differ in both."""
    pairs = list(itertools.product(MAKERS, FOLLOWERS))
    return [pairs[(seed * CHAINS + place) * 10 % len(pairs)] for place in range(CHAINS)]


def drawn(seed: int) -> Graph:
    """The graph of a seed."""
    dice = random.Random(f"other keys {seed}")
    drawing = Drawing(dice, events_of(dice))
    for source in ("orders", "pays"):
        drawing.nodes.append(
            Node(
                f"{source}-plain",
                lambda streams, source=source: streams[source].select(*COLUMNS, name=f"{source}-plain"),
                lambda batches, source=source: list(itertools.chain(*of_source(batches, source))),
                replaces=False,
            )
        )
    for pair in pairs_of(seed):
        drawing.chain(*pair)
    tables = [Table(drawing.nodes[1], tuple(drawing.some(1, 2)), removes=True)]
    for node in drawing.nodes[2:]:
        keys = tuple(drawing.some(1, 3 if node.replaces else 2))
        if node.told_apart_by:
            tables.append(Table(node, tuple(dict.fromkeys((*node.told_apart_by, *keys)))))
        elif node.replaces:
            tables.append(Table(node, keys))
        else:
            tables.append(Table(node, keys if dice.random() < 0.6 else (), dice.random() < 0.6))

    def build(pipeline: Pipeline) -> None:
        streams = Streams(pipeline, {node.name: node for node in drawing.nodes})
        for table in tables:
            streams[table.node.name].sink(table.name, table.sink())

    def check(batches: Batches, found: Found) -> Iterator[str]:
        for node in drawing.nodes:
            there = found.held.get(node.name)
            if there is None:
                continue
            wanted = plain(node.hold(batches))
            if there != wanted:
                yield f"{node.name} gave too much {list(there - wanted)}, and did not give {list(wanted - there)}"
        for table in tables:
            wrong = table.wrong(batches, found.rows(table.name))
            yield from (f"{table.name} by {table.keys}: {what}" for what in wrong)

    return Graph("keys", build, lambda _: drawing.events, lambda _: {}, check=check)


def events_of(dice: random.Random) -> list[Event]:
    """Rows of two sources, no two of one moment; one in five is late, some of them later than the watermark waits."""
    found: list[Event] = []
    for number in range(dice.choice([10, 20, 30])):
        row: Row = {
            "a": dice.choice([0, 1, 2, None]),
            "b": dice.choice([0, 1, 2, 3, None]),
            "c": dice.randint(0, 6),
            "id": number,
            "at": START + number * 4 * MINUTE + timedelta(microseconds=number),
        }
        found.append((dice.choice(["orders", "pays"]), row))
    places = [place + (dice.choice([3, 6, 15]) if dice.random() < 0.2 else 0) for place in range(len(found))]
    return [event for _, event in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])]


OTHER_KEYS = Graph("keys", lambda _: None, lambda _: [], lambda _: {}, drawn=drawn)
"""Stands for the graphs of all seeds."""
