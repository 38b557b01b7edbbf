"""What Spark's JSON reader would pass over in silence: the rest of a line, and keys that are not in the schema.

Both are judged on the text itself, and not by a list of what people are known to have put between two records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidegate.records.names import quoted
from tidegate.sources.ddl import Column as Field
from tidegate.sources.files.exact_values import inner_types

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["as_text", "no_utf8", "strange_keys", "unread"]

BLANK: Final = " \\t\\r\\n"
"""What JSON takes for nothing, as SQL writes it."""

DECODED: Final = ("US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16BE", "UTF-16LE", "UTF-16", "UTF-32")


def as_text(encoding: str) -> Column:
    """Column `value` as text, without a byte order mark. What Spark cannot decode is like ASCII in what counts."""
    from pyspark.sql import functions as F

    name = encoding.upper() or "UTF-8"
    text = F.col("value")
    if name != "UTF-8":
        text = F.decode(text.cast("binary"), name if name in DECODED else "ISO-8859-1")
    return F.ltrim(text, F.lit("\ufeff"))


def unread(value: Column, parser: Mapping[str, str]) -> Column:
    """Whether a text is more, or less, than one JSON value: then the parser does not come to the end of it.

    The text is put where one value may stand, once as a member of an object and once as an element of an array, and
    behind it a word that only this text has. A parser that finds the word there has read all of the text; and what may
    stand in both places is one value. Most texts need no parser: with one brace that opens, at the beginning, and one
    that closes, at the end, there is nothing behind.
    """
    from pyspark.sql import functions as F

    text = F.btrim(value, F.lit(" \t\r\n"))
    flat = (F.substring(text, 1, 1) == "{") & (F.locate("{", text, 2) == 0) & (F.locate("}", text) == F.length(text))
    word = F.xxhash64(value).cast("string")
    both = F.concat(F.lit('{"a":'), text, F.lit('\n,"b":['), text, F.lit('\n],"end":"'), word, F.lit('"}'))
    told = F.from_json(both, "end string", {**parser, "mode": "PERMISSIVE"})["end"]
    return (text != F.lit("")) & ~flat & ~told.eqNullSafe(word)


def strange_keys(value: Column, columns: list[Field], parser: Mapping[str, str], *, all_of_them: bool) -> Column:
    """Whether a record has keys that the schema lacks. Else only those that are a missing one but for upper and lower
    case: to Spark's reader these are two, and the column would be null."""
    from pyspark.sql import functions as F

    options = {**parser, "mode": "PERMISSIVE"}
    judged = _judge(value, f"struct<{','.join(f'{quoted(c.name)}:{c.type}' for c in columns)}>", options, all_of_them)
    assert judged is not None
    each = F.exists(
        F.from_json(value, "array<string>", options),
        lambda x: F.coalesce(_judge(x, _struct(columns), options, all_of_them), F.lit(False)),  # type: ignore[arg-type]
    )
    whole = F.when(F.btrim(value, F.lit(" \t\r\n")).startswith("["), each).otherwise(judged)
    if all_of_them or any(key.lower() == "allowunquotedfieldnames" for key in parser):
        return F.coalesce(whole, F.lit(False))
    names = "|".join(sorted({re.escape(name) for name in _names(_struct(columns))}))
    alike = f"[\"'](?:{names})[\"']"
    return F.coalesce(value.rlike(f"(?i:{alike})(?<!{alike})") & whole, F.lit(False))


def no_utf8() -> Column:
    """Whether column `value` holds bytes that are no UTF-8, which a CSV reader makes into U+FFFD."""
    from pyspark.sql import functions as F

    return ~F.is_valid_utf8(F.col("value"))


def _struct(columns: list[Field]) -> str:
    return f"struct<{','.join(f'{quoted(column.name)}:{column.type}' for column in columns)}>"


def _names(kind: str) -> Iterator[str]:
    """Of all structs in a type."""
    outer, inner = inner_types(kind)
    for field in inner:
        if outer == "struct":
            yield field.name
        yield from _names(field.type)


def _judge(text: Column, kind: str, options: dict[str, str], all_of_them: bool) -> Column | None:
    """On the JSON of a value of this type. None: there are no structs in it."""
    from pyspark.sql import functions as F

    outer, inner = inner_types(kind)
    if outer in ("array", "map"):
        element = inner[-1].type
        if _judge(F.lit(""), element, options, all_of_them) is None:
            return None
        parts = F.from_json(text, "array<string>" if outer == "array" else "map<string,string>", options)
        values = parts if outer == "array" else F.map_values(parts)

        def strange(x: Column) -> Column:
            found = _judge(x, element, options, all_of_them)
            assert found is not None
            return F.coalesce(found, F.lit(False))

        return F.exists(values, strange)
    if outer != "struct":
        return None
    members = F.from_json(text, "map<string,string>", options)
    keys, names = F.map_keys(members), F.array(*(F.lit(field.name) for field in inner))
    if all_of_them:
        found = F.size(F.array_except(keys, names)) > 0
    else:
        lower = F.transform(keys, F.lower)
        found = F.exists(F.array_except(names, keys), lambda name: F.array_contains(lower, F.lower(name)))
    for field in inner:
        deeper = _judge(members[field.name], field.type, options, all_of_them)
        if deeper is not None:
            found = found | F.coalesce(deeper, F.lit(False))
    return F.coalesce(found, F.lit(False))
