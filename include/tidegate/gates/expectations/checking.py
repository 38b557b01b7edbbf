"""Check one expectation of a suite, without Great Expectations and without Spark."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar

from tidegate.errors import Invalid
from tidegate.gates.expectations.catalogue import CATALOGUE, ColumnSource, Kind

__all__ = ["Problems", "ValueOnLine", "check_rule"]


class Problems:
    """The problems of one file, by default of a suite."""

    expected: ClassVar[str] = "a suite in Great Expectations' form, in which every word is understood"
    help: ClassVar[str] = "correct the file; `tidegate suite check` reads it alone"
    reason: ClassVar[str] = "BAD_SUITE"

    def __init__(self, path: str) -> None:
        self.path = path
        self._messages: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, line: int, message: str) -> None:
        """Add a problem."""
        self._messages.append((line, message))

    def unknown(self, line: int, message: str, name: object, names: Iterable[str]) -> None:
        """Add the problem that a name is not one of `names`, and suggest the nearest one."""
        names = list(names)
        is_negated = "not" in str(name).split("_")
        alike = [each for each in names if ("not" in each.split("_")) == is_negated]  # else it means the opposite
        close = difflib.get_close_matches(str(name), alike, n=1)
        if close:
            self.add(line, f"{message}; did you mean {close[0]!r}?")
        else:
            self.add(line, f"{message}; known are {', '.join(names[:20])}" if names else f"{message}; none is known")

    def mapping(self, item: ValueOnLine, subject: str, keys: Iterable[str]) -> dict[str, ValueOnLine] | None:
        """Return the value as a mapping. Other keys than `keys` are problems. None: it is not a mapping."""
        if not isinstance(item.value, dict):
            self.add(item.line, f"{subject} is {_short(item.plain())}, not a mapping")
            return None
        for key, value in item.value.items():
            if key not in keys:
                self.unknown(value.line, f"{subject} has no key {key!r}", key, keys)
        return item.value

    def raise_if_any(self) -> None:
        """Raise Invalid with all problems, if any, in the file's order."""
        if not self._messages:
            return
        messages = sorted(self._messages, key=lambda entry: entry[0])
        raise Invalid(
            "\n".join(f"{self.path}:{line}: {message}" for line, message in messages),
            expected=self.expected,
            help=self.help,
            reason=self.reason,
        )


def check_rule(
    item: ValueOnLine, parts: Mapping[str, ValueOnLine], problems: Problems, kinds: Mapping[str, Kind]
) -> tuple[str, dict[str, Any]] | None:
    """Return an expectation's type and arguments. None: it is wrong, and its problems are added.

    kinds: the catalogue, with the user's own expectations.
    """
    if "type" not in parts:
        problems.add(item.line, "an expectation has no type: add it, as in 'type: expect_…'")
        return None
    line, type = parts["type"].line, parts["type"].value
    if type not in kinds:
        problems.unknown(line, f"expectation {type!r} is not known", _snake_case(str(type)), kinds)
        return None
    kind = kinds[type]
    if kind.how is ColumnSource.REFUSED:
        problems.add(line, f"{type} is not supported: {kind.why}")
        return None
    arguments = parts.get("kwargs", ValueOnLine({}, item.line))
    if not isinstance(arguments.value, dict):
        problems.add(arguments.line, f"kwargs is {_short(arguments.plain())}, not a mapping")
        return None
    before = len(problems._messages)
    _check_arguments(type, kind, arguments, problems)
    if len(problems._messages) > before:
        return None
    return type, {**kind.defaults, **arguments.plain()}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


_RESERVED = {
    "result_format": "tidegate chooses what results hold",
    "catch_exceptions": "an expectation that cannot be judged has failed",
    "batch_id": "a gate judges what its checkpoint staged",
    "windows": "ranges over past results are not part of a suite",
}


def _check_arguments(type: str, kind: Kind, kwargs: ValueOnLine, problems: Problems) -> None:
    names = [*kind.arguments, *kind.optional]
    if kind.conditional:
        names += ["row_condition", "condition_parser"]
    arguments: dict[str, ValueOnLine] = kwargs.value
    for name, value in arguments.items():
        if name in _RESERVED:
            problems.add(value.line, f"{type}: {name!r} cannot be set: {_RESERVED[name]}")
        elif name not in names:
            problems.unknown(value.line, f"{type} takes no {name!r}", name, names)
        elif isinstance(value.value, dict) and "$PARAMETER" in value.value:
            problems.add(value.line, f"{type}: {name} is a parameter, which is never filled in: write the value")
        elif (problem := _value_problem(name, value.plain(), required=name in kind.arguments)) is not None:
            problems.add(value.line, f"{type}: {name} {problem}")
    for name in kind.arguments:
        if name not in arguments:
            problems.add(kwargs.line, f"{type} lacks {name!r}")
    _check_range(type, kind, kwargs, problems)
    _check_condition(type, kwargs, problems)


def _check_range(type: str, kind: Kind, kwargs: ValueOnLine, problems: Problems) -> None:
    if "min_value" not in kind.optional or type not in CATALOGUE:  # a class of the user's own may have defaults
        return
    low, high = (kwargs.value[name].plain() if name in kwargs.value else None for name in ("min_value", "max_value"))
    if low is None and high is None:
        problems.add(kwargs.line, f"{type} has neither min_value nor max_value: it would say nothing")
    elif _is_a_number(low) and _is_a_number(high) and low > high:  # type: ignore[operator]
        problems.add(kwargs.line, f"{type}: min_value {low} is above max_value {high}: nothing lies between")


def _check_condition(type: str, kwargs: ValueOnLine, problems: Problems) -> None:
    condition, parser = kwargs.value.get("row_condition"), kwargs.value.get("condition_parser")
    if condition is not None and isinstance(condition.value, str) and parser is None:
        problems.add(condition.line, f"{type}: row_condition is a text, so it needs condition_parser: spark")
    if parser is not None and condition is None:
        problems.add(parser.line, f"{type}: condition_parser without a row_condition")


def _value_problem(name: str, value: object, *, required: bool) -> str | None:
    """Return the problem of an argument's value. None: it is fine."""
    if value is None:
        return "is empty" if required else None
    check = _CHECKS.get(name)
    return check(value) if check is not None else None


def _is_a_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_mostly(value: object) -> str | None:
    if _is_a_number(value) and 0 <= value <= 1:  # type: ignore[operator]
        return None
    percent = _is_a_number(value) and 1 < value <= 100  # type: ignore[operator]
    return f"is {_short(value)}, not a share from 0 to 1" + (f": did you mean {value / 100:g}?" if percent else "")  # type: ignore[operator]


def _is_text(value: object) -> str | None:
    return None if isinstance(value, str) and value else f"is {_short(value)}, not a text"


def _is_bool(value: object) -> str | None:
    return None if isinstance(value, bool) else f"is {_short(value)}, not true or false"


def _is_list(value: object) -> str | None:
    if not isinstance(value, list):
        return f"is {_short(value)}, not a list"
    return None if value else "is an empty list: it would say nothing"


def _is_texts(value: object) -> str | None:
    problem = _is_list(value)
    if problem is None and not all(isinstance(item, str) for item in value):  # type: ignore[attr-defined]
        return f"is {_short(value)}, not a list of texts"
    return problem


def _is_columns(value: object) -> str | None:
    problem = _is_texts(value)
    if problem is None and len(set(value)) < len(value):  # type: ignore[call-overload, arg-type]
        return f"is {_short(value)}, which names a column twice"
    return problem


def _is_pairs(value: object) -> str | None:
    problem = _is_list(value)
    if problem is None and not all(isinstance(item, list) and len(item) == 2 for item in value):  # type: ignore[attr-defined]
        return f"is {_short(value)}, not a list of pairs"
    return problem


def _is_bound(value: object) -> str | None:
    if isinstance(value, float) and math.isnan(value):
        return "is not a number, which nothing can be compared with"
    return (
        None
        if _is_a_number(value) or isinstance(value, date | str)
        else f"is {_short(value)}, not a value to compare with"
    )


def _is_number(value: object) -> str | None:
    return None if _is_a_number(value) else f"is {_short(value)}, not a number"


def _one_of(*words: str) -> Callable[[object], str | None]:
    return lambda value: None if value in words else f"is {_short(value)}, not one of {', '.join(words)}"


def _is_parser(value: object) -> str | None:
    return None if value in ("spark", "great_expectations") else f"is {_short(value)}, not spark or great_expectations"


def _is_ignored(value: object) -> str | None:
    words = "both_values_are_missing either_value_is_missing neither all_values_are_missing any_value_is_missing never"
    return _one_of(*words.split())(value)


def _is_condition(value: object) -> str | None:
    return None if isinstance(value, str | dict) and value else f"is {_short(value)}, not a condition"


_CHECKS: dict[str, Callable[[object], str | None]] = {
    **dict.fromkeys(("column", "column_A", "column_B", "type_", "regex", "strftime_format"), _is_text),
    **dict.fromkeys(("unexpected_rows_query",), _is_text),
    **dict.fromkeys(("strict_min", "strict_max", "or_equal", "double_sided", "exact_match"), _is_bool),
    **dict.fromkeys(("min_value", "max_value"), _is_bound),
    **dict.fromkeys(("sum_total", "threshold", "multiplier"), _is_number),
    **dict.fromkeys(("column_list", "column_set"), _is_columns),
    **dict.fromkeys(("regex_list", "type_list"), _is_texts),
    "mostly": _is_mostly,
    "value_set": _is_list,
    "value_pairs_set": _is_pairs,
    "match_on": _one_of("any", "all"),
    "method": _one_of("iqr", "std"),
    "condition_parser": _is_parser,
    "ignore_row_if": _is_ignored,
    "row_condition": _is_condition,
}


def _short(value: object) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


@dataclass(frozen=True)
class ValueOnLine:
    """A value and the line on which it begins. Mappings and lists hold ValuesOnLines."""

    value: Any
    line: int

    def plain(self) -> Any:
        """Return the value without lines."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value
