"""Spark's error conditions, and their messages without the values of rows.

Conditions about code, such as a missing column, only quote code. Those about data quote the data: "The value '…' of the
type "STRING" cannot be cast to "INT"". Their messages are shown with only those parameters that are never a value. An
unknown condition counts as one about data.
"""

from __future__ import annotations

import contextlib
import functools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tidegate.errors import TidegateError
from tidegate.records import typed
from tidegate.records.records import Json
from tidegate.spark.jars import jar_paths

__all__ = ["is_about_data", "without_values"]

_ABOUT_CODE = ("08", "0A", "42", "46", "53", "54", "56", "57", "58", "HY", "KD010")
"""Prefixes of the SQLSTATEs of conditions about code: syntax, access, unsupported features, limits, systems."""
_NO_VALUES = frozenset(
    {
        "actualType",
        "ansiConfig",
        "colName",
        "column",
        "columnName",
        "config",
        "dataType",
        "expectedType",
        "fieldName",
        "fileName",
        "funcName",
        "functionName",
        "path",
        "sourceType",
        "suggestionFunc",
        "tableName",
        "targetType",
    }
)
"""Parameters that name columns, types, functions, files and settings."""
_NO_VALUES_OF = {"ARITHMETIC_OVERFLOW": frozenset({"message", "alternative"})}
"""Further such parameters of single conditions. Here the message is "long overflow"."""
_QUOTING = frozenset(
    {
        "CANNOT_CONVERT_SQL_VALUE_TO_PROTOBUF_ENUM_TYPE",
        "EXPRESSION_DECODING_FAILED",
        "EXPRESSION_ENCODING_FAILED",
        "INVALID_PARTITION_VALUE",
    }
)
"""Conditions that quote data, although their SQLSTATE is one of code."""
_PARAMETER = re.compile(r"<(\w+)>")
_LISTS = re.compile(r"error/(error-conditions|error-classes|delta-error-classes)\.json")
_STATE = re.compile(r"SQLSTATE: (\w{5})")


def is_about_data(condition: str, message: str) -> bool:
    """Return whether the message of a condition may quote rows."""
    if condition.partition(".")[0] in _QUOTING:
        return True
    known = _conditions().get(condition.partition(".")[0], {})
    told = _STATE.search(message)
    state = known.get("sqlState") or (told[1] if told else "")
    return not state.startswith(_ABOUT_CODE)


def without_values(condition: str, message: str) -> str:
    """Return the message of a condition about data, without parameters that may be values."""
    template = _template(condition)
    if not template:
        return "its text is left out, because it may quote a row"
    names = _PARAMETER.findall(template)
    parts = _PARAMETER.split(template)[::2]
    pattern = "(.*?)".join(re.escape(part) for part in parts)
    match = re.match(pattern + r"(?=\s*SQLSTATE:|\s*$|\n)", message, re.DOTALL)
    values = match.groups() if match is not None else ("",) * len(names)
    plain = _NO_VALUES | _NO_VALUES_OF.get(condition, frozenset())
    shown = []
    for name, value in zip(names, values, strict=True):
        if name in plain and value:
            shown.append(value)
        else:
            shown.append("…")
    return " ".join("".join(part + value for part, value in zip(parts, [*shown, ""], strict=True)).split())


def _template(condition: str) -> str:
    name, _, below = condition.partition(".")
    known = _conditions().get(name)
    if known is None:
        return ""
    lines = list(known.get("message", ()))
    if below:
        lines += known.get("subClass", {}).get(below, {}).get("message", ())
    return " ".join(lines)


@functools.cache
def _conditions() -> Mapping[str, Json]:
    """Return the conditions of Spark and Delta. Empty if pyspark is a client without their list."""
    conditions: dict[str, Json] = {}
    for jar in _jars():
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(jar) as opened:
            for name in filter(_LISTS.fullmatch, opened.namelist()):
                conditions |= _listed(opened.read(name))
    return conditions


def _listed(text: bytes) -> dict[str, Json]:
    try:
        listed = typed.decode(text, dict[str, Json])
    except msgspec.DecodeError:  # another list, such as one of classes of SQLSTATEs
        return {}
    return {name: about for name, about in listed.items() if isinstance(about.get("message"), list)}


def _jars() -> Iterator[Path]:
    with contextlib.suppress(ImportError):
        import pyspark

        yield from Path(pyspark.__path__[0], "jars").glob("spark-common-utils_*.jar")
    with contextlib.suppress(TidegateError):
        for jar in jar_paths():
            if Path(jar).name.startswith("delta-spark"):
                yield Path(jar)
