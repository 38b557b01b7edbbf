"""Roll back to a checkpoint: positions, state and every table, as one entry of the log (docs/protocol.md, R2 to R4).

    examine    find its effects, and every reason against it; nothing is touched
    abort      abort open entries until none is left
    pin        pin the target; then check whether retention was faster
    entry      created after all others, so that its creator has seen them, all decided
    decide     THE commit point; before it nothing has changed
    publish    by any process, repeatably, like any other entry (checkpoint/publishing/publish.py)

Tables return to a version of their own history: the one that the target's commit made. The entry holds the target's
content (positions, acks and states), so the next checkpoint continues from there, under a new id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.checkpoint.manifests import dependencies
from tidegate.checkpoint.planning import standing_ranges
from tidegate.checkpoint.publishing import publish
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle import control
from tidegate.lifecycle.rollback_preview import How, RollbackPreview, claimed, examine
from tidegate.protocol import rules
from tidegate.protocol.view import View
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_run, entry_name
from tidegate.records.records import (
    Control,
    Decision,
    Manifest,
    Pin,
    Plan,
    Rollback,
    TablePart,
)

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["RolledBack", "pin", "roll_back", "unpin"]


@dataclass(frozen=True)
class RolledBack:
    """A rollback that is decided."""

    id: int
    preview: RollbackPreview
    report: publish.Report | None
    """None if publishing failed in a way that needs a person, as `error` says. The rollback is decided nevertheless."""
    error: TidegateError | None = None
    aborted: tuple[int, ...] = ()
    """The open checkpoints that it aborted."""


def roll_back(
    pipeline: PipelineContext,
    to: int,
    *,
    run: str,
    by: str,
    choices: Mapping[str, How],
    reason: str = "",
    suspend: str = "",
    shown: Collection[int] | None = None,
    drop_in_flight: bool = False,
) -> RolledBack:
    """Roll back to checkpoint `to`.

    choices: how to treat tables to which other writers have committed. suspend: a reason to suspend the pipeline
    afterwards, so that nothing is read again before a person has examined it. shown: the checkpoints that a person has
    agreed to lose; by default, those found first. drop_in_flight: drop the rows that were in flight as of `to`: lagging
    jobs never read them, and no source reads them again.

    Raise Rejected, with every reason, if it is impossible. Then nothing has changed, except that open checkpoints may
    be aborted. Otherwise the rollback is decided, and published to the tables that answer.
    """
    check_run(run)
    ledger, reach = pipeline.ledger, to
    aborted: list[int] = []
    while True:
        view = ledger.view(run, reach)
        suspension.refuse_after_final_cancel(ledger, view)
        previous = _decided_before(ledger, view, run, to)
        if previous is not None:
            return _published(pipeline, previous, examine(pipeline, to, choices, view))
        preview = _possible(pipeline, to, choices, view, drop_in_flight)
        if shown is None:
            shown = {*preview.undone, *preview.aborted}
        _refuse_more(pipeline, shown, preview)
        answer = rules.on_rollback(view)
        if isinstance(answer, rules.Abort):
            decided = ledger.create_decision(_aborted(answer.id, answer.reason, answer.detail)).record
            if decided.outcome == "aborted" and answer.reason == rules.ROLLED_BACK:
                aborted.append(answer.id)
            continue
        record = _rollback_record(pipeline, view, preview, by, reason, suspend)
        plan = _plan(answer, preview, record, run, pipeline.settings.timeout)
        reach = plan.id
        assert record.manifest is not None
        pinned = pin(ledger, plan, record.target, record.manifest)
        # Pin first, then check for tombstones: retention does it the other way round.
        if not all(map(ledger.is_retained, dependencies(preview.target))):
            unpin(ledger, pinned)
            raise claimed(pipeline, to)
        control.sync_below(ledger, view, 0)
        if ledger.create_entry(plan).is_new and pipeline.abort_if_id_was_used(plan):
            return replace(_decide(pipeline, plan, preview), aborted=tuple(sorted(aborted)))
        unpin(ledger, pinned)


def _decided_before(ledger: Ledger, view: View, run: str, to: int) -> int | None:
    """Return the rollback that this run has already decided, if its answer was lost. Later entries are not undone."""
    id = rules.entry_of_run(view, run)
    if id is None:
        return None
    entry = view.get(id) or ledger.entry(id)
    if entry is not None and entry.open:
        return None
    if entry is None or entry.plan.run != run:
        raise Rejected(
            f"run {run!r} of pipeline {ledger.pipeline!r} has made entry {id}, which is decided and already retired",
            expected="a run whose rollback is still in the log",
            help="check where the pipeline is; to roll back nevertheless, use another run",
            reason="RETIRED",
        )
    if entry.rollback is None or entry.rollback.target != to:
        raise Invalid(
            f"run {run!r} of pipeline {ledger.pipeline!r} has made entry {id}, which is not a rollback to checkpoint "
            f"{to}",
            expected="a run that has done nothing else",
            help="use a separate run for each rollback",
            reason="RUN_TAKEN",
        )
    return id


def _possible(
    pipeline: PipelineContext, to: int, choices: Mapping[str, How], view: View, drop_in_flight: bool
) -> RollbackPreview:
    """Return a preview without problems, or raise Rejected. Parts of the target that tables lack are published
    first."""
    preview = examine(pipeline, to, choices, view, drop_in_flight=drop_in_flight)
    if preview.lacking and not preview.problems:
        with contextlib.suppress(TidegateError):
            publish.publish_pending(pipeline)
        preview = examine(pipeline, to, choices, drop_in_flight=drop_in_flight)
    problems = list(preview.problems)
    for name in preview.lacking:
        problem = f"table {name!r} lacks its pending rows as of checkpoint {to}, which cannot be published"
        if name in pipeline.graph.sinks:
            problem += f": fix it, or choose --leave {name} (it never gets them)"
        problems.append(problem)
    if problems:
        raise Rejected(
            "\n    ".join([f"pipeline {pipeline.graph.name!r} cannot return to checkpoint {to}:", *problems]),
            expected="records, versions and files as of that checkpoint, and a choice where others have committed",
            help="nothing has been changed; fix it, choose per table (discard, retract, keep, leave), or choose "
            "another checkpoint",
            reason="CANNOT_ROLL_BACK",
        )
    return preview


def _refuse_more(pipeline: PipelineContext, shown: Collection[int], preview: RollbackPreview) -> None:
    """Raise Rejected if checkpoints were completed since a person agreed to lose those shown."""
    newer = sorted(set(preview.undone) - set(shown))
    if newer:
        raise Rejected(
            f"checkpoint {', '.join(map(str, newer))} of pipeline {pipeline.graph.name!r} has just completed",
            expected="no checkpoints to be undone except those shown",
            help="examine it, and roll back again; `tidegate suspend` keeps new ones from being planned",
            reason="CHANGED_MEANWHILE",
        )


def _decide(pipeline: PipelineContext, plan: Plan, preview: RollbackPreview) -> RolledBack:
    """Decide the rollback. Its entry exists, so no lower entry can change any more. Another process may have aborted
    it."""
    ledger, to = pipeline.ledger, preview.target.id
    ledger.index_run(plan)
    ledger.sync_decision(to)
    sha = ledger.create_manifest(_manifest(plan, preview))
    decided = ledger.create_decision(
        Decision(**stamp(seams.new_id()), id=plan.id, outcome="completed", manifest=sha)
    ).record
    if decided.outcome != "completed":
        raise Rejected(
            f"rollback {plan.id} to checkpoint {to} was ended before it was decided ({decided.reason})",
            help="nothing has been changed; roll back again",
            reason="ROLLBACK_ENDED",
        )
    return _published(pipeline, plan.id, preview)


def _published(pipeline: PipelineContext, id: int, preview: RollbackPreview) -> RolledBack:
    try:
        return RolledBack(id, preview, publish.publish_pending(pipeline))
    except TidegateError as error:
        return RolledBack(id, preview, None, error)


# -- records -----------------------------------------------------------------------------------------------


def _rollback_record(
    pipeline: PipelineContext, view: View, preview: RollbackPreview, by: str, reason: str, suspend: str
) -> Rollback:
    decision = preview.target.decision
    assert decision is not None
    assert decision.manifest is not None
    suspended = suspension.inherited_suspension(view, pipeline.settings.tolerable_failed_checkpoints)
    if suspended is None and suspend:
        suspended = Control(action="suspend", by=by, reason=suspend)
    return Rollback(
        target=preview.target.id,
        manifest=decision.manifest,
        by=by,
        reason=reason,
        left=sorted(change.table for change in preview.changes if change.method == "leave"),
        tables={change.table: change.restored for change in preview.changes if change.restored is not None},
        dropped=preview.dropped,
        suspended=suspended,
    )


def _plan(answer: rules.CreateEntry, preview: RollbackPreview, record: Rollback, run: str, timeout_s: float) -> Plan:
    """Return the plan of an entry that reads nothing and has no jobs: its content is that of the target."""
    target_plan = preview.target.plan
    return Plan(
        **stamp(seams.new_id()),
        quotes_rows=False,
        id=answer.id,
        kind="restart",
        run=run,
        generation=answer.generation,
        base=answer.base,
        clock=target_plan.time,
        rollback=record,
        drain=target_plan.drain,
        reach=target_plan.reach,
        sources=standing_ranges(target_plan, {}),
        triggers=[],
        acks=[],
        commits=list(target_plan.commits),
        hooks=target_plan.hooks,
        timeout_s=timeout_s,
        config=target_plan.config,
        config_fingerprint=fingerprint(target_plan.config),
        code_fingerprint=target_plan.code_fingerprint,
    )


def _manifest(plan: Plan, preview: RollbackPreview) -> Manifest:
    """Return the manifest: the target's positions and acks, and the restoration of each table."""
    target_manifest, base_manifest = preview.target.manifest, preview.base.manifest
    assert target_manifest is not None
    assert base_manifest is not None
    assert plan.rollback is not None
    states = {change.table: change.state for change in preview.changes}
    tables = {}
    for name in base_manifest.tables:
        restore, state = plan.rollback.tables.get(name), states.get(name)
        after = None
        if restore is None:
            after = rules.after_publish([base_manifest], name)
        if name in plan.rollback.left:
            after = next(change.last_held for change in preview.changes if change.table == name)
        committables = [state] if restore is not None and state is not None else []
        tables[name] = TablePart(after=after, committables=committables, restore=restore)
    decision = preview.base.decision
    return Manifest(
        **stamp(seams.new_id()),
        id=plan.id,
        base=plan.base,
        base_manifest=decision.manifest if decision is not None else None,
        positions=target_manifest.positions,
        jobs=target_manifest.jobs,
        tables=tables,
        in_flight={} if preview.drops_in_flight else target_manifest.in_flight,
        let_go={**target_manifest.let_go, **{job: ids[-1] for job, ids in preview.dropped.items()}},
    )


def _aborted(id: int, reason: str, detail: str) -> Decision:
    return Decision(**stamp(seams.new_id()), id=id, outcome="aborted", reason=reason, detail=detail)


def pin(ledger: Ledger, plan: Plan, entry: int, manifest: str, suffix: str = "") -> Pin:
    """Pin an entry that a rollback or a swap rests on, until that is retired, or found to have failed.

    The pin's name contains the entry and its attempt: a pin that another attempt could replace would protect nothing.
    """
    assert plan.rollback is not None
    pinned = Pin(
        attempt=plan.attempt,
        created=plan.created,
        owner=f"rollback-{entry_name(plan.id)}-{plan.attempt}{suffix}",
        kind="rollback",
        entry=entry,
        manifest=manifest,
        rollback=plan.id,
        by=plan.rollback.by,
        note=plan.rollback.reason,
    )
    return ledger.create_pin(pinned).record


def unpin(ledger: Ledger, *pins: Pin) -> None:
    """Remove the pins of a rollback that has no entry. If that fails, the next clean-up finds that they are stale."""
    for stale in pins:
        with contextlib.suppress(TidegateError):
            ledger.delete_pin(stale.owner)
