"""The actions that users may take on the pages. Each is a POST, checked against Airflow's permissions, and audited.

Actions on the ledger call the same functions as the command line. Those that need the pipeline's code are left to a run
of its DAG.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.exceptions import DagNotFound
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import APIRouter, Depends

from tidegate import seams
from tidegate.checkpoint import approvals
from tidegate.errors import Rejected, Unavailable
from tidegate.history.backfill import open_backfill_ledger
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.record_files import RecordStamp
from tidegate.lifecycle import control, savepoint
from tidegate.records.names import airflow_run, backfill_dag
from tidegate.records.records import REQUEST, Act, Acted
from tidegate.ui import previews, views
from tidegate.ui.access import ANSWER, BACKFILL, EDIT, TRIGGER, VALUES, find_visible_pipeline
from tidegate.ui.action_requests import (
    ActionAnswer,
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
    SavepointRequest,
    SwapRequest,
    WhyRequest,
)
from tidegate.ui.pipelines import PipelineRef, find_pipeline
from tidegate.ui.rows import quarantined
from tidegate.versions.airflow import run_arguments

__all__ = ["router"]

router = APIRouter()
Of = Annotated[PipelineRef, Depends(find_pipeline)]
Visible = Annotated[PipelineRef, Depends(find_visible_pipeline)]
"""The pipeline, as the user may see it: with values of rows, or without."""


@router.post("/dags/{dag_id}/actions/trigger", dependencies=TRIGGER)
def trigger(pipeline: Of, body: RunRequest, user: GetUserDep) -> ActionAnswer:
    """Trigger a run that makes a checkpoint now."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        answer = _run(pipeline, _words(ledger, body), user.get_name(), "a checkpoint")
        return _announce(pipeline, ledger, body, answer)

    return _audited(pipeline, "trigger", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/drain", dependencies=[*EDIT, *TRIGGER])
def drain(pipeline: Of, body: RunRequest, user: GetUserDep) -> ActionAnswer:
    """Trigger a run that makes the last checkpoint: it ends event time, and finishes the pipeline."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        conf = {**_words(ledger, body), REQUEST: act.key}
        return _announce(pipeline, ledger, body, _run(pipeline, conf, user.get_name(), "the last checkpoint", act))

    return _audited(pipeline, "drain", body, user.get_name(), do, by_run=pipeline.dag_id)


@router.post("/dags/{dag_id}/actions/savepoint", dependencies=EDIT)
def name_savepoint(pipeline: Of, body: SavepointRequest, user: GetUserDep) -> ActionAnswer:
    """Name a completed checkpoint, so that retention spares it."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        created = savepoint.create(ledger, body.name, body.checkpoint, act.by, body.note)
        return ActionAnswer(message=f"Checkpoint {created.entry} is now savepoint {created.name}.")

    return _audited(pipeline, "savepoint", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/dispose", dependencies=EDIT)
def dispose_savepoint(pipeline: Of, body: SavepointRequest, user: GetUserDep) -> ActionAnswer:
    """Remove a savepoint's name, so that retention may delete its checkpoint."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        savepoint.dispose(ledger, body.name)
        return ActionAnswer(message=f"Savepoint {body.name} is disposed of.")

    return _audited(pipeline, "dispose", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/approve", dependencies=ANSWER)
def approve(pipeline: Of, body: AnswerRequest, user: GetUserDep) -> ActionAnswer:
    """Approve a checkpoint that a gate holds: exactly the judged rows are published."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        return _answer(pipeline, ledger, body, act.by, approve=True)

    return _audited(pipeline, "approve", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/reject", dependencies=ANSWER)
def reject(pipeline: Of, body: RejectRequest, user: GetUserDep) -> ActionAnswer:
    """Abort a checkpoint that a gate holds, and suspend the pipeline. For a backfill's, only end the backfill. Or read
    its input again at once, with the rows that broke the rules in quarantine."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        return _answer(pipeline, ledger, body, act.by, approve=False, quarantine=body.quarantine)

    return _audited(pipeline, "reject", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/suspend", dependencies=EDIT)
def suspend(pipeline: Of, body: ActionRequest, user: GetUserDep) -> ActionAnswer:
    """Suspend the pipeline: no run plans a checkpoint until it is resumed. Planned ones finish, and input waits."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        control.suspend(ledger, act.by, body.note)
        return ActionAnswer(message="The pipeline is suspended: no run plans a checkpoint until it is resumed.")

    return _audited(pipeline, "suspend", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/resume", dependencies=EDIT)
def resume(pipeline: Of, body: ResumeRequest, user: GetUserDep) -> ActionAnswer:
    """Let runs plan checkpoints again."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        entry = control.resume(
            ledger, act.by, body.note, after_end=body.restart_finished, quarantine_all=body.quarantine_all
        )
        if entry is None:
            raise Rejected("the pipeline is not suspended", help="nothing to do", reason="NOT_SUSPENDED")
        return ActionAnswer(message="The pipeline is resumed: the next run plans a checkpoint.")

    return _audited(pipeline, "resume", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/rollback", dependencies=[*EDIT, *TRIGGER])
def rollback(pipeline: Of, body: RollbackRequest, user: GetUserDep) -> ActionAnswer:
    """Trigger a run that returns positions, state and tables to a checkpoint. It refuses an impossible rollback."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        _refuse_unseen(set(views.rollback_plan(pipeline, body.to).undone), set(body.expected_undone))
        conf = {**_words(ledger, body), REQUEST: act.key}
        return _run(pipeline, conf, user.get_name(), f"the rollback to checkpoint {body.to}", act)

    return _audited(pipeline, "rollback", body, user.get_name(), do, by_run=pipeline.dag_id)


@router.post("/dags/{dag_id}/actions/release", dependencies=EDIT)
def release(pipeline: Visible, body: ReleaseRequest, user: GetUserDep) -> ActionAnswer:
    """Release rows from quarantine: they continue after their gate with the next checkpoint. Or discard them."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        words = previews.words_of_release(pipeline, body)
        created, count = quarantined.request(pipeline, ledger, body.gate, by=act.by, note=body.note, **words)
        verb = "discarded" if body.discard else "released"
        rows = "1 row is" if count == 1 else f"{count:,} rows are"
        if created.correct_sql:
            verb = "corrected, judged and released"
        return ActionAnswer(message=f"Request {created.number}: {rows} {verb} with the next checkpoint.")

    return _audited(pipeline, "release", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/rejudge", dependencies=EDIT)
def rejudge(pipeline: Visible, body: RejudgeRequest, user: GetUserDep) -> ActionAnswer:
    """Judge rows in quarantine by today's suite: those that pass continue after their gate with the next checkpoint."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        words = previews.words_of_rejudging(body)
        created, count = quarantined.request(pipeline, ledger, body.gate, by=act.by, note=body.note, **words)
        rows = "1 row is" if count == 1 else f"{count:,} rows are"
        return ActionAnswer(message=f"Request {created.number}: {rows} judged again with the next checkpoint.")

    return _audited(pipeline, "rejudge", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/backfill", dependencies=BACKFILL)
def backfill(pipeline: Of, body: BackfillRequest, user: GetUserDep) -> ActionAnswer:
    """Begin or continue a backfill, by a run of the DAG for backfills. An unknown checkpoint is refused at once."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        previews.refuse_unknown(ledger, body)
        words: dict[str, Any] = {
            "from": body.begin_after,
            "to": body.stop_after,
            "name": body.name,
            "pause": body.pause_seconds,
        }
        words |= {"note": body.note, "dry_run": body.dry_run, "cuts": body.cuts, "drop_by_hand": body.drop_manual_edits}
        conf = {name: value for name, value in words.items() if value}
        if body.batch_factor > 1:
            conf["larger"] = body.batch_factor
        return _run(pipeline, conf, user.get_name(), "the backfill", dag_id=backfill_dag(pipeline.dag_id))

    return _audited(pipeline, "backfill", body, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/swap", dependencies=[*EDIT, *BACKFILL])
def swap(pipeline: Of, body: SwapRequest, user: GetUserDep) -> ActionAnswer:
    """Trigger a run that reads the rest of a backfill's input, and swaps it in. It refuses an impossible swap."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        previews.refuse_swap(ledger, body)
        conf = {REQUEST: act.key}
        if body.note:
            conf["note"] = body.note
        return _run(pipeline, conf, user.get_name(), "the swap", act, dag_id=backfill_dag(pipeline.dag_id))

    return _audited(pipeline, "swap", body, user.get_name(), do, by_run=backfill_dag(pipeline.dag_id))


@router.post("/dags/{dag_id}/actions/discard-backfill", dependencies=[*EDIT, *BACKFILL])
def discard_backfill(pipeline: Of, body: DiscardRequest, user: GetUserDep) -> ActionAnswer:
    """Trigger a run that ends a backfill and removes its files. Swapped-in results stay."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        result = f"an end of backfill {body.name}"
        return _run(pipeline, {REQUEST: act.key}, user.get_name(), result, act, dag_id=backfill_dag(pipeline.dag_id))

    return _audited(pipeline, "discard backfill", body, user.get_name(), do, by_run=backfill_dag(pipeline.dag_id))


@router.post("/dags/{dag_id}/actions/why", dependencies=[*VALUES, *BACKFILL])
def why(pipeline: Of, body: WhyRequest, user: GetUserDep) -> ActionAnswer:
    """Trigger a run that finds out why a table has a row: the records, corrections and states that led to it. The
    answer is at `/dags/{dag_id}/why/{key}`."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        answer = _run(
            pipeline, {REQUEST: act.key}, user.get_name(), "the answer", act, dag_id=backfill_dag(pipeline.dag_id)
        )
        return answer.model_copy(update={"key": act.key})

    return _audited(pipeline, "why", body, user.get_name(), do, by_run=backfill_dag(pipeline.dag_id))


# -- shared by all actions -----------------------------------------------------------------------------


def _audited(
    pipeline: PipelineRef,
    action: str,
    body: ActionRequest,
    user: str,
    do: Callable[[Ledger, Act], ActionAnswer],
    *,
    by_run: str = "",
) -> ActionAnswer:
    """Record who requests what, do it, and record the result. If the request cannot be recorded, nothing is done.

    by_run: the DAG whose run performs the action. Only that run may use the request (`dag/run_params.py`).
    """
    ledger = pipeline.ledger()
    if body.preview:
        effects = previews.preview(action, pipeline, ledger, body)
        samples = previews.samples(pipeline, ledger, body)
        return ActionAnswer(succeeded=False, message="", effects=effects, samples=samples)
    ledger.start()  # records in a folder without pipeline.json count as damage
    words: dict[str, Any] = body.model_dump(exclude_defaults=True)
    stamped = stamp(seams.new_id())
    run = airflow_run(by_run, _run_id(stamped)) if by_run else ""
    act = Act(**stamped, action=action, by=f"{user} in Airflow", request=words, run=run)
    key = ledger.create_act(act)
    try:
        answer = do(ledger, act)
    except Exception as error:
        problem = getattr(error, "what", type(error).__name__)
        ledger.create_acted(key, Acted(**stamp(seams.new_id()), succeeded=False, message=str(problem)[:1000]))
        raise
    ledger.create_acted(key, Acted(**stamp(seams.new_id()), succeeded=True, message=answer.message))
    return answer


def _run_id(stamped: RecordStamp) -> str:
    """Return the id of a run that does not exist yet, in Airflow's format."""
    return DagRunType.MANUAL.generate_run_id(suffix=f"{stamped['created']}_{stamped['attempt']}")


def _words(ledger: Ledger, body: ActionRequest) -> dict[str, Any]:
    """Return the run's parameters. Refuse the name of another savepoint before the run is triggered."""
    name = getattr(body, "savepoint", None)
    if name is not None:
        savepoint.check_free(ledger, name, None)
    return {key: value for key, value in {"note": body.note, "savepoint": name}.items() if value}


def _refuse_unseen(undone: set[int], expected: set[int]) -> None:
    """Refuse a rollback that would undo more or fewer checkpoints than the user was shown."""
    if unexpected := sorted(undone - expected):
        raise Rejected(
            f"checkpoint {', '.join(map(str, unexpected))} would also be undone: it was completed since you looked",
            expected="only the checkpoints that you were shown",
            help="look at the preview again, then decide",
            reason="MORE_SINCE",
        )
    if surplus := sorted(expected - undone):
        ids = ", ".join(map(str, surplus[:20]))
        raise Rejected(
            f"checkpoint {ids} would not be undone: it does not count after the target",
            expected=f"the ones that would be undone: {', '.join(map(str, sorted(undone))) or 'none'}",
            help="look at the preview again, then decide",
            reason="NOT_SHOWN",
        )


def _run(
    pipeline: PipelineRef, conf: dict[str, Any], user: str, result: str, act: Act | None = None, dag_id: str = ""
) -> ActionAnswer:
    """Trigger a run of the DAG, as if by hand. If an act was recorded for a run, the new run gets that run's id."""
    dag_id = dag_id or pipeline.dag_id
    try:
        run = trigger_dag(
            dag_id,
            triggered_by=DagRunTriggeredByType.UI,
            run_id=act.run.removeprefix(airflow_run(dag_id, "")) if act is not None else None,
            conf=conf,
            **run_arguments(user, conf.get("note")),
        )
    except DagNotFound:
        raise previews.no_such_dag(dag_id) from None
    if run is None:
        raise Rejected(f"Airflow created no run of {dag_id}", help="look at the DAG's page", reason="NO_RUN")
    return ActionAnswer(message=f"Run {run.run_id} makes {result}.", run_id=run.run_id)


def _announce(pipeline: PipelineRef, ledger: Ledger, body: RunRequest, answer: ActionAnswer) -> ActionAnswer:
    """Note in the ledger that the run waits, so that it goes before periodic runs.

    It may not be able to say so itself: Airflow may only start it once another run has ended.
    """
    if answer.run_id is not None:
        with contextlib.suppress(Unavailable):  # without the note it only goes later
            ledger.note_waiting(
                airflow_run(pipeline.dag_id, answer.run_id), "savepoint" if body.savepoint else "manual"
            )
    return answer


def _answer(
    pipeline: PipelineRef, ledger: Ledger, body: AnswerRequest, user: str, *, approve: bool, quarantine: bool = False
) -> ActionAnswer:
    if body.backfill is not None:
        ledger = open_backfill_ledger(ledger, body.backfill, pipeline.options)
    answers = approvals.answer(
        ledger, body.checkpoint, body.gate, approve=approve, by=user, note=body.note, quarantine=quarantine
    )
    text = ", ".join(f"gate {answer.gate}: {answer.choice} by {answer.by}" for answer in answers)
    if any((answer.approve, answer.quarantine) != (approve, quarantine) for answer in answers):
        raise Rejected(
            f"another user was first: {text}", help="nothing to do: the first answer counts", reason="ANSWERED"
        )
    if body.backfill is not None:
        of_backfill = f" of backfill {body.backfill}"
    else:
        of_backfill = ""
    return ActionAnswer(message=f"Checkpoint {body.checkpoint}{of_backfill}: {text}.")
