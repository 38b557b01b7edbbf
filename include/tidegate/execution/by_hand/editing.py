"""Makes checkpoints without new input: to bootstrap an operator with history, or to edit its state.

These are ordinary checkpoints: they continue from the last one, with all sources unchanged, and are acknowledged,
decided and published by the same rules. So after a crash the edit is there as a whole or not at all, and no other run
interferes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.coordinator import Coordinator, Outcome, Triggered
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.execution.by_hand.manual_edits import ManualEdit
from tidegate.execution.deadline import DeadlinePassed, job_deadline, job_is_late
from tidegate.execution.finish import finish
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.run_job import run_manual_edit
from tidegate.execution.runs import abandoned_reason, new_run, user_and_machine
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.pipeline.graph.nodes import replaced_rows_of
from tidegate.records.names import quoted
from tidegate.records.records import ChangeByHand
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.session import cancel_in
from tidegate.state.table import state_sink_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bootstrap", "edit_state"]

Change = Callable[["DataFrame"], "DataFrame"]
POLL_S = 0.25


def bootstrap(coordinator: Coordinator, spark: SparkSession, uid: str, rows: Mapping[str, DataFrame]) -> Outcome:
    """Feed rows to an operator as if they had arrived on its inputs.

    Its output for them is dropped, unless the operator retracts rows: then it is passed downstream, where a later
    retraction of these rows must find them.

    rows: a DataFrame for each input, by the input's name.
    """
    stage = _operator(coordinator.graph, uid)
    unknown = sorted(set(rows) - set(stage.inputs))
    if unknown or not rows:
        raise Invalid(
            f"operator {uid!r} has no input {', '.join(map(repr, unknown))}" if unknown else "there are no rows",
            expected=f"rows for {' and '.join(stage.inputs)}",
            help="name the stream on which the rows would have arrived",
            reason="NO_SUCH_INPUT",
        )
    if len(set(stage.inputs)) != len(rows):
        raise Invalid(
            f"operator {uid!r} takes {' and '.join(stage.inputs)}, and there are rows for {', '.join(rows)} only",
            expected="a DataFrame for each input, which may have no rows",
            help="pass rows for the other input as well",
            reason="NO_SUCH_INPUT",
        )
    replaced = [name for name in stage.inputs if name in coordinator.graph.updating]
    for name in replaced:
        _refuse_replaced(rows[name], name, uid)

    def check(operating: OperatorRunner) -> None:
        if stage.spec.is_in_order and operating.has_stored_state(stage):
            raise Invalid(
                f"operator {uid!r} takes rows in order of event time, and has taken some: history would arrive after "
                "them",
                expected="an operator without state",
                help="give it a new uid, so that it starts without state, and bootstrap it before its first rows",
                reason="HISTORY_TOO_LATE",
            )

    def feed(operating: OperatorRunner, _: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        no_retractions = {replaced_rows_of(name): empty_like(rows[name]) for name in replaced}
        return operating.run(stage, {**rows, **no_retractions}, spark, waits=True, history=True)

    return _checkpoint(
        coordinator, spark, ManualEdit(coordinator.graph, stage, "bootstrap", check, feed, needs_input=False)
    )


def edit_state(coordinator: Coordinator, spark: SparkSession, uid: str, change: Change, part: str = "") -> Outcome:
    """Replace the rows of a state by `change(rows)`.

    Keys that it does not return are forgotten, and unchanged rows are not rewritten. If the operator retracts rows, the
    resulting changes of its output are passed downstream.
    """
    stage = _operator(coordinator.graph, uid)
    if part not in stage.spec.state_names:
        raise Invalid(
            f"operator {uid!r} has no part {part!r} of its state",
            expected=" or ".join(repr(part) for part in stage.spec.state_names),
            help="`tidegate state` lists them",
            reason="NO_SUCH_STATE",
        )

    def check(operating: OperatorRunner) -> None:
        base = operating.base(state_sink_name(uid, part))
        if base is None or not base.files:
            raise Invalid(
                f"operator {uid!r} has no state yet",
                expected="an operator with stored state",
                help="feed it rows with bootstrap",
                reason="NO_SUCH_STATE",
            )

    def changed(before: DataFrame, keys: Sequence[str]) -> DataFrame:
        after = change(before)
        _refuse_changed_columns(before, after, uid)
        after = after.select(*map(quoted, before.columns)).localCheckpoint()
        _refuse_twice(after, keys, uid)
        return after

    def edit(operating: OperatorRunner, streams: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return operating.edit(stage, part, changed, streams, spark)

    needs_input = uid in coordinator.graph.updating
    manual_edit = ManualEdit(coordinator.graph, stage, "edit", check, edit, needs_input=needs_input)
    return _checkpoint(coordinator, spark, manual_edit)


def _refuse_replaced(rows: DataFrame, name: str, uid: str) -> None:
    """Raise Invalid for rows of a stream with retractions: the operator that emits it would never retract these."""
    if rows.isEmpty():
        return
    raise Invalid(
        f"operator {uid!r} takes {name!r}, whose operator retracts rows that it emitted, and it has not emitted these",
        expected=f"a DataFrame without rows for {name!r}",
        help=f"bootstrap the operator that emits {name!r}: its output is passed on to {uid!r}",
        reason="NOT_GIVEN",
    )


def _operator(graph: Graph, uid: str) -> OperatorNode:
    operators = {stage.name: stage for stage in graph.stages if isinstance(stage, OperatorNode)}
    if uid in operators and graph.by_interval:
        raise Invalid(
            f"operator {uid!r} has no state: pipeline {graph.name!r} reads by data interval, and each "
            "interval begins without state",
            expected="a continuous pipeline",
            help="add the rows to the interval's input, and make the interval again",
            reason="BY_INTERVAL",
        )
    if uid in operators:
        return operators[uid]
    raise Invalid(
        f"pipeline {graph.name!r} has no operator {uid!r}",
        expected=" or ".join(sorted(operators)) or "a pipeline with operators that have state",
        help="use the operator's uid",
        reason="NO_SUCH_OPERATOR",
    )


def _refuse_changed_columns(before: DataFrame, after: DataFrame, uid: str) -> None:
    columns, new_columns = _column_types(before), _column_types(after)
    if columns != new_columns:
        raise Invalid(
            f"the new state of {uid!r} has columns {_schema_text(new_columns)}",
            expected=_schema_text(columns),
            help="return the same columns in the same types: cast them, and leave out new ones",
            reason="OTHER_COLUMNS",
        )


def _column_types(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


def _schema_text(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def _refuse_twice(rows: DataFrame, keys: Sequence[str], uid: str) -> None:
    twice = rows.groupBy(*map(quoted, keys)).count().where("count > 1").first()
    if twice is not None:
        key = {name: twice[name] for name in keys}
        raise Invalid(
            f"the new state of {uid!r} has {twice['count']} rows for key {key}",
            expected="one row per key",
            help="aggregate or choose, so that each key has one row",
            reason="KEY_TWICE",
        )


def _checkpoint(coordinator: Coordinator, spark: SparkSession, manual_edit: ManualEdit) -> Outcome:
    """Make a checkpoint with the edit, and publish it."""
    change = ChangeByHand(operator=manual_edit.stage.name, action=manual_edit.action, by=user_and_machine())
    triggered = coordinator.trigger(new_run(), give_up=abandoned_reason, standing=True, by_hand=change)
    assert isinstance(triggered, Triggered)
    id = triggered.plan.id
    try:
        for job in triggered.plan.acks:
            try:
                with job_deadline(coordinator, triggered.plan, job, lambda: cancel_in(spark)):
                    ack = run_manual_edit(coordinator, id, job, spark, manual_edit)
            except DeadlinePassed as passed:
                raise job_is_late(job, triggered.plan, passed) from None
            if any(verdict.outcome == "abort" for verdict in ack.gates.values()):
                break
    except BaseException as error:
        message = str(error) if isinstance(error, TidegateError) else repr(error)
        with contextlib.suppress(TidegateError):  # the next trigger aborts it
            coordinator.abort(id, "CANCELLED", message)
        raise
    outcome = finish(coordinator, id, None, give_up=abandoned_reason, wait=_wait).outcome
    if outcome.state == "aborted":
        raise Rejected(
            f"checkpoint {id}, which changes operator {manual_edit.stage.name!r}, was aborted: "
            f"{outcome.detail or outcome.reason}",
            expected="a change that passes the downstream gates",
            help=f"nothing has changed; `tidegate explain {coordinator.graph.name} {id}` says more",
            reason="ABORTED",
        )
    return outcome


def _wait(why: str) -> None:
    seams.sleep(POLL_S)
