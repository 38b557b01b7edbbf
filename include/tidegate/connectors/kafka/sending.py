"""Sends staged records to a Kafka topic. Each part is one transaction, which includes the sink's mark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidegate import seams
from tidegate.connectors.kafka import Cluster
from tidegate.connectors.kafka.creating_topics import TopicInfo
from tidegate.connectors.kafka.marks import TopicMark
from tidegate.connectors.kafka.records import KEY, PARTITION, TIMESTAMP, VALUE, header_column
from tidegate.errors import Invalid, TidegateError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ProducerFenced", "Sender", "cut_into_parts", "try_transaction"]

Headers = list[tuple[str, bytes | None]]

_DEFAULTS: Final = {
    "compression.type": "lz4",
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
}
_FENCING_S: Final = 60.0
"""How long to wait until the brokers have ended a transaction that a dead publisher left open."""
_COMMIT_S: Final = 10.0
_NO_PARTITION: Final = -1
_NOW: Final = 0


class ProducerFenced(Exception):
    """Another publisher of the same sink has started. Nothing in this one's transaction counts."""


class Sender:
    """One publisher's producer. After `fence_earlier_publishers`, no earlier publisher of its sink can commit."""

    def __init__(self, cluster: Cluster, topic: TopicInfo, app_id: str, timeout_s: float) -> None:
        self._cluster, self._topic, self._app_id, self._timeout_s = cluster, topic, app_id, timeout_s
        self._failed: list[Any] = []
        self._open = False
        self._deadline = 0.0
        config = {
            "transactional.id": app_id,
            "transaction.timeout.ms": round(timeout_s * 1000),
            "partitioner": "murmur2_random",  # the partitioner of Java clients and Spark
            "message.max.bytes": topic.largest_batch,
            "delivery.report.only.error": True,
            "on_delivery": self._note_failure,
        }
        self._producer = cluster.producer(_DEFAULTS, config)

    @property
    def overdue(self) -> bool:
        """Whether the last transaction has exceeded its timeout."""
        return 0 < self._deadline < seams.monotonic()

    def close(self) -> None:
        """Free the producer. Abort an open transaction, so that consumers need not wait for its timeout.

        If the abort fails, the next publisher ends the transaction.
        """
        self._producer.purge()
        if self._open:
            self._abort()
        del self._producer

    def fence_earlier_publishers(self) -> None:
        """End the transactions of earlier publishers of this sink, and wait until they have ended."""
        with self._fenced(), self._transaction_allowed():
            self._producer.init_transactions(_FENCING_S)

    def begin(self) -> None:
        """Begin a transaction."""
        self._failed.clear()
        self._deadline = seams.monotonic() + self._timeout_s
        with self._fenced():
            self._producer.begin_transaction()
            self._open = True

    def send(self, batch: pa.RecordBatch, headers: Mapping[str, int], fixed: Headers) -> None:
        """Send records.

        headers: the number of the staged column of each header.
        fixed: headers that every record gets.
        """
        names = set(batch.schema.names)
        nulls: list[None] = [None] * batch.num_rows
        keys = batch.column(KEY).to_pylist() if KEY in names else nulls
        values = batch.column(VALUE).to_pylist() if VALUE in names else nulls
        options: dict[str, Iterable[Any]] = {}
        if PARTITION in names:
            options["partition"] = batch.column(PARTITION).fill_null(_NO_PARTITION).to_pylist()
        if TIMESTAMP in names:
            options["timestamp"] = batch.column(TIMESTAMP).fill_null(_NOW).to_pylist()
        if headers and VALUE in names:
            columns = [batch.column(header_column(number)).to_pylist() for number in headers.values()]
            options["headers"] = [[*zip(headers, row, strict=True), *fixed] for row in zip(*columns, strict=True)]
        elif fixed:
            options["headers"] = [fixed] * batch.num_rows
        produce, topic = self._producer.produce, self._topic.name
        with self._fenced():
            if options:
                option_rows = zip(*options.values(), strict=True)
                for key, value, option_row in zip(keys, values, option_rows, strict=True):
                    self._produce(topic, value, key, **dict(zip(options, option_row, strict=True)))
            else:
                # This loop runs once per row, so it calls `_produce` only if the producer's queue is full.
                for key, value in zip(keys, values, strict=True):
                    try:
                        produce(topic, value, key)
                    except BufferError:
                        self._produce(topic, value, key)
            self._producer.poll(0)

    def commit(self, marks_topic: str, mark: TopicMark) -> None:
        """Send the mark, and commit it together with everything that was sent since `begin`."""
        with self._fenced():
            self._produce(marks_topic, mark.encoded(), self._app_id.encode())
            while True:
                try:
                    self._producer.commit_transaction(_COMMIT_S)
                    self._open = False
                    return
                except _kafka_exception() as error:
                    if not self._is_retryable(error.args[0]):
                        raise

    def _is_retryable(self, error: Any) -> bool:
        """Return whether the same commit may still succeed: without an answer it may also have succeeded already."""
        if error.fatal() or error.txn_requires_abort():
            return False
        return (error.retriable() or error.code() == error._TIMED_OUT) and seams.monotonic() < self._deadline

    def _produce(self, topic: str, value: bytes | None, key: bytes | None, **options: Any) -> None:
        """Send a record once the producer's queue has room for it."""
        while True:
            try:
                self._producer.produce(topic, value, key, **options)
                return
            except BufferError:
                self._producer.poll(0.05)
                if seams.monotonic() > self._deadline:
                    raise Unavailable(
                        f"the topic {self._topic.name} did not accept its records within {self._timeout_s:g} s",
                        expected="the brokers to accept them within the sink's transaction_timeout",
                        help="check that the brokers run; for more time raise transaction_timeout, or lower "
                        "max_rows_per_transaction",
                        reason="KAFKA_AWAY",
                    ) from None

    def _note_failure(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(error)

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """Raise ProducerFenced if another publisher has fenced this one, and other errors as tidegate's."""
        try:
            yield
        except (_kafka_exception(), SystemError) as raised:
            # Python raises SystemError if the client reports a second error while it raises the first one.
            kafka_error = raised.__cause__ if isinstance(raised, SystemError) else raised
            if not isinstance(kafka_error, _kafka_exception()):
                raise
            error = kafka_error.args[0]
            if self._is_fence(error):
                self._open = False
                raise ProducerFenced from None
            raise self._explained(self._cause(error)) from None

    def _is_fence(self, error: Any) -> bool:
        if error.code() == error._FATAL:
            error = self._fatal_error(error)
        return error.code() in (error._FENCED, error.INVALID_PRODUCER_EPOCH, error.PRODUCER_FENCED)

    def _fatal_error(self, error: Any) -> Any:
        """Return the fatal error itself. `produce` only reports that there was one, but transactions report it."""
        try:
            self._producer.begin_transaction()
        except _kafka_exception() as raised:
            return raised.args[0]
        return error

    def _cause(self, error: Any) -> Any:
        """Return the delivery failure that caused an error, or the error itself."""
        with contextlib.suppress(_kafka_exception(), SystemError):
            self._producer.poll(0)
        for failure in self._failed:
            if failure.code() not in (failure._PURGE_QUEUE, failure._PURGE_INFLIGHT):
                return failure
        return error

    def _abort(self) -> None:
        """Abort the transaction. The client refuses this if the transaction may already be committing."""
        with contextlib.suppress(_kafka_exception()):
            self._producer.abort_transaction(_COMMIT_S)

    def _explained(self, error: Any) -> TidegateError:
        doing = f"publishing to the topic {self._topic.name}"
        if error.code() in (error.MSG_SIZE_TOO_LARGE, error.RECORD_LIST_TOO_LARGE):
            return Invalid(
                f"{doing}: a record is larger than the topic accepts: {error.str()}",
                expected=f"at most {self._topic.largest_record:,} bytes, by the topic's max.message.bytes and "
                "segment.bytes",
                help=f"raise max.message.bytes of the topic {self._topic.name}: nothing has been sent, and the next "
                "attempt tries again",
                reason="RECORD_TOO_LARGE",
            )
        if error.code() in (error.INVALID_TIMESTAMP, error.INVALID_RECORD):
            return Invalid(
                f"{doing}: the brokers refuse a record: {error.str()}",
                expected="records that the topic accepts: timestamps within its message.timestamp.before.max.ms and "
                "message.timestamp.after.max.ms, keys if it is compacted",
                help=f"change the settings of the topic {self._topic.name}, which have changed since the rows were "
                "staged: nothing has been sent, and the next attempt tries again",
                reason="RECORD_REFUSED",
            )
        return self._cluster.explained(error, doing)

    @contextlib.contextmanager
    def _transaction_allowed(self) -> Iterator[None]:
        """Raise Invalid if the cluster does not accept the transaction timeout."""
        try:
            yield
        except _kafka_exception() as raised:
            error = raised.args[0]
            if error.code() != error.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise Invalid(
                f"the cluster accepts no transactions of {self._timeout_s:g} s",
                expected="a transaction_timeout of at most the brokers' transaction.max.timeout.ms, which is 15 min "
                "unless it was changed",
                help="lower transaction_timeout of the sink",
                reason="BAD_TRANSACTION_TIMEOUT",
            ) from None


def try_transaction(cluster: Cluster, topic: TopicInfo, app_id: str, timeout_s: float) -> None:
    """Raise Invalid if the cluster does not allow this sink to use transactions.

    Do not call this while the sink may be publishing: it fences the publisher.
    """
    with cluster.errors(f"trying a transaction for the topic {topic.name}"):
        sender = Sender(cluster, topic, app_id, timeout_s)
        try:
            sender.fence_earlier_publishers()
        finally:
            sender.close()


def cut_into_parts(
    batches: Iterable[pa.RecordBatch], skip_rows: int, max_rows: int
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield the rows after the first `skip_rows`, each batch with whether it ends a part of `max_rows` rows."""
    skip, remaining = skip_rows, max_rows
    for batch in batches:
        start = min(skip, batch.num_rows)
        skip -= start
        while start < batch.num_rows:
            piece = batch.slice(start, min(remaining, batch.num_rows - start))
            start += piece.num_rows
            remaining -= piece.num_rows
            ends_part = remaining == 0
            if ends_part:
                remaining = max_rows
            yield piece, ends_part


def _kafka_exception() -> type[Exception]:
    from confluent_kafka import KafkaException

    exception: type[Exception] = KafkaException
    return exception
