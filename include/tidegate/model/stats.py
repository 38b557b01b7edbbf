"""What a job measured of itself."""

from __future__ import annotations

from tidegate.model.struct import Struct

__all__ = ["JobStats"]


class JobStats(Struct, frozen=True, kw_only=True):
    """What a job measured of itself; shown, never asked."""

    started: str = ""
    """When the attempt began, by the clock of its machine; empty: written before that was kept."""
    seconds: dict[str, float] = {}
    rows: dict[str, int] = {}
    bytes: dict[str, int] = {}
    files: dict[str, int] = {}
    watermarks: dict[str, str] = {}
    """How far event time has come, by source and operator."""
    idle: list[str] = []
    """Sources that event time did not wait for."""
    counts: dict[str, dict[str, int]] = {}
    """What operators counted, such as late rows."""
