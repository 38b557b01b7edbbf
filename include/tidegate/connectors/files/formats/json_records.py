"""Records in JSON, as text, to columns: one record, one row, with the reason if it is malformed.

Spark's reader of JSON files parses bytes; of text, `from_json` makes the same columns, with one exception: where a
column is text, it does not copy a number as the record spells it, but as a double is written (1.50 becomes 1.5, and of
36 digits 17 stay). So numbers with a point or an exponent are put between quotes, with a mark, and parsed once more for
the columns that are text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.connectors.ddl import Column as Field
from tidegate.connectors.files.formats.exact_values import as_read, inner_types
from tidegate.connectors.files.formats.json_lines import is_flat_object, strange_keys, unread
from tidegate.records.names import free_name, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["parse_records", "split_arrays"]

_MARK: Final = "\ue0f1"
"""Of Unicode's private use: in front of a number that is put between quotes."""
_OWN: Final = _MARK + "s"
"""In place of the mark where a record has it itself."""
_OWN_IN_JSON: Final = rf"{_MARK}|(?<!\\)(?:\\\\)*\\u[eE]0[fF]1"
_NUMBER: Final = r"[-+]?[0-9]+(?=[.eE])[0-9.eE+-]+"
_TOKENS: Final = r"""(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|'[^'\\]*+(?:\\.[^'\\]*+)*+'?|[^"']++"""
"""The strings of a text in JSON, and what is between them. Possessive, so that no long string needs a deep stack."""
_BLANK: Final = " \t\r\n"


def split_arrays(frame: DataFrame, parser: Mapping[str, str]) -> DataFrame:
    """Return one row for each record of texts `value`, which may be arrays of records; `flaw` is why it is malformed,
    if that is known. A text that is neither one record nor one array is one malformed record; one that is blank is
    none.

    frame: has columns `value`, and `flaw`.
    """
    from pyspark.sql import functions as F

    value, flaw = F.col("value"), F.col("flaw")
    text = F.btrim(value, F.lit(_BLANK))
    frame = frame.where(text != F.lit("")).select(
        value,
        F.when(flaw.isNotNull(), flaw)
        .when(value.rlike(r"\A[\x00-\x20]*\z"), "")  # which from_json takes for nothing at all
        .when(is_flat_object(text), F.lit(None))  # as most records are
        .when(unread(value, parser), "unread")
        .alias("flaw"),
    )
    kind = "struct<value:string,flaw:string>"
    alone = F.array(F.struct(value, flaw).cast(kind))
    elements = F.from_json(_marked(value), "array<string>", {**parser, "mode": "PERMISSIVE"})
    records = F.transform(
        elements,
        lambda element: F.struct(
            _unmarked(F.coalesce(element, F.lit("null"))).alias("value"), F.lit(None).cast("string").alias("flaw")
        ).cast(kind),
    )
    kinds = F.from_json(value, "array<variant>", {**parser, "mode": "PERMISSIVE"})
    strings = F.exists(kinds, lambda element: F.schema_of_variant(element) == F.lit("STRING"))
    may_hold_strings = value.rlike(r"""["']\s*(?:\{|\\)""")  # whose text looks like a record
    broken = F.array(F.struct(value, F.lit("").alias("flaw")).cast(kind))
    found = (
        F.when(~text.startswith("[") | flaw.isNotNull(), alone)
        .when(elements.isNull() | (may_hold_strings & F.coalesce(strings, F.lit(True))), broken)
        .otherwise(records)
    )
    return frame.select(F.explode(found).alias("record")).select("record.value", "record.flaw")


def parse_records(
    frame: DataFrame,
    columns: list[Field],
    rest: Sequence[str],
    parser: Mapping[str, str],
    *,
    text: str,
    why: str,
    all_keys: bool,
    judge_keys: bool = True,
) -> DataFrame:
    """Return the columns as they are read, the text of each record, and why it is malformed, if it is.

    frame: has columns `value` (a record's text; null: it has none), `flaw` (why it is malformed, if that is known), and
        those of `rest`, which is SQL.
    text, why: the names of the two columns.
    all_keys: a record with keys that the schema lacks is malformed. Otherwise only one whose keys differ from a missing
        column in nothing but upper and lower case.
    judge_keys: False: the keys of all records are known to be those of the schema.
    """
    from pyspark.sql import functions as F

    read = as_read(columns)
    corrupt = free_name("_corrupt", [column.name for column in read])
    fields = ", ".join(column.ddl for column in (*read, Field(corrupt, "string")))
    options = {**parser, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    value, flaw, parsed, exact = F.col("value"), F.col("flaw"), F.col("parsed"), F.col("exact")
    frame = frame.select(value, flaw, F.from_json(value, fields, options).alias("parsed"), *rest)
    texts = [column for column in read if _has_text(column.type)]
    if texts:
        as_text = ", ".join(Field(_escaped(column.name), _all_text(column.type)).ddl for column in texts)
        again = F.from_json(_marked(value), as_text, {**parser, "mode": "PERMISSIVE"})
        frame = frame.select(
            value, flaw, "parsed", F.when(_may_be_inexact(texts, parsed, value), again).alias("exact"), *rest
        )
    made = []
    for column in read:
        made_of = parsed[column.name]
        if column in texts:
            copied = _copied(column.type, made_of, exact[_escaped(column.name)])
            made_of = F.when(exact.isNull(), made_of).otherwise(copied)
        made.append(made_of.alias(column.name))
    malformed = F.when(flaw.isin("bytes", ""), flaw).when(parsed[corrupt].isNotNull(), "").when(flaw.isNotNull(), flaw)
    if judge_keys:
        # A key that is spelled differently leaves its column null: most records have none.
        suspect = F.lit(all_keys or any("struct<" in column.type for column in columns))
        for column in read:
            suspect = suspect | parsed[column.name].isNull()
        strange = strange_keys(value, columns, parser, all_of_them=all_keys)
        malformed = malformed.when(value.isNotNull() & suspect & strange, "keys")
    return frame.select(*made, value.alias(text), malformed.alias(why), *rest)


def _may_be_inexact(texts: list[Field], parsed: Column, value: Column) -> Column:
    """Return whether a column that is text may hold a number, or an object with numbers, that is not as it was."""
    from pyspark.sql import functions as F

    plain = [column for column in texts if column.type == "string"]
    looks = [
        F.coalesce(parsed[column.name].rlike(r"\A-?[0-9]+[.eE]|\A[\[{].*[0-9][.eE]"), F.lit(False)) for column in plain
    ]
    if len(plain) < len(texts):
        looks.append(F.coalesce(value.rlike("[0-9][.eE]"), F.lit(False)))
    found = looks[0]
    for each in looks[1:]:
        found = found | each
    return found


def _marked(value: Column) -> Column:
    """Return a text in JSON with each number that has a point or an exponent between quotes, and marked. The mark
    itself, in keys and in texts, is escaped: `_unmarked` takes back both."""
    from pyspark.sql import functions as F

    def mark(token: Column) -> Column:
        is_text = token.startswith('"') | token.startswith("'")
        return F.when(is_text, token).otherwise(F.regexp_replace(token, _NUMBER, f'"{_MARK}$0"'))

    value = F.when(value.rlike(_OWN_IN_JSON), F.regexp_replace(value, _OWN_IN_JSON, "$0s")).otherwise(value)
    tokens = F.regexp_extract_all(value, F.lit(_TOKENS), F.lit(0))
    return F.when(value.rlike(_NUMBER), F.array_join(F.transform(tokens, mark), "")).otherwise(value)


def _unmarked(text: Column) -> Column:
    from pyspark.sql import functions as F

    numbers = F.regexp_replace(text, f'"{_MARK}(?!s)([^"]*)"', "$1")
    number = F.substring(text, F.lit(len(_MARK) + 1), F.length(text))
    as_it_was = F.replace(numbers, F.lit(_OWN), F.lit(_MARK))
    return F.when(text.startswith(_MARK) & ~text.startswith(_OWN), number).otherwise(as_it_was)


def _escaped(key: str) -> str:
    """Return a key as it is in a text that is marked."""
    return key.replace(_MARK, _OWN)


def _copied(kind: str, parsed: Column, exact: Column) -> Column:
    """Return a value with each text as the record spells it, and all else as parsed."""
    from pyspark.sql import functions as F

    outer, inner = inner_types(kind)
    if outer == "string":
        return F.when(parsed.isNotNull(), F.coalesce(_unmarked(exact), parsed))
    if not _has_text(kind):
        return parsed
    if outer == "array":
        return F.transform(parsed, lambda each, at: _copied(inner[0].type, each, F.get(exact, at)))
    if outer == "map":
        mark, own = F.lit(_MARK), F.lit(_OWN)
        return F.transform_values(
            parsed, lambda key, each: _copied(inner[1].type, each, exact[F.replace(key, mark, own)])
        )
    made = (_copied(each.type, parsed[each.name], exact[_escaped(each.name)]).alias(each.name) for each in inner)
    return F.when(parsed.isNotNull(), F.struct(*made))


def _has_text(kind: str) -> bool:
    outer, inner = inner_types(kind)
    return outer == "string" or any(_has_text(each.type) for each in (inner[1:] if outer == "map" else inner))


def _all_text(kind: str) -> str:
    """Return a type with text in place of each value."""
    outer, inner = inner_types(kind)
    if outer == "array":
        return f"array<{_all_text(inner[0].type)}>"
    if outer == "map":
        return f"map<{inner[0].type},{_all_text(inner[1].type)}>"
    if outer == "struct":
        return f"struct<{','.join(f'{quoted(_escaped(each.name))}:{_all_text(each.type)}' for each in inner)}>"
    return "string"
