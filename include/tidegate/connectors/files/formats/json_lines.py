"""Detects what Spark's JSON reader ignores silently: the rest of a line, and keys that the schema lacks.

Both checks parse the text itself, so they do not depend on which separators users put between records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.connectors.files.formats.exact_values import inner_types
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["DECODED", "as_text", "is_flat_object", "no_utf8", "strange_keys", "unread"]

BLANK: Final = " \\t\\r\\n"
"""JSON's whitespace, as an SQL literal."""

DECODED: Final = ("US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16BE", "UTF-16LE", "UTF-16", "UTF-32")


def as_text(encoding: str) -> Column:
    """Return the column `value` as text, without a byte order mark.

    Encodings that Spark cannot decode are read as ISO-8859-1: JSON's syntax has the same bytes in them.
    """
    from pyspark.sql import functions as F

    name = encoding.upper() or "UTF-8"
    text = F.col("value")
    if name != "UTF-8":
        text = F.decode(text.cast("binary"), name if name in DECODED else "ISO-8859-1")
    return F.ltrim(text, F.lit("\ufeff"))


def unread(value: Column, parser: Mapping[str, str]) -> Column:
    """Return whether a text is not exactly one JSON value, so that Spark's parser would not reach its end.

    The text is inserted twice in a JSON document, once as a member of an object and once as an element of an array, and
    a word that only this text has is put at the end. If the parser finds the word, it has read the whole text, and the
    text is a single value because only that is valid in both places. Most texts need no parser: if the only opening
    brace is at the beginning and the only closing brace at the end, nothing can follow.
    """
    from pyspark.sql import functions as F

    text = F.btrim(value, F.lit(" \t\r\n"))
    word = F.xxhash64(value).cast("string")
    document = F.concat(F.lit('{"a":'), text, F.lit('\n,"b":['), text, F.lit('\n],"end":"'), word, F.lit('"}'))
    parsed_word = F.from_json(document, "end string", {**parser, "mode": "PERMISSIVE"})["end"]
    return (text != F.lit("")) & ~is_flat_object(text) & ~parsed_word.eqNullSafe(word)


def is_flat_object(text: Column) -> Column:
    """Return whether a text has a single opening brace, at the start, and a single closing brace, at the end."""
    return text.rlike(r"\A\{[^{}]*\}\z")


def strange_keys(value: Column, columns: list[Field], parser: Mapping[str, str], *, all_of_them: bool) -> Column:
    """Return whether a record has keys that the schema lacks.

    all_of_them: count every such key. Otherwise only those count that differ from a missing column in nothing but case:
        Spark's reader treats the two as different, so the column would be null.
    """
    from pyspark.sql import functions as F

    options = {**parser, "mode": "PERMISSIVE"}
    in_record = _has_strange_keys(value, _struct_type(columns), options, all_of_them)
    assert in_record is not None
    in_any_element = F.exists(
        F.from_json(value, "array<string>", options),
        lambda x: F.coalesce(_has_strange_keys(x, _struct_type(columns), options, all_of_them), F.lit(False)),  # type: ignore[arg-type]
    )
    is_array = F.btrim(value, F.lit(" \t\r\n")).startswith("[")
    is_strange = F.when(is_array, in_any_element).otherwise(in_record)
    if all_of_them or any(key.lower() == "allowunquotedfieldnames" for key in parser):
        return F.coalesce(is_strange, F.lit(False))
    # Parsing again is only worth it if the text has a name of the schema in another case.
    names = "|".join(sorted({re.escape(name) for name in _field_names(_struct_type(columns))}))
    quoted_name = f"[\"'](?:{names})[\"']"
    has_other_case = value.rlike(f"(?iu:{quoted_name})(?<!{quoted_name})")
    return F.coalesce(has_other_case & is_strange, F.lit(False))


def no_utf8() -> Column:
    """Return whether the column `value` has bytes that are not UTF-8. Spark's CSV reader replaces them by U+FFFD."""
    from pyspark.sql import functions as F

    return ~F.is_valid_utf8(F.col("value"))


def _struct_type(columns: list[Field]) -> str:
    fields = [f"{quoted(column.name)}:{column.type}" for column in columns]
    return f"struct<{','.join(fields)}>"


def _field_names(kind: str) -> Iterator[str]:
    """Yield the field names of all structs in a type."""
    outer, inner = inner_types(kind)
    for field in inner:
        if outer == "struct":
            yield field.name
        yield from _field_names(field.type)


def _has_strange_keys(text: Column, kind: str, options: dict[str, str], all_of_them: bool) -> Column | None:
    """Return whether the JSON of a value of this type has strange keys, or None if the type contains no structs."""
    from pyspark.sql import functions as F

    outer, inner = inner_types(kind)
    if outer in ("array", "map"):
        element = inner[-1].type
        if _has_strange_keys(F.lit(""), element, options, all_of_them) is None:
            return None
        if outer == "array":
            values = F.from_json(text, "array<string>", options)
        else:
            values = F.map_values(F.from_json(text, "map<string,string>", options))

        def is_strange(x: Column) -> Column:
            has_strange = _has_strange_keys(x, element, options, all_of_them)
            assert has_strange is not None
            return F.coalesce(has_strange, F.lit(False))

        return F.exists(values, is_strange)
    if outer != "struct":
        return None
    members = F.from_json(text, "map<string,string>", options)
    keys, names = F.map_keys(members), F.array(*(F.lit(field.name) for field in inner))
    if all_of_them:
        has_strange = F.size(F.array_except(keys, names)) > 0
    else:
        lower = F.transform(keys, F.lower)
        has_strange = F.exists(F.array_except(names, keys), lambda name: F.array_contains(lower, F.lower(name)))
    for field in inner:
        in_member = _has_strange_keys(members[field.name], field.type, options, all_of_them)
        if in_member is not None:
            has_strange = has_strange | F.coalesce(in_member, F.lit(False))
    return F.coalesce(has_strange, F.lit(False))
