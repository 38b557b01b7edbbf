"""The rows of a table that other code makes differently: by key, by column, and by how much."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.backfill.compare import MORE, Sides, ask, sides_of
from tidegate.backfill.open_backfill import OpenBackfill
from tidegate.delta import Snapshot, sql_name
from tidegate.delta.as_python import json_value
from tidegate.delta.log.schema import render
from tidegate.records.records import Json

__all__ = ["ColumnChange", "Distribution", "SchemaChange", "TableDifference", "compare_table", "identify_rows"]

_NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double"})


class SchemaChange(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a table that are new, gone or of another type."""

    added: dict[str, str]
    removed: dict[str, str]
    retyped: dict[str, list[str]]
    """By column, the type before and after."""

    @property
    def changed(self) -> bool:
        return bool(self.added or self.removed or self.retyped)


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A column of numbers over all rows of a table."""

    nulls: int
    mean: float | None
    least: float | None
    greatest: float | None


class ColumnChange(msgspec.Struct, frozen=True, kw_only=True):
    """A column in the rows whose key is on both sides."""

    rows: int
    """The number of rows in which it differs."""
    mean_change: float | None = None
    """For numbers: by how much it changes on average, in the rows in which it differs and neither side is null."""
    greatest_change: float | None = None
    before: Distribution | None = None
    after: Distribution | None = None


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One table, by the code of now and by the proposed code."""

    schema: SchemaChange
    keys: list[str]
    """The columns by which rows are compared. Without keys, whole rows are compared."""
    rows_before: int
    rows_after: int
    added: int
    """Rows whose key, or which as a whole, only the proposed code makes."""
    removed: int
    changed: int
    """Rows that differ and have the same key."""
    columns: dict[str, ColumnChange]
    """The columns that differ in `changed` rows."""
    examples: list[Json]
    """Some of the rows that differ, if they were requested: `change` says how, `before` and `after` have the values."""

    @property
    def differing(self) -> int:
        return self.added + self.removed + self.changed


def compare_table(line: OpenBackfill, table: str, examples: int = 0, hidden: Collection[str] = ()) -> TableDifference:
    """Compare a table as of the checkpoint up to which the line has read. This reads all rows of both sides.

    examples: at most so many rows. hidden: columns, in lower case, whose values are not shown, extremes included.
    """
    sides = sides_of(line, table)
    keys = list(line.backfill.graph.sinks[table].sink.upserts or ())
    if not identify_rows(keys, sides):
        keys = []
    compared = _Compared(sides, keys, hidden)
    counts = compared.counts()
    return TableDifference(
        schema=_schema_change(sides),
        keys=keys,
        rows_before=sides.rows_now(),
        rows_after=sides.rows_after_swap(),
        added=counts["added"],
        removed=counts["removed"],
        changed=counts["changed"],
        columns=compared.columns() if counts["changed"] else {},
        examples=compared.examples(examples) if examples else [],
    )


def identify_rows(keys: Sequence[str], sides: Sides) -> bool:
    """Return whether no two of the differing rows of one side have the same key. They have if the pipeline has upserted
    by other keys so far: pairs of rows would then be counted several times."""
    if not keys or not all(key in sides.columns for key in keys):
        return False
    names = ", ".join(map(sql_name, keys))
    repeated = f"SELECT 1 AS n FROM changed GROUP BY {names}, {MORE} > 0 HAVING sum(abs({MORE})) > 1 LIMIT 1"
    return not ask(sides, repeated)


class _Compared:
    """Queries about the rows that differ. `old` has those of now, `new` those of the proposed code."""

    def __init__(self, sides: Sides, keys: Sequence[str], hidden: Collection[str]) -> None:
        self.sides, self.keys = sides, keys
        self.shown = [name for name in sides.columns if name.lower() not in hidden]
        self.values = [name for name in sides.columns if name not in keys]
        same = " AND ".join(f"(old.{sql_name(key)} IS NOT DISTINCT FROM new.{sql_name(key)})" for key in keys)
        self.pairs = f"old FULL JOIN new ON {same}" if keys else ""

    def _ask(self, sql: str) -> list[dict[str, Any]]:
        with_sides = f"old AS (SELECT * FROM changed WHERE {MORE} < 0), new AS (SELECT * FROM changed WHERE {MORE} > 0)"
        return ask(self.sides, f", {with_sides} {sql}")

    def counts(self) -> dict[str, int]:
        if self.keys:
            kind = (
                f"CASE WHEN old.{MORE} IS NULL THEN 'added' WHEN new.{MORE} IS NULL THEN 'removed' ELSE 'changed' END"
            )
            sql = f"SELECT change, count(*) AS n FROM (SELECT {kind} AS change FROM {self.pairs}) AS x GROUP BY change"
        else:
            kind = f"CASE WHEN {MORE} > 0 THEN 'added' ELSE 'removed' END"
            sql = (
                f"SELECT change, sum(n) AS n FROM (SELECT {kind} AS change, abs({MORE}) AS n FROM changed) AS x "
                "GROUP BY change"
            )
        counted = {row["change"]: int(row["n"]) for row in self._ask(sql)}
        return {"added": 0, "removed": 0, "changed": 0} | counted

    def columns(self) -> dict[str, ColumnChange]:
        """Return the columns that differ in rows whose key is on both sides."""
        inner = self.pairs.replace("FULL JOIN", "JOIN")
        chosen = []
        for number, name in enumerate(self.values):
            old, new = f"old.{sql_name(name)}", f"new.{sql_name(name)}"
            differs = f"{old} IS DISTINCT FROM {new}"
            chosen.append(f"sum(CASE WHEN {differs} THEN 1 ELSE 0 END) AS n{number}")
            if self._is_displayed_number(name):
                change = f"CASE WHEN {differs} THEN CAST({new} AS double) - CAST({old} AS double) END"
                chosen.append(f"avg({change}) AS mean{number}, max(abs({change})) AS most{number}")
        if not chosen:
            return {}
        row = self._ask(f"SELECT {', '.join(chosen)} FROM {inner}")[0]
        numbers = [
            name
            for number, name in enumerate(self.values)
            if int(row[f"n{number}"] or 0) and self._is_displayed_number(name)
        ]
        before = self._distributions("now", self.sides.now, numbers)
        after = self._distributions("after", self.sides.after_swap, numbers)
        changes = {}
        for number, name in enumerate(self.values):
            rows = int(row[f"n{number}"] or 0)
            if rows:
                changes[name] = ColumnChange(
                    rows=rows,
                    mean_change=_number(row.get(f"mean{number}")),
                    greatest_change=_number(row.get(f"most{number}")),
                    before=before.get(name),
                    after=after.get(name),
                )
        return changes

    def _distributions(
        self, side: str, snapshots: Sequence[Snapshot], columns: Sequence[str]
    ) -> dict[str, Distribution]:
        """Return the distribution of columns over all rows of one side."""
        if not columns or not snapshots:
            return {}
        chosen = []
        for number, name in enumerate(columns):
            value = f"CAST({sql_name(name)} AS double)"
            chosen += [
                f"sum(CASE WHEN {sql_name(name)} IS NULL THEN 1 ELSE 0 END) AS nulls{number}",
                f"avg({value}) AS mean{number}",
                f"min({value}) AS least{number}",
                f"max({value}) AS greatest{number}",
            ]
        names = ", ".join(map(sql_name, columns))
        where = self.sides.condition
        rows = " UNION ALL ".join(
            f"SELECT {names} FROM {side}_{number} WHERE {where}" for number in range(len(snapshots))
        )
        row = self._ask(f"SELECT {', '.join(chosen)} FROM ({rows}) AS x")[0]
        return {
            name: Distribution(
                nulls=int(row[f"nulls{number}"] or 0),
                mean=_number(row[f"mean{number}"]),
                least=_number(row[f"least{number}"]),
                greatest=_number(row[f"greatest{number}"]),
            )
            for number, name in enumerate(columns)
        }

    def examples(self, limit: int) -> list[Json]:
        """Return some rows that differ. Those with the same key are one example."""
        shown = self.shown
        if not self.keys:
            names = ", ".join(map(sql_name, shown))
            rows = self._ask(f"SELECT {MORE}, {names} FROM changed ORDER BY {names} LIMIT {limit}") if names else []
            return [_whole_row(row, shown) for row in rows]
        chosen = []
        for number, name in enumerate(shown):
            chosen += [f"old.{sql_name(name)} AS o{number}", f"new.{sql_name(name)} AS n{number}"]
        chosen += [f"old.{MORE} AS was", f"new.{MORE} AS is_now"]
        order = ", ".join(f"coalesce(old.{sql_name(key)}, new.{sql_name(key)})" for key in self.keys)
        rows = self._ask(f"SELECT {', '.join(chosen)} FROM {self.pairs} ORDER BY {order} LIMIT {limit}")
        return [self._pair(row, shown) for row in rows]

    def _pair(self, row: Mapping[str, Any], shown: Sequence[str]) -> Json:
        change = "added" if row["was"] is None else "removed" if row["is_now"] is None else "changed"
        before = {name: json_value(row[f"o{number}"]) for number, name in enumerate(shown)}
        after = {name: json_value(row[f"n{number}"]) for number, name in enumerate(shown)}
        key = {name: (after if change == "added" else before)[name] for name in shown if name in self.keys}
        example: Json = {"change": change, "key": key}
        if change != "added":
            example["before"] = {name: value for name, value in before.items() if name not in self.keys}
        if change != "removed":
            example["after"] = {name: value for name, value in after.items() if name not in self.keys}
        if change == "changed":
            differing = [name for name in example["before"] if example["before"][name] != example["after"][name]]
            for side in ("before", "after"):
                example[side] = {name: example[side][name] for name in differing}
        return example

    def _is_displayed_number(self, name: str) -> bool:
        if name not in self.shown:
            return False
        types = [_types(snapshot).get(name, "") for snapshot in (*self.sides.now, *self.sides.after_swap)]
        return all(each in _NUMBERS or each.startswith("decimal") for each in types)


def _whole_row(row: Mapping[str, Any], shown: Sequence[str]) -> Json:
    change, side = ("added", "after") if row[MORE] > 0 else ("removed", "before")
    return {"change": change, "key": {}, side: {name: json_value(row[name]) for name in shown}}


def _schema_change(sides: Sides) -> SchemaChange:
    before, after = _types_of(sides.now), _types_of(sides.after_swap)
    if not sides.now or not sides.after_swap:
        return SchemaChange(added={} if sides.now else after, removed={}, retyped={})
    return SchemaChange(
        added={name: type for name, type in after.items() if name not in before},
        removed={name: type for name, type in before.items() if name not in after},
        retyped={name: [before[name], type] for name, type in after.items() if before.get(name, type) != type},
    )


def _types_of(snapshots: Sequence[Snapshot]) -> dict[str, str]:
    types: dict[str, str] = {}
    for snapshot in snapshots:
        types |= _types(snapshot)
    return types


def _types(snapshot: Snapshot) -> dict[str, str]:
    return dict(_columns(snapshot))


def _columns(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for field in snapshot.schema["fields"]:
        type = field["type"]
        yield field["name"], type if isinstance(type, str) else render(type)


def _number(value: object) -> float | None:
    """Return a number for the report, or None if it is not finite: JSON has neither NaN nor infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
