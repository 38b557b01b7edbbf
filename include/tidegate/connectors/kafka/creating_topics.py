"""Looks up and creates topics of a Kafka cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate import seams
from tidegate.connectors.kafka import ANSWER_S, Cluster
from tidegate.errors import Unavailable

__all__ = ["TopicInfo", "create_topic", "find_topic", "wait_for_transactions"]

_MAX_REQUEST_BYTES = 1_000_000_000
"""The highest message.max.bytes of librdkafka."""
_ANY_TIME = 2**63 - 1
_PATIENCE_S: Final = 60.0
"""How long to wait for open transactions of other producers."""
_PAUSE_S: Final = 0.2
_BATCH_OVERHEAD = 200
"""The bytes that a batch needs in addition to the key, value and headers of its only record."""


@dataclass(frozen=True)
class TopicInfo:
    """A topic as the brokers describe it."""

    cluster: str
    """The cluster's own id."""
    name: str
    id: str
    """It changes when the topic is deleted and created again."""
    partitions: int
    may_write: bool
    config: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        """Whether compaction removes all but the last record of a key."""
        return "compact" in self.config["cleanup.policy"]

    @property
    def largest_batch(self) -> int:
        """The size limit of a batch in bytes: the topic's, or the client's if that is lower."""
        return min(_MAX_REQUEST_BYTES, *(int(self.config[name]) for name in ("max.message.bytes", "segment.bytes")))

    @property
    def overwrites_timestamps(self) -> bool:
        """Whether the broker replaces a record's timestamp by the time of its arrival."""
        return self.config.get("message.timestamp.type") == "LogAppendTime"

    @property
    def timestamp_tolerance(self) -> tuple[int, int]:
        """How many milliseconds a record's timestamp may be before and after the broker's clock."""
        if self.overwrites_timestamps:
            return _ANY_TIME, _ANY_TIME
        names = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
        before, after = (int(self.config.get(name) or _ANY_TIME) for name in names)
        return before, after

    @property
    def largest_record(self) -> int:
        """The most bytes that the key, value and headers of a record may have in total."""
        return self.largest_batch - _BATCH_OVERHEAD


def find_topic(cluster: Cluster, name: str) -> TopicInfo | None:
    """Look up a topic, or return None if it does not exist. A broker never creates a topic because of this request."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import AclOperation, ConfigResource

    with cluster.errors(f"looking for the topic {name}"):
        admin, resource = cluster.admin(), ConfigResource(ConfigResource.Type.TOPIC, name)
        names = TopicCollection([name])
        wait: Any = {"request_timeout": ANSWER_S}

        def ask() -> Any:
            return admin.describe_topics(names, include_authorized_operations=True, **wait)[name]

        try:
            description = cluster.answer(ask)
            settings = cluster.answer(lambda: admin.describe_configs([resource], **wait)[resource])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        allowed = description.authorized_operations
        return TopicInfo(
            cluster=cluster.answer(lambda: admin.describe_cluster(**wait)).cluster_id,
            name=name,
            id=str(description.topic_id),
            partitions=len(description.partitions),
            may_write=allowed is None or AclOperation.WRITE in allowed,
            config={key: entry.value for key, entry in settings.items()},
        )


def create_topic(cluster: Cluster, name: str, partitions: int, replicas: int | None, config: Mapping[str, str]) -> None:
    """Create a topic unless it exists, and wait until it has leaders. replicas: None for the cluster's default."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    with cluster.errors(f"creating the topic {name}"):
        new = NewTopic(name, num_partitions=partitions, replication_factor=replicas or -1, config=dict(config))
        admin = cluster.admin()
        try:
            cluster.answer(lambda: admin.create_topics([new], request_timeout=ANSWER_S)[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        _wait_for_leaders(admin, name)


def _wait_for_leaders(admin: Any, name: str) -> None:
    deadline = seams.monotonic() + ANSWER_S
    while seams.monotonic() < deadline:
        topic = admin.list_topics(timeout=ANSWER_S).topics.get(name)
        partitions = topic.partitions.values() if topic is not None else ()
        if partitions and all(partition.leader >= 0 for partition in partitions):
            return
        seams.sleep(0.05)


def wait_for_transactions(cluster: Cluster, topic: TopicInfo) -> None:
    """Wait until all transactions that are open in a topic have ended. Raise Unavailable if that takes too long.

    If a partition has no leader while its transaction is ended, the broker may treat the partition as deleted
    (KAFKA-20734). The transaction then stays open there, and the producer's next commit also commits it: readers would
    see the aborted records in addition to those that replace them.
    """
    from confluent_kafka import IsolationLevel

    with cluster.errors(f"looking for open transactions in the topic {topic.name}"):
        ends = _last_offsets(cluster, topic, IsolationLevel.READ_UNCOMMITTED)
        deadline = seams.monotonic() + _PATIENCE_S
        while True:
            settled = _last_offsets(cluster, topic, IsolationLevel.READ_COMMITTED)
            open_in = [number for number, end in ends.items() if settled[number] < end]
            if not open_in:
                return
            if seams.monotonic() > deadline:
                raise Unavailable(
                    f"a transaction has been open in the topic {topic.name} for {_PATIENCE_S:.0f} s, in partition "
                    f"{', '.join(map(str, open_in))}",
                    expected="transactions that end: until then, read_committed readers see no later record",
                    help="if other producers write to this topic in transactions, wait: nothing was sent, and the next "
                    "attempt tries again. If there are none, the brokers have lost the end of the transaction: see "
                    'docs/guides/kafka-sink.md, "A transaction that never ends"',
                    reason="OPEN_TRANSACTION",
                )
            seams.sleep(_PAUSE_S)


def _last_offsets(cluster: Cluster, topic: TopicInfo, isolation: Any) -> dict[int, int]:
    """Return the end offset of each partition: with READ_COMMITTED, that of its first open transaction."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = cluster.admin()
    request = {TopicPartition(topic.name, number): OffsetSpec.latest() for number in range(topic.partitions)}
    options: Any = {"isolation_level": isolation, "request_timeout": ANSWER_S}
    answers = cluster.answers(lambda: admin.list_offsets(request, **options), exists=True)
    return {partition.partition: int(answer.offset) for partition, answer in answers.items()}
