"""A lightweight parser of schemas in DDL form ("id long, at timestamp"), without a JVM.

It finds common mistakes early: a missing comma, an unknown type, a duplicate name. Spark parses the string again when
data is read, and is the authority.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.records.names import quoted

__all__ = ["Column", "DdlError", "parse_ddl"]

SIMPLE_TYPES = {
    # The names that users may write, with Spark's names.
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "decimal": "decimal(10,0)",
    "dec": "decimal(10,0)",
    "numeric": "decimal(10,0)",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
SIZED_TYPES = {"decimal": (1, 2), "dec": (1, 2), "numeric": (1, 2), "char": (1, 1), "varchar": (1, 1)}
NESTED_TYPES = ("array", "map", "struct")

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")


class DdlError(ValueError):
    """A schema string is wrong. The message is for `problems()`."""


@dataclass(frozen=True)
class Column:
    """One column: its name and its type as Spark spells it (`bigint`, `struct<a:int>`)."""

    name: str
    type: str

    @property
    def ddl(self) -> str:
        """The column in DDL form."""
        return f"{quoted(self.name)} {self.type}"


def parse_ddl(ddl: object) -> list[Column]:
    """Return the columns of a schema string. Raise DdlError, which says what is wrong and where."""
    if not isinstance(ddl, str):
        hint = ""
        if type(ddl).__name__ == "StructType":
            hint = " (of a StructType: schema.toDDL())"
        raise DdlError(f"must be a string like 'id long, at timestamp', not {type(ddl).__name__}{hint}")
    if not ddl.strip():
        raise DdlError("is empty; write it like 'id long, at timestamp'")
    tokens = _Tokens(ddl)
    columns = list(_parse_fields(tokens, end=None))
    _refuse_duplicates([column.name for column in columns], "column")
    return columns


class _Tokens:
    """The tokens of a DDL string, with one token of look-ahead."""

    def __init__(self, ddl: str) -> None:
        self.words: list[str] = []
        self.index = 0
        position = 0
        end = len(ddl.rstrip())
        while position < end:
            match = _TOKEN.match(ddl, position)
            if match is None:
                raise DdlError(f"cannot be read at {ddl[position : position + 20].strip()!r}")
            self.words.append(match.group().strip())
            position = match.end()

    def peek(self) -> str:
        return self.words[self.index] if self.index < len(self.words) else ""

    def next(self) -> str:
        word = self.peek()
        self.index += 1
        return word

    def accept(self, word: str) -> bool:
        if self.peek().lower() != word:
            return False
        self.index += 1
        return True

    def expect(self, word: str, place: str) -> None:
        if self.accept(word):
            return
        if not self.peek():
            raise DdlError(f"ends {place} without {word!r}")
        raise DdlError(f"expected {word!r} {place}, found {self.peek()!r}")


def _parse_fields(tokens: _Tokens, end: str | None) -> Iterator[Column]:
    """Parse fields up to `end` ('>' of a struct), or to the end of the string."""
    while True:
        name = _parse_name(tokens)
        tokens.accept(":")
        kind = _parse_type(tokens, name)
        _parse_constraints(tokens, name)
        yield Column(name, kind)
        if tokens.accept(","):
            continue
        if end is None and not tokens.peek():
            return
        if end is not None and tokens.accept(end):
            return
        if not tokens.peek():
            raise DdlError(f"ends after {name!r} without {end!r}")
        raise DdlError(f"expected a comma after '{name} {kind}', found {tokens.peek()!r}")


def _parse_name(tokens: _Tokens) -> str:
    word = tokens.next()
    if word.startswith("`"):
        name = word[1:-1].replace("``", "`")
        if not name:
            raise DdlError("has an empty column name")
        return name
    if not word:
        raise DdlError("ends with a comma: a column is missing")
    if not re.fullmatch(r"[A-Za-z_0-9]*[A-Za-z_][A-Za-z_0-9]*", word):
        raise DdlError(f"{word!r} is not a column name; put unusual names between backticks")
    return word


def _parse_type(tokens: _Tokens, name: str) -> str:
    word = tokens.next()
    kind = word.lower()
    if not kind or kind in {",", ">", ")"}:
        raise DdlError(f"column {name!r} has no type; write it like '{name} string'")
    if kind in NESTED_TYPES:
        return _parse_nested(tokens, kind, name)
    if tokens.peek() == "(":
        return _parse_sized(tokens, kind, name)
    if kind in {"char", "varchar"}:
        raise DdlError(f"type {kind!r} of column {name!r} needs a length, like {kind}(20); or use string")
    if kind not in SIMPLE_TYPES:
        raise DdlError(f"type {word!r} of column {name!r} is unknown{_suggestion(kind)}")
    return SIMPLE_TYPES[kind]


def _parse_nested(tokens: _Tokens, kind: str, name: str) -> str:
    tokens.expect("<", f"after {kind!r} of column {name!r}")
    if kind == "struct":
        if tokens.accept(">"):
            raise DdlError(f"struct of column {name!r} has no fields")
        fields = list(_parse_fields(tokens, end=">"))
        _refuse_duplicates([field.name for field in fields], f"field of {name!r}")
        inner = ",".join(f"{quoted(field.name)}:{field.type}" for field in fields)
        return f"struct<{inner}>"
    inner = _parse_type(tokens, name)
    if kind == "map":
        tokens.expect(",", f"between key and value type of map {name!r}")
        inner = f"{inner},{_parse_type(tokens, name)}"
    tokens.expect(">", f"after the type in {kind} {name!r}")
    return f"{kind}<{inner}>"


def _parse_sized(tokens: _Tokens, kind: str, name: str) -> str:
    if kind not in SIZED_TYPES:
        raise DdlError(f"type {kind!r} of column {name!r} takes no size in parentheses{_suggestion(kind)}")
    tokens.expect("(", f"after {kind!r}")
    sizes: list[int] = []
    while True:
        word = tokens.next()
        if not word.isascii() or not word.isdigit():
            raise DdlError(f"size {word!r} of {kind} column {name!r} is not a number")
        sizes.append(int(word))
        if not tokens.accept(","):
            break
    tokens.expect(")", f"after the size of {kind} column {name!r}")
    min_sizes, max_sizes = SIZED_TYPES[kind]
    if not min_sizes <= len(sizes) <= max_sizes:
        raise DdlError(f"{kind} column {name!r} takes {min_sizes} to {max_sizes} sizes, not {len(sizes)}")
    if max_sizes == 1:
        if sizes[0] < 1:
            raise DdlError(f"{kind} column {name!r} needs a length of at least 1")
        return f"{kind}({sizes[0]})"
    precision = sizes[0]
    scale = sizes[1] if len(sizes) == 2 else 0
    if not (1 <= precision <= 38 and scale <= precision):
        raise DdlError(
            f"decimal({precision},{scale}) of column {name!r}: precision is 1 to 38, scale at most the precision"
        )
    return f"decimal({precision},{scale})"


def _parse_constraints(tokens: _Tokens, name: str) -> None:
    """Skip NOT NULL and COMMENT, which have no effect on files."""
    if tokens.accept("not"):
        tokens.expect("null", f"after NOT of column {name!r}")
    if tokens.accept("comment") and not tokens.next().startswith(("'", '"')):
        raise DdlError(f"comment of column {name!r} must be in quotes")


def _refuse_duplicates(names: list[str], kind: str) -> None:
    lowered: set[str] = set()
    for name in names:
        if name.lower() in lowered:
            raise DdlError(f"{kind} {name!r} occurs twice (Spark ignores upper and lower case)")
        lowered.add(name.lower())


def _suggestion(kind: str) -> str:
    names = [*SIMPLE_TYPES, "char", "varchar", *NESTED_TYPES]
    aliases = {
        "str": "string",
        "text": "string",
        "bool": "boolean",
        "datetime": "timestamp",
        "int64": "long",
        "int32": "int",
    }
    close = [aliases[kind]] if kind in aliases else difflib.get_close_matches(kind, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; the known types are {', '.join(sorted(names))}"
