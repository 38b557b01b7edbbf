"""One Kafka cluster: its clients, and its errors as tidegate's own.

A client belongs to one call. librdkafka's threads do not survive a fork, and Airflow forks, so none is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.masking import MASK, without_logins
from tidegate.records.place import Place

__all__ = ["Cluster", "ProducerFenced"]

ANSWER_S: Final = 15.0
"""How long one question may take before the cluster counts as away."""

SERVERS: Final = "bootstrap.servers"


class ProducerFenced(Exception):
    """Another publisher of the same sink has begun since: nothing of this one's transaction counts."""


class Cluster:
    """How to reach a Kafka cluster, and who logs in. A connection's options have librdkafka's names."""

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        self.servers = servers
        self._options = dict(options)
        self._reported: list[Any] = []

    @classmethod
    def of(cls, servers: str | None, connection: str | None, place: Place) -> Cluster:
        """Return the cluster that a declaration names. Raise Invalid if it does not say where it is."""
        options = place.connection(connection) if connection is not None else {}
        found = servers or options.get(SERVERS)
        if not found:
            raise Invalid(
                f"the connection {connection!r} does not say where the Kafka cluster is",
                expected=f'servers="host:9092" in the declaration, or the option {SERVERS} of the connection',
                help=f"add {SERVERS} to [connections.{connection}]",
                reason="NO_SERVERS",
            )
        return cls(found, options)

    def admin(self) -> Any:
        """Return a new client for questions about topics."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._config({}))

    def consumer(self, config: Mapping[str, Any]) -> Any:
        """Return a new consumer."""
        from confluent_kafka import Consumer

        return Consumer(self._config(config))

    def producer(self, defaults: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """Return a new producer. defaults: what a connection's options may change."""
        from confluent_kafka import Producer

        return Producer(self._config(config, defaults))

    def _config(self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        told = {"bootstrap.servers": self.servers, "log_level": 2, "error_cb": self._reported.append}
        return {**(defaults or {}), **self._options, **told, **config}

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn the errors of Kafka's clients into tidegate's. doing: what fails then, such as "reading the marks"."""
        try:
            from confluent_kafka import KafkaException
        except ModuleNotFoundError:
            raise Invalid(
                "Kafka needs the Python package confluent-kafka, which is not installed here",
                help="pip install 'tidegate[kafka]'",
                reason="NO_KAFKA_CLIENT",
            ) from None
        try:
            yield
        except KafkaException as error:
            raise self.explained(error.args[0], doing) from None

    def explained(self, error: Any, doing: str) -> TidegateError:
        """Return the error to raise for one of librdkafka. What it reported meanwhile may be the cause of it."""
        from confluent_kafka import KafkaError

        logins = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
        cause = next((each for each in self._reported if each.code() in logins), error)
        text = self.without_secrets(cause.str())
        if cause.code() in logins:
            return Invalid(
                f"{doing}: Kafka at {self.servers} refused the login: {text}",
                expected="a user name, a password and a security protocol that the cluster accepts",
                help="correct the options security.protocol, sasl.mechanism, sasl.username and sasl.password of the "
                "connection that the declaration names",
                reason="BAD_LOGIN",
            )
        explain = _explanations().get(cause.code())
        return explain(doing, text) if explain is not None else self._away(doing, text)

    def _away(self, doing: str, text: str) -> Unavailable:
        return Unavailable(
            f"{doing}: there was no answer from Kafka at {self.servers}: {text}",
            expected="an answer of the cluster in time",
            help="look whether the brokers run and can be reached from here; nothing is lost, and it is tried again",
            reason="KAFKA_AWAY",
        )

    def without_secrets(self, text: str) -> str:
        """Return a text of librdkafka's without any value of the connection's options."""
        for name, value in self._options.items():
            if name != SERVERS and len(value) > 3:
                text = text.replace(value, MASK)
        return without_logins(text)


def _explanations() -> dict[int, Callable[[str, str], TidegateError]]:
    """Return the errors that will not resolve themselves, by librdkafka's code."""
    from confluent_kafka import KafkaError

    refused = (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
    return {
        **dict.fromkeys(refused, _not_allowed),
        KafkaError._INVALID_ARG: _bad_option,
        KafkaError.INVALID_CONFIG: _bad_option,
        KafkaError.INVALID_REPLICATION_FACTOR: _bad_option,
        KafkaError.INVALID_PARTITIONS: _bad_option,
    }


def _not_allowed(doing: str, text: str) -> TidegateError:
    return Invalid(
        f"{doing}: the login may not do that: {text}",
        expected="the rights to describe and write the topic and the topic of marks, to read the latter, to read the "
        "group tidegate, and to describe and write the transactional id",
        help="let the cluster's owner grant them; docs/guides/kafka-sink.md lists them",
        reason="NOT_ALLOWED",
    )


def _bad_option(doing: str, text: str) -> TidegateError:
    return Invalid(
        f"{doing}: an option is wrong: {text}",
        expected="options of librdkafka, with values that it and the cluster accept",
        help="correct the declaration, or the connection that it names",
        reason="BAD_OPTION",
    )
