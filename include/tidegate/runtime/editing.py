"""Checkpoints that nobody's input makes: an operator is given history, or its state is changed by hand.

Each is a checkpoint like any other: planned on the last one, with every source standing still; acknowledged, decided
and published by the same rules. So a crash leaves all of it or nothing, and nobody else works meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.coordinator import Coordinator, Outcome, Triggered
from tidegate.errors import Invalid, TidegateError
from tidegate.model.names import quoted
from tidegate.pipeline.graph import Operated
from tidegate.runtime.finish import finish
from tidegate.runtime.run_job import Attempt
from tidegate.runtime.runs import gone, new_run
from tidegate.runtime.spark_errors import translated
from tidegate.state.columns import DELETED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bootstrap", "edit_state"]

Change = Callable[["DataFrame"], "DataFrame"]
POLL_S = 0.25


def bootstrap(coordinator: Coordinator, spark: SparkSession, uid: str, rows: Mapping[str, DataFrame]) -> Outcome:
    """Let an operator take rows as if they had come by its inputs; what it gives goes nowhere.

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
    if len(stage.inputs) != len(rows):
        raise Invalid(
            f"operator {uid!r} takes {' and '.join(stage.inputs)}, and there are rows for {', '.join(rows)} only",
            expected="a DataFrame for each input; one without rows will do",
            help="give the other one as well",
            reason="NO_SUCH_INPUT",
        )
    return _checkpoint(coordinator, uid, lambda attempt: attempt.operating.run(stage, rows, spark))


def edit_state(coordinator: Coordinator, spark: SparkSession, uid: str, change: Change, part: str = "") -> Outcome:
    """Put `change(rows)` in place of the rows of a state. Keys that it does not give are forgotten."""
    stage = _operator(coordinator, uid)
    if part not in stage.operator.parts:
        raise Invalid(
            f"operator {uid!r} has no part {part!r} of its state",
            expected=" or ".join(repr(each) for each in stage.operator.parts),
            help="`tidegate state` lists them",
            reason="NO_SUCH_STATE",
        )

    def apply(attempt: Attempt) -> None:
        from pyspark.sql import functions as F

        state = attempt.operating.as_of_base(stage, part, spark)
        before = state.rows() if state is not None else None
        if state is None or before is None:
            raise Invalid(
                f"operator {uid!r} has not remembered anything yet",
                expected="a state to be changed",
                help="give it rows with bootstrap",
                reason="NO_SUCH_STATE",
            )
        after = change(before)
        _refuse_other_columns(before, after, uid)
        after = after.select(*map(quoted, before.columns)).localCheckpoint()
        _refuse_twice(after, state.keys, uid)
        keys = list(map(quoted, state.keys))
        aside = after.select(*(F.col(key).alias(f"_aside{n}") for n, key in enumerate(keys)))
        same = [F.col(key).eqNullSafe(F.col(f"_aside{n}")) for n, key in enumerate(keys)]
        lost = before.join(aside, same, "left_anti").withColumn(DELETED, F.lit(True))
        state.put(after.withColumn(DELETED, F.lit(False)).unionByName(lost), deletes=True)

    return _checkpoint(coordinator, uid, apply)


def _operator(coordinator: Coordinator, uid: str) -> Operated:
    known = {stage.name: stage for stage in coordinator.graph.stages if isinstance(stage, Operated)}
    if uid in known:
        return known[uid]
    raise Invalid(
        f"pipeline {coordinator.graph.name!r} has no operator {uid!r}",
        expected=" or ".join(sorted(known)) or "a pipeline with operators that remember",
        help="operators are named by their uid",
        reason="NO_SUCH_OPERATOR",
    )


def _refuse_other_columns(before: DataFrame, after: DataFrame, uid: str) -> None:
    kinds = [{field.name: field.dataType.simpleString() for field in frame.schema.fields} for frame in (before, after)]
    if kinds[0] != kinds[1]:
        told = [", ".join(f"{name} {kind}" for name, kind in each.items()) for each in kinds]
        raise Invalid(
            f"the new state of {uid!r} has columns {told[1]}",
            expected=told[0],
            help="give the same columns in the same types: cast them, and leave out what is new",
            reason="OTHER_COLUMNS",
        )


def _refuse_twice(rows: DataFrame, keys: list[str], uid: str) -> None:
    twice = rows.groupBy(*map(quoted, keys)).count().where("count > 1").first()
    if twice is not None:
        key = {name: twice[name] for name in keys}
        raise Invalid(
            f"the new state of {uid!r} has {twice['count']} rows for key {key}",
            expected="one row per key",
            help="aggregate or choose, so that each key has one row",
            reason="KEY_TWICE",
        )


def _checkpoint(coordinator: Coordinator, uid: str, work: Callable[[Attempt], object]) -> Outcome:
    """A checkpoint in which the operator's job does `work`, and others nothing, from its plan to the tables."""
    triggered = coordinator.trigger(new_run(), give_up=gone, standing=True)
    assert isinstance(triggered, Triggered)
    id = triggered.plan.id
    try:
        for job in triggered.plan.acks:
            _acknowledge(coordinator, id, job, work if uid in coordinator.graph.job(job).names else _nothing)
    except BaseException as error:
        what = str(error) if isinstance(error, TidegateError) else repr(error)
        with contextlib.suppress(TidegateError):  # then the next trigger ends it
            coordinator.abort(id, "CANCELLED", what)
        raise
    return finish(coordinator, id, None, give_up=gone, wait=_wait).outcome


def _nothing(attempt: Attempt) -> None:
    """What an operator elsewhere changes is no business of this job."""


def _wait(why: str) -> None:
    seams.sleep(POLL_S)


def _acknowledge(coordinator: Coordinator, id: int, job: str, work: Callable[[Attempt], object]) -> None:
    attempt = Attempt(coordinator, id, job, lambda _: None)
    done, prev = attempt.ask()
    assert done is None, "nobody else knows of this run"
    with attempt.released_on_failure(), translated():
        try:
            work(attempt)
            attempt.operating.finish(attempt.job.operators)
        finally:
            attempt.operating.let_go()
        attempt.refuse_ended()
    attempt.ack({}, prev)
