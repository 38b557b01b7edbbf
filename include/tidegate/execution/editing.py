"""Checkpoints without new input: an operator is given history, or its state is changed by hand.

Each is a checkpoint like any other: planned on the last one, with every source standing still; acknowledged, decided
and published by the same rules. So a crash leaves all of it or nothing, and nobody else works meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.coordinator import Coordinator, Outcome, Triggered
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.execution.deadline import DeadlinePassed, job_deadline, job_is_late
from tidegate.execution.finish import finish
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.run_job import run_manual_edit
from tidegate.execution.manual_edits import ManualEdit
from tidegate.execution.runs import abandoned_reason, new_run, user_and_machine
from tidegate.pipeline.graph.graph import OperatorNode
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
    """Let an operator take rows as if they had come by its inputs. What it gives for them goes nowhere, unless it
    replaces rows: then it is given on, for what lies behind must know what may be taken back.

    rows: by the names of its inputs. An input that is not named has none.
    """
    stage = _operator(coordinator, uid)
    unknown = sorted(set(rows) - set(stage.inputs))
    if unknown or not rows:
        raise Invalid(
            f"operator {uid!r} has no input {', '.join(map(repr, unknown))}" if unknown else "there are no rows",
            expected=f"rows for {' and '.join(stage.inputs)}",
            help="name the stream that the rows would have come by",
            reason="NO_SUCH_INPUT",
        )
    if len(set(stage.inputs)) != len(rows):
        raise Invalid(
            f"operator {uid!r} takes {' and '.join(stage.inputs)}, and there are rows for {', '.join(rows)} only",
            expected="a DataFrame for each input; one without rows will do",
            help="give the other one as well",
            reason="NO_SUCH_INPUT",
        )
    replaced = [name for name in stage.inputs if name in coordinator.graph.updating]
    for name in replaced:
        _refuse_replaced(rows[name], name, uid)

    def check(operating: OperatorRunner) -> None:
        if stage.spec.is_in_order and operating.has_stored_state(stage):
            raise Invalid(
                f"operator {uid!r} takes rows in the order of event time, and has taken some: history would come "
                "behind them",
                expected="an operator that remembers nothing yet",
                help="give it a uid of its own, so that it starts afresh, and bootstrap that before its first rows",
                reason="HISTORY_TOO_LATE",
            )

    def give(operating: OperatorRunner, _: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        none = {replaced_rows_of(name): empty_like(rows[name]) for name in replaced}
        return operating.run(stage, {**rows, **none}, spark, waits=True, history=True)

    return _checkpoint(
        coordinator, spark, ManualEdit(coordinator.graph, stage, "bootstrap", check, give, needs_input=False)
    )


def edit_state(coordinator: Coordinator, spark: SparkSession, uid: str, change: Change, part: str = "") -> Outcome:
    """Replace the rows of a state by `change(rows)`. Keys that it does not return are forgotten; unchanged rows are not
    written again. If the operator replaces rows, the resulting changes are passed downstream."""
    stage = _operator(coordinator, uid)
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
                f"operator {uid!r} has not remembered anything yet",
                expected="a state to be changed",
                help="give it rows with bootstrap",
                reason="NO_SUCH_STATE",
            )

    def changed(before: DataFrame, keys: Sequence[str]) -> DataFrame:
        after = change(before)
        _refuse_other_columns(before, after, uid)
        after = after.select(*map(quoted, before.columns)).localCheckpoint()
        _refuse_twice(after, keys, uid)
        return after

    def edit(operating: OperatorRunner, streams: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        return operating.edit(stage, part, changed, streams, spark)

    needs_input = uid in coordinator.graph.updating
    by_hand = ManualEdit(coordinator.graph, stage, "edit", check, edit, needs_input=needs_input)
    return _checkpoint(coordinator, spark, by_hand)


def _refuse_replaced(rows: DataFrame, name: str, uid: str) -> None:
    """Raise Invalid if rows are put in that the stream's own operator does not know, and so would never take back."""
    if rows.isEmpty():
        return
    raise Invalid(
        f"operator {uid!r} takes {name!r}, which replaces rows that it gave before, and it has not given these",
        expected=f"no rows for {name!r}: a DataFrame without any",
        help=f"give history to the operator that makes {name!r}: what it makes of it is given on to {uid!r}",
        reason="NOT_GIVEN",
    )


def _operator(coordinator: Coordinator, uid: str) -> OperatorNode:
    operators = {stage.name: stage for stage in coordinator.graph.stages if isinstance(stage, OperatorNode)}
    if uid in operators and coordinator.graph.by_interval:
        raise Invalid(
            f"operator {uid!r} remembers nothing: pipeline {coordinator.graph.name!r} reads by data interval, and each "
            "interval begins with no state",
            expected="a pipeline that reads whatever is new",
            help="let the interval's input have the rows, and make the interval again",
            reason="BY_INTERVAL",
        )
    if uid in operators:
        return operators[uid]
    raise Invalid(
        f"pipeline {coordinator.graph.name!r} has no operator {uid!r}",
        expected=" or ".join(sorted(operators)) or "a pipeline with operators that remember",
        help="operators are named by their uid",
        reason="NO_SUCH_OPERATOR",
    )


def _refuse_other_columns(before: DataFrame, after: DataFrame, uid: str) -> None:
    kinds = [{field.name: field.dataType.simpleString() for field in frame.schema.fields} for frame in (before, after)]
    if kinds[0] != kinds[1]:
        texts = [", ".join(f"{name} {kind}" for name, kind in kind_of.items()) for kind_of in kinds]
        raise Invalid(
            f"the new state of {uid!r} has columns {texts[1]}",
            expected=texts[0],
            help="give the same columns in the same types: cast them, and leave out what is new",
            reason="OTHER_COLUMNS",
        )


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


def _checkpoint(coordinator: Coordinator, spark: SparkSession, by_hand: ManualEdit) -> Outcome:
    """Make a checkpoint for the change and pass on its effects, from its plan to the tables."""
    change = ChangeByHand(operator=by_hand.stage.name, action=by_hand.action, by=user_and_machine())
    triggered = coordinator.trigger(new_run(), give_up=abandoned_reason, standing=True, by_hand=change)
    assert isinstance(triggered, Triggered)
    id = triggered.plan.id
    try:
        for job in triggered.plan.acks:
            try:
                with job_deadline(coordinator, triggered.plan, job, lambda: cancel_in(spark)):
                    ack = run_manual_edit(coordinator, id, job, spark, by_hand)
            except DeadlinePassed as passed:
                raise job_is_late(job, triggered.plan, passed) from None
            if any(verdict.outcome == "abort" for verdict in ack.gates.values()):
                break
    except BaseException as error:
        message = str(error) if isinstance(error, TidegateError) else repr(error)
        with contextlib.suppress(TidegateError):  # then the next trigger ends it
            coordinator.abort(id, "CANCELLED", message)
        raise
    outcome = finish(coordinator, id, None, give_up=abandoned_reason, wait=_wait).outcome
    if outcome.state == "aborted":
        raise Rejected(
            f"checkpoint {id}, which changes operator {by_hand.stage.name!r}, was aborted: "
            f"{outcome.detail or outcome.reason}",
            expected="a change that the gates behind the operator let pass, and that nobody aborts",
            help=f"nothing has changed; `tidegate explain {coordinator.graph.name} {id}` says more",
            reason="ABORTED",
        )
    return outcome


def _wait(why: str) -> None:
    seams.sleep(POLL_S)
