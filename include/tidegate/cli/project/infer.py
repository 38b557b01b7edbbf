"""`tidegate new source NAME --infer FILE…`: declares a source for files like a sample of them. Needs no Spark."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.connectors.files.source import format_of
from tidegate.connectors.schema.drift import MAX_NEW_COLUMNS, common_type, why_no_column
from tidegate.errors import Invalid, Unavailable
from tidegate.records.names import quoted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Inferred", "SampledColumn", "declaration", "infer"]

MAX_RECORDS = 100_000
"""How many records are looked at."""

Type = str | list[Any] | dict[str, Any]
"""A type while it is inferred: a name, a list of its elements' type, or the fields of an object."""

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(Z|[+-]\d{2}:\d{2})?")
_WHOLE: Final = re.compile(r"-?(?:0|[1-9]\d*)")
_FRACTION: Final = re.compile(r"-?(?:0|[1-9]\d*)\.\d+(?:[eE][+-]?\d+)?")
_MONEY: Final = re.compile(
    r"amount|price|total|cost|fee|tax|vat|balance|salary|revenue|payment|paid|discount|refund|charge|money|eur|usd",
    re.I,
)
_ODD: Final = re.compile(r"[\"\\]")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARROW_TYPES: Final = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "uint64": "decimal(20,0)",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "null": "void",
}


@dataclass(frozen=True)
class SampledColumn:
    """A column of the sample."""

    name: str
    type: str
    why_not: str = ""
    """Why it is left out of the schema, if it is."""
    note: str = ""
    """What a person should look at."""


@dataclass(frozen=True)
class Inferred:
    """What a sample of files says of all of them."""

    format: str
    pattern: str
    columns: list[SampledColumn]
    options: dict[str, str] = field(default_factory=dict)
    records: int | None = None
    """How many records were looked at; None: the files have a schema."""
    is_all: bool = True
    """False: the sample has more records, which were not looked at."""


def infer(names: list[str]) -> Inferred:
    """Return what these files have in common. Raise Invalid if they are of no format, or of several."""
    formats = {format_of(name) for name in names}
    if len(formats) > 1 or None in formats:
        raise Invalid(
            f"the sample is of {', '.join(sorted(each or 'an unknown format' for each in formats))}",
            expected="files of one format, named like 1.json, 1.jsonl, 1.csv or 1.parquet, also compressed",
            help="name other files, or rename them",
            reason="BAD_SAMPLE",
        )
    (format,) = formats
    assert format is not None, "it is none of the unknown ones"
    if format == "parquet":
        return Inferred(format, _pattern(names), _columns(_parquet_types(names), {}))
    options = _csv_options(names[0]) if format == "csv" else {}
    types: dict[str, Type] = {}
    numbers: dict[str, tuple[int, int]] = {}
    if format == "csv":
        records = _csv_records(names, options)
    else:
        records = _json_records(names)
    count, is_all = 0, True
    for record in records:
        if count == MAX_RECORDS:
            is_all = False
            break
        count += 1
        for name, value in record.items():
            types[name] = _merged(types.get(name, "void"), _type_of(value))
            if isinstance(value, Decimal):
                numbers[name] = _places(numbers.get(name, (0, 0)), value)
    if not count:
        raise Invalid(
            f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no records",
            expected="a sample with at least one record",
            help="name a file with records",
            reason="BAD_SAMPLE",
        )
    flat = {name: _text(kind) for name, kind in types.items()}
    return Inferred(format, _pattern(names), _columns(flat, numbers), options, count, is_all)


def declaration(name: str, inferred: Inferred) -> str:
    """Return Python code that declares the source."""
    used = [column for column in inferred.columns if not column.why_not]
    lines = [f"{name} = pipeline.source(", f'    "{name}",', "    Files(", f"        {json.dumps(inferred.pattern)},"]
    if format_of(inferred.pattern) != inferred.format:
        lines.append(f'        format="{inferred.format}",')
    for column in inferred.columns:
        if column.why_not:
            lines.append(f"        # left out: {json.dumps(column.name)}: {column.why_not}")
        elif column.note:
            lines.append(f"        # {column.name}: {column.note}")
    lines.append('        schema="""')
    ddl = [f"            {_name(column.name)} {column.type}" for column in used]
    lines += [f"{line}," for line in ddl[:-1]] + ddl[-1:]
    lines.append('        """,')
    if inferred.options:
        lines.append(f"        options={json.dumps(inferred.options)},")
    return "\n".join([*lines, "    ),", ")", ""])


def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return name
    return quoted(name)


def _columns(types: Mapping[str, str], numbers: Mapping[str, tuple[int, int]]) -> list[SampledColumn]:
    columns = []
    taken: set[str] = set()
    for name, kind in types.items():
        why_not = why_no_column(name, kind) or ""
        if "." in name:
            why_not = "a column cannot have this name"
        if not why_not and _ODD.search(name):
            why_not = "write it by hand: its name has a quote or a backslash"
        if not why_not and name.casefold() in taken:
            why_not = "it differs from another column only in case"
        if not why_not:
            taken.add(name.casefold())
        note = ""
        if kind == "double" and name in numbers and _MONEY.search(name):
            whole, places = numbers[name]
            places = max(places, 2)
            precision = min(max(12, whole + places + 4), 38)
            note = f"if it is money, write decimal({precision},{places}), which keeps each cent"
        columns.append(SampledColumn(name, kind, why_not, note))
    if all(column.why_not for column in columns):
        raise Invalid(
            "no key of the sample can be a column",
            expected="records with at least one key that is a name, and has a value",
            help="name another file",
            reason="BAD_SAMPLE",
        )
    return columns


def _pattern(names: list[str]) -> str:
    """Return a pattern for these files and later ones."""
    paths = [Path(name) for name in names]
    suffixes = set()
    for path in paths:
        suffixes.add("".join(path.suffixes[-2:] if format_of(path.stem) else path.suffixes[-1:]))
    name = f"*{suffixes.pop()}" if len(suffixes) == 1 else "*"
    folders = {path.parent for path in paths}
    if len(folders) == 1:
        return str(folders.pop() / name)
    common = Path(*_common([folder.parts for folder in folders]))
    return str(common / "**" / name)


def _common(parts: list[tuple[str, ...]]) -> list[str]:
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return shared


# -- values --------------------------------------------------------------------------------------------


def _type_of(value: Any) -> Type:
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return "bigint"
        if abs(value) < 10**38:
            return "decimal(38,0)"
        return "string"
    if isinstance(value, Decimal):
        return "double"
    if isinstance(value, dict):
        return {key: _type_of(member) for key, member in value.items()}
    if isinstance(value, list):
        element: Type = "void"
        for member in value:
            element = _merged(element, _type_of(member))
        return [element]
    return _type_of_text(value)


def _type_of_text(text: str) -> str:
    """Return `date` or a type of times for a text in ISO 8601, and `string` for any other."""
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return "date"
        if time_match := _TIME.fullmatch(text):
            datetime.fromisoformat(text[:19])
            return "timestamp" if time_match[1] else "timestamp_ntz"
    except ValueError:  # such as 2026-02-30
        return "string"
    return "string"


def _merged(one: Type, other: Type) -> Type:
    """Return the narrowest type for values of both."""
    if one == other or other == "void":
        return one
    if one == "void":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _merged(one.get(key, "void"), other.get(key, "void")) for key in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str):
        return common_type(one, other)
    return "string"


def _text(kind: Type) -> str:
    """Return a type as DDL. Fields that no value shows the type of are left out."""
    if isinstance(kind, list):
        element = _text(kind[0])
        return f"array<{'string' if element == 'void' else element}>"
    if isinstance(kind, dict):
        return _text_of_object(kind)
    return kind


def _text_of_object(fields: Mapping[str, Type]) -> str:
    """Return the type of an object. With very many fields they are data that is used as keys."""
    if len(fields) > MAX_NEW_COLUMNS:
        value: Type = "void"
        for kind in fields.values():
            value = _merged(value, kind)
        text = _text(value)
        return f"map<string, {'string' if text == 'void' else text}>"
    texts = {name: _text(kind) for name, kind in fields.items()}
    listed = [f"{_name(name)} {text}" for name, text in texts.items() if text != "void"]
    has_twins = len({name.casefold() for name in fields}) < len(fields)
    is_odd = any(_ODD.search(name) for name in fields)
    if listed and not has_twins and not is_odd:
        return f"struct<{', '.join(listed)}>"
    return "string"


def _places(known: tuple[int, int], value: Decimal) -> tuple[int, int]:
    """Return how many digits numbers have before and after the point."""
    exponent = value.as_tuple().exponent
    places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    return max(known[0], value.adjusted() + 1), max(known[1], places)


# -- files ---------------------------------------------------------------------------------------------


def _lines(name: str) -> Iterator[str]:
    import pyarrow as pa

    try:
        with pa.input_stream(name, compression="detect") as stream:
            yield from io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    except (OSError, pa.ArrowInvalid) as error:
        raise Unavailable(f"{name} cannot be read: {error}", help="name a file that you may read") from None
    except UnicodeDecodeError as error:
        raise _bad(name, f"it is not UTF-8: {error.reason}", "text in UTF-8") from None


def _json_records(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        for number, line in enumerate(_lines(name), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, parse_float=Decimal)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise _bad(name, f"line {number} is not one JSON object", "one JSON object on each line")
            yield record


def _csv_options(name: str) -> dict[str, str]:
    header = next(_lines(name), "")
    separator = max(",;\t|", key=header.count)
    return {"header": "true"} | ({"sep": separator} if separator != "," else {})


def _csv_records(names: Iterable[str], options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for name in names:
        for record in csv.DictReader(_lines(name), delimiter=options.get("sep", ",")):
            if None in record or None in record.values():
                raise _bad(name, "a record has more or fewer values than the header", "a header, and records like it")
            yield {key: _typed(text) for key, text in record.items()}


def _typed(text: str) -> Any:
    """Return the value that a text of CSV shows."""
    if not text:
        return None
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) <= 40 else text
    if _FRACTION.fullmatch(text):
        return Decimal(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _parquet_types(names: Iterable[str]) -> dict[str, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, str] = {}
    for name in names:
        try:
            schema = pq.read_schema(name)
        except (OSError, pa.ArrowInvalid) as error:
            raise Unavailable(f"{name} cannot be read: {error}", help="name a Parquet file") from None
        for column in schema:
            kind = _type_of_arrow(column.type)
            known = types.setdefault(column.name, kind)
            if known != kind:
                raise _bad(
                    name, f"column {column.name!r} is {kind}, and {known} in another file", "files of one schema"
                )
    return types


def _type_of_arrow(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _type_of_arrow(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_type_of_arrow(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_type_of_arrow(kind.key_type)}, {_type_of_arrow(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_name(part.name)} {_type_of_arrow(part.type)}' for part in kind)}>"
    spark_type = _ARROW_TYPES.get(str(kind))
    if spark_type is None:
        raise Invalid(
            f"a column of the sample has Arrow's type {kind}, for which there is none in Spark",
            expected="types that Spark reads from Parquet",
            help="name another file, or write the schema by hand",
            reason="BAD_SAMPLE",
        )
    return spark_type


def _bad(name: str, what: str, expected: str) -> Invalid:
    return Invalid(f"{name}: {what}", expected=expected, help="name another file", reason="BAD_SAMPLE")
