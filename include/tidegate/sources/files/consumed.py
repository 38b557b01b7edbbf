"""Which files a source has consumed, as a position that stays small: sorted hashes in a few immutable blobs.

Like an LSM tree: each checkpoint adds one segment with its own names only, and segments are merged
geometrically, so that n names need O(log n) blobs and each name is rewritten O(log n) times. A name is
16 bytes of its hash. Nothing is ever forgotten: a file that was archived and comes back is not read again.
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
        """Those of `names` that are not in the set, in the order given."""
        pending = {_digest(name): name for name in names}
        for data in self._loaded:
            for digest in _common(pending, data):
                del pending[digest]
        return list(pending.values())

    def with_added(self, names: Iterable[str]) -> list[Json]:
        """The segments of a larger set. Writes one blob: the new names, merged with what is not much larger."""
        kept = list(zip(self._segments, self._loaded, strict=True))
        fresh = {_digest(name) for name in names}
        while kept and len(kept[-1][1]) < RATIO * WIDTH * len(fresh):
            fresh.update(_digests(kept.pop()[1]))
        blob = self._blobs.put_blob(b"".join(sorted(fresh)))
        return [{"path": blob.path, "sha": blob.sha, "size": blob.size} for blob in [*(blob for blob, _ in kept), blob]]


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=WIDTH).digest()


def _digests(data: bytes) -> Iterable[bytes]:
    return (data[at : at + WIDTH] for at in range(0, len(data), WIDTH))


def _common(pending: dict[bytes, str], data: bytes) -> list[bytes]:
    """The digests of `pending` that are in a segment; cost follows the smaller of the two."""
    count = len(data) // WIDTH
    if len(pending) * count.bit_length() >= count:
        return [digest for digest in _digests(data) if digest in pending]
    found = []
    for digest in pending:
        at = bisect_left(range(count), digest, key=lambda i: data[i * WIDTH : (i + 1) * WIDTH])
        if data[at * WIDTH : (at + 1) * WIDTH] == digest:
            found.append(digest)
    return found
