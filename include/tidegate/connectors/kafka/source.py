"""A source that reads each committed record of a Kafka topic exactly once."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from tidegate import seams
from tidegate.connectors.files.reading import CORRUPT
from tidegate.connectors.kafka import KafkaLogin, errors
from tidegate.connectors.kafka.position import TopicPosition, share_of, splits_of, spread
from tidegate.connectors.kafka.reading import DELETED, KEY, METADATA, columns_of, value_columns
from tidegate.connectors.kafka.topic import SourceTopic, TopicState
from tidegate.connectors.schema.ddl import DdlError
from tidegate.connectors.schema.drift import RESCUED, OnNewColumn, OnType, Survey, policy_problems
from tidegate.connectors.schema.source_with_schema import SourceWithSchema
from tidegate.connectors.source import PLACE, Planned, SourceContext
from tidegate.records.masking import has_login
from tidegate.records.place import Place
from tidegate.records.records import Amount, Json, Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Kafka"]

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MIN_AGE_S: Final = 1.0
_MAX_AGE_S: Final = 10 * 365 * 86_400.0
_AGE_PRECISION: Final = 1.1
"""The search for a record's age ends when its bounds differ by less than a tenth."""


class Kafka(SourceWithSchema):
    """Read a Kafka topic, by ranges of offsets per partition.

        Kafka("orders", servers="broker:9092", schema="id long, country string, at timestamp")
        Kafka("orders", connection="events", value="avro", registry="http://registry:8081", schema="…", key="string")

    Only committed records are read: records of aborted transactions are left out, and a range ends before the first
    record of an open transaction.

    topic: the topic's name.
    servers: the bootstrap servers, such as "one:9092,two:9092". The default is the connection's option
        `bootstrap.servers`.
    connection: a table of the setting `connections` with options of librdkafka, such as `sasl.username`, or
        "airflow:ID" for a connection of Airflow. Its options are neither recorded nor shown.
    value: the format of the records' values. "json": one object per record. "avro": Avro with schemas from a registry.
        "string": UTF-8 text in one column, `value`. "bytes": the raw bytes in one column, `value`.
    schema: the columns of JSON and Avro values, in DDL. Other keys and fields are ignored.
    key: "string" or "bytes" adds the record's key as a column `_key`.
    metadata: any of "timestamp", "partition", "offset" and "headers". Each adds a column, such as `_timestamp`.
    start: where to begin. "earliest": at the oldest record. "latest": at the first record that arrives after the first
        look at the topic. A datetime with a time zone: at the first record from that moment on. A mapping: at these
        offsets of all partitions, such as {0: 17, 1: 0}. All but "earliest" are resolved once and recorded. Partitions
        added later are read from their beginning.
    max_offsets: the most offsets that one checkpoint reads, divided among the partitions in proportion to their
        backlog. A topic with transactions has fewer records than offsets.
    on_corrupt: what to do with a malformed record. "refuse" fails the checkpoint and reports the record's partition and
        offset. "keep" adds a column `_corrupt_record` with the record's text (of Avro, in Base64), which is null for
        good records; the other columns of a malformed record's value are null.
    on_new_column, on_type, rescue_column: with JSON and Avro, what to do with keys or fields that the schema lacks, and
        with values that their column cannot hold, as in `Files`.
    tombstones: what to do with a record whose value is null: "refuse" it, "skip" it, or "keep" it as a row whose value
        columns are null. "keep" adds a column `_deleted`, which is true for such rows.
    allow_compacted: read the topic even if it is compacted. A range may then have fewer records when it is read again,
        so set this only for a pipeline that needs no more than the last record of each key.
    on_expired: what to do if records expired before they were read: "refuse" to plan, or "skip" to the oldest record
        that is left.
    registry: the URL of the schema registry, for Avro. To log in there, set the connection's option
        `schema.registry.basic.auth.user.info`.
    group: a consumer group whose offsets are set after each checkpoint, for tools that monitor consumer lag. tidegate
        does not read them. No other consumer may use the group.
    """

    kind = "kafka"
    can_stop = True
    costly_to_read = True
    unit = "rows"
    verified_after = True

    def __init__(
        self,
        topic: str,
        *,
        servers: str | None = None,
        connection: str | None = None,
        value: Literal["json", "avro", "string", "bytes"] = "json",
        schema: str | None = None,
        key: Literal["string", "bytes"] | None = None,
        metadata: Sequence[str] = (),
        start: Literal["earliest", "latest"] | datetime | Mapping[int, int] = "earliest",
        max_offsets: int | None = None,
        on_corrupt: Literal["refuse", "keep"] = "refuse",
        on_new_column: OnNewColumn = "ignore",
        on_type: OnType = "refuse",
        rescue_column: str = RESCUED,
        tombstones: Literal["refuse", "skip", "keep"] = "refuse",
        allow_compacted: bool = False,
        on_expired: Literal["refuse", "skip"] = "refuse",
        registry: str | None = None,
        group: str | None = None,
    ) -> None:
        self.topic = topic
        self.servers = servers
        self.connection = connection
        self.value = value
        self.declare_schema(schema, on_new_column, on_type, rescue_column)
        self.key = key
        self.metadata = metadata
        self.start = start
        self.max_offsets = max_offsets
        self.on_corrupt = on_corrupt
        self.tombstones = tombstones
        self.allow_compacted = allow_compacted
        self.on_expired = on_expired
        self.registry = registry
        self.group = group

    # -- the declaration -------------------------------------------------------------------------------

    def column_names(self) -> list[str]:
        """See Source."""
        return [column.name for column in columns_of(self)]

    def describe(self) -> Json:
        """See Source."""
        start: object = self.start
        if isinstance(self.start, datetime):
            start = self.start.isoformat()
        elif isinstance(self.start, Mapping):
            start = {str(partition): offset for partition, offset in self.start.items()}
        arguments = {name: value for name, value in vars(self).items() if name != "evolved_columns"}
        return {"kind": self.kind, **arguments, "start": start, "metadata": list(self.metadata)}

    def shared_uri(self, place: Place) -> str:
        """See Source."""
        return KafkaLogin.resolve(self.servers, self.connection, place).shared_uri(self.topic)

    def columns_depend_on(self) -> str:
        """See Source."""
        parts = (self.value, self.schema, self.key, tuple(self.metadata), self.on_corrupt, self.tombstones)
        return repr((*parts, self.schema_policy))

    def problems(self) -> list[str]:
        """See Source."""
        return [*_place_problems(self), *_value_problems(self), *_choice_problems(self), *_start_problems(self.start)]

    # -- planning --------------------------------------------------------------------------------------

    def beginning(self, context: SourceContext) -> Json | None:
        """See Source: all but "earliest" depend on the moment of the call."""
        if self.start == "earliest":
            return None
        client, topic = self._topic(context)
        first, end = client.ends(topic.partitions)
        if isinstance(self.start, datetime):
            moment_ms = round(self.start.timestamp() * 1000)
            offsets = first
            # Brokers read negative moments as codes, such as -1 for "latest".
            if moment_ms >= 0:
                since = client.since(topic.partitions, moment_ms)
                offsets = {}
                for partition, offset in since.items():
                    offsets[partition] = end[partition] if offset is None else offset
        elif isinstance(self.start, Mapping):
            offsets = dict(self.start)
            if set(offsets) != set(first) or any(
                not first[partition] <= offset <= end[partition] for partition, offset in offsets.items()
            ):
                raise errors.no_such_start(context.source, self.topic, offsets, first, end)
        else:
            offsets = end
        return TopicPosition(topic.cluster, topic.id, offsets).json

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the next offsets of each partition, up to its first open transaction."""
        client, topic = self._topic(context)
        # Asked before the ends, so that records that arrive in between do not seem to wait for a transaction.
        written = client.written(topic.partitions)
        first, end = client.ends(topic.partitions)
        before = TopicPosition.parse(start, context.source) if start is not None else None
        begin, expired = self._begin(before, topic, first, end, context.source)
        last = end
        if context.stop_position is not None:
            stop = TopicPosition.parse(context.stop_position, context.source).offsets
            last = {partition: min(end[partition], stop.get(partition, 0)) for partition in end}
        waiting = {}
        for partition in topic.partitions:
            if last[partition] > begin.offsets[partition]:
                waiting[partition] = last[partition] - begin.offsets[partition]
        to_read = spread(waiting, context.bound(self.max_offsets))
        ends = {}
        open_count = 0
        partitions_with_more = []
        for partition in topic.partitions:
            ends[partition] = begin.offsets[partition] + to_read.get(partition, 0)
            open_count += max(written[partition] - end[partition], 0)
            if max(written[partition], end[partition]) > ends[partition]:
                partitions_with_more.append(partition)
        recorded_partitions = before.offsets if before is not None else topic.partitions
        after = {}
        for partition in begin.offsets:
            # A partition that is not recorded begins at 0, so a new one is recorded once its offset is not 0.
            if partition in recorded_partitions or ends[partition]:
                after[partition] = ends[partition]
        count = sum(to_read.values())
        waiting_after = sum(waiting.values()) - count
        seconds = None
        if partitions_with_more:
            seconds = _age_of_oldest_waiting(client, tuple(partitions_with_more), ends)
        position = TopicPosition(topic.cluster, topic.id, after)
        return Planned(
            end=position.json if count or expired else start,
            splits=splits_of(begin, {partition: ends[partition] for partition in to_read}),
            is_empty=not count,
            has_more=waiting_after > 0,
            summary=_summary(to_read, len(topic.partitions), expired, open_count),
            amount=count,
            lag=Lag(rows=waiting_after + open_count, seconds=seconds),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        """Check that this is the topic that was planned, and that it still has every planned offset."""
        ranges = share_of(splits)
        if not ranges:
            return Amount(rows=0)
        client, topic = self._topic(context)
        planned = TopicPosition(splits["cluster"], splits["topic_id"], {})
        _refuse_replaced_topic(planned, topic, self.topic, context.source)
        first, end = client.ends(topic.partitions)
        deleted, went_back = {}, {}
        for partition, (begin, after) in ranges.items():
            if first[partition] > begin:
                deleted[partition] = (begin, first[partition])
            if end[partition] < after:
                went_back[partition] = (after, end[partition])
        if deleted:
            raise errors.planned_records_deleted_error(context.source, self.topic, deleted)
        if went_back:
            raise errors.partition_regressed_error(context.source, self.topic, went_back)
        return None  # with transactions, a range has fewer records than offsets

    def upper_bound(self, splits: Json) -> Amount:
        """See Source."""
        return Amount(rows=sum(end - first for first, end in share_of(splits).values()))

    def _topic(self, context: SourceContext) -> tuple[SourceTopic, TopicState]:
        login = self._login(context)
        login.for_java()  # raises an error for a bad login now, not only when a job reads
        client = SourceTopic(self.topic, login)
        topic = client.state(read_settings=not self.allow_compacted)
        if topic.compacted:
            raise errors.compacted(context.source, self.topic)
        return client, topic

    def _login(self, context: SourceContext) -> KafkaLogin:
        return KafkaLogin.resolve(self.servers, self.connection, context.place)

    def _begin(
        self,
        before: TopicPosition | None,
        topic: TopicState,
        first: Mapping[int, int],
        end: Mapping[int, int],
        source: str,
    ) -> tuple[TopicPosition, int]:
        """Return where to begin in each partition, and how many offsets have expired since the last plan."""
        if before is None:
            return TopicPosition(topic.cluster, topic.id, dict(first)), 0
        _refuse_replaced_topic(before, topic, self.topic, source)
        offsets = {partition: before.offsets.get(partition, 0) for partition in topic.partitions}
        expired = {}
        for partition, offset in offsets.items():
            if first[partition] > offset:
                expired[partition] = (offset, first[partition])
        if expired and self.on_expired == "refuse":
            raise errors.records_expired(source, self.topic, expired)
        for partition, (_, oldest) in expired.items():
            offsets[partition] = oldest
        went_back = {}
        for partition, offset in offsets.items():
            if end[partition] < offset:
                went_back[partition] = (offset, end[partition])
        if went_back:
            raise errors.partition_regressed_error(source, self.topic, went_back)
        expired_count = sum(oldest - offset for offset, oldest in expired.values())
        return TopicPosition(topic.cluster, topic.id, offsets), expired_count

    # -- reading ---------------------------------------------------------------------------------------

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey | None:
        """See Source."""
        from tidegate.connectors.kafka.reading import survey_topic

        if not self.schema_policy.rescues:
            return None
        return survey_topic(spark, self, splits, self._login(context))

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of exactly the planned offsets."""
        from tidegate.connectors.kafka.reading import read_topic

        return read_topic(spark, self, splits, self._login(context), context.source)

    def read_with_places(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """See Source: partition and offset."""
        from pyspark.sql import functions as F

        named = copy.copy(self)
        named.metadata = tuple(dict.fromkeys([*self.metadata, "partition", "offset"]))
        place = F.format_string(f"offset %d of partition %d of {self.topic}", F.col("_offset"), F.col("_partition"))
        rows = named.read(spark, splits, context).withColumn(PLACE, place)
        return rows.drop(*(f"_{name}" for name in named.metadata if name not in self.metadata))

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        if other is None or position == other:
            return True
        if position is None:
            return False
        reached, required = TopicPosition.parse(position, context.source), TopicPosition.parse(other, context.source)
        same_topic = (reached.cluster, reached.topic_id) == (required.cluster, required.topic_id)
        return same_topic and all(
            reached.offsets.get(partition, 0) >= offset for partition, offset in required.offsets.items()
        )

    def on_checkpoint_completed(self, end: Json, context: SourceContext) -> None:
        """See Source. Sets the offsets of the consumer group, if one is declared."""
        if self.group is not None:
            position = TopicPosition.parse(end, context.source)
            SourceTopic(self.topic, self._login(context)).commit(self.group, position.offsets)


def _refuse_replaced_topic(before: TopicPosition, topic: TopicState, name: str, source: str) -> None:
    if before.cluster != topic.cluster:
        raise errors.cluster_changed_error(source, name, before.cluster, topic.cluster)
    if before.topic_id != topic.id:
        raise errors.topic_recreated_error(source, name, before.topic_id, topic.id)


def _age_of_oldest_waiting(client: SourceTopic, partitions: tuple[int, ...], ends: Mapping[int, int]) -> float | None:
    """Return the age of the oldest record after the range, to a tenth, by the records' own times.

    Brokers only look up the first record from a moment on, so this is a binary search: the waiting records of all
    `partitions` are younger than an age if no partition has its first record of that age or younger before `ends`.
    """
    now_ms = seams.now().timestamp() * 1000

    def all_younger(age_s: float) -> bool:
        since = client.since(partitions, max(round(now_ms - age_s * 1000), 0), committed=False)
        return all(offset is not None and offset <= ends[partition] for partition, offset in since.items())

    young, old = _MIN_AGE_S, _MAX_AGE_S
    while old > young * _AGE_PRECISION:
        middle = (young * old) ** 0.5
        if all_younger(middle):
            old = middle
        else:
            young = middle
    if old >= _MAX_AGE_S:
        return None  # the records have no times
    return round(old, 1)


def _summary(to_read: Mapping[int, int], partition_count: int, expired: int, open_count: int) -> str:
    notes = ""
    if expired:
        notes += f"; {expired:,} have expired unread"
    if open_count:
        notes += f"; {open_count:,} wait for an open transaction to end"
    count = sum(to_read.values())
    if not count:
        return f"no new records{notes}"
    partitions_read = sum(1 for number in to_read.values() if number)
    return f"{count:,} offsets in {partitions_read} of {partition_count} partitions{notes}"


# -- problems of a declaration -------------------------------------------------------------------------


def _place_problems(source: Kafka) -> list[str]:
    problems = []
    if not isinstance(source.topic, str) or not _TOPIC.fullmatch(source.topic):
        problems.append(f"topic is {source.topic!r}; it must be a name of letters, digits, '.', '_' and '-'")
    if source.servers is None and source.connection is None:
        problems.append('servers is missing: name brokers, such as servers="broker:9092", or a connection')
    for name in ("servers", "connection", "group", "registry"):
        text = getattr(source, name)
        if text is not None and (not isinstance(text, str) or not text.strip()):
            problems.append(f"{name} is {text!r}; it must be text")
        elif text is not None and has_login(text):
            problems.append(f"{name} contains a login; put it into a table of the setting `connections`")
    bound = source.max_offsets
    if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 1):
        problems.append(f"max_offsets is {bound!r}; it must be a whole number, at least 1")
    if not isinstance(source.allow_compacted, bool):
        problems.append(f"allow_compacted is {source.allow_compacted!r}; it must be True or False")
    return problems


def _value_problems(source: Kafka) -> list[str]:
    if source.value not in ("json", "avro", "string", "bytes"):
        return [f"value is {source.value!r}; it must be 'json', 'avro', 'string' or 'bytes'"]
    problems = []
    structured = source.value in ("json", "avro")
    if structured and source.schema is None:
        return [f"schema is missing: records in {source.value} have columns, such as 'id long, at timestamp'"]
    if not structured and source.schema is not None:
        problems.append(f"schema is for value='json' and 'avro'; with {source.value!r} there is one column, value")
    if (source.on_new_column != "ignore" or source.on_type != "refuse") and not structured:
        problems.append("on_new_column and on_type are for value='json' and 'avro'")
    if source.on_corrupt != "refuse" and source.value == "bytes":
        problems.append("on_corrupt has no effect with value='bytes': any bytes will do")
    if (source.registry is not None) != (source.value == "avro"):
        if source.registry is None:
            problems.append("registry is missing: Avro records have their schemas in a schema registry")
        else:
            problems.append("registry is for value='avro'")
    if structured:
        try:
            columns = {column.name.lower(): column.type for column in value_columns(source)}
        except DdlError as error:
            return [*problems, f"schema {error}"]
        reserved = {CORRUPT, KEY, DELETED, *(f"_{name}" for name in METADATA)}
        for name in sorted(columns.keys() & reserved):
            problems.append(f"schema: the column name {name!r} is reserved for a column that tidegate adds; rename it")
        problems += policy_problems(source.schema_policy, columns)
    return problems


def _choice_problems(source: Kafka) -> list[str]:
    problems = []
    for name, choices in (
        ("on_corrupt", ("refuse", "keep")),
        ("tombstones", ("refuse", "skip", "keep")),
        ("on_expired", ("refuse", "skip")),
    ):
        if getattr(source, name) not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            problems.append(f"{name} is {getattr(source, name)!r}; it must be {expected}")
    if source.key not in (None, "string", "bytes"):
        problems.append(f"key is {source.key!r}; it must be 'string' or 'bytes'")
    names = list(source.metadata)
    if isinstance(source.metadata, str) or not set(names) <= set(METADATA) or len(set(names)) < len(names):
        problems.append(f"metadata is {source.metadata!r}; it must be a list of some of {', '.join(METADATA)}")
    return problems


def _start_problems(start: object) -> list[str]:
    if start in ("earliest", "latest"):
        return []
    if isinstance(start, datetime):
        if start.tzinfo is None:
            return [f"start is {start}, a time without a zone; write datetime(…, tzinfo=UTC)"]
        return []
    if isinstance(start, Mapping) and start:
        numbers = [*start.keys(), *start.values()]
        if all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
            return []
    return [
        f"start is {start!r}; it must be 'earliest', 'latest', a datetime, or offsets of all partitions like {{0: 17}}"
    ]
