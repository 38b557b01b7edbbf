"""A source's requests to the brokers about its topic. They need no JVM and take milliseconds."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.kafka import ANSWER_S, Cluster, KafkaLogin
from tidegate.errors import Invalid

__all__ = ["SourceTopic", "TopicState"]


@dataclass(frozen=True)
class TopicState:
    """The properties of a topic that a source needs for planning."""

    cluster: str
    id: str
    partitions: tuple[int, ...]
    compacted: bool


class SourceTopic:
    """A client for a topic that is read. Thread-safe."""

    def __init__(self, name: str, login: KafkaLogin) -> None:
        self._name = name
        rights = "the rights Describe and Read on the topic, and Read on the group if the source has one"
        self._cluster = Cluster(login, rights)
        self._asking = f"asking about the topic {name}"

    def state(self, *, read_settings: bool) -> TopicState:
        """Return the topic's state. Raise Invalid if the topic does not exist.

        read_settings: also read whether the topic is compacted, which needs one more right.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        with self._cluster.errors(self._asking):
            admin, names, wait = self._cluster.admin(), TopicCollection([self._name]), {"request_timeout": ANSWER_S}

            def ask() -> dict[str, Future[Any]]:
                return {
                    "topic": admin.describe_topics(names, **wait)[self._name],
                    "cluster": admin.describe_cluster(**wait),
                }

            try:
                answers = self._cluster.answers(ask)
            except KafkaException as error:
                if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    raise self._no_topic(admin.list_topics(timeout=ANSWER_S).topics) from None
                raise
            compacted = read_settings and "compact" in self._setting("cleanup.policy")
        topic = answers["topic"]
        partitions = sorted(partition.id for partition in topic.partitions)
        return TopicState(answers["cluster"].cluster_id, str(topic.topic_id), tuple(partitions), compacted)

    def ends(self, partitions: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
        """Return each partition's oldest offset, and the one below which every transaction is decided."""
        from confluent_kafka.admin import OffsetSpec

        with self._cluster.errors(self._asking):

            def ask() -> dict[tuple[str, int], Future[Any]]:
                return {
                    **self._request_offsets("first", dict.fromkeys(partitions, OffsetSpec.earliest())),
                    **self._request_offsets("end", dict.fromkeys(partitions, OffsetSpec.latest())),
                }

            answers = self._cluster.answers(ask, exists=True)
        return (
            {partition: answers["first", partition].offset for partition in partitions},
            {partition: answers["end", partition].offset for partition in partitions},
        )

    def written(self, partitions: tuple[int, ...]) -> dict[int, int]:
        """Return the end offset of each partition, including records of open transactions."""
        from confluent_kafka.admin import OffsetSpec

        specs = dict.fromkeys(partitions, OffsetSpec.latest())
        with self._cluster.errors(self._asking):
            answers = self._cluster.answers(
                lambda: self._request_offsets("written", specs, committed=False), exists=True
            )
        return {partition: answer.offset for (_, partition), answer in answers.items()}

    def since(self, partitions: tuple[int, ...], moment_ms: int, *, committed: bool = True) -> dict[int, int | None]:
        """Return the offset of each partition's first record from this moment on, or None if it has none.

        committed: only consider records below the first open transaction.
        """
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(moment_ms)
        with self._cluster.errors(self._asking):
            answers = self._cluster.answers(
                lambda: self._request_offsets("since", dict.fromkeys(partitions, spec), committed=committed),
                exists=True,
            )
        offsets: dict[int, int | None] = {}
        for (_, partition), answer in answers.items():
            offsets[partition] = answer.offset if answer.offset >= 0 else None
        return offsets

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets of a consumer group."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

        partitions = [TopicPartition(self._name, partition, offset) for partition, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, partitions)]

        def error_in(answer: Any) -> Any:
            for partition in answer.topic_partitions:
                if partition.error is not None:
                    return partition.error
            return None

        with self._cluster.errors(f"committing the offsets of the group {group}"):
            admin = self._cluster.admin()
            try:
                self._cluster.answers(
                    lambda: admin.alter_consumer_group_offsets(request, request_timeout=ANSWER_S), error_in=error_in
                )
            except KafkaException as error:
                if error.args[0].code() not in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
                    raise
                raise Invalid(
                    f"the offsets of the group {group} cannot be set: it has an active consumer",
                    expected="a group for this source alone",
                    help="give the source's argument group another name",
                    reason="GROUP_IN_USE",
                ) from None

    def _request_offsets(
        self, key: str, specs: Mapping[int, Any], *, committed: bool = True
    ) -> dict[tuple[str, int], Future[Any]]:
        from confluent_kafka import IsolationLevel, TopicPartition

        futures = self._cluster.admin().list_offsets(
            {TopicPartition(self._name, partition): spec for partition, spec in specs.items()},
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=ANSWER_S,
        )
        return {(key, topic_partition.partition): future for topic_partition, future in futures.items()}

    def _setting(self, name: str) -> str:
        """Return a setting of the topic. Raise Invalid if the login may not see it."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource

        admin, resource = self._cluster.admin(), ConfigResource(ConfigResource.Type.TOPIC, self._name)
        try:
            settings = self._cluster.answer(
                lambda: admin.describe_configs([resource], request_timeout=ANSWER_S)[resource]
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            raise Invalid(
                f"this login may not read the settings of topic {self._name!r}, which say whether it is compacted",
                expected="the right DescribeConfigs on the topic",
                help="have it granted; or set allow_compacted=True, if the pipeline does not need the records that "
                "compaction removes",
                reason="NOT_ALLOWED",
            ) from None
        return str(settings[name].value)

    def _no_topic(self, topics: Mapping[str, Any]) -> Invalid:
        user_topics = [name for name in topics if not name.startswith("__")]
        similar = difflib.get_close_matches(self._name, user_topics, n=3)
        return Invalid(
            f"Kafka at {self._cluster.servers} has no topic {self._name!r}",
            expected=f"one like {', '.join(map(repr, similar))}" if similar else "a topic that exists",
            help="correct the name, or create the topic first",
            reason="NO_TOPIC",
        )
