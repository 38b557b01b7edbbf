"""One Kafka cluster: its clients, its answers, and its errors as tidegate's own.

A process has one client for questions about topics for each login, and keeps it. Nobody else may free it: an error that
is kept somewhere may be the last one that knows of a client, and whichever thread collects garbage would then free it.
In a thread of that client itself this ends the process. Producers and consumers have no such threads of Python.
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
"""How long one question may take before the cluster counts as away."""

_LOOK_S: Final = 0.2
"""How often it is looked whether a login was refused, or asked again."""
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
    """How to reach a Kafka cluster, and who logs in."""

    def __init__(self, login: KafkaLogin, rights: str) -> None:
        """Raise Invalid if the client's library is missing. rights: what the login must be allowed to do, for
        errors."""
        import_kafka()
        self._login = login
        self._rights = rights
        self._reported: list[Any] = []

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
        """Wait for the answer to one question: see `answers`."""
        return self.answers(lambda: {"": ask()})[""]

    def answers(
        self,
        ask: Callable[[], Mapping[Key, Future[Any]]],
        *,
        exists: bool = False,
        error_in: Callable[[Any], Any] = lambda answer: None,
    ) -> dict[Key, Any]:
        """Wait for the answers to all questions. Ask again if brokers are only changing places, and do not wait if they
        refuse the login. exists: the topic is there, so that a missing leader will come. error_in: the error that an
        answer holds in place of being one; None: it holds none."""
        from confluent_kafka import KafkaException

        pause, deadline = _LOOK_S, seams.monotonic() + ANSWER_S
        while True:
            try:
                said = {key: self._answered(future) for key, future in ask().items()}
                held = next((error for error in map(error_in, said.values()) if error is not None), None)
                if held is None:
                    return said
                raise KafkaException(held)
            except KafkaException as error:
                why = error.args[0]
                passes = _passes(why) or (exists and why.code() == why._NOENT)
                if not passes or seams.monotonic() > deadline:
                    raise
            seams.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)
            # Of a leader that it has already looked up the client would ask the same again for minutes. All topics are
            # looked up: brokers may make one that is asked for by its name.
            with suppress(KafkaException):
                self.admin().list_topics(timeout=_MAX_PAUSE_S)

    def _answered(self, future: Future[Any]) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        client = _admin_of(self).client
        deadline = seams.monotonic() + 2 * ANSWER_S  # the client itself gives up before that
        while True:
            try:
                return future.result(timeout=_LOOK_S)
            except NotYet:
                client.poll(0)  # reports errors
                refusal = self._refusal()
                if refusal is not None:
                    raise KafkaException(refusal) from None
                if seams.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            except KafkaException:
                client.poll(0)
                raise

    def _refusal(self) -> Any:
        """Return what was reported of a login that is refused. None: nothing."""
        return next((each for each in self._reported if each.code() in _refusals(each)), None)

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
        cause = refusal if refusal is not None else error
        said, code = self._login.masked(cause.str()), cause.code()
        if code in _refusals(cause):
            return Invalid(
                f"{doing}: Kafka at {self.servers} refuses the login: {said}",
                expected="a user, a password, a sasl.mechanism and a security.protocol that the cluster accepts; with "
                "TLS a certificate that ssl.ca.location confirms",
                help="correct the connection in the setting `connections`, or the one that the declaration names",
                reason="BAD_LOGIN",
            )
        if code in _not_allowed(error):
            return Invalid(
                f"{doing}: Kafka at {self.servers} does not allow this login to do it: {said}",
                expected=self._rights,
                help="let the cluster's owner grant them, or log in as somebody else",
                reason="NOT_ALLOWED",
            )
        if code in (
            error._INVALID_ARG,
            error.INVALID_CONFIG,
            error.INVALID_REPLICATION_FACTOR,
            error.INVALID_PARTITIONS,
        ):
            return Invalid(
                f"{doing}: an option is wrong: {said}",
                expected="options of librdkafka, with values that it and the cluster accept",
                help="correct the declaration, or the connection that it names",
                reason="BAD_OPTION",
            )
        if code in (error.TOPIC_EXCEPTION, error.POLICY_VIOLATION):
            return Invalid(
                f"{doing}: Kafka at {self.servers} refuses it: {said}",
                expected="a name and settings that the cluster accepts; names that differ only in '.' and '_' are the "
                "same to it",
                help="name the topic otherwise, or the topic of marks by the sink's argument marks",
                reason="BAD_TOPIC",
            )
        return Unavailable(
            f"{doing}: Kafka at {self.servers} does not answer: {said}",
            expected="an answer of the cluster in time",
            help="look whether the brokers run and can be reached from here; nothing is lost, and the next attempt "
            "tries again",
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
        error.COORDINATOR_LOAD_IN_PROGRESS,
        error.COORDINATOR_NOT_AVAILABLE,
        error.NOT_COORDINATOR,
    )
    return error.code() in passing or (error.retriable() and error.code() != error.UNKNOWN_TOPIC_OR_PART)


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
