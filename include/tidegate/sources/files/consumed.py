"""The files that a source has consumed, as a position that stays small: sorted hashes in a few immutable blobs.

It works like an LSM tree: each checkpoint adds one segment with only its own names, and segments are merged
geometrically, so that n names need O(log n) blobs and each name is rewritten O(log n) times. A name is stored
as 16 bytes of its hash. No name is ever removed: a file that was archived and comes back is not read again.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable

from tidegate.records.records import Blob, Json
from tidegate.sources.base import Blobs

__all__ = ["ConsumedFiles"]

WIDTH = 16
RATIO = 4
"""Each segment is at least this many times as large as the next one."""


class ConsumedFiles:
    """A set of names, read from the blobs that a position lists."""

    def __init__(self, segments: list[Json], blobs: Blobs) -> None:
        self._blobs = blobs
        self._segments = [Blob(**segment) for segment in segments]
        self._loaded = [blobs.get_blob(segment) for segment in self._segments]

    def __len__(self) -> int:
        return sum(len(data) for data in self._loaded) // WIDTH

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names that are not in the set, in the given order."""
        pending = {_digest(name): name for name in names}
        for data in self._loaded:
            for digest in _digests_in(pending, data):
                del pending[digest]
        return list(pending.values())

    def write_with(self, names: Iterable[str]) -> list[Json]:
        """Return the segments of the set with `names` added. Writes one blob: the new names, merged with the segments
        that are not much larger."""
        remaining = list(zip(self._segments, self._loaded, strict=True))
        digests = {_digest(name) for name in names}
        while remaining and len(remaining[-1][1]) < RATIO * WIDTH * len(digests):
            digests.update(_digests(remaining.pop()[1]))
        blob = self._blobs.put_blob(b"".join(sorted(digests)))
        segments = [segment for segment, _ in remaining] + [blob]
        return [{"path": segment.path, "sha": segment.sha, "size": segment.size} for segment in segments]


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=WIDTH).digest()


def _digests(data: bytes) -> Iterable[bytes]:
    return (data[start : start + WIDTH] for start in range(0, len(data), WIDTH))


def _digests_in(pending: dict[bytes, str], data: bytes) -> list[bytes]:
    """Return the digests of `pending` that are in a segment. The cost depends on the smaller of the two."""
    count = len(data) // WIDTH
    if len(pending) * count.bit_length() >= count:
        return [digest for digest in _digests(data) if digest in pending]
    common = []
    for digest in pending:
        index = bisect_left(range(count), digest, key=lambda i: data[i * WIDTH : (i + 1) * WIDTH])
        if data[index * WIDTH : (index + 1) * WIDTH] == digest:
            common.append(digest)
    return common
