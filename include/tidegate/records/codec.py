"""Encode records as bytes and decode them: strict, versioned, bounded, and readable with `cat`."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal, TypeVar

import msgspec

from tidegate.errors import Corrupt, Invalid
from tidegate.records import typed
from tidegate.records.records import FORMAT, Json, Record

RECORD_LIMIT = 4 << 20
"""The maximum size of a record. Longer content goes to a side file, named by its hash (Payload). With the longest
possible names and URLs, a table takes up to 1 KB of a record (tests/unit/records/test_record_sizes.py)."""

INLINE_LIMIT = 32 << 10
"""A payload above this size goes to a side file."""

INLINE_ALL = 128 << 10
"""The inline budget that the payloads of one kind share across all parts of a pipeline.

It keeps a record below its limit for any number of parts and any length of payloads. Indentation can double the
size."""

R = TypeVar("R", bound=Record)


class _Format(msgspec.Struct):
    """Only the field that determines how to read the others."""

    format: int


def encode(record: Record) -> bytes:
    """Encode the record as indented JSON. Raise Invalid if it could not be read back, because the damage would be
    permanent."""
    plain = _json(record, record.title)
    try:
        flaw = typed.decode(plain, type(record)).flaw()
    except _UNREADABLE as error:
        flaw = str(error)
    if flaw is not None:
        raise Invalid(
            f"{record.title} would not be a valid record: {flaw}",
            expected="each field to have the type that the record declares",
            help="check the value that the source, the sink or the caller passed for that field",
            reason="NOT_A_RECORD",
        )
    data = msgspec.json.format(plain, indent=1) + b"\n"
    if len(data) > RECORD_LIMIT:
        raise Invalid(
            f"{record.title} would have {len(data):,} bytes",
            expected=f"at most {RECORD_LIMIT:,} bytes",
            help="lower the source's bound per checkpoint (max_files, max_bytes), or shorten names and settings",
            reason="RECORD_TOO_LARGE",
        )
    return data


def decode(data: bytes, kind: type[R], path: str) -> R:
    """Decode the record in `data`. Raise Corrupt with the path and the first flaw."""
    if not data:
        raise _corrupt(path, "it is empty (torn by a crash or a full disk?)")
    if len(data) > RECORD_LIMIT:
        raise _corrupt(path, f"it has {len(data):,} bytes, more than the {RECORD_LIMIT:,} that tidegate ever writes")
    try:
        version = typed.decode(data, _Format).format
    except _UNREADABLE as error:
        raise _corrupt(path, f"it is not a record: {error}") from None
    if version != FORMAT:
        raise Corrupt(
            f"{path}: record format {version} is unknown to this version",
            expected=f"format {FORMAT}",
            help="run the version of tidegate that wrote it, or a newer one",
            reason="UNKNOWN_FORMAT",
        )
    try:
        record = typed.decode(data, kind)
        json.loads(data, object_pairs_hook=_refuse_duplicates)
    except _UNREADABLE as error:
        raise _corrupt(path, str(error)) from None
    if (flaw := record.flaw()) is not None:
        raise _corrupt(path, flaw)
    return record


def encode_json(value: Json) -> bytes:
    """Encode a payload. Equal values have equal bytes."""
    return _json(value, "a payload", order="sorted")


def decode_json(data: bytes, path: str) -> Json:
    """Decode the bytes of a payload as a JSON object."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except _UNREADABLE as error:
        raise _corrupt(path, str(error)) from None


def sha256(data: bytes) -> str:
    """Return the hash by which records and payloads are named."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(value: object) -> str:
    """Return a short hash of a JSON value, such as settings or a graph."""
    return sha256(msgspec.json.encode(value, order="sorted"))[:16]


_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""Errors of decoding bytes that tidegate has not written (a UnicodeDecodeError is a ValueError)."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object with a duplicate field, which would be ambiguous."""
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"field {name!r} is duplicated")
        names.add(name)


def _json(value: object, title: str, order: Literal["sorted"] | None = None) -> bytes:
    """Encode `value` as JSON. Raise Invalid if JSON cannot hold it; msgspec would silently write NaN as null."""
    try:
        plain = msgspec.to_builtins(value)
        data = msgspec.json.encode(plain)
        flaw = _not_json(plain) if msgspec.json.decode(data) != plain else ""
        if flaw:
            raise ValueError(flaw)
        if order is None:
            return data
        return msgspec.json.encode(plain, order=order)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"{title} cannot be written as JSON: {error}",
            expected="text in Unicode, finite numbers, true, false, null, lists, and dicts with texts as keys",
            help="check the names, settings and files that the source or sink uses",
            reason="NOT_JSON",
        ) from None


def _not_json(value: object) -> str:
    """Describe the first NaN, infinity or key that is not a string in `value`, or return ""."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value!r} is not finite"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"key {key!r} is not text"
    if isinstance(value, dict | list | tuple):
        members = value.values() if isinstance(value, dict) else value
        return next(filter(None, map(_not_json, members)), "")
    return ""


def _corrupt(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path} cannot be read: {why}",
        expected="the record exactly as tidegate wrote it",
        help="run `tidegate doctor`; restore the file from a copy of the storage; never edit or delete records by hand",
        reason="BAD_RECORD",
    )
