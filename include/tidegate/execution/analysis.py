"""Analyses a pipeline on empty frames, to find all errors of its declaration without reading a row.

Spark plans each stage, operator, gate and sink as for a checkpoint without input, and computes nothing. This shows
which columns every stream has, and whether all of its users can handle them. `tidegate check` and `tidegate plan` do
this before a deployment; a job does it after a failure, to tell an error in the declaration from one in the data.

The streams of a faulty node are unknown, so nodes downstream of it are not analysed. To check something else, add a
function to CHECKS.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tidegate import seams
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.planning import next_schema, standing_ranges
from tidegate.checkpoint.references import acks_of
from tidegate.connectors.sink import Staging
from tidegate.connectors.source import ReadOnlyBlobs, Source
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.execution.job.exchange import BaseMemory
from tidegate.execution.job.gates import refuse_reserved_columns, without_marks
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.stages import declaration_place, stage_results
from tidegate.gates.base import GateContext
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import Job, Node, OperatorNode
from tidegate.pipeline.graph.meaning import sources_under_new_names
from tidegate.pipeline.graph.nodes import GateNode, SourceNode, replaced_rows_of
from tidegate.protocol.view import Entry
from tidegate.records.codec import fingerprint
from tidegate.records.interval import Interval
from tidegate.records.records import Json, Payload, Plan, SourceChange
from tidegate.spark.errors import translate
from tidegate.spark.event_time import time_micros
from tidegate.spark.frame_facts import no_rows_like
from tidegate.state.keyed import KeyedState, TemporaryState, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

__all__ = ["CHECKS", "Analysed", "analyse", "columns_of_streams", "declaration_error"]

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Analysed:
    """A pipeline and its streams, as frames without rows. Streams at and after a faulty node are missing."""

    pipeline: PipelineContext
    plan: Plan
    streams: Mapping[str, DataFrame]


Check = Callable[[Analysed], Iterator[TidegateError]]
"""Yields the errors that it finds in an analysed pipeline."""


def analyse(
    pipeline: PipelineContext,
    spark: SparkSession,
    base: Entry | None,
    changes: Sequence[SourceChange] = (),
    plan: Plan | None = None,
    notes: list[str] | None = None,
) -> list[TidegateError]:
    """Return all errors of the declaration. Nothing is written, and no row is read.

    base: the checkpoint that the code will continue from.
    changes: the sources that were moved or dropped since then.
    plan: the plan of a checkpoint. The columns of sources are those of its ranges; without it, each source plans anew.
    notes: receives what is no error, but worth knowing.
    """
    pipeline = copy.copy(pipeline)
    pipeline.only_looks = True
    analysis = _Analysis(pipeline, spark, base, changes, plan)
    analysis.run()
    analysed = Analysed(pipeline, analysis.plan, analysis.streams)
    errors = analysis.errors
    for check in CHECKS:
        errors += check(analysed)
    if notes is not None:
        notes += _unjudged_rules(analysed)
    return errors


def columns_of_streams(
    pipeline: PipelineContext, spark: SparkSession, base: Entry | None
) -> tuple[dict[str, Json], list[TidegateError]]:
    """Return the columns of each stream in Spark's JSON form, and why those of others are unknown."""
    pipeline = copy.copy(pipeline)
    pipeline.only_looks = True
    analysis = _Analysis(pipeline, spark, base, (), None)
    analysis.run()
    columns = {}
    for name, frame in analysis.streams.items():
        columns[name] = msgspec.json.decode(frame.schema.json())
    return columns, analysis.errors


def declaration_error(errors: Sequence[TidegateError]) -> Invalid:
    """Combine errors into one."""
    if len(errors) == 1 and isinstance(errors[0], Invalid):
        return errors[0]
    lines = [f"the pipeline is wrong in {len(errors)} places:"]
    for error in errors:
        lines.append(f"{error.reason}: {error.what}")
    return Invalid(
        "\n    ".join(lines),
        expected="; ".join(dict.fromkeys(error.expected for error in errors if error.expected)),
        help="\n    ".join(dict.fromkeys(error.help for error in errors if error.help)),
        reason="BAD_DECLARATION",
        quoted="\n".join(error.quoted for error in errors if error.quoted),
    )


# -- checks of sources and sinks -----------------------------------------------------------------------------


def _check_event_times(analysed: Analysed) -> Iterator[TidegateError]:
    """Find sources whose rows lack their column of event time."""
    for name, sourcing in analysed.pipeline.graph.sources.items():
        frame, column = analysed.streams.get(name), sourcing.event_time
        if frame is not None and column is not None:
            yield from _raised(partial(time_micros, frame, column, f"source {name!r}"))


def _check_outputs(analysed: Analysed) -> Iterator[TidegateError]:
    """Find sinks that cannot write the columns of their stream, because of their keys or of the existing table."""
    contexts = analysed.pipeline.contexts(analysed.pipeline.graph.sinks)
    for name, sinking in analysed.pipeline.graph.sinks.items():
        frame = analysed.streams.get(sinking.input)
        if frame is not None:
            yield from _raised(partial(sinking.sink.check_output, frame, contexts[name]))


def _unjudged_rules(analysed: Analysed) -> Iterator[str]:
    """Describe the rules of targets by which rows cannot be judged before they are published."""
    for name, sinking in analysed.pipeline.graph.sinks.items():
        frame = analysed.streams.get(sinking.input)
        if frame is None:
            continue
        with contextlib.suppress(TidegateError):  # the checks report it
            declared = sinking.sink.declared_rules(analysed.pipeline.place)
            rules = sinking.sink.row_rules(msgspec.json.decode(frame.schema.json()), declared)
            if rules.not_judged:
                yield (
                    f"sink {name!r}: a row that breaks one of these rules of its target is only found by publishing "
                    f"it, which then waits: {'; '.join(rules.not_judged)}"
                )


CHECKS: tuple[Check, ...] = (_check_event_times, _check_outputs)
"""Checks that run once all streams are analysed."""


# -- streams -------------------------------------------------------------------------------------------------


class _Analysis:
    """Plans each node on frames without rows, in the order of the graph."""

    def __init__(
        self,
        pipeline: PipelineContext,
        spark: SparkSession,
        base: Entry | None,
        changes: Sequence[SourceChange],
        plan: Plan | None,
    ) -> None:
        self.pipeline = pipeline
        self.graph = pipeline.graph
        self.spark = spark
        self.base = base
        self.changes = changes
        self.planned = plan
        self.errors: list[TidegateError] = []
        self.streams: dict[str, DataFrame] = {}
        self.plan: Plan

    def run(self) -> None:
        for name, sourcing in self.graph.sources.items():
            read = partial(self._read_planned if self.planned is not None else self._read, sourcing)
            frame = self._attempt(read, f"source {name!r}", "")
            if frame is not None:
                self.streams[name] = frame
        self.plan = self._plan_without_input()
        memory = self._memory()
        for job in self.graph.jobs:
            runner = self._runner(job, memory)
            for stage in job.stages:
                if all(name in self.streams for name in stage.inputs):
                    self._add(stage, runner)

    def _add(self, stage: Node, runner: _AnalysingRunner) -> None:
        """Add the stage's streams, without rows, or its error."""
        if isinstance(stage, GateNode):
            streams = self._attempt(partial(self._after_gate, stage), f"gate {stage.name!r}", "")
        elif isinstance(stage, OperatorNode):
            run = partial(runner.run, stage, self.streams, self.spark, waits=True)
            streams = self._attempt(lambda: _without_rows(run()), f"operator {stage.name!r}", "")
        else:
            run = partial(stage_results, stage, self.streams, self.graph)
            streams = self._attempt(
                lambda: _without_rows(run()), f"stage {stage.name!r}", declaration_place(stage.function)
            )
        if streams is not None:
            self.streams |= streams

    def _attempt(self, work: Callable[[], T], subject: str, where: str) -> T | None:
        """Return the result of `work`. If it fails, add the error and return None.

        Errors that need not occur with rows, such as a stage's own exceptions, are not added.
        """
        try:
            return work()
        except Unavailable as error:
            self.errors.append(error)
        except TidegateError as error:
            if _follows_from_declaration(error):
                self.errors.append(error)
        except Exception as error:
            meaning = translate(error)
            if meaning is not None and not isinstance(meaning, Invalid):
                self.errors.append(meaning)
            elif meaning is not None:
                place = f" ({where})" if where else ""
                self.errors.append(
                    Invalid(
                        f"{subject}{place} cannot be planned: {meaning.what}",
                        expected="expressions of the columns that its input has",
                        help=f"correct the {subject.partition(' ')[0]}, or what comes before it",
                        reason="BAD_EXPRESSION",
                    )
                )
        return None

    def _read(self, sourcing: SourceNode) -> DataFrame | None:
        """Return a frame with a source's columns, or None if they are unknown."""
        part = None
        if self.planned is not None:
            part = self.planned.sources.get(sourcing.name)
        if part is not None:
            source = sourcing.as_planned(part)
        else:
            source = self._as_read_next(sourcing)
        if (declared := source.no_rows(self.spark)) is not None:
            return no_rows_like(declared)
        context = self.pipeline.source_context(sourcing.name)
        if part is not None and not part.does_not_move:
            splits = self.pipeline.ledger.unpack(part.splits)
            return no_rows_like(source.read(self.spark, splits, context))
        context = dataclasses.replace(context, blobs=ReadOnlyBlobs(context.blobs), interval=self._some_interval())
        start = part.end if part is not None else self._position(sourcing.name)
        try:
            splits = source.plan(start, context).splits
        except Invalid:
            if source.by_interval:
                return None  # that interval may have no input
            raise
        return no_rows_like(source.read(self.spark, splits, context))

    def _read_planned(self, sourcing: SourceNode) -> DataFrame | None:
        """Return a frame with the columns of a job's input, or None if it cannot be read.

        A file may have been deleted after the plan, for example. That is not an error of the declaration, and the job's
        own error reports it.
        """
        try:
            return self._read(sourcing)
        except Exception as error:
            log.debug("Source %s cannot be read for the analysis: %r", sourcing.name, error)
            return None

    def _as_read_next(self, sourcing: SourceNode) -> Source:
        """Return the source as it would read its next range."""
        before = planned_ranges(self.base, self.changes).get(sourcing.name)
        schema = next_schema(sourcing, before, self.base, self._entry_below)
        if schema is None:
            return sourcing.source
        return sourcing.source.with_schema(schema)

    def _entry_below(self, entry: Entry) -> Entry | None:
        id = entry.rollback.target if entry.rollback is not None else entry.plan.base
        return self.pipeline.ledger.entry(id) if id else None

    def _position(self, name: str) -> Json | None:
        part = planned_ranges(self.base, self.changes).get(name)
        if part is not None and not self.graph.by_interval:
            return part.end
        return None

    def _some_interval(self) -> Interval | None:
        """Return an interval to plan sources with: that of the last checkpoint, or yesterday."""
        if not self.graph.by_interval:
            return None
        if self.base is not None and self.base.interval is not None:
            return self.base.interval
        today = seams.now().replace(hour=0, minute=0, second=0, microsecond=0)
        return Interval(today - timedelta(days=1), today)

    def _after_gate(self, gated: GateNode) -> dict[str, DataFrame]:
        """Return the streams after a gate. Raise Invalid if it cannot judge these rows."""
        graph, place = self.graph, self.pipeline.place
        frame = without_marks(gated, self.streams[gated.input])
        if gated.gate.quarantines:
            refuse_reserved_columns(gated, frame.columns)
        gated.gate.check_columns(frame, GateContext(graph.name, gated.name, place))
        streams = {gated.name: frame}
        retracted = self.streams.get(replaced_rows_of(gated.input))
        if retracted is not None:
            streams[replaced_rows_of(gated.name)] = retracted
        return streams

    def _memory(self) -> BaseMemory | None:
        """Return the memory of all jobs at the base."""
        if self.base is None or self.graph.by_interval:
            return None
        memory: dict[str, Json] = {}
        states: dict[str, Payload] = {}
        for ack in acks_of(self.pipeline.ledger, self.base):
            memory |= ack.memory
            states |= ack.states
        return BaseMemory(self.base.id, states, sources_under_new_names(memory, self.changes))

    def _runner(self, job: Job, memory: BaseMemory | None) -> _AnalysingRunner:
        staging = Staging(self.plan.id, f"analysis-{seams.new_id()}")
        try:
            return _AnalysingRunner(self.pipeline, job, self.plan, staging, memory, {})
        except Invalid:  # operators have changed their meaning, which is reported elsewhere, without Spark
            return _AnalysingRunner(self.pipeline, job, self.plan, staging, None, {})

    def _plan_without_input(self) -> Plan:
        """Return a plan without input, with the time of the base, so that no timer falls due."""
        pipeline, base, config = self.pipeline, self.base, self.pipeline.settings.record()
        header = stamp(seams.new_id())
        if base is not None:
            header["created"] = base.plan.created
        next_id = base.id + 1 if base is not None else 1
        interval = self._some_interval()
        continued = base if interval is None else None
        return Plan(
            **header,
            id=self.planned.id if self.planned is not None else next_id,
            kind="manual",
            run="analysis",
            base=continued.id if continued is not None else None,
            interval=interval.record if interval is not None else None,
            by_interval=self.graph.by_interval,
            sources=standing_ranges(
                continued.plan if continued is not None else None,
                {name: sourcing.source.kind for name, sourcing in self.graph.sources.items()},
                self.changes,
            ),
            fixed_inputs=self._fixed_inputs(),
            triggers=list(self.graph.sources),
            acks=[job.name for job in self.graph.jobs],
            commits=list(self.graph.tables),
            timeout_s=pipeline.settings.timeout,
            config=config,
            config_fingerprint=fingerprint(config),
            code_fingerprint=self.graph.code_fingerprint(),
        )

    def _fixed_inputs(self) -> dict[str, Payload]:
        """Return the inputs of operators that a plan fixes, such as the versions of tables that they join."""
        if self.planned is not None:
            return self.planned.fixed_inputs
        inputs = {}
        for stage in self.graph.stages:
            if isinstance(stage, OperatorNode):
                context = self.pipeline.source_context(stage.name)
                context = dataclasses.replace(context, blobs=ReadOnlyBlobs(context.blobs))
                fixed = self._attempt(partial(stage.spec.inputs.fix_table, context), f"operator {stage.name!r}", "")
                if fixed is not None:
                    inputs[stage.name] = Payload(data=fixed)
        return inputs


def _without_rows(results: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Return frames with the same columns. Spark has to plan the results to know them."""
    return {name: no_rows_like(frame) for name, frame in results.items()}


def _follows_from_declaration(error: TidegateError) -> bool:
    """Return whether an error cannot depend on rows or on the time, as a stage's own exception may."""
    if error.reason != "STAGE_FAILED":
        return isinstance(error, Invalid)
    return error.__cause__ is not None and translate(error.__cause__) is not None


def _raised(call: Callable[[], object]) -> Iterator[TidegateError]:
    try:
        call()
    except TidegateError as error:
        yield error
    except Exception as error:
        meaning = translate(error)
        if meaning is None:
            raise
        yield meaning


class _AnalysedState(TemporaryState):
    """A state that only checks columns against the stored ones. It reads and writes nothing."""

    is_analysed = True

    def write_changes(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        self.check_schema(schema_of(changes.schema.fields))
        return super().write_changes(changes, deletes=deletes)

    def _rewrite(self, schema: Json, change: object = None) -> None:
        """Do nothing: there are no rows to rewrite."""


class _AnalysingRunner(OperatorRunner):
    """Runs operators on frames without rows."""

    def _kind_of_state(self, stage: OperatorNode) -> type[KeyedState]:
        return _AnalysedState

    def _scratch(self, stage: OperatorNode, frame: DataFrame) -> DataFrame:
        return frame
