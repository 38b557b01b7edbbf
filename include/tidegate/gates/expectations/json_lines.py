"""JSON in which every value knows its line, for suites that Great Expectations itself has written."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Final

from tidegate.gates.expectations.checking import ValueOnLine

if TYPE_CHECKING:
    from tidegate.gates.expectations.checking import Problems

__all__ = ["load_json"]

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: Final = {"null": None, "true": True, "false": False}


def load_json(text: str, problems: Problems) -> ValueOnLine:
    """Load the text. Errors that JSON itself ignores silently are added to `problems`."""
    reader = _JsonReader(text, problems)
    try:
        value = reader.read_value()
        if reader.peek():
            raise json.JSONDecodeError("something follows its end", text, reader.at)
    except json.JSONDecodeError as error:
        problems.add(error.lineno, f"this is not JSON: {error.msg}")
        return ValueOnLine(None, 1)
    except RecursionError:
        problems.add(1, "this is not a suite: it is nested too deeply")
        return ValueOnLine(None, 1)
    return value


class _JsonReader:
    """Reads one value after another."""

    def __init__(self, text: str, problems: Problems) -> None:
        self.text = text
        self.at = 0
        self._problems = problems
        self._counted, self._line = 0, 1

    def peek(self) -> str:
        """Return the next letter that is no white space. Empty: there is none."""
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        return self.text[self.at : self.at + 1]

    def read_value(self) -> ValueOnLine:
        first = self.peek()
        line = self._current_line()
        if first == "{":
            return ValueOnLine(self._read_object(), line)
        if first == "[":
            return ValueOnLine(self._read_list(), line)
        if first == '"':
            return ValueOnLine(self._read_text(), line)
        number = _NUMBER.match(self.text, self.at)
        if number is not None:
            self.at = number.end()
            return ValueOnLine(json.loads(number[0]), line)
        for word, value in _WORDS.items():
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return ValueOnLine(value, line)
        raise json.JSONDecodeError("a value is missing", self.text, self.at)

    def _read_object(self) -> dict[str, ValueOnLine]:
        mapping: dict[str, ValueOnLine] = {}
        self.at += 1
        if self.peek() == "}":
            self.at += 1
            return mapping
        while True:
            if self.peek() != '"':
                raise json.JSONDecodeError("a key in double quotes is missing", self.text, self.at)
            line = self._current_line()
            key = self._read_text()
            self._expect(":")
            value = self.read_value()
            if key in mapping:
                self._problems.add(line, f"key {key!r} is there twice")
            mapping[key] = value
            if self._expect(",", "}") == "}":
                return mapping

    def _read_list(self) -> list[ValueOnLine]:
        items: list[ValueOnLine] = []
        self.at += 1
        if self.peek() == "]":
            self.at += 1
            return items
        while True:
            items.append(self.read_value())
            if self._expect(",", "]") == "]":
                return items

    def _read_text(self) -> str:
        text: str
        text, self.at = scanstring(self.text, self.at + 1, True)
        return text

    def _expect(self, *letters: str) -> str:
        found = self.peek()
        if found not in letters or not found:
            wanted = " or ".join(map(repr, letters))
            raise json.JSONDecodeError(f"expected {wanted}", self.text, self.at)
        self.at += 1
        return found

    def _current_line(self) -> int:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line
