"""Maps Spark types to exact types of PostgreSQL, and detects rows that a column would refuse.

A decided checkpoint must be published. So while Spark stages rows, before the decision, it checks for everything that a
column could refuse, such as a null, a text that is too long or has a zero byte, or an invalid uuid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.check_constraints import can_translate, translated
from tidegate.connectors.postgres import FoundTable, TableColumn
from tidegate.connectors.postgres.table import MAX_NAME_LENGTH
from tidegate.connectors.row_rules import DeclaredRules, RowRule, exempting, is_broken
from tidegate.connectors.schema.widening import wider_type
from tidegate.connectors.valid_texts import invalid_text_condition
from tidegate.delta.log.schema import render
from tidegate.records.names import quoted
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "column_type",
    "fits",
    "fits_all",
    "is_copied",
    "name_problems",
    "not_null_names",
    "preserves_json",
    "refusal_of",
    "staged_column_types",
    "staged_columns",
    "table_rules",
    "widened_table",
]

NATURAL: Final = "postgres"
"""The key in the metadata of a staged column for the PostgreSQL type that the sink would create."""

_SIMPLE: Final = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}

_VARIABLE_LENGTH: Final = ("string", "binary")

_WIDER: Final = {
    "smallint": ("integer", "bigint", "numeric", "double precision"),
    "integer": ("bigint", "numeric", "double precision"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "date": ("timestamp without time zone",),
    "text": ("character varying", "uuid"),
    "jsonb": ("json",),
}
_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_INTEGERS: Final = {
    "smallint": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_LIMITED: Final = re.compile(r"character varying\((\d+)\)")
_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_FIRST_MICROS, _FIRST_DAY, _LAST_DAY = -210_866_803_200_000_000, -2_440_588, 2_145_042_905
"""The first moment, in 4714 BC, and the first and last days that PostgreSQL supports, counted from 1970."""
_LAST_DAY_WITH_TIME: Final = 106_751_990
"""The last day with times that Spark and PostgreSQL support."""
_MAX_KEY_BYTES: Final = 2600
"""In bytes: a little less than the limit of an index entry."""
_REFUSED: Final = "tidegate refuses this row"
_TIMESTAMP_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": f"{_TIMESTAMP_FORMAT}XXX",
    "timestampNTZFormat": _TIMESTAMP_FORMAT,
}


def column_type(kind: Any) -> str | None:
    """Return the column type that the sink creates for a Spark type (as JSON), or None if no type is exact."""
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return f"numeric({decimal[1]},{decimal[2]})"
        return _SIMPLE.get(kind)
    if kind.get("type") == "array":
        element = column_type(kind["elementType"])
        if element is None:
            return None
        if element == "jsonb" or element.endswith("[]"):
            return "jsonb"
        return f"{element}[]"
    if kind.get("type") == "map":
        is_exact = kind["keyType"] == "string" and column_type(kind["valueType"]) is not None
        return "jsonb" if is_exact else None
    if kind.get("type") == "struct":
        is_exact = all(column_type(field["type"]) for field in kind["fields"])
        return "jsonb" if is_exact else None
    return None


def fits(natural: str, column: TableColumn) -> bool:
    """Return whether a column can store values of the type that the sink would create.

    Staging refuses values that a column of a narrower type cannot store.
    """
    if natural == "text" and column.labels is not None:
        return True
    numeric = _NUMERIC.fullmatch(column.type)
    if numeric and int(numeric[2]) <= int(numeric[1]) and (natural in _DIGITS or _NUMERIC.fullmatch(natural)):
        return True
    return (natural in _DIGITS and column.type in _INTEGERS) or fits_all(natural, column.type)


def fits_all(natural: str, column: str) -> bool:
    """Return whether a column can store all values of the type that the sink would create. Staging refuses texts that
    are too long."""
    wider = _WIDER.get(natural, ())
    if column == natural or column in wider:
        return True
    if _LIMITED.fullmatch(column):
        return "character varying" in wider  # staging refuses texts that are too long
    column_numeric = _NUMERIC.fullmatch(column)
    if natural in _DIGITS:
        if column_numeric is None:
            return False
        return int(column_numeric[1]) - int(column_numeric[2]) >= _DIGITS[natural]
    natural_numeric = _NUMERIC.fullmatch(natural)
    if natural_numeric is None:
        return False
    if column == "numeric":
        return True
    if column_numeric is None:
        return False
    further_places = int(column_numeric[2]) - int(natural_numeric[2])
    return further_places >= 0 and int(column_numeric[1]) - int(natural_numeric[1]) >= further_places


def widened_table(types: Mapping[str, str], table: FoundTable) -> FoundTable:
    """Return the table as it is once its columns hold all values of the types that the sink would create for them.

    types: by column. If no wider type holds them, a column stays as it is.
    """
    columns = dict(table.columns)
    for name, natural in types.items():
        column = columns.get(name)
        if column is None or column.generated:
            continue
        wider = wider_type(_spark_name(column.type), _spark_name(natural))
        if wider is not None:
            as_json = {"bigint": "long", "int": "integer", "smallint": "short"}.get(wider, wider)
            columns[name] = replace(column, type=column_type(as_json) or column.type)
    return replace(table, columns=columns)


def _spark_name(kind: str) -> str:
    """Return the Spark type, as SQL, whose exact type in PostgreSQL this is, or "" if there is none."""
    numeric = _NUMERIC.fullmatch(kind)
    if numeric:
        return f"decimal({numeric[1]},{numeric[2]})"
    names = {natural: render(spark) for spark, natural in _SIMPLE.items() if spark != "byte"}
    return names.get(kind, "")


def preserves_json(before: str, after: str) -> bool:
    """Return whether values of a column look the same as JSON after the column has become wider.

    The history of a sink that replaces rows recognises rows by their JSON.
    """
    return before in _INTEGERS and (after in _INTEGERS or after == "double precision")


def is_copied(natural: str, column: str) -> bool:
    """Return whether rows can be copied into the column in binary form, which converts nothing."""
    return natural == column and natural != "jsonb"


def name_problems(schema: Json) -> list[str]:
    """Return the problems of the names and types of an output, for any table."""
    problems, seen = [], set()
    for field in schema["fields"]:
        name = field["name"]
        if len(name.encode()) > MAX_NAME_LENGTH or "\0" in name or not name:
            problems.append(f"{name!r} is not a valid column name of PostgreSQL: write 1 to {MAX_NAME_LENGTH} bytes")
        if name.casefold() in seen:
            problems.append(f"{name!r} occurs twice (case is ignored)")
        seen.add(name.casefold())
        if column_type(field["type"]) is None:
            problems.append(f"{name!r} is {render(field['type'])}, for which PostgreSQL has no exact type: cast it")
    return problems


def staged_columns(
    schema: Json, table: FoundTable | None, keys: Sequence[str], rules: Iterable[RowRule]
) -> list[Column]:
    """Return the expression that stages each column. Staging fails for a row that breaks a rule.

    The metadata of a column records its types: see `staged_column_types`.

    table: None if the first rows create it. keys: columns that must not be null.
    """
    from pyspark.sql import functions as F

    columns = table.columns if table is not None else {}
    staged_columns: list[Column] = []
    for field in schema["fields"]:
        name, natural = field["name"], column_type(field["type"])
        column = columns.get(name)
        held_as = column.type if column is not None else natural
        staged = F.col(quoted(name))
        if natural == "jsonb":
            staged = F.to_json(staged, _JSON)
        elif held_as == "uuid":
            staged = F.lower(staged)  # two spellings of a uuid must not be two keys
        if not staged_columns:
            staged = _refusing(staged, rules)
        metadata = {NATURAL: natural, "held_as": held_as, "not_null": _must_not_be_null(name, column, keys)}
        staged_columns.append(staged.alias(name, metadata=metadata))
    return staged_columns


def _refusing(staged: Column, rules: Iterable[RowRule]) -> Column:
    """Return a staged column, with an error for each row that breaks a rule."""
    from pyspark.sql import functions as F

    for rule in rules:
        message = F.raise_error(F.lit(f"{_REFUSED}: {rule.says}."))
        staged = F.when(is_broken(rule), message).otherwise(staged)
    return staged


def _must_not_be_null(name: str, column: TableColumn | None, keys: Sequence[str]) -> bool:
    return name in keys or (column is not None and column.not_null)


def table_rules(schema: Json, table: FoundTable | None, keys: Sequence[str], delete_when: str | None) -> DeclaredRules:
    """Return the rules of a table for rows with these columns.

    table: None if the first rows create it. keys: the columns of a unique index, which must not be null. delete_when:
    the SQL condition of rows that only delete their key, for which NOT NULL and CHECK do not apply.
    """
    columns = table.columns if table is not None else {}
    values: list[RowRule] = []
    stored: list[RowRule] = []
    long_keys = [field["name"] for field in schema["fields"] if field["type"] in _VARIABLE_LENGTH]
    long_keys = [name for name in long_keys if name in keys]
    for field in schema["fields"]:
        name, column = field["name"], columns.get(field["name"])
        if _must_not_be_null(name, column, keys):
            rule = RowRule(f"{name} not null", f"{quoted(name)} IS NULL", f"column {name!r} is null, and must not be")
            (values if name in keys else stored).append(rule)
        values += _value_rules(field, column)
    if long_keys:
        values.append(_key_length_rule(long_keys))
    checks, not_judged = _check_rules(schema, table)
    further = table.further_rules if table is not None else ()
    return DeclaredRules((*values, *exempting([*stored, *checks], delete_when)), (*not_judged, *further))


def _key_length_rule(names: Sequence[str]) -> RowRule:
    size = " + ".join(f"octet_length({quoted(name)})" for name in names)
    says = f"column {names[0]!r} has more than {_MAX_KEY_BYTES} bytes with all other keys: too long for an index"
    return RowRule("key length", f"{size} > {_MAX_KEY_BYTES}", says)


def _value_rules(field: Json, column: TableColumn | None) -> Iterator[RowRule]:
    """Yield the rules for a column's values that are not null."""
    from pyspark.sql import functions as F

    name, kind = field["name"], field["type"]
    natural = column_type(kind)
    held_as = (column.type if column is not None else natural) or ""
    value = F.col(quoted(name))

    def rule(subject: str, broken_if: Column | str, problem: str) -> RowRule:
        return RowRule(f"{name} {subject}", broken_if, f"column {name!r} {problem}")

    if natural == "jsonb":
        staged = F.to_json(value, _JSON)
        has_zero = (F.instr(staged, "\\u0000") > 0) & staged.rlike(r"(?<!\\)(\\\\)*\\u0000")
        yield rule("zero byte", has_zero, "contains a zero byte")
        invalid = invalid_text_condition(quoted(name), kind)
        if invalid:  # converting it to JSON would silently change the text
            yield rule("encoding", invalid, "contains a text that is not valid UTF-8")
    elif kind == "string":
        yield rule("zero byte", _has_zero_byte(value), "contains a zero byte, which PostgreSQL cannot store in text")
        yield rule("encoding", ~F.is_valid_utf8(value), "is not valid UTF-8")
        limited = _LIMITED.fullmatch(held_as)
        if held_as == "uuid":
            yield rule("type", ~value.rlike(_UUID), "is not a uuid")
        elif limited:
            yield rule("length", F.char_length(value) > int(limited[1]), f"is longer than {limited[1]} characters")
        elif column is not None and column.labels is not None:
            yield rule("value", ~value.isin(*column.labels), f"is not a value of the type {held_as}")
    elif isinstance(kind, dict) and kind["elementType"] == "string":
        has_bad_text = F.exists(
            value, lambda text: F.coalesce(_has_zero_byte(text) | ~F.is_valid_utf8(text), F.lit(False))
        )
        yield rule("encoding", has_bad_text, "contains a text with a zero byte, or one that is not valid UTF-8")
    else:
        for broken_if, problem in _time_refusals(kind, value):
            yield rule("range", broken_if, problem)
        if is_out_of_range := _out_of_range(natural or "", held_as, quoted(name)):
            yield rule("range", is_out_of_range, f"does not fit {held_as}")


def _has_zero_byte(value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.instr(value, "\0") > 0


def _check_rules(schema: Json, table: FoundTable | None) -> tuple[list[RowRule], list[str]]:
    """Return the rules of a table's CHECK constraints, and those that are not judged, in words."""
    rules: list[RowRule] = []
    not_judged: list[str] = []
    if table is None:
        return rules, not_judged
    present = {field["name"] for field in schema["fields"]}
    types = {name: column.type for name, column in table.columns.items() if name in present and column.exact}
    for check in table.checks:
        condition = translated(check.expression, types) if present.issuperset(check.columns) else None
        if condition is None:
            remedy = "" if can_translate() else " (without sqlglot: pip install 'tidegate[sql]')"
            not_judged.append(f"constraint {check.name}: {check.expression}{remedy}")
        else:
            says = f"the constraint {check.name!r} does not hold: {check.expression}"
            rules.append(RowRule(check.name, f"NOT ({condition})", says))
    return rules, not_judged


def _out_of_range(natural: str, column: str, value: str) -> str:
    """Return the condition that a value does not fit a column of another type. Empty if all values fit."""
    if (natural, column) == ("date", "timestamp without time zone"):
        return f"unix_date({value}) > {_LAST_DAY_WITH_TIME}"
    if fits_all(natural, column):
        return ""
    if column in _INTEGERS:
        lowest, highest = _INTEGERS[column]
        return f"{value} NOT BETWEEN {lowest} AND {highest}"
    numeric, natural_numeric = _NUMERIC.fullmatch(column), _NUMERIC.fullmatch(natural)
    if numeric is None:
        return ""
    digits, places = _DIGITS.get(natural, 0), 0
    if natural_numeric is not None:
        places = int(natural_numeric[2])
        digits = int(natural_numeric[1]) - places
    scale = int(numeric[2])
    room = int(numeric[1]) - scale
    conditions = []
    if digits > room:
        bound = f"CAST('{10**room}' AS DECIMAL({room + 1}, 0))"
        conditions.append(f"{value} >= {bound} OR {value} <= -{bound}")
    if places > scale:
        conditions.append(f"{value} <> round({value}, {scale})")
    return " OR ".join(conditions)


def _time_refusals(kind: Any, value: Column) -> list[tuple[Column, str]]:
    """Return the refusal of a date or time, or an array of them, that is outside of PostgreSQL's range."""
    from pyspark.sql import functions as F

    element = kind["elementType"] if isinstance(kind, dict) else kind

    def is_outside(time: Column) -> Column:
        if element == "date":
            return ~F.unix_date(time).between(_FIRST_DAY, _LAST_DAY)
        if element == "timestamp":
            return time < F.timestamp_micros(F.lit(_FIRST_MICROS))
        return time < F.lit("-4713-11-24 00:00:00").cast("timestamp_ntz")

    if element not in ("date", "timestamp", "timestamp_ntz"):
        return []
    problem = "is before 4714 BC or after 5874897 AD, which PostgreSQL does not support"
    if element is kind:
        return [(is_outside(value), problem)]
    return [(F.exists(value, lambda time: F.coalesce(is_outside(time), F.lit(False))), problem)]


def refusal_of(error: BaseException) -> str | None:
    """Return what is wrong with a row if Spark failed because the table would refuse it, else None."""
    match = re.search(rf"{_REFUSED}: (.*?\.)(\s|$|'|\")", str(error))
    return match[1] if match else None


def not_null_names(schema: Json) -> set[str]:
    """Return the staged columns in which staging has refused nulls."""
    return {field["name"] for field in schema["fields"] if _metadata(field).get("not_null")}


def staged_column_types(schema: Json) -> dict[str, tuple[str, str]]:
    """Return two types of each staged column: the one that the sink creates, and the table's at staging."""
    types = {}
    for field in schema["fields"]:
        metadata = _metadata(field)
        if NATURAL in metadata:
            types[field["name"]] = (metadata[NATURAL], metadata["held_as"])
    return types


def _metadata(field: Json) -> Json:
    return field.get("metadata") or {}
