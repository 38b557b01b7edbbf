"""Fingerprints that show whether a file is still the same: of its size and content, never of its times.

A file of up to WHOLE bytes is hashed completely. Of a larger one the hash covers its size, its first and last
EDGE bytes, and SAMPLES blocks spread evenly between: a planner must not read gigabytes. This misses only an edit
in place that keeps the size of a large file and lies between the samples, at neither edge. (A Parquet file's
footer is at the edge.)
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
    """The content of a file at one moment."""

    size: int
    sha: str
    head: bytes
    """Its first four bytes: enough to know a Parquet file."""
    tail: bytes
    """Its last four bytes."""


def fingerprint(stream: BinaryIO) -> Fingerprint:
    """Read as much of an open file as its fingerprint needs."""
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
