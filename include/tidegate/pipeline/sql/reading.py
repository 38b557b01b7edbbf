"""Parses SQL into sqlglot's tree, with Flink's syntax for windows, and errors with line and column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["Query", "WindowTable", "from_of", "name_of", "parse_query", "refuse_rewritten", "seconds_of", "text_of"]

UNITS = {"MILLISECOND": 0.001, "SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}
_NAME = r"`?([A-Za-z_]\w*)`?"
_INTERVAL = r"INTERVAL\s+'?(\d+(?:\.\d+)?)'?\s+([A-Za-z]+?)S?"
_WINDOW = re.compile(
    rf"TABLE\s*\(\s*(TUMBLE|HOP|SESSION)\s*\(\s*TABLE\s+{_NAME}(?:\s+PARTITION\s+BY\s+([\w\s,`]+?))?\s*,"
    rf"\s*DESCRIPTOR\s*\(\s*{_NAME}\s*\)\s*,\s*{_INTERVAL}(?:\s*,\s*{_INTERVAL})?\s*\)\s*\)",
    re.IGNORECASE,
)
_UNREAD_WINDOW = re.compile(r"\bTABLE\s*\(\s*([A-Za-z]\w*)\s*\(\s*(?:DATA\s*=>\s*)?TABLE\b", re.IGNORECASE)
_SAME = {
    **{"!=": ("<>",), "==": ("=",), "!": ("not",), "<=>": ("is", "not", "distinct", "from"), "regexp": ("rlike",)},
    **{"long": ("bigint",), "integer": ("int",), "short": ("smallint",), "byte": ("tinyint",), "real": ("float",)},
    **{"dec": ("decimal",), "numeric": ("decimal",)},
}
"""Other spellings of a word."""
_OPTIONAL_WORDS = ("as", "asc", ";", "nulls")
"""Words that may be left out without changing the meaning."""


@dataclass(frozen=True)
class WindowTable:
    """A window table function, such as TUMBLE."""

    kind: str
    stream: str
    partition_by: tuple[str, ...]
    event_time: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Query:
    """A parsed statement."""

    text: str
    """The text, with a placeholder name for each window."""
    tree: exp.Expression
    parsed_text: str
    """The text that sqlglot generates from the tree."""
    windows: dict[str, WindowTable]
    """The windows, by their placeholders."""

    def refuse(self, node: Any, what: str, help: str) -> Invalid:
        """Return an error about a part of the text, with its line and column."""
        shown = re.sub(r"\b_window_\d+\b", self._written, " ".join(text_of(node).split()))
        return Invalid(
            f"{self.place(node)}: {what}: {shown[:120]}",
            expected="rows, windows, joins and aggregates that an operator of tidegate computes: see the guide on SQL",
            help=help,
            reason="BAD_SQL",
        )

    def _written(self, name: re.Match[str]) -> str:
        """Return the short form of a window, for its placeholder."""
        window = self.windows.get(name[0])
        if window is None:
            return name[0]
        return f"TABLE({window.kind}(TABLE {window.stream}, …))"

    def place(self, node: Any) -> str:
        """Return the line and column of a part of the text, for errors. For a SELECT, its WITH is ignored."""
        from sqlglot import exp

        nodes = node.walk(prune=lambda inner: isinstance(inner, exp.With))
        starts = [inner.meta["start"] for inner in nodes if "start" in inner.meta]
        line, column = self.line_and_column(min(starts, default=0))
        return f"SQL, line {line}, column {column}"

    def line_and_column(self, start: int) -> tuple[int, int]:
        """Return the line and the column of an offset in the text."""
        return self.text.count("\n", 0, start) + 1, start - self.text.rfind("\n", 0, start)


def parse_query(text: str) -> Query:
    """Parse one SELECT."""
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ModuleNotFoundError as error:
        raise Invalid(
            "pipeline.sql needs sqlglot, which is not installed",
            expected="the extra sql",
            help="pip install 'tidegate[sql]'",
            reason="SQL_MISSING",
        ) from error
    windows: dict[str, WindowTable] = {}

    def replace_window(match: re.Match[str]) -> str:
        kind, stream, partition_by, event_time, first, first_unit, second, second_unit = match.groups()
        name = f"_window_{len(windows)}"
        sizes = [(first, first_unit), (second, second_unit)]
        if partition_by:
            keys = tuple(key.strip(" `\n") for key in partition_by.split(","))
        else:
            keys = ()
        seconds = tuple(_seconds(number, unit, text) for number, unit in sizes if number is not None)
        windows[name] = WindowTable(kind.upper(), stream, keys, event_time, seconds)
        # The placeholder keeps the length and the lines of the window, so that places after it stay right.
        blanks = re.sub(r"[^\n]", " ", match[0])
        if "\n" in blanks[: len(name)]:
            return f"{name}{blanks}"
        return name + blanks[len(name) :]

    replaced = _WINDOW.sub(replace_window, text)
    try:
        trees: list[Any] = []
        for tree in sqlglot.parse(replaced, dialect=_dialect()):
            if tree is not None:
                trees.append(tree)
    except RecursionError as error:
        raise Invalid(
            "the SQL is nested too deep", expected="one SELECT", help="divide it: WITH", reason="BAD_SQL"
        ) from error
    except SqlglotError as error:
        first = (getattr(error, "errors", None) or [{}])[0]
        place = f"line {first.get('line', 1)}, column {first.get('col', 1)}"
        near = f" near {first['highlight']!r}" if first.get("highlight") else ""
        bad_window = _UNREAD_WINDOW.search(replaced)
        if bad_window is not None:
            raise _bad_window(replaced, bad_window) from error
        raise Invalid(
            f"SQL, {place}: {first.get('description', str(error))}{near}",
            expected="one SELECT in Spark's language, with windows such as TABLE(TUMBLE(TABLE …, DESCRIPTOR(at), …))",
            help="correct it there",
            reason="BAD_SQL",
        ) from error
    if len(trees) != 1:
        raise Invalid(
            f"the SQL has {len(trees)} statements",
            expected="one SELECT",
            help="call pipeline.sql once for each",
            reason="BAD_SQL",
        )
    return Query(replaced, trees[0], parsed_text=text_of(trees[0]), windows=windows)


def _bad_window(text: str, match: re.Match[str]) -> Invalid:
    """Return the error about a window table function that tidegate does not have, or not in this form."""
    start = match.start()
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    kind = match[1].upper()
    if kind in ("TUMBLE", "HOP", "SESSION"):
        problem, help = f"this {kind} has another form than its own", "write it so"
    else:
        problem, help = f"{kind} has no operator", 'use TUMBLE, HOP or SESSION; or orders.window(…, emit="update")'
    return Invalid(
        f"SQL, line {line}, column {column}: {problem}",
        expected="TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '5' MINUTE)), HOP with two, step and "
        "size, or SESSION(TABLE orders PARTITION BY country, …)",
        help=help,
        reason="BAD_SQL",
    )


def from_of(tree: exp.Expression) -> Any:
    """Return the FROM of a SELECT. Versions of sqlglot have different names for it."""
    return tree.args.get("from_") or tree.args.get("from")


def name_of(node: Any) -> str:
    """Return the name under which an expression is selected, or "" if it has none."""
    from sqlglot import exp

    if isinstance(node, exp.Alias):
        return str(node.alias)
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return str(node.name)
    return ""


def refuse_rewritten(query: Query) -> None:
    """Raise an error if sqlglot's tree does not have the same words as the text.

    sqlglot replaces some expressions by others that mean nearly the same.
    """
    words = list(_words(query.text))
    written, parsed = Counter(word for word, _ in words), Counter(word for word, _ in _words(query.parsed_text))
    lost, added = written - parsed, parsed - written
    if not lost and not added:
        return
    start = next((start for word, start in words if word in lost), 0)
    difference = next(iter(lost or added))
    line, column = query.line_and_column(start)
    raise Invalid(
        f"SQL, line {line}, column {column}: it would not reach Spark as it is written: {difference}",
        expected="an expression that can be read in one way only",
        help="write it in a plainer way, such as CAST(x AS BIGINT), shiftleft(x, 2), or do it in a stage",
        reason="BAD_SQL",
    )


def _words(text: str) -> Iterator[tuple[str, int]]:
    """Yield the words of a text with their offsets. Words with several spellings are yielded in one of them."""
    import sqlglot

    tokens = sqlglot.tokenize(text, dialect=_dialect())
    for place, token in enumerate(tokens):
        kind, word = token.token_type.name, token.text
        before = tokens[place - 1].text.lower() if place else ""
        is_text = kind in ("STRING", "RAW_STRING")
        if is_text and before in ("date", "timestamp", "timestamp_ntz", "timestamp_ltz"):
            yield from (("cast", token.start), ("(", token.start), (")", token.start))
        if before == "interval" and (is_text or kind == "NUMBER"):
            yield f"'{word}'", token.start
        elif place > 1 and tokens[place - 2].text.lower() == "interval":
            yield word.lower().removesuffix("s"), token.start
        elif is_text:
            yield f"'{word}'", token.start
        elif kind == "IDENTIFIER":
            yield word, token.start
        elif word == "::" and (place < 2 or tokens[place - 2].text != "-"):
            yield from (("cast", token.start), ("(", token.start), (")", token.start))
        elif before == "nulls":
            continue
        elif word.lower() not in _OPTIONAL_WORDS:
            for spelling in _SAME.get(word.lower(), (word.lower(),)):
                yield spelling, token.start


def text_of(node: exp.Expression) -> str:
    """Return the text of a node in Spark's SQL."""
    return str(node.sql(dialect=_dialect(), comments=False))


@cache
def _dialect() -> Any:
    """Return sqlglot's dialect for Spark, without its translations of functions.

    sqlglot rewrites many functions: `to_date(x, 'yyyy-MM-dd')` loses the format, and `to_char(at, 'yyyy')` becomes a
    cast. Here all functions are names with arguments, except for those with special syntax.
    """
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    special_syntax = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM", "TRY_CAST")

    class AsWritten(Spark):
        class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
            FUNCTIONS = {
                "ROW_NUMBER": exp.RowNumber.from_arg_list,
                "RANK": exp.Rank.from_arg_list,
                "DENSE_RANK": exp.DenseRank.from_arg_list,
            }
            FUNCTION_PARSERS = {
                name: parser for name, parser in Spark.Parser.FUNCTION_PARSERS.items() if name in special_syntax
            }

    return AsWritten


def seconds_of(query: Query, interval: exp.Expression) -> float:
    """Return the seconds of an INTERVAL."""
    unit = interval.args.get("unit")
    number = interval.this.name if interval.this is not None else ""
    name = unit.name.upper().removesuffix("S") if unit is not None else ""
    if name not in UNITS or not re.fullmatch(r"\d+(\.\d+)?", number):
        raise query.refuse(interval, "this interval is no length of time", "write INTERVAL '10' SECOND")
    return float(number) * UNITS[name]


def _seconds(number: str, unit: str, text: str) -> float:
    if unit.upper() not in UNITS:
        raise Invalid(
            f"SQL: {unit!r} is no unit of a window: {' '.join(text.split())[:120]}",
            expected="SECOND, MINUTE, HOUR or DAY",
            help="correct it there",
            reason="BAD_SQL",
        )
    return float(number) * UNITS[unit.upper()]
