"""Reads exactly the planned offsets of a topic into a DataFrame, and drops no record silently.

JSON is checked as in `Files`, with the same parser and the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.connectors.files.formats.json_lines import as_text, is_flat_object, unread
from tidegate.connectors.files.formats.judged_records import cases_of_malformed, judge_records, values_of_rows
from tidegate.connectors.files.formats.malformed import note
from tidegate.connectors.files.formats.misfits import Names, is_plain_for, summarize
from tidegate.connectors.files.formats.utf8 import is_utf8_sql, readable_sql
from tidegate.connectors.files.reading import CORRUPT, empty_frame
from tidegate.connectors.kafka import SERVERS, KafkaLogin
from tidegate.connectors.kafka.position import share_of
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.schema.drift import SchemaPolicy, Survey
from tidegate.errors import Invalid
from tidegate.records.names import free_name, quoted
from tidegate.records.records import Json

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
    "survey_topic",
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
"""The metadata of a record, with the types of their columns, whose names begin with an underscore."""

JARS: Final = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)

_FORMAT: Final = "kafka"
_MAX_RECORDS_PER_TASK: Final = 500_000
"""A longer range of a partition is split among several tasks."""
_MAX_WAIT_MS: Final = "50"
"""How long a broker may wait for more records before it answers. By default it waits half a second at every end."""


class DeclaredTopic(Protocol):
    """The arguments of `Kafka` that reading needs."""

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
    def schema_policy(self) -> SchemaPolicy: ...
    @property
    def evolved_columns(self) -> frozenset[str]: ...
    @property
    def tombstones(self) -> str: ...
    @property
    def registry(self) -> str | None: ...


def value_columns(source: DeclaredTopic) -> list[Column]:
    """Return the columns that contain a record's value."""
    if source.value in ("string", "bytes"):
        return [Column(VALUE, "string" if source.value == "string" else "binary")]
    return parse_ddl(source.schema)


def columns_of(source: DeclaredTopic) -> list[Column]:
    """Return all columns of the rows, in order."""
    columns = value_columns(source)
    if source.schema_policy.rescues:
        columns = [*columns, Column(source.schema_policy.rescue_column, "string")]
    if source.on_corrupt == "keep":
        columns = [*columns, Column(CORRUPT, "string")]
    if source.tombstones == "keep":
        columns = [*columns, Column(DELETED, "boolean")]
    return [*columns, *metadata_columns(source)]


def metadata_columns(source: DeclaredTopic) -> list[Column]:
    """Return the columns that contain a record's key and metadata."""
    columns = []
    if source.key is not None:
        columns.append(Column(KEY, "string" if source.key == "string" else "binary"))
    columns += [Column(f"_{name}", METADATA[name]) for name in source.metadata]
    return columns


def read_topic(spark: SparkSession, source: DeclaredTopic, splits: Json, login: KafkaLogin, name: str) -> DataFrame:
    """Return the rows of the planned offsets, lazily. name: the source's name in the pipeline."""
    ranges = share_of(splits)
    if not ranges:
        return empty_frame(spark, columns_of(source))
    records = _records(spark, source, ranges, login)
    if source.tombstones == "skip":
        records = records.where("value IS NOT NULL")
    if source.value == "avro":
        from tidegate.connectors.kafka.avro.decoding import decode_avro

        return decode_avro(spark, source, records, login, name)
    return _check_records(source, records, name)


def survey_topic(spark: SparkSession, source: DeclaredTopic, splits: Json, login: KafkaLogin) -> Survey:
    """Return what in the planned offsets does not fit the schema."""
    from pyspark.sql import functions as F

    ranges = share_of(splits)
    if not ranges:
        return Survey(None, is_clean=True)
    columns = value_columns(source)
    names = _RecordChecks.with_values(columns)
    frame = _records(spark, source, ranges, login).where("value IS NOT NULL")
    if source.value == "avro":
        from tidegate.connectors.kafka.avro.decoding import survey_avro

        return survey_avro(spark, source, frame, login)
    place = F.concat(F.lit("partition "), F.col("partition")).alias(names.place_of_misfits)
    texts = frame.select(F.col("value").cast("string").alias("value"), place)
    texts = texts.where(~F.is_valid_utf8("value") | ~is_plain_for("value", columns, source.schema_policy, {}))
    judged = _judge_json(source, texts, columns, [quoted(names.place_of_misfits)], names)
    return summarize(judged, columns, source.schema_policy, names.of_misfits)


def _records(
    spark: SparkSession, source: DeclaredTopic, ranges: Mapping[int, tuple[int, int]], login: KafkaLogin
) -> DataFrame:
    """Return the records of these offsets as Spark's data source reads them."""
    starts = {str(partition): first for partition, (first, _) in ranges.items()}
    ends = {str(partition): end for partition, (_, end) in ranges.items()}
    options = {f"kafka.{option}": text for option, text in login.for_java().items()}
    options |= {
        f"kafka.{SERVERS}": login.servers,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": _MAX_WAIT_MS,
        "assign": json.dumps({source.topic: sorted(ranges)}),
        "startingOffsets": json.dumps({source.topic: starts}),
        "endingOffsets": json.dumps({source.topic: ends}),
        "failOnDataLoss": "true",
        "includeHeaders": "true" if "headers" in source.metadata else "false",
        "groupIdPrefix": "tidegate",
        "maxRecordsPerPartition": str(_MAX_RECORDS_PER_TASK),
    }
    return _load(spark, options)


def _load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    try:
        records = spark.read.format(_FORMAT).options(**options).load()
        _ = records.schema  # with Spark Connect, the server looks up the data source only now
        return records
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error) and "Failed to find" not in str(error):
            raise
        raise Invalid(
            "this Spark cannot read Kafka: it has no data source named kafka",
            expected=f"the jars {', '.join(JARS)}, in the versions of tidegate/spark/jars.toml",
            help="run `tidegate spark jars`; for a Spark server of your own, set `spark.jars`",
            reason="KAFKA_JARS",
        ) from None


@dataclass(frozen=True)
class _RecordChecks:
    """The names of the columns with the results of each record's checks. They differ from all columns of the rows."""

    text: str
    why: str
    partition: str
    offset: str
    absent: str
    bad_key: str
    misfits: str
    place_of_misfits: str

    @property
    def of_misfits(self) -> Names:
        """The names as looking for misfits needs them."""
        return Names(self.text, self.why, self.misfits, self.place_of_misfits)

    @staticmethod
    def with_values(columns: list[Column]) -> _RecordChecks:
        used = [column.name for column in columns]
        names = ("text", "why", "partition", "offset", "absent", "bad_key", "misfits", "place")
        return _RecordChecks(*(free_name(f"_{name}_", used) for name in names))

    def with_record_columns(self, source: DeclaredTopic) -> list[str]:
        """Return SQL for the checks that only need the record as Spark reads it."""
        return [
            f"{bad_key_sql(source)} AS {quoted(self.bad_key)}",
            f"partition AS {quoted(self.partition)}",
            f"offset AS {quoted(self.offset)}",
            f"value IS NULL AS {quoted(self.absent)}",
        ]

    @property
    def record_columns(self) -> list[str]:
        """The names of those columns, quoted."""
        return [quoted(name) for name in (self.partition, self.offset, self.absent, self.bad_key)]

    def place(self, topic: str) -> str:
        """Return SQL for the place of a record."""
        partition, offset = quoted(self.partition), quoted(self.offset)
        return f"concat('partition ', {partition}, ', offset ', {offset}, ' of topic {topic}')"


def _check_records(source: DeclaredTopic, records: DataFrame, name: str) -> DataFrame:
    """Return the rows of records in JSON, text or bytes, after checking each record."""
    from pyspark.sql import functions as F

    policy, columns, metadata = source.schema_policy, value_columns(source), metadata_columns(source)
    names = _RecordChecks.with_values([*columns, *metadata])
    text, why = quoted(names.text), quoted(names.why)
    quoted_metadata = [quoted(column.name) for column in metadata]
    carried = [*quoted_metadata, *names.record_columns]
    metadata_exprs = [metadata_sql(column) for column in metadata]
    frame = records.selectExpr("value", *metadata_exprs, *names.with_record_columns(source))
    if source.value == "json":
        frame = _judge_json(source, frame, columns, carried, names)
    elif source.value == "string":
        readable, flaw = readable_sql("value"), f"CASE WHEN NOT {is_utf8_sql('value')} THEN 'bytes' END"
        frame = frame.selectExpr(f"{readable} AS value", f"{readable} AS {text}", f"{flaw} AS {why}", *carried)
    else:
        frame = frame.selectExpr("value", f"'' AS {text}", f"CAST(NULL AS string) AS {why}", *carried)
    if source.key == "string":
        flaw, record = f"CASE WHEN {quoted(names.bad_key)} THEN 'key' END", f"coalesce({text}, '')"
        frame = frame.withColumns({names.why: F.expr(f"coalesce({why}, {flaw})"), names.text: F.expr(record)})
    frame = frame.where(_is_good_sql(source, columns, name, names))
    if source.on_corrupt == "keep":
        selected = values_of_rows(columns, policy, names.of_misfits, is_kept=f"{why} IS NULL")
        selected.append(f"CASE WHEN {why} IS NOT NULL THEN {text} END AS {CORRUPT}")
    else:
        selected = values_of_rows(columns, policy, names.of_misfits)
    if source.tombstones == "keep":
        selected.append(f"{quoted(names.absent)} AS {DELETED}")
    return frame.selectExpr(*selected, *quoted_metadata)


def metadata_sql(column: Column) -> str:
    """Return SQL for a metadata column, from the columns of Spark's data source."""
    name = column.name.removeprefix("_")
    if column == Column(KEY, "string"):
        return f"CASE WHEN is_valid_utf8(key) THEN CAST(key AS string) END AS {KEY}"
    return f"CAST({name} AS {column.type}) AS {column.name}"


def bad_key_sql(source: DeclaredTopic) -> str:
    """Return SQL that is true if a key is declared as text, but is not valid UTF-8."""
    if source.key != "string":
        return "false"
    return "coalesce(NOT is_valid_utf8(key), false)"


def _judge_json(
    source: DeclaredTopic, frame: DataFrame, columns: list[Column], carried: list[str], names: _RecordChecks
) -> DataFrame:
    """Return the columns of the schema as they are read, the record's text, and why it is malformed, or null."""
    from pyspark.sql import functions as F

    value, broken = F.col("value"), F.col("broken")
    frame = frame.selectExpr(f"{readable_sql('value')} AS value", f"NOT {is_utf8_sql('value')} AS broken", *carried)
    without_bom = F.when(value.startswith("\ufeff"), as_text("")).otherwise(value)
    frame = frame.select(without_bom.alias("value"), "broken", *carried)
    flaw = (
        F.when(value.isNull(), F.lit(None))
        .when(broken, "bytes")
        .when(is_flat_object(value), F.lit(None))  # true for most records, so they need no further check
        .when(~F.btrim(value, F.lit(" \t\r\n")).startswith("{"), "")
        .when(unread(value, {}), "unread")
    )
    frame = frame.select(value, flaw.alias("flaw"), *carried)
    return judge_records(frame, columns, carried, source.schema_policy, {}, names.of_misfits)


def _is_good_sql(source: DeclaredTopic, columns: list[Column], name: str, names: _RecordChecks) -> str:
    """Return SQL that is true for a good record and fails otherwise.

    Spark pushes nothing down through it: see `fail_on_malformed`.
    """
    place = names.place(source.topic)
    cases = []
    if source.tombstones == "refuse":
        absent = note(quoted(names.text), columns, name, "tombstone", place)
        cases.append(f"WHEN {quoted(names.absent)} THEN raise_error({absent})")
    if source.on_corrupt == "refuse":
        cases.append(cases_of_malformed(columns, names.of_misfits, name, place))
    if not cases:
        return "true"
    return f"CASE {' '.join(cases)} ELSE true END"
