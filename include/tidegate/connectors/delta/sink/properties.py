"""Checks of a Delta sink's arguments: its path, and the properties of a table that it creates.

Both engines must support the properties and their values. delta-rs accepts any value when it creates a table, and for
some keys enables protocol features by itself, so properties that are not listed here are refused. A table that was
created by hand may have everything that delta/log/features.py allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidegate.delta import locate
from tidegate.errors import Invalid
from tidegate.records.place import Place, check_path

__all__ = ["path_problems", "property_problems"]

_SWITCH = (re.compile(r"true|false"), '"true" or "false"')
_NUMBER = (re.compile(r"[1-9][0-9]{0,8}"), "a whole number above 0")
_COUNT = (re.compile(r"-1|[0-9]{1,6}"), "a whole number, -1 for all columns")
_SPAN = (re.compile(r"interval [1-9][0-9]{0,6} (hour|day|week)s?"), '"interval <n> days", or hours, or weeks')
_TEXT = (re.compile(r".+"), "some text")

_KNOWN = {
    "delta.appendOnly": _SWITCH,
    "delta.checkpointInterval": _NUMBER,
    "delta.dataSkippingNumIndexedCols": _COUNT,
    "delta.dataSkippingStatsColumns": _TEXT,
    "delta.deletedFileRetentionDuration": _SPAN,
    "delta.enableChangeDataFeed": _SWITCH,
    "delta.enableExpiredLogCleanup": _SWITCH,
    "delta.isolationLevel": (re.compile("Serializable|WriteSerializable"), "Serializable or WriteSerializable"),
    "delta.logRetentionDuration": _SPAN,
    "delta.randomizeFilePrefixes": _SWITCH,
}


def property_problems(properties: Mapping[str, str]) -> list[str]:
    """Return the problems of the properties of a table to be created."""
    problems = []
    for key, value in properties.items():
        if key not in _KNOWN:
            problems.append(f"table property {key!r} is not one of {', '.join(_KNOWN)}: create the table yourself")
            continue
        pattern, expected = _KNOWN[key]
        if not isinstance(value, str) or not pattern.fullmatch(value):
            problems.append(f"table property {key!r} is {value!r}: write {expected}")
    return problems


def path_problems(path: object) -> list[str]:
    """Return the problems of a table's path."""
    try:
        locate(Place("/"), check_path(path))
    except Invalid as error:
        return [error.what]
    return []
