"""Decodes Avro records, whose schemas are in a registry, with fastavro in Spark's Python workers.

Values have the format of Confluent's serializers: a zero byte, four bytes with the schema's number, and the record in
Avro. They must fit the declared columns exactly. A column that the record's own schema lacks is null.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidegate import seams
from tidegate.connectors.files.formats.malformed import message
from tidegate.connectors.files.reading import CORRUPT, empty_frame
from tidegate.connectors.kafka import KafkaLogin
from tidegate.connectors.kafka.reading import (
    DELETED,
    DeclaredTopic,
    bad_key_sql,
    columns_of,
    metadata_columns,
    metadata_sql,
    value_columns,
)
from tidegate.errors import Invalid, Unavailable
from tidegate.spark.refusals.malformed_record import MISFIT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Registry", "Undecodable", "decode_avro", "fitting", "import_fastavro"]

_HEAD_BYTES: Final = 5
_TRIES: Final = 3
_TIMEOUT_S: Final = 10.0


class Undecodable(Exception):
    """A record cannot be decoded as its schema and the declared columns require.

    why: one of `SENT_CAUSES`.
    plain: the message without the value, if the message contains it.
    """

    def __init__(self, text: str, why: str = "", plain: str = "") -> None:
        self.why = why
        self.plain = plain or text
        super().__init__(text)


def import_fastavro() -> Any:
    """Return the module fastavro."""
    try:
        import fastavro
    except ImportError:
        raise Invalid(
            "fastavro, with which tidegate reads Avro, is not installed",
            help="pip install 'tidegate[avro]'",
            reason="NO_AVRO",
        ) from None
    return fastavro


class Registry:
    """Looks up schemas in a schema registry, each only once."""

    def __init__(self, url: str, login: str | None) -> None:
        self._url = url.rstrip("/")
        self._login = login
        self._schemas: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """Return a parsed schema. Raise Undecodable if there is none, Unavailable if the registry does not answer."""
        if number not in self._schemas:
            self._schemas[number] = self._request_schema(number)
        return self._schemas[number]

    def _request_schema(self, number: int) -> Any:
        answer = self._fetch(number)
        if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
            raise Undecodable(f"schema {number} of the registry is not in Avro, or refers to other schemas")
        return import_fastavro().parse_schema(json.loads(answer["schema"]))

    def _fetch(self, number: int) -> Any:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if self._login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login.encode()).decode()}"
        request = urllib.request.Request(f"{self._url}/schemas/ids/{number}", headers=headers)
        for attempt in range(_TRIES):
            if attempt:
                seams.sleep(1)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    raise Undecodable(f"the registry has no schema {number}") from None
                if error.code in (401, 403):
                    raise Invalid(
                        f"the schema registry refuses the login: {error.code} {error.reason}",
                        expected="a login that may read schemas",
                        help="correct schema.registry.basic.auth.user.info of the connection",
                        reason="REGISTRY_LOGIN",
                    ) from None
                cause = f"{error.code} {error.reason}"
            except (OSError, ValueError) as error:
                cause = str(getattr(error, "reason", error))
        raise Unavailable(
            f"the schema registry does not answer: {cause}",
            help="check that it runs, and that Spark's workers can reach it; the next attempt tries again",
            reason="REGISTRY_AWAY",
        )


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
        [column.name for column in value_columns(source)],
        Registry(source.registry, login.registry),
        keep=source.on_corrupt == "keep",
        refuse_tombstones=source.tombstones == "refuse",
        source=name,
    )
    place = f"concat('partition ', partition, ', offset ', offset, ' of topic {source.topic}') AS place"
    bad_key = f"{bad_key_sql(source)} AS bad_key"
    metadata_exprs = [metadata_sql(column) for column in metadata]
    encoded = records.selectExpr("value AS avro", place, bad_key, *metadata_exprs)
    return encoded.mapInArrow(decode, ", ".join(column.ddl for column in columns))


def _decoder(
    schema: pa.Schema, names: Sequence[str], registry: Registry, *, keep: bool, refuse_tombstones: bool, source: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that workers run. keep: report malformed records in a column instead of failing."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows, corrupt, is_tombstone = [], [], []
            values, places, bad_keys = (batch[name].to_pylist() for name in ("avro", "place", "bad_key"))
            for value, place, bad_key in zip(values, places, bad_keys, strict=True):
                row: dict[str, Any] = {}
                text = None
                try:
                    if bad_key:
                        raise Undecodable("", "key")
                    if value is not None:
                        row = _record(value, registry, schema, names)
                    elif refuse_tombstones:
                        raise ValueError(message(source, place, "tombstone", "", ""))
                except Undecodable as error:
                    if not keep:
                        raise ValueError(
                            message(source, place, error.why, str(error), str(error), error.plain)
                        ) from None
                    text = base64.b64encode(value or b"").decode()
                rows.append(row)
                corrupt.append(text)
                is_tombstone.append(value is None)
            decoded = {CORRUPT: corrupt, DELETED: is_tombstone}
            for name in names:
                decoded[name] = [row.get(name) for row in rows]
            arrays = []
            for field in schema:
                if field.name in decoded:
                    arrays.append(pa.array(decoded[field.name], field.type))
                else:
                    arrays.append(batch[field.name].cast(field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return decode


def _record(value: bytes, registry: Registry, schema: pa.Schema, names: Sequence[str]) -> dict[str, Any]:
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
    names_by_lower_case = {name.lower(): name for name in record}
    for name in names:
        similar = names_by_lower_case.get(name.lower())
        if name not in record and similar is not None:
            raise Undecodable(f"it has a field {similar!r}, but no {name!r}", "keys")
    return {name: _field(record.get(name), schema.field(name).type, name) for name in names}


def _field(value: Any, kind: pa.DataType, name: str) -> Any:
    try:
        return fitting(value, kind)
    except (TypeError, ValueError, ArithmeticError):
        raise Undecodable(f"{name} {str(value)[:100]!r} is no {kind}", MISFIT, f"{name} is no {kind}") from None


def fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Avro as Arrow expects it for a column of this type.

    Raise ValueError or TypeError if that would change the value.
    """
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = _expect(dict, value)
        return {field.name: fitting(fields.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        items = []
        for key, item in _expect(dict, value).items():
            items.append((fitting(key, kind.key_type), fitting(item, kind.item_type)))
        return items
    if pa.types.is_list(kind):
        return [fitting(element, kind.value_type) for element in _expect(list, value)]
    if pa.types.is_string(kind):
        return str(value) if type(value).__name__ == "UUID" else _expect(str, value)
    if pa.types.is_binary(kind):
        return _expect(bytes, value)
    if pa.types.is_boolean(kind):
        return _expect(bool, value)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind)
    if pa.types.is_timestamp(kind):
        moment = _expect(datetime.datetime, value)
        if (moment.tzinfo is None) != (kind.tz is None):
            raise ValueError(value)
        return moment
    if pa.types.is_date(kind):
        if isinstance(value, datetime.datetime):
            raise TypeError(value)
        return _expect(datetime.date, value)
    if isinstance(value, bool):
        raise TypeError(value)
    if pa.types.is_floating(kind):
        return float(value if isinstance(value, float) else _expect(int, value))
    number = _expect(int, value)
    if not -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1):
        raise ValueError(value)
    return number


def _expect(kind: type, value: Any) -> Any:
    """Return the value. Raise TypeError if it is of another type."""
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _decimal(value: Any, kind: pa.DataType) -> decimal.Decimal:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    number = decimal.Decimal(value) if is_integer else _expect(decimal.Decimal, value)
    fitted = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=decimal.Context(prec=76))
    if fitted != number or len(fitted.as_tuple().digits) > kind.precision:
        raise ValueError(value)
    return fitted
