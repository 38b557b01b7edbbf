"""What people may do from the pages. Each is a POST, asked of Airflow's permissions, and written down with the user.

None is done here a second time: what the ledger settles, the same functions do as for the command line; what needs the
pipeline's code, a run of its DAG does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from tidegate import seams
from tidegate.checkpoint import approvals as holding
from tidegate.checkpoint import control
from tidegate.errors import Rejected
from tidegate.history.query import LONGEST
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.records import RecordStamp
from tidegate.lifecycle import savepoint
from tidegate.records.names import airflow_run
from tidegate.records.records import REQUEST, Act, Acted
from tidegate.ui import quarantined, views
from tidegate.ui.access import ANSWER, EDIT, TRIGGER
from tidegate.ui.pipelines import Known, known

__all__ = ["router"]

router = APIRouter()
Of = Annotated[Known, Depends(known)]
Note = Annotated[str, Field(max_length=1000, description="Why, for whoever looks at it later")]
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Text = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=1, le=99_999_999)]


class ActionRequest(BaseModel):
    """Unknown fields are refused: a mistyped one would do nothing."""

    model_config = ConfigDict(extra="forbid")
    note: Note = ""


class AskedRun(ActionRequest):
    """A run by hand: its checkpoint may get a name."""

    savepoint: Name | None = None


class AskedSavepoint(ActionRequest):
    """A name for a checkpoint; by default for the last one that is on all tables."""

    name: Name
    checkpoint: Number | None = None


class AskedAnswer(ActionRequest):
    """To what holds a checkpoint: one gate, or all."""

    checkpoint: Number
    gate: Name | None = None


class AskedResume(ActionRequest):
    """quarantine_all: what a gate would hold again is set aside."""

    quarantine_all: bool = False
    after_end: bool = False


class AskedRollback(ActionRequest):
    """`undone`: what the user was shown would no longer count. If that is anything else by now, nothing is done."""

    to: Number
    undone: Annotated[list[Number], Field(max_length=100_000)] = []
    suspend: bool = False


class AskedRelease(ActionRequest):
    """Rows that wait in a gate's quarantine: all, or these, or those that broke one of these rules. `correct`: values,
    as texts, that columns get on their way on; null makes one null."""

    gate: Name
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=LONGEST)] = []
    rules: list[Annotated[str, Field(max_length=200)]] = []
    correct: Annotated[dict[Text, Text | None], Field(max_length=100)] = {}
    discard: bool = False


class ActionAnswer(BaseModel):
    """What came of it, for people; `run_id` if a run of the DAG does it."""

    done: bool = True
    told: str
    run_id: str | None = None


@router.post("/dags/{dag_id}/actions/trigger", dependencies=TRIGGER)
def trigger(of: Of, asked: AskedRun, user: GetUserDep) -> ActionAnswer:
    """Let a run make a checkpoint now."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        return _run(of, _words(ledger, asked), user.get_name(), "a checkpoint")

    return _audited(of, "trigger", asked, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/drain", dependencies=[*EDIT, *TRIGGER])
def drain(of: Of, asked: AskedRun, user: GetUserDep) -> ActionAnswer:
    """Let a run make the last checkpoint: event time comes to its end, and the pipeline is finished."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        conf = {**_words(ledger, asked), REQUEST: act.key}
        return _run(of, conf, user.get_name(), "the last checkpoint", act)

    return _audited(of, "drain", asked, user.get_name(), do, by_run=True)


@router.post("/dags/{dag_id}/actions/savepoint", dependencies=EDIT)
def name_savepoint(of: Of, asked: AskedSavepoint, user: GetUserDep) -> ActionAnswer:
    """Give a completed checkpoint a name: retention spares it."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        made = savepoint.create(ledger, asked.name, asked.checkpoint, act.by, asked.note)
        return ActionAnswer(told=f"Checkpoint {made.entry} is savepoint {made.name}.")

    return _audited(of, "savepoint", asked, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/dispose", dependencies=EDIT)
def dispose_savepoint(of: Of, asked: AskedSavepoint, user: GetUserDep) -> ActionAnswer:
    """Take a savepoint's name away: retention may take its checkpoint."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        savepoint.dispose(ledger, asked.name)
        return ActionAnswer(told=f"Savepoint {asked.name} is no more.")

    return _audited(of, "dispose", asked, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/approve", dependencies=ANSWER)
def approve(of: Of, asked: AskedAnswer, user: GetUserDep) -> ActionAnswer:
    """Let a checkpoint go on that a gate holds: exactly what was judged is published."""
    return _audited(of, "approve", asked, user.get_name(), lambda ledger, act: _answer(ledger, asked, act.by, yes=True))


@router.post("/dags/{dag_id}/actions/reject", dependencies=ANSWER)
def reject(of: Of, asked: AskedAnswer, user: GetUserDep) -> ActionAnswer:
    """Abort a checkpoint that a gate holds, and suspend the pipeline."""
    return _audited(of, "reject", asked, user.get_name(), lambda ledger, act: _answer(ledger, asked, act.by, yes=False))


@router.post("/dags/{dag_id}/actions/suspend", dependencies=EDIT)
def suspend(of: Of, asked: ActionRequest, user: GetUserDep) -> ActionAnswer:
    """Let no run plan a checkpoint until somebody resumes. What is planned goes on, and input waits."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        control.suspend(ledger, act.by, asked.note)
        return ActionAnswer(told="The pipeline is suspended: no run plans a checkpoint until somebody resumes.")

    return _audited(of, "suspend", asked, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/resume", dependencies=EDIT)
def resume(of: Of, asked: AskedResume, user: GetUserDep) -> ActionAnswer:
    """Let runs plan checkpoints again."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        entry = control.resume(ledger, act.by, asked.note, after_end=asked.after_end, set_aside=asked.quarantine_all)
        if entry is None:
            raise Rejected("the pipeline is not suspended", help="nothing to do", reason="NOT_SUSPENDED")
        return ActionAnswer(told="The pipeline goes on: the next run plans a checkpoint.")

    return _audited(of, "resume", asked, user.get_name(), do)


@router.post("/dags/{dag_id}/actions/rollback", dependencies=[*EDIT, *TRIGGER])
def rollback(of: Of, asked: AskedRollback, user: GetUserDep) -> ActionAnswer:
    """Go back to a checkpoint, by a run of the DAG: positions, state and tables. It refuses what cannot be done."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        _refuse_unseen(set(views.way_back(of, asked.to)["undone"]), set(asked.undone))
        conf = {**_words(ledger, asked), REQUEST: act.key}
        return _run(of, conf, user.get_name(), f"the rollback to checkpoint {asked.to}", act)

    return _audited(of, "rollback", asked, user.get_name(), do, by_run=True)


@router.post("/dags/{dag_id}/actions/release", dependencies=EDIT)
def release(of: Of, asked: AskedRelease, user: GetUserDep) -> ActionAnswer:
    """Let rows in quarantine go on behind their gate, with the next checkpoint; or give them up."""

    def do(ledger: Ledger, act: Act) -> ActionAnswer:
        words = {"discard": asked.discard, "ids": asked.ids, "rules": asked.rules, "correct": asked.correct}
        made, count = quarantined.request(of, ledger, asked.gate, by=act.by, note=asked.note, **words)
        does = "are given up" if asked.discard else "go on behind the gate"
        return ActionAnswer(told=f"Request {made.number}: {count:,} rows {does} with the next checkpoint.")

    return _audited(of, "release", asked, user.get_name(), do)


# -- what all have in common ---------------------------------------------------------------------------


def _audited(
    of: Known,
    action: str,
    asked: ActionRequest,
    user: str,
    do: Callable[[Ledger, Act], ActionAnswer],
    *,
    by_run: bool = False,
) -> ActionAnswer:
    """First it is written down who asks for what; if that cannot be done, nothing is. Then what came of it.

    by_run: a run of the DAG does it. It finds there what it is to do, and no other run may (`dag/run_params.py`).
    """
    ledger = of.ledger()
    ledger.start()  # whatever lies in a folder without pipeline.json is taken for damage
    words: dict[str, Any] = asked.model_dump(exclude_defaults=True)
    stamped = stamp(seams.new_id())
    run = airflow_run(of.dag_id, _run_id(stamped)) if by_run else ""
    act = Act(**stamped, action=action, by=f"{user} in Airflow", asked=words, run=run)
    key = ledger.create_act(act)
    try:
        done = do(ledger, act)
    except Exception as error:
        told = getattr(error, "what", type(error).__name__)
        ledger.create_acted(key, Acted(**stamp(seams.new_id()), done=False, told=str(told)[:1000]))
        raise
    ledger.create_acted(key, Acted(**stamp(seams.new_id()), done=True, told=done.told))
    return done


def _run_id(stamped: RecordStamp) -> str:
    """The id of a run that is going to be made, as Airflow makes them."""
    return DagRunType.MANUAL.generate_run_id(suffix=f"{stamped['created']}_{stamped['attempt']}")


def _words(ledger: Ledger, asked: ActionRequest) -> dict[str, Any]:
    """What a run's parameters may say. A name that is taken is refused before there is a run."""
    name = getattr(asked, "savepoint", None)
    if name is not None:
        savepoint.check_free(ledger, name, None)
    return {key: value for key, value in {"note": asked.note, "savepoint": name}.items() if value}


def _refuse_unseen(undone: set[int], shown: set[int]) -> None:
    """Nobody loses what they were not shown; and a list of all that might ever be is nothing that anybody was shown."""
    if more := sorted(undone - shown):
        raise Rejected(
            f"checkpoint {', '.join(map(str, more))} would be undone, too: it has been completed since you looked",
            expected="what you were shown",
            help="look again at what it will do, then decide",
            reason="MORE_SINCE",
        )
    if other := sorted(shown - undone):
        raise Rejected(
            f"checkpoint {', '.join(map(str, other[:20]))} would not be undone: it does not count behind the target",
            expected=f"what would be: {', '.join(map(str, sorted(undone))) or 'nothing'}",
            help="look again at what it will do, then decide",
            reason="NOT_SHOWN",
        )


def _run(of: Known, conf: dict[str, Any], user: str, what: str, act: Act | None = None) -> ActionAnswer:
    """A run of the DAG, as if it had been triggered by hand; if an act is for a run of its own, that one."""
    made = trigger_dag(
        of.dag_id,
        triggered_by=DagRunTriggeredByType.UI,
        triggering_user_name=user,
        run_id=act.run.removeprefix(airflow_run(of.dag_id, "")) if act is not None else None,
        conf=conf,
        note=conf.get("note"),
    )
    if made is None:
        raise Rejected(f"Airflow has made no run of {of.dag_id}", help="look at the DAG's page", reason="NO_RUN")
    return ActionAnswer(told=f"Run {made.run_id} makes {what}.", run_id=made.run_id)


def _answer(ledger: Ledger, asked: AskedAnswer, by: str, *, yes: bool) -> ActionAnswer:
    said = holding.answer(ledger, asked.checkpoint, asked.gate, approve=yes, by=by, note=asked.note)
    told = ", ".join(f"gate {each.gate}: {'approved' if each.approve else 'rejected'} by {each.by}" for each in said)
    if any(each.approve is not yes for each in said):
        raise Rejected(f"somebody was faster: {told}", help="nothing to do: the first answer counts", reason="ANSWERED")
    return ActionAnswer(told=f"Checkpoint {asked.checkpoint}: {told}.")
