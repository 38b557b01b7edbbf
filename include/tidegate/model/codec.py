"""Records to bytes and back: strict, versioned, bounded, readable with `cat`."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from tidegate.errors import Corrupt, Invalid
from tidegate.model.records import FORMAT, Json, Record

RECORD_LIMIT = 1 << 20
"""No record is larger. What is longer lies in a file of its own and is named by hash (Payload)."""

INLINE_LIMIT = 32 << 10
"""A payload above this size goes to a file of its own."""

R = TypeVar("R", bound=Record)


class _Format(msgspec.Struct):
    """Just the field that says how to read the rest."""

    format: int


def encode(record: Record) -> bytes:
    """The record as indented JSON. Refuses one that is too large to be read back."""
    data = _dump(msgspec.to_builtins(record))
    if len(data) > RECORD_LIMIT:
        raise Invalid(
            f"{record.title} would have {len(data):,} bytes",
            expected=f"at most {RECORD_LIMIT:,} bytes",
            help="lower the source's bound per checkpoint (max_files, max_bytes), or shorten names and settings",
            reason="RECORD_TOO_LARGE",
        )
    return data


def decode(data: bytes, kind: type[R], path: str) -> R:
    """The record in `data`, or Corrupt with the path and the first thing that is wrong with it."""
    if not data:
        raise _corrupt(path, "it is empty (torn by a crash or a full disk?)")
    if len(data) > RECORD_LIMIT:
        raise _corrupt(path, f"it has {len(data):,} bytes, more than the {RECORD_LIMIT:,} that tidegate ever writes")
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _corrupt(path, f"it is not a record: {error}") from None
    if found != FORMAT:
        raise Corrupt(
            f"{path}: record format {found} is unknown to this version",
            expected=f"format {FORMAT}",
            help="run the version of tidegate that wrote it, or a newer one",
            reason="UNKNOWN_FORMAT",
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _corrupt(path, str(error)) from None


def encode_json(value: Json) -> bytes:
    """A payload as bytes: always the same for equal values."""
    return msgspec.json.encode(value, order="sorted")


def decode_json(data: bytes, path: str) -> Json:
    """A payload's bytes as a JSON object."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _corrupt(path, str(error)) from None


def sha256(data: bytes) -> str:
    """The hash by which records and payloads are named."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(value: object) -> str:
    """A short hash of anything that is JSON: settings, a graph."""
    return sha256(msgspec.json.encode(value, order="sorted"))[:16]


def _dump(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _corrupt(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path} cannot be read: {why}",
        expected="the record exactly as tidegate wrote it",
        help="run `tidegate doctor`; restore the file from a copy of the storage; never edit or delete records by hand",
        reason="BAD_RECORD",
    )
