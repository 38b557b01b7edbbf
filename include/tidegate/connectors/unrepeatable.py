"""Finds calls of non-deterministic functions, such as `rand()` or `now()`, in Python code and Spark SQL.

A stage that calls one returns different rows in a retry or a backfill. Spark's `current_timestamp()`, for example, is
the time of the query, not the checkpoint's time.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

__all__ = ["UNREPEATABLE", "unrepeatable_calls", "unrepeatable_in_text"]

UNREPEATABLE: Final = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|now|current_timestamp|current_date|current_time|curdate|"
    r"localtimestamp|unix_timestamp(?=\s*\(\s*\))|monotonically_increasing_id|spark_partition_id|"
    r"input_file_name|current_user|session_user|version)\b",
    re.IGNORECASE,
)
"""Matches their names in a Spark SQL expression whose only columns cannot have such names."""

_CALLED: Final = re.compile(
    r"\b(rand|randn|random|randstr|uuid|shuffle|now|curdate|monotonically_increasing_id|spark_partition_id)\s*\(|"
    r"\b(unix_timestamp)\s*\(\s*\)|\b(current_timestamp|current_date|current_time|localtimestamp)\b",
    re.IGNORECASE,
)
_LITERAL: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`")
_NAMES: Final = frozenset(
    (
        *("rand", "randn", "random", "randint", "uuid1", "uuid4", "shuffle", "monotonically_increasing_id"),
        *("now", "today", "utcnow", "time_ns", "current_timestamp", "current_date", "current_time", "curdate"),
        *("localtimestamp", "spark_partition_id", "sample", "randomSplit"),
    )
)
"""Names of such functions in Python and PySpark."""


def unrepeatable_calls(function: Callable[..., Any]) -> list[str]:
    """Return the names of non-deterministic functions that a function calls, directly, in nested functions and SQL
    texts, or in functions of its module that it calls."""
    names: dict[str, None] = {}  # in order, each once
    for code in _codes(function, set()):
        names |= dict.fromkeys(_names_called(code))
        for constant in code.co_consts[_docstring_count(code) :]:
            if isinstance(constant, str):
                names |= dict.fromkeys(unrepeatable_in_text(constant))
    return list(names)


def _names_called(code: CodeType) -> Iterator[str]:
    """Yield the names in the code. `now` of an argument, as in `timers.now`, is excluded: it is the checkpoint's
    time."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    previous: dis.Instruction | None = None
    for step in dis.get_instructions(code):
        is_name = step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))
        of_argument = previous is not None and previous.opname.startswith("LOAD_FAST") and previous.argval in arguments
        if is_name and step.argval in _NAMES and not (of_argument and step.argval in ("now", "today")):
            yield step.argval
        previous = step


def unrepeatable_in_text(text: str) -> list[str]:
    """Return the names of non-deterministic functions that a Spark SQL expression calls."""
    names: dict[str, None] = {}
    for match in _CALLED.finditer(_LITERAL.sub(" ", text)):
        for group in match.groups():
            if group:
                names[group.lower()] = None
    return list(names)


def _docstring_count(code: CodeType) -> int:
    """Return 1 if the first constant is the function's docstring, else 0. No SQL expression ends with a full stop."""
    first = code.co_consts[0] if code.co_consts else None
    return int(isinstance(first, str) and first.rstrip().endswith("."))


def _codes(function: object, visited: set[int]) -> Iterator[CodeType]:
    """Yield the code of a function, of functions nested in it, and of functions in its module or closure that it
    calls."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    function = getattr(function, "func", function)  # unwraps a partial
    if not isinstance(function, FunctionType) or id(function) in visited:
        return
    visited.add(id(function))
    nested = [function.__code__]
    while nested:
        code = nested.pop()
        yield code
        for const in code.co_consts:
            if isinstance(const, CodeType):
                nested.append(const)
        for name in code.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__ == function.__module__:
                yield from _codes(called, visited)
    for cell in function.__closure__ or ():
        try:
            yield from _codes(cell.cell_contents, visited)
        except ValueError:
            continue  # the cell is still empty
