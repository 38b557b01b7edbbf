"""What every record is made of: strict structs, and the few kinds of value that have a name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

__all__ = ["FORMAT", "Id", "Json", "Record", "Sha", "Struct"]

FORMAT = 1
"""The record format that this version writes, and the only one that it reads."""

Json = dict[str, Any]
"""A JSON object that belongs to a source or a sink: opaque to everyone else."""

Id = Annotated[int, msgspec.Meta(ge=1)]
"""A checkpoint: its position in the log."""

Sha = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A sha256 in hex. Checked, because some are parts of file names."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a record."""


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole record: one JSON file."""

    title: ClassVar[str] = "record"

    format: int = FORMAT
    attempt: str
    """Fresh random id of the writer: tells an own write from somebody else's after an unclear answer."""
    created: str
    """Wall-clock time in UTC, for people. Nothing is decided by it."""

    def flaw(self) -> str | None:
        """What is wrong with the fields together, each by itself being right. Asked after reading."""
        return None
