"""Refuse staged records that a topic would not take. After the decision it would be too late."""

from __future__ import annotations

from datetime import datetime, timedelta

from tidegate import seams
from tidegate.connectors.kafka.creating_topics import FoundTopic
from tidegate.connectors.kafka.records import KEY, PARTITION, SIZE, TIMESTAMP
from tidegate.connectors.transactional import StagedPart
from tidegate.delta import Location
from tidegate.errors import Invalid
from tidegate.versions.python import UTC

__all__ = ["refuse_ambiguous_keys", "refuse_unsendable"]


def refuse_unsendable(part: StagedPart, location: Location, topic: FoundTopic, sink: str, beside: int) -> None:
    """Raise Invalid if a record is too large for the topic, is for a partition that it lacks, has a time that it does
    not take, or lacks the key that it needs. beside: bytes of a record that are not staged."""
    for name, (lowest, highest, nulls) in _facts(part, location).items():
        if name == SIZE and highest + beside > topic.largest_record:
            raise Invalid(
                f"sink {sink!r}: a record has {highest + beside:,} bytes, more than the topic {topic.name} takes",
                expected=f"at most {topic.largest_record:,} bytes of key, value and headers, by the topic's "
                "max.message.bytes and segment.bytes",
                help="raise max.message.bytes of the topic, or make the rows smaller",
                reason="RECORD_TOO_LARGE",
            )
        if name == PARTITION and (lowest < 0 or highest >= topic.partitions):
            raise Invalid(
                f"sink {sink!r}: a row asks for a partition that the topic {topic.name} does not have: it has "
                f"{topic.partitions}",
                expected=f"0 to {topic.partitions - 1}, or null to let the key decide",
                help="correct the column that the sink's argument partition names, or add partitions to the topic",
                reason="NO_PARTITION",
                quoted=f"partition {lowest if lowest < 0 else highest}",
            )
        if name == TIMESTAMP:
            _refuse_times(lowest, highest, topic, sink)
        if name == KEY and nulls and topic.is_compacted:
            raise Invalid(
                f"sink {sink!r}: the key of {nulls:,} rows is null, and the topic {topic.name} is compacted",
                expected="a key for each record of a compacted topic",
                help="leave out rows without a key in the stage before the sink",
                reason="NO_KEY",
            )


def _refuse_times(earliest: int, latest: int, topic: FoundTopic, sink: str) -> None:
    (behind, ahead), now = topic.times, round(seams.now().timestamp() * 1000)
    if earliest <= 0 and not topic.writes_times:
        raise Invalid(
            f"sink {sink!r}: a row asks for a record of a time that Kafka does not have",
            expected="moments after the beginning of 1970, or null for the time of sending: Kafka has no earlier ones, "
            "and its clients take 1970-01-01T00:00:00 for none",
            help="correct the column that the sink's argument timestamp names, or make such moments null",
            reason="BAD_TIME",
            quoted=f"such as {_describe_rows(earliest)}",
        )
    for time, away, most, setting in (
        (earliest, now - earliest, behind, "message.timestamp.before.max.ms"),
        (latest, latest - now, ahead, "message.timestamp.after.max.ms"),
    ):
        if away > most:
            raise Invalid(
                f"sink {sink!r}: a row asks for a record of a time that is too far from now for the topic {topic.name}",
                expected=f"at most {most:,} ms, by the topic's {setting}",
                help=f"correct the column that the sink's argument timestamp names, or raise {setting} of the topic",
                reason="BAD_TIME",
                quoted=f"such as {_describe_rows(time)}, {away:,} ms away from now",
            )


def _describe_rows(time_ms: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()
    except OverflowError:
        return f"{time_ms} ms since 1970"


def _facts(part: StagedPart, location: Location) -> dict[str, tuple[int, int, int]]:
    """Return lowest and highest value and number of nulls of the columns that matter, by the footers of the files."""
    import pyarrow.parquet as pq

    facts: dict[str, tuple[int, int, int]] = {}
    for staged in part.files:
        with location.open(staged.path) as source, pq.ParquetFile(source) as file:
            for group in range(file.metadata.num_row_groups):
                columns = file.metadata.row_group(group)
                for number in range(columns.num_columns):
                    column = columns.column(number)
                    if column.path_in_schema in (KEY, SIZE, PARTITION, TIMESTAMP) and column.statistics is not None:
                        _note(facts, column.path_in_schema, column.statistics)
    return facts


def _note(facts: dict[str, tuple[int, int, int]], name: str, statistics: object) -> None:
    nulls = int(getattr(statistics, "null_count", 0) or 0)
    if name == KEY:
        lowest = highest = 0
    elif getattr(statistics, "has_min_max", False):
        lowest, highest = statistics.min, statistics.max  # type: ignore[attr-defined]
    else:
        return  # nulls only
    before = facts.get(name, (lowest, highest, 0))
    facts[name] = (min(before[0], lowest), max(before[1], highest), before[2] + nulls)


def refuse_ambiguous_keys(part: StagedPart, location: Location, sink: str) -> None:
    """Raise Invalid if rows of a stream that replaces rows have the same key, or none: it would be left to chance which
    one counts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found = []
    for staged in part.files:
        with location.open(staged.path) as source:
            found.append(pq.read_table(source, columns=[KEY])[KEY])
    keys = pa.chunked_array([chunk for column in found for chunk in column.chunks], pa.binary())
    if keys.null_count:
        raise _ambiguous(sink, f"{keys.null_count:,} rows have no key (it is null)")
    counted = pc.value_counts(keys)
    several = counted.filter(pc.greater(counted.field("counts"), 1))
    if len(several):
        example = several[0].as_py()
        key = f"the key {example['values'].decode(errors='replace')!r}"
        raise _ambiguous(sink, f"{example['counts']:,} rows have the same key", quoted=key)


def _ambiguous(sink: str, what: str, quoted: str = "") -> Invalid:
    return Invalid(
        f"sink {sink!r}: in one checkpoint {what}, of a stream that replaces rows",
        expected="one row for each key",
        help="name all columns that identify a row in key=…, such as those by which it is aggregated",
        reason="DUPLICATE_KEYS",
        quoted=quoted,
    )
