"""Records of a topic to DataFrames: exactly the planned offsets, and no record dropped silently.

JSON is judged as `Files` judges it, with the same parser and the same checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.connectors.ddl import Column, parse_ddl
from tidegate.connectors.files.formats.exact_values import as_declared, doubt, doubtful_values
from tidegate.connectors.files.formats.json_lines import as_text, is_flat_object, unread
from tidegate.connectors.files.formats.json_records import parse_records
from tidegate.connectors.files.formats.malformed import note
from tidegate.connectors.files.formats.utf8 import is_utf8_sql, readable_sql
from tidegate.connectors.files.reading import CORRUPT, empty_frame, nulled
from tidegate.connectors.kafka import SERVERS, KafkaLogin
from tidegate.connectors.kafka.position import share_of
from tidegate.errors import Invalid
from tidegate.records.names import free_name, quoted
from tidegate.records.records import Json
from tidegate.spark.refusals.malformed_record import MISFIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DELETED",
    "JARS",
    "KEY",
    "METADATA",
    "DeclaredTopic",
    "bad_key_sql",
    "columns_of",
    "metadata_columns",
    "metadata_sql",
    "read_topic",
    "value_columns",
]

KEY: Final = "_key"
DELETED: Final = "_deleted"
VALUE: Final = "value"
METADATA: Final[Mapping[str, str]] = {
    "timestamp": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "headers": "array<struct<key:string,value:binary>>",
}
"""What else a record has, with the types of the columns. Their names begin with an underscore."""

JARS: Final = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)

_FORMAT: Final = "kafka"
_RECORDS_A_TASK: Final = 500_000
"""A range of one partition that has more is read by several tasks."""


class DeclaredTopic(Protocol):
    """The arguments by which `Kafka` reads a topic."""

    @property
    def topic(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def metadata(self) -> Sequence[str]: ...
    @property
    def on_corrupt(self) -> str: ...
    @property
    def unknown_keys(self) -> str: ...
    @property
    def tombstones(self) -> str: ...
    @property
    def registry(self) -> str | None: ...


def value_columns(source: DeclaredTopic) -> list[Column]:
    """Return the columns that are made of a record's value."""
    if source.value in ("string", "bytes"):
        return [Column(VALUE, "string" if source.value == "string" else "binary")]
    return parse_ddl(source.schema)


_WAIT_MS: Final = "50"
"""How long a broker may wait for more records before it answers: by default half a second at the end of each range."""


def columns_of(source: DeclaredTopic) -> list[Column]:
    """Return all columns of the rows, in their order."""
    columns = value_columns(source)
    if source.on_corrupt == "keep":
        columns = [*columns, Column(CORRUPT, "string")]
    if source.tombstones == "keep":
        columns = [*columns, Column(DELETED, "boolean")]
    return [*columns, *metadata_columns(source)]


def metadata_columns(source: DeclaredTopic) -> list[Column]:
    """Return the columns that are made of all but a record's value."""
    key = [Column(KEY, "string" if source.key == "string" else "binary")] if source.key is not None else []
    return key + [Column(f"_{name}", METADATA[name]) for name in source.metadata]


def read_topic(spark: SparkSession, source: DeclaredTopic, splits: Json, login: KafkaLogin, name: str) -> DataFrame:
    """Return the rows of the planned offsets, lazily. name: the source's name in the pipeline."""
    ranges = share_of(splits)
    if not ranges:
        return empty_frame(spark, columns_of(source))
    options = {f"kafka.{option}": text for option, text in login.for_java().items() if option != SERVERS}
    options |= {
        f"kafka.{SERVERS}": login.servers,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": _WAIT_MS,
        "assign": json.dumps({source.topic: sorted(ranges)}),
        "startingOffsets": json.dumps({source.topic: {str(at): first for at, (first, _) in ranges.items()}}),
        "endingOffsets": json.dumps({source.topic: {str(at): after for at, (_, after) in ranges.items()}}),
        "failOnDataLoss": "true",
        "includeHeaders": "true" if "headers" in source.metadata else "false",
        "groupIdPrefix": "tidegate",
        "maxRecordsPerPartition": str(_RECORDS_A_TASK),
    }
    records = _loaded(spark, options)
    if source.tombstones == "skip":
        records = records.where("value IS NOT NULL")
    if source.value == "avro":
        from tidegate.connectors.kafka.avro import decoded

        return decoded(spark, source, records, login, name)
    return _judged(source, records, name)


def _loaded(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    try:
        records = spark.read.format(_FORMAT).options(**options).load()
        _ = records.schema  # a client of a Spark server asks it only now
        return records
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error) and "Failed to find" not in str(error):
            raise
        raise Invalid(
            "this Spark cannot read Kafka: it has no data source of the name kafka",
            expected=f"the jars {', '.join(JARS)} in it, of the versions in tidegate/spark/jars.toml",
            help="run `tidegate spark jars`; a Spark server of your own gets them by `spark.jars`",
            reason="KAFKA_JARS",
        ) from None


@dataclass(frozen=True)
class _RecordChecks:
    """The names of columns with what is found out about each record: none that a row already has."""

    text: str
    why: str
    partition: str
    offset: str
    absent: str
    bad_key: str

    @staticmethod
    def with_values(columns: list[Column]) -> _RecordChecks:
        names = ("text", "why", "partition", "offset", "absent", "bad_key")
        return _RecordChecks(*(free_name(f"_{name}_", [column.name for column in columns]) for name in names))

    def with_record_columns(self, source: DeclaredTopic) -> list[str]:
        """Return SQL for those that the record itself tells."""
        return [
            f"{bad_key_sql(source)} AS {quoted(self.bad_key)}",
            f"partition AS {quoted(self.partition)}",
            f"offset AS {quoted(self.offset)}",
            f"value IS NULL AS {quoted(self.absent)}",
        ]

    @property
    def record_errors(self) -> list[str]:
        """These, quoted."""
        return [quoted(name) for name in (self.partition, self.offset, self.absent, self.bad_key)]

    def place(self, topic: str) -> str:
        """Return SQL for the place of a record."""
        at, offset = quoted(self.partition), quoted(self.offset)
        return f"concat('partition ', {at}, ', offset ', {offset}, ' of topic {topic}')"


def _judged(source: DeclaredTopic, records: DataFrame, name: str) -> DataFrame:
    """Return the rows of records in JSON, text or bytes, each of them judged."""
    from pyspark.sql import functions as F

    columns, extra = value_columns(source), metadata_columns(source)
    names = _RecordChecks.with_values([*columns, *extra])
    text, why = quoted(names.text), quoted(names.why)
    rest = [*(quoted(column.name) for column in extra), *names.record_errors]
    frame = records.selectExpr("value", *(metadata_sql(column) for column in extra), *names.with_record_columns(source))
    if source.value == "json":
        frame = _parsed(source, frame, columns, rest, names)
    elif source.value == "string":
        readable, flaw = readable_sql("value"), f"CASE WHEN NOT {is_utf8_sql('value')} THEN 'bytes' END"
        frame = frame.selectExpr(f"{readable} AS value", f"{readable} AS {text}", f"{flaw} AS {why}", *rest)
    else:
        frame = frame.selectExpr("value", f"'' AS {text}", f"CAST(NULL AS string) AS {why}", *rest)
    if source.key == "string":
        flaw, record = f"CASE WHEN {quoted(names.bad_key)} THEN 'key' END", f"coalesce({text}, '')"
        frame = frame.withColumns({names.why: F.expr(f"coalesce({why}, {flaw})"), names.text: F.expr(record)})
    checked = columns if source.value == "json" else []
    frame = frame.where(_good(source, columns, checked, name, names))
    made = as_declared(columns) if checked else [quoted(column.name) for column in columns]
    if source.on_corrupt == "keep":
        corrupt = free_name(CORRUPT, [column.name for column in (*columns, *extra)])
        bad = f"CASE WHEN {why} IS NOT NULL OR {doubt(checked)} THEN {text} END"
        frame = frame.withColumn(corrupt, F.expr(bad))
        made = [nulled(sql, column, f"{quoted(corrupt)} IS NULL") for sql, column in zip(made, columns, strict=True)]
        made.append(f"{quoted(corrupt)} AS {CORRUPT}")
    if source.tombstones == "keep":
        made.append(f"{quoted(names.absent)} AS {DELETED}")
    return frame.selectExpr(*made, *(quoted(column.name) for column in extra))


def metadata_sql(column: Column) -> str:
    """Return SQL for such a column of what Spark reads."""
    name = column.name.removeprefix("_")
    if column == Column(KEY, "string"):
        return f"CASE WHEN is_valid_utf8(key) THEN CAST(key AS string) END AS {KEY}"
    return f"CAST({name} AS {column.type}) AS {column.name}"


def bad_key_sql(source: DeclaredTopic) -> str:
    """Return SQL that is true if the key of a record cannot be its column's text."""
    return "coalesce(NOT is_valid_utf8(key), false)" if source.key == "string" else "false"


def _parsed(
    source: DeclaredTopic, frame: DataFrame, columns: list[Column], rest: list[str], names: _RecordChecks
) -> DataFrame:
    """Return the frame with the columns of the schema as they are read, the text, and why it is malformed, if it is."""
    from pyspark.sql import functions as F

    value, broken = F.col("value"), F.col("broken")
    frame = frame.selectExpr(f"{readable_sql('value')} AS value", f"NOT {is_utf8_sql('value')} AS broken", *rest)
    without_mark = F.when(value.startswith("\ufeff"), as_text("")).otherwise(value)
    frame = frame.select(without_mark.alias("value"), "broken", *rest)
    flaw = (
        F.when(value.isNull(), F.lit(None))
        .when(broken, "bytes")
        .when(is_flat_object(value), F.lit(None))  # as most records are
        .when(~F.btrim(value, F.lit(" \t\r\n")).startswith("{"), "")
        .when(unread(value, {}), "unread")
    )
    frame = frame.select(value, flaw.alias("flaw"), *rest)
    all_keys = source.unknown_keys == "refuse"
    return parse_records(frame, columns, rest, {}, text=names.text, why=names.why, all_keys=all_keys)


def _good(source: DeclaredTopic, columns: list[Column], checked: list[Column], name: str, names: _RecordChecks) -> str:
    """Return SQL that is true, or fails. Nothing is pushed down through it: see `fail_at_malformed`."""
    text, why = quoted(names.text), quoted(names.why)

    def fail(record: str, cause: str) -> str:
        return f"raise_error({note(record, columns, name, cause, at=names.place(source.topic))})"

    cases = []
    if source.tombstones == "refuse":
        cases.append(f"WHEN {quoted(names.absent)} THEN {fail(text, 'tombstone')}")
    if source.on_corrupt == "refuse":
        cases.append(f"WHEN {why} IS NOT NULL THEN {fail(text, f'CASE WHEN true THEN {why} END')}")
        cases.append(f"WHEN {doubt(checked)} THEN {fail(doubtful_values(checked), MISFIT)}")
    return f"CASE {' '.join(cases)} ELSE true END" if cases else "true"
