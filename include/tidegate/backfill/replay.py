"""Replay: make the backfill's own checkpoints until it has read all input that the pipeline has read."""

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
"""Reasons of aborts that end a replay: the next checkpoint would have the same rows and the same verdict."""


def replay(line: OpenBackfill, sessions: SessionSource, schedule: Schedule, observer: Observer) -> list[Outcome]:
    """Make the backfill's checkpoints until it has read all input that the pipeline has read, or that it had read as of
    the checkpoint at which to stop (`line.backfill.until`). A repeated call continues.

    schedule: says when to stop earlier, and how many failures to tolerate.
    """
    outcomes: list[Outcome] = []
    with reporting_discarded(line.live.ledger, line.name):
        _refuse_unreviewed_code(line)
        _replay(line, sessions, schedule, observer, outcomes)
    return outcomes


def _refuse_unreviewed_code(line: OpenBackfill) -> None:
    other_code = line.other_code()
    if other_code is not None:
        raise Rejected(
            other_code,
            expected="the code that was proposed",
            help="check that code out; or propose this one: tidegate propose MODULE:PIPELINE --keep",
            reason="OTHER_CODE",
        )


def _replay(
    line: OpenBackfill, sessions: SessionSource, schedule: Schedule, observer: Observer, outcomes: list[Outcome]
) -> None:
    schedule = replace(schedule, aligned=True, pause_after_failure_s=POLL_S, ends_at=_SAME_AGAIN)
    until_idle = replace(schedule, until_idle=True, checkpoints=None)
    until_idle.stop = lambda: schedule.stop() or line.has_caught_up()
    # Failures or a rejection may have suspended it. Running it again resumes it.
    if line.backfill.suspended() is not None:
        line.backfill.resume("tidegate backfill", "run again")
    while not until_idle.stop():
        outcomes += run_checkpoints(line.backfill, sessions, until_idle, observer)
        _refuse_aborted(line, outcomes)
        if until_idle.stop() or line.has_noted_all():
            break  # nothing is new; if a source still reports that the pipeline has read more, the swap raises it
        # Nothing is new, but the pipeline has completed checkpoints since. One further plan notes them.
        one_checkpoint = replace(schedule, checkpoints=1)
        outcomes += run_checkpoints(line.backfill, sessions, one_checkpoint, observer)
        _refuse_aborted(line, outcomes)


def _refuse_aborted(line: OpenBackfill, outcomes: list[Outcome]) -> None:
    last = outcomes[-1] if outcomes else None
    if last is not None and last.state == "aborted":
        raise Rejected(
            f"checkpoint {last.id} of backfill {line.name!r} was aborted: {last.reason} {last.detail}".rstrip(),
            expected="checkpoints that complete",
            help=f"fix its cause, then {line.backfill.resuming} continues; or --discard {line.name}. The pipeline "
            "itself is not affected",
            reason="LINE_STOPPED",
        )
