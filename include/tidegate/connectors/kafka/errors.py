"""The errors of a topic that cannot be read any further: one function per reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.errors import Invalid

_AFRESH: Final = "give the source another name: it then begins as `start` says, and what was read before comes again"
_SHOWN: Final = 10


def _listed(pairs: Mapping[int, tuple[int, int]], words: str) -> str:
    """Return a line for each partition. words: such as "at {}, oldest {}"."""
    lines = [f"\n  partition {at}: {words.format(*pair)}" for at, pair in sorted(pairs.items())]
    return "".join(lines[:_SHOWN]) + (f"\n  … and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")


def other_cluster_error(source: str, topic: str, before: str, now: str) -> Invalid:
    """Return the error for brokers of another cluster: offsets there are unrelated."""
    return Invalid(
        f"source {source!r}: topic {topic!r} is in another cluster than before: its id is {now}, it was {before}",
        expected="the cluster that was read so far",
        help=f"correct the servers; or {_AFRESH}",
        reason="CLUSTER_CHANGED",
    )


def topic_recreated_error(source: str, topic: str, before: str, now: str) -> Invalid:
    """Return the error for a topic that was deleted and created again: offsets in it are unrelated to the old ones."""
    return Invalid(
        f"source {source!r}: topic {topic!r} was deleted and made again: its id is {now}, it was {before}",
        expected="the topic that was read so far: what it had beyond the last checkpoint is lost",
        help=f"to read the new one, {_AFRESH}",
        reason="TOPIC_RECREATED",
    )


def records_expired(source: str, topic: str, gone: Mapping[int, tuple[int, int]]) -> Invalid:
    """Return the error for records that were deleted before any checkpoint read them."""
    return Invalid(
        f"source {source!r}: topic {topic!r} has let go of {sum(b - a for a, b in gone.values()):,} offsets that were "
        "not read yet:" + _listed(gone, "read up to {0}, the oldest left is {1}"),
        expected="a topic that keeps records (retention.ms, retention.bytes) until a checkpoint has read them",
        help="to continue without them, set on_expired='skip'; keep records longer, or run the pipeline more often",
        reason="RECORDS_EXPIRED",
    )


def planned_records_deleted_error(source: str, topic: str, gone: Mapping[int, tuple[int, int]]) -> Invalid:
    """Return the error for a planned range whose records were deleted since."""
    return Invalid(
        f"source {source!r}: topic {topic!r} has let go of records that this checkpoint was to read:"
        + _listed(gone, "planned from {0}, the oldest left is {1}"),
        expected="a topic that keeps records (retention.ms, retention.bytes) until the checkpoint is completed",
        help="let this checkpoint be aborted; to continue without these records, set on_expired='skip'",
        reason="SOURCE_CHANGED",
    )


def partition_went_back_error(source: str, topic: str, back: Mapping[int, tuple[int, int]]) -> Invalid:
    """Return the error for a partition that ends before the position: a broker has lost its last records."""
    return Invalid(
        f"source {source!r}: topic {topic!r} ends before what was read or planned:"
        + _listed(back, "at {0}, ends at {1}"),
        expected="records that stay; a leader that was not in sync (unclean.leader.election.enable) loses some",
        help=f"restore them; or {_AFRESH}",
        reason="OFFSETS_WENT_BACK",
    )


def compacted(source: str, topic: str) -> Invalid:
    """Return the error for a compacted topic."""
    return Invalid(
        f"source {source!r}: topic {topic!r} is compacted: a record goes as soon as a newer one has its key, so a "
        "range that is read again may have fewer",
        expected="a topic whose cleanup.policy is delete",
        help="if the pipeline needs only the last record of each key, set allow_compacted=True",
        reason="TOPIC_COMPACTED",
    )


def no_such_start(
    source: str, topic: str, start: Mapping[int, int], first: Mapping[int, int], end: Mapping[int, int]
) -> Invalid:
    """Return the error for a `start` with offsets that the topic does not have."""
    pairs = {at: (first[at], end[at]) for at in first}
    return Invalid(
        f"source {source!r}: start={dict(start)!r} does not fit topic {topic!r}, which has"
        + _listed(pairs, "offsets from {0} to {1}"),
        expected="an offset in these ranges for each partition, and for no other",
        help="correct start",
        reason="NO_OFFSET",
    )
