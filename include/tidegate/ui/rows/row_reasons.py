"""Questions why a table has a row, which runs answer."""

from __future__ import annotations

from tidegate.errors import Invalid
from tidegate.records.names import airflow_run, backfill_dag
from tidegate.ui.answers import WhyAnswer
from tidegate.ui.pipelines import PipelineRef, run_states

__all__ = ["answer"]


def answer(pipeline: PipelineRef, key: str) -> WhyAnswer:
    """Return the question with this key, and its answer if there is one."""
    ledger = pipeline.ledger()
    act = ledger.act(key)
    if act is None or act.action != "why":
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no question {key!r}",
            expected="the key of a question that was asked on these pages",
            help="ask again: Why? beside a row",
            reason="NO_SUCH_QUESTION",
        )
    state = run_states({act.run}).get(act.run, "")  # first: a run that has ended has written its answer by then
    explained, asked = ledger.explained(key), act.parameters
    return WhyAnswer(
        sink=asked["sink"],
        checkpoint=asked.get("checkpoint"),
        values=asked["values"],
        asked_by=act.by,
        asked_at=act.created,
        run_id=act.run.removeprefix(airflow_run(backfill_dag(pipeline.dag_id), "")),
        run_state=state,
        answered_at=explained.created if explained is not None else None,
        answer=explained.answer if explained is not None else None,
        problem=explained.problem if explained is not None else "",
        help=explained.help if explained is not None else "",
    )
