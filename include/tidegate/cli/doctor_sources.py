"""The sources' part of `tidegate doctor`: whether everything that was put there for the pipeline will be read."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.checkpoint.skipping import never_read
from tidegate.cli.doctor import Finding
from tidegate.cli.targets import Target

__all__ = ["check_sources"]


def check_sources(target: Target) -> Iterator[Finding]:
    """What each source has passed by, as of the newest plan."""
    for name, unread in never_read(target.ledger.view()).items():
        yield Finding(target.name, f"source {name}", "bad", unread.what, unread.help)
