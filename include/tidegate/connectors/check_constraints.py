"""Translates CHECK constraints of PostgreSQL to conditions of Spark, if the translation is exact.

Exact means that for each row that can be staged, the condition is false if and only if the constraint refuses it. So
only operators are translated that mean the same in both: comparisons of numbers, dates and flags, equality of texts,
lists, lengths, IS NULL, AND, OR and NOT. Arithmetic, functions, patterns, and order of texts (which depends on the
collation) are not.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.records.names import quoted, quoted_text

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["can_translate", "translated"]

_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_KINDS: Final = {
    "boolean": "flag",
    "smallint": "number",
    "integer": "number",
    "bigint": "number",
    "text": "text",
    "character varying": "text",
    "date": "date",
    "double precision": "float",
}
_INTEGER_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_PLAIN_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,18})?")
_MAX_DIGITS: Final = 38
_KNOWN_PARTS: Final = frozenset({"this", "expression", "expressions", "to", "is_string"})


class _Untranslatable(Exception):
    """The constraint has a part whose meaning might differ in Spark."""


@dataclass(frozen=True)
class _Value:
    """A translated expression."""

    sql: str
    kind: str
    digits: tuple[int, int] = (0, 0)
    """Of a number: the digits before and after the point."""


def can_translate() -> bool:
    """Return whether the library that reads constraints is installed, which is an extra."""
    return importlib.util.find_spec("sqlglot") is not None


def translated(expression: str, types: Mapping[str, str]) -> str | None:
    """Return the constraint as a condition of Spark SQL. None: it cannot be translated exactly.

    expression: as the server writes it. types: the type in PostgreSQL of each column that the rows have, without those
    whose texts may be equal although they differ.
    """
    if not can_translate():
        return None
    from sqlglot import parse_one
    from sqlglot.errors import SqlglotError

    try:
        parsed: Any = parse_one(expression, dialect="postgres")
        value = _translate(parsed, types)
    except (SqlglotError, _Untranslatable):
        return None
    return value.sql if value.kind == "flag" else None


def _translate(node: exp.Expression, types: Mapping[str, str]) -> _Value:
    from sqlglot import exp

    _refuse_options(node)
    if isinstance(node, exp.Paren):
        return _translate(node.this, types)
    if isinstance(node, exp.And | exp.Or):
        word = "AND" if isinstance(node, exp.And) else "OR"
        first, second = (_flag(side, types) for side in (node.this, node.expression))
        return _Value(f"({first} {word} {second})", "flag")
    if isinstance(node, exp.Not):
        return _Value(f"(NOT {_flag(node.this, types)})", "flag")
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        word = "IS NOT NULL" if node.args.get("negate") else "IS NULL"
        return _Value(f"({_translate(node.this, types).sql} {word})", "flag")
    if type(node) in (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE):
        return _comparison(node, types)
    if isinstance(node, exp.Length):
        text = _translate(node.this, types)
        if text.kind == "text":
            return _Value(f"char_length({text.sql})", "number", (10, 0))
    if isinstance(node, exp.Column):
        return _column(node.name, types)
    if isinstance(node, exp.Boolean):
        return _Value("true" if node.this else "false", "flag")
    if isinstance(node, exp.Cast):
        return _cast(node, types)
    if isinstance(node, exp.Literal):
        if node.is_string:
            return _Value(quoted_text(node.this), "text")
        return _number(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(f"-{node.this.this}")
    raise _Untranslatable


def _refuse_options(node: exp.Expression) -> None:
    """Raise if a part of the expression has an option that this module does not know."""
    from sqlglot import exp

    known = _KNOWN_PARTS | ({"negate"} if isinstance(node, exp.Is) else set())
    if any(value for name, value in node.args.items() if name not in known):
        raise _Untranslatable


def _flag(node: exp.Expression, types: Mapping[str, str]) -> str:
    value = _translate(node, types)
    if value.kind != "flag":
        raise _Untranslatable
    return value.sql


def _column(name: str, types: Mapping[str, str]) -> _Value:
    data_type = types.get(name, "")
    sql = quoted(name)
    numeric = _NUMERIC.fullmatch(data_type)
    if numeric:
        precision, scale = int(numeric[1]), int(numeric[2])
        return _Value(sql, "number", (precision - scale, scale))
    kind = _KINDS.get(re.sub(r"\(\d+\)$", "", data_type))
    if kind is None:
        raise _Untranslatable
    return _Value(sql, kind, (_INTEGER_DIGITS.get(data_type, 0), 0))


def _number(text: str) -> _Value:
    if not _PLAIN_NUMBER.fullmatch(text):
        raise _Untranslatable
    whole, _, places = text.lstrip("-").partition(".")
    return _Value(f"{text}BD" if places else text, "number", (len(whole), len(places)))


def _cast(node: exp.Cast, types: Mapping[str, str]) -> _Value:
    """Translate a cast that changes no value: of a constant, or to a type that has the same values and more."""
    from sqlglot import exp

    target = node.to.sql(dialect="postgres").lower()
    inner = node.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    is_constant = isinstance(inner, exp.Literal | exp.Neg)
    constant = _constant_text(inner) if is_constant else ""
    if target in ("text", "varchar", "character varying"):
        value = _translate(inner, types)
        if value.kind == "text":
            return value
    elif is_constant and target in ("numeric", "decimal", "bigint", "int", "integer", "smallint", "int8", "int4"):
        if target in ("numeric", "decimal") or "." not in constant:
            return _number(constant)
    elif is_constant and target in ("double precision", "float8") and _PLAIN_NUMBER.fullmatch(constant):
        return _Value(f"CAST('{constant}' AS DOUBLE)", "float")
    elif is_constant and target == "date" and re.fullmatch(r"[12]\d{3}-\d\d-\d\d", constant):
        return _Value(f"DATE'{constant}'", "date")
    elif target in ("numeric", "decimal", "bigint", "int8"):
        value = _translate(inner, types)
        is_integer = 0 < value.digits[0] <= _INTEGER_DIGITS["bigint"] and not value.digits[1]
        if value.kind == "number" and (is_integer or target in ("numeric", "decimal")):
            return value
    raise _Untranslatable


def _constant_text(node: exp.Expression) -> str:
    from sqlglot import exp

    if isinstance(node, exp.Neg):
        if isinstance(node.this, exp.Literal):
            return f"-{_constant_text(node.this)}"
        return ""
    return str(node.this)


def _comparison(node: Any, types: Mapping[str, str]) -> _Value:
    from sqlglot import exp

    left = _translate(node.this, types)
    listed = _listed(node.expression)
    if listed is not None:
        return _membership(node, left, listed, types)
    right = _translate(node.expression, types)
    _refuse_different_comparison(left, right, equality=isinstance(node, exp.EQ | exp.NEQ))
    return _Value(f"({left.sql} {_sign(node)} {right.sql})", "flag")


def _listed(node: Any) -> tuple[bool, Any] | None:
    """Return whether a row must equal any of some values, or each of them, and the values. None: it is another part."""
    from sqlglot import exp

    if isinstance(node, exp.Any | exp.All):
        return isinstance(node, exp.Any), node.this
    if isinstance(node, exp.Anonymous) and str(node.this).upper() == "ALL" and len(node.expressions) == 1:
        return False, node.expressions[0]
    return None


def _membership(node: Any, left: _Value, listed: tuple[bool, Any], types: Mapping[str, str]) -> _Value:
    """Translate `= ANY (ARRAY[…])`, which is how the server writes IN, and `<> ALL (ARRAY[…])`."""
    from sqlglot import exp

    is_any, values = listed
    is_in, is_not_in = isinstance(node, exp.EQ) and is_any, isinstance(node, exp.NEQ) and not is_any
    while isinstance(values, exp.Paren | exp.Cast):
        if isinstance(values, exp.Cast) and values.to.sql(dialect="postgres").lower() not in ("text[]", "varchar[]"):
            raise _Untranslatable
        values = values.this
    if not (is_in or is_not_in) or not isinstance(values, exp.Array) or not values.expressions:
        raise _Untranslatable
    translated_values = [_translate(value, types) for value in values.expressions]
    for value in translated_values:
        _refuse_different_comparison(left, value, equality=True)
    word = "IN" if is_in else "NOT IN"
    return _Value(f"({left.sql} {word} ({', '.join(value.sql for value in translated_values)}))", "flag")


def _refuse_different_comparison(left: _Value, right: _Value, *, equality: bool) -> None:
    """Raise unless both databases compare these values in the same way."""
    if left.kind != right.kind or (left.kind == "text" and not equality):
        raise _Untranslatable
    whole, places = (max(pair) for pair in zip(left.digits, right.digits, strict=True))
    if whole + places > _MAX_DIGITS:  # Spark would round
        raise _Untranslatable


def _sign(node: Any) -> str:
    from sqlglot import exp

    signs = {exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
    return signs[type(node)]
