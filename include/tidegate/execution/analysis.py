"""Analyse a whole pipeline on empty frames: every error of its declaration, all at once, before any row is touched.

Spark plans each stage, operator, gate and sink as for a checkpoint without input, and computes nothing: so it is known
which columns every stream has, and whether everything that takes them can. `tidegate check` and `tidegate plan` do this
before anything is deployed; a job does it when it has failed, to tell an error of the declaration from one in its data.

What follows from a wrong node is not reported: its streams are unknown, and so is all that comes behind it. To check
something else, write a function and add it to CHECKS.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidegate import seams
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.planning import standing_ranges
from tidegate.checkpoint.references import acks_of
from tidegate.connectors.sink import Staging
from tidegate.connectors.source import ReadOnlyBlobs
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.execution.job.exchange import BaseMemory
from tidegate.execution.job.gates import refuse_reserved_columns
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.stages import declared_at, stage_results
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

__all__ = ["CHECKS", "Analysed", "analyse", "declaration_error"]

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Analysed:
    """A pipeline whose streams are known, each as a frame without rows. A stream behind a wrong node is missing."""

    coordinator: Coordinator
    plan: Plan
    streams: Mapping[str, DataFrame]


Check = Callable[[Analysed], Iterator[TidegateError]]
"""Yields what is wrong with what the pipeline makes of its streams."""


def analyse(
    coordinator: Coordinator,
    spark: SparkSession,
    base: Entry | None,
    changes: Sequence[SourceChange] = (),
    plan: Plan | None = None,
) -> list[TidegateError]:
    """Return every error of the declaration. Nothing is written, and no row is read.

    base: the checkpoint that the code is to continue from. changes: the sources moved or dropped since then.
    plan: that of a checkpoint, whose ranges tell the columns of sources; else each source is asked.
    """
    coordinator = copy.copy(coordinator)
    coordinator.only_looks = True
    analysis = _Analysis(coordinator, spark, base, changes, plan)
    analysis.run()
    known = Analysed(coordinator, analysis.plan, analysis.streams)
    return analysis.errors + [error for check in CHECKS for error in check(known)]


def declaration_error(errors: Sequence[TidegateError]) -> Invalid:
    """Return one error that tells all of them."""
    if len(errors) == 1 and isinstance(errors[0], Invalid):
        return errors[0]
    return Invalid(
        "\n    ".join(
            [f"the pipeline is wrong in {len(errors)} places:", *(f"{error.reason}: {error.what}" for error in errors)]
        ),
        expected="; ".join(dict.fromkeys(error.expected for error in errors if error.expected)),
        help="\n    ".join(dict.fromkeys(error.help for error in errors if error.help)),
        reason="BAD_DECLARATION",
        quoted="\n".join(error.quoted for error in errors if error.quoted),
    )


# -- the checks of what takes streams ------------------------------------------------------------------------


def _event_times(known: Analysed) -> Iterator[TidegateError]:
    """Sources whose rows lack their column of event time."""
    for name, sourcing in known.coordinator.graph.sources.items():
        frame, column = known.streams.get(name), sourcing.event_time
        if frame is not None and column is not None:
            yield from _raised(partial(time_micros, frame, column, f"source {name!r}"))


def _outputs(known: Analysed) -> Iterator[TidegateError]:
    """Sinks that cannot take the columns of their stream: by their keys, or by the table that is there."""
    contexts = known.coordinator.contexts(known.coordinator.graph.sinks)
    for name, sinking in known.coordinator.graph.sinks.items():
        frame = known.streams.get(sinking.input)
        if frame is not None:
            yield from _raised(partial(sinking.sink.check_output, frame, contexts[name]))


CHECKS: tuple[Check, ...] = (_event_times, _outputs)
"""What is checked once the streams are known."""


# -- the streams ---------------------------------------------------------------------------------------------


class _Analysis:
    """Plans each node on frames without rows, in the order of the graph."""

    def __init__(
        self,
        coordinator: Coordinator,
        spark: SparkSession,
        base: Entry | None,
        changes: Sequence[SourceChange],
        plan: Plan | None,
    ) -> None:
        self.coordinator = coordinator
        self.graph = coordinator.graph
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
        """Add the stage's streams, without rows; or its error."""
        where = ""
        if isinstance(stage, GateNode):
            result = self._attempt(partial(self._judged, stage), f"gate {stage.name!r}", where)
        elif isinstance(stage, OperatorNode):
            work = partial(runner.run, stage, self.streams, self.spark, waits=True)
            result = self._attempt(lambda: _without_rows(work()), f"operator {stage.name!r}", where)
        else:
            where = declared_at(stage.function)
            result = self._attempt(
                lambda: _without_rows(stage_results(stage, self.streams, self.graph)), f"stage {stage.name!r}", where
            )
        self.streams |= result or {}

    def _attempt(self, work: Callable[[], T], subject: str, where: str) -> T | None:
        """Return the result. None: it is wrong, which is noted, or nothing can be said without rows."""
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
        """Return a source's columns, without rows."""
        if (declared := sourcing.source.no_rows(self.spark)) is not None:
            return no_rows_like(declared)
        context = self.coordinator.source_context(sourcing.name)
        part = self.planned.sources.get(sourcing.name) if self.planned is not None else None
        if part is not None and not part.stands:
            splits = self.coordinator.ledger.unpack(part.splits)
            return no_rows_like(sourcing.source.read(self.spark, splits, context))
        context = dataclasses.replace(context, blobs=ReadOnlyBlobs(context.blobs), interval=self._some_interval())
        start = part.end if part is not None else self._position(sourcing.name)
        try:
            splits = sourcing.source.plan(start, context).splits
        except Invalid:
            if sourcing.source.by_interval:
                return None  # there may be nothing of that day
            raise
        return no_rows_like(sourcing.source.read(self.spark, splits, context))

    def _read_planned(self, sourcing: SourceNode) -> DataFrame | None:
        """Return the columns of a job's input, without rows. None: it cannot be read, such as a file that was deleted
        after the plan. That is no fault of the declaration: the job's own error tells of it, and the next run
        continues.
        """
        try:
            return self._read(sourcing)
        except Exception as error:
            log.debug("Source %s cannot be read for the analysis: %r", sourcing.name, error)
            return None

    def _position(self, name: str) -> Json | None:
        part = planned_ranges(self.base, self.changes).get(name)
        return part.end if part is not None and not self.graph.by_interval else None

    def _some_interval(self) -> Interval | None:
        """Return an interval to ask sources with: that of the last checkpoint, or yesterday."""
        if not self.graph.by_interval:
            return None
        if self.base is not None and self.base.interval is not None:
            return self.base.interval
        today = seams.now().replace(hour=0, minute=0, second=0, microsecond=0)
        return Interval(today - timedelta(days=1), today)

    def _judged(self, gated: GateNode) -> dict[str, DataFrame]:
        """Return the stream behind a gate. Raise Invalid if it cannot judge these rows."""
        graph, place = self.graph, self.coordinator.place
        frame = self.streams[gated.input]
        if gated.gate.quarantines:
            refuse_reserved_columns(gated, frame.columns)
        gated.gate.check_columns(frame, GateContext(graph.name, gated.name, place))
        replaced = replaced_rows_of(gated.input)
        behind = {replaced_rows_of(gated.name): self.streams[replaced]} if replaced in self.streams else {}
        return {gated.name: frame, **behind}

    def _memory(self) -> BaseMemory | None:
        """Return what the base remembers, of all jobs."""
        if self.base is None or self.graph.by_interval:
            return None
        acks = acks_of(self.coordinator.ledger, self.base)
        memory = {name: value for ack in acks for name, value in ack.memory.items()}
        states = {name: payload for ack in acks for name, payload in ack.states.items()}
        return BaseMemory(self.base.id, states, sources_under_new_names(memory, self.changes))

    def _runner(self, job: Job, memory: BaseMemory | None) -> _AnalysingRunner:
        staging = Staging(self.plan.id, f"analysis-{seams.new_id()}")
        try:
            return _AnalysingRunner(self.coordinator, job, self.plan, staging, memory, {})
        except Invalid:  # operators mean something else than before: that is found without Spark
            return _AnalysingRunner(self.coordinator, job, self.plan, staging, None, {})

    def _plan_without_input(self) -> Plan:
        """Return a plan that reads nothing, as of the base's own time: so nothing falls due."""
        coordinator, base, config = self.coordinator, self.base, self.coordinator.settings.record()
        own = stamp(seams.new_id())
        if base is not None:
            own["created"] = base.plan.created
        interval = self._some_interval()
        return Plan(
            **own,
            id=self.planned.id if self.planned is not None else 1 + (base.id if base is not None else 0),
            kind="manual",
            run="analysis",
            base=base.id if base is not None and interval is None else None,
            interval=interval.record if interval is not None else None,
            by_interval=self.graph.by_interval,
            sources=standing_ranges(
                base.plan if base is not None and interval is None else None,
                {name: sourcing.source.kind for name, sourcing in self.graph.sources.items()},
                self.changes,
            ),
            fixed_inputs=self._fixed_inputs(),
            triggers=list(self.graph.sources),
            acks=[job.name for job in self.graph.jobs],
            commits=list(self.graph.tables),
            timeout_s=coordinator.settings.timeout,
            config=config,
            config_fingerprint=fingerprint(config),
            code_fingerprint=self.graph.code_fingerprint(),
        )

    def _fixed_inputs(self) -> dict[str, Payload]:
        """Return what operators read beside their streams."""
        if self.planned is not None:
            return self.planned.fixed_inputs
        inputs = {}
        for stage in self.graph.stages:
            if isinstance(stage, OperatorNode):
                context = self.coordinator.source_context(stage.name)
                context = dataclasses.replace(context, blobs=ReadOnlyBlobs(context.blobs))
                fixed = self._attempt(partial(stage.spec.inputs.fix_table, context), f"operator {stage.name!r}", "")
                if fixed is not None:
                    inputs[stage.name] = Payload(data=fixed)
        return inputs


def _without_rows(results: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Return these streams' columns: Spark is asked for them, and so plans all of it."""
    return {name: no_rows_like(frame) for name, frame in results.items()}


def _follows_from_declaration(error: TidegateError) -> bool:
    """Return whether an error cannot depend on rows, or on when it is: a stage's own exception may."""
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
    """A state of which the columns are checked against what it holds, and nothing is read or written."""

    is_analysed = True

    def write_changes(self, changes: DataFrame, *, deletes: bool = False) -> DataFrame:
        self.check_schema(schema_of(changes.schema.fields))
        return super().write_changes(changes, deletes=deletes)

    def _rewrite(self, schema: Json, only: object = None) -> None:
        """It is not written anew."""


class _AnalysingRunner(OperatorRunner):
    """Runs operators on frames without rows."""

    def _kind_of_state(self, stage: OperatorNode) -> type[KeyedState]:
        return _AnalysedState

    def _scratch(self, stage: OperatorNode, frame: DataFrame) -> DataFrame:
        return frame
