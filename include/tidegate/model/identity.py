"""Who a pipeline is, for ever: its uid, and where it comes from if it was not begun afresh; and what a copy is of."""

from __future__ import annotations

from typing import ClassVar

from tidegate.model.payload import Payload
from tidegate.model.struct import Id, Record, Sha, Struct

__all__ = ["Claimed", "Copy", "Origin", "PipelineRecord"]


class Origin(Struct, frozen=True, kw_only=True):
    """The checkpoint that a pipeline was forked from. Its own log begins with it, under the same number."""

    pipeline: str
    uid: str
    entry: Id
    manifest: Sha
    by: str
    note: str = ""


class Copy(Record, frozen=True, kw_only=True):
    """What a folder is that holds a savepoint."""

    title: ClassVar[str] = "savepoint.json"

    name: str
    origin: Origin
    files: Payload
    """The size and sha256 of every other file: {"files": {path: [size, sha256]}}."""
    states: dict[str, Payload] = {}
    """States that are in the folder as one file instead of those that the checkpoint's own records name."""


class Claimed(Record, frozen=True, kw_only=True):
    """The pipeline with this uid owns the folder, and removes it."""

    title: ClassVar[str] = "claimed.json"

    uid: str


class PipelineRecord(Record, frozen=True, kw_only=True):
    """Identity of a pipeline, made at its first start. A new uid means a new pipeline to every table."""

    title: ClassVar[str] = "pipeline.json"

    uid: str
    name: str
    origin: Origin | None = None
