"""Previews of the actions, for the dialogs: what each action would do.

A preview refuses what its action would refuse, by the same checks, and writes nothing. Checks that need the pipeline's
code are left to the run that performs the action.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fastapi import HTTPException

from tidegate.backfill.by_airflow import begin_after, refuse_impossible_start
from tidegate.backfill.way_back import next_name
from tidegate.checkpoint import approvals, suspension
from tidegate.checkpoint.approvals import awaits_person
from tidegate.checkpoint.quarantine_requests import refuse_unknown_gate
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.history.backfill import BackfillStatus, backfill_status, backfill_statuses, open_backfill_ledger
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.lifecycle import control, savepoint
from tidegate.protocol.verdicts import Holding, unanswered
from tidegate.protocol.view import Entry, View
from tidegate.records.names import backfill_dag
from tidegate.records.records import Request
from tidegate.ui import views
from tidegate.ui.action_requests import (
    ActionRequest,
    AnswerRequest,
    BackfillRequest,
    DiscardRequest,
    RejectRequest,
    RejudgeRequest,
    ReleaseRequest,
    ResumeRequest,
    RollbackRequest,
    RunRequest,
    SampleRow,
    SavepointRequest,
    SwapRequest,
    WhyRequest,
)
from tidegate.ui.pipelines import PipelineRef, find_known_pipeline, has_dag, is_paused
from tidegate.ui.rows import outlooks, quarantined

__all__ = [
    "PREVIEWS",
    "no_such_dag",
    "preview",
    "refuse_airflows_backfill",
    "refuse_swap",
    "refuse_unknown",
    "samples",
    "words_of_rejudging",
    "words_of_release",
]

log = logging.getLogger(__name__)

Effects = list[str]


def preview(action: str, pipeline: PipelineRef, ledger: Ledger, body: ActionRequest) -> Effects:
    """Return what an action would do, in sentences."""
    return PREVIEWS[action](pipeline, ledger, body)


def _trigger(pipeline: PipelineRef, ledger: Ledger, body: RunRequest) -> Effects:
    view = ledger.view()
    suspended = suspension.suspended(view, pipeline.tolerable_failed_checkpoints)
    if suspended is not None:
        state = suspension.STATE_AFTER[suspended.action]
        return [f"The pipeline is {state}: the run plans no checkpoint unless the pipeline is resumed first."]
    return [*_planned(pipeline, view), *_named(ledger, body)]


def _drain(pipeline: PipelineRef, ledger: Ledger, body: RunRequest) -> Effects:
    drained = "If it takes all input, it ends event time, and later runs plan nothing until the pipeline is resumed."
    return [*_trigger(pipeline, ledger, body), drained]


def _planned(pipeline: PipelineRef, view: View) -> Effects:
    """Return the effects of a run that plans a checkpoint."""
    base = view.last_completed
    if base is not None:
        effects = [f"A run plans a checkpoint after checkpoint {base.id}, and reads all new input."]
    else:
        effects = ["A run plans the first checkpoint, and reads from the beginning."]
    if is_paused(pipeline.dag_id):
        effects.append("Airflow has paused the DAG: the run begins when it is unpaused.")
    return effects + [_open_one(entry) for entry in view.still_open()]


def _open_one(entry: Entry) -> str:
    if awaits_person(entry):
        gates = ", ".join(holding.gate for holding in unanswered(entry))
        state = f"is held by gate {gates}" if gates else "has its answers"
        return f"Checkpoint {entry.id} {state}: the run waits until it is decided."
    return f"Checkpoint {entry.id} is open: the run waits for it, or aborts it if its own run is gone."


def _named(ledger: Ledger, body: RunRequest | RollbackRequest) -> Effects:
    name = getattr(body, "savepoint", None)
    if name is None:
        return []
    savepoint.check_free(ledger, name, None)
    return [f"Once completed, the checkpoint is savepoint {name}: retention spares it."]


def _savepoint(pipeline: PipelineRef, ledger: Ledger, body: SavepointRequest) -> Effects:
    decision = savepoint.nameable(ledger, body.name, body.checkpoint)
    savepoint.check_free(ledger, body.name, decision.id)
    savepoint.check_retained(ledger, decision.id)
    return [f"Checkpoint {decision.id} is savepoint {body.name}: retention spares it until the savepoint is disposed."]


def _dispose(pipeline: PipelineRef, ledger: Ledger, body: SavepointRequest) -> Effects:
    disposed = savepoint.find(ledger, body.name)
    other_names = []
    for each in savepoint.savepoints(ledger):
        if each.entry == disposed.entry and each != disposed:
            other_names.append(each.name)
    if other_names:
        return [f"Checkpoint {disposed.entry} keeps the name {', '.join(other_names)}, and stays."]
    settings = {key: value for key, value, _ in pipeline.card.settings}
    num_retained = settings.get("num_retained", "")
    later = len(pipeline.past().checkpoints_after(disposed.entry, "completed"))
    if num_retained.isdecimal() and later < int(num_retained):
        return [f"Checkpoint {disposed.entry} stays for now: it is among the last {num_retained}, which are retained."]
    return [
        f"Retention removes checkpoint {disposed.entry} soon: {later} have completed since. Then no rollback to it is "
        "possible."
    ]


def _approve(pipeline: PipelineRef, ledger: Ledger, body: AnswerRequest) -> Effects:
    ledger = _answered(pipeline, ledger, body)
    entry, holding = approvals.answerable(ledger, body.checkpoint, body.gate)
    if body.backfill is not None:
        effects = [f"The backfill continues with exactly the judged rows: {_staged(entry)}."]
    else:
        effects = [f"Checkpoint {entry.id} completes, and exactly the judged rows are published: {_staged(entry)}."]
        quarantined_rows = 0
        for acked in entry.acks.values():
            quarantined_rows += sum(verdict.quarantined for verdict in acked.ack.gates.values())
        if quarantined_rows:
            effects.append(f"{_count(quarantined_rows)} to quarantine.")
    other_gates = [each.gate for each in unanswered(entry) if each not in holding]
    if other_gates:
        effects.append(f"First, gate {', '.join(other_gates)} must be answered, too.")
    return effects


def _reject(pipeline: PipelineRef, ledger: Ledger, body: RejectRequest) -> Effects:
    ledger = _answered(pipeline, ledger, body)
    entry, waiting = approvals.answerable(ledger, body.checkpoint, body.gate)
    if body.quarantine:
        approvals.refuse_quarantine(entry, waiting)
        return _quarantine_effects(entry, waiting, of_backfill=body.backfill is not None)
    if body.backfill is not None:
        return [
            f"The backfill stops at its checkpoint {entry.id}, until it is continued or discarded.",
            "The pipeline continues, and its tables stay as they are.",
        ]
    return [
        f"Checkpoint {entry.id} is aborted, and no table gets its rows: {_staged(entry)}.",
        "The pipeline is suspended: no run plans a checkpoint until it is resumed.",
        "The next checkpoint reads the same input again. Resume can quarantine what a gate would hold again.",
    ]


def _quarantine_effects(entry: Entry, waiting: Sequence[Holding], *, of_backfill: bool) -> Effects:
    of = " of the backfill" if of_backfill else ""
    effects = [f"Checkpoint {entry.id}{of} is aborted, and its input is read again at once."]
    for holding in waiting:
        holding_rules = [rule for rule in holding.verdict.broken if rule.policy == "hold"]
        if any(rule.rows is None for rule in holding_rules):
            rows = f"all {_count(holding.verdict.rows)} of gate {holding.gate}, because a rule is not about single rows"
        else:
            rules = ", ".join(rule.rule for rule in holding_rules)
            rows = f"the rows of gate {holding.gate} that break {rules}; the others are published. If the gate cannot "
            rows += f"name these, all {_count(holding.verdict.rows)}"
        effects.append(f"To quarantine: {rows}.")
    return effects


def _answered(pipeline: PipelineRef, ledger: Ledger, body: AnswerRequest) -> Ledger:
    """Return the ledger that has the checkpoint: the pipeline's, or a backfill's."""
    if body.backfill is None:
        return ledger
    return open_backfill_ledger(ledger, body.backfill, pipeline.options)


def _staged(entry: Entry) -> str:
    rows: dict[str, int] = {}
    for acked in entry.acks.values():
        for name in acked.ack.sinks:
            rows[name] = acked.ack.stats.rows.get(name, 0)
    return ", ".join(f"{_count(number)} for {name}" for name, number in sorted(rows.items())) or "none"


def _count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _suspend(pipeline: PipelineRef, ledger: Ledger, body: ActionRequest) -> Effects:
    view = ledger.view()
    suspension.refuse_after_final_cancel(ledger, view)
    planned = list(view.still_open())
    effects = ["Runs plan no checkpoint until the pipeline is resumed. Input waits: nothing is lost."]
    for entry in planned:
        if awaits_person(entry):
            end = "still waits for an answer"
        else:
            end = "is finished first"
        effects.append(f"Checkpoint {entry.id} {end}.")
    if planned:
        return effects
    return [*effects, "No checkpoint is open."]


def _resume(pipeline: PipelineRef, ledger: Ledger, body: ResumeRequest) -> Effects:
    view = ledger.view()
    if not control.check_resume(ledger, view, after_end=body.restart_finished, quarantine_all=body.quarantine_all):
        raise Rejected("the pipeline is not suspended", help="nothing to do", reason="NOT_SUSPENDED")
    suspended = suspension.suspended(view, pipeline.tolerable_failed_checkpoints)
    effects = _planned(pipeline, view)
    effects[0] = f"The next run continues: {effects[0][0].lower()}{effects[0][1:]}"
    if suspended is not None and suspended.failed_checkpoints:
        effects.append(f"The failures so far ({_listed(suspended.failed_checkpoints)}) do not count any more.")
    if body.quarantine_all:
        effects.append("The next checkpoint quarantines the rows that a gate would hold again.")
    elif suspended is not None and suspended.rejected_checkpoint is not None:
        effects.append("A gate holds the next checkpoint again, unless its rows have changed.")
    if body.restart_finished:
        effects.append("Event time has ended: new rows are late.")
    return effects


def _rollback(pipeline: PipelineRef, ledger: Ledger, body: RollbackRequest) -> Effects:
    plan = views.rollback_plan(pipeline, body.to)
    undone, aborted, tables = plan.undone, plan.aborted, plan.tables
    effects = [f"Undone: the swap of backfill {swap.backfill}." for swap in plan.undone_swaps]
    if undone:
        effects.append(f"No longer counts: checkpoint {_listed(undone)}.")
    elif not effects:
        effects.append("No checkpoint is undone.")
    if aborted:
        effects.append(f"Aborted: checkpoint {_listed(aborted)}.")
    unchanged = sorted(name for name, table in tables.items() if table.rows_stay_because)
    restored = sorted(name for name in tables.keys() - set(unchanged) if "." not in name)
    if restored:
        effects.append(f"{', '.join(restored)}: restored as of checkpoint {body.to}, by one more commit each.")
    if unchanged:
        effects.append(f"{', '.join(unchanged)}: rows stay, and input that is read again is written again.")
    if body.suspend:
        effects.append("The pipeline is suspended then.")
    else:
        effects.append(f"The next run reads all input after checkpoint {body.to}.")
    if is_paused(pipeline.dag_id):
        effects.append("Airflow has paused the DAG: the run that does this waits until it is unpaused.")
    return effects


def words_of_release(pipeline: PipelineRef, body: ReleaseRequest) -> dict[str, Any]:
    """Return what a release asks for. Refuse SQL of a user who may not read rows: it could tell their values."""
    if body.correct_sql and not pipeline.may_read_rows:
        raise HTTPException(403, "you may not read rows of this pipeline, so you cannot correct them by SQL")
    if body.correct_sql and body.discard:
        raise Invalid(
            "rows that are discarded are not corrected",
            expected="correct_sql, or discard",
            help="leave out one of them",
            reason="BAD_VALUE",
        )
    return {
        "action": "discard" if body.discard else "release",
        "ids": body.ids,
        "rules": body.rules,
        "correct": body.correct,
        "correct_sql": body.correct_sql,
        "expected_rows": body.expected_rows,
    }


def words_of_rejudging(body: RejudgeRequest) -> dict[str, Any]:
    """Return what a request to judge rows again asks for."""
    return {"action": "rejudge", "ids": body.ids, "rules": body.rules, "expected_rows": body.expected_rows}


def _release(pipeline: PipelineRef, ledger: Ledger, body: ReleaseRequest) -> Effects:
    request, count = quarantined.chosen(pipeline, ledger, body.gate, by="", note="", **words_of_release(pipeline, body))
    refuse_unknown_gate(ledger, request)
    if body.discard:
        return [f"Discarded with the next checkpoint: {_count(count)}. The quarantine keeps a copy."]
    if request.corrects:
        judged = "if they keep its rules about single rows"
    else:
        judged = "not judged again"
    effects = [f"Released with the next checkpoint: {_count(count)}, after gate {body.gate}, {judged}."]
    for name, value in body.correct.items():
        effects.append(f"{name} is set to {'null' if value is None else repr(value)}.")
    for name, sql in body.correct_sql.items():
        effects.append(f"{name} = {sql}")
    if outlooks.needs_preview(request):
        effects += _effects_on_samples(pipeline, ledger, request)
    else:
        effects += quarantined.expected(pipeline, ledger, request)
    return effects + _while_suspended(pipeline, ledger)


def _rejudge(pipeline: PipelineRef, ledger: Ledger, body: RejudgeRequest) -> Effects:
    request, count = quarantined.chosen(pipeline, ledger, body.gate, by="", note="", **words_of_rejudging(body))
    refuse_unknown_gate(ledger, request)
    effects = [f"Judged again with the next checkpoint: {_count(count)} of gate {body.gate}."]
    return effects + _effects_on_samples(pipeline, ledger, request) + _while_suspended(pipeline, ledger)


def _effects_on_samples(pipeline: PipelineRef, ledger: Ledger, request: Request) -> Effects:
    answer = outlooks.preview_request(pipeline, ledger, request, again=True)
    with_values = pipeline.may_read_rows and not outlooks.hides(pipeline, ledger, request)
    return outlooks.effects(request, answer, with_values=with_values)


def _while_suspended(pipeline: PipelineRef, ledger: Ledger) -> Effects:
    if suspension.suspended(ledger.view(), pipeline.tolerable_failed_checkpoints) is None:
        return []
    return ["The pipeline is suspended: no checkpoint is made until it is resumed."]


def samples(pipeline: PipelineRef, ledger: Ledger, body: ActionRequest) -> list[SampleRow]:
    """Return a few rows before and after a correction by SQL. Other actions have none."""
    if not isinstance(body, ReleaseRequest) or not body.correct_sql:
        return []
    words = words_of_release(pipeline, body)
    request, _ = quarantined.chosen(pipeline, ledger, body.gate, by="", note="", **words)
    return outlooks.samples(pipeline, ledger, request, outlooks.preview_request(pipeline, ledger, request))


def _backfill(pipeline: PipelineRef, ledger: Ledger, body: BackfillRequest) -> Effects:
    origin, last = refuse_unknown(ledger, body)
    _refuse_no_dag(pipeline)
    if not body.begin_after.strip():
        line = _line(pipeline, ledger, body.name)
        return [f"Backfill {line.record.name} reads {_checkpoints(len(line.pending))} more, and compares its tables."]
    replayed = []
    for id in pipeline.past().checkpoints_after(origin, "completed"):
        if last is None or id <= last:
            replayed.append(id)
    start = f"after checkpoint {origin}" if origin else "at the beginning"
    return [
        f"It begins {start}, and computes the input of {_checkpoints(len(replayed))} again.",
        "Its tables are hidden until they are swapped in.",
    ]


def refuse_swap(ledger: Ledger, body: SwapRequest) -> None:
    """Refuse limits that nothing checks, and a proposal that cannot be accepted. The run checks everything else."""
    from tidegate.proposal.acceptance import refuse_impossible
    from tidegate.proposal.policy import parse_limit

    limits = [parse_limit(text) for text in body.fail_on]
    refuse_impossible(ledger, body.name, limits, "MODULE:PIPELINE")


def _swap(pipeline: PipelineRef, ledger: Ledger, body: SwapRequest) -> Effects:
    _refuse_no_dag(pipeline)
    refuse_swap(ledger, body)
    line = _line(pipeline, ledger, body.name)
    if line.record.purpose == "proposal":
        return _accept(ledger, line)
    effects = [f"A run reads {_checkpoints(len(line.pending))} more first, while the pipeline waits."]
    last, name = ledger.view().last_completed, next_name(ledger, line.record.name)
    if last is not None:
        effects.append(
            f"Checkpoint {last.id}, or a later one, becomes savepoint {name}: a rollback to it undoes the swap."
        )
    compared = line.last_comparison
    if compared is None:
        return [*effects, "Its tables have not been compared yet: the changes are unknown."]
    for name, table in sorted(compared.tables.items()):
        effects.append(f"{name}: {_count(table.rows_removed)} removed, {_count(table.rows_added)} added.")
    return effects


def _accept(ledger: Ledger, line: BackfillStatus) -> Effects:
    """Return the effects of an acceptance. Whether the deployed code is the proposed one, only its run knows."""
    name = line.record.name
    effects = [
        f"A run with the code that is deployed reads {_checkpoints(len(line.pending))} more, and compares all tables "
        "again. It is refused if that code is not the proposed one.",
        "If nothing differs, the proposal ends, and the pipeline continues. Otherwise the pipeline waits for the swap.",
    ]
    last = ledger.view().last_completed
    if last is not None:
        effects.append(
            f"Checkpoint {last.id}, or a later one, becomes savepoint {next_name(ledger, name)}: a rollback to it "
            "undoes the swap."
        )
    reported = ledger.proposal_reported(name)
    tables = reported.report["tables"] if reported is not None else {}
    for table, found in sorted(tables.items()):
        counts = ", ".join(f"{found[what]:,} {what}" for what in ("added", "removed", "changed"))
        effects.append(f"{table}, as of the report: {counts}.")
    return effects


def _discard(pipeline: PipelineRef, ledger: Ledger, body: DiscardRequest) -> Effects:
    _refuse_no_dag(pipeline)
    line = _line(pipeline, ledger, body.name)
    if line.swap is not None:
        return [f"Its result is in the tables since entry {line.swap}, and stays. Its other files are removed."]
    return [f"Removed: its {_checkpoints(line.checkpoints)}. The pipeline's tables stay as they are."]


def _line(pipeline: PipelineRef, ledger: Ledger, name: str | None) -> BackfillStatus:
    """Return the backfill of this name, by default the first one."""
    lines = backfill_statuses(ledger, pipeline.options)
    named = ledger.line(name) if name is not None else None
    if named is not None and named.purpose == "proposal" and ledger.line_discarded(named.name) is None:
        return backfill_status(ledger, named, pipeline.options)
    for line in lines:
        if name in (None, line.record.name):
            return line
    raise Invalid(
        f"there is no backfill {name!r} (any more)",
        expected=" or ".join(line.record.name for line in lines) or "a backfill that has begun",
        help="the page Status lists the backfills",
        reason="NO_SUCH_BACKFILL",
    )


def _checkpoints(count: int) -> str:
    if count == 1:
        return "1 checkpoint"
    return f"{count:,} checkpoints"


def _listed(ids: Iterable[int]) -> str:
    texts = [str(id) for id in ids]
    if len(texts) <= 12:
        return ", ".join(texts)
    return f"{', '.join(texts[:12])} and {len(texts) - 12} more"


_HISTORY = "the page History shows which are retained"


def refuse_unknown(ledger: Ledger, body: BackfillRequest) -> tuple[int, int | None]:
    """Return the checkpoint after which a backfill begins, and the last one that it reads, if any.

    Refuse a checkpoint that does not exist. The run checks everything else, because it has the code.
    """
    from tidegate.backfill.choosing import checkpoint_of, origin_of

    begin_after, to = body.begin_after.strip(), body.stop_after.strip()
    origin = origin_of(ledger, begin_after) if begin_after else 0
    last = checkpoint_of(ledger, to) if to else None
    for id in filter(None, (origin, last)):
        if not ledger.is_retained(id):
            raise no_such_checkpoint(ledger.pipeline, id, expected="one that is retained", help=_HISTORY)
    return origin, last


def refuse_airflows_backfill(dag_id: str, conf: Mapping[str, Any] | None, first_date: str) -> None:
    """Refuse Airflow's own backfill of a continuous pipeline if it cannot begin. Any other DAG is Airflow's business.

    If the ledger cannot be read now, the backfill is not refused: its runs check the same, and wait for the storage.
    """
    pipeline = find_known_pipeline(dag_id)
    if pipeline is None or pipeline.card.by_interval:
        return
    _refuse_no_dag(pipeline)
    try:
        refuse_impossible_start(pipeline.ledger(), begin_after(conf, first_date), backfill_dag(dag_id))
    except TidegateError as error:
        if isinstance(error, Invalid | Rejected):
            raise
        log.warning("Could not check whether a backfill of %s can begin: %s", dag_id, error)


def _refuse_no_dag(pipeline: PipelineRef) -> None:
    name = backfill_dag(pipeline.dag_id)
    if not has_dag(name):
        raise no_such_dag(name)


def _why(pipeline: PipelineRef, ledger: Ledger, body: WhyRequest) -> Effects:
    _refuse_no_dag(pipeline)
    since = f"as of checkpoint {body.checkpoint}" if body.checkpoint is not None else "as it is now"
    return [
        f"A run of {backfill_dag(pipeline.dag_id)} replays recorded checkpoints with some of their records, and looks "
        f"which of them {body.sink} has this row of, {since}. It changes nothing, and gives way to the pipeline."
    ]


def no_such_dag(dag_id: str) -> Rejected:
    """Return the error for a DAG that Airflow does not have."""
    return Rejected(
        f"Airflow has no DAG {dag_id}",
        expected="the DAG for backfills that `tidegate.dag.build_dag` creates for a continuous pipeline",
        help="if it has just been deployed, wait until Airflow has read its file. By command: tidegate backfill "
        "MODULE:PIPELINE",
        reason="NO_SUCH_DAG",
    )


PREVIEWS: dict[str, Callable[[PipelineRef, Ledger, Any], Effects]] = {
    "trigger": _trigger,
    "drain": _drain,
    "savepoint": _savepoint,
    "dispose": _dispose,
    "approve": _approve,
    "reject": _reject,
    "suspend": _suspend,
    "resume": _resume,
    "rollback": _rollback,
    "release": _release,
    "rejudge": _rejudge,
    "backfill": _backfill,
    "swap": _swap,
    "discard backfill": _discard,
    "why": _why,
}
"""By the action's name in the audit."""
