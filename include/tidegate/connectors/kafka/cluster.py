"""A Kafka cluster: its clients, its answers, and its errors as tidegate's own.

A process has one admin client per login, and never frees it. If a client could be freed, its last reference might be in
a stored error, and the garbage collector would free it from any thread. If that is a thread of the client itself, the
process dies. Producers and consumers have no Python threads, so they may be freed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidegate import seams
from tidegate.connectors.kafka.login import KafkaLogin
from tidegate.errors import Invalid, TidegateError, Unavailable

__all__ = ["ANSWER_S", "Cluster", "import_kafka"]

ANSWER_S: Final = 15.0
"""How long to wait for one answer before the cluster counts as unavailable."""

_POLL_S: Final = 0.2
"""How often to check whether the login was refused; also the first pause before a request is repeated."""
_MAX_PAUSE_S: Final = 2.0

Key = TypeVar("Key", bound=Hashable)


def import_kafka() -> Any:
    """Return the module confluent_kafka."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise Invalid(
            "confluent-kafka, with which tidegate talks to Kafka's brokers, is not installed",
            help="pip install 'tidegate[kafka]'",
            reason="NO_KAFKA_CLIENT",
        ) from None
    return confluent_kafka


class Cluster:
    """Connects to a Kafka cluster with one login."""

    def __init__(self, login: KafkaLogin, rights: str) -> None:
        """Raise Invalid if the client library is missing.

        rights: what the login must be allowed to do, for error messages.
        """
        import_kafka()
        self._login = login
        self._rights = rights
        self._reported: list[Any] = []

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return self._login.servers

    def admin(self) -> Any:
        """Return this process's admin client."""
        admin = _admin_of(self)
        self._reported = admin.reported
        self._reported.clear()
        return admin.client

    def consumer(self, config: Mapping[str, Any]) -> Any:
        """Return a new consumer."""
        from confluent_kafka import Consumer

        return Consumer(self._config(config))

    def producer(self, defaults: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """Return a new producer. defaults: options that the connection may override."""
        from confluent_kafka import Producer

        return Producer(self._config(config, defaults))

    def identity(self) -> frozenset[tuple[str, str]]:
        """Return everything that the admin client depends on."""
        return frozenset(self._login.options.items())

    def new_admin(self, report: Callable[[Any], None]) -> Any:
        """Return a new admin client, which is never freed."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._config({"error_cb": report}))

    def _config(self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        tidegate_options = {"log_level": 2, "error_cb": self._reported.append}
        return {**(defaults or {}), **self._login.options, **tidegate_options, **config}

    def answer(self, ask: Callable[[], Future[Any]]) -> Any:
        """Wait for the answer to one question: see `answers`."""
        return self.answers(lambda: {"": ask()})[""]

    def answers(
        self,
        ask: Callable[[], Mapping[Key, Future[Any]]],
        *,
        exists: bool = False,
        error_in: Callable[[Any], Any] = lambda answer: None,
    ) -> dict[Key, Any]:
        """Wait for the answers to several requests.

        Requests are repeated while brokers change leaders. If the brokers refuse the login, there is no waiting.

        exists: the topic is known to exist, so a missing leader is only temporary.
        error_in: returns the error that an answer contains, or None. Some answers report an error without raising it.
        """
        from confluent_kafka import KafkaException

        pause, deadline = _POLL_S, seams.monotonic() + ANSWER_S
        while True:
            try:
                answers = {}
                for key, future in ask().items():
                    answers[key] = self._wait_for(future)
                for answer in answers.values():
                    error_within = error_in(answer)
                    if error_within is not None:
                        raise KafkaException(error_within)
                return answers
            except KafkaException as raised:
                error = raised.args[0]
                is_temporary = _is_temporary(error) or (exists and error.code() == error._NOENT)
                if not is_temporary or seams.monotonic() > deadline:
                    raise
            seams.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)
            # The client caches leaders, and would ask the same broker for minutes. Listing topics refreshes its cache.
            # It lists all topics, because brokers may create a topic that is requested by name.
            with suppress(KafkaException):
                self.admin().list_topics(timeout=_MAX_PAUSE_S)

    def _wait_for(self, future: Future[Any]) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        client = _admin_of(self).client
        deadline = seams.monotonic() + 2 * ANSWER_S  # the client itself gives up before that
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except NotYet:
                client.poll(0)  # calls error_cb
                refusal = self._refusal()
                if refusal is not None:
                    raise KafkaException(refusal) from None
                if seams.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            except KafkaException:
                client.poll(0)
                raise

    def _refusal(self) -> Any:
        """Return the reported error that says that the login was refused, or None."""
        for error in self._reported:
            if error.code() in _refusals(error):
                return error
        return None

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn errors of Kafka's clients into tidegate's. doing: the activity to name in them, "reading the marks"."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.explained(error.args[0], doing) from None

    def explained(self, error: Any, doing: str) -> TidegateError:
        """Return the error to raise for one of librdkafka. A refused login that it reported before may be the cause."""
        refusal = self._refusal()
        cause = refusal if refusal is not None else error
        text, code = self._login.masked(cause.str()), cause.code()
        if code in _refusals(cause):
            return Invalid(
                f"{doing}: Kafka at {self.servers} refuses the login: {text}",
                expected="a user, a password, a sasl.mechanism and a security.protocol that the cluster accepts; with "
                "TLS a certificate that ssl.ca.location confirms",
                help="correct the connection in the setting `connections`, or the one that the declaration names",
                reason="BAD_LOGIN",
            )
        if code in _not_allowed(error):
            return Invalid(
                f"{doing}: Kafka at {self.servers} does not allow this login to do it: {text}",
                expected=self._rights,
                help="ask the owner of the cluster to grant them, or log in as another user",
                reason="NOT_ALLOWED",
            )
        if code in (
            error._INVALID_ARG,
            error.INVALID_CONFIG,
            error.INVALID_REPLICATION_FACTOR,
            error.INVALID_PARTITIONS,
        ):
            return Invalid(
                f"{doing}: an option is wrong: {text}",
                expected="options of librdkafka, with values that it and the cluster accept",
                help="correct the declaration, or the connection that it names",
                reason="BAD_OPTION",
            )
        if code in (error.TOPIC_EXCEPTION, error.POLICY_VIOLATION):
            return Invalid(
                f"{doing}: Kafka at {self.servers} refuses it: {text}",
                expected="a name and settings that the cluster accepts; for Kafka, names that differ only in '.' and "
                "'_' are the same",
                help="change the name of the topic; the sink's argument marks names the topic of marks",
                reason="BAD_TOPIC",
            )
        return Unavailable(
            f"{doing}: Kafka at {self.servers} does not answer: {text}",
            expected="an answer from the cluster in time",
            help="check that the brokers run and can be reached from here; nothing is lost, and the next attempt "
            "tries again",
            reason="KAFKA_AWAY",
        )


@dataclass(frozen=True)
class _Admin:
    """An admin client, and the errors that it has reported since the last request began."""

    client: Any
    reported: list[Any]


_admins: dict[frozenset[tuple[str, str]], _Admin] = {}
_lock = threading.Lock()


def _admin_of(cluster: Cluster) -> _Admin:
    with _lock:
        admin = _admins.get(cluster.identity())
        if admin is None:
            reported: list[Any] = []
            admin = _Admin(cluster.new_admin(reported.append), reported)
            _admins[cluster.identity()] = admin
        return admin


def _forget_admins() -> None:
    """Forget the parent's clients after a fork, without freeing them.

    The child lacks their threads: it cannot use the clients, and freeing one would wait for its threads forever.
    """
    global _lock
    for admin in _admins.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(admin.client))
    _admins.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_admins)


def _is_temporary(error: Any) -> bool:
    """Return whether an error resolves itself once the brokers, or a new topic, have started."""
    temporary = (
        error.NOT_LEADER_FOR_PARTITION,
        error.LEADER_NOT_AVAILABLE,
        error.FENCED_LEADER_EPOCH,
        error.UNKNOWN_LEADER_EPOCH,
        error.COORDINATOR_LOAD_IN_PROGRESS,
        error.COORDINATOR_NOT_AVAILABLE,
        error.NOT_COORDINATOR,
    )
    return error.code() in temporary or (error.retriable() and error.code() != error.UNKNOWN_TOPIC_OR_PART)


def _refusals(error: Any) -> tuple[int, ...]:
    return (
        error._AUTHENTICATION,
        error.SASL_AUTHENTICATION_FAILED,
        error.UNSUPPORTED_SASL_MECHANISM,
        error._SSL,
    )


def _not_allowed(error: Any) -> tuple[int, ...]:
    return (
        error.TOPIC_AUTHORIZATION_FAILED,
        error.CLUSTER_AUTHORIZATION_FAILED,
        error.GROUP_AUTHORIZATION_FAILED,
        error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
