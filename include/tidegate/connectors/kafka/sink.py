"""A sink that sends each row to a Kafka topic exactly once, for readers with isolation.level=read_committed.

Spark stages the records. After the decision one process sends them in a transaction, together with a mark in a topic of
marks. A publisher first fences all earlier publishers of the sink, which is the purpose of a transactional id, and only
then reads the mark. No other process can change it any more, so it stays valid until the transaction is committed.
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
from tidegate.connectors.kafka.avro.encoding import head_of
from tidegate.connectors.kafka.avro.registry import Registry, import_fastavro
from tidegate.connectors.kafka.creating_topics import TopicInfo, create_topic, find_topic, wait_for_transactions
from tidegate.connectors.kafka.marks import NO_CHECKPOINT, Marks, TopicMark, create_marks, mark_topic_problem
from tidegate.connectors.kafka.records import RecordForm, ValueFormat
from tidegate.connectors.kafka.sending import Headers, ProducerFenced, Sender, cut_into_parts, try_transaction
from tidegate.connectors.kafka.unsendable import declared_by, record_rules, refuse_ambiguous_keys, refuse_unsendable
from tidegate.connectors.row_rules import DeclaredRules
from tidegate.connectors.sink import Head, Prepared, SinkContext, Staging
from tidegate.connectors.transactional import StagedPart, StagedRows, TransactionalSink
from tidegate.delta.dividing import as_declared
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
    from pyspark.sql.types import StructType

__all__ = ["KafkaTopic"]

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MAX_TOPIC_LENGTH: Final = 249
_RIGHTS: Final = (
    "the rights to describe and write the topic and the topic of marks, to read the latter, to read the group "
    "tidegate, and to describe and write the transactional id: docs/guides/kafka-sink.md lists them"
)
_MARKS_ID: Final = "marks_id"
"""The key in the notes of staged rows for the id that the topic of marks had when they were staged."""
_MAX_NUMBER_BYTES: Final = 20
"""The most digits that a checkpoint's number has in its header."""
_HEADER_OVERHEAD: Final = 10
"""The bytes that encode the lengths of a header's name and value."""
_PATIENCE_S: Final = 10.0
"""How long to wait for another publisher, in addition to the time that its rows need."""
_SLOWEST_ROWS_PER_S: Final = 50_000


class KafkaTopic(TransactionalSink):
    """Send the rows of each checkpoint to a Kafka topic.

        KafkaTopic("orders.out", servers="broker:9092", key="id")

    Consumers must set isolation.level=read_committed. Others also see rows of failed attempts.

    With a key, the sink accepts streams with retractions, such as an aggregate. It sends each new row as a record, and
    for each key that no longer exists a tombstone, so that a compacted topic holds the current table.

    topic: the topic's name.
    servers: the bootstrap servers, such as "one:9092,two:9092". The default is the connection's option
        `bootstrap.servers`.
    connection: a table of the setting `connections` with options of librdkafka, such as `sasl.username` or `linger.ms`,
        or "airflow:ID" for a connection of Airflow. It cannot override the options that transactions depend on.
    key: the column whose text is the record's key, or a list of columns, which become a JSON object. All records of a
        key are in the same partition, which is the one that Java clients choose.
    value: the format of the records' values. "json": an object with all columns; text that is not valid UTF-8 is
        refused. "avro": a record with all columns, as Confluent's serializers write it, whose schema is in a registry.
        "string" or "bytes": the column `value` as it is. A null value makes the record a tombstone.
    registry: the URL of the schema registry, for Avro. A job registers the schema of its rows before it stages them. If
        the registry does not take it, by the compatibility of its subject, the job fails, and nothing is sent. To log
        in there, set the connection's option `schema.registry.basic.auth.user.info`.
    subject: the subject of the schema, by default `<topic>-value`.
    omit: columns that "json" and "avro" leave out, such as those that become headers.
    headers: the text or bytes columns to send as headers: a list of names, or a mapping from header to column.
    checkpoint_header: the name of a header that holds the number of the checkpoint.
    order_by: columns by which the rows of a checkpoint are sorted before they are sent. By default their order is
        unspecified, but every attempt to publish sends them in the same order.
    partition: a column with the partition number. If it is null, the key decides.
    timestamp: a column with the record's timestamp. By default, or if it is null, the timestamp is the time of sending.
    partitions, replicas, topic_config: how to create the topic if it does not exist. Without `partitions`, a missing
        topic is an error.
    marks: the topic that stores the sink's mark, by default `<topic>.tidegate.<pipeline>.<sink>`. It is created if it
        does not exist.
    transaction_timeout: how long a transaction may take. If a publisher dies, consumers wait this long for the end of
        its transaction, unless another publisher starts earlier.
    max_rows_per_transaction: a checkpoint with more rows is sent in several transactions, one after another, so
        consumers may see a part of it before the rest.
    take_over: send to a topic even if it has marks of an earlier pipeline with the same name.
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
        registry: str | None = None,
        subject: str | None = None,
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
            record_name=topic if isinstance(topic, str) else "row",
        )
        self.registry = registry
        self.subject = subject
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
        if servers is None and is_airflow_login(self.connection):  # no look-up while a DAG is parsed
            return f"kafka:{self.connection}/{self.topic}"
        if servers is None and self.connection is not None:
            servers = place.connection(self.connection).get(SERVERS)
        return f"kafka:{','.join(sorted((servers or '').split(',')))}/{self.topic}"

    def shared_uri(self, place: Place) -> str:
        """See Sink."""
        return KafkaLogin.resolve(self.servers, self.connection, place).shared_uri(self.topic)

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
            **({"registry": self.registry, "subject": self.subject} if self.registry is not None else {}),
        }

    def problems(self) -> list[str]:
        form = self.form
        problems = []
        for argument, name in (("topic", self.topic), ("marks", self.marks)):
            if name is not None and not _is_topic(name):
                problems.append(
                    f"{argument} {name!r} is not a topic name: write at most 249 letters, digits, '.', '_' and '-'"
                )
        if self.servers is None and self.connection is None:
            problems.append('it does not name the brokers: write servers="host:9092" or connection="…"')
        if self.marks == self.topic:
            problems.append("marks names the topic itself: the marks need a separate, compacted topic")
        if form.value not in ("json", "avro", "string", "bytes"):
            problems.append(f'value is {form.value!r}: write "json", "avro", "string" or "bytes"')
        elif not form.has_columns and form.omit:
            problems.append(f'omit is for value="json" and "avro": with "{form.value}" the column `value` is the value')
        if form.value == "avro" and self.registry is None:
            problems.append("registry is missing: consumers of Avro look for its schema in a schema registry")
        elif form.value != "avro" and (self.registry is not None or self.subject is not None):
            problems.append('registry and subject are for value="avro"')
        texts = {"servers": self.servers, "connection": self.connection}
        texts |= {"registry": self.registry, "subject": self.subject}
        for argument, text in texts.items():
            if text is not None and (not isinstance(text, str) or not text.strip()):
                problems.append(f"{argument} is {text!r}; it must be text")
            elif text is not None and has_login(text):
                problems.append(f"{argument} contains a login; put it into a table of the setting `connections`")
        for argument, names in (("key", form.key), ("order_by", self.order_by), ("omit", form.omit)):
            if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
                problems.append(f"{argument} is {list(names)!r}: name each column once")
        numbers = {
            "partitions": self.partitions,
            "replicas": self.replicas,
            "max_rows_per_transaction": self.max_rows_per_transaction,
        }
        for argument, number in numbers.items():
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                problems.append(f"{argument} is {number!r}: write a whole number from 1")
        if self.partitions is None and (self.topic_config or self.replicas):
            problems.append("replicas and topic_config are for creating the topic: add partitions=…")
        try:
            if not 1 <= seconds_in(self.transaction_timeout) <= 86_400:
                problems.append(f"transaction_timeout is {self.transaction_timeout!r}: write 1 s to 1 day")
        except ValueError:
            problems.append(f'transaction_timeout is {self.transaction_timeout!r}: write a duration such as "5 min"')
        return problems

    def update_problems(self, stream: str) -> list[str]:
        if not self.form.key:
            return [f"it has no key, but {stream} replaces rows that it returned before: name the key's columns"]
        problems = []
        for argument, value in (("order_by", self.order_by), ("partition", self.form.partition)):
            if value:
                problems.append(
                    f"{argument} cannot be used with {stream}, which replaces rows: of a removed row only the key is "
                    "known"
                )
        return problems

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        names = {field["name"] for field in schema["fields"]}
        problems = self.form.problems(schema)
        for name in self.order_by:
            if name not in names:
                problems.append(f"order_by column {name!r} is not in the output")
        return problems

    def rows_stay_reason(self) -> str:
        return f"records cannot be removed from the topic {self.topic}, and consumers may have read them"

    # --- before a checkpoint is planned ---------------------------------------------------------------------

    def check(self, context: SinkContext) -> None:
        cluster = self._cluster(context)
        topic = self._ensure_topics(cluster, context)
        self._refuse_replaced_topic(self._mark(cluster, context, settled=False), topic, context)

    def _ensure_topics(self, cluster: Cluster, context: SinkContext) -> TopicInfo:
        """Return the topic. Check it and the topic of marks, and create them if the declaration allows it."""
        topic = find_topic(cluster, self.topic)
        if topic is None and self.partitions is not None:
            create_topic(cluster, self.topic, self.partitions, self.replicas, self.topic_config)
            topic = find_topic(cluster, self.topic)
        topic = self._checked_topic(topic, context)
        marks = find_topic(cluster, self._marks_topic(context))
        if marks is None:
            try_transaction(cluster, topic, context.app_id, self._timeout_s)
            create_marks(cluster, self._marks_topic(context), self.replicas)
            return topic
        problem = mark_topic_problem(marks)
        if problem:
            raise Invalid(
                f"sink {context.sink!r}: the topic {marks.name} cannot store its mark: {problem}",
                expected="a topic with one partition and cleanup.policy=compact, to which the login may write",
                help="correct the topic, or name another one with marks=…, which is created if it does not exist",
                reason="BAD_MARKS",
            )
        return topic

    def last(self, context: SinkContext) -> int | None:
        return _last_checkpoint(self._mark(self._cluster(context), context, settled=False))

    def head(self, context: SinkContext) -> Head:
        mark = self._mark(self._cluster(context), context, settled=False)
        last = _last_checkpoint(mark)
        begun = mark.checkpoint if mark is not None and not mark.complete else None
        return Head(version=last, last_entry=last, begun=begun)

    def _checked_topic(self, topic: TopicInfo | None, context: SinkContext) -> TopicInfo:
        """Return the topic. Raise Invalid if this sink cannot send to it."""
        if topic is None:
            raise Invalid(
                f"sink {context.sink!r}: the topic {self.topic} does not exist at {self.target(context.place)}",
                expected="a topic that exists, or a declaration that says how to create it",
                help="correct the name, create the topic, or add partitions=… to the sink",
                reason="NO_TOPIC",
            )
        if not topic.may_write:
            raise Invalid(
                f"sink {context.sink!r}: the login may not write to the topic {self.topic}",
                expected="the right to write to it",
                help="ask the owner of the cluster to grant it",
                reason="NOT_ALLOWED",
            )
        if topic.is_compacted and not self.form.key:
            raise Invalid(
                f"sink {context.sink!r}: the topic {self.topic} is compacted, and the sink has no key",
                expected="a key for each record of a compacted topic",
                help="add key=… to the sink, or remove compact from the topic's cleanup.policy",
                reason="NO_KEY",
            )
        return topic

    # --- staging --------------------------------------------------------------------------------------------

    def declared_rules(self, place: Place) -> Json | None:
        cluster = Cluster(KafkaLogin.resolve(self.servers, self.connection, place), _RIGHTS)
        topic = find_topic(cluster, self.topic)
        return declared_by(topic) if topic is not None else None

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        if self.form.problems(columns):
            return DeclaredRules()  # `output_problems` reports them
        return DeclaredRules(tuple(record_rules(columns, self.form, declared, self._size_of_headers())))

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        if self.order_by:
            frame = frame.orderBy(*self.order_by)
        if self.registry is None:
            return self.form.staged(frame)
        schema = self.form.avro_schema(msgspec.json.decode(frame.schema.json()))
        number = self._registry(context).register(self._subject, schema, context.sink)
        return replace(self.form, head=head_of(number)).staged(frame)

    def check_output(self, frame: DataFrame, context: SinkContext) -> None:
        if self.registry is None:
            super().check_output(frame, context)
            return
        self._refuse_output(frame, context)
        schema = self.form.avro_schema(msgspec.json.decode(frame.schema.json()))
        self._registry(context).refuse_incompatible(self._subject, schema, context.sink)

    def _registry(self, context: SinkContext) -> Registry:
        assert self.registry is not None
        import_fastavro()
        login = KafkaLogin.resolve(self.servers, self.connection, context.place)
        return Registry(self.registry, login.registry)

    @property
    def _subject(self) -> str:
        return self.subject or f"{self.topic}-value"

    def output_of_staged(self, staged: DataFrame, schema: StructType, context: SinkContext) -> DataFrame:
        return as_declared(context.sink, staged, schema, self.form.columns_of_staged(schema))

    def removed_form(self, removed: DataFrame, staged: DataFrame, context: SinkContext) -> DataFrame:
        return self.form.removed(removed, staged)

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        return self._check_staged(super().prepare(frame, context, staging), context)

    def prepare_with_retractions(
        self, frame: DataFrame, retractions: DataFrame, context: SinkContext, staging: Staging
    ) -> Prepared:
        prepared = self._check_staged(super().prepare_with_retractions(frame, retractions, context, staging), context)
        if prepared.committable is not None:
            part = typed.convert(prepared.committable, StagedPart)
            refuse_ambiguous_keys(part, self.staging_folder(context), context.sink)
        return prepared

    def _check_staged(self, prepared: Prepared, context: SinkContext) -> Prepared:
        """Refuse rows that the topic would not accept, and note the id of the topic of marks."""
        if prepared.committable is None:
            return prepared
        cluster = self._cluster(context)
        topic = self._checked_topic(find_topic(cluster, self.topic), context)
        marks = self._find_marks(cluster, context)
        part = typed.convert(prepared.committable, StagedPart)
        refuse_unsendable(part, self.staging_folder(context), topic, context.sink, self._size_of_headers())
        part = msgspec.structs.replace(part, notes={_MARKS_ID: marks.id})
        return replace(prepared, committable=msgspec.to_builtins(part))

    # --- after the decision ---------------------------------------------------------------------------------

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        cluster = self._cluster(context)
        topic = self._checked_topic(find_topic(cluster, self.topic), context)
        with cluster.errors(f"publishing to the topic {self.topic}"):
            sender = Sender(cluster, topic, context.app_id, self._timeout_s)
            try:
                return self._send(rows, sender, topic, context)
            except ProducerFenced:
                if not self._wait_for_publisher(rows, context) and sender.overdue:
                    raise self._too_slow(rows) from None
                return False
            finally:
                sender.close()

    def _send(self, rows: StagedRows, sender: Sender, topic: TopicInfo, context: SinkContext) -> bool:
        sender.fence_earlier_publishers()  # from here on, no other process can change the mark that is read next
        cluster = self._cluster(context)
        before = self._mark(cluster, context, settled=True)
        if _last_checkpoint(before) != rows.after or _was_overtaken(rows, before):
            return False
        if before is None:
            self._refuse_lost_marks(rows, cluster, context)
        self._refuse_replaced_topic(before, topic, context)
        wait_for_transactions(cluster, topic)
        mark = _first_mark(topic, rows.checkpoint, rows.after, rows.attempt)
        if before is not None and before.checkpoint == rows.checkpoint:
            mark = before  # an earlier publisher has sent a part of this checkpoint
        marks_topic = self._marks_topic(context)
        total = rows.count + rows.removed_count
        fixed_headers = self._fixed_headers(rows)
        header_numbers = {name: number for number, name in enumerate(self.form.headers)}
        sent, is_open = mark.records, False
        for batch, ends_part in cut_into_parts(_in_order(rows), sent, self.max_rows_per_transaction):
            if not is_open:
                sender.begin()
                is_open = True
            sender.send(batch, header_numbers, fixed_headers)
            sent += batch.num_rows
            if ends_part and sent < total:
                sender.commit(marks_topic, msgspec.structs.replace(mark, records=sent))
                is_open = False
        if not is_open:
            sender.begin()
        sender.commit(marks_topic, msgspec.structs.replace(mark, records=sent, complete=True))
        self._mark(cluster, context, settled=True)  # the staged files are needed until readers can see the mark
        return True

    def set_mark(self, last: int | None, context: SinkContext) -> None:
        cluster = self._cluster(context)
        topic = self._ensure_topics(cluster, context)
        mark = _first_mark(topic, last or NO_CHECKPOINT, None, "by hand", complete=True)
        with cluster.errors(f"putting back the mark of the topic {self.topic}"):
            sender = Sender(cluster, topic, context.app_id, self._timeout_s)
            try:
                sender.fence_earlier_publishers()
                sender.begin()
                sender.commit(self._marks_topic(context), mark)
            except ProducerFenced:
                raise Unavailable(
                    f"another process published to the topic {self.topic} at the same time: its mark was not changed",
                    help="check the mark, and repeat the command if it is still wrong",
                    reason="OVERTAKEN",
                ) from None
            finally:
                sender.close()
            self._mark(cluster, context, settled=True)

    def _wait_for_publisher(self, rows: StagedRows, context: SinkContext) -> bool:
        """Wait for the publisher that has fenced this one, and return whether it has published the checkpoint.

        If both tried again at once, they might fence each other endlessly.
        """
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
        return Cluster(KafkaLogin.resolve(self.servers, self.connection, context.place), _RIGHTS)

    def _marks_topic(self, context: SinkContext) -> str:
        name = self.marks or f"{self.topic}.tidegate.{context.pipeline}.{context.sink}"
        if _is_topic(name):
            return name
        raise Invalid(
            f"sink {context.sink!r}: the name of its topic of marks would be too long: {name}",
            expected=f"at most {_MAX_TOPIC_LENGTH} characters",
            help="set a shorter name with marks=…",
            reason="BAD_MARKS",
        )

    def _mark(self, cluster: Cluster, context: SinkContext, *, settled: bool) -> TopicMark | None:
        """Return the last mark of this sink. Raise Invalid if only an earlier pipeline has left marks."""
        name = self._marks_topic(context)
        mark, app_ids = Marks(cluster, name).read(context.app_id, settled=settled)
        # Sinks may share a topic of marks, so marks of other sinks are fine.
        foreign = sorted(app_id for app_id in app_ids if app_id.endswith(f"/{context.sink}"))
        if mark is None and foreign and not self.take_over:
            raise Invalid(
                f"sink {context.sink!r}: the topic {name} has marks of another pipeline: {', '.join(foreign)}; "
                f"this one is {context.app_id}",
                expected="the pipeline that has sent to this topic before, with its checkpoints",
                help="was the pipeline's root wiped or moved? Point it to the old root, use other topics, or declare "
                "the sink with take_over=True: the old one's records stay, and this one starts from the beginning",
                reason="OTHER_OWNER",
            )
        return mark

    def _size_of_headers(self) -> int:
        """Return how many bytes a record's headers may have in addition to those that are staged."""
        overhead = _HEADER_OVERHEAD * len(self.form.headers)
        if self.checkpoint_header is None:
            return overhead
        return overhead + _HEADER_OVERHEAD + len(self.checkpoint_header.encode()) + _MAX_NUMBER_BYTES

    def _fixed_headers(self, rows: StagedRows) -> Headers:
        if self.checkpoint_header is None:
            return []
        return [(self.checkpoint_header, str(rows.checkpoint).encode())]

    def _refuse_replaced_topic(self, mark: TopicMark | None, topic: TopicInfo, context: SinkContext) -> None:
        if mark is None or (mark.cluster, mark.topic_id) == (topic.cluster, topic.id):
            return
        raise Invalid(
            f"sink {context.sink!r}: the topic {self.topic} is not the one that has the checkpoints up to {mark.last}: "
            f"it was topic {mark.topic_id} of cluster {mark.cluster}, and is now {topic.id} of {topic.cluster}",
            expected="the same topic: a new one lacks the records of earlier checkpoints",
            help="if it was created again on purpose, rename the sink or move its mark: `tidegate mark --help` "
            "explains how",
            reason="TOPIC_RECREATED",
        )

    def _refuse_lost_marks(self, rows: StagedRows, cluster: Cluster, context: SinkContext) -> None:
        """Raise Invalid if the topic of marks was replaced after the rows were staged.

        The mark may then be lost, so it is unknown whether the rows have been sent.
        """
        marks = self._find_marks(cluster, context)
        if any(part.notes.get(_MARKS_ID, marks.id) != marks.id for part in rows.parts):
            raise self._missing_marks_error(context, "was deleted and created again")

    def _find_marks(self, cluster: Cluster, context: SinkContext) -> TopicInfo:
        marks = find_topic(cluster, self._marks_topic(context))
        if marks is None:
            raise self._missing_marks_error(context, "was deleted")
        return marks

    def _missing_marks_error(self, context: SinkContext, event: str) -> Invalid:
        return Invalid(
            f"sink {context.sink!r}: the topic {self._marks_topic(context)}, which records the checkpoints in "
            f"{self.topic}, {event}",
            expected="the topic of marks that was created before the first checkpoint",
            help="check the topic, then restore the mark: `tidegate mark --help` explains how",
            reason="MARKS_GONE",
        )


def _in_order(rows: StagedRows) -> Iterator[pa.RecordBatch]:
    """Yield the records part by part, in order: a later part may remove a key that an earlier one adds."""
    for part in rows.split_parts():
        yield from part.removed_batches()
        yield from part.batches()


def _was_overtaken(rows: StagedRows, before: TopicMark | None) -> bool:
    """Return whether the topic has a part of another checkpoint in whose place these rows must not be sent.

    It may have a part of an earlier one that was rolled back or left: those records stay.
    """
    if before is None or before.complete or before.checkpoint == rows.checkpoint:
        return False
    return rows.diverts or before.checkpoint > rows.checkpoint


def _first_mark(
    topic: TopicInfo, checkpoint: int, after: int | None, attempt: str, *, complete: bool = False
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


def _last_checkpoint(mark: TopicMark | None) -> int | None:
    return mark.last if mark is not None else None


def _is_topic(name: object) -> bool:
    return isinstance(name, str) and name not in (".", "..") and _TOPIC.fullmatch(name) is not None
