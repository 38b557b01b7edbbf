"""Ask brokers about a topic, without a JVM: in milliseconds, by one client per process and login."""

from __future__ import annotations

import ctypes
import difflib
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidegate import seams
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.sources.kafka.login import KafkaLogin

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

__all__ = ["KafkaClient", "TopicState", "client_of", "import_kafka"]

TIMEOUT_S: Final = 15.0
_LOGIN_REFUSED_S: Final = 1.0
"""For how long a client goes on trying after a broker has refused its login."""
_PAUSE_S: Final = 0.1

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class TopicState:
    """What does not change while the topic exists, and how it lets go of records."""

    cluster: str
    id: str
    partitions: tuple[int, ...]
    compacted: bool


def import_kafka() -> Any:
    """Return the module confluent_kafka."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise Invalid(
            "confluent-kafka, with which tidegate asks Kafka's brokers, is not installed",
            help="pip install 'tidegate[kafka]'",
            reason="NO_KAFKA_CLIENT",
        ) from None
    return confluent_kafka


class KafkaClient:
    """A connection to a cluster. Thread-safe."""

    def __init__(self, login: KafkaLogin) -> None:
        kafka = import_kafka()
        self._login = login
        self._refused: tuple[float, Any] | None = None
        """When a broker refused the login or the encryption, and what it said."""
        options = {"client.id": "tidegate", "log_level": 0, **login.options, "error_cb": self._note_error}
        try:
            self._admin: AdminClient = kafka.admin.AdminClient(options)
        except kafka.KafkaException as error:
            raise Invalid(
                f"the options of the connection to {login.servers} do not fit: {login.masked(error.args[0].str())}",
                expected="options of librdkafka, by their names there",
                help="correct the connection in the setting `connections`",
                reason="BAD_OPTION",
            ) from None

    # -- questions -------------------------------------------------------------------------------------

    def topic(self, name: str, *, look_at_settings: bool) -> TopicState:
        """Return the topic's state. look_at_settings: also whether it is compacted, which needs one right more."""
        kafka = import_kafka()
        admin, resource = self._admin, kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, name)

        def ask() -> dict[str, Future[Any]]:
            asked = {
                "topic": admin.describe_topics(kafka.TopicCollection([name]), request_timeout=TIMEOUT_S)[name],
                "cluster": admin.describe_cluster(request_timeout=TIMEOUT_S),
            }
            if look_at_settings:
                asked["settings"] = admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource]
            return asked

        def settings_hidden(key: str) -> Invalid | None:
            return _settings_hidden(name) if key == "settings" else None

        said = self._answers(ask, name, settings_hidden)
        partitions = sorted(partition.id for partition in said["topic"].partitions)
        compacted = look_at_settings and "compact" in said["settings"]["cleanup.policy"].value
        return TopicState(said["cluster"].cluster_id, str(said["topic"].topic_id), tuple(partitions), compacted)

    def ends(self, topic: str, partitions: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
        """Return each partition's oldest offset, and the one below which every transaction is decided."""
        kafka = import_kafka()
        earliest, latest = kafka.admin.OffsetSpec.earliest(), kafka.admin.OffsetSpec.latest()

        def ask() -> dict[tuple[str, int], Future[Any]]:
            return {
                **self._offsets_asked("first", topic, dict.fromkeys(partitions, earliest)),
                **self._offsets_asked("end", topic, dict.fromkeys(partitions, latest)),
            }

        said = self._answers(ask, topic)
        return (
            {partition: said["first", partition].offset for partition in partitions},
            {partition: said["end", partition].offset for partition in partitions},
        )

    def since(self, topic: str, partitions: tuple[int, ...], moment_ms: int) -> dict[int, int | None]:
        """Return the offset of each partition's first record from this moment on. None: there is none."""
        spec = import_kafka().admin.OffsetSpec.for_timestamp(moment_ms)
        said = self._answers(lambda: self._offsets_asked("since", topic, dict.fromkeys(partitions, spec)), topic)
        return {partition: found.offset if found.offset >= 0 else None for (_, partition), found in said.items()}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Tell the consumer group's coordinator how far the group has come."""
        kafka = import_kafka()
        reached = [kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        wanted = kafka.ConsumerGroupTopicPartitions(group, reached)
        self._answers(
            lambda: self._admin.alter_consumer_group_offsets([wanted], request_timeout=TIMEOUT_S), f"group {group}"
        )

    def _offsets_asked(self, key: str, topic: str, specs: Mapping[int, Any]) -> dict[tuple[str, int], Future[Any]]:
        kafka = import_kafka()
        asked = self._admin.list_offsets(
            {kafka.TopicPartition(topic, partition): spec for partition, spec in specs.items()},
            isolation_level=kafka.IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_S,
        )
        return {(key, at.partition): future for at, future in asked.items()}

    # -- answers ---------------------------------------------------------------------------------------

    def _answers(
        self,
        ask: Callable[[], Mapping[Key, Future[Any]]],
        subject: str,
        denied: Callable[[Key], TidegateError | None] = lambda _: None,
    ) -> dict[Key, Any]:
        """Return all answers. What passes by itself, such as a partition between two leaders, is asked again."""
        kafka = import_kafka()
        deadline = seams.monotonic() + TIMEOUT_S
        while True:
            answers = {}
            for key, future in ask().items():
                try:
                    answers[key] = self._wait(future)
                except kafka.KafkaException as error:
                    said = error.args[0]
                    if _may_pass(said) and seams.monotonic() < deadline:
                        break
                    if said.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED and (other := denied(key)):
                        raise other from None
                    raise self._meaning(said, subject) from None
            else:
                return answers
            seams.sleep(_PAUSE_S)

    def _wait(self, future: Future[Any]) -> Any:
        """Return the answer, or fail as soon as it is clear that the login is refused."""
        kafka = import_kafka()
        deadline = seams.monotonic() + 2 * TIMEOUT_S  # the client itself gives up before that
        while True:
            try:
                return future.result(timeout=_PAUSE_S)
            except NotYet:
                self._admin.poll(0)  # serves _note_error
            if self._refused is not None and seams.monotonic() > self._refused[0] + _LOGIN_REFUSED_S:
                _, said = self._refused
                self._refused = None
                raise kafka.KafkaException(said)
            if seams.monotonic() > deadline:
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))

    def _note_error(self, error: Any) -> None:
        kafka = import_kafka()
        if error.code() in (kafka.KafkaError._AUTHENTICATION, kafka.KafkaError._SSL) and self._refused is None:
            self._refused = seams.monotonic(), error

    def _meaning(self, said: Any, subject: str) -> TidegateError:
        """Return the error for what a broker, or the client itself, says about a topic or group."""
        error = import_kafka().KafkaError
        code, words, servers = said.code(), self._login.masked(said.str()), self._login.servers
        if code in (error._AUTHENTICATION, error.SASL_AUTHENTICATION_FAILED, error.UNSUPPORTED_SASL_MECHANISM):
            return Invalid(
                f"Kafka at {servers} refuses the login: {words}",
                expected="a user and password, and a sasl.mechanism and security.protocol, that the broker accepts",
                help="correct the connection in the setting `connections`",
                reason="BAD_LOGIN",
            )
        if code == error._SSL:
            return Invalid(
                f"Kafka at {servers} and this process do not agree on TLS: {words}",
                expected="a certificate that ssl.ca.location confirms, and security.protocol as the broker has it",
                help="correct the connection in the setting `connections`",
                reason="BAD_LOGIN",
            )
        if code in (
            error.TOPIC_AUTHORIZATION_FAILED,
            error.GROUP_AUTHORIZATION_FAILED,
            error.CLUSTER_AUTHORIZATION_FAILED,
        ):
            return Invalid(
                f"Kafka at {servers} does not allow this login to use {subject}: {words}",
                expected="the rights Describe and Read on the topic; Read on the group, if one is given",
                help="have them granted, or log in as somebody else",
                reason="NOT_ALLOWED",
            )
        if code in (error.UNKNOWN_TOPIC_OR_PART, error._UNKNOWN_TOPIC):
            return self._no_topic(subject)
        return Unavailable(
            f"Kafka at {servers} does not answer for {subject}: {words}",
            help="check that the broker runs and is reachable from here; it is tried again",
            reason="KAFKA_AWAY",
        )

    def _no_topic(self, topic: str) -> TidegateError:
        kafka = import_kafka()
        try:
            known = [name for name in self._admin.list_topics(timeout=TIMEOUT_S).topics if not name.startswith("__")]
        except kafka.KafkaException as error:
            return self._meaning(error.args[0], "the list of topics")
        close = difflib.get_close_matches(topic, known, n=3)
        return Invalid(
            f"Kafka at {self._login.servers} has no topic {topic!r}",
            expected=f"one like {', '.join(map(repr, close))}" if close else "a topic that exists",
            help="correct the name, or create the topic first",
            reason="NO_TOPIC",
        )


def _may_pass(said: Any) -> bool:
    error = import_kafka().KafkaError
    passing = (
        error.NOT_LEADER_FOR_PARTITION,
        error.LEADER_NOT_AVAILABLE,
        error.COORDINATOR_LOAD_IN_PROGRESS,
        error.COORDINATOR_NOT_AVAILABLE,
        error.NOT_COORDINATOR,
        error._NOENT,
    )
    return said.code() in passing or (said.retriable() and said.code() != error.UNKNOWN_TOPIC_OR_PART)


def _settings_hidden(topic: str) -> Invalid:
    return Invalid(
        f"this login may not see the settings of topic {topic!r}, which tell whether it is compacted",
        expected="the right DescribeConfigs on the topic",
        help="have it granted; or, if you know that what the topic loses does no harm, set allow_compacted=True",
        reason="NOT_ALLOWED",
    )


# -- one client per process ----------------------------------------------------------------------------


_clients: dict[frozenset[tuple[str, str]], KafkaClient] = {}
_lock = threading.Lock()


def client_of(login: KafkaLogin) -> KafkaClient:
    """Return this process's client for a login."""
    key = frozenset(login.options.items())
    with _lock:
        if key not in _clients:
            _clients[key] = KafkaClient(login)
        return _clients[key]


def _forget_clients() -> None:
    """A forked process cannot use its parent's clients, whose threads it lacks. It must not free them either: freeing
    one waits for these threads, for ever."""
    global _clients, _lock
    for client in _clients.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _clients, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget_clients)
