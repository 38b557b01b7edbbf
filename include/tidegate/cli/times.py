"""Moments as people give them on a command line: a date, a time, or how long ago."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

from tidegate import seams
from tidegate.config.keys import seconds_in

__all__ = ["moment"]


def moment(text: str) -> datetime:
    """2026-03-01, 2026-03-01T12:00 (UTC, unless it says otherwise), or "2 h" ago."""
    try:
        return seams.now() - timedelta(seconds=seconds_in(text))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no moment: write 2026-03-01, 2026-03-01T12:00, or how long ago, such as '2 h'"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
