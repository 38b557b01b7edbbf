"""Go back to a checkpoint: positions, state, every table, as one entry of the log (docs/protocol.md, R2 to R4).

    examine    what it would do, and every reason why it cannot; nothing is touched
    end        whatever is still open is aborted, until nothing is
    pin        the target is pinned; then it is looked whether retention was faster
    entry      created behind all others, so that whoever made it has seen them, all decided
    decide     THE commit point; before it nothing has changed
    publish    by anyone, any number of times, like any other entry (checkpoint/publishing/publish.py)

It goes back by the tables' own history: the version that the target's commit made. What is given to the log is the
target's content: positions, acks and states; so the next checkpoint goes on from there, under a new id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.planning import standing_ranges
from tidegate.checkpoint.publishing import publish
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle.rollback_proposal import How, Proposal, claimed, examine
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import View
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_run, entry_name
from tidegate.records.records import (
    Control,
    Decision,
    Manifest,
    Pin,
    Plan,
    Restart,
    TablePart,
)

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["RolledBack", "roll_back"]


@dataclass(frozen=True)
class RolledBack:
    """A rollback that is decided."""

    id: int
    proposal: Proposal
    report: publish.Report | None
    """None: publishing it failed in a way that needs a person; `error` says how. It is decided all the same."""
    error: TidegateError | None = None
    ended: tuple[int, ...] = ()
    """Checkpoints that were open, and that it has aborted."""


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
) -> RolledBack:
    """Do it. choices: what is to be done to tables that others have written to. suspend: why the pipeline is to be
    suspended behind it, so that nothing is read again before somebody has looked. shown: the checkpoints that a person
    has agreed to lose; by default, those that are found first.

    Rejected: it cannot be done, for every reason that is told; nothing has changed, but that what was open may be
    aborted. Otherwise it is decided, and published as far as the tables answer.
    """
    check_run(run)
    ledger, reach = pipeline.ledger, to
    ended: list[int] = []
    while True:
        view = ledger.view(run, reach)
        control.refuse_for_good(ledger, view)
        if (done := _done_before(ledger, view, run, to)) is not None:
            return _published(pipeline, done, examine(pipeline, to, choices, view))
        proposal = _possible(pipeline, to, choices, view)
        shown = {*proposal.undone, *proposal.open} if shown is None else shown
        _refuse_more(pipeline, shown, proposal)
        answer = protocol.on_rollback(view)
        if isinstance(answer, protocol.Abort):
            decided = ledger.create_decision(_aborted(answer.id, answer.reason, answer.detail)).record
            if decided.outcome == "aborted" and answer.reason == protocol.ROLLED_BACK:
                ended.append(answer.id)
            continue
        restart = _restart(pipeline, view, proposal, by, reason, suspend)
        plan = _plan(answer, proposal, restart, run, pipeline.limits.timeout)
        reach = plan.id
        pin = _pin(ledger, plan, restart)
        if not ledger.is_kept(to):  # own mark first, then the other's: retention does it the other way round
            _unpin(ledger, pin)
            raise claimed(pipeline, to)
        control.settle_below(ledger, view, 0)
        if ledger.create_entry(plan).mine and pipeline.counts(plan):
            return replace(_decide(pipeline, plan, proposal), ended=tuple(sorted(ended)))
        _unpin(ledger, pin)


def _done_before(ledger: Ledger, view: View, run: str, to: int) -> int | None:
    """The rollback that this run has decided already, and whose answer was lost. What came behind it is not undone."""
    id = protocol.own_entry(view, run)
    entry = view.get(id) or ledger.entry(id) if id is not None else None
    if id is None or (entry is not None and entry.open):
        return None
    if entry is None or entry.plan.run != run:
        raise Rejected(
            f"run {run!r} of pipeline {ledger.pipeline!r} has made entry {id}, which is decided and retired since",
            expected="a run whose rollback can still be told",
            help="look at where the pipeline is; if it is to go back all the same, give that a run of its own",
            reason="RETIRED",
        )
    if entry.restart is None or entry.restart.target != to:
        raise Invalid(
            f"run {run!r} of pipeline {ledger.pipeline!r} has made entry {id}, which is no rollback to checkpoint {to}",
            expected="a run that has done nothing else",
            help="give each rollback a run of its own",
            reason="RUN_TAKEN",
        )
    return id


def _possible(pipeline: PipelineContext, to: int, choices: Mapping[str, How], view: View) -> Proposal:
    """A proposal without problems. What tables still lack of the target is published first."""
    proposal = examine(pipeline, to, choices, view)
    if proposal.lacking and not proposal.problems:
        with contextlib.suppress(TidegateError):
            publish.publish_pending(pipeline)
        proposal = examine(pipeline, to, choices)
    problems = [
        *proposal.problems,
        *(
            f"table {name!r} cannot be given what is owed to it, as of checkpoint {to}"
            + (f": mend it, or choose --leave {name} (it never comes there)" if name in pipeline.graph.sinks else "")
            for name in proposal.lacking
        ),
    ]
    if problems:
        raise Rejected(
            "\n    ".join([f"pipeline {pipeline.graph.name!r} cannot go back to checkpoint {to}:", *problems]),
            expected="records, versions and files as of that checkpoint, and a choice where others have written",
            help="nothing has been changed; mend it, choose per table (discard, retract, keep, leave), or go elsewhere",
            reason="CANNOT_ROLL_BACK",
        )
    return proposal


def _refuse_more(pipeline: PipelineContext, shown: Collection[int], proposal: Proposal) -> None:
    """Whoever agreed to lose some checkpoints, and then slept, has not agreed to lose those that came meanwhile."""
    more = sorted(set(proposal.undone) - set(shown))
    if more:
        raise Rejected(
            f"checkpoint {', '.join(map(str, more))} of pipeline {pipeline.graph.name!r} was completed meanwhile",
            expected="no more to be undone than what was shown",
            help="look again, and roll back again; `tidegate suspend` keeps new ones from being planned",
            reason="CHANGED_MEANWHILE",
        )


def _decide(pipeline: PipelineContext, plan: Plan, proposal: Proposal) -> RolledBack:
    """The entry exists: nothing that is below it can change any more. Now it counts, or somebody has ended it."""
    ledger, to = pipeline.ledger, proposal.target.id
    ledger.index_run(plan)
    ledger.settle_decision(to)
    sha = ledger.create_manifest(_manifest(plan, proposal))
    decided = ledger.create_decision(
        Decision(**stamp(seams.new_id()), id=plan.id, outcome="completed", manifest=sha)
    ).record
    if decided.outcome != "completed":
        raise Rejected(
            f"rollback {plan.id} to checkpoint {to} was ended before it was decided ({decided.reason})",
            help="nothing has been changed; roll back again",
            reason="ROLLBACK_ENDED",
        )
    return _published(pipeline, plan.id, proposal)


def _published(pipeline: PipelineContext, id: int, proposal: Proposal) -> RolledBack:
    try:
        return RolledBack(id, proposal, publish.publish_pending(pipeline))
    except TidegateError as error:
        return RolledBack(id, proposal, None, error)


# -- records -----------------------------------------------------------------------------------------------


def _restart(pipeline: PipelineContext, view: View, proposal: Proposal, by: str, reason: str, suspend: str) -> Restart:
    decision = proposal.target.decision
    assert decision is not None
    assert decision.manifest is not None
    held = control.suspended(view, pipeline.limits.tolerable_failed_checkpoints)
    suspended = None
    if held is not None and held.action != "drain":  # that is no act of anybody: it is told by where it goes back to
        whom = held.by or f"the failure of checkpoint {', '.join(map(str, held.failed))}"
        suspended = Control(action=held.action, by=whom, reason=held.why)
    elif suspend:
        suspended = Control(action="suspend", by=by, reason=suspend)
    return Restart(
        target=proposal.target.id,
        manifest=decision.manifest,
        by=by,
        reason=reason,
        left=sorted(change.table for change in proposal.changes if change.how == "leave"),
        tables={change.table: done for change in proposal.changes if (done := change.restored) is not None},
        suspended=suspended,
    )


def _plan(answer: protocol.CreateEntry, proposal: Proposal, restart: Restart, run: str, timeout_s: float) -> Plan:
    """An entry that reads nothing and has no jobs: its content is that of the target."""
    then = proposal.target.plan
    return Plan(
        **stamp(seams.new_id()),
        id=answer.id,
        kind="restart",
        run=run,
        generation=answer.generation,
        base=answer.base,
        restart=restart,
        drain=then.drain,
        reach=then.reach,
        sources=standing_ranges(then, {}),
        triggers=[],
        acks=[],
        commits=list(then.commits),
        hooks=then.hooks,
        timeout_s=timeout_s,
        config=then.config,
        config_fingerprint=fingerprint(then.config),
        code_fingerprint=then.code_fingerprint,
    )


def _manifest(plan: Plan, proposal: Proposal) -> Manifest:
    """The target's positions and acks; and for each table what puts it back."""
    then, now = proposal.target.manifest, proposal.base.manifest
    assert then is not None
    assert now is not None
    assert plan.restart is not None
    states = {change.table: change.state for change in proposal.changes}
    tables = {}
    for name in now.tables:
        restore, state = plan.restart.tables.get(name), states.get(name)
        after = protocol.after_publish([now], name) if restore is None else None
        if name in plan.restart.left:
            after = next(change.held for change in proposal.changes if change.table == name)
        held = [state] if restore is not None and state is not None else []
        tables[name] = TablePart(after=after, committables=held, restore=restore)
    decision = proposal.base.decision
    return Manifest(
        **stamp(seams.new_id()),
        id=plan.id,
        base=plan.base,
        base_manifest=decision.manifest if decision is not None else None,
        positions=then.positions,
        jobs=then.jobs,
        tables=tables,
        in_flight=then.in_flight,
    )


def _aborted(id: int, reason: str, detail: str) -> Decision:
    return Decision(**stamp(seams.new_id()), id=id, outcome="aborted", reason=reason, detail=detail)


def _pin(ledger: Ledger, plan: Plan, restart: Restart) -> Pin:
    """The target cannot be retired until the rollback is, or is seen to have come to nothing."""
    pin = Pin(
        attempt=plan.attempt,
        created=plan.created,
        owner=f"rollback-{entry_name(plan.id)}-{plan.attempt}",
        kind="rollback",
        entry=restart.target,
        manifest=restart.manifest,
        restart=plan.id,
        by=restart.by,
        note=restart.reason,
    )
    return ledger.create_pin(pin).record


def _unpin(ledger: Ledger, pin: Pin) -> None:
    """For a rollback that is no entry. If it fails, the next clean-up finds that it is of no use."""
    with contextlib.suppress(TidegateError):
        ledger.delete_pin(pin.owner)
