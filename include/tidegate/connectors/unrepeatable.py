"""Functions that give something else each time they are computed, as far as code shows that it calls them.

A stage that calls one gives other rows to a retry, and to a backfill: Spark's `current_timestamp()` is the moment of
the query, whatever the checkpoint's clock says.
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
"""In an expression of Spark SQL that has nothing but columns of its own."""

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
"""Of Python's and PySpark's functions."""


def unrepeatable_calls(function: Callable[..., Any]) -> list[str]:
    """Return the names of such functions in a function's code, in what it is made of, and in functions of its own
    module that it calls."""
    found: dict[str, None] = {}
    for code in _codes(function, set()):
        found |= dict.fromkeys(_names_called(code))
        texts = [const for const in code.co_consts[_docs(code) :] if isinstance(const, str)]
        found |= dict.fromkeys(name for text in texts for name in unrepeatable_in_text(text))
    return list(found)


def _names_called(code: CodeType) -> Iterator[str]:
    """Yield the names in the code, but for `timers.now`: an argument's time is that of the checkpoint."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    before: dis.Instruction | None = None
    for step in dis.get_instructions(code):
        is_name = step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))
        of_argument = before is not None and before.opname.startswith("LOAD_FAST") and before.argval in arguments
        if is_name and step.argval in _NAMES and not (of_argument and step.argval in ("now", "today")):
            yield step.argval
        before = step


def unrepeatable_in_text(text: str) -> list[str]:
    """Return the names of such functions that an expression of Spark SQL calls."""
    found = (match for match in _CALLED.finditer(_LITERAL.sub(" ", text)))
    return list(dict.fromkeys(next(filter(None, match.groups())).lower() for match in found))


def _docs(code: CodeType) -> int:
    """Return 1 if the first of a function's constants is its docstring: no expression ends with a full stop."""
    first = code.co_consts[0] if code.co_consts else None
    return int(isinstance(first, str) and first.rstrip().endswith("."))


def _codes(function: object, seen: set[int]) -> Iterator[CodeType]:
    """Yield the code of a function, of those inside it, and of those in its module or around it that it calls."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    function = getattr(function, "func", function)  # of a partial
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    nested = [function.__code__]
    while nested:
        code = nested.pop()
        yield code
        nested += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__ == function.__module__:
                yield from _codes(called, seen)
    for cell in function.__closure__ or ():
        try:
            yield from _codes(cell.cell_contents, seen)
        except ValueError:
            continue  # it is not filled yet
