"""Records to bytes and back: strict, versioned, bounded, readable with `cat`."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal, TypeVar

import msgspec

from tidegate.errors import Corrupt, Invalid
from tidegate.records.records import FORMAT, Json, Record

RECORD_LIMIT = 1 << 20
"""No record is larger. What is longer lies in a file of its own and is named by hash (Payload)."""

INLINE_LIMIT = 32 << 10
"""A payload above this size goes to a file of its own."""

INLINE_ALL = 128 << 10
"""What the payloads of one kind, of all parts of a pipeline, have in a record together: so it stays below its limit,
however many parts there are, and however much each has to say. With indentation it is up to twice as much."""

R = TypeVar("R", bound=Record)


class _Format(msgspec.Struct):
    """Just the field that says how to read the rest."""

    format: int


def encode(record: Record) -> bytes:
    """The record as indented JSON. Refuses one that could not be read back: it would be damage for ever."""
    plain = _json(record, record.title)
    try:
        flaw = msgspec.json.decode(plain, type=type(record)).flaw()
    except _UNREADABLE as error:
        flaw = str(error)
    if flaw is not None:
        raise Invalid(
            f"{record.title} would not be a record: {flaw}",
            expected="each field of the type that its record gives it",
            help="look at what the source, the sink or the caller gave for that field",
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
    """The record in `data`, or Corrupt with the path and the first thing that is wrong with it."""
    if not data:
        raise _corrupt(path, "it is empty (torn by a crash or a full disk?)")
    if len(data) > RECORD_LIMIT:
        raise _corrupt(path, f"it has {len(data):,} bytes, more than the {RECORD_LIMIT:,} that tidegate ever writes")
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except _UNREADABLE as error:
        raise _corrupt(path, f"it is not a record: {error}") from None
    if found != FORMAT:
        raise Corrupt(
            f"{path}: record format {found} is unknown to this version",
            expected=f"format {FORMAT}",
            help="run the version of tidegate that wrote it, or a newer one",
            reason="UNKNOWN_FORMAT",
        )
    try:
        record = msgspec.json.decode(data, type=kind)
        json.loads(data, object_pairs_hook=_each_once)
    except _UNREADABLE as error:
        raise _corrupt(path, str(error)) from None
    if (flaw := record.flaw()) is not None:
        raise _corrupt(path, flaw)
    return record


def encode_json(value: Json) -> bytes:
    """A payload as bytes: always the same for equal values."""
    return _json(value, "a payload", order="sorted")


def decode_json(data: bytes, path: str) -> Json:
    """A payload's bytes as a JSON object."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except _UNREADABLE as error:
        raise _corrupt(path, str(error)) from None


def sha256(data: bytes) -> str:
    """The hash by which records and payloads are named."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(value: object) -> str:
    """A short hash of anything that is JSON: settings, a graph."""
    return sha256(msgspec.json.encode(value, order="sorted"))[:16]


_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding raises on bytes that tidegate has not written (a UnicodeDecodeError is a ValueError)."""


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that has a field twice: which of the two would count?"""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"field {name!r} is there twice")
        seen.add(name)


def _json(value: object, title: str, order: Literal["sorted"] | None = None) -> bytes:
    """JSON of `value`. Refuses what JSON cannot hold; msgspec would write NaN as null without a word."""
    try:
        plain = msgspec.to_builtins(value)
        data = msgspec.json.encode(plain)
        if msgspec.json.decode(data) != plain and (found := _not_json(plain)):
            raise ValueError(found)
        return data if order is None else msgspec.json.encode(plain, order=order)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"{title} cannot be written as JSON: {error}",
            expected="text in Unicode, finite numbers, true, false, null, lists, and dicts with texts as keys",
            help="look at the names, settings and files that the source or sink was given",
            reason="NOT_JSON",
        ) from None


def _not_json(value: object) -> str:
    """The first NaN, infinity or key that is no text in `value`; empty if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value!r} is not finite"
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        return f"key {odd[0]!r} is no text" if odd else next(filter(None, map(_not_json, value.values())), "")
    return next(filter(None, map(_not_json, value)), "") if isinstance(value, list | tuple) else ""


def _corrupt(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path} cannot be read: {why}",
        expected="the record exactly as tidegate wrote it",
        help="run `tidegate doctor`; restore the file from a copy of the storage; never edit or delete records by hand",
        reason="BAD_RECORD",
    )
