"""The end of a checkpoint, under Airflow and in the loop alike: decide, publish, write down, forget.

Each step finds what was done before, so all of it can be repeated, by anyone, at any time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import structs

from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.checkpoint.approvals import HELD
from tidegate.checkpoint.compatibility import declaration_of, declined_error
from tidegate.checkpoint.context import AbandonCheck, PipelineContext
from tidegate.checkpoint.publishing.publish import Report
from tidegate.checkpoint.suspension import current_suspension
from tidegate.coordinator import Coordinator, Outcome
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.execution.notifications import notify_settled
from tidegate.history.table import remember
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.hooks import OnSuspended, Suspension
from tidegate.protocol.rules import BAD_DECLARATION
from tidegate.protocol.verdicts import REJECTED
from tidegate.records.records import HookProgress

__all__ = [
    "Finished",
    "decide_earlier",
    "finish",
    "notify_if_suspended",
    "notify_requested_suspension",
    "notify_suspended",
    "record_failed_plan",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finished:
    """The outcome of a checkpoint, and the state of the tables since."""

    outcome: Outcome
    report: Report
    suspension: Suspension | None = None
    """Set if it is one of the failures that have suspended the pipeline."""


def finish(
    coordinator: Coordinator,
    id: int,
    failure: tuple[str, str] | None,
    *,
    give_up: AbandonCheck,
    wait: Callable[[str], None],
    step: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Bring checkpoint `id` to its end. `wait` is called, with the reason, while it cannot be decided yet."""
    step("completing")
    failure = _as_declined(coordinator, id, failure)
    while (outcome := coordinator.complete(id, failure)).state == "open":
        decide_earlier(coordinator, id, give_up)
        wait(outcome.detail or f"checkpoint {id} waits for those that it rests on")
    suspension = None
    if outcome.counts or outcome.reason == REJECTED:
        suspension = notify_if_suspended(coordinator, id)
    if outcome.reason == BAD_DECLARATION:
        _notify_declined(coordinator)
    step("publishing")
    report = coordinator.publish()
    if (blocked := report.blocked.get(id)) is not None:
        raise blocked
    remember(coordinator.ledger, coordinator.place.options)
    notify_settled(coordinator)
    with contextlib.suppress(Unavailable):  # next time
        coordinator.retire()
    return Finished(outcome, report, suspension)


def _as_declined(pipeline: PipelineContext, id: int, failure: tuple[str, str] | None) -> tuple[str, str] | None:
    """Return the failure of a job, as an error of the declaration if the job has found that."""
    declined = pipeline.ledger.declined() if failure is not None else None
    if declined is None or declined.id != id or declined.declaration != declaration_of(pipeline):
        return failure  # with other code since then, the job has failed for another reason
    return BAD_DECLARATION, str(Invalid(declined.what, expected=declined.expected, help=declined.help))


def _notify_declined(pipeline: PipelineContext) -> None:
    """Call the hooks for an error of the declaration, once; again only if this process dies in between."""
    declined = pipeline.ledger.declined()
    if declined is None or declined.notified:
        return
    why = f"its declaration is wrong: {declined.reason}: {declined.what}"
    # A backfill or a proposal stops alone: the pipeline continues.
    log.error("Pipeline %s: no checkpoint can be made as it is declared: %s", pipeline.graph.name, declined.what)
    _call(pipeline.graph.on_suspended, Suspension(pipeline.graph.name, "", why, suspended=False))
    with contextlib.suppress(Unavailable):  # then the hooks are called again
        pipeline.ledger.hint_declined(structs.replace(declined, notified=True))


def notify_if_suspended(pipeline: PipelineContext, id: int) -> Suspension | None:
    """If checkpoint `id` has suspended the pipeline, by failing or by being rejected: call the hooks, return why.

    Call it before anything that may fail, whenever a checkpoint turns out to be aborted: the process that aborted it
    may have died before it could call the hooks.
    """
    state = current_suspension(pipeline)
    if state is None or (id not in state.failed_checkpoints and id != state.rejected_checkpoint):
        return None
    suspension = Suspension(pipeline.graph.name, state.cause, state.why, state.failed_checkpoints)
    notify_suspended(pipeline, suspension)
    return suspension


def notify_requested_suspension(pipeline: PipelineContext) -> Suspension | None:
    """Call the hooks for a suspension that a page or a command has requested: neither runs the pipeline's code.

    So the first run that the suspension keeps from planning calls them, once. Return the suspension if it was told now.
    """
    suspension = current_suspension(pipeline)
    ledger = pipeline.ledger
    if (
        suspension is None
        or suspension.entry is None
        or suspension.action != "suspend"
        or ((told := ledger.hook_progress()) is not None and told.id >= suspension.entry)
    ):
        return None
    told_now = Suspension(pipeline.graph.name, suspension.cause, suspension.why)
    notify_suspended(pipeline, told_now)
    with contextlib.suppress(Unavailable):  # then the hooks are called again
        before = told or HookProgress(**stamp(seams.new_id()))
        ledger.record_hook_progress(structs.replace(before, **stamp(seams.new_id()), id=suspension.entry))
    return told_now


def record_failed_plan(pipeline: PipelineContext, run: str) -> None:
    """Count a run that could not plan a checkpoint, because a source, a store or a hook fails.

    After more such runs in a row than `tolerable_failed_checkpoints` allows, the hooks are called. The pipeline is not
    suspended: without a plan nothing was read or written, and the next run finds out whether the cause is fixed. A
    suspension would only add the need to resume the pipeline.
    """
    trouble = troubles.count_unplanned(pipeline.ledger, run)
    with contextlib.suppress(TidegateError):
        if declined_error(pipeline) is not None:
            _notify_declined(pipeline)  # the run whose job found it may have died before it could
            return
    if trouble is None or trouble.unplanned != pipeline.settings.tolerable_failed_checkpoints + 1:
        return
    with contextlib.suppress(TidegateError):
        if current_suspension(pipeline) is not None:  # by damage that was found: that is reported for what it is
            return
    if trouble.unplanned > 1:
        runs = f"{trouble.unplanned} runs in a row"
    else:
        runs = "a run"
    why = f"{runs} could not plan a checkpoint: {trouble.reason}: {trouble.what}"
    log.error("Pipeline %s makes no checkpoints: %s. The next run tries again", pipeline.graph.name, why)
    _call(pipeline.graph.on_suspended, Suspension(pipeline.graph.name, "", why, suspended=False))


def notify_suspended(pipeline: PipelineContext, suspension: Suspension) -> None:
    """Log it and call the pipeline's hooks."""
    subject = f"{pipeline.subject[0].upper()}{pipeline.subject[1:]}"
    log.error("%s is suspended: %s. When the cause is fixed: %s", subject, suspension.why, pipeline.resuming)
    _call(pipeline.graph.on_suspended, suspension)


def _call(hooks: Iterable[OnSuspended], suspension: Suspension) -> None:
    """Call a hook. If it fails, neither the checkpoint nor other hooks are affected."""
    for hook in hooks:
        try:
            hook(suspension)
        except Exception:
            log.exception("A hook of pipeline.on_suspended has failed; nothing else is changed by that")


def decide_earlier(coordinator: Coordinator, id: int, give_up: AbandonCheck) -> None:
    """Decide several at once in their order. While waiting for lower ones, do what can be done about them."""
    for entry in coordinator.ledger.view().still_open():
        if entry.id >= id:
            continue
        outcome = coordinator.complete(entry.id)
        if outcome.state == "open" and outcome.reason != HELD:
            reason = give_up(entry.plan)
            if reason:
                coordinator.abort(entry.id, reason)
