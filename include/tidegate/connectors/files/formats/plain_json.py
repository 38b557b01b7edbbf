"""Recognizes small JSON files that are plain: one object per line, with the keys of the schema.

Spark's JSON reader cannot overlook anything in them, so the checks of `json_lines`, which read files a second time as
text, can be skipped. For a few rows, planning that second scan would cost more than all other work. Files that are not
small, or not obviously plain, are left to those checks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.exact_values import inner_types
from tidegate.connectors.schema.ddl import Column

__all__ = ["are_plain"]

_MAX_BYTES: Final = 2_000_000
"""The total size up to which files count as small."""

_KEY: Final = re.compile(rb'"\s*:')
"""Matches each key, and text that looks like one."""


def are_plain(folder: Folder, names: Sequence[str], columns: Sequence[Column], *, all_keys_known: bool) -> bool:
    """Return whether these files are small, and each line is one JSON object that Spark reads completely.

    all_keys_known: a file is plain only if the schema has all of its keys. Otherwise keys that the schema lacks are
        fine, unless they differ from a column in nothing but case.
    """
    if not folder.is_local or any(_has_fields(column.type) for column in columns):
        return False
    column_names = {column.name for column in columns}
    lower_names = None if all_keys_known else {name.lower() for name in column_names}
    left = _MAX_BYTES
    for name in names:
        try:
            with folder.open(name) as file:
                text = file.read(left + 1)
        except OSError:  # the next reader reports it
            return False
        left -= len(text)
        if left < 0 or b"\r" in text:  # to Spark, a carriage return also ends a line
            return False
        for line in filter(None, text.split(b"\n")):
            if line.strip() and not _is_plain(line, column_names, lower_names):
                return False
    return True


def _is_plain(line: bytes, column_names: Collection[str], lower_names: Collection[str] | None) -> bool:
    """Return whether a line is plain. lower_names: the columns in lower case, or None to accept no other keys."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    if not isinstance(record, dict):
        return False
    if len(_KEY.findall(line)) != len(record):  # a key occurs twice, or in a nested object
        return False
    strange_keys = record.keys() - column_names
    if not strange_keys:
        return True
    return lower_names is not None and not any(key.lower() in lower_names for key in strange_keys)


def _has_fields(kind: str) -> bool:
    """Return whether a type contains structs."""
    outer, inner = inner_types(kind)
    return outer == "struct" or any(_has_fields(part.type) for part in inner)
