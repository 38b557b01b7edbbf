"""Fits a record of Avro to the declared columns, and names what does not fit: by the rules of `misfits`, for JSON."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tidegate.connectors.kafka.avro.values import Undecodable, fitting
from tidegate.connectors.schema.drift import SchemaPolicy
from tidegate.spark.refusals.malformed_record import MISFIT

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["UnfitField", "fit_record", "json_of", "rescued"]

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True)
class UnfitField:
    """A value of a record that no column holds."""

    path: str
    kind: Literal["new", "case", "type"]
    value: Any

    @property
    def type(self) -> str:
        """The type of a column for such values."""
        return _type_of(self.value)


def fit_record(
    record: Mapping[str, Any],
    columns: Mapping[str, pa.DataType],
    policy: SchemaPolicy,
    as_text: Collection[str] = (),
) -> tuple[dict[str, Any], list[UnfitField]]:
    """Return the values of the columns, and what the policy rescues. Raise Undecodable for what it does not.

    as_text: columns of text that the source has got by itself. They hold the text of any value, or its JSON.
    """
    row: dict[str, Any] = {}
    misfits = _unknown_fields(record, columns, "", policy)
    for name, kind in columns.items():
        value = record.get(name)
        if name in as_text and value is not None and not isinstance(value, str):
            value = _text_of(value)
        is_rounded = str(kind) == "double" and policy.on_type == "widen" and _is_rounded(value)
        try:
            if is_rounded:
                raise ValueError(value)
            row[name] = fitting(value, kind)
        except (TypeError, ValueError, ArithmeticError):
            if not policy.rescues_types:
                text = f"{name} {str(value)[:100]!r} is no {kind}"
                raise Undecodable(text, MISFIT, f"{name} is no {kind}") from None
            misfits.append(UnfitField(name, "type", value))
            continue
        misfits += _inside(value, kind, name, policy)
    return row, misfits


def rescued(misfits: list[UnfitField]) -> str | None:
    """Return the content of the rescue column."""
    return json_of({misfit.path: misfit.value for misfit in misfits}) if misfits else None


def json_of(value: Any) -> str:
    """Return a value of Avro as JSON."""
    return _ENCODER.encode(_with_names_of_floats(value)).decode()


def _text_of(value: Any) -> str:
    """Return what a column of text holds of a value: its text if JSON has it as one, such as a UUID; else its JSON."""
    text = json_of(value)
    return str(msgspec.json.decode(text)) if text.startswith('"') else text


def _with_names_of_floats(value: Any) -> Any:
    """Return a value with the names of floats that JSON lacks, as Spark writes them. The encoder makes them null."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _with_names_of_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_names_of_floats(item) for item in value]
    return value


def _unknown_fields(
    record: Mapping[str, Any], columns: Collection[str], prefix: str, policy: SchemaPolicy
) -> list[UnfitField]:
    """Return the fields that are no columns, if the policy rescues them."""
    by_lower_name = {name.lower(): name for name in columns}
    misfits = []
    for name, value in record.items():
        if name in columns:
            continue
        similar = by_lower_name.get(name.lower())
        if policy.rescues_keys:
            misfits.append(UnfitField(f"{prefix}{name}", "new" if similar is None else "case", value))
        elif policy.on_new_column == "refuse":
            raise Undecodable(f"it has a field {prefix + name!r}, which the schema lacks", "keys")
        elif similar is not None and similar not in record:
            raise Undecodable(f"it has a field {prefix + name!r}, but no {prefix + similar!r}", "keys")
    return misfits


def _inside(value: Any, kind: pa.DataType, path: str, policy: SchemaPolicy) -> list[UnfitField]:
    """Return the misfits inside a value. A list or a map with some in its elements is one misfit as a whole."""
    import pyarrow as pa

    if value is None:
        return []
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        misfits = _unknown_fields(value, fields, f"{path}.", policy)
        for name, inner in fields.items():
            misfits += _inside(value.get(name), inner, f"{path}.{name}", policy)
        return misfits
    elements = []
    if pa.types.is_list(kind):
        elements = [(element, kind.value_type) for element in value]
    elif pa.types.is_map(kind):
        elements = [(element, kind.item_type) for element in value.values()]
    for element, inner in elements:
        if _inside(element, inner, path, policy):
            return [UnfitField(path, "new", value)]
    return []


_EXACT_IN_DOUBLES: Final = 2**53
_MAX_PLACES: Final = 38


def _is_rounded(value: Any) -> bool:
    """Return whether a double might round a whole number."""
    return isinstance(value, int) and abs(value) > _EXACT_IN_DOUBLES


def _type_of(value: Any) -> str:
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "decimal(38,0)"
    if isinstance(value, float):
        return "double"
    if isinstance(value, decimal.Decimal):
        places = max(-int(value.as_tuple().exponent), 0)
        return f"decimal(38,{places})" if places <= _MAX_PLACES else "string"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, datetime.datetime):
        return "timestamp" if value.tzinfo is not None else "timestamp_ntz"
    if isinstance(value, datetime.date):
        return "date"
    if isinstance(value, list):
        return _type_of_list(value)
    return "string"


def _type_of_list(value: list[Any]) -> str:
    """Return a list of scalars of one type. No column of a list holds others unchanged, so they become text."""
    elements = [element for element in value if element is not None]
    types = {_type_of(element) for element in elements}
    if len(types) != 1 or any(isinstance(element, list) for element in elements):
        return "string"
    element = types.pop()
    if element == "string" and not all(_is_text(each) for each in elements):
        return "string"
    return f"array<{element}>"


def _is_text(value: Any) -> bool:
    """Return whether a column of text holds a value as it is."""
    return isinstance(value, str) or type(value).__name__ == "UUID"
