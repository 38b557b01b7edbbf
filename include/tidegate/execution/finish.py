"""What ends a checkpoint, under Airflow and in the loop alike: decide, publish, write down, forget.

Each step finds what was done before, so all of it can be repeated, by anyone, at any time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidegate import seams
from tidegate.checkpoint import troubles
from tidegate.checkpoint.approvals import HELD
from tidegate.checkpoint.context import GiveUp
from tidegate.checkpoint.publishing.publish import Report
from tidegate.coordinator import Coordinator, Outcome
from tidegate.errors import TidegateError, Unavailable
from tidegate.history.table import remember
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.hooks import Suspension
from tidegate.protocol.verdicts import REJECTED
from tidegate.records.records import Told

__all__ = ["Finished", "end_lower", "finish", "nothing_planned", "suspended_by", "tell_said", "tell_suspended"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finished:
    """How a checkpoint ended, and what is on the tables since."""

    outcome: Outcome
    report: Report
    suspension: Suspension | None = None
    """If it is one of the failures that have suspended the pipeline."""


def finish(
    coordinator: Coordinator,
    id: int,
    failure: tuple[str, str] | None,
    *,
    give_up: GiveUp,
    wait: Callable[[str], None],
    step: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Bring checkpoint `id` to its end. `wait` is called, with the reason, while it cannot be decided yet."""
    step("completing")
    while (outcome := coordinator.complete(id, failure)).state == "open":
        end_lower(coordinator, id, give_up)
        wait(outcome.detail or f"checkpoint {id} waits for those that it rests on")
    suspension = suspended_by(coordinator, id) if outcome.counts or outcome.reason == REJECTED else None
    step("publishing")
    report = coordinator.publish()
    if (blocked := report.blocked.get(id)) is not None:
        raise blocked
    remember(coordinator.ledger, coordinator.place.options)
    with contextlib.suppress(Unavailable):  # next time
        coordinator.retire()
    return Finished(outcome, report, suspension)


def suspended_by(coordinator: Coordinator, id: int) -> Suspension | None:
    """Whether the pipeline is suspended by failures, of which checkpoint `id` is one, or by its rejection; then its
    hooks are told.

    Before anything else is tried that may fail. Asked by everybody who finds the checkpoint aborted: whoever aborted
    it may have died before it could tell.
    """
    found = coordinator.suspended()
    if found is None or (id not in found.failed and id != found.rejected):
        return None
    suspension = Suspension(coordinator.graph.name, found.by, found.why, found.failed)
    tell_suspended(coordinator, suspension)
    return suspension


def tell_said(coordinator: Coordinator) -> None:
    """Tell the hooks of a suspension that somebody has said, on a page or by a command: neither runs the pipeline's
    code. So whoever is kept from planning by it tells, once."""
    found = coordinator.suspended()
    ledger = coordinator.ledger
    if found is None or found.entry is None or found.action != "suspend" or ledger.told() >= found.entry:
        return
    tell_suspended(coordinator, Suspension(coordinator.graph.name, found.by, found.why))
    with contextlib.suppress(Unavailable):  # then they are told again
        ledger.hint_told(Told(**stamp(seams.new_id()), id=found.entry))


def nothing_planned(coordinator: Coordinator, run: str) -> None:
    """A run has ended and could plan no checkpoint, for a source, a store or a hook fails: count it. Once more runs in
    a row have than `tolerable_failed_checkpoints` allows, the hooks are told.

    That suspends nothing: what was not planned has taken and written nothing, and the next run finds out by itself
    whether the cause is mended. A suspension would only have somebody say so as well.
    """
    trouble = troubles.count_unplanned(coordinator.ledger, run)
    if trouble is None or trouble.unplanned != coordinator.limits.tolerable_failed_checkpoints + 1:
        return
    with contextlib.suppress(TidegateError):
        if coordinator.suspended() is not None:  # by damage that was found: that is told as what it is
            return
    runs = f"{trouble.unplanned} runs in a row" if trouble.unplanned > 1 else "a run"
    why = f"{runs} could not plan a checkpoint: {trouble.reason}: {trouble.what}"
    log.error("Pipeline %s makes no checkpoints: %s. The next run tries again", coordinator.graph.name, why)
    _call(coordinator, Suspension(coordinator.graph.name, "", why, suspended=False))


def tell_suspended(coordinator: Coordinator, suspension: Suspension) -> None:
    """Log it and call the pipeline's hooks."""
    name = suspension.pipeline
    log.error("Pipeline %s is suspended: %s. When the cause is mended: tidegate resume %s", name, suspension.why, name)
    _call(coordinator, suspension)


def _call(coordinator: Coordinator, suspension: Suspension) -> None:
    """A hook that fails is no failure of the checkpoint, and changes nothing for the others."""
    for hook in coordinator.graph.on_suspended:
        try:
            hook(suspension)
        except Exception:
            log.exception("A hook of pipeline.on_suspended has failed; nothing else is changed by that")


def end_lower(coordinator: Coordinator, id: int, give_up: GiveUp) -> None:
    """Several at once are decided in their order. Whoever waits for lower ones does what can be done about them."""
    for entry in coordinator.ledger.view().still_open():
        if entry.id >= id:
            continue
        outcome = coordinator.complete(entry.id)
        if outcome.state == "open" and outcome.reason != HELD:
            reason = give_up(entry.plan)
            if reason:
                coordinator.abort(entry.id, reason)
