"""The mark of a sink in Kafka: which checkpoint its topic has, as the last record in a compacted topic of its own.

A mark is written in the same transaction as the records that it speaks of. So whoever reads it read committed knows
whether they are in the topic, however the transaction's publisher ended. Offsets of a consumer group would not do: the
brokers forget them after a week.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate import seams
from tidegate.connectors.kafka import ANSWER_S, Cluster
from tidegate.connectors.kafka.creating_topics import FoundTopic, create_topic, find_topic
from tidegate.errors import Corrupt, Unavailable
from tidegate.records import typed
from tidegate.records.records import Struct

__all__ = ["GROUP", "NO_CHECKPOINT", "Marks", "TopicMark", "create_marks", "mark_topic_problem"]

GROUP: Final = "tidegate"
"""The consumer group that a reader of marks names. It commits nothing."""

NO_CHECKPOINT: Final = 0
"""The checkpoint of a mark by which a person says that the topic has none."""

_PARTITION: Final = 0
_RECENT: Final = 64
"""How many offsets are read first: a sink's own topic has its mark among the last ones."""
_PAUSE_S: Final = 0.2
_SETTLING_S: Final = 2.0
"""How long a transaction that is being committed may take until its mark can be read."""
_CONFIG: Final = {"cleanup.policy": "compact", "segment.ms": "3600000"}
"""Nothing is deleted by age, and a mark has seldom more than an hour's predecessors."""


class TopicMark(Struct, frozen=True, kw_only=True):
    """How far a sink has come. The newest one counts."""

    checkpoint: int
    """The checkpoint whose records were sent."""
    after: int | None
    """The checkpoint before it. None: there was none."""
    records: int
    """How many of its records are in the topic."""
    complete: bool
    """False: it is sent in several transactions, and others are to come."""
    topic_id: str
    cluster: str
    attempt: str

    @property
    def last(self) -> int | None:
        """The last checkpoint that is in the topic as a whole."""
        last = self.checkpoint if self.complete else self.after
        return None if last == NO_CHECKPOINT else last

    def encoded(self) -> bytes:
        """Return the value of its record."""
        return msgspec.json.encode(self)


@dataclass(frozen=True)
class Marks:
    """A topic of marks."""

    cluster: Cluster
    topic: str

    def read(self, app_id: str, *, settled: bool) -> tuple[TopicMark | None, set[str]]:
        """Return the last mark of `app_id` that was committed; and if there is none, all others whose marks are there.

        settled: wait until every transaction that is open now has ended. It must be so for whoever decides by the mark:
            below an open transaction, that of somebody else too, a newer mark may be hidden. Raise Unavailable if that
            takes too long. Otherwise a transaction that stays open does not count.
        """
        with self.cluster.errors(f"reading the marks in the topic {self.topic}"):
            bounds = self._bounds()
            if bounds is None:
                return None, set()
            first, end = bounds
            recent = max(first, end - _RECENT)
            found = self._read(recent, end, app_id, settled)
            if app_id not in found and first < recent:
                found = self._read(first, end, app_id, settled)
        marks = {key: value for key, value in found.items() if value is not None}
        own = marks.pop(app_id, None)
        return (self._decoded(own) if own is not None else None), set(marks)

    def _bounds(self) -> tuple[int, int] | None:
        """Return the first offset and the one after the last record, committed or not. None: there is no topic."""
        from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin, partition = self.cluster.admin(), TopicPartition(self.topic, _PARTITION)
        how: Any = {"isolation_level": IsolationLevel.READ_UNCOMMITTED, "request_timeout": ANSWER_S}

        def offset(spec: Any) -> int:
            asked = self.cluster.answer(lambda: admin.list_offsets({partition: spec}, **how)[partition])
            return int(asked.offset)

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
            seams.sleep(_PAUSE_S)  # it has no leader yet, after a start of the brokers

    def _read(self, start: int, end: int, app_id: str, settled: bool) -> dict[str, bytes | None]:
        """Return the last committed mark of each app id from `start` to `end`."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        found: dict[str, bytes | None] = {}
        if start >= end:
            return found
        consumer = self.cluster.consumer(
            {
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,  # nothing new is known only after that
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, _PARTITION, start)])
            began, at_open_transaction = seams.monotonic(), False
            while True:
                message = consumer.poll(0.1)
                waited = seams.monotonic() - began
                if message is None:
                    if at_open_transaction and not settled and waited > _SETTLING_S:
                        return found
                    if waited > 2 * ANSWER_S:
                        raise self._hidden() if at_open_transaction else self._silent()
                elif (error := message.error()) is None:
                    found[(message.key() or b"").decode(errors="replace")] = message.value()
                elif error.code() != KafkaError._PARTITION_EOF:
                    if not error.retriable():
                        raise KafkaException(error)
                elif message.offset() >= end:
                    return found
                else:
                    at_open_transaction = True
        finally:
            consumer.close()

    def _decoded(self, value: bytes) -> TopicMark:
        try:
            return typed.decode(value, TopicMark)
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"the newest mark in the topic {self.topic} cannot be read: {error}",
                expected="a mark that a version of tidegate like this one has written",
                help="use the version that wrote it, or put the mark back",
                reason="BAD_MARK",
            ) from None

    def _hidden(self) -> Unavailable:
        return Unavailable(
            f"a transaction has been open in the topic {self.topic} for {2 * ANSWER_S:.0f} s, and the marks behind it "
            "are not known until it ends",
            expected="a topic of marks to which only one sink writes",
            help="wait: it ends by itself within the transaction timeout of whoever began it. Give each sink marks of "
            'its own (marks=…). If it stays, the brokers have lost its end: docs/guides/kafka-sink.md, "A transaction '
            'that never ends"',
            reason="MARKS_HIDDEN",
        )

    def _silent(self) -> Unavailable:
        return Unavailable(
            f"the topic {self.topic} did not give its records within {2 * ANSWER_S:.0f} s",
            help="look whether the brokers run; nothing is lost, and the next attempt tries again",
            reason="KAFKA_AWAY",
        )


def create_marks(cluster: Cluster, topic: str, replicas: int | None) -> None:
    """Make a topic of marks."""
    create_topic(cluster, topic, 1, replicas, _CONFIG)


def mark_topic_problem(topic: FoundTopic) -> str:
    """Return why a topic cannot keep marks. Empty: it can."""
    if topic.config.get("cleanup.policy") != "compact":
        return f"its cleanup.policy is {topic.config.get('cleanup.policy')!r}, so that its last record may be deleted"
    if topic.partitions != 1:
        return f"it has {topic.partitions} partitions"
    return "" if topic.may_write else "the login may not write to it"
