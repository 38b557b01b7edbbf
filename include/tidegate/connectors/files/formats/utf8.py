"""Bytes that should be text, in Spark: whether they are UTF-8, and how they are written where they are not.

Spark checks no text that it reads, so a table can come to hold bytes that other readers (pandas, delta-rs) refuse for
ever. Where a malformed record is kept, they are written as `readable_text` writes them.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tidegate.records.readable import readable_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["decode_lines", "is_utf8", "is_utf8_sql", "readable_sql"]

_SEQUENCES: Final = (
    "[\\x00-\\x7F]++",
    "[\\xC2-\\xDF][\\x80-\\xBF]",
    "\\xE0[\\xA0-\\xBF][\\x80-\\xBF]",
    "[\\xE1-\\xEC\\xEE\\xEF][\\x80-\\xBF]{2}",
    "\\xED[\\x80-\\x9F][\\x80-\\xBF]",
    "\\xF0[\\x90-\\xBF][\\x80-\\xBF]{2}",
    "[\\xF1-\\xF3][\\x80-\\xBF]{3}",
    "\\xF4[\\x80-\\x8F][\\x80-\\xBF]{2}",
)
"""What is UTF-8, by table 3-7 of Unicode, in characters that stand for one byte each."""

_PARTS: Final = "|".join((*_SEQUENCES, "[\\x80-\\xFF]")).replace("\\", "\\\\")


def is_utf8(encoding: str) -> bool:
    """Return whether this is the name of UTF-8; empty: none is named."""
    return encoding.lower() in ("", "utf-8", "utf8")


def is_utf8_sql(value: str) -> str:
    """Return SQL that is true if a text, or bytes, are UTF-8."""
    return f"is_valid_utf8(CAST({value} AS string))"


def readable_sql(value: str) -> str:
    """Return SQL for a text, or bytes, as text that everybody can read. Text in UTF-8 stays as it is."""
    bytes_as_text = f"decode(CAST({value} AS binary), 'ISO-8859-1')"
    marked = f"replace({bytes_as_text}, '\\\\x', '\\\\x5Cx')"
    part = "CAST(encode(part, 'ISO-8859-1') AS string)"
    written = f"CASE WHEN is_valid_utf8({part}) THEN {part} ELSE concat('\\\\x', hex(encode(part, 'ISO-8859-1'))) END"
    escaped = f"array_join(transform(regexp_extract_all({marked}, '{_PARTS}', 0), part -> {written}), '')"
    return f"CASE WHEN {is_utf8_sql(value)} THEN CAST({value} AS string) ELSE {escaped} END"


def decode_lines(lines: DataFrame, encoding: str) -> DataFrame:
    """Return the texts of column `value`, of bytes in this encoding, and in `broken` whether some are not.

    Spark's own function knows few encodings, and fails at the first byte that is no text.
    """
    if is_utf8(encoding):
        return lines.selectExpr(f"{readable_sql('value')} AS value", f"NOT {is_utf8_sql('value')} AS broken")
    return lines.selectExpr("CAST(value AS binary) AS value").mapInArrow(
        _decoder(codecs.lookup(encoding).name), "value string, broken boolean"
    )


def _decoder(encoding: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            texts = [readable_text(value, encoding) for value in batch["value"].to_pylist()]
            columns = [pa.array([text for text, _ in texts], pa.string()), pa.array([not good for _, good in texts])]
            yield pa.RecordBatch.from_arrays(columns, ["value", "broken"])

    return decode
