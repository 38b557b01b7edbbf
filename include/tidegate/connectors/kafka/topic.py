"""What a topic's brokers tell a source, and what it tells them: without a JVM, in milliseconds."""

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
    """What does not change while the topic exists, and how it lets go of records."""

    cluster: str
    id: str
    partitions: tuple[int, ...]
    compacted: bool


class SourceTopic:
    """A topic that is read. Thread-safe."""

    def __init__(self, name: str, login: KafkaLogin) -> None:
        self._name = name
        rights = "the rights Describe and Read on the topic; Read on the group, if one is given"
        self._cluster = Cluster(login, rights)
        self._asking = f"asking about the topic {name}"

    def state(self, *, look_at_settings: bool) -> TopicState:
        """Return the topic's state. Raise Invalid if there is no such topic. look_at_settings: also whether it is
        compacted, which needs one right more."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        with self._cluster.errors(self._asking):
            admin, names, wait = self._cluster.admin(), TopicCollection([self._name]), {"request_timeout": ANSWER_S}

            def ask() -> dict[str, Future[Any]]:
                return {
                    "topic": admin.describe_topics(names, **wait)[self._name],
                    "cluster": admin.describe_cluster(**wait),
                }

            try:
                said = self._cluster.answers(ask)
            except KafkaException as error:
                if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    raise self._no_topic(admin.list_topics(timeout=ANSWER_S).topics) from None
                raise
            compacted = look_at_settings and "compact" in self._setting("cleanup.policy")
        partitions = sorted(partition.id for partition in said["topic"].partitions)
        return TopicState(said["cluster"].cluster_id, str(said["topic"].topic_id), tuple(partitions), compacted)

    def ends(self, partitions: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
        """Return each partition's oldest offset, and the one below which every transaction is decided."""
        from confluent_kafka.admin import OffsetSpec

        with self._cluster.errors(self._asking):

            def ask() -> dict[tuple[str, int], Future[Any]]:
                return {
                    **self._request_offsets("first", dict.fromkeys(partitions, OffsetSpec.earliest())),
                    **self._request_offsets("end", dict.fromkeys(partitions, OffsetSpec.latest())),
                }

            said = self._cluster.answers(ask, exists=True)
        return (
            {partition: said["first", partition].offset for partition in partitions},
            {partition: said["end", partition].offset for partition in partitions},
        )

    def written(self, partitions: tuple[int, ...]) -> dict[int, int]:
        """Return the end of each partition, behind all records of open transactions, too."""
        from confluent_kafka.admin import OffsetSpec

        specs = dict.fromkeys(partitions, OffsetSpec.latest())
        with self._cluster.errors(self._asking):
            said = self._cluster.answers(lambda: self._request_offsets("written", specs, committed=False), exists=True)
        return {partition: found.offset for (_, partition), found in said.items()}

    def since(self, partitions: tuple[int, ...], moment_ms: int, *, committed: bool = True) -> dict[int, int | None]:
        """Return the offset of each partition's first record from this moment on. None: there is none. committed: only
        below the first open transaction."""
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.for_timestamp(moment_ms)
        with self._cluster.errors(self._asking):
            said = self._cluster.answers(
                lambda: self._request_offsets("since", dict.fromkeys(partitions, spec), committed=committed),
                exists=True,
            )
        return {partition: found.offset if found.offset >= 0 else None for (_, partition), found in said.items()}

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Tell the consumer group's coordinator how far the group has come."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

        reached = [TopicPartition(self._name, partition, offset) for partition, offset in offsets.items()]
        wanted = [ConsumerGroupTopicPartitions(group, reached)]
        with self._cluster.errors(f"committing the offsets of the group {group}"):
            admin = self._cluster.admin()
            try:
                self._cluster.answers(
                    lambda: admin.alter_consumer_group_offsets(wanted, request_timeout=ANSWER_S),
                    error_in=lambda said: next(
                        (each.error for each in said.topic_partitions if each.error is not None), None
                    ),
                )
            except KafkaException as error:
                if error.args[0].code() not in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
                    raise
                raise Invalid(
                    f"the offsets of the group {group} cannot be set: somebody consumes in that group",
                    expected="a group for this source alone",
                    help="give the source's argument group another name",
                    reason="GROUP_IN_USE",
                ) from None

    def _request_offsets(
        self, key: str, specs: Mapping[int, Any], *, committed: bool = True
    ) -> dict[tuple[str, int], Future[Any]]:
        from confluent_kafka import IsolationLevel, TopicPartition

        asked = self._cluster.admin().list_offsets(
            {TopicPartition(self._name, partition): spec for partition, spec in specs.items()},
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=ANSWER_S,
        )
        return {(key, at.partition): future for at, future in asked.items()}

    def _setting(self, name: str) -> str:
        """Return a setting of the topic. Raise Invalid if the login may not see it."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource

        admin, resource = self._cluster.admin(), ConfigResource(ConfigResource.Type.TOPIC, self._name)
        try:
            found = self._cluster.answer(lambda: admin.describe_configs([resource], request_timeout=ANSWER_S)[resource])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            raise Invalid(
                f"this login may not see the settings of topic {self._name!r}, which tell whether it is compacted",
                expected="the right DescribeConfigs on the topic",
                help="have it granted; or, if you know that what the topic loses does no harm, set "
                "allow_compacted=True",
                reason="NOT_ALLOWED",
            ) from None
        return str(found[name].value)

    def _no_topic(self, known: Mapping[str, Any]) -> Invalid:
        own = [name for name in known if not name.startswith("__")]
        close = difflib.get_close_matches(self._name, own, n=3)
        return Invalid(
            f"Kafka at {self._cluster.servers} has no topic {self._name!r}",
            expected=f"one like {', '.join(map(repr, close))}" if close else "a topic that exists",
            help="correct the name, or create the topic first",
            reason="NO_TOPIC",
        )
