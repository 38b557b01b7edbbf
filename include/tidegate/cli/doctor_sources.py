"""The sources' part of `tidegate doctor`: whether everything that was put there for the pipeline will be read, and each
interval made."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.checkpoint.skipping import gaps, making_up, never_read
from tidegate.cli.doctor import Finding
from tidegate.cli.targets import Target

__all__ = ["check_sources"]


def check_sources(target: Target) -> Iterator[Finding]:
    """What each source has passed by, as of the newest plan; and what intervals were left out."""
    view = target.ledger.view()
    if missed := gaps(target.ledger, view):
        shown = ", ".join(map(str, missed[:5])) + (", …" if len(missed) > 5 else "")
        detail = f"no checkpoint has made {shown} (UTC)"
        yield Finding(target.name, "intervals", "bad", detail, making_up(target.name, missed))
    for name, unread in never_read(view).items():
        yield Finding(target.name, f"source {name}", "bad", unread.what, unread.help)
