"""Small JSON files that a glance shows to be plain: one object in each line, with the keys of the schema.

Spark's JSON reader cannot overlook anything in them (`json_lines`), so Spark need not read them once more as text to
find out. With few rows, planning that would cost more than all else that is done with them. Whatever is not plain at
first sight, or not small, is left to Spark's closer look.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from tidegate.connectors.ddl import Column
from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.exact_values import inner_types

__all__ = ["are_plain"]

_SMALL: Final = 2_000_000
"""Bytes, in all."""

_KEY: Final = re.compile(rb'"\s*:')
"""Matches once for each key, and for text that looks like one."""


def are_plain(folder: Folder, names: Sequence[str], columns: Sequence[Column], *, all_keys_known: bool) -> bool:
    """Return whether these files are small, and each of their lines is one JSON object that Spark reads completely.

    all_keys_known: a key that the schema lacks is not plain. Otherwise only one is not that differs from a column in
    nothing but upper and lower case.
    """
    if not folder.is_local or any(_has_fields(column.type) for column in columns):
        return False
    known = {column.name for column in columns}
    lower = {name.lower() for name in known}
    left = _SMALL
    for name in names:
        try:
            with folder.open(name) as file:
                text = file.read(left + 1)
        except OSError:  # whoever reads it next tells
            return False
        left -= len(text)
        if left < 0 or b"\r" in text:  # which also ends a line
            return False
        for line in filter(None, text.split(b"\n")):
            if line.strip() and not _is_plain(line, known, None if all_keys_known else lower):
                return False
    return True


def _is_plain(line: bytes, known: Collection[str], lower: Collection[str] | None) -> bool:
    """lower: the columns' names in lower case, if keys that are not alike are fine."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    if not isinstance(record, dict) or len(_KEY.findall(line)) != len(
        record
    ):  # a key occurs twice, or there are objects within it
        return False
    strange = record.keys() - known
    return not strange or (lower is not None and not any(key.lower() in lower for key in strange))


def _has_fields(kind: str) -> bool:
    """Return whether a type has named fields of its own."""
    outer, inner = inner_types(kind)
    return outer == "struct" or any(_has_fields(part.type) for part in inner)
