"""Replay: the line's own checkpoints, until it has read what the pipeline has read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.backfill.open_backfill import OpenBackfill, reporting_discarded
from tidegate.errors import Rejected
from tidegate.execution.loop import POLL_S, Observer, Schedule, run_checkpoints
from tidegate.protocol.verdicts import REJECTED

if TYPE_CHECKING:
    from tidegate.coordinator import Outcome
    from tidegate.execution.loop import SessionSource

__all__ = ["replay"]

_SAME_AGAIN = frozenset({"GATE_FAILED", REJECTED})
"""Its next checkpoint would have the same rows, and be judged in the same way."""


def replay(line: OpenBackfill, sessions: SessionSource, schedule: Schedule, observer: Observer) -> list[Outcome]:
    """Make the line's checkpoints until it has read all that the pipeline has read by then, or as of the checkpoint at
    which it is to stop (`line.own.until`).

    schedule: says when to stop earlier, and how many failures to tolerate. Repeated, it continues.
    """
    outcomes: list[Outcome] = []
    with reporting_discarded(line.live.ledger, line.name):
        _replay(line, sessions, schedule, observer, outcomes)
    return outcomes


def _replay(
    line: OpenBackfill, sessions: SessionSource, schedule: Schedule, observer: Observer, outcomes: list[Outcome]
) -> None:
    schedule = replace(schedule, aligned=True, pause_after_failure_s=POLL_S, ends_at=_SAME_AGAIN)
    until_idle = replace(schedule, until_idle=True, checkpoints=None)
    until_idle.stop = lambda: schedule.stop() or line.has_caught_up()
    if (
        line.backfill.suspended() is not None
    ):  # by failures, or by a rejection: whoever runs it again wants it to continue
        line.backfill.resume("tidegate backfill", "run again")
    while not until_idle.stop():
        outcomes += run_checkpoints(line.backfill, sessions, until_idle, observer)
        _refuse_aborted(line, outcomes)
        if until_idle.stop() or line.has_noted_all():
            break  # nothing is new; if a source still says that the pipeline has read more, the swap tells it
        # Nothing is new, but the pipeline has completed checkpoints since: one more plan notes them.
        one_more = replace(schedule, checkpoints=1)
        outcomes += run_checkpoints(line.backfill, sessions, one_more, observer)
        _refuse_aborted(line, outcomes)


def _refuse_aborted(line: OpenBackfill, outcomes: list[Outcome]) -> None:
    last = outcomes[-1] if outcomes else None
    if last is not None and last.state == "aborted":
        raise Rejected(
            f"checkpoint {last.id} of backfill {line.name!r} was aborted: {last.reason} {last.detail}".rstrip(),
            expected="checkpoints that complete",
            help=f"mend its cause, then {line.backfill.resuming} continues; or --discard {line.name}. The pipeline "
            "itself is not affected",
            reason="LINE_STOPPED",
        )
