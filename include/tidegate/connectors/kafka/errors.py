"""The errors for topics that cannot be read any further: one function per reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.errors import Invalid

_HOW_TO_START_OVER: Final = (
    "rename the source: it then begins as `start` says, and records that were read before are read again"
)
_MAX_PARTITIONS: Final = 10


def _list_partitions(offsets: Mapping[int, tuple[int, int]], template: str) -> str:
    """Return a line for each partition. template: the text for its offsets, such as "at {0}, oldest {1}"."""
    lines = [f"\n  partition {partition}: {template.format(*pair)}" for partition, pair in sorted(offsets.items())]
    if len(lines) > _MAX_PARTITIONS:
        lines[_MAX_PARTITIONS:] = [f"\n  … and {len(lines) - _MAX_PARTITIONS} more"]
    return "".join(lines)


def cluster_changed_error(source: str, topic: str, before: str, now: str) -> Invalid:
    """Return the error for brokers of another cluster, whose offsets are unrelated."""
    return Invalid(
        f"source {source!r}: topic {topic!r} is in another cluster than before: its id is {now}, it was {before}",
        expected="the cluster that was read so far",
        help=f"correct the servers; or {_HOW_TO_START_OVER}",
        reason="CLUSTER_CHANGED",
    )


def topic_recreated_error(source: str, topic: str, before: str, now: str) -> Invalid:
    """Return the error for a topic that was deleted and created again: offsets in it are unrelated to the old ones."""
    return Invalid(
        f"source {source!r}: topic {topic!r} was deleted and created again: its id is {now}, it was {before}",
        expected="the topic that was read so far: its records after the last checkpoint are lost",
        help=f"to read the new one, {_HOW_TO_START_OVER}",
        reason="TOPIC_RECREATED",
    )


def records_expired(source: str, topic: str, expired: Mapping[int, tuple[int, int]]) -> Invalid:
    """Return the error for records that were deleted before any checkpoint read them."""
    count = sum(oldest - offset for offset, oldest in expired.values())
    return Invalid(
        f"source {source!r}: topic {topic!r} has deleted {count:,} offsets that were not read yet:"
        + _list_partitions(expired, "read up to {0}, the oldest left is {1}"),
        expected="a topic that keeps records (retention.ms, retention.bytes) until a checkpoint has read them",
        help="to continue without them, set on_expired='skip'; keep records longer, or run the pipeline more often",
        reason="RECORDS_EXPIRED",
    )


def planned_records_deleted_error(source: str, topic: str, deleted: Mapping[int, tuple[int, int]]) -> Invalid:
    """Return the error for a planned range whose records were deleted since."""
    return Invalid(
        f"source {source!r}: topic {topic!r} has deleted records that this checkpoint was to read:"
        + _list_partitions(deleted, "planned from {0}, the oldest left is {1}"),
        expected="a topic that keeps records (retention.ms, retention.bytes) until the checkpoint is completed",
        help="let this checkpoint be aborted; to continue without these records, set on_expired='skip'",
        reason="SOURCE_CHANGED",
    )


def partition_regressed_error(source: str, topic: str, went_back: Mapping[int, tuple[int, int]]) -> Invalid:
    """Return the error for a partition that ends before the position: a broker has lost its last records."""
    return Invalid(
        f"source {source!r}: topic {topic!r} ends before what was read or planned:"
        + _list_partitions(went_back, "at {0}, ends at {1}"),
        expected="no lost records; electing a leader that was not in sync (unclean.leader.election.enable) loses some",
        help=f"restore them; or {_HOW_TO_START_OVER}",
        reason="OFFSETS_WENT_BACK",
    )


def compacted(source: str, topic: str) -> Invalid:
    """Return the error for a compacted topic."""
    return Invalid(
        f"source {source!r}: topic {topic!r} is compacted: a record is removed once a newer one has the same key, "
        "so a range that is read again may have fewer records",
        expected="a topic whose cleanup.policy is delete",
        help="if the pipeline needs only the last record of each key, set allow_compacted=True",
        reason="TOPIC_COMPACTED",
    )


def no_such_start(
    source: str, topic: str, start: Mapping[int, int], first: Mapping[int, int], end: Mapping[int, int]
) -> Invalid:
    """Return the error for a `start` with offsets that the topic does not have."""
    pairs = {partition: (first[partition], end[partition]) for partition in first}
    return Invalid(
        f"source {source!r}: start={dict(start)!r} does not fit topic {topic!r}, which has"
        + _list_partitions(pairs, "offsets from {0} to {1}"),
        expected="an offset within these ranges for each of these partitions",
        help="correct start",
        reason="NO_OFFSET",
    )
