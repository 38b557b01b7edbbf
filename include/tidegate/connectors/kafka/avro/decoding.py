"""Decodes Avro records, whose schemas are in a registry, with fastavro in Spark's Python workers.

Values have the format of Confluent's serializers: a zero byte, four bytes with the schema's number, and the record in
Avro. They must fit the declared columns exactly, unless the source's policy rescues what does not (`misfits`). A column
that the record's own schema lacks is null.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.files.formats.malformed import message
from tidegate.connectors.files.formats.misfits import Names, summarize
from tidegate.connectors.files.reading import CORRUPT, empty_frame
from tidegate.connectors.kafka import KafkaLogin
from tidegate.connectors.kafka.avro.misfits import UnfitField, fit_record, json_of, rescued
from tidegate.connectors.kafka.avro.registry import Registry, import_fastavro
from tidegate.connectors.kafka.avro.values import Undecodable
from tidegate.connectors.kafka.reading import (
    DELETED,
    DeclaredTopic,
    bad_key_sql,
    columns_of,
    metadata_columns,
    metadata_sql,
    value_columns,
)
from tidegate.connectors.schema.drift import SchemaPolicy, Survey
from tidegate.records.names import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["decode_avro", "survey_avro"]

_HEAD_BYTES: Final = 5


def decode_avro(
    spark: SparkSession, source: DeclaredTopic, records: DataFrame, login: KafkaLogin, name: str
) -> DataFrame:
    """Return the rows of records in Avro."""
    from pyspark.sql.pandas.types import to_arrow_schema

    import_fastavro()
    assert source.registry is not None
    columns, metadata = columns_of(source), metadata_columns(source)
    schema = to_arrow_schema(empty_frame(spark, columns).schema, timezone="UTC")
    decode = _decoder(
        schema,
        RecordReader.of(schema, source, Registry(source.registry, login.registry)),
        source.schema_policy.rescue_column if source.schema_policy.rescues else "",
        keep=source.on_corrupt == "keep",
        refuse_tombstones=source.tombstones == "refuse",
        source=name,
    )
    place = f"concat('partition ', partition, ', offset ', offset, ' of topic {source.topic}') AS place"
    bad_key = f"{bad_key_sql(source)} AS bad_key"
    metadata_exprs = [metadata_sql(column) for column in metadata]
    encoded = records.selectExpr("value AS avro", place, bad_key, *metadata_exprs)
    return encoded.mapInArrow(decode, ", ".join(column.ddl for column in columns))


def survey_avro(spark: SparkSession, source: DeclaredTopic, records: DataFrame, login: KafkaLogin) -> Survey:
    """Return what in records in Avro does not fit the schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    import_fastavro()
    assert source.registry is not None
    columns = value_columns(source)
    schema = to_arrow_schema(empty_frame(spark, columns).schema, timezone="UTC")
    reader = RecordReader.of(schema, source, Registry(source.registry, login.registry))
    names = Names.beside(columns)
    place = "concat('partition ', partition) AS place"
    found = "array<struct<path:string,kind:string,value:string,type:string>>"
    frame = records.where("value IS NOT NULL").selectExpr("value AS avro", place)
    frame = frame.mapInArrow(_finder(reader), f"misfits {found}, why string, place string")
    # Spark keeps values whose types differ as variants.
    as_variants = "transform(misfits, e -> struct(e.path, e.kind, parse_json(e.value) AS value, e.type))"
    frame = frame.selectExpr(
        f"{as_variants} AS {quoted(names.misfits)}", f"why AS {quoted(names.why)}", f"place AS {quoted(names.place)}"
    )
    return summarize(frame, columns, source.schema_policy, names, types="e.type")


@dataclass(frozen=True)
class RecordReader:
    """Decodes values and fits them to the declared columns."""

    columns: Mapping[str, pa.DataType]
    policy: SchemaPolicy
    as_text: frozenset[str]
    registry: Registry

    @staticmethod
    def of(schema: pa.Schema, source: DeclaredTopic, registry: Registry) -> RecordReader:
        names = [column.name for column in value_columns(source)]
        texts = {column.name for column in value_columns(source) if column.type == "string"}
        columns = {name: schema.field(name).type for name in names}
        return RecordReader(columns, source.schema_policy, source.evolved_columns & texts, registry)

    def read(self, value: bytes) -> tuple[dict[str, Any], list[UnfitField]]:
        """Return the values of the columns, and what does not fit. Raise Undecodable for a malformed record."""
        return fit_record(_record(value, self.registry), self.columns, self.policy, self.as_text)


def _finder(reader: RecordReader) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function by which workers look for misfits."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        text = pa.string()
        misfit = pa.struct([("path", text), ("kind", text), ("value", text), ("type", text)])
        schema = pa.schema([("misfits", pa.list_(misfit)), ("why", text), ("place", text)])
        for batch in batches:
            rows = []
            for value, place in zip(batch["avro"].to_pylist(), batch["place"].to_pylist(), strict=True):
                found: list[UnfitField] = []
                why = None
                try:
                    _, found = reader.read(value)
                except Undecodable as error:
                    why = error.why
                misfits = [
                    {"path": each.path, "kind": each.kind, "value": json_of(each.value), "type": each.type}
                    for each in found
                ]
                rows.append({"misfits": misfits, "why": why, "place": place})
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return find


def _decoder(
    schema: pa.Schema, reader: RecordReader, rescue_column: str, *, keep: bool, refuse_tombstones: bool, source: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that workers run.

    rescue_column: the name of the column with what does not fit, or "". keep: report malformed records in a column
        instead of failing.
    """

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows, corrupt, is_tombstone, rescued_texts = [], [], [], []
            values, places, bad_keys = (batch[name].to_pylist() for name in ("avro", "place", "bad_key"))
            for value, place, bad_key in zip(values, places, bad_keys, strict=True):
                row: dict[str, Any] = {}
                text = None
                misfits: list[UnfitField] = []
                try:
                    if bad_key:
                        raise Undecodable("", "key")
                    if value is not None:
                        row, misfits = reader.read(value)
                    elif refuse_tombstones:
                        raise ValueError(message(source, place, "tombstone", "", ""))
                except Undecodable as error:
                    if not keep:
                        raise ValueError(
                            message(source, place, error.why, str(error), str(error), error.plain)
                        ) from None
                    text = base64.b64encode(value or b"").decode()
                rows.append(row)
                rescued_texts.append(rescued(misfits))
                corrupt.append(text)
                is_tombstone.append(value is None)
            decoded = {CORRUPT: corrupt, DELETED: is_tombstone, rescue_column: rescued_texts}
            for name in reader.columns:
                decoded[name] = [row.get(name) for row in rows]
            arrays = []
            for field in schema:
                if field.name in decoded:
                    arrays.append(pa.array(decoded[field.name], field.type))
                else:
                    arrays.append(batch[field.name].cast(field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return decode


def _record(value: bytes, registry: Registry) -> dict[str, Any]:
    """Return the fields of a record."""
    if len(value) < _HEAD_BYTES or value[0] != 0:
        raise Undecodable("it does not begin with a zero byte and the number of a schema")
    writer_schema = registry.schema(int.from_bytes(value[1:_HEAD_BYTES], "big"))
    stream = io.BytesIO(value[_HEAD_BYTES:])
    try:
        record = import_fastavro().schemaless_reader(stream, writer_schema)
    except Exception as error:  # invalid bytes may make fastavro raise any error
        raise Undecodable(f"it does not match its schema: {type(error).__name__}") from None
    if stream.read(1):
        raise Undecodable("bytes follow the record", "unread")
    if not isinstance(record, dict):
        raise Undecodable("it is not a record with fields")
    return record
