"""Parses the texts of JSON records: one row per record, with the reason if it is malformed.

Spark's reader of JSON files parses bytes. Here `from_json` parses text into the same columns, with one exception: if a
text column gets a number, `from_json` does not copy it as the record spells it, but formats it as a double (1.50
becomes 1.5, and only 17 of 36 digits remain). So for text columns the record is parsed a second time, with each number
that has a point or an exponent put between quotes, after a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.connectors.files.formats.exact_values import as_read, inner_types
from tidegate.connectors.files.formats.json_lines import is_flat_object, strange_keys, unread
from tidegate.connectors.schema.ddl import Column as Field
from tidegate.records.names import free_name, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["parse_records", "split_arrays"]

_MARK: Final = "\ue0f1"
"""A character of Unicode's private use area. It precedes each number that is put between quotes."""
_ESCAPED_MARK: Final = _MARK + "s"
"""Replaces the mark where a record itself contains it."""
_MARK_IN_JSON: Final = rf"{_MARK}|(?<!\\)(?:\\\\)*\\u[eE]0[fF]1"
_NUMBER: Final = r"[-+]?[0-9]+(?=[.eE])[0-9.eE+-]+"
_TOKENS: Final = r"""(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|'[^'\\]*+(?:\\.[^'\\]*+)*+'?|[^"']++"""
"""Matches the strings in a JSON text and the parts between them. Possessive, so long strings need no deep stack."""
_BLANK: Final = " \t\r\n"


def split_arrays(frame: DataFrame, parser: Mapping[str, str], carried: Sequence[str] = ()) -> DataFrame:
    """Return one row for each record in the texts `value`, each of which is a record or an array of records.

    A text that is neither is one malformed record. A blank text has no records.

    frame: has the columns `value` and `flaw`, which is why the text is malformed, or null. So has the result.
    carried: further columns of the frame, which the result has, too.
    """
    from pyspark.sql import functions as F

    value, flaw = F.col("value"), F.col("flaw")
    text = F.btrim(value, F.lit(_BLANK))
    frame = frame.where(text != F.lit("")).select(
        value,
        F.when(flaw.isNotNull(), flaw)
        .when(value.rlike(r"\A[\x00-\x20]*\z"), "")  # from_json would return null without reporting it
        .when(is_flat_object(text), F.lit(None))  # true for most records, so they need no parser
        .when(unread(value, parser), "unread")
        .alias("flaw"),
        *carried,
    )
    record_type = "struct<value:string,flaw:string>"
    one_record = F.array(F.struct(value, flaw).cast(record_type))
    elements = F.from_json(_marked(value), "array<string>", {**parser, "mode": "PERMISSIVE"})

    def to_record(element: Column) -> Column:
        record = _unmarked(F.coalesce(element, F.lit("null")))
        return F.struct(record.alias("value"), F.lit(None).cast("string").alias("flaw")).cast(record_type)

    elements_as_records = F.transform(elements, to_record)
    # An element that is a string is malformed, even if its text looks like a record: `elements` does not tell the two
    # apart.
    variants = F.from_json(value, "array<variant>", {**parser, "mode": "PERMISSIVE"})
    has_strings = F.exists(variants, lambda element: F.schema_of_variant(element) == F.lit("STRING"))
    may_have_strings = value.rlike(r"""["']\s*(?:\{|\\)""")
    malformed_text = F.array(F.struct(value, F.lit("").alias("flaw")).cast(record_type))
    records = (
        F.when(~text.startswith("[") | flaw.isNotNull(), one_record)
        .when(elements.isNull() | (may_have_strings & F.coalesce(has_strings, F.lit(True))), malformed_text)
        .otherwise(elements_as_records)
    )
    return frame.select(F.explode(records).alias("record"), *carried).select("record.value", "record.flaw", *carried)


def parse_records(
    frame: DataFrame,
    columns: list[Field],
    carried: Sequence[str],
    parser: Mapping[str, str],
    *,
    text: str,
    why: str,
    all_keys: bool,
    judge_keys: bool = True,
) -> DataFrame:
    """Return the columns as they are read, the text of each record, and why it is malformed, or null.

    frame: has the columns `value`, the text of a record or null, `flaw`, why it is malformed as far as that is known,
        and those of `carried`.
    carried: SQL for further columns of the frame, which the result has, too.
    text, why: the names of the result's columns for the text and the reason.
    all_keys: every key that the schema lacks makes a record malformed. Otherwise only one does that differs from a
        missing column in nothing but case.
    judge_keys: False if it is known that all keys are in the schema.
    """
    from pyspark.sql import functions as F

    read_columns = as_read(columns)
    corrupt = free_name("_corrupt", [column.name for column in read_columns])
    fields = ", ".join(column.ddl for column in (*read_columns, Field(corrupt, "string")))
    options = {**parser, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    value, flaw, parsed, exact = F.col("value"), F.col("flaw"), F.col("parsed"), F.col("exact")
    frame = frame.select(value, flaw, F.from_json(value, fields, options).alias("parsed"), *carried)
    texts = [column for column in read_columns if _has_text(column.type)]
    if texts:
        text_fields = ", ".join(Field(_escaped(column.name), _all_text(column.type)).ddl for column in texts)
        parsed_marked = F.from_json(_marked(value), text_fields, {**parser, "mode": "PERMISSIVE"})
        parsed_again = F.when(_may_be_inexact(texts, parsed, value), parsed_marked)
        frame = frame.select(value, flaw, "parsed", parsed_again.alias("exact"), *carried)
    values = []
    for column in read_columns:
        column_value = parsed[column.name]
        if column in texts:
            with_exact_texts = _with_exact_texts(column.type, column_value, exact[_escaped(column.name)])
            column_value = F.when(exact.isNull(), column_value).otherwise(with_exact_texts)
        values.append(column_value.alias(column.name))
    malformed = F.when(flaw.isin("bytes", ""), flaw).when(parsed[corrupt].isNotNull(), "").when(flaw.isNotNull(), flaw)
    if judge_keys:
        # A key that is spelled differently leaves its column null. Most records have no null, and skip the check.
        suspect = F.lit(all_keys or any("struct<" in column.type for column in columns))
        for column in read_columns:
            suspect = suspect | parsed[column.name].isNull()
        strange = strange_keys(value, columns, parser, all_of_them=all_keys)
        malformed = malformed.when(value.isNotNull() & suspect & strange, "keys")
    return frame.select(*values, value.alias(text), malformed.alias(why), *carried)


def _may_be_inexact(texts: list[Field], parsed: Column, value: Column) -> Column:
    """Return whether a text column may have a number, alone or in an object, that the record spells differently."""
    from pyspark.sql import functions as F

    plain = [column for column in texts if column.type == "string"]
    conditions = [parsed[column.name].rlike(r"\A-?[0-9]+[.eE]|\A[\[{].*[0-9][.eE]") for column in plain]
    if len(plain) < len(texts):
        conditions.append(value.rlike("[0-9][.eE]"))
    any_inexact = F.lit(False)
    for condition in conditions:
        any_inexact = any_inexact | F.coalesce(condition, F.lit(False))
    return any_inexact


def _marked(value: Column) -> Column:
    """Return a JSON text in which each number with a point or an exponent is marked and put between quotes.

    Where the text itself contains the mark, the mark is escaped. `_unmarked` undoes both.
    """
    from pyspark.sql import functions as F

    def mark(token: Column) -> Column:
        is_text = token.startswith('"') | token.startswith("'")
        return F.when(is_text, token).otherwise(F.regexp_replace(token, _NUMBER, f'"{_MARK}$0"'))

    value = F.when(value.rlike(_MARK_IN_JSON), F.regexp_replace(value, _MARK_IN_JSON, "$0s")).otherwise(value)
    tokens = F.regexp_extract_all(value, F.lit(_TOKENS), F.lit(0))
    return F.when(value.rlike(_NUMBER), F.array_join(F.transform(tokens, mark), "")).otherwise(value)


def _unmarked(text: Column) -> Column:
    from pyspark.sql import functions as F

    number = F.substring(text, F.lit(len(_MARK) + 1), F.length(text))
    with_numbers = F.regexp_replace(text, f'"{_MARK}(?!s)([^"]*)"', "$1")
    original = F.replace(with_numbers, F.lit(_ESCAPED_MARK), F.lit(_MARK))
    return F.when(text.startswith(_MARK) & ~text.startswith(_ESCAPED_MARK), number).otherwise(original)


def _escaped(key: str) -> str:
    """Return a key as it is in a marked text."""
    return key.replace(_MARK, _ESCAPED_MARK)


def _with_exact_texts(kind: str, parsed: Column, exact: Column) -> Column:
    """Return the parsed value with each text as the record spells it. exact: the value as parsed from marked text."""
    from pyspark.sql import functions as F

    outer, inner = inner_types(kind)
    if outer == "string":
        return F.when(parsed.isNotNull(), F.coalesce(_unmarked(exact), parsed))
    if not _has_text(kind):
        return parsed
    if outer == "array":
        return F.transform(
            parsed, lambda element, index: _with_exact_texts(inner[0].type, element, F.get(exact, index))
        )
    if outer == "map":

        def exact_item(key: Column, item: Column) -> Column:
            escaped_key = F.replace(key, F.lit(_MARK), F.lit(_ESCAPED_MARK))
            return _with_exact_texts(inner[1].type, item, exact[escaped_key])

        return F.transform_values(parsed, exact_item)
    members = []
    for field in inner:
        member = _with_exact_texts(field.type, parsed[field.name], exact[_escaped(field.name)])
        members.append(member.alias(field.name))
    return F.when(parsed.isNotNull(), F.struct(*members))


def _has_text(kind: str) -> bool:
    """Return whether a type has texts. Keys of maps do not count."""
    outer, inner = inner_types(kind)
    if outer == "map":
        inner = inner[1:]
    return outer == "string" or any(_has_text(part.type) for part in inner)


def _all_text(kind: str) -> str:
    """Return the type with text in place of each value."""
    outer, inner = inner_types(kind)
    if outer == "array":
        return f"array<{_all_text(inner[0].type)}>"
    if outer == "map":
        return f"map<{inner[0].type},{_all_text(inner[1].type)}>"
    if outer == "struct":
        fields = [f"{quoted(_escaped(field.name))}:{_all_text(field.type)}" for field in inner]
        return f"struct<{','.join(fields)}>"
    return "string"
