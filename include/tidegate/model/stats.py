"""What a job measured of itself.

How long a checkpoint's parts take, in Flink's words:

    start delay   from the plan until the attempt began (`started`, with the plan's own time)
    alignment     between the first and the last ack of this checkpoint that the job takes from
    sync          from the attempt's begin to its ack, without what it waited for the disk: reading, computing, state,
                  gates, staging. The job's next checkpoint begins behind it
    async         from the first staged file that a thread got until the last one was durable: beside the sync part

What is in flight are rows in channels that a checkpoint went past. The ack of the job that takes them later has
*processed* them; the manifest that names them has *persisted* them (`Manifest.in_flight`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.model.struct import Struct

__all__ = ["Amount", "JobStats", "sum_of"]


class Amount(Struct, frozen=True, kw_only=True):
    """How much it is. None: nobody knows."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """All of them together; not known, if it is not known of one."""
    found = list(amounts)
    return Amount(
        rows=_sum(each.rows for each in found),
        bytes=_sum(each.bytes for each in found),
        files=_sum(each.files for each in found),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


class JobStats(Struct, frozen=True, kw_only=True):
    """What a job measured of itself; shown, never asked."""

    started: str = ""
    """When the attempt began, by the clock of its machine; empty: written before that was kept."""
    seconds: dict[str, float] = {}
    """How long each step took."""
    aligned_s: float | None = None
    sync_s: float | None = None
    async_s: float | None = None
    taken: dict[str, Amount] = {}
    """What it has read, by source."""
    received: dict[str, Amount] = {}
    """What it has taken from other jobs, by stream."""
    sent: dict[str, Amount] = {}
    """What it has put into channels for other jobs, by stream."""
    processed: Amount | None = None
    """What of that was in flight: sent in older checkpoints."""
    rows: dict[str, int] = {}
    """By sink, what it has staged; bytes and files likewise."""
    bytes: dict[str, int] = {}
    files: dict[str, int] = {}
    watermarks: dict[str, str] = {}
    """How far event time has come, by source and operator."""
    idle: list[str] = []
    """Sources that event time did not wait for."""
    counts: dict[str, dict[str, int]] = {}
    """What operators counted, such as late rows."""
