"""One Kafka cluster: its clients, and its errors as tidegate's own.

A process has one client for questions about topics for each login, and keeps it. Nobody else may free it: an error that
is kept somewhere may be the last one that knows of a client, and whichever thread collects garbage would then free it.
In a thread of that client itself this ends the process. Producers and consumers have no such threads of Python.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tidegate import seams
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.place import Place
from tidegate.sources.kafka.client import import_kafka
from tidegate.sources.kafka.login import KafkaLogin

__all__ = ["Cluster", "ProducerFenced"]

ANSWER_S: Final = 15.0
"""How long one question may take before the cluster counts as away."""

_LOOK_S: Final = 0.2
"""How often it is looked whether a login was refused, or asked again."""


class ProducerFenced(Exception):
    """Another publisher of the same sink has begun since: nothing of this one's transaction counts."""


class Cluster:
    """How to reach a Kafka cluster, and who logs in. A connection's options have librdkafka's names."""

    def __init__(self, login: KafkaLogin) -> None:
        self._login = login
        self._reported: list[Any] = []

    @classmethod
    def of(cls, servers: str | None, connection: str | None, place: Place) -> Cluster:
        """Return the cluster that a declaration names. Raise Invalid if it does not say where it is."""
        import_kafka()
        return cls(KafkaLogin.of(servers, connection, place))

    @property
    def servers(self) -> str:
        """The brokers to ask first."""
        return self._login.servers

    def admin(self) -> Any:
        """Return this process's client for questions about topics."""
        admin = _admin_of(self)
        self._reported = admin.reported
        self._reported.clear()
        return admin.client

    def consumer(self, config: Mapping[str, Any]) -> Any:
        """Return a new consumer."""
        from confluent_kafka import Consumer

        return Consumer(self._config(config))

    def producer(self, defaults: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """Return a new producer. defaults: what a connection's options may change."""
        from confluent_kafka import Producer

        return Producer(self._config(config, defaults))

    def identity(self) -> frozenset[tuple[str, str]]:
        """Return all that the client depends on."""
        return frozenset(self._login.options.items())

    def new_admin(self, report: Callable[[Any], None]) -> Any:
        """Return a new client for questions about topics, that is never freed."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._config({"error_cb": report}))

    def _config(self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        told = {"log_level": 2, "error_cb": self._reported.append}
        return {**(defaults or {}), **self._login.options, **told, **config}

    def answer(self, ask: Callable[[], Future[Any]]) -> Any:
        """Wait for the answer to a question. Ask again if brokers are only changing places, and do not wait if they
        refuse the login."""
        from confluent_kafka import KafkaException

        deadline = seams.monotonic() + ANSWER_S
        while True:
            try:
                return self._answered(ask())
            except KafkaException as error:
                if not _passes(error.args[0]) or seams.monotonic() > deadline:
                    raise
            seams.sleep(_LOOK_S)

    def _answered(self, future: Future[Any]) -> Any:
        from confluent_kafka import KafkaException

        client = _admin_of(self).client
        while True:
            try:
                return future.result(timeout=_LOOK_S)
            except TimeoutError:
                client.poll(0)  # reports errors
                refusal = self._refusal()
                if refusal is not None:
                    raise KafkaException(refusal) from None
            except KafkaException:
                client.poll(0)
                raise

    def _refusal(self) -> Any:
        """Return what was reported of a login that is refused. None: nothing."""
        from confluent_kafka import KafkaError

        refusals = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)
        return next((each for each in self._reported if each.code() in refusals), None)

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn the errors of Kafka's clients into tidegate's. doing: what fails then, such as "reading the marks"."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.explained(error.args[0], doing) from None

    def explained(self, error: Any, doing: str) -> TidegateError:
        """Return the error to raise for one of librdkafka. What it reported meanwhile may be the cause of it."""
        refusal = self._refusal()
        if refusal is not None:
            text = self._login.masked(refusal.str())
            return Invalid(
                f"{doing}: Kafka at {self.servers} refused the login: {text}",
                expected="a user name, a password and a security protocol that the cluster accepts",
                help="correct the options security.protocol, sasl.mechanism, sasl.username and sasl.password of the "
                "connection that the declaration names",
                reason="BAD_LOGIN",
            )
        text, explain = self._login.masked(error.str()), _explanations().get(error.code())
        return explain(doing, text) if explain is not None else self._away(doing, text)

    def _away(self, doing: str, text: str) -> Unavailable:
        return Unavailable(
            f"{doing}: there was no answer from Kafka at {self.servers}: {text}",
            expected="an answer of the cluster in time",
            help="look whether the brokers run and can be reached from here; nothing is lost, and it is tried again",
            reason="KAFKA_AWAY",
        )


@dataclass(frozen=True)
class _Admin:
    """A client for questions, and what it reported since the last one began."""

    client: Any
    reported: list[Any]


_admins: dict[frozenset[tuple[str, str]], _Admin] = {}
_lock = threading.Lock()


def _admin_of(cluster: Cluster) -> _Admin:
    with _lock:
        known = _admins.get(cluster.identity())
        if known is None:
            reported: list[Any] = []
            known = _admins[cluster.identity()] = _Admin(cluster.new_admin(reported.append), reported)
        return known


def _forget_admins() -> None:
    """A forked process lacks the threads of its parent's clients. It must neither use nor free them: freeing one waits
    for its threads."""
    global _lock
    for admin in _admins.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(admin.client))
    _admins.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_admins)


def _passes(error: Any) -> bool:
    """Return whether an error passes by itself, after a start of brokers or of a topic."""
    passing = (
        error.NOT_LEADER_FOR_PARTITION,
        error.LEADER_NOT_AVAILABLE,
        error.FENCED_LEADER_EPOCH,
        error.UNKNOWN_LEADER_EPOCH,
    )
    return error.code() in passing or (error.retriable() and error.code() != error.UNKNOWN_TOPIC_OR_PART)


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
