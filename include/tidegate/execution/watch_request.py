"""The messages between Airflow's triggerer and the process that watches a pipeline's sources."""

from __future__ import annotations

import msgspec

__all__ = ["WatchReport", "WatchRequest"]


class WatchRequest(msgspec.Struct, kw_only=True):
    """The pipeline to watch."""

    pipeline: str
    declared_in: list[tuple[str, str]]
    project: str


class WatchReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of output. An empty one: it can look again."""

    key: str = ""
    reason: str = ""
    """The reason to make a checkpoint, for an arrival."""
    problem: str = ""
    """Why it cannot check for input. It will retry."""
    notice: str = ""
    """What a person should know, although it can check."""
