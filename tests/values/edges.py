"""Types with the edges of each, in SQL, and names of columns in odd letters and cases."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["KINDS", "NAMES", "Edge", "Kind"]

_KEYS = ("tinyint", "smallint", "int", "bigint", "string", "boolean", "date", "timestamp", "decimal")


@dataclass(frozen=True)
class Edge:
    """One value, in SQL."""

    sql: str
    far: bool = False
    """Whether it lies beyond what Python's types hold: a time outside of the years 1 to 9999."""
    no_text: bool = False
    """Whether it has bytes that are not UTF-8."""
    unbounded: bool = False
    """Whether it is a time so far away that no watermark can be behind it."""


@dataclass(frozen=True)
class Kind:
    """A type, and values at its edges."""

    name: str
    type: str
    """In DDL, as the source declares it."""
    edges: tuple[Edge, ...]
    made: str = ""
    """SQL over `raw`, where no source has this type: a stage makes it."""
    formats: frozenset[str] = field(default=frozenset({"delta", "parquet", "json", "csv"}))
    """Of sources that can hold it."""
    time: bool = False
    """Whether it can be an event time."""

    @property
    def is_key(self) -> bool:
        """Whether sinks take it for a key."""
        return not self.made and self.type.startswith(_KEYS)


def _cast(kind: str, *values: str) -> tuple[Edge, ...]:
    return tuple(Edge(f"CAST({value} AS {kind})") for value in values)


def _whole(kind: str, bits: int) -> tuple[Edge, ...]:
    return _cast(kind, f"'-{2 ** (bits - 1)}'", f"'{2 ** (bits - 1) - 1}'", "'0'", "'-1'", "'7'")


def _plain(*values: str) -> tuple[Edge, ...]:
    return tuple(map(Edge, values))


_FLOATS = ("'NaN'", "'Infinity'", "'-Infinity'", "'0.0'", "'-0.0'", "'1.1'")
_NO_CSV = frozenset({"delta", "parquet", "json"})
_TABLES = frozenset({"delta", "parquet"})

MOMENTS = (
    *_plain(
        "timestamp'0001-01-01 00:00:00Z'",
        "timestamp'9999-12-31 23:59:59.999999Z'",
        "timestamp'1969-12-31 23:59:59.999999Z'",
        "timestamp'2024-01-01 12:00:00.000500Z'",
        "timestamp'2024-01-01 12:00:00.000501Z'",
        "timestamp'1582-10-10 00:00:00.000001Z'",
        "timestamp'2026-03-29 01:30:00Z'",
        "timestamp'2026-10-25 00:30:00Z'",
        "timestamp'2026-10-25 01:30:00Z'",
    ),
    Edge("timestamp'+10000-01-01 00:00:00Z'", far=True),
    Edge("timestamp'-0044-03-15 12:00:00Z'", far=True),
    Edge("timestamp_micros(9223372036854775807)", far=True, unbounded=True),
    Edge("timestamp_micros(-9223372036854775807)", far=True, unbounded=True),
)
LOCAL = (
    *_plain(
        "timestamp_ntz'2026-03-29 02:30:00'",  # this hour is missing in Berlin
        "timestamp_ntz'2026-10-25 02:30:00'",  # this one comes twice
        "timestamp_ntz'0001-01-01 00:00:00'",
        "timestamp_ntz'9999-12-31 23:59:59.999999'",
        "timestamp_ntz'1969-12-31 23:59:59.999999'",
        "timestamp_ntz'1582-10-10 00:00:00.000001'",
    ),
    Edge("timestamp_ntz'+10000-01-01 00:00:00'", far=True),
    Edge("timestamp_micros(-9223372036854775807)::timestamp_ntz", far=True, unbounded=True),
)
DAYS = (
    *_plain("date'0001-01-01'", "date'9999-12-31'", "date'1969-12-31'", "date'1582-10-10'", "date'2026-03-29'"),
    Edge("date'+10000-01-01'", far=True),
    Edge("date'-0044-03-15'", far=True),
    Edge("date_from_unix_date(2147483647)", far=True, unbounded=True),
    Edge("date_from_unix_date(-2147483648)", far=True, unbounded=True),
)
TEXTS = (
    *_plain(
        "''", "' '", "'a'", "'A'", "'a '", "'\\0'", "'a\\0b'", "'null'", "'NaN'", "'é'", "'e\\u0301'", "'日本 🎉'",
        "'a,\"b\"\\n;c\\\\'", "'%41'", "'a/b=c'", "repeat('ab', 3000)", "'__HIVE_DEFAULT_PARTITION__'", "'İ'", "'ß'",
        "'\\\\xE8'", "'{\"a\": 1}'", "'\\r\\n'", "'\\u2028'", "'\\uFEFFa'",
    ),
    Edge("CAST(X'61FF' AS string)", no_text=True),
    Edge("CAST(X'FF' AS string)", no_text=True),
    Edge("CAST(X'EDA080' AS string)", no_text=True),
)  # fmt: skip
ASCII_TEXTS = _plain("''", "'a'", "'A'", "'b'", "'B '")
DEEP = (
    Edge("named_struct('x', 1, 'y', named_struct('z', timestamp'1969-12-31 23:59:59.999999Z', 'a.b', 'q'))"),
    Edge("named_struct('x', NULL, 'y', NULL)"),
    Edge("named_struct('x', 1, 'y', named_struct('z', NULL, 'a.b', ''))"),
    Edge("named_struct('x', 1, 'y', named_struct('z', timestamp'+10000-01-01 00:00:00Z', 'a.b', 'q'))", far=True),
    Edge(
        "named_struct('x', 2, 'y', named_struct('z', timestamp'2024-01-01 00:00:00Z', 'a.b', CAST(X'61FF' AS string)))",
        no_text=True,
    ),
)
DEEP_TYPE = "struct<x: int, y: struct<z: timestamp, `a.b`: string>>"


def _typed(kind: str, edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    return tuple(Edge(f"CAST({each.sql} AS {kind})", each.far, each.no_text, each.unbounded) for each in edges)


KINDS = {
    each.name: each
    for each in (
        Kind("byte", "tinyint", _whole("tinyint", 8)),
        Kind("short", "smallint", _whole("smallint", 16)),
        Kind("int", "int", _whole("int", 32)),
        Kind("long", "bigint", _whole("bigint", 64)),
        Kind("float", "float", _cast("float", *_FLOATS, "'1.4e-45'", "'3.4028235e38'")),
        Kind(
            "double", "double", _cast("double", *_FLOATS, "'5e-324'", "'1.7976931348623157e308'", "'9007199254740993'")
        ),
        Kind("decimal", "decimal(5,2)", _cast("decimal(5,2)", "'-999.99'", "'999.99'", "'0.01'", "'0'", "'1.1'")),
        Kind(
            "decimal38",
            "decimal(38,0)",
            _cast("decimal(38,0)", f"'-{'9' * 38}'", f"'{'9' * 38}'", "'0'", f"'1{'0' * 19}'"),
        ),
        Kind(
            "decimal38.38",
            "decimal(38,38)",
            _cast("decimal(38,38)", f"'0.{'9' * 38}'", f"'-0.{'0' * 37}1'", "'0'", "'0.5'"),
        ),
        Kind(
            "decimal38.9", "decimal(38,9)", _cast("decimal(38,9)", f"'{'9' * 29}.{'9' * 9}'", "'-0.000000001'", "'2.5'")
        ),
        Kind("text", "string", TEXTS),
        Kind("binary", "binary", _plain("X''", "X'00'", "X'00FF80'", "X'61'", "X'C3A9'"), formats=_NO_CSV),
        Kind("flag", "boolean", _plain("true", "false")),
        Kind("day", "date", DAYS, time=True),
        Kind("moment", "timestamp", MOMENTS, time=True),
        Kind("local", "timestamp_ntz", LOCAL, time=True),
        Kind(
            "list",
            "array<string>",
            _typed("array<string>", _plain("array()", "array(NULL)", "array('')", "array('a', NULL)", "array('b')")),
            formats=_NO_CSV,
        ),
        Kind(
            "floats",
            "array<double>",
            _typed(
                "array<double>",
                _plain("array('NaN')", "array('-0.0')", "array('0.0')", "array('1', 'Infinity')", "array()"),
            ),
            formats=_TABLES,
        ),
        Kind("struct", DEEP_TYPE, _typed(DEEP_TYPE, DEEP), formats=_NO_CSV),
        Kind(
            "real struct",
            "struct<r: double>",
            _typed("struct<r: double>", _plain(*(f"named_struct('r', double({each}))" for each in _FLOATS))),
            formats=_TABLES,
        ),
        Kind(
            "map",
            "map<string, decimal(9,2)>",
            _typed("map<string, decimal(9,2)>", _plain("map()", "map('k', NULL, 'é', 1.5)", "map('', -0.01)")),
            formats=_NO_CSV,
        ),
        Kind("no case", "string", ASCII_TEXTS, made="raw COLLATE UTF8_LCASE"),
        Kind("unicode", "string", ASCII_TEXTS, made="raw COLLATE UNICODE_CI"),
        Kind("variant", "string", _plain("'1'", "'{\"a\": 1}'", "'null'"), made="parse_json(raw)"),
        Kind("interval", "bigint", _whole("bigint", 32), made="make_dt_interval(0, 0, 0, raw)"),
        Kind("nothing", "int", _plain("1"), made="NULL"),
    )
}

NAMES = (
    "v", "v", "v", "V", "Val", "größe", "GRÖSSE", "日本", "with space", "with.dot", "a`b", "it's", 'say "v"', "x,y",
    "x;y", "order", "select", "1", "-", "%41", "a=b", "a/b", "{v}", "p.q`r", "ı", "İ", "ß", "rank2", "N2", "K2",
    "value", "line", "tidegate_v", "_value0", "_n", "_row", "$v", "@v", "a:b", "v\\", "#", "_v", "n_sum", "date",
    "null", "end",
)  # fmt: skip
"""Most of them are odd."""
