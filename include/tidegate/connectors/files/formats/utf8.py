"""Checks in Spark whether texts are valid UTF-8, and makes those readable that are not.

Spark does not check the texts that it reads, so invalid bytes could get into a table, which other readers (pandas,
delta-rs) then refuse forever. Malformed records that are kept have such bytes escaped as by `readable_text`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
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
"""The valid UTF-8 sequences, by table 3-7 of Unicode. Each character stands for one byte."""

_PARTS: Final = "|".join((*_SEQUENCES, "[\\x80-\\xFF]")).replace("\\", "\\\\")


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8, the default."""
    return encoding.lower() in ("", "utf-8", "utf8")


def is_utf8_sql(value: str) -> str:
    """Return SQL that is true if a text or binary value is valid UTF-8."""
    return f"is_valid_utf8(CAST({value} AS string))"


def readable_sql(value: str) -> str:
    """Return SQL for a text or binary value as valid text, with invalid bytes escaped."""
    bytes_as_text = f"decode(CAST({value} AS binary), 'ISO-8859-1')"
    marked = f"replace({bytes_as_text}, '\\\\x', '\\\\x5Cx')"
    part = "CAST(encode(part, 'ISO-8859-1') AS string)"
    hex_escape = "concat('\\\\x', hex(encode(part, 'ISO-8859-1')))"
    escaped_part = f"CASE WHEN is_valid_utf8({part}) THEN {part} ELSE {hex_escape} END"
    escaped = f"array_join(transform(regexp_extract_all({marked}, '{_PARTS}', 0), part -> {escaped_part}), '')"
    return f"CASE WHEN {is_utf8_sql(value)} THEN CAST({value} AS string) ELSE {escaped} END"


def decode_lines(lines: DataFrame, encoding: str, carried: Sequence[str] = ()) -> DataFrame:
    """Decode the column `value`, and report in `broken` whether it has bytes that are invalid in this encoding.

    Spark's own function supports few encodings, and fails at the first invalid byte.

    carried: SQL for further columns that the result has, too. Only UTF-8 can have them.
    """
    if is_utf8(encoding):
        return lines.selectExpr(f"{readable_sql('value')} AS value", f"NOT {is_utf8_sql('value')} AS broken", *carried)
    assert not carried
    return lines.selectExpr("CAST(value AS binary) AS value").mapInArrow(
        _decoder(codecs.lookup(encoding).name), "value string, broken boolean"
    )


def _decoder(encoding: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            texts = [readable_text(value, encoding) for value in batch["value"].to_pylist()]
            values = pa.array([text for text, _ in texts], pa.string())
            broken = pa.array([not is_valid for _, is_valid in texts])
            yield pa.RecordBatch.from_arrays([values, broken], ["value", "broken"])

    return decode
