"""The mark of a Kafka sink: a record in a compacted topic that says which checkpoint the sink's topic has.

A mark is written in the same transaction as the rows of its checkpoint. So a read_committed reader of the mark knows
whether the rows are in the topic, no matter how the publisher ended. Offsets of a consumer group would not do, because
the brokers forget them after a week.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate import seams
from tidegate.connectors.kafka import ANSWER_S, Cluster
from tidegate.connectors.kafka.creating_topics import TopicInfo, create_topic, find_topic
from tidegate.errors import Corrupt, Unavailable
from tidegate.records import typed
from tidegate.records.records import Struct

__all__ = ["GROUP", "NO_CHECKPOINT", "Marks", "TopicMark", "create_marks", "mark_topic_problem"]

GROUP: Final = "tidegate"
"""The consumer group of clients that read marks. They never commit offsets."""

NO_CHECKPOINT: Final = 0
"""The checkpoint in a mark with which a person declares that the topic has none."""

_PARTITION: Final = 0
_RECENT: Final = 64
"""How many of the last offsets to read first. Unless sinks share a topic of marks, they include the mark."""
_PAUSE_S: Final = 0.2
_SETTLING_S: Final = 2.0
"""How long a transaction that is being committed may take until its mark can be read."""
_CONFIG: Final = {"cleanup.policy": "compact", "segment.ms": "3600000"}
"""No mark is deleted by age, and compaction rarely leaves more than the marks of the last hour."""


class TopicMark(Struct, frozen=True, kw_only=True):
    """How far a sink has published. The newest mark counts."""

    checkpoint: int
    """The checkpoint whose rows were sent."""
    after: int | None
    """The checkpoint that was published before, or None."""
    records: int
    """How many records of the checkpoint are in the topic."""
    complete: bool
    """False: the checkpoint needs several transactions, and some are still to come."""
    topic_id: str
    cluster: str
    attempt: str

    @property
    def last(self) -> int | None:
        """The last checkpoint that is completely in the topic."""
        last = self.checkpoint if self.complete else self.after
        return None if last == NO_CHECKPOINT else last

    def encoded(self) -> bytes:
        """Return the value of the mark's record."""
        return msgspec.json.encode(self)


@dataclass(frozen=True)
class Marks:
    """A topic of marks."""

    cluster: Cluster
    topic: str

    def read(self, app_id: str, *, settled: bool) -> tuple[TopicMark | None, set[str]]:
        """Return the last committed mark of `app_id`, and the other app ids that have marks.

        The other app ids are only complete if `app_id` has no mark: otherwise only recent records are read.

        settled: wait until every transaction that is open now has ended, and raise Unavailable if that takes too long.
            A caller that decides by the mark needs this, because an open transaction, even one of another producer,
            hides newer marks. If False, a transaction that stays open is ignored.
        """
        with self.cluster.errors(f"reading the marks in the topic {self.topic}"):
            bounds = self._bounds()
            if bounds is None:
                return None, set()
            first, end = bounds
            recent = max(first, end - _RECENT)
            values = self._read(recent, end, app_id, settled)
            if app_id not in values and first < recent:
                values = self._read(first, end, app_id, settled)
        app_ids = {key for key, value in values.items() if value is not None}
        app_ids.discard(app_id)
        value = values.get(app_id)
        mark = self._decode(value) if value is not None else None
        return mark, app_ids

    def _bounds(self) -> tuple[int, int] | None:
        """Return the topic's first offset and its end offset, including uncommitted records, or None without topic."""
        from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin, partition = self.cluster.admin(), TopicPartition(self.topic, _PARTITION)
        options: Any = {"isolation_level": IsolationLevel.READ_UNCOMMITTED, "request_timeout": ANSWER_S}

        def offset(spec: Any) -> int:
            answer = self.cluster.answer(lambda: admin.list_offsets({partition: spec}, **options)[partition])
            return int(answer.offset)

        missing = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT, KafkaError._UNKNOWN_PARTITION)
        deadline = seams.monotonic() + ANSWER_S
        while True:
            try:
                return offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())
            except KafkaException as error:
                if error.args[0].code() not in missing or seams.monotonic() > deadline:
                    raise
            if find_topic(self.cluster, self.topic) is None:
                return None
            seams.sleep(_PAUSE_S)  # after a start of the brokers, the topic has no leader yet

    def _read(self, start: int, end: int, app_id: str, settled: bool) -> dict[str, bytes | None]:
        """Return the last committed mark of each app id between two offsets."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        values: dict[str, bytes | None] = {}
        if start >= end:
            return values
        consumer = self.cluster.consumer(
            {
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,  # the broker waits this long before it reports the end of the partition
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, _PARTITION, start)])
            started, at_open_transaction = seams.monotonic(), False
            while True:
                message = consumer.poll(0.1)
                waited = seams.monotonic() - started
                if message is None:
                    if at_open_transaction and not settled and waited > _SETTLING_S:
                        return values
                    if waited > 2 * ANSWER_S:
                        raise self._hidden() if at_open_transaction else self._silent()
                    continue
                error = message.error()
                if error is None:
                    app_id_of_record = (message.key() or b"").decode(errors="replace")
                    values[app_id_of_record] = message.value()
                elif error.code() != KafkaError._PARTITION_EOF:
                    if not error.retriable():
                        raise KafkaException(error)
                elif message.offset() >= end:
                    return values
                else:
                    at_open_transaction = True
        finally:
            consumer.close()

    def _decode(self, value: bytes) -> TopicMark:
        try:
            return typed.decode(value, TopicMark)
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"the newest mark in the topic {self.topic} cannot be read: {error}",
                expected="a mark that a compatible version of tidegate has written",
                help="use the version that wrote it, or restore the mark: `tidegate mark --help` explains how",
                reason="BAD_MARK",
            ) from None

    def _hidden(self) -> Unavailable:
        return Unavailable(
            f"a transaction has been open in the topic {self.topic} for {2 * ANSWER_S:.0f} s, and the marks after its "
            "start are unknown until it ends",
            expected="a topic of marks to which only one sink writes",
            help="wait: it ends within its producer's transaction timeout. Use a separate topic of marks for each sink "
            '(marks=…). If it stays open, the brokers have lost its end: see docs/guides/kafka-sink.md, "A transaction '
            'that never ends"',
            reason="MARKS_HIDDEN",
        )

    def _silent(self) -> Unavailable:
        return Unavailable(
            f"the topic {self.topic} did not return its records within {2 * ANSWER_S:.0f} s",
            help="check that the brokers run; nothing is lost, and the next attempt tries again",
            reason="KAFKA_AWAY",
        )


def create_marks(cluster: Cluster, topic: str, replicas: int | None) -> None:
    """Create a topic of marks."""
    create_topic(cluster, topic, 1, replicas, _CONFIG)


def mark_topic_problem(topic: TopicInfo) -> str:
    """Return why a topic cannot store marks, or "" if it can."""
    if topic.config.get("cleanup.policy") != "compact":
        return f"its cleanup.policy is {topic.config.get('cleanup.policy')!r}, so that its last record may be deleted"
    if topic.partitions != 1:
        return f"it has {topic.partitions} partitions"
    if not topic.may_write:
        return "the login may not write to it"
    return ""
