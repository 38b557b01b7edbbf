"""What all records have in common: their format, and how they are read."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

__all__ = [
    "FORMAT",
    "Id",
    "Json",
    "Record",
    "Sha",
    "Struct",
]


FORMAT = 1
"""The record format that this version writes, and the only one that it reads."""

Json = dict[str, Any]
"""A JSON object that only the source or sink that wrote it interprets."""

Id = Annotated[int, msgspec.Meta(ge=1)]
"""A checkpoint's number: its position in the log."""

Sha = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A sha256 in hex. The pattern is checked because some hashes become parts of file names."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a record."""


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole record: one JSON file."""

    title: ClassVar[str] = "record"

    format: int = FORMAT
    attempt: str
    """Fresh random id of the writer, which recognizes its own write by it after an unclear answer."""
    created: str
    """Wall-clock time in UTC, for display. No decision depends on it."""

    def flaw(self) -> str | None:
        """Return a contradiction between fields that are each valid, or None. Called after decoding."""
        return None
