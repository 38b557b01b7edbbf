"""The row in question: found by a condition, and the checkpoint since which its table has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from tidegate.delta import Snapshot, query, sql_name
from tidegate.delta.as_python import python_rows
from tidegate.errors import Invalid, Rejected
from tidegate.records.records import Json

__all__ = ["AskedRow", "condition_for", "count_equal", "find_row", "row_with_key"]

SHOWN = 5
_SQL_TYPES = {
    "string": "VARCHAR",
    **dict.fromkeys(("byte", "short", "integer", "long"), "BIGINT"),
    **dict.fromkeys(("float", "double"), "DOUBLE"),
    "boolean": "BOOLEAN",
    "date": "DATE",
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "TIMESTAMP"),
}


@dataclass(frozen=True)
class AskedRow:
    """A row of a table."""

    row: Json
    copies: int
    """How many equal rows there are: a table without keys may have several."""
    keys: tuple[str, ...]
    """The columns that identify the row in its table, if it has a key."""


def find_row(snapshot: Snapshot, sink: str, condition: str, keys: Sequence[str]) -> AskedRow:
    """Return the one row for which the condition is true. Equal rows count as one."""
    columns = [field["name"] for field in snapshot.schema["fields"]]
    names = ", ".join(map(sql_name, columns))
    try:
        rows = python_rows(query({"rows": snapshot}, f"SELECT {names} FROM rows WHERE ({condition}) LIMIT 1000"))
    except Exception as error:
        raise Invalid(
            f"{condition!r} is no condition on the rows of {sink!r}: {_in_one_line(error)}",
            expected="a condition as behind WHERE, such as \"country = 'AT' AND id > 5\", on the columns "
            + ", ".join(columns),
            help="put names of columns with capital letters or spaces in double quotes",
            reason="BAD_CONDITION",
        ) from None
    if not rows:
        raise Rejected(
            f"no row of {sink!r} fulfils {condition!r}",
            expected="a condition that one row fulfils",
            help="see the rows: tidegate read PIPELINE " + sink + "; a row of an earlier checkpoint: --checkpoint N",
            reason="NO_SUCH_ROW",
        )
    different: list[Json] = []
    for row in rows:
        if not any(_equal_rows(row, other) for other in different):
            different.append(row)
        if len(different) > SHOWN:
            break
    if len(different) > 1:
        at_least = "more than 5" if len(different) > SHOWN else str(len(different))
        advice = f"name its key: {', '.join(keys)}" if keys else "name more of its columns"
        raise Rejected(
            f"{at_least} different rows of {sink!r} fulfil {condition!r}",
            expected="a condition that one row fulfils",
            help=advice,
            reason="SEVERAL_ROWS",
        )
    return AskedRow(rows[0], len(rows), tuple(key for key in keys if key in columns))


def condition_for(snapshot: Snapshot, values: Mapping[str, str | None], keys: Sequence[str], longest: int) -> str:
    """Return the condition that finds a row by its values as a page shows them, as texts.

    keys: only these count, if the row has them all. longest: a text of so many letters may be cut, and does not count.
    """
    types = {field["name"]: field["type"] for field in snapshot.schema["fields"]}
    names = [key for key in keys if key in types]
    if not names or not all(key in values for key in names):
        names = [name for name in values if name in types]
    parts = []
    for name in names:
        text, sql_type = values[name], _sql_type(types[name])
        if text is None:
            parts.append(f"{sql_name(name)} IS NULL")
        elif sql_type is not None and len(text) < longest:
            quoted = text.replace("'", "''")
            parts.append(f"{sql_name(name)} = CAST('{quoted}' AS {sql_type})")
    if not parts:
        raise Invalid(
            "the row has no column by which it can be found",
            expected="texts, numbers, dates or times",
            help="`tidegate why` takes any condition",
            reason="BAD_CONDITION",
        )
    return " AND ".join(parts)


def _sql_type(type: object) -> str | None:
    """Return the SQL type of a Delta type whose values can be compared, or None."""
    if not isinstance(type, str):
        return None
    return type.upper() if type.startswith("decimal") else _SQL_TYPES.get(type)


def count_equal(snapshot: Snapshot, question: AskedRow) -> int:
    """Return how many rows of a table equal the one in question."""
    rows = _rows_like(snapshot, question, question.keys or tuple(question.row))
    return sum(_equal_rows(row, question.row) for row in rows)


def row_with_key(snapshot: Snapshot, question: AskedRow) -> Json | None:
    """Return the row of a table that has the same key, or None if there is none, or the table has no key."""
    if not question.keys:
        return None
    rows = _rows_like(snapshot, question, question.keys)
    same = [row for row in rows if all(_equal(row[key], question.row[key]) for key in question.keys)]
    return same[0] if same else None


def _rows_like(snapshot: Snapshot, question: AskedRow, columns: Sequence[str]) -> list[Json]:
    """Return the rows with the same values in columns, as far as SQL can compare these, and perhaps others."""
    names = {field["name"] for field in snapshot.schema["fields"]}
    if not question.row.keys() <= names:
        return []
    conditions = []
    for name in columns:
        text = _sql_value(question.row[name])
        if text is not None:
            conditions.append(f"{sql_name(name)} = {text}")
    selected = ", ".join(map(sql_name, question.row))
    sql = f"SELECT {selected} FROM rows WHERE {' AND '.join(conditions) or 'true'}"
    return python_rows(query({"rows": snapshot}, sql))


def _sql_value(value: Any) -> str | None:
    """Return a value as a literal in SQL, or None if its type has no simple one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return None


def _equal_rows(row: Json, other: Json) -> bool:
    return row.keys() == other.keys() and all(_equal(row[name], other[name]) for name in row)


def _equal(value: Any, other: Any) -> bool:
    """Compare values. Sums of floats depend on the order of the rows, so their last digits may differ."""
    if isinstance(value, float) and isinstance(other, float):
        if math.isnan(value) or math.isnan(other):
            return math.isnan(value) and math.isnan(other)
        return math.isclose(value, other, rel_tol=1e-12)
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_equal(value[name], other[name]) for name in value)
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, (datetime, Decimal)) or value is None or other is None:
        return bool(value == other)
    return type(value) is type(other) and bool(value == other)


def _in_one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and line.strip() != "caused by"]
    return ": ".join(lines)[:300] or type(error).__name__
