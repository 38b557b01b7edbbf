"""Decode values into types, from any number of threads, and structs into plain values.

msgspec analyzes a type on its first use. If a second thread uses the type at the same time, it reads a half-done
analysis, and the process dies of a segmentation fault. So each type is analyzed once, under a lock, before it is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

__all__ = ["convert", "decode", "document_of"]

T = TypeVar("T")

_analysed: set[Any] = set()
_lock = threading.Lock()
# A forked process must not inherit a half-done analysis, nor a lock that no thread releases.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON into a type. Raise msgspec.DecodeError if it does not fit."""
    _analyse(kind)
    return msgspec.json.decode(data, type=kind)


def convert(value: Any, kind: type[T]) -> T:
    """Convert plain JSON values into a type. Raise msgspec.ValidationError if they do not fit."""
    _analyse(kind)
    return msgspec.convert(value, kind)


def document_of(value: Any) -> Any:
    """Return a value as plain JSON for users: fields have the names of their attributes, not those on disk."""
    if isinstance(value, msgspec.Struct):
        return {name: document_of(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {key: document_of(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [document_of(member) for member in value]
    return value


def _analyse(kind: Any) -> None:
    if kind not in _analysed:
        with _lock:
            msgspec.json.Decoder(kind)
            _analysed.add(kind)
