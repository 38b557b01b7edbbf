"""A source of records of a Kafka topic: each committed record is read exactly once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from tidegate import seams
from tidegate.connectors.ddl import DdlError
from tidegate.connectors.files.reading import CORRUPT
from tidegate.connectors.kafka import KafkaLogin, errors
from tidegate.connectors.kafka.position import TopicPosition, share_of, splits_of, spread
from tidegate.connectors.kafka.reading import DELETED, KEY, METADATA, value_columns
from tidegate.connectors.kafka.topic import SourceTopic, TopicState
from tidegate.connectors.source import Planned, Source, SourceContext
from tidegate.records.masking import has_login
from tidegate.records.place import Place
from tidegate.records.records import Amount, Json, Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Kafka"]

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FINEST_AGE_S, _COARSEST_AGE_S, _PRECISION = 1.0, 10 * 365 * 86_400.0, 1.1
"""Bounds of a search for the age of a record, and its precision: a tenth."""


class Kafka(Source):
    """Records of a topic, in ranges of offsets of each partition.

    Kafka("orders", servers="broker:9092", schema="id long, country string, at timestamp")
    Kafka("orders", connection="events", value="avro", registry="http://registry:8081", schema="…", key="string")

    servers: brokers to ask first, such as "one:9092,two:9092". None: the connection's option bootstrap.servers.
    connection: a table of the setting `connections` with librdkafka's options, such as sasl.username, or
        "airflow:ID", one of Airflow's. Nothing of it is recorded or shown.
    value: what the records' values are: "json", one object each; "avro", with their schemas in a registry; "string",
        text in UTF-8, as one column `value`; "bytes", the same as it is.
    schema: the columns of JSON and Avro, as DDL. Keys and fields that it lacks are left out.
    key: "string" or "bytes": a column `_key`.
    metadata: any of "timestamp", "partition", "offset" and "headers": columns `_timestamp` and so on.
    start: where to begin. "earliest": with all that is there; "latest": with what comes after the first look; a moment
        (a datetime with a zone): with the first record from then on; offsets of all partitions, such as {0: 17, 1: 0}.
        All but "earliest" are looked up once, and recorded. Partitions that come later are read from their beginning.
    max_offsets: a bound of one checkpoint, spread over the partitions so that each gives the same part of what waits in
        it. There are fewer records than offsets in a topic with transactions.
    on_corrupt: "refuse" fails the checkpoint at the first malformed record and names its partition and offset. "keep"
        adds a column `_corrupt_record` with the record's text (of Avro, in Base64), null for good ones; the other
        columns of the value are then null.
    unknown_keys: of JSON objects, "ignore" or "refuse": as in `Files`.
    tombstones: what to do with a record whose value is null: "refuse" it, "skip" it, or "keep" it as a row whose value
        has nulls only, with a column `_deleted`, which is true.
    allow_compacted: read a topic although it is compacted. A range then has fewer records when it is read again: only
        for pipelines that need nothing but the last record of a key.
    on_expired: what to do if records have expired that were not read yet: "refuse" to plan, or "skip" to the oldest
        that are left.
    registry: the address of the schema registry of records in Avro. The connection's option
        schema.registry.basic.auth.user.info logs in there.
    group: a consumer group whose offsets are set after each checkpoint, for tools that watch how far it is behind.
        tidegate does not rely on it. No other consumer may be in that group.

    Only what is decided is read: records of transactions that were aborted are left out, and a range ends before the
    first record of an open one.
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
        unknown_keys: Literal["ignore", "refuse"] = "ignore",
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
        self.schema = schema
        self.key = key
        self.metadata = metadata
        self.start = start
        self.max_offsets = max_offsets
        self.on_corrupt = on_corrupt
        self.unknown_keys = unknown_keys
        self.tombstones = tombstones
        self.allow_compacted = allow_compacted
        self.on_expired = on_expired
        self.registry = registry
        self.group = group

    # -- the declaration -------------------------------------------------------------------------------

    def describe(self) -> Json:
        """See Source."""
        start: object = self.start
        if isinstance(self.start, datetime):
            start = self.start.isoformat()
        elif isinstance(self.start, Mapping):
            start = {str(partition): offset for partition, offset in self.start.items()}
        return {"kind": self.kind, **vars(self), "start": start, "metadata": list(self.metadata)}

    def shared_uri(self, place: Place) -> str:
        """See Source."""
        return KafkaLogin.of(self.servers, self.connection, place).shared_uri(self.topic)

    def columns_depend_on(self) -> str:
        """See Source."""
        return repr((self.value, self.schema, self.key, tuple(self.metadata), self.on_corrupt, self.tombstones))

    def problems(self) -> list[str]:
        """See Source."""
        return [*_place_problems(self), *_value_problems(self), *_choice_problems(self), *_start_problems(self.start)]

    # -- planning --------------------------------------------------------------------------------------

    def beginning(self, context: SourceContext) -> Json | None:
        """See Source: all but "earliest" depend on the moment."""
        if self.start == "earliest":
            return None
        asked, topic = self._topic(context)
        first, end = asked.ends(topic.partitions)
        if isinstance(self.start, datetime):
            moment_ms = round(self.start.timestamp() * 1000)
            # Brokers take negative moments for words, such as -1 for "latest".
            since = asked.since(topic.partitions, moment_ms) if moment_ms >= 0 else first
            offsets = {partition: end[partition] if offset is None else offset for partition, offset in since.items()}
        elif isinstance(self.start, Mapping):
            offsets = dict(self.start)
            if any(not first.get(at, 1) <= offset <= end.get(at, 0) for at, offset in offsets.items()) or set(
                offsets
            ) != set(first):
                raise errors.no_such_start(context.source, self.topic, offsets, first, end)
        else:
            offsets = end
        return TopicPosition(topic.cluster, topic.id, offsets).json

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the next offsets of each partition, up to where every transaction is decided."""
        asked, topic = self._topic(context)
        written = asked.written(topic.partitions)  # before the ends: what comes meanwhile waits for no transaction
        first, end = asked.ends(topic.partitions)
        before = TopicPosition.of(start, context.source) if start is not None else None
        begin, expired = self._begin(before, topic, first, end, context.source)
        last = end
        if context.stop_position is not None:
            until = TopicPosition.of(context.stop_position, context.source).offsets
            last = {at: min(end[at], until.get(at, 0)) for at in end}
        waiting = {at: last[at] - begin.offsets[at] for at in topic.partitions if last[at] > begin.offsets[at]}
        taken = spread(waiting, context.bound(self.max_offsets))
        known = before.offsets if before is not None else topic.partitions
        after = {
            at: offset + taken.get(at, 0)
            for at, offset in begin.offsets.items()
            if at in known or offset or taken.get(at)
        }
        count, left = sum(taken.values()), sum(waiting.values()) - sum(taken.values())
        behind_open = sum(max(written[at] - end[at], 0) for at in topic.partitions)
        ends = {at: begin.offsets[at] + taken.get(at, 0) for at in topic.partitions}
        behind = tuple(at for at in topic.partitions if max(written[at], end[at]) > ends[at])
        position = TopicPosition(topic.cluster, topic.id, after)
        return Planned(
            end=position.json if count or expired else start,
            splits=splits_of(begin, {at: begin.offsets[at] + number for at, number in taken.items()}),
            is_empty=not count,
            has_more=left > 0,
            summary=_summary(taken, len(topic.partitions), expired, behind_open),
            amount=count,
            lag=Lag(rows=left + behind_open, seconds=_age_of_waiting(asked, behind, ends) if behind else None),
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount | None:
        """Check that the topic is the one that was planned, and still has every planned offset."""
        ranges = share_of(splits)
        if not ranges:
            return Amount(rows=0)
        asked, topic = self._topic(context)
        planned = TopicPosition(splits["cluster"], splits["topic_id"], {})
        _refuse_other_topic(planned, topic, self.topic, context.source)
        first, end = asked.ends(topic.partitions)
        gone = {at: (begin, first[at]) for at, (begin, _) in ranges.items() if first[at] > begin}
        if gone:
            raise errors.planned_records_deleted_error(context.source, self.topic, gone)
        back = {at: (after, end[at]) for at, (_, after) in ranges.items() if end[at] < after}
        if back:
            raise errors.partition_went_back_error(context.source, self.topic, back)
        return None  # there are fewer records than offsets, if there are transactions

    def _topic(self, context: SourceContext) -> tuple[SourceTopic, TopicState]:
        login = self._login(context)
        login.for_java()  # told now, not when a job reads
        asked = SourceTopic(self.topic, login)
        topic = asked.state(look_at_settings=not self.allow_compacted)
        if topic.compacted:
            raise errors.compacted(context.source, self.topic)
        return asked, topic

    def _login(self, context: SourceContext) -> KafkaLogin:
        return KafkaLogin.of(self.servers, self.connection, context.place)

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
        _refuse_other_topic(before, topic, self.topic, source)
        offsets = {at: before.offsets.get(at, 0) for at in topic.partitions}
        gone = {at: (offset, first[at]) for at, offset in offsets.items() if first[at] > offset}
        if gone and self.on_expired == "refuse":
            raise errors.records_expired(source, self.topic, gone)
        offsets |= {at: oldest for at, (_, oldest) in gone.items()}
        back = {at: (offset, end[at]) for at, offset in offsets.items() if end[at] < offset}
        if back:
            raise errors.partition_went_back_error(source, self.topic, back)
        expired = sum(oldest - offset for offset, oldest in gone.values())
        return TopicPosition(topic.cluster, topic.id, offsets), expired

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of exactly the planned offsets."""
        from tidegate.connectors.kafka.reading import read_topic

        return read_topic(spark, self, splits, self._login(context), context.source)

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        if other is None or position == other:
            return True
        if position is None:
            return False
        here, there = TopicPosition.of(position, context.source), TopicPosition.of(other, context.source)
        same = (here.cluster, here.topic_id) == (there.cluster, there.topic_id)
        return same and all(here.offsets.get(at, 0) >= offset for at, offset in there.offsets.items())

    def on_checkpoint_completed(self, end: Json, context: SourceContext) -> None:
        """See Source: sets the offsets of the consumer group, if one is declared."""
        if self.group is not None:
            position = TopicPosition.of(end, context.source)
            SourceTopic(self.topic, self._login(context)).commit(self.group, position.offsets)


def _refuse_other_topic(before: TopicPosition, topic: TopicState, name: str, source: str) -> None:
    if before.cluster != topic.cluster:
        raise errors.other_cluster_error(source, name, before.cluster, topic.cluster)
    if before.topic_id != topic.id:
        raise errors.topic_recreated_error(source, name, before.topic_id, topic.id)


def _age_of_waiting(asked: SourceTopic, behind: tuple[int, ...], ends: Mapping[int, int]) -> float | None:
    """Return the age of the oldest record after the range, to a tenth, by the records' times. behind: partitions that
    have some.

    Brokers find the first record from a moment on. So the age is searched for: each record that waits is younger if, in
    every partition, none from then on comes before the range's end.
    """
    now_ms = seams.now().timestamp() * 1000

    def all_younger(age_s: float) -> bool:
        since = asked.since(behind, max(round(now_ms - age_s * 1000), 0), committed=False)
        return all(offset is not None and offset <= ends[at] for at, offset in since.items())

    young, old = _FINEST_AGE_S, _COARSEST_AGE_S
    while old > young * _PRECISION:
        middle = (young * old) ** 0.5
        if all_younger(middle):
            old = middle
        else:
            young = middle
    return round(old, 1) if old < _COARSEST_AGE_S else None  # None: the records have no times


def _summary(taken: Mapping[int, int], partitions: int, expired: int, behind_open: int) -> str:
    count, read = sum(taken.values()), sum(1 for number in taken.values() if number)
    skipped = f"; {expired:,} have expired unread" if expired else ""
    if behind_open:
        skipped += f"; {behind_open:,} wait for an open transaction to end"
    if not count:
        return f"no new records{skipped}"
    return f"{count:,} offsets in {read} of {partitions} partitions{skipped}"


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
    if source.unknown_keys != "ignore" and source.value != "json":
        problems.append("unknown_keys is for value='json'")
    if source.on_corrupt != "refuse" and source.value == "bytes":
        problems.append("on_corrupt has no effect with value='bytes': any bytes will do")
    if (source.registry is not None) != (source.value == "avro"):
        problems.append(
            "registry is missing: schemas of records in Avro come from a schema registry"
            if source.registry is None
            else "registry is for value='avro'"
        )
    if structured:
        try:
            columns = {column.name.lower() for column in value_columns(source)}
        except DdlError as error:
            return [*problems, f"schema {error}"]
        reserved = {CORRUPT, KEY, DELETED, *(f"_{name}" for name in METADATA)}
        problems += [
            f"column {name!r} of the schema is one that tidegate may add; rename it"
            for name in sorted(columns & reserved)
        ]
    return problems


def _choice_problems(source: Kafka) -> list[str]:
    problems = []
    for name, choices in (
        ("on_corrupt", ("refuse", "keep")),
        ("unknown_keys", ("ignore", "refuse")),
        ("tombstones", ("refuse", "skip", "keep")),
        ("on_expired", ("refuse", "skip")),
    ):
        if getattr(source, name) not in choices:
            told = " or ".join(repr(choice) for choice in choices)
            problems.append(f"{name} is {getattr(source, name)!r}; it must be {told}")
    if source.key not in (None, "string", "bytes"):
        problems.append(f"key is {source.key!r}; it must be 'string' or 'bytes'")
    listed = [] if isinstance(source.metadata, str) else list(source.metadata)
    if isinstance(source.metadata, str) or not set(listed) <= set(METADATA) or len(set(listed)) < len(listed):
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
        whole = [number for pair in start.items() for number in pair]
        if all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in whole):
            return []
    return [
        f"start is {start!r}; it must be 'earliest', 'latest', a datetime, or offsets of all partitions like {{0: 17}}"
    ]
