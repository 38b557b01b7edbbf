"""Replacements for what Python 3.10 lacks: `UTC`, `tomllib`, and parsing of times with a Z or with fewer digits."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same module under the name that it had before Python took it in
    import tomli as tomllib

__all__ = ["UTC", "parse_time", "tomllib"]

UTC: Final = timezone.utc

_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})"
    r"(?:[T ](\d{2})(?::?(\d{2})(?::?(\d{2})(?:[.,](\d{1,6})\d*)?)?)?(Z|[+-]\d{2}(?::?\d{2})?)?)?"
)


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601, as `datetime.fromisoformat` does from Python 3.11 on. Raises ValueError."""
    if sys.version_info >= (3, 11):
        return datetime.fromisoformat(text)
    return _parse_time(text)


def _parse_time(text: str) -> datetime:
    """Write the time out in full: that much Python 3.10 reads."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"Invalid isoformat string: {text!r}")
    day, hour, minute, second, fraction, zone = match.groups()
    clock = f"{hour or '00'}:{minute or '00'}:{second or '00'}"
    micros = f".{fraction:0<6}" if fraction else ""
    if zone is None:
        offset = ""
    elif zone == "Z":
        offset = "+00:00"
    else:
        offset = f"{zone[:3]}:{zone[3:].lstrip(':') or '00'}"
    return datetime.fromisoformat(f"{day}T{clock}{micros}{offset}")
