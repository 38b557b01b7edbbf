"""Points in time on the command line: a date, a time, or how long ago."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta

from tidegate import seams
from tidegate.config.keys import seconds_in
from tidegate.versions.python import UTC, parse_time

__all__ = ["moment"]


def moment(text: str) -> datetime:
    """Parse 2026-03-01, 2026-03-01T12:00 (UTC, unless it names a zone), or "2 h" for two hours ago."""
    try:
        return seams.now() - timedelta(seconds=seconds_in(text))
    except ValueError:
        pass
    try:
        parsed = parse_time(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2026-03-01, 2026-03-01T12:00, or how long ago, such as '2 h'"
        ) from None
    if parsed.tzinfo is not None:
        return parsed
    return parsed.replace(tzinfo=UTC)
