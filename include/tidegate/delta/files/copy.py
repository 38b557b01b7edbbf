"""Copies files from one folder to another under the same names, durably, and returns their hashes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import IO, Any

from tidegate import seams
from tidegate.delta.files.access import Location, unavailable

__all__ = ["copy_files", "hash_of"]

_CHUNK = 1 << 20


def copy_files(source: Location, target: Location, paths: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Copy files, and return the size and sha256 of each. A partly copied file is never visible, so it can be
    repeated."""
    copies = {path: _copy(source, target, path) for path in paths}
    target.sync(copies)
    return copies


def hash_of(location: Location, path: str) -> tuple[int, str]:
    """Return the size and sha256 of a file."""
    try:
        with location.open(path) as stream:
            return _read_and_copy(stream, None)
    except OSError as error:
        raise unavailable(location.full(path), error) from error


def _copy(source: Location, target: Location, path: str) -> tuple[int, str]:
    temporary = f"{path}.{seams.new_id()}.tmp" if target.is_local else path
    try:
        with source.open(path) as stream, target.create(temporary) as copy:
            size_and_hash = _read_and_copy(stream, copy)
        if target.is_local:
            os.replace(target.local(temporary), target.local(path))
    except OSError as error:
        if target.is_local:
            target.local(temporary).unlink(missing_ok=True)
        raise unavailable(target.full(path), error) from error
    return size_and_hash


def _read_and_copy(stream: Any, copy: IO[bytes] | None) -> tuple[int, str]:
    """Return size and sha256 of a stream's data, and write it to `copy`."""
    sha, size = hashlib.sha256(), 0
    while data := stream.read(_CHUNK):
        sha.update(data)
        size += len(data)
        if copy is not None:
            copy.write(data)
    return size, sha.hexdigest()
