"""Diverts single rows that a target refuses only in publication: they go to quarantine, and the others are published.

A divert is a checkpoint that a person makes by hand (docs/protocol.md, section 15). It reads nothing. One of its jobs
stages what waits for the table again, without these rows, and stages these for the quarantine in front of the sink.
Once it is decided, the table takes that in place of what waited, or has taken the rows meanwhile: then nothing is
diverted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.publishing import publish
from tidegate.connectors.sink import Staging
from tidegate.connectors.unrepeatable import unrepeatable_in_text
from tidegate.coordinator import Coordinator, Outcome, Triggered
from tidegate.delta.dividing import Divided, Division
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.execution.analysis import columns_of_streams
from tidegate.execution.by_hand.manual_edits import Diverting
from tidegate.execution.deadline import DeadlinePassed, job_deadline, job_is_late
from tidegate.execution.finish import finish
from tidegate.execution.job.run_job import run_manual_edit
from tidegate.execution.runs import abandoned_reason, new_run
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.expressions import first_line
from tidegate.gates.quarantine.table import quarantine_name, with_origin
from tidegate.gates.target import target_gate_name
from tidegate.pipeline.graph.graph import SinkNode
from tidegate.protocol import rules
from tidegate.protocol.view import View
from tidegate.records.records import ChangeByHand, Divert, DivertedRows, Payload
from tidegate.spark.materialize import materialize
from tidegate.spark.session import cancel_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DIVERTED", "Diversion", "RefusedRows", "divert", "find_refusal", "preview_divert", "refuse_undivertible"]

DIVERTED = "diverted"
"""The rule that rows in quarantine have broken because they were diverted."""
SHOWN = 20
_POLL_S = 0.25


@dataclass(frozen=True)
class RefusedRows:
    """What waits for a table whose target refuses it."""

    sinking: SinkNode
    gate: str
    """The gate whose quarantine takes diverted rows."""
    last: int | None
    """The last checkpoint that the table holds."""
    waiting: tuple[int, ...]
    """The checkpoints that wait for it."""
    error: TidegateError
    """What the target says."""


@dataclass
class Diversion:
    """What a divert would do."""

    refusal: RefusedRows
    condition: str
    by_checkpoint: dict[int, int] = field(default_factory=dict)
    """How many rows of each waiting checkpoint match."""
    rows_before: int = 0
    """How many rows an earlier divert takes, which this one replaces."""
    columns: list[str] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    """A few of the rows."""

    @property
    def rows(self) -> int:
        """How many rows match."""
        return sum(self.by_checkpoint.values())


def find_refusal(pipeline: PipelineContext, name: str) -> RefusedRows:
    """Publish what can be published, and return what the sink's target refuses. Raise an error if it refuses
    nothing."""
    sinking = refuse_undivertible(pipeline, name)
    report = publish.publish_all(pipeline)
    error = report.stuck.get(name)
    if error is None:
        raise Rejected(
            f"nothing waits for table {name!r}: its target refuses no rows",
            expected="a completed checkpoint that the target refuses",
            help=f"`tidegate list {pipeline.graph.name}` shows what is published",
            reason="NOTHING_REFUSED",
        )
    if isinstance(error, Unavailable):
        raise error  # it may take all rows as soon as it answers
    head, view = sinking.sink.head(pipeline.context(name)), pipeline.ledger.view()
    last = head.last_entry
    if head.begun is not None:
        raise Rejected(
            f"table {name!r} has a part of checkpoint {head.begun} already, so its rows cannot be diverted: {error}",
            expected="a target that has none of the rows that wait for it",
            help="make the target accept the others, or roll back to the checkpoint before them and correct the input",
            reason="PARTLY_PUBLISHED",
        ) from error
    waiting = [id for id in rules.pending_checkpoints(view, name) if id > (last or 0)]
    for id in waiting:
        entry = view.get(id)
        if entry is not None and entry.rollback is not None:
            raise Rejected(
                f"rollback {id} waits for table {name!r}: {error}",
                expected="a table that only new rows wait for",
                help="make the table accept the rollback first, or roll back with --keep or --leave for it",
                reason="ROLLBACK_UNPUBLISHED",
            ) from error
    return RefusedRows(sinking, target_gate_name(name), last, tuple(waiting), error)


def preview_divert(pipeline: PipelineContext, spark: SparkSession, refusal: RefusedRows, condition: str) -> Diversion:
    """Return what a divert would do. Nothing is written."""
    view = pipeline.ledger.view()
    diversion = Diversion(refusal, condition)
    division = replace(_division(pipeline, spark, refusal, condition), only_looks=True)
    staged, earlier = _staged_rows(pipeline, view, refusal)
    diversion.rows_before = earlier.rows if earlier is not None else 0
    diversion.columns = list(division.schema.names)
    for number, (id, payload) in enumerate(staged):
        divided = _divide(pipeline, refusal, division, payload, Staging(0, f"look-{number}"))
        if divided.rows:
            diversion.by_checkpoint[id] = diversion.by_checkpoint.get(id, 0) + divided.rows
            missing = SHOWN - len(diversion.shown)
            diversion.shown += divided.taken.limit(missing).collect() if missing > 0 else []
    return diversion


def divert(
    coordinator: Coordinator,
    spark: SparkSession,
    refusal: RefusedRows,
    condition: str,
    *,
    by: str,
    note: str = "",
    expected_rows: int | None = None,
) -> tuple[Outcome, TidegateError | None]:
    """Make a checkpoint that diverts the waiting rows that match, and publish it.

    Return its outcome, and the error of the table if it is not published: its target may refuse further rows.

    condition: Spark SQL over the columns of the sink. expected_rows: how many a person has agreed to.
    """
    name = refusal.sinking.name
    record = Divert(
        table=name,
        gate=refusal.gate,
        after=refusal.last,
        condition=condition,
        refused=refusal.error.what,
        by=by,
        note=note,
    )
    work = partial(_stage, coordinator, spark, refusal, record, expected_rows)
    job = next(job.name for job in coordinator.graph.jobs if name in [sinking.name for sinking in job.sinks])
    change = ChangeByHand(operator=name, action="divert", by=by)
    triggered = coordinator.trigger(new_run(), give_up=abandoned_reason, standing=True, by_hand=change, divert=record)
    assert isinstance(triggered, Triggered)
    id = triggered.plan.id
    try:
        for acking in triggered.plan.acks:
            try:
                with job_deadline(coordinator, triggered.plan, acking, lambda: cancel_in(spark)):
                    run_manual_edit(coordinator, id, acking, spark, Diverting(job, work))
            except DeadlinePassed as passed:
                raise job_is_late(acking, triggered.plan, passed) from None
    except BaseException as error:
        message = str(error) if isinstance(error, TidegateError) else repr(error)
        with contextlib.suppress(TidegateError):  # the next trigger aborts it
            coordinator.abort(id, "CANCELLED", message)
        raise
    return _finished(coordinator, id, name)


def _finished(coordinator: Coordinator, id: int, name: str) -> tuple[Outcome, TidegateError | None]:
    try:
        finished = finish(coordinator, id, None, give_up=abandoned_reason, wait=lambda _: seams.sleep(_POLL_S))
    except TidegateError as error:
        outcome = coordinator.complete(id)
        if outcome.state != "completed":
            raise
        return outcome, error
    if finished.outcome.state == "aborted":
        raise Rejected(
            f"checkpoint {id}, which diverts rows from {name!r}, was aborted: "
            f"{finished.outcome.detail or finished.outcome.reason}",
            help="nothing has changed; try again",
            reason="ABORTED",
        )
    return finished.outcome, finished.report.stuck.get(name)


def refuse_undivertible(pipeline: PipelineContext, name: str) -> SinkNode:
    """Return the sink. Raise Invalid if its rows cannot be diverted."""
    graph = pipeline.graph
    sinking = graph.sinks.get(name)
    if sinking is None:
        raise Invalid(
            f"pipeline {graph.name!r} has no sink {name!r}",
            expected=f"one of {', '.join(graph.sinks)}",
            help="name the sink whose target refuses rows",
            reason="NO_SUCH_SINK",
        )
    if graph.by_interval:
        raise Invalid(
            f"pipeline {graph.name!r} reads by data interval: its checkpoints do not rest on each other",
            expected="a pipeline that reads all new input",
            help="correct the input or the code, and process the interval again: its rows are replaced",
            reason="BY_INTERVAL",
        )
    if target_gate_name(name) not in [gated.name for gated in graph.gates]:
        raise Invalid(
            f"sink {name!r} has no quarantine, so its rows have nowhere to go",
            expected='a sink declared with refused="quarantine"',
            help='add refused="quarantine" to the sink, and divert again; nothing is lost until then',
            reason="NO_QUARANTINE",
        )
    return sinking


def _division(pipeline: PipelineContext, spark: SparkSession, refusal: RefusedRows, condition: str) -> Division:
    """Return the division by a condition. Raise Invalid if Spark cannot compute it."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.types import StructType

    columns, _ = columns_of_streams(pipeline, spark, pipeline.ledger.view().last_completed)
    if refusal.gate not in columns:
        raise Invalid(
            f"the columns of sink {refusal.sinking.name!r} are unknown: the pipeline is not sound",
            help="`tidegate check` lists its errors",
            reason="BAD_DECLARATION",
        )
    schema = StructType.fromJson(columns[refusal.gate])
    rows = spark.createDataFrame([], schema)
    called = unrepeatable_in_text(condition)
    if called:
        problem = f"{called[0]} has another value each time that it is computed"
    else:
        problem = ""
    try:
        rows.where(f"({condition}\n)").schema  # noqa: B018 - Spark plans it
    except (AnalysisException, ParseException) as error:
        problem = first_line(error)
    if problem:
        raise Invalid(
            f"the rows cannot be chosen by {condition!r}: {problem}",
            expected=f"a condition in Spark SQL over the columns {', '.join(rows.columns)}",
            help="write, for example: order_id = 7",
            reason="BAD_SQL",
        )
    return Division(spark, schema, condition)


def _staged_rows(
    pipeline: PipelineContext, view: View, refusal: RefusedRows
) -> tuple[list[tuple[int, Payload]], DivertedRows | None]:
    """Return what waits for the table, with the checkpoint that staged it, and the earlier divert that may still apply.

    What that one leaves is what waits, and the rows that it takes are taken by this one, too.
    """
    name, last = refusal.sinking.name, refusal.last
    applied = pipeline.ledger.diverts_applied(view)
    earlier: DivertedRows | None = None
    staged: list[tuple[int, Payload]] = []
    for entry in view.entries:
        part = None
        if entry.manifest is not None:
            part = entry.manifest.tables.get(name)
        if part is None or entry.id <= (last or 0) or view.rollback_of(entry.id) is not None:
            continue
        divert = entry.plan.divert
        if divert is not None and divert.table == name and divert.after == last and entry.id not in applied:
            assert part.diverted is not None
            earlier = next(acked.ack.diverted for acked in entry.acks.values() if acked.ack.diverted is not None)
            staged = [(entry.id, payload) for payload in part.diverted.committables]
        for payload in part.committables:
            staged.append((entry.id, payload))
    return staged, earlier


def _divide(
    pipeline: PipelineContext, refusal: RefusedRows, division: Division, payload: Payload, staging: Staging
) -> Divided:
    context = pipeline.context(refusal.sinking.name)
    return refusal.sinking.sink.divide(pipeline.ledger.unpack(payload), division, context, staging)


def _stage(
    pipeline: PipelineContext,
    spark: SparkSession,
    refusal: RefusedRows,
    record: Divert,
    expected_rows: int | None,
    staging: Staging,
) -> DivertedRows:
    """Stage the rest for the table, and the rows for the quarantine."""
    view, ledger = pipeline.ledger.view(reach=staging.checkpoint), pipeline.ledger
    division = _division(pipeline, spark, refusal, record.condition)
    staged, earlier = _staged_rows(pipeline, view, refusal)
    taken: list[DataFrame] = []
    rest: list[Payload] = []
    by_checkpoint: dict[str, int] = {}
    for number, (id, payload) in enumerate(staged):
        folder = replace(staging, attempt=f"{staging.attempt}/rest-{number}")
        divided = _divide(pipeline, refusal, division, payload, folder)
        if not divided.rows:
            rest.append(payload)
            continue
        taken.append(divided.taken)
        by_checkpoint[str(id)] = by_checkpoint.get(str(id), 0) + divided.rows
        rest.append(ledger.pack(divided.committable, pipeline.graph.parts))
    rows = sum(by_checkpoint.values())
    _refuse_changed_count(rows, expected_rows, record)
    quarantined = [_quarantined(pipeline, refusal, record, taken, rows, staging)]
    if earlier is not None:
        quarantined = [*earlier.quarantined, *quarantined]
        rows += earlier.rows
    return DivertedRows(rest=rest, quarantined=quarantined, rows=rows, by_checkpoint=by_checkpoint)


def _refuse_changed_count(rows: int, expected: int | None, record: Divert) -> None:
    if rows and expected in (None, rows):
        return
    raise Rejected(
        f"{rows:,} waiting rows match {record.condition!r}",
        expected=f"the {expected:,} rows that were shown" if expected else "rows that wait for the table",
        help="look again with --dry-run: nothing was diverted",
        reason="CHANGED_MEANWHILE" if expected else "NO_ROWS",
    )


def _quarantined(
    pipeline: PipelineContext,
    refusal: RefusedRows,
    record: Divert,
    taken: Sequence[DataFrame],
    rows: int,
    staging: Staging,
) -> Payload:
    """Stage rows for the quarantine, with the target's message and the person."""
    from pyspark.sql import functions as f

    gated = next(gated for gated in pipeline.graph.gates if gated.name == refusal.gate)
    why = f"{record.refused}; diverted by {record.by}" + (f": {record.note}" if record.note else "")
    bad = reduce(lambda first, second: first.unionByName(second), taken)
    bad = bad.withColumns({q.RULES: f.array(f.lit(DIVERTED)), q.WHY: f.lit(why)})
    apart = replace(staging, attempt=f"{staging.attempt}/diverted")
    name = quarantine_name(refusal.gate)
    sink = pipeline.graph.tables[name].sink
    frame = materialize(with_origin(bad, apart, gated.input))
    prepared = sink.prepare(frame, pipeline.context(name), apart)
    assert prepared.rows == rows, "every row that leaves the table is in quarantine"
    assert prepared.committable is not None
    return pipeline.ledger.pack(prepared.committable, pipeline.graph.parts)
