"""From the text to sqlglot's tree: windows as Flink writes them, and errors with their place."""

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
"""What else a word can be written as."""
_SAID_OR_NOT = ("as", "asc", ";", "nulls")
"""Words that make no difference here."""


@dataclass(frozen=True)
class WindowTable:
    """A table function that gives each row its windows."""

    kind: str
    stream: str
    partition_by: tuple[str, ...]
    event_time: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Query:
    """A parsed statement."""

    text: str
    """With names in place of windows."""
    tree: exp.Expression
    said: str
    """The tree as a text, as it was parsed."""
    windows: dict[str, WindowTable]
    """By the name that stands in the tree for it."""

    def refuse(self, node: Any, what: str, help: str) -> Invalid:
        """Return the error that names a part of the text, and where it stands."""
        shown = re.sub(r"\b_window_\d+\b", self._written, " ".join(text_of(node).split()))
        return Invalid(
            f"{self.place(node)}: {what}: {shown[:120]}",
            expected="rows, windows, joins and aggregates that an operator of tidegate computes: see the guide on SQL",
            help=help,
            reason="BAD_SQL",
        )

    def _written(self, name: re.Match[str]) -> str:
        """Return a window as it is written, in short, for the name that stands for it."""
        window = self.windows.get(name[0])
        return name[0] if window is None else f"TABLE({window.kind}(TABLE {window.stream}, …))"

    def place(self, node: Any) -> str:
        """Return where a part of the text stands, for errors: of a SELECT, not where its WITH does."""
        from sqlglot import exp

        inside = node.walk(prune=lambda each: isinstance(each, exp.With))
        starts = [each.meta["start"] for each in inside if "start" in each.meta]
        line, column = self.line_and_column(min(starts, default=0))
        return f"SQL, line {line}, column {column}"

    def line_and_column(self, start: int) -> tuple[int, int]:
        """Return where a place of the text is."""
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

    def stand_in(match: re.Match[str]) -> str:
        kind, stream, by, event_time, first, first_unit, second, second_unit = match.groups()
        name = f"_window_{len(windows)}"
        sizes = [(first, first_unit), (second, second_unit)]
        keys = tuple(key.strip(" `\n") for key in by.split(",")) if by else ()
        seconds = tuple(_seconds(number, unit, text) for number, unit in sizes if number is not None)
        windows[name] = WindowTable(kind.upper(), stream, keys, event_time, seconds)
        # As long as it was, with the same lines: so places in the rest of the text stay right.
        kept = re.sub(r"[^\n]", " ", match[0])
        return name + kept[len(name) :] if "\n" not in kept[: len(name)] else f"{name}{kept}"

    replaced = _WINDOW.sub(stand_in, text)
    try:
        trees: list[Any] = [tree for tree in sqlglot.parse(replaced, dialect=_dialect()) if tree is not None]
    except RecursionError as error:
        raise Invalid(
            "the SQL is nested too deep", expected="one SELECT", help="divide it: WITH", reason="BAD_SQL"
        ) from error
    except SqlglotError as error:
        first = (getattr(error, "errors", None) or [{}])[0]
        place = f"line {first.get('line', 1)}, column {first.get('col', 1)}"
        near = f" near {first['highlight']!r}" if first.get("highlight") else ""
        if (unread := _UNREAD_WINDOW.search(replaced)) is not None:
            start = unread.start()
            line, column = replaced.count("\n", 0, start) + 1, start - replaced.rfind("\n", 0, start)
            kind = unread[1].upper()
            is_known = kind in ("TUMBLE", "HOP", "SESSION")
            raise Invalid(
                f"SQL, line {line}, column {column}: "
                + (f"this {kind} has another form than its own" if is_known else f"{kind} has no operator"),
                expected="TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '5' MINUTE)), HOP with two, step and "
                "size, or SESSION(TABLE orders PARTITION BY country, …)",
                help="write it so" if is_known else 'take TUMBLE, HOP or SESSION; or orders.window(…, emit="update")',
                reason="BAD_SQL",
            ) from error
        raise Invalid(
            f"SQL, {place}: {first.get('description', str(error))}{near}",
            expected="one SELECT in Spark's language, with windows such as TABLE(TUMBLE(TABLE …, DESCRIPTOR(at), …))",
            help="mend it there",
            reason="BAD_SQL",
        ) from error
    if len(trees) != 1:
        raise Invalid(
            f"the SQL has {len(trees)} statements",
            expected="one SELECT",
            help="call pipeline.sql once for each",
            reason="BAD_SQL",
        )
    return Query(replaced, trees[0], text_of(trees[0]), windows)


def from_of(tree: exp.Expression) -> Any:
    """Return the FROM of a SELECT; sqlglot has had two names for it."""
    return tree.args.get("from_") or tree.args.get("from")


def name_of(node: Any) -> str:
    """Return the name under which an expression is selected; empty if it has none."""
    from sqlglot import exp

    if isinstance(node, exp.Alias):
        return str(node.alias)
    return str(node.name) if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star) else ""


def refuse_rewritten(query: Query) -> None:
    """Raise an error if the tree says something else than the text, word by word: a parser takes some things for others
    that mean nearly the same."""
    words = list(_words(query.text))
    written, said = Counter(word for word, _ in words), Counter(word for word, _ in _words(query.said))
    lost, more = written - said, said - written
    if not lost and not more:
        return
    start = next((start for word, start in words if word in lost), 0)
    what = next((word for word in lost), next(iter(more), ""))
    line, column = query.line_and_column(start)
    raise Invalid(
        f"SQL, line {line}, column {column}: it would not come to Spark as it is written: {what}",
        expected="an expression that is read in one way only",
        help="write it in a plainer way, such as CAST(x AS BIGINT), shiftleft(x, 2), or do it in a stage",
        reason="BAD_SQL",
    )


def _words(text: str) -> Iterator[tuple[str, int]]:
    """Yield the words of a text, each with its place, in one of the ways in which they can be written."""
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
        elif (plain := word.lower()) not in _SAID_OR_NOT:
            yield from ((each, token.start) for each in _SAME.get(plain, (plain,)))


def text_of(node: exp.Expression) -> str:
    """Return what a node says, as Spark writes it."""
    return str(node.sql(dialect=_dialect(), comments=False))


@cache
def _dialect() -> Any:
    """Return Spark's language with each function as it is written.

    sqlglot knows many, and writes them its own way: `to_date(x, 'yyyy-MM-dd')` comes back without the format, and
    `to_char(at, 'yyyy')` as a cast. Here only those that are written in a way of their own are more than a name with
    arguments.
    """
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    own_ways = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM", "TRY_CAST")

    class AsWritten(Spark):
        class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
            FUNCTIONS = {
                "ROW_NUMBER": exp.RowNumber.from_arg_list,
                "RANK": exp.Rank.from_arg_list,
                "DENSE_RANK": exp.DenseRank.from_arg_list,
            }
            FUNCTION_PARSERS = {
                name: parser for name, parser in Spark.Parser.FUNCTION_PARSERS.items() if name in own_ways
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
            help="mend it there",
            reason="BAD_SQL",
        )
    return float(number) * UNITS[unit.upper()]
