"""Positions in a topic: the next offset to read of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import Invalid
from tidegate.records.records import Json

__all__ = ["TopicPosition", "share_of", "splits_of", "spread"]


@dataclass(frozen=True)
class TopicPosition:
    """How far a topic has been read. A partition that is not in it has come since, and begins at 0."""

    cluster: str
    topic_id: str
    """A topic that is deleted and made again has another one."""
    offsets: Mapping[int, int]

    @property
    def json(self) -> Json:
        offsets = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        return {"cluster": self.cluster, "topic_id": self.topic_id, "offsets": offsets}

    @staticmethod
    def of(start: Json, source: str) -> TopicPosition:
        if set(start) != {"cluster", "topic_id", "offsets"}:
            raise Invalid(
                f"source {source!r} cannot continue from position {start!r}",
                expected="a position of a Kafka source",
                help="give the source another name, so that it starts from scratch, or put the former source back",
                reason="FOREIGN_POSITION",
            )
        offsets = {int(partition): offset for partition, offset in start["offsets"].items()}
        return TopicPosition(start["cluster"], start["topic_id"], offsets)


def splits_of(begin: TopicPosition, end: Mapping[int, int]) -> Json:
    """Return what a plan records: of each partition that has something to read, the first offset, and the one after the
    last."""
    ranges = {
        str(partition): [begin.offsets[partition], offset]
        for partition, offset in sorted(end.items())
        if offset > begin.offsets[partition]
    }
    return {"cluster": begin.cluster, "topic_id": begin.topic_id, "ranges": ranges}


def share_of(splits: Json) -> dict[int, tuple[int, int]]:
    """Return the ranges of a plan by partition."""
    return {int(partition): (first, after) for partition, (first, after) in splits["ranges"].items()}


def spread(waiting: Mapping[int, int], bound: int | None) -> dict[int, int]:
    """Return how many offsets to take of each partition: in all, no more than the bound.

    Each gives the same part of what waits in it, so that all come to the same moment; and each gives one at least, as
    long as the bound allows.
    """
    total = sum(waiting.values())
    if bound is None or total <= bound:
        return dict(waiting)
    taken, left = {}, bound
    for partition, count in sorted(waiting.items(), key=lambda item: (item[1], item[0])):
        taken[partition] = min(left, -(-count * left // total)) if total else 0
        left, total = left - taken[partition], total - count
    return taken
