"""Positions in a topic: the next offset to read of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.connectors.source import foreign_position_error
from tidegate.records.records import Json

__all__ = ["TopicPosition", "share_of", "splits_of", "spread"]


@dataclass(frozen=True)
class TopicPosition:
    """How far a topic has been read. A partition that is not in `offsets` was added later, and begins at 0."""

    cluster: str
    topic_id: str
    """It changes when the topic is deleted and created again."""
    offsets: Mapping[int, int]

    @property
    def json(self) -> Json:
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        return {"cluster": self.cluster, "topic_id": self.topic_id, "offsets": offsets}

    @staticmethod
    def parse(start: Json, source: str) -> TopicPosition:
        if set(start) != {"cluster", "topic_id", "offsets"}:
            raise foreign_position_error(source, start, "a position of a Kafka source")
        offsets = {int(partition): offset for partition, offset in start["offsets"].items()}
        return TopicPosition(start["cluster"], start["topic_id"], offsets)


def splits_of(begin: TopicPosition, end: Mapping[int, int]) -> Json:
    """Return the splits that a plan records: the range of offsets, end exclusive, of each partition to read."""
    ranges = {}
    for partition, offset in sorted(end.items()):
        if offset > begin.offsets[partition]:
            ranges[str(partition)] = [begin.offsets[partition], offset]
    return {"cluster": begin.cluster, "topic_id": begin.topic_id, "ranges": ranges}


def share_of(splits: Json) -> dict[int, tuple[int, int]]:
    """Return the planned ranges by partition."""
    return {int(partition): (first, end) for partition, (first, end) in splits["ranges"].items()}


def spread(waiting: Mapping[int, int], bound: int | None) -> dict[int, int]:
    """Return how many offsets to read of each partition, at most `bound` in all.

    Each partition gets a share in proportion to its backlog, so that all catch up at the same time, and at least one
    offset as long as the bound allows.
    """
    total = sum(waiting.values())
    if bound is None or total <= bound:
        return dict(waiting)
    shares, remaining = {}, bound
    for partition, count in sorted(waiting.items(), key=lambda item: (item[1], item[0])):
        shares[partition] = min(remaining, -(-count * remaining // total)) if total else 0  # the quotient is rounded up
        remaining -= shares[partition]
        total -= count
    return shares
