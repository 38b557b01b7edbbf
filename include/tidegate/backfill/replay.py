"""Replay: the line's own checkpoints, until it has read what the pipeline has read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.backfill.line import OpenLine
from tidegate.errors import Rejected
from tidegate.execution.loop import Observer, Schedule, run_checkpoints

if TYPE_CHECKING:
    from tidegate.coordinator import Outcome
    from tidegate.execution.loop import SessionSource

__all__ = ["replay"]


def replay(line: OpenLine, sessions: SessionSource, schedule: Schedule, observer: Observer) -> list[Outcome]:
    """Make the line's checkpoints until nothing is left to read, and it has caught up with the pipeline; or with the
    checkpoint at which it is to stop (`line.own.until`).

    schedule: says when to stop earlier, and how many failures to tolerate. Repeated, it continues.
    """
    outcomes: list[Outcome] = []
    until_idle = replace(schedule, until_idle=True, checkpoints=None, aligned=True)
    while not schedule.stop():
        outcomes += run_checkpoints(line.own, sessions, until_idle, observer)
        _refuse_aborted(line, outcomes)
        if schedule.stop() or (line.head() is not None and line.own.has_read_all()):
            break
        # Nothing is new, but the pipeline has completed checkpoints since: one more plan notes them.
        outcomes += run_checkpoints(line.own, sessions, replace(until_idle, until_idle=False, checkpoints=1), observer)
        _refuse_aborted(line, outcomes)
    return outcomes


def _refuse_aborted(line: OpenLine, outcomes: list[Outcome]) -> None:
    last = outcomes[-1] if outcomes else None
    if last is not None and last.state == "aborted":
        raise Rejected(
            f"checkpoint {last.id} of backfill {line.name!r} was aborted: {last.reason} {last.detail}".rstrip(),
            expected="checkpoints that complete",
            help="mend its cause and run the same command again; the pipeline itself is not affected",
            reason="LINE_STOPPED",
        )
