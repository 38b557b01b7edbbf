"""What a Kafka cluster tells of its topics, and how missing ones are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate import seams
from tidegate.connectors.kafka import ANSWER_S, Cluster
from tidegate.errors import Unavailable

__all__ = ["FoundTopic", "create_topic", "find_topic", "wait_for_transactions"]

_MAX_REQUEST_BYTES = 1_000_000_000
"""The highest message.max.bytes of librdkafka."""
_ANY_TIME = 2**63 - 1
_PATIENCE_S: Final = 60.0
"""How long to wait for transactions of others."""
_PAUSE_S: Final = 0.2
_RECORD_AROUND = 200
"""Bytes that a batch has around a single record of a few headers."""


@dataclass(frozen=True)
class FoundTopic:
    """A topic as it is now."""

    cluster: str
    """The cluster's own id."""
    name: str
    id: str
    """Another one if the topic is deleted and made again under the same name."""
    partitions: int
    may_write: bool
    config: Mapping[str, str]

    @property
    def is_compacted(self) -> bool:
        """True: of the records with one key it keeps the last one."""
        return "compact" in self.config["cleanup.policy"]

    @property
    def largest_batch(self) -> int:
        """The most bytes that it takes at once, and that a client sends at once."""
        return min(_MAX_REQUEST_BYTES, *(int(self.config[name]) for name in ("max.message.bytes", "segment.bytes")))

    @property
    def writes_times(self) -> bool:
        """True: the broker writes times of its own, whatever a record says."""
        return self.config.get("message.timestamp.type") == "LogAppendTime"

    @property
    def times(self) -> tuple[int, int]:
        """How many milliseconds a record's time may lie behind and ahead of the broker's. If the broker writes times of
        its own, any."""
        if self.writes_times:
            return _ANY_TIME, _ANY_TIME
        names = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
        behind, ahead = (int(self.config.get(name) or _ANY_TIME) for name in names)
        return behind, ahead

    @property
    def largest_record(self) -> int:
        """The most bytes that key, value and headers of a record may have together."""
        return self.largest_batch - _RECORD_AROUND


def find_topic(cluster: Cluster, name: str) -> FoundTopic | None:
    """Look for a topic. None: there is none of this name. No broker makes it because somebody looks for it."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import AclOperation, ConfigResource

    with cluster.errors(f"looking for the topic {name}"):
        admin, resource = cluster.admin(), ConfigResource(ConfigResource.Type.TOPIC, name)
        names = TopicCollection([name])
        wait: Any = {"request_timeout": ANSWER_S}

        def described() -> Any:
            return admin.describe_topics(names, include_authorized_operations=True, **wait)[name]

        try:
            found = cluster.answer(described)
            configured = cluster.answer(lambda: admin.describe_configs([resource], **wait)[resource])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        allowed = found.authorized_operations
        return FoundTopic(
            cluster=cluster.answer(lambda: admin.describe_cluster(**wait)).cluster_id,
            name=name,
            id=str(found.topic_id),
            partitions=len(found.partitions),
            may_write=allowed is None or AclOperation.WRITE in allowed,
            config={key: entry.value for key, entry in configured.items()},
        )


def create_topic(cluster: Cluster, name: str, partitions: int, replicas: int | None, config: Mapping[str, str]) -> None:
    """Make a topic, unless somebody else has made it meanwhile, and wait until it can be found. replicas: None for as
    many as the cluster makes by itself."""
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
        found = admin.list_topics(timeout=ANSWER_S).topics.get(name)
        if found is not None and found.partitions and all(each.leader >= 0 for each in found.partitions.values()):
            return
        seams.sleep(0.05)


def wait_for_transactions(cluster: Cluster, topic: FoundTopic) -> None:
    """Wait until all transactions that are open in a topic have ended. Raise Unavailable if that takes too long.

    A broker that is told to end a transaction while a partition has no leader may take that partition for deleted
    (KAFKA-20734). There the transaction stays open, and whatever its producer does next is taken for its end: what was
    aborted would be seen after all, beside what is sent in its place.
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
                    expected="transactions that end: behind an open one, readers that read committed see nothing",
                    help="if others write to this topic in transactions, wait: nothing was sent, and it is tried "
                    'again. If nobody does, the brokers have lost its end: docs/guides/kafka-sink.md, "A transaction '
                    'that never ends"',
                    reason="OPEN_TRANSACTION",
                )
            seams.sleep(_PAUSE_S)


def _last_offsets(cluster: Cluster, topic: FoundTopic, isolation: Any) -> dict[int, int]:
    """Return the offset after the last record of each partition; read committed, the one where readers must wait."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = cluster.admin()
    asked = {TopicPartition(topic.name, number): OffsetSpec.latest() for number in range(topic.partitions)}
    how: Any = {"isolation_level": isolation, "request_timeout": ANSWER_S}
    found = cluster.answers(lambda: admin.list_offsets(asked, **how), exists=True)
    return {partition.partition: int(answer.offset) for partition, answer in found.items()}
