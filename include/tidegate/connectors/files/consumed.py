"""The set of files that a source has consumed, as sorted hashes in a few immutable blobs, so that positions stay small.

It works like an LSM tree: each checkpoint adds a segment with its new names, and segments are merged geometrically.
So n names need O(log n) blobs, and each name is rewritten O(log n) times. A name is stored as 16 bytes of its hash. No
name is ever removed, so a file that was archived and then restored is not read again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress

from tidegate.connectors.source import Blobs
from tidegate.records.records import Blob, Json

__all__ = ["ConsumedFiles"]

WIDTH = 16
RATIO = 4
"""Each segment is at least this many times as large as the next one."""
MIN_NAMES_FOR_NUMPY = 1 << 16
"""Fewer names are looked up within 20 ms without numpy, so importing it does not pay off."""


class ConsumedFiles:
    """A set of names, read from the blobs that a position lists."""

    def __init__(self, segments: list[Json], blobs: Blobs) -> None:
        self._blobs = blobs
        self._segments = [Blob(**segment) for segment in segments]
        self._loaded = [blobs.get_blob(segment) for segment in self._segments]

    def __len__(self) -> int:
        return sum(len(data) for data in self._loaded) // WIDTH

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the names that are not in the set, in the given order."""
        pending = names
        digests = _digests_of(names)
        for data in self._loaded:
            is_missing = [not contained for contained in _contained(digests, data)]
            pending = list(compress(pending, is_missing))
            digests = list(compress(digests, is_missing))
        return list(pending)

    def is_superset_of(self, other: ConsumedFiles) -> bool:
        """Return whether every name of another set is in this one."""
        pending: list[bytes] = []
        for data in other._loaded:
            pending += _digests(data)
        for data in self._loaded:
            is_missing = [not contained for contained in _contained(pending, data)]
            pending = list(compress(pending, is_missing))
        return not pending

    def write_with(self, names: Iterable[str]) -> list[Json]:
        """Add names to the set, and return its segments.

        Writes one blob with the new names, merged with the segments that are not much larger.
        """
        remaining = list(zip(self._segments, self._loaded, strict=True))
        digests = set(_digests_of(names))
        while remaining and len(remaining[-1][1]) < RATIO * WIDTH * len(digests):
            digests.update(_digests(remaining.pop()[1]))
        blob = self._blobs.put_blob(b"".join(sorted(digests)))
        segments = [segment for segment, _ in remaining] + [blob]
        return [{"path": segment.path, "sha": segment.sha, "size": segment.size} for segment in segments]


def _digests_of(names: Iterable[str]) -> list[bytes]:
    return [blake2b(name, digest_size=WIDTH).digest() for name in map(str.encode, names)]


def _digests(data: bytes) -> Iterable[bytes]:
    return (data[start : start + WIDTH] for start in range(0, len(data), WIDTH))


def _contained(digests: Sequence[bytes], data: bytes) -> Sequence[bool]:
    """Return for each digest whether it is in a segment. The cost depends on the smaller of the two."""
    count = len(data) // WIDTH
    if len(digests) * count.bit_length() < count:
        return [_is_in(digest, data, count) for digest in digests]
    if count < MIN_NAMES_FOR_NUMPY:
        segment = set(_digests(data))
        return [digest in segment for digest in digests]
    return _contained_of_many(digests, data)


def _is_in(digest: bytes, data: bytes, count: int) -> bool:
    index = bisect_left(range(count), digest, key=lambda i: data[i * WIDTH : (i + 1) * WIDTH])
    return data[index * WIDTH : (index + 1) * WIDTH] == digest


def _contained_of_many(digests: Sequence[bytes], data: bytes) -> list[bool]:
    """Return the same by a search in sorted order, since a large hash table does not fit the processor's caches."""
    import numpy as np

    segment = np.frombuffer(data, f"S{WIDTH}")
    searched = np.frombuffer(b"".join(digests), f"S{WIDTH}")
    # Sorting by the first half of each digest is cheaper, and orders them well enough for the caches.
    order = np.argsort(searched.view(">u8")[::2].astype("u8"))
    ordered = searched[order]
    positions = np.searchsorted(segment, ordered)
    is_contained = np.empty(len(digests), bool)
    # Numpy ignores trailing zero bytes as padding. That is harmless, because all digests have the same length.
    is_contained[order] = segment[np.minimum(positions, len(segment) - 1)] == ordered
    return list(is_contained.tolist())
