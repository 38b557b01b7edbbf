"""Finds rows that the topic would not accept as records. After the decision it would be too late.

`record_rules` judges single rows, `refuse_unsendable` all staged ones by the footers of their files.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tidegate import seams
from tidegate.connectors.kafka.creating_topics import TopicInfo
from tidegate.connectors.kafka.records import KEY, PARTITION, SIZE, TIMESTAMP, RecordForm
from tidegate.connectors.row_rules import RowRule
from tidegate.connectors.transactional import StagedPart
from tidegate.delta import Location
from tidegate.errors import Invalid
from tidegate.records.records import Json
from tidegate.versions.python import UTC

__all__ = ["declared_by", "record_rules", "refuse_ambiguous_keys", "refuse_unsendable"]


def declared_by(topic: TopicInfo) -> Json:
    """Return what a topic demands of single records, as of now."""
    max_before, max_after = topic.timestamp_tolerance
    now = round(seams.now().timestamp() * 1000)
    return {
        "largest_record": topic.largest_record,
        "partitions": topic.partitions,
        "compacted": topic.is_compacted,
        "overwrites_timestamps": topic.overwrites_timestamps,
        "earliest": now - max_before,
        "latest": now + max_after,
    }


def record_rules(schema: Json, form: RecordForm, topic: Json | None, unstaged_bytes: int) -> list[RowRule]:
    """Return the rules for rows that become records.

    topic: the result of `declared_by`. unstaged_bytes: the bytes of a record that are added when it is sent.
    """
    from pyspark.sql import functions as F

    rules = form.text_rules(schema)
    if topic is None:
        return rules
    parts, size = form.parts_to_judge(schema)
    largest = topic["largest_record"]
    says = f"the record has more bytes than the topic accepts, which are {largest:,}"
    rules.append(RowRule("record size", size > largest - unstaged_bytes, says))
    if topic["compacted"] and form.key:
        says = "the key is null, and the topic is compacted"
        rules.append(RowRule("key not null", parts[KEY].isNull(), says))
    if PARTITION in parts:
        says = f"the topic has no such partition: it has {topic['partitions']}"
        is_missing = ~parts[PARTITION].between(0, topic["partitions"] - 1)
        rules.append(RowRule("partition exists", is_missing, says))
    if TIMESTAMP in parts and not topic["overwrites_timestamps"]:
        time = parts[TIMESTAMP]
        says = "the timestamp is not after 1970-01-01T00:00:00, and Kafka has no others"
        rules.append(RowRule("timestamp after 1970", time <= 0, says))
        says = "the timestamp is too far from the time of the checkpoint for the topic"
        is_far = ~time.between(F.lit(topic["earliest"]), F.lit(topic["latest"]))
        rules.append(RowRule("timestamp range", is_far, says))
    return rules


def refuse_unsendable(part: StagedPart, location: Location, topic: TopicInfo, sink: str, unstaged_bytes: int) -> None:
    """Raise Invalid if the topic would not accept a record's size, partition, timestamp or missing key.

    unstaged_bytes: the bytes of a record that are added when it is sent.
    """
    for name, (lowest, highest, nulls) in _ranges(part, location).items():
        size = highest + unstaged_bytes if name == SIZE else 0
        if size > topic.largest_record:
            raise Invalid(
                f"sink {sink!r}: a record has {size:,} bytes, more than the topic {topic.name} accepts",
                expected=f"at most {topic.largest_record:,} bytes of key, value and headers, by the topic's "
                "max.message.bytes and segment.bytes",
                help="raise max.message.bytes of the topic, or make the rows smaller",
                reason="RECORD_TOO_LARGE",
            )
        if name == PARTITION and (lowest < 0 or highest >= topic.partitions):
            missing = lowest if lowest < 0 else highest
            raise Invalid(
                f"sink {sink!r}: a row asks for a partition that the topic {topic.name} does not have: it has "
                f"{topic.partitions}",
                expected=f"0 to {topic.partitions - 1}, or null to let the key decide",
                help="correct the column that the sink's argument partition names, or add partitions to the topic",
                reason="NO_PARTITION",
                quoted=f"partition {missing}",
            )
        if name == TIMESTAMP:
            _refuse_times(lowest, highest, topic, sink)
        if name == KEY and nulls and topic.is_compacted:
            raise Invalid(
                f"sink {sink!r}: the key of {nulls:,} rows is null, and the topic {topic.name} is compacted",
                expected="a key for each record of a compacted topic",
                help="filter out rows without a key before the sink",
                reason="NO_KEY",
            )


def _refuse_times(earliest: int, latest: int, topic: TopicInfo, sink: str) -> None:
    max_before, max_after = topic.timestamp_tolerance
    now = round(seams.now().timestamp() * 1000)
    if earliest <= 0 and not topic.overwrites_timestamps:
        raise Invalid(
            f"sink {sink!r}: a row asks for a timestamp that Kafka does not support",
            expected="moments after 1970-01-01T00:00:00, which Kafka's clients read as no timestamp; or null for the "
            "time of sending",
            help="correct the column that the sink's argument timestamp names, or make such moments null",
            reason="BAD_TIME",
            quoted=f"such as {_format_time(earliest)}",
        )
    for time, distance, max_distance, setting in (
        (earliest, now - earliest, max_before, "message.timestamp.before.max.ms"),
        (latest, latest - now, max_after, "message.timestamp.after.max.ms"),
    ):
        if distance > max_distance:
            raise Invalid(
                f"sink {sink!r}: a row asks for a timestamp that is too far from now for the topic {topic.name}",
                expected=f"at most {max_distance:,} ms, by the topic's {setting}",
                help=f"correct the column that the sink's argument timestamp names, or raise {setting} of the topic",
                reason="BAD_TIME",
                quoted=f"such as {_format_time(time)}, {distance:,} ms from now",
            )


def _format_time(time_ms: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()
    except OverflowError:
        return f"{time_ms} ms since 1970"


def _ranges(part: StagedPart, location: Location) -> dict[str, tuple[int, int, int]]:
    """Return the lowest value, the highest value and the number of nulls of each checked column.

    They are read from the footers of the staged files.
    """
    import pyarrow.parquet as pq

    ranges: dict[str, tuple[int, int, int]] = {}
    for staged in part.files:
        with location.open(staged.path) as source, pq.ParquetFile(source) as file:
            for group in range(file.metadata.num_row_groups):
                columns = file.metadata.row_group(group)
                for number in range(columns.num_columns):
                    column = columns.column(number)
                    if column.path_in_schema in (KEY, SIZE, PARTITION, TIMESTAMP) and column.statistics is not None:
                        _extend_range(ranges, column.path_in_schema, column.statistics)
    return ranges


def _extend_range(ranges: dict[str, tuple[int, int, int]], name: str, statistics: object) -> None:
    nulls = int(getattr(statistics, "null_count", 0) or 0)
    if name == KEY:
        lowest = highest = 0
    elif getattr(statistics, "has_min_max", False):
        lowest, highest = statistics.min, statistics.max  # type: ignore[attr-defined]
    else:
        return  # all values are null
    before = ranges.get(name, (lowest, highest, 0))
    ranges[name] = (min(before[0], lowest), max(before[1], highest), before[2] + nulls)


def refuse_ambiguous_keys(part: StagedPart, location: Location, sink: str) -> None:
    """Raise Invalid if two rows have the same key, or a row has none.

    In a stream that replaces rows, it would be left to chance which of the two counts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    chunks: list[pa.Array] = []
    for staged in part.files:
        with location.open(staged.path) as source:
            chunks += pq.read_table(source, columns=[KEY])[KEY].chunks
    keys = pa.chunked_array(chunks, pa.binary())
    if keys.null_count:
        raise _ambiguous(sink, f"{keys.null_count:,} rows have no key (it is null)")
    counts = pc.value_counts(keys)
    duplicates = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(duplicates):
        example = duplicates[0].as_py()
        key = f"the key {example['values'].decode(errors='replace')!r}"
        raise _ambiguous(sink, f"{example['counts']:,} rows have the same key", quoted=key)


def _ambiguous(sink: str, problem: str, quoted: str = "") -> Invalid:
    return Invalid(
        f"sink {sink!r}: in one checkpoint {problem}, in a stream that replaces rows",
        expected="one row for each key",
        help="name all columns that identify a row in key=…, such as the keys of the aggregation",
        reason="DUPLICATE_KEYS",
        quoted=quoted,
    )
