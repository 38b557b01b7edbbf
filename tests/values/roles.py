"""The ways in which an operator or a sink uses a column, and Spark's own answer to each over all rows at once.

Rows have `id` (rising as they arrive), `k` (few values), `n` (as many as rows, in no order), `at` (rising) and the
column with the values that are tried. In SQL that column is {v}, and a view of all rows {rows}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.values.edges import Edge, Kind
from tidegate.gates import Contract, Expectations
from tidegate.gates.contracts.types import physical_type_of
from tidegate.gates.expectations.yaml_lines import dump_yaml
from tidegate.pipeline import Stream
from tidegate.records.codec import sha256

__all__ = ["ROLES", "Column", "Role"]

SUITE = Path(__file__).with_name("suite.yaml")
CONTRACTS = TemporaryDirectory(prefix="tidegate-contracts-")
"""For as long as the process lives."""


@dataclass(frozen=True)
class Column:
    """The column whose values are tried."""

    name: str
    kind: Kind
    edges: Sequence[Edge]
    """The values that are in it, beside null."""

    @property
    def quoted(self) -> str:
        return "`" + self.name.replace("`", "``") + "`"

    @property
    def hashed(self) -> str:
        """SQL of a number for each value. Spark's own hash is the same for a null and for what is empty."""
        as_text = "double" not in self.kind.type and "float" not in self.kind.type  # there, -0.0 is another text
        text = f"CAST({self.quoted} AS string), " if as_text else ""
        return f"xxhash64({text}{self.quoted} IS NULL, {self.quoted})"


@dataclass(frozen=True)
class Role:
    """One use of a column."""

    name: str
    declare: Callable[[Stream, Column, str], Stream]
    """Of the rows, the column and the operator's uid."""
    wanted: str
    """In SQL."""
    keys: tuple[str, ...] | None = None
    """Of the sink, by which it replaces rows; "" is the column. None: it only adds rows."""
    fits: Callable[[Column], bool] = lambda _: True
    finishes: bool = False
    """Whether event time must come to its end."""
    by_value: bool = False
    """Whether its event time is the column."""
    order: tuple[str, ...] = ()
    """By which the sink chooses among rows with one key; "" is the column."""
    partition: bool = False
    """Whether the sink makes folders of the column."""
    aside: str = ""
    """Of a gate: the rows that it sets aside, in SQL."""
    state: bool = False
    """Whether the operator remembers a row for each one that is wanted."""


def _same(rows: Stream, column: Column, uid: str) -> Stream:
    return rows


def _renamed(rows: Stream, column: Column, uid: str) -> Stream:
    """The column alone, under a plain name, by a stage."""
    return rows.select("id", f"{column.quoted} AS renamed", name=f"{uid}-renamed")


def _judged(rows: Stream, column: Column, uid: str) -> Stream:
    """Rows with a value are set aside, and some values are quoted."""
    renamed = rows.select("id", f"{column.quoted} AS value", name=f"{uid}-renamed")
    return renamed.gate(Expectations(str(SUITE), on_failure="quarantine"), name=uid)


def _agreed(rows: Stream, column: Column, uid: str) -> Stream:
    """Rows without a value are set aside, by a contract that also has the column's type."""
    kind = column.kind.type
    typed = {"physicalType": kind} if physical_type_of(kind) is not None else {}
    contract = {
        **{"apiVersion": "v3.1.0", "kind": "DataContract", "id": "values", "version": "1.0.0", "status": "active"},
        "schema": [{"name": "values", "properties": [{"name": "value", "required": True, **typed}]}],
    }
    path = Path(CONTRACTS.name, f"{uid}-{sha256(kind.encode())[:16]}.yaml")
    path.write_text(dump_yaml(contract))
    renamed = rows.select("id", f"{column.quoted} AS value", name=f"{uid}-renamed")
    return renamed.gate(Contract(str(path), on_failure="quarantine"), name=uid)


def _aggregated(**functions: str) -> Callable[[Stream, Column, str], Stream]:
    def declare(rows: Stream, column: Column, uid: str) -> Stream:
        filled = {name: text.replace("{v}", column.quoted) for name, text in functions.items()}
        return rows.aggregate(by="k", uid=uid, **filled)

    return declare


_COUNTS = {"rows": "count(*)", "newest": "max(id)", "total": "sum(id)"}


def _grouped(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.aggregate(by=[column.name], uid=uid, **_COUNTS)


def _grouped_by_two(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.aggregate(by=["k", column.name], uid=uid, **_COUNTS)


def _regrouped(rows: Stream, column: Column, uid: str) -> Stream:
    """By the column of a stream that replaces its rows."""
    newest = rows.latest(by="k", order_by="id", uid=f"{uid}-newest")
    return newest.aggregate(by=[column.name], rows="count(*)", total="sum(id)", uid=uid)


def _recounted(rows: Stream, column: Column, uid: str) -> Stream:
    newest = rows.latest(by="k", order_by="id", uid=f"{uid}-newest")
    kinds = f"count(distinct {column.quoted})"
    return newest.aggregate(by=[], kinds=kinds, values=f"count({column.quoted})", uid=uid)


def _deduplicated(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.deduplicate(by=column.name, uid=uid).select(column.quoted, name=f"{uid}-keys")


def _deduplicated_in_time(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.deduplicate(by=column.name, within="300 days", uid=uid)


def _latest_by(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.latest(by=column.name, order_by="n", uid=uid)


def _latest_in_order(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.latest(by="k", order_by=[column.name, "n"], uid=uid)


def _top(way: str) -> Callable[[Stream, Column, str], Stream]:
    def declare(rows: Stream, column: Column, uid: str) -> Stream:
        return rows.top_n(2, by="k", order_by=[f"{column.name} {way}", "n asc"], uid=uid)

    return declare


def _ranked(rows: Stream, column: Column, uid: str) -> Stream:
    top = rows.top_n(2, by="k", order_by=f"{column.name} desc", rank="dense_rank", uid=uid)
    return top.select("id", "rank", name=f"{uid}-ranks")


def _joined(how: str) -> Callable[[Stream, Column, str], Stream]:
    def declare(rows: Stream, column: Column, uid: str) -> Stream:
        others = rows.select(column.quoted, "id AS other", where="id % 3 <> 0", name=f"{uid}-others")
        return rows.join(others, on=column.name, how=how, uid=uid)  # type: ignore[arg-type]

    return declare


def _joined_in_time(rows: Stream, column: Column, uid: str) -> Stream:
    others = rows.select(column.quoted, "id AS other", "at AS other_at", where="id % 3 <> 0", name=f"{uid}-others")
    return rows.join(others, on=column.name, within="300 days", event_time=("at", "other_at"), uid=uid)


def _remembered(rows: Stream, column: Column, uid: str) -> Stream:
    kind, name = column.kind.type, column.name
    in_struct = kind.startswith(("array", "map"))  # a state has an empty one in place of null

    def before(key: Any, rows: Any, state: Any, timers: Any) -> Any:
        for row in rows.to_pylist():
            yield {"id": row["id"], "before": state.before and state.before["v"] if in_struct else state.before}
            state.before = {"v": row[name]} if in_struct else row[name]

    output, stored = f"id bigint, before {kind}", f"struct<v: {kind}>" if in_struct else kind
    return rows.process(by="k", state=f"before {stored}", output=output, order_by="id", uid=uid)(before)


def _called_by(rows: Stream, column: Column, uid: str) -> Stream:
    name = column.name

    def counted(key: Any, rows: Any, state: Any, timers: Any) -> Any:
        for row in rows.to_pylist():
            state.n = (state.n or 0) + 1
            yield {"id": row["id"], "value": key[name], "n": state.n}

    output = f"id bigint, value {column.kind.type}, n bigint"
    return rows.process(by=name, state="n bigint", output=output, order_by="id", uid=uid)(counted)


def _over(rows: Stream, column: Column, uid: str) -> Stream:
    before, most = f"lag({column.quoted})", f"max({column.quoted})"
    return rows.over(by="k", before=before, most=most, nth="row_number()", uid=uid)


def _over_by(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.over(by=column.name, before="lag(id)", nth="row_number()", uid=uid)


def _window_by(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.window(tumbling="10 min", by=column.name, rows="count(*)", newest="max(id)", uid=uid)


def _window_of(rows: Stream, column: Column, uid: str) -> Stream:
    q = column.quoted
    return rows.window(
        tumbling="10 min", by="k", least=f"min({q})", most=f"max({q})", kinds=f"count(distinct {q})",
        first=f"first({q}, id)", uid=uid,
    )  # fmt: skip


def _sessions_by(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.window(session="3 min", by=column.name, rows="count(*)", newest="max(id)", uid=uid)


def _window_at(rows: Stream, column: Column, uid: str) -> Stream:
    return rows.window(tumbling="1 day", by="k", rows="count(*)", total="sum(id)", uid=uid)


def _as_of(rows: Stream, column: Column, uid: str) -> Stream:
    versions = rows.select(column.quoted, "id AS other", "at AS other_at", where="id % 3 <> 0", name=f"{uid}-versions")
    return rows.join(versions, on=column.name, as_of=True, event_time=("at", "other_at"), uid=uid)


_FIRST = "SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS _nth FROM {rows})"


def _first_of_each(by: str, order: str, n: int = 1, columns: str = "id, k, n, at, {v}") -> str:
    text = _FIRST.replace("{columns}", columns).replace("{by}", by).replace("{order}", order)
    return f"{text} WHERE _nth <= {n}"


_SELECTED = "SELECT id, k, n, at, {v} FROM {rows}"
_FUNCTIONS = {
    "values": "count({v})",
    "kinds": "count(distinct {v})",
    "least": "min({v})",
    "most": "max({v})",
    "opening": "first({v}, n)",
    "closing": "last({v}, n)",
    "holder": "max_by({v}, n)",
}
_OWN_FUNCTIONS = _FUNCTIONS | {"opening": "min_by({v}, n)", "closing": "max_by({v}, n)"}
_LISTS = {"every": "collect_list({v}, 100)", "set": "collect_set({v}, 100)"}
_OWN_LISTS = {
    "every": "slice(sort_array(collect_list({v})), 1, 100)",
    "set": "slice(sort_array(collect_set({v})), 1, 100)",
}
_NEWEST = _first_of_each("k", "id DESC", columns="*")
_OTHERS = "(SELECT {v} AS _on, id AS other, at AS other_at FROM {rows} WHERE id % 3 <> 0)"
_ON = f"{_OTHERS} ON {{v}} = _on"


def _call(functions: dict[str, str]) -> str:
    return ", ".join(f"{text} AS `{name}`" for name, text in functions.items())


def _near(column: Column) -> bool:
    """For code in Python, whose types hold less than Spark's."""
    return not column.kind.made and not any(edge.far or edge.no_text for edge in column.edges)


def _time(column: Column) -> bool:
    return column.kind.time and not any(edge.unbounded for edge in column.edges)


_TIMED = "(SELECT *, CAST({v} AS timestamp) AS _time FROM {rows} WHERE {v} IS NOT NULL)"
_IN_TEN = "floor(unix_micros(at) / 600000000) * 600000000"
_TEN = f"timestamp_micros({_IN_TEN}) AS window_start, timestamp_micros({_IN_TEN} + 600000000) AS window_end"

ROLES = {
    each.name: each
    for each in (
        Role("row", _same, _SELECTED),
        Role("renamed", _renamed, "SELECT id, {v} AS renamed FROM {rows}"),
        Role(
            "gate",
            _judged,
            "SELECT id, {v} AS value FROM {rows} WHERE {v} IS NULL",
            aside="SELECT id FROM {rows} WHERE {v} IS NOT NULL",
        ),
        Role(
            "contract",
            _agreed,
            "SELECT id, {v} AS value FROM {rows} WHERE {v} IS NOT NULL",
            aside="SELECT id FROM {rows} WHERE {v} IS NULL",
        ),
        Role("partition", _same, "SELECT id, k, n, at, {stored} FROM {rows}", partition=True),
        Role("upsert key", _same, _first_of_each("{v}", "n DESC"), ("",), order=("n",)),
        Role("upsert keys", _same, _first_of_each("k, {v}", "n DESC"), ("k", ""), order=("n",)),
        Role("upsert order", _same, _first_of_each("k", "{v} DESC NULLS LAST, n DESC"), ("k",), order=("", "n")),
        Role(
            "upsert partition",
            _same,
            "SELECT id, k, n, at, {stored} FROM (" + _first_of_each("id", "n DESC") + ")",
            ("id",),
            order=("n",),
            partition=True,
        ),
        Role("group", _grouped, f"SELECT {{v}}, {_call(_COUNTS)} FROM {{rows}} GROUP BY {{v}}", ("",), state=True),
        Role(
            "group of two",
            _grouped_by_two,
            f"SELECT k, {{v}}, {_call(_COUNTS)} FROM {{rows}} GROUP BY k, {{v}}",
            ("k", ""),
            state=True,
        ),
        Role(
            "regroup",
            _regrouped,
            f"SELECT {{v}}, count(*) AS rows, sum(id) AS total FROM ({_NEWEST}) GROUP BY {{v}}",
            ("",),
        ),
        Role(
            "recount",
            _recounted,
            f"SELECT count(distinct {{v}}) AS kinds, count({{v}}) AS values FROM ({_NEWEST})",
            ("kinds",),
        ),
        Role(
            "functions",
            _aggregated(**_FUNCTIONS),
            f"SELECT k, {_call(_OWN_FUNCTIONS)} FROM {{rows}} GROUP BY k",
            ("k",),
        ),
        Role("lists", _aggregated(**_LISTS), f"SELECT k, {_call(_OWN_LISTS)} FROM {{rows}} GROUP BY k", ("k",)),
        Role("distinct", _deduplicated, "SELECT {v} FROM {rows} GROUP BY {v}", state=True),
        Role(
            "distinct in time",
            _deduplicated_in_time,
            _first_of_each("{v}", "at"),
            finishes=True,
        ),
        Role("newest of each", _latest_by, _first_of_each("{v}", "n DESC"), ("",), state=True),
        Role(
            "newest in order", _latest_in_order, _first_of_each("k", "{v} DESC NULLS LAST, n DESC"), ("k",), state=True
        ),
        Role(
            "top",
            _top("desc"),
            _first_of_each("k", "{v} DESC NULLS LAST, n", 2, "id, k, n, at, {v}, _nth AS rank"),
            ("k", "rank"),
        ),
        Role(
            "bottom",
            _top("asc"),
            _first_of_each("k", "{v} ASC NULLS LAST, n", 2, "id, k, n, at, {v}, _nth AS rank"),
            ("k", "rank"),
        ),
        Role(
            "ranks",
            _ranked,
            "SELECT id, rank FROM (SELECT *, dense_rank() OVER (PARTITION BY k ORDER BY {v} DESC NULLS LAST) AS rank "
            "FROM {rows}) WHERE rank <= 2",
            ("id",),
        ),
        Role("join", _joined("inner"), f"SELECT id, k, n, at, {{v}}, other FROM {{rows}} JOIN {_ON}"),
        Role(
            "left join",
            _joined("left"),
            f"SELECT id, k, n, at, {{v}}, other FROM {{rows}} LEFT JOIN {_ON}",
            ("id", "other"),
        ),
        Role(
            "full join",
            _joined("full"),
            f"SELECT id, k, n, at, coalesce({{v}}, _on) AS {{v}}, other FROM {{rows}} FULL JOIN {_ON}",
            ("id", "other"),
        ),
        Role("semi join", _joined("semi"), f"{_SELECTED} LEFT SEMI JOIN {_ON}"),
        Role("anti join", _joined("anti"), f"{_SELECTED} LEFT ANTI JOIN {_ON}", ("id",)),
        Role(
            "join in time",
            _joined_in_time,
            f"SELECT id, k, n, at, {{v}}, other, other_at FROM {{rows}} JOIN {_ON}",
            finishes=True,
        ),
        Role(
            "version",
            _as_of,
            "SELECT id, k, n, at, {v}, o.other, o.other_at FROM {rows} JOIN LATERAL (SELECT other, other_at FROM "
            f"{_OTHERS} WHERE {{v}} = _on AND other_at <= at ORDER BY other_at DESC LIMIT 1) AS o",
            finishes=True,
        ),
        Role(
            "state of process",
            _remembered,
            "SELECT id, lag({v}) OVER (PARTITION BY k ORDER BY id) AS before FROM {rows}",
            fits=_near,
        ),
        Role(
            "key of process",
            _called_by,
            "SELECT id, {v} AS value, row_number() OVER (PARTITION BY {v} ORDER BY id) AS n FROM {rows}",
            fits=_near,
        ),
        Role(
            "row before",
            _over,
            "SELECT id, k, n, at, {v}, lag({v}) OVER w AS before, max({v}) OVER w AS most, row_number() OVER w AS nth "
            "FROM {rows} WINDOW w AS (PARTITION BY k ORDER BY at)",
            finishes=True,
        ),
        Role(
            "row before by key",
            _over_by,
            "SELECT id, k, n, at, {v}, lag(id) OVER w AS before, row_number() OVER w AS nth FROM {rows} "
            "WINDOW w AS (PARTITION BY {v} ORDER BY at)",
            finishes=True,
        ),
        Role(
            "window by key",
            _window_by,
            f"SELECT {_TEN}, {{v}}, count(*) AS rows, max(id) AS newest FROM {{rows}} GROUP BY {_IN_TEN}, {{v}}",
            finishes=True,
        ),
        Role(
            "window of values",
            _window_of,
            f"SELECT {_TEN}, k, min({{v}}) AS least, max({{v}}) AS most, count(distinct {{v}}) AS kinds, "
            f"min_by({{v}}, id) AS first FROM {{rows}} GROUP BY {_IN_TEN}, k",
            finishes=True,
        ),
        Role(
            "session by key",
            _sessions_by,
            "SELECT session_window.start AS window_start, session_window.end AS window_end, {v}, count(*) AS rows, "
            "max(id) AS newest FROM {rows} GROUP BY session_window(at, '3 minutes'), {v}",
            finishes=True,
        ),
        Role(
            "window at value",
            _window_at,
            "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS rows, sum(id) AS total FROM "
            f"{_TIMED} GROUP BY window(_time, '1 day'), k",
            fits=_time,
            finishes=True,
            by_value=True,
        ),
    )
}
