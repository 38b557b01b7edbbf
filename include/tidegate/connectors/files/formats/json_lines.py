"""Detect what Spark's JSON reader ignores silently: the rest of a line, and keys that are not in the schema.

Both checks work on the text itself, not with a list of separators that users are known to have put between records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.connectors.ddl import Column as Field
from tidegate.connectors.files.formats.exact_values import inner_types
from tidegate.records.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["DECODED", "as_text", "is_flat_object", "no_utf8", "strange_keys", "unread"]

BLANK: Final = " \\t\\r\\n"
"""JSON's whitespace, as an SQL literal."""

DECODED: Final = ("US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16BE", "UTF-16LE", "UTF-16", "UTF-32")


def as_text(encoding: str) -> Column:
    """Return column `value` as text, without a byte order mark. Encodings that Spark cannot decode are read as
    ISO-8859-1: the characters that matter here are the same."""
    from pyspark.sql import functions as F

    name = encoding.upper() or "UTF-8"
    text = F.col("value")
    if name != "UTF-8":
        text = F.decode(text.cast("binary"), name if name in DECODED else "ISO-8859-1")
    return F.ltrim(text, F.lit("\ufeff"))


def unread(value: Column, parser: Mapping[str, str]) -> Column:
    """Return whether a text is more, or less, than one JSON value: then the parser does not reach its end.

    The text is put where one value may stand, once as a member of an object and once as an element of an array,
    followed by a word that only this text has. A parser that finds the word there has read all of the text, and only
    a single value can stand in both places. Most texts need no parser: if the only opening brace is at the beginning
    and the only closing brace at the end, nothing can follow.
    """
    from pyspark.sql import functions as F

    text = F.btrim(value, F.lit(" \t\r\n"))
    word = F.xxhash64(value).cast("string")
    both = F.concat(F.lit('{"a":'), text, F.lit('\n,"b":['), text, F.lit('\n],"end":"'), word, F.lit('"}'))
    parsed_word = F.from_json(both, "end string", {**parser, "mode": "PERMISSIVE"})["end"]
    return (text != F.lit("")) & ~is_flat_object(text) & ~parsed_word.eqNullSafe(word)


def is_flat_object(text: Column) -> Column:
    """Return whether a text has one opening brace, at its beginning, and one closing brace, at its end."""
    return text.rlike(r"\A\{[^{}]*\}\z")


def strange_keys(value: Column, columns: list[Field], parser: Mapping[str, str], *, all_of_them: bool) -> Column:
    """Return whether a record has keys that the schema lacks.

    Without `all_of_them`, only keys count that differ from a missing column in nothing but upper and lower case:
    Spark's reader treats the two as different, and the column would be null.
    """
    from pyspark.sql import functions as F

    options = {**parser, "mode": "PERMISSIVE"}
    judged = _has_strange_keys(value, _struct_type(columns), options, all_of_them)
    assert judged is not None
    any_element = F.exists(
        F.from_json(value, "array<string>", options),
        lambda x: F.coalesce(_has_strange_keys(x, _struct_type(columns), options, all_of_them), F.lit(False)),  # type: ignore[arg-type]
    )
    whole = F.when(F.btrim(value, F.lit(" \t\r\n")).startswith("["), any_element).otherwise(judged)
    if all_of_them or any(key.lower() == "allowunquotedfieldnames" for key in parser):
        return F.coalesce(whole, F.lit(False))
    names = "|".join(sorted({re.escape(name) for name in _field_names(_struct_type(columns))}))
    alike = f"[\"'](?:{names})[\"']"
    return F.coalesce(value.rlike(f"(?i:{alike})(?<!{alike})") & whole, F.lit(False))


def no_utf8() -> Column:
    """Return whether column `value` holds bytes that are not UTF-8, which a CSV reader replaces by U+FFFD."""
    from pyspark.sql import functions as F

    return ~F.is_valid_utf8(F.col("value"))


def _struct_type(columns: list[Field]) -> str:
    return f"struct<{','.join(f'{quoted(column.name)}:{column.type}' for column in columns)}>"


def _field_names(kind: str) -> Iterator[str]:
    """Yield the field names of all structs in a type."""
    outer, inner = inner_types(kind)
    for field in inner:
        if outer == "struct":
            yield field.name
        yield from _field_names(field.type)


def _has_strange_keys(text: Column, kind: str, options: dict[str, str], all_of_them: bool) -> Column | None:
    """Return whether the JSON of a value of this type has strange keys. None: the type contains no structs."""
    from pyspark.sql import functions as F

    outer, inner = inner_types(kind)
    if outer in ("array", "map"):
        element = inner[-1].type
        if _has_strange_keys(F.lit(""), element, options, all_of_them) is None:
            return None
        parts = F.from_json(text, "array<string>" if outer == "array" else "map<string,string>", options)
        values = parts if outer == "array" else F.map_values(parts)

        def strange(x: Column) -> Column:
            judged = _has_strange_keys(x, element, options, all_of_them)
            assert judged is not None
            return F.coalesce(judged, F.lit(False))

        return F.exists(values, strange)
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
        deeper = _has_strange_keys(members[field.name], field.type, options, all_of_them)
        if deeper is not None:
            has_strange = has_strange | F.coalesce(deeper, F.lit(False))
    return F.coalesce(has_strange, F.lit(False))
