"""Paths with a run's data interval in them: landing/orders/{start:%Y-%m-%d}/*.json"""

from __future__ import annotations

import re
import string
from datetime import UTC, datetime

from tidegate.records.interval import Interval

__all__ = ["filled", "fixed_folder", "is_template", "template_problems"]

_FIELD = re.compile(r"\{(start|end)[!:}]")
_SAMPLE = Interval(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))


def is_template(pattern: object) -> bool:
    """Whether the pattern asks for the interval. Other braces in it are just letters then, as always."""
    return isinstance(pattern, str) and _FIELD.search(pattern) is not None


def filled(pattern: str, interval: Interval) -> str:
    """The pattern for one interval; moments in UTC."""
    return pattern.format(start=interval.start, end=interval.end)


def fixed_folder(pattern: str) -> str:
    """The folder that all intervals have in common: it must be there even if an interval has no files."""
    head = pattern[: pattern.index("{")]
    folder = head.rpartition("/")[0]
    return folder or ("/" if head.startswith("/") else ".")


def template_problems(pattern: str) -> list[str]:
    """What is wrong with it, all at once."""
    try:
        fields = [(name, spec, how) for _, name, spec, how in string.Formatter().parse(pattern) if name is not None]
    except ValueError as error:
        return [f"pattern {pattern!r}: {error}; write {{start:%Y-%m-%d}}, and double other braces"]
    found = [
        f"pattern {pattern!r}: {{{name}}} is unknown; known are {{start}} and {{end}}, other braces are doubled"
        for name, _, _ in fields
        if name not in ("start", "end")
    ]
    found += [
        f"pattern {pattern!r}: {{{name}}} says no format; write {{{name}:%Y-%m-%d}} or alike"
        for name, spec, how in fields
        if name in ("start", "end") and (not spec or "%" not in spec or how)
    ]
    if not found and filled(pattern, _SAMPLE) == pattern:
        found.append(f"pattern {pattern!r}: every interval would read the same files")
    return found
