"""Path patterns with the run's data interval, such as landing/orders/{start:%Y-%m-%d}/*.json."""

from __future__ import annotations

import re
import string
from datetime import datetime

from tidegate.records.interval import Interval
from tidegate.versions.python import UTC

__all__ = ["fill_in", "fixed_folder", "is_template", "template_problems"]

_FIELD = re.compile(r"\{(start|end)[!:}]")
_SAMPLE = Interval(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))


def is_template(pattern: object) -> bool:
    """Return whether the pattern uses the interval. If not, its braces are plain characters."""
    return isinstance(pattern, str) and _FIELD.search(pattern) is not None


def fill_in(pattern: str, interval: Interval) -> str:
    """Return the pattern for one interval, with its times in UTC."""
    return pattern.format(start=interval.start, end=interval.end)


def fixed_folder(pattern: str) -> str:
    """Return the folder above the part that depends on the interval. It must exist even if an interval has no files."""
    head = pattern[: pattern.index("{")]
    folder = head.rpartition("/")[0]
    return folder or ("/" if head.startswith("/") else ".")


def template_problems(pattern: str) -> list[str]:
    """Return all problems of the pattern."""
    try:
        parts = list(string.Formatter().parse(pattern))
    except ValueError as error:
        return [f"pattern {pattern!r}: {error}; write {{start:%Y-%m-%d}}, and double other braces"]
    unknown, unformatted = [], []
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in ("start", "end"):
            unknown.append(
                f"pattern {pattern!r}: {{{name}}} is unknown; known are {{start}} and {{end}}, other braces are doubled"
            )
        elif not spec or "%" not in spec or conversion:
            unformatted.append(f"pattern {pattern!r}: {{{name}}} has no format; write {{{name}:%Y-%m-%d}} or similar")
    problems = unknown + unformatted
    if not problems and fill_in(pattern, _SAMPLE) == pattern:
        problems.append(f"pattern {pattern!r}: every interval would read the same files")
    return problems
