"""Fingerprints that show whether a file has changed. They depend on its size and content, never on its times.

A file of up to WHOLE bytes is hashed completely. For a larger file the hash covers its size, its first and last EDGE
bytes, and SAMPLES blocks at even distances, because planning must not read gigabytes. So the only change that goes
unnoticed is an edit of a large file in place that keeps its size and only touches bytes between the samples. An edit of
a Parquet file changes its footer, which is in the last bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["Fingerprint", "fingerprint"]

WHOLE = 4 << 20
EDGE = 64 << 10
SAMPLES = 16
SAMPLE = 16 << 10


@dataclass(frozen=True)
class Fingerprint:
    """The size and content of a file at one moment."""

    size: int
    sha: str
    head: bytes
    """The first four bytes, by which Parquet files are recognized."""
    tail: bytes
    """The last four bytes."""


def fingerprint(stream: BinaryIO) -> Fingerprint:
    """Return the fingerprint of an open file, reading no more of it than necessary."""
    size = stream.seek(0, 2)
    sha = hashlib.sha256(size.to_bytes(8, "big"))
    head = tail = b""
    for offset, length in _blocks(size):
        stream.seek(offset)
        block = stream.read(length)
        sha.update(block)
        head = head or block[:4]
        tail = (tail + block)[-4:]
    return Fingerprint(size, sha.hexdigest()[:32], head, tail)


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    if size <= WHOLE:
        yield 0, size
        return
    yield 0, EDGE
    step = (size - 2 * EDGE) // SAMPLES
    for sample in range(SAMPLES):
        yield EDGE + sample * step, SAMPLE
    yield size - EDGE, EDGE
