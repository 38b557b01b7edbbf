"""A sink that sends rows to a Kafka topic, each exactly once for readers that read committed.

Spark stages the records. After the decision one process sends them in a transaction, together with a mark in a topic of
marks. Whoever publishes first fences all who began before (that is what a transactional id is for), and only then reads
the mark: nobody else can change it any more, so what it says holds until the transaction is committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from tidegate import seams
from tidegate.config.keys import seconds_in
from tidegate.connectors.kafka import SERVERS, Cluster, KafkaLogin
from tidegate.connectors.kafka.creating_topics import FoundTopic, create_topic, find_topic, wait_for_transactions
from tidegate.connectors.kafka.marks import NO_CHECKPOINT, Marks, TopicMark, create_marks, mark_topic_problem
from tidegate.connectors.kafka.records import RecordForm, ValueFormat
from tidegate.connectors.kafka.sending import Headers, ProducerFenced, Sender, cut_into_parts, try_transaction
from tidegate.connectors.kafka.unsendable import refuse_ambiguous_keys, refuse_unsendable
from tidegate.connectors.sink import Prepared, SinkContext, Staging
from tidegate.connectors.transactional import StagedPart, StagedRows, TransactionalSink
from tidegate.errors import Invalid, Unavailable
from tidegate.records import typed
from tidegate.records.airflow_login import is_airflow_login
from tidegate.records.masking import has_login
from tidegate.records.names import listed
from tidegate.records.place import Place
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["KafkaTopic"]

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_TOPIC_LENGTH: Final = 249
_RIGHTS: Final = (
    "the rights to describe and write the topic and the topic of marks, to read the latter, to read the group "
    "tidegate, and to describe and write the transactional id: docs/guides/kafka-sink.md lists them"
)
_MARKS_ID: Final = "marks_id"
"""In the notes of staged rows: the id of the topic of marks at that time."""
_MAX_NUMBER: Final = 20
_AROUND_HEADER: Final = 10
"""Bytes of the lengths of its name and its value."""
_PATIENCE_S: Final = 10.0
_SLOWEST_ROWS_PER_S: Final = 50_000


class KafkaTopic(TransactionalSink):
    """Send the rows of each checkpoint to a Kafka topic.

    KafkaTopic("orders.out", servers="broker:9092", key="id")

    Readers must set isolation.level=read_committed: to others, rows of attempts that failed are visible, too.

    topic: the topic's name.
    servers: the brokers to ask first, as "host:port,host:port".
    connection: the name of a connection in the setting `connections`, with options of librdkafka (bootstrap.servers,
        security.protocol, sasl.username, linger.ms …). What transactions need cannot be changed by it.
    key: a column whose text is the record's key; or a list of columns, which become a JSON object. Records with one key
        are in one partition, the one that Java's clients choose, too.
    value: "json": a JSON object of all columns; text that is not valid UTF-8 is refused. "string" or "bytes": the
        column `value`, as it is; null makes the record a tombstone.
    omit: columns that "json" leaves out, such as those of headers.
    headers: headers with the text or bytes of a column: their names, or a mapping from header to column.
    checkpoint_header: the name of a header with the number of the checkpoint.
    order_by: columns in whose order the rows of a checkpoint are sent. Without it, their order is any, though every
        publisher sends them in the same one.
    partition: a column with the number of the partition. Null: as the key says.
    timestamp: a column with the record's time. Null, or without the argument: the time of sending.
    partitions, replicas, topic_config: if there is no such topic, it is made in this form. Without `partitions`, a
        missing topic is an error.
    marks: the topic that keeps this sink's mark. It is made if missing; by default it is
        <topic>.tidegate.<pipeline>.<sink>.
    transaction_timeout: how long a transaction may take. As long may readers have to wait for one whose publisher died,
        unless another one comes before.
    max_rows_per_transaction: a checkpoint with more rows is sent in several transactions, one after the other, so that
        readers see a part of it before the whole.
    take_over: send to a topic for which an earlier pipeline of this name has left marks.

    With a key it also takes a stream that replaces rows, such as an aggregate: each new row is a record, and a key that
    is no longer there gets a tombstone, so that a compacted topic holds the table.
    """

    kind: ClassVar[str] = "kafka"
    counts_input_rows: ClassVar[bool] = True

    def __init__(
        self,
        topic: str,
        *,
        servers: str | None = None,
        connection: str | None = None,
        key: str | Sequence[str] = (),
        value: ValueFormat = "json",
        omit: Sequence[str] = (),
        headers: Mapping[str, str] | Sequence[str] = (),
        checkpoint_header: str | None = None,
        order_by: Sequence[str] = (),
        partition: str | None = None,
        timestamp: str | None = None,
        partitions: int | None = None,
        replicas: int | None = None,
        topic_config: Mapping[str, str] | None = None,
        marks: str | None = None,
        transaction_timeout: str | float = "5 min",
        max_rows_per_transaction: int = 20_000_000,
        take_over: bool = False,
    ) -> None:
        self.topic = topic
        self.servers = servers
        self.connection = connection
        self.form = RecordForm(
            key=tuple(listed(key)),
            key_as_text=isinstance(key, str),
            value=value,
            omit=tuple(listed(omit)),
            headers=dict(headers) if isinstance(headers, Mapping) else {name: name for name in listed(headers)},
            partition=partition,
            timestamp=timestamp,
        )
        self.checkpoint_header = checkpoint_header
        self.order_by = tuple(listed(order_by))
        self.partitions = partitions
        self.replicas = replicas
        self.topic_config = dict(topic_config or {})
        self.marks = marks
        self.transaction_timeout = transaction_timeout
        self.max_rows_per_transaction = max_rows_per_transaction
        self.take_over = take_over
        self.upserts = self.form.key

    # --- the declaration ------------------------------------------------------------------------------------

    def target(self, place: Place) -> str:
        servers = self.servers
        if servers is None and is_airflow_login(self.connection):  # nobody looks it up to parse a DAG
            return f"kafka:{self.connection}/{self.topic}"
        if servers is None and self.connection is not None:
            servers = place.connection(self.connection).get(SERVERS)
        return f"kafka:{','.join(sorted((servers or '').split(',')))}/{self.topic}"

    def shared_uri(self, place: Place) -> str:
        """See Sink."""
        return KafkaLogin.of(self.servers, self.connection, place).shared_uri(self.topic)

    def describe(self) -> Json:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "servers": self.servers,
            "connection": self.connection,
            "key": list(self.form.key) if not self.form.key_as_text else self.form.key[0],
            "value": self.form.value,
            "omit": list(self.form.omit),
            "headers": dict(self.form.headers),
            "checkpoint_header": self.checkpoint_header,
            "order_by": list(self.order_by),
            "partition": self.form.partition,
            "timestamp": self.form.timestamp,
            "marks": self.marks,
        }

    def problems(self) -> list[str]:
        form = self.form
        problems = [
            f"{argument} {name!r} is no name of a topic: write letters, digits, '.', '_' and '-', 249 at most"
            for argument, name in (("topic", self.topic), ("marks", self.marks))
            if name is not None and not _is_topic(name)
        ]
        if self.servers is None and self.connection is None:
            problems.append('it does not say where Kafka is: write servers="host:9092", or connection="…"')
        if self.marks == self.topic:
            problems.append("marks is the topic itself: marks need a compacted topic of their own")
        if form.value not in ("json", "string", "bytes"):
            problems.append(f'value is {form.value!r}: write "json", "string" or "bytes"')
        elif form.value != "json" and form.omit:
            problems.append(f'omit is for value="json": with "{form.value}" the column `value` is the value')
        for argument, text in (("servers", self.servers), ("connection", self.connection)):
            if text is not None and (not isinstance(text, str) or not text.strip()):
                problems.append(f"{argument} is {text!r}; it must be text")
            elif text is not None and has_login(text):
                problems.append(f"{argument} contains a login; put it into a table of the setting `connections`")
        for argument, names in (("key", form.key), ("order_by", self.order_by), ("omit", form.omit)):
            if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
                problems.append(f"{argument} is {list(names)!r}: name each column once")
        numbers = [("partitions", self.partitions), ("replicas", self.replicas)]
        for argument, number in [*numbers, ("max_rows_per_transaction", self.max_rows_per_transaction)]:
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                problems.append(f"{argument} is {number!r}: write a whole number from 1")
        if self.partitions is None and (self.topic_config or self.replicas):
            problems.append("replicas and topic_config are for a topic that is made: say with how many partitions")
        try:
            if not 1 <= seconds_in(self.transaction_timeout) <= 86_400:
                problems.append(f"transaction_timeout is {self.transaction_timeout!r}: write 1 s to 1 day")
        except ValueError:
            problems.append(f'transaction_timeout is {self.transaction_timeout!r}: write a duration such as "5 min"')
        return problems

    def update_problems(self, stream: str) -> list[str]:
        if not self.form.key:
            return [f"it has no key, but {stream} replaces rows that it returned before: name the key's columns"]
        unfit = {"order_by": self.order_by, "partition": self.form.partition}
        return [
            f"{name} cannot be used with {stream}, which replaces rows: of a removed row only the key is known"
            for name, given in unfit.items()
            if given
        ]

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        names = {field["name"] for field in schema["fields"]}
        unknown = [name for name in self.order_by if name not in names]
        return self.form.problems(schema) + [f"order_by column {name!r} is not in the output" for name in unknown]

    def rows_stay_reason(self) -> str:
        return f"the topic {self.topic} keeps what it was given, and readers may have read it"

    # --- before a checkpoint is planned ---------------------------------------------------------------------

    def check(self, context: SinkContext) -> None:
        cluster = self._cluster(context)
        topic = self._topics(cluster, context)
        self._refuse_other_topic(self._mark(cluster, context, settled=False), topic, context)

    def _topics(self, cluster: Cluster, context: SinkContext) -> FoundTopic:
        """Return the topic. Both it and the one of marks can be used after this, and are made if they should be."""
        topic = find_topic(cluster, self.topic)
        if topic is None and self.partitions is not None:
            create_topic(cluster, self.topic, self.partitions, self.replicas, self.topic_config)
            topic = find_topic(cluster, self.topic)
        topic = self._usable(topic, context)
        marks = find_topic(cluster, self._marks_topic(context))
        if marks is None:
            try_transaction(cluster, topic, context.app_id, self._timeout_s)
            create_marks(cluster, self._marks_topic(context), self.replicas)
        elif problem := mark_topic_problem(marks):
            raise Invalid(
                f"sink {context.sink!r}: the topic {marks.name} cannot keep its mark: {problem}",
                expected="a topic with one partition and cleanup.policy = compact, that the login may write to",
                help="correct the topic, or name another one by marks=…, which is made if it does not exist",
                reason="BAD_MARKS",
            )
        return topic

    def last(self, context: SinkContext) -> int | None:
        mark = self._mark(self._cluster(context), context, settled=False)
        return mark.last if mark is not None else None

    def _usable(self, topic: FoundTopic | None, context: SinkContext) -> FoundTopic:
        """Return the topic. Raise Invalid if this sink cannot send to it."""
        if topic is None:
            raise Invalid(
                f"sink {context.sink!r}: there is no topic {self.topic} at {self.target(context.place)}",
                expected="a topic that exists, or a declaration that says how to make it",
                help="correct the name, create the topic, or add partitions=… to the sink",
                reason="NO_TOPIC",
            )
        if not topic.may_write:
            raise Invalid(
                f"sink {context.sink!r}: the login may not write to the topic {self.topic}",
                expected="the right to write to it",
                help="let the cluster's owner grant it",
                reason="NOT_ALLOWED",
            )
        if topic.is_compacted and not self.form.key:
            raise Invalid(
                f"sink {context.sink!r}: the topic {self.topic} is compacted, and the sink has no key",
                expected="a key for each record of a compacted topic",
                help="add key=… to the sink, or take compact out of the topic's cleanup.policy",
                reason="NO_KEY",
            )
        return topic

    # --- staging --------------------------------------------------------------------------------------------

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        return self.form.staged(frame.orderBy(*self.order_by) if self.order_by else frame)

    def removed_form(self, removed: DataFrame, staged: DataFrame, context: SinkContext) -> DataFrame:
        return self.form.removed(removed, staged)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._checked(super().prepare(frame, context, staging), context)

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        prepared = self._checked(super().prepare_with_retractions(frame, retractions, context, staging), context)
        if prepared.committable is not None:
            part = typed.convert(prepared.committable, StagedPart)
            refuse_ambiguous_keys(part, self.staging_folder(context), context.sink)
        return prepared

    def _checked(self, prepared: Prepared, context: SinkContext) -> Prepared:
        if prepared.committable is None:
            return prepared
        cluster = self._cluster(context)
        topic, marks = self._usable(find_topic(cluster, self.topic), context), self._find_marks(cluster, context)
        part = typed.convert(prepared.committable, StagedPart)
        refuse_unsendable(part, self.staging_folder(context), topic, context.sink, self._size_of_headers())
        part = msgspec.structs.replace(part, notes={_MARKS_ID: marks.id})
        return replace(prepared, committable=msgspec.to_builtins(part))

    # --- after the decision ---------------------------------------------------------------------------------

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        cluster = self._cluster(context)
        topic = self._usable(find_topic(cluster, self.topic), context)
        with cluster.errors(f"publishing to the topic {self.topic}"):
            sender = Sender(cluster, topic, context.app_id, self._timeout_s)
            try:
                return self._send(rows, sender, topic, context)
            except ProducerFenced:
                if not self._wait_for_other_publisher(rows, context) and sender.overdue:
                    raise self._too_slow(rows) from None
                return False
            finally:
                sender.close()

    def _send(self, rows: StagedRows, sender: Sender, topic: FoundTopic, context: SinkContext) -> bool:
        sender.fence_earlier_publishers()  # before the mark is read: from here on nobody else can change it
        cluster = self._cluster(context)
        before = self._mark(cluster, context, settled=True)
        if (before.last if before is not None else None) != rows.after:
            return False
        if before is None:
            self._refuse_lost_marks(rows, cluster, context)
        self._refuse_other_topic(before, topic, context)
        wait_for_transactions(cluster, topic)
        mark = _first_mark(topic, rows.checkpoint, rows.after, rows.attempt)
        if before is not None and before.checkpoint == rows.checkpoint:
            mark = before  # an earlier publisher has sent a part of it
        marks, total, fixed = self._marks_topic(context), rows.count + rows.removed_count, self._fixed_headers(rows)
        numbers = {name: number for number, name in enumerate(self.form.headers)}
        sent, begun = mark.records, False
        for batch, ends in cut_into_parts(_in_order(rows), sent, self.max_rows_per_transaction):
            if not begun:
                sender.begin()
            sender.send(batch, numbers, fixed)
            sent, begun = sent + batch.num_rows, True
            if ends and sent < total:
                sender.commit(marks, msgspec.structs.replace(mark, records=sent))
                begun = False
        if not begun:
            sender.begin()
        sender.commit(marks, msgspec.structs.replace(mark, records=sent, complete=True))
        self._mark(cluster, context, settled=True)  # until it can be read the staged files are needed
        return True

    def set_mark(self, last: int | None, context: SinkContext) -> None:
        cluster = self._cluster(context)
        topic = self._topics(cluster, context)
        mark = _first_mark(topic, last or NO_CHECKPOINT, None, "by hand", complete=True)
        with cluster.errors(f"putting back the mark of the topic {self.topic}"):
            sender = Sender(cluster, topic, context.app_id, self._timeout_s)
            try:
                sender.fence_earlier_publishers()
                sender.begin()
                sender.commit(self._marks_topic(context), mark)
            except ProducerFenced:
                raise Unavailable(
                    f"somebody published to the topic {self.topic} at the same time: its mark was not changed",
                    help="look at the mark, then do it again if it is still wrong",
                    reason="OVERTAKEN",
                ) from None
            finally:
                sender.close()
            self._mark(cluster, context, settled=True)

    def _wait_for_other_publisher(self, rows: StagedRows, context: SinkContext) -> bool:
        """Wait a while for the publisher that has fenced this one. If both came back at once, they might fence each
        other without end."""
        deadline = seams.monotonic() + _PATIENCE_S + rows.count / _SLOWEST_ROWS_PER_S
        while seams.monotonic() < deadline:
            last = self.last(context)
            if last is not None and last >= rows.checkpoint:
                return True
            seams.sleep(0.2)
        return False

    def _too_slow(self, rows: StagedRows) -> Unavailable:
        return Unavailable(
            f"publishing to the topic {self.topic}: a transaction took longer than the sink's transaction_timeout of "
            f"{self._timeout_s:g} s, and the brokers ended it; checkpoint {rows.checkpoint} has {rows.count:,} rows",
            expected="each transaction to be sent and committed within that time",
            help="raise transaction_timeout, or lower max_rows_per_transaction: nothing of that transaction counts, "
            "and the next attempt tries again",
            reason="TRANSACTION_TIMEOUT",
        )

    # --- its topics -----------------------------------------------------------------------------------------

    @property
    def _timeout_s(self) -> float:
        return seconds_in(self.transaction_timeout)

    def _cluster(self, context: SinkContext) -> Cluster:
        return Cluster(KafkaLogin.of(self.servers, self.connection, context.place), _RIGHTS)

    def _marks_topic(self, context: SinkContext) -> str:
        name = self.marks or f"{self.topic}.tidegate.{context.pipeline}.{context.sink}"
        if _is_topic(name):
            return name
        raise Invalid(
            f"sink {context.sink!r}: the name of its topic of marks would be too long: {name}",
            expected=f"{_MAX_TOPIC_LENGTH} characters at most",
            help="give it a shorter name with marks=…",
            reason="BAD_MARKS",
        )

    def _mark(self, cluster: Cluster, context: SinkContext, *, settled: bool) -> TopicMark | None:
        """Return the last mark of this sink. Raise Invalid if there is none, but one of an earlier pipeline."""
        name = self._marks_topic(context)
        own, found = Marks(cluster, name).read(context.app_id, settled=settled)
        others = {app_id for app_id in found if app_id.endswith(f"/{context.sink}")}  # sinks may share a topic of marks
        if own is None and others and not self.take_over:
            raise Invalid(
                f"sink {context.sink!r}: the topic {name} has marks of another pipeline: {', '.join(sorted(others))}; "
                f"this one is {context.app_id}",
                expected="the pipeline that has sent to this topic before, with its checkpoints",
                help="was the pipeline's root wiped or moved? Point it to the old root, use other topics, or declare "
                "the sink with take_over=True: the old one's records stay, and this one starts from the beginning",
                reason="OTHER_OWNER",
            )
        return own

    def _size_of_headers(self) -> int:
        """Return the bytes that headers of a record may have beyond what is staged of them."""
        around = _AROUND_HEADER * len(self.form.headers)
        if self.checkpoint_header is None:
            return around
        return around + _AROUND_HEADER + len(self.checkpoint_header.encode()) + _MAX_NUMBER

    def _fixed_headers(self, rows: StagedRows) -> Headers:
        name = self.checkpoint_header
        return [(name, str(rows.checkpoint).encode())] if name is not None else []

    def _refuse_other_topic(self, mark: TopicMark | None, topic: FoundTopic, context: SinkContext) -> None:
        if mark is None or (mark.cluster, mark.topic_id) == (topic.cluster, topic.id):
            return
        raise Invalid(
            f"sink {context.sink!r}: the topic {self.topic} is not the one that has the checkpoints up to {mark.last}: "
            f"it was topic {mark.topic_id} of cluster {mark.cluster}, and is {topic.id} of {topic.cluster} now",
            expected="the same topic: another one lacks the records of earlier checkpoints",
            help="if it was made again on purpose, give the sink another name, or move its mark: `tidegate mark "
            "--help` tells how",
            reason="TOPIC_RECREATED",
        )

    def _refuse_lost_marks(self, rows: StagedRows, cluster: Cluster, context: SinkContext) -> None:
        """Raise Invalid if there is no mark because the topic of marks is not the one that was there when the rows were
        staged: whether they have been sent is not known then."""
        found = self._find_marks(cluster, context)
        if any(part.notes.get(_MARKS_ID, found.id) != found.id for part in rows.parts):
            raise self._missing_marks_error(context, "was deleted and made again")

    def _find_marks(self, cluster: Cluster, context: SinkContext) -> FoundTopic:
        found = find_topic(cluster, self._marks_topic(context))
        if found is None:
            raise self._missing_marks_error(context, "was deleted")
        return found

    def _missing_marks_error(self, context: SinkContext, what: str) -> Invalid:
        return Invalid(
            f"sink {context.sink!r}: the topic {self._marks_topic(context)}, which says what the topic {self.topic} "
            f"has, {what}",
            expected="the topic of marks that was made before the first checkpoint",
            help="look into the topic, then put the mark back: `tidegate mark --help` tells how",
            reason="MARKS_GONE",
        )


def _in_order(rows: StagedRows) -> Iterator[pa.RecordBatch]:
    """Yield the records of one committable after the other: a later one may remove a key that an earlier one adds."""
    for part in rows.split_by_part():
        yield from part.removed_batches()
        yield from part.batches()


def _first_mark(
    topic: FoundTopic, checkpoint: int, after: int | None, attempt: str, *, complete: bool = False
) -> TopicMark:
    return TopicMark(
        checkpoint=checkpoint,
        after=after,
        records=0,
        complete=complete,
        topic_id=topic.id,
        cluster=topic.cluster,
        attempt=attempt,
    )


def _is_topic(name: object) -> bool:
    return isinstance(name, str) and name not in (".", "..") and _TOPIC.fullmatch(name) is not None
