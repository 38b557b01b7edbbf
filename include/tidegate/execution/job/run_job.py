"""Runs one job of one checkpoint.

    ask      does the job still need to run?                     fenced, done, or continue
    read     the planned ranges, verified, as DataFrames         lazy
    run      the stages, on DataFrames                           lazy, except for operators with state
    stage    write every sink's rows where no table names them   Spark works here
             at least once: commit them, too                     the tables show them, whatever happens next
    prepare  call hooks that flush something                     may decline
    ask      was the checkpoint ended in the meantime?           fenced; staged files are deleted
    ack      create one record that names all of it              the job's only effect; the first ack counts
             a few rows of each stream, if settings ask for it   a hint that nothing depends on

An attempt may die at any point, or overlap another one. It writes only to its own folders, which nothing names before
the ack.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.checkpoint.compatibility import decline
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.manifests import ancestors
from tidegate.checkpoint.publishing.publish import refuse_damaged
from tidegate.connectors.sink import Prepared, Sink, Staging
from tidegate.connectors.source import SourceContext
from tidegate.delta import Location
from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, TidegateError, Unavailable, name_of, quoted_text
from tidegate.execution.analysis import analyse, declaration_error
from tidegate.execution.by_hand.manual_edits import Diverting, ManualEdit, no_rows_of
from tidegate.execution.column_tracing import (
    MAX_CALL_S,
    columns_of_inputs,
    is_still_true,
    traced_code,
    traced_functions,
    traced_stages,
)
from tidegate.execution.job import readiness
from tidegate.execution.job.accounting import refuse_unaccounted
from tidegate.execution.job.direct_write import DirectWriter
from tidegate.execution.job.exchange import Exchange, memory_of_base
from tidegate.execution.job.gates import GateRunner, without_marks
from tidegate.execution.job.measuring import JobMeter
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.progress_notes import noting_progress
from tidegate.execution.job.sampling import Sampling, samples_of
from tidegate.execution.job.small_input import is_small, planned_simply
from tidegate.execution.job.stages import naming_stages, stage_results
from tidegate.execution.job.upstream_view import key_to_send
from tidegate.execution.parallel import call_in_parallel, order_stages
from tidegate.execution.runs import abandoned_reason
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import Graph, Job, Node, OperatorNode, SinkNode, StageNode
from tidegate.pipeline.graph.nodes import GateNode, SourceNode, replaced_rows_of
from tidegate.pipeline.hooks import Preparing
from tidegate.protocol import rules
from tidegate.protocol.view import Entry
from tidegate.records.records import (
    Ack,
    Amount,
    DivertedRows,
    Drift,
    Handle,
    Payload,
    Plan,
    SampledRows,
    Samples,
    TracedColumns,
)
from tidegate.spark.errors import translated
from tidegate.spark.frame_facts import (
    empty_like,
    like_before,
    no_rows_like,
    without_callers,
)
from tidegate.spark.local_session import use_in_thread
from tidegate.spark.materialize import materialize, release
from tidegate.spark.storage.same_disk import on_one_machine, refuse_unshared_disks
from tidegate.state.table import StateSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ask_job", "run_job", "run_manual_edit"]


log = logging.getLogger(__name__)

ProgressCallback = Callable[[str], None]

AtWork = Callable[[Plan, str], bool]
"""Returns whether a job without an ack in this checkpoint may be running there.

Only a hint: if it is wrong, work is done twice, or one checkpoint later.
"""


def _as_its_process(plan: Plan, job: str) -> bool:
    return abandoned_reason(plan) is None


def run_job(
    pipeline: PipelineContext,
    id: int,
    job_name: str,
    spark: SparkSession,
    step: ProgressCallback = lambda _: None,
    at_work: AtWork = _as_its_process,
) -> Ack:
    """Run the job for checkpoint `id`, unless it is done. Return the ack that counts.

    Raise Fenced if this work no longer counts, Invalid if the input or the code is at fault, Unavailable if a retry may
    help, and Rejected if it is not the job's turn, or the job is busy with an earlier checkpoint and this one does not
    wait (PASSED_BY).
    """
    with _reporting_changed_code(pipeline, id):
        return _run_job(Attempt(pipeline, id, job_name, step, at_work), spark)


def _run_job(attempt: Attempt, spark: SparkSession) -> Ack:
    ack, prev = attempt.ask()
    if ack is not None:
        return ack
    try:
        return attempt.do(spark, prev)
    except (Corrupt, Invalid, Unavailable) as error:
        if (done := attempt.find_counting_ack()) is not None:
            return done
        if not isinstance(error, Invalid):
            raise
        cause = attempt.find_changed_input() or attempt.find_wrong_declaration(spark, error)
        if cause is None:
            raise
        raise cause from error


def run_manual_edit(
    pipeline: PipelineContext, id: int, job_name: str, spark: SparkSession, manual_edit: ManualEdit | Diverting
) -> Ack:
    """Run the job of a checkpoint that a person makes by hand."""
    attempt = Attempt(pipeline, id, job_name, lambda _: None, manual_edit=manual_edit)
    ack, prev = attempt.ask()
    assert ack is None, "no other process runs this checkpoint"
    if isinstance(manual_edit, ManualEdit) and manual_edit.operator in attempt.job.names:
        manual_edit.check(attempt.operating)
    return attempt.do(spark, prev)


def ask_job(pipeline: PipelineContext, id: int, job_name: str, at_work: AtWork = _as_its_process) -> Ack | None:
    """Return the job's ack if it is done already, or raise what `run_job` would.

    It needs no Spark session, so it is called before one is opened.
    """
    with _reporting_changed_code(pipeline, id):
        return Attempt(pipeline, id, job_name, lambda _: None, at_work).ask()[0]


@contextlib.contextmanager
def _reporting_changed_code(pipeline: PipelineContext, id: int) -> Iterator[None]:
    """Raise CODE_CHANGED for an unforeseen error in a checkpoint that was planned by other code.

    An attempt with this code may never succeed there. CODE_CHANGED aborts the checkpoint, and the next one reads its
    input with this code.
    """
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        entry = pipeline.ledger.entry(id)
        if entry is None or entry.plan.code_fingerprint == pipeline.graph.code_fingerprint():
            raise
        raise Invalid(
            f"the pipeline's code has changed since checkpoint {id} was planned, and cannot finish the work of the "
            f"other code: {name_of(error)}",
            expected="the code that planned it, until it is decided",
            help="nothing is lost: the checkpoint is aborted, and the next one reads its input with today's code; if "
            "that fails, too, correct the code",
            reason="CODE_CHANGED",
            quoted=quoted_text(error),
        ) from error


class Attempt:
    """One attempt at a job, identified by a random id: Airflow's try number is not unique."""

    def __init__(
        self,
        pipeline: PipelineContext,
        id: int,
        job_name: str,
        step: ProgressCallback,
        at_work: AtWork = _as_its_process,
        manual_edit: ManualEdit | Diverting | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.graph: Graph = pipeline.graph
        self.job: Job = pipeline.graph.job(job_name)
        self.id = id
        self.staging: Staging
        self.step = step
        self.at_work = at_work
        self.manual_edit = manual_edit
        """The change by hand that this checkpoint makes, if any. Then only the stages that it affects run."""
        self.diverted: DivertedRows | None = None
        """What it has staged for a divert."""
        self.measuring = JobMeter(self.job)
        self.upper_bounds: dict[str, Amount] = {}
        """By source, the most that its planned range can hold."""
        self.drift: dict[str, Drift] = {}
        """By source, what of its input does not fit the schema."""
        self.samples: dict[str, SampledRows] = {}
        """A few rows of each stream, if the settings ask for samples."""
        self.seconds_of_functions: dict[str, float] = {}
        """The columns of sources that are known without asking Spark."""
        self.traced: TracedColumns | None = None
        self.plan: Plan
        self.exchange: Exchange
        self.operating: OperatorRunner
        self.gating: GateRunner
        self.direct: DirectWriter

    def ask(self) -> tuple[Ack | None, Handle | None]:
        """J1: return the ack that exists already, or the ack to continue from."""
        entry, base = self.pipeline.entry_and_base(self.id)
        below = ancestors(self.pipeline.ledger, entry, base)
        answer = readiness.check_readiness(self.pipeline.ledger, entry, base, below, self.job, self.at_work)
        if isinstance(answer, rules.Stop):
            raise self._fenced(answer.why)
        assert entry is not None
        if isinstance(answer, rules.SkipJob):
            raise readiness.overtaken_error(self.pipeline.ledger, answer, self.job)
        if isinstance(answer, rules.Wait):
            raise self._not_ready_error(answer, entry)
        self.plan = entry.plan
        interval = entry.interval if self.plan.by_interval else None
        on_open_base = base is not None and base.open
        self.staging = Staging(self.id, f"{self.plan.attempt}-{seams.new_id()}", interval, on_open_base)
        if isinstance(answer, rules.DoneAlready):
            return entry.acks[self.job.name].ack, None
        _refuse_changed_code(self.graph, self.plan)
        try:
            base_memory = memory_of_base(self.pipeline.ledger, self.job, self.plan, base, answer.prev)
        except Corrupt:
            if self._needs_prev():
                raise
            return self.ask()
        pending_input = readiness.untaken_input(entry, base, below, self.job)
        select_input = readiness.early_input_reader(self.pipeline, entry, base, below, self.job, answer.prev)
        self.exchange = Exchange(self.pipeline, self.job, self.staging, entry, pending_input, select_input)
        self.operating = OperatorRunner(
            self.pipeline, self.job, self.plan, self.staging, base_memory, self.exchange.memory
        )
        self.operating.event_times.does_not_move = self.manual_edit is not None
        self.gating = GateRunner(
            self.pipeline,
            self.plan,
            self.staging,
            base_memory,
            self.operating.stored_rows,
            self.operating.event_times,
            self.drift,
        )
        self.direct = DirectWriter(self.pipeline, self.plan, self.staging, self.refuse_ended)
        return None, answer.prev

    def do(self, spark: SparkSession, prev: Handle | None) -> Ack:
        """Read, run, stage and acknowledge."""
        with self.measuring.watching(spark), self.noting_progress(spark), without_callers():
            with self.released_on_failure(), self.fenced_if_ended(), translated(), naming_stages(self.job.stages):
                seams.fault("S3.inputs.after")
                streams = self.read(spark)
                with self.planned(spark), self.run(streams, spark):
                    if not self.gating.aborts:
                        staged = self.stage_sinks(streams)
                    else:
                        staged = self.release_staged()
                    if isinstance(self.manual_edit, Diverting) and self.manual_edit.job == self.job.name:
                        self.diverted = self.manual_edit.work(self.staging)
                    refuse_unaccounted(self.job, self.measuring.taken, self.gating.verdicts, staged, self.exchange)
                    self.run_hooks()
                    self.operating.finish(self.job.operators)
                    self.exchange.finish()
                    self.trace_columns(streams, spark, prev)
                    self.collect_samples(streams, spark)
                self.reverify_sources()
                self.refuse_ended()
            return self.ack(staged, prev)

    def noting_progress(self, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
        """Write progress notes for people who watch."""
        return noting_progress(self.pipeline.ledger, self.id, self.measuring, self.staging.attempt, spark)

    def planned(self, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
        """Let Spark plan queries in the way that suits the amount of input."""
        if spark is not None and self.has_little_input:
            return planned_simply(spark)
        return contextlib.nullcontext()

    @property
    def has_little_input(self) -> bool:
        """Whether planning dominates the run time. Never for manual edits, which may rewrite a whole state."""
        amounts = [*self.upper_bounds.values(), *self.exchange.received.values()]
        return self.manual_edit is None and is_small(amounts)

    def _needs_prev(self) -> bool:
        """Return whether the job still has to run. If not, retention may rightly have removed the checkpoint's base."""
        entry, _ = self.pipeline.entry_and_base(self.id)
        return entry is not None and not entry.aborted and self.job.name not in entry.acks

    def _not_ready_error(self, answer: rules.Wait, entry: Entry) -> Rejected:
        subject = f"job {self.job.name!r} of checkpoint {self.id}"
        if answer.ids != (self.id,):
            return readiness.not_ready_error(self.pipeline.ledger, entry, answer, subject)
        missing = [repr(job) for job in self.job.after if job not in entry.acks]
        return Rejected(
            f"{subject} reads from job {', '.join(missing)}, which has not acked",
            expected="an ack of every job upstream",
            help=f"run {', '.join(missing)} first: in Airflow, clear that task",
            reason="UPSTREAM_MISSING",
        )

    def refuse_ended(self) -> None:
        """Raise Fenced if the checkpoint was aborted or retired while this attempt was staging: J1 again."""
        entry, base = self.pipeline.entry_and_base(self.id)
        below = ancestors(self.pipeline.ledger, entry, base)
        answer = readiness.check_readiness(self.pipeline.ledger, entry, base, below, self.job, self.at_work)
        if isinstance(answer, rules.Stop):
            raise self._fenced(answer.why)
        if entry is None or entry.aborted:  # even if another attempt has created the ack in time
            raise self._fenced(f"checkpoint {self.id} was aborted")

    def find_wrong_declaration(self, spark: SparkSession, error: Invalid) -> Invalid | None:
        """Return one error with all faults of the declaration, and tell triggers, if they are why the job failed.

        Return None if the declaration is not at fault, as far as this can be found out.
        """
        if spark is None or self.manual_edit is not None:  # the tests' toys need no Spark
            return None
        self.step("looking for errors of the declaration")
        try:
            _, base = self.pipeline.entry_and_base(self.id)
            faults = analyse(self.pipeline, spark, base, self.plan.source_changes, self.plan)
        except Exception as unclear:  # the job's own error is reported, like any other failure
            log.debug("The declaration could not be analysed: %r", unclear)
            return None
        if not faults or not all(isinstance(fault, Invalid) for fault in faults):
            return None
        reasons = [fault.reason for fault in faults]
        if reasons == [error.reason]:
            cause = error
        elif error.reason in reasons:
            cause = declaration_error(faults)
        else:
            cause = declaration_error([error, *faults])
        decline(self.pipeline, self.id, cause)
        return cause

    def find_counting_ack(self) -> Ack | None:
        """Return the ack of another attempt, if it exists. Failures of this attempt no longer matter then: the state
        that it continues from may have been retired."""
        try:
            entry = self.pipeline.ledger.entry(self.id)
        except TidegateError:
            return None
        if entry is None or entry.aborted or self.job.name not in entry.acks:
            return None
        return entry.acks[self.job.name].ack

    @contextlib.contextmanager
    def fenced_if_ended(self) -> Iterator[None]:
        """Turn failures of an attempt that was ended into Fenced: it fails because its files are being removed.

        If it cannot be found out whether it was ended, raise Unavailable. Otherwise a failure could pass for damage.
        """
        try:
            yield
        except (Corrupt, Invalid, Unavailable) as error:
            try:
                self.refuse_ended()
            except (Corrupt, Invalid, Rejected):
                pass
            except Unavailable as unclear:
                raise unclear from error
            self.exchange.refuse_ended()
            raise error

    def _fenced(self, why: str) -> Fenced:
        return Fenced(
            f"job {self.job.name!r} of checkpoint {self.id} stops: {why}",
            help="nothing to do: its input is in a later checkpoint, or was in this one already",
        )

    def read(self, spark: SparkSession) -> dict[str, DataFrame]:
        """Return the planned ranges as DataFrames. Each source first verifies that its input is still as planned."""
        if spark is not None:  # the tests' toys need no Spark
            folders = self._staging_folders()
            if on_one_machine(spark):
                folders += self._state_folders()
            refuse_unshared_disks(spark, folders)
            refuse_damaged(self.pipeline, self._tables_in_buckets())
        if self.manual_edit is not None:
            needed = self.manual_edit.streams
            streams = {}
            for sourcing in self.job.sources:
                if sourcing.name in needed:
                    streams[sourcing.name] = no_rows_of(self.pipeline, self.plan, sourcing.name, spark)
            return streams | self.exchange.read_streams(spark, needed)
        with self.measuring.timed("read"):
            streams = {}
            for sourcing in self.job.sources:
                streams[sourcing.name] = self._read_source(sourcing, spark)
            return streams | self.exchange.read_streams(spark)

    def _read_source(self, sourcing: SourceNode, spark: SparkSession) -> DataFrame:
        self.step(f"reading {sourcing.name}")
        planned = self.plan.sources[sourcing.name]
        if planned.does_not_move:
            self.measuring.taken[sourcing.name] = self.upper_bounds[sourcing.name] = Amount()
            return no_rows_of(self.pipeline, self.plan, sourcing.name, spark)
        ledger = self.pipeline.ledger
        context = SourceContext(self.graph.name, sourcing.name, self.pipeline.place, ledger)
        source = sourcing.as_planned(planned)
        splits = ledger.unpack(planned.splits)
        amount = source.verify(splits, context)
        self.measuring.taken[sourcing.name] = amount if amount is not None else Amount()
        self.upper_bounds[sourcing.name] = amount if amount is not None else source.upper_bound(splits)
        survey = source.survey(spark, splits, context)
        if survey is not None and survey.drift is not None:
            self.drift[sourcing.name] = survey.drift
            log.info(  # without names of keys, which may be data
                "Source %r: %d records do not fit its schema. `tidegate explain %s %d` says what becomes of them.",
                sourcing.name,
                survey.drift.records,
                self.graph.name,
                self.plan.id,
            )
        rows = source.read(spark, splits, dataclasses.replace(context, survey=survey))
        if spark is None:  # the tests' toys need no Spark
            return rows
        declared = source.columns_depend_on()
        if declared is not None:
            rows = like_before(rows, f"source {declared}")
        return no_rows_like(rows) if planned.empty else rows

    def reverify_sources(self) -> None:
        """Verify sources that ask for it again, now that the last row has been read."""
        if self.manual_edit is not None:
            return
        for sourcing in self.job.sources:
            if sourcing.source.verified_after and not self.plan.sources[sourcing.name].does_not_move:
                self._verify(sourcing)

    def find_changed_input(self) -> TidegateError | None:
        """Return the error of a source whose input is no longer as planned.

        It was as planned before Spark read it, so it has changed since, and that is why the job failed, whatever error
        Spark raised.
        """
        if self.manual_edit is not None:
            return None
        for sourcing in self.job.sources:
            if self.plan.sources[sourcing.name].does_not_move:
                continue
            try:
                self._verify(sourcing)
            except (Corrupt, Invalid) as changed:
                return changed
            except TidegateError as unclear:  # the job's own error is reported
                log.debug("The input of %s could not be checked again: %r", sourcing.name, unclear)
        return None

    def _verify(self, sourcing: SourceNode) -> None:
        context = SourceContext(self.graph.name, sourcing.name, self.pipeline.place, self.pipeline.ledger)
        planned = self.plan.sources[sourcing.name]
        sourcing.as_planned(planned).verify(self.pipeline.ledger.unpack(planned.splits), context)

    def _sinks(self) -> dict[str, Sink]:
        """Return the sinks, states and quarantines of the job."""
        sinks: dict[str, Sink] = {sinking.name: sinking.sink for sinking in self.job.sinks}
        for stage in self.job.operators:
            sinks |= stage.states
        for gate in self.job.gates:
            sinks |= gate.quarantine
        return sinks

    def _staging_folders(self) -> list[Location]:
        """Return the folders that Spark writes to and this process reads."""
        sinks = self._sinks()
        contexts = self.pipeline.contexts(sinks)
        folders = [sink.staging_folder(contexts[name]) for name, sink in sinks.items()]
        if self.job.gives:
            folders.append(Location(self.pipeline.ledger.home, self.pipeline.place.options))
        return [folder for folder in folders if folder is not None]

    def _tables_in_buckets(self) -> list[str]:
        """Return the tables in object stores, which a trigger need not have checked for damage."""
        sinks = self._sinks()
        contexts = self.pipeline.contexts(sinks)
        tables = {name: sink.delta_table(contexts[name]) for name, sink in sinks.items()}
        return [name for name, table in tables.items() if table is not None and not table.is_local]

    def _state_folders(self) -> list[Location]:
        """Return the folders of the states, which workers write to if they are on this machine."""
        states: dict[str, StateSink] = {}
        for stage in self.job.operators:
            states |= stage.states
        contexts = self.pipeline.contexts(states)
        return [state.location(contexts[name]) for name, state in states.items()]

    @contextlib.contextmanager
    def run(self, streams: dict[str, DataFrame], spark: SparkSession) -> Iterator[None]:
        """Add each stage's results to the streams. A stream with several users is computed once and cached."""
        cached: list[DataFrame] = []
        try:
            self.operating.received_keys = self.exchange.received_keys
            self._persist(streams, [sourcing.name for sourcing in self.job.sources], cached)
            self.operating.event_times.begin(streams, self.exchange.timed, small=self.has_little_input)
            self._persist_costly(streams, cached)
            self.operating.small = self.gating.small = self.has_little_input
            self.operating.read = {**self.upper_bounds, **self.exchange.received}
            for stages in order_stages(self.job.stages, streams, one_by_one=self.manual_edit is not None):
                self._run_stages(stages, streams, spark)
                if self.gating.aborts:
                    break  # the ack will have the verdicts, and name no rows
                for stage in stages:
                    self._persist(streams, stage.produces, cached)
            self.operating.event_times.find_maxima(self.exchange.timed)
            yield
        finally:
            self.operating.release()
            self.gating.release()
            for frame in cached:
                release(frame)

    def _run_stages(self, stages: Sequence[Node], streams: dict[str, DataFrame], spark: SparkSession) -> None:
        """Add the results of stages that do not depend on each other to the streams."""
        first = stages[0]
        if self.manual_edit is not None and self._run_manual_edit(self.manual_edit, first, streams):
            return
        if isinstance(first, GateNode):
            self._gate(first, streams)
        elif isinstance(first, StageNode):
            began = seams.monotonic()
            with self.measuring.timed("plan"):
                streams |= stage_results(first, streams, self.graph)
            self.seconds_of_functions[first.name] = seams.monotonic() - began
        else:
            operators = [stage for stage in stages if isinstance(stage, OperatorNode)]
            for stage in operators:
                self.step(f"state of {stage.name}")
            self.operating.several = len(operators) > 1
            timed = [stage for stage in operators if stage.spec.uses_event_time]
            if timed and self.operating.several:
                with self.measuring.timed("event time"):  # one query for all of them
                    for stage in timed:
                        self.operating.event_times.for_operator(stage)
            for results in call_in_parallel([partial(self._operate, stage, streams, spark) for stage in operators]):
                streams |= results

    def _operate(
        self, stage: OperatorNode, streams: Mapping[str, DataFrame], spark: SparkSession
    ) -> dict[str, DataFrame]:
        """Return the streams of an operator."""
        if self.operating.several:
            use_in_thread(spark)
        with self.measuring.timed(f"state {stage.name}") as step:
            results = self.operating.run(stage, streams, spark)
            self.measuring.note_computed(step, self.operating.computing[stage.name].recorded())
        return results

    def _run_manual_edit(self, manual_edit: ManualEdit | Diverting, stage: Node, streams: dict[str, DataFrame]) -> bool:
        """Run a stage that works differently in a manual edit. Return False if it is to run as usual."""
        if isinstance(manual_edit, ManualEdit) and stage.name == manual_edit.operator:
            with self.measuring.timed(f"state {stage.name}") as step:
                results = manual_edit.work(self.operating, streams)
                self.measuring.note_computed(step, self.operating.computing[stage.name].recorded())
            if manual_edit.emits_rows:
                main_outputs = (stage.name, replaced_rows_of(stage.name))
                for name, frame in results.items():
                    streams[name] = frame if name in main_outputs else empty_like(frame)
            return True
        if stage.name not in manual_edit.stages:
            return True
        if isinstance(stage, GateNode) and stage.input not in manual_edit.live:
            streams[stage.name] = without_marks(stage, streams[stage.input])  # it has no rows to judge
            return True
        return False

    def _gate(self, stage: GateNode, streams: dict[str, DataFrame]) -> None:
        """Judge rows, and let them pass or not. Retracted rows pass unjudged: they passed when they were emitted."""
        self.step(f"judging {stage.input}")
        with self.measuring.timed(f"gate {stage.name}"):
            streams[stage.name] = self.gating.run(stage, streams[stage.input], self._sink_after_gate(stage, streams))
        replaced = streams.get(replaced_rows_of(stage.input))
        if replaced is not None:
            streams[replaced_rows_of(stage.name)] = replaced

    def _sink_after_gate(self, stage: GateNode, streams: Mapping[str, DataFrame]) -> SinkNode | None:
        """Return the only user of a gate's rows, if it is a sink. None if rows are written directly or retracted."""
        sinks = [sinking for sinking in self.job.sinks if sinking.input == stage.name]
        if len(sinks) != 1 or self.job.users(stage.name) != 1:
            return None
        if replaced_rows_of(stage.input) in streams or self.direct.writes_sink(sinks[0].name):
            return None
        return sinks[0]

    def _persist(self, streams: dict[str, DataFrame], names: Any, cached: list[DataFrame]) -> None:
        for name in names:
            if self.job.users(name) > 1 and name in streams:
                with self.measuring.timed(f"share {name}"):
                    streams[name] = materialize(streams[name])
                cached.append(streams[name])

    def _persist_costly(self, streams: dict[str, DataFrame], cached: list[DataFrame]) -> None:
        """Cache the rows of a costly source that would otherwise be read a second time for its event time.

        This is not needed where a gate judges the rows, because it finds their event time, too.
        """
        judged = {gate.input for gate in self.job.gates}
        for sourcing in self.job.sources:
            name = sourcing.name
            if name in judged or self.job.users(name) != 1:
                continue
            if sourcing.source.costly_to_read and self.operating.event_times.needs_rows(name):
                streams[name] = materialize(streams[name])
                cached.append(streams[name])

    def stage_sinks(self, streams: Mapping[str, DataFrame]) -> dict[str, Prepared]:
        """Write the rows of every sink durably: where no table names them or, at least once, into the tables."""
        staged = dict(self.gating.staged)
        manual_edit = self.manual_edit
        for sinking in self.job.sinks:
            if manual_edit is not None and sinking.input not in manual_edit.live:
                continue
            self.step(f"staging {sinking.name}")
            frame, retracted = streams[sinking.input], streams.get(replaced_rows_of(sinking.input))
            with self.measuring.timed(f"stage {sinking.name}"):
                context = self.direct.context(sinking.name)
                if sinking.input in self.gating.ahead:
                    prestaged = self.gating.ahead[sinking.input]
                    staged[sinking.name] = sinking.sink.prepare_prestaged(prestaged, context, self.staging)
                elif retracted is None or (self.graph.never_drops_keys(sinking) and manual_edit is None):
                    staged[sinking.name] = sinking.sink.prepare(frame, context, self.staging)
                else:
                    staged[sinking.name] = sinking.sink.prepare_with_retractions(
                        frame, retracted, context, self.staging
                    )
            if self.direct.writes_sink(sinking.name):
                with self.measuring.timed(f"write {sinking.name}"):
                    self.direct.write(sinking, staged[sinking.name], frame)
        for stream in self.job.gives if manual_edit is None else manual_edit.streams.intersection(self.job.gives):
            self.step(f"sending {stream}")
            with self.measuring.timed(f"send {stream}"):
                key = key_to_send(self.graph, stream, streams, self.exchange.received_keys)
                self.exchange.send(stream, streams, key, by_hand=manual_edit is not None)
        return staged

    def trace_columns(self, streams: Mapping[str, DataFrame], spark: SparkSession, prev: Handle | None) -> None:
        """Find out what the columns of functions of DataFrames are made of, unless the ack before says it already."""
        stages = traced_functions(self.job)
        if spark is None or not stages:
            return
        try:
            self.traced = self._trace(stages, streams, prev)
        except TidegateError as error:  # nothing depends on it, and the next checkpoint tries again
            log.debug("The columns of functions cannot be traced: %s", error.what)

    def _trace(
        self, stages: Sequence[StageNode], streams: Mapping[str, DataFrame], prev: Handle | None
    ) -> TracedColumns | None:
        before = None
        if prev is not None:
            before = self.pipeline.ledger.chosen_ack(prev, self.job.name).columns
        if self.manual_edit is not None or self.gating.aborts:
            return before  # not all functions have been called
        code, inputs = traced_code(self.graph, stages), columns_of_inputs(stages, streams)
        if before is not None and is_still_true(before, code, inputs):
            return before
        self.step("tracing columns")
        quick = [stage for stage in stages if self.seconds_of_functions.get(stage.name, 0) <= MAX_CALL_S]
        with self.measuring.timed("trace columns"):
            origins = traced_stages(quick, streams)
        return TracedColumns(code=code, inputs=inputs, stages=self.pipeline.ledger.pack(origins, self.graph.parts))

    def collect_samples(self, streams: Mapping[str, DataFrame], spark: SparkSession) -> None:
        """Take samples of the streams of this job. This is the attempt's last use of Spark."""
        sampling = Sampling.from_config(self.plan.config)
        if spark is None or not sampling.rows or self.manual_edit is not None or self.gating.aborts:
            return
        self.step("taking samples")
        frames = []
        for stage in self.job.stages:
            for name in stage.produces:
                if name in streams:
                    frames.append((name, partial(self._staged_frame, streams, name)))
        with self.measuring.timed("samples"):
            self.samples = samples_of(spark, frames, sampling)

    def _staged_frame(self, streams: Mapping[str, DataFrame], name: str) -> DataFrame:
        """Return the rows of a stream after staging. Rows that were staged before they were judged are in files."""
        prestaged = self.gating.ahead.get(name)
        if prestaged is not None:
            return prestaged.passed()
        return streams[name]

    def write_samples(self) -> None:
        """Store the samples next to the ack. Nothing depends on them, so errors are ignored."""
        if self.samples:
            with contextlib.suppress(TidegateError):
                self.pipeline.ledger.put_samples(
                    Samples(**stamp(self.staging.attempt), id=self.id, job=self.job.name, streams=self.samples)
                )

    def release_staged(self) -> dict[str, Prepared]:
        """Delete the files that were staged before the gates aborted the checkpoint."""
        for sinking in self.job.sinks:
            if sinking.input in self.gating.ahead:
                sinking.sink.discard(self.direct.context(sinking.name), self.staging)
        return {}

    def run_hooks(self) -> None:
        """Call the pipeline's `on_prepare` hooks, unless a gate aborts the checkpoint."""
        if self.gating.aborts:
            return
        for hook in self.graph.hooks:
            if hook.on_prepare is not None:
                self.step(f"hook {hook.name}")
                with self.measuring.timed(f"hook {hook.name}"):
                    hook.prepare(Preparing(self.graph.name, self.id, self.job.name, self.staging.attempt))

    def ack(self, staged: Mapping[str, Prepared], prev: Handle | None) -> Ack:
        """J5: create the ack. If another attempt's ack exists, that one counts, and our files are deleted."""
        self.step("acknowledging")
        ledger = self.pipeline.ledger
        sinks: dict[str, Payload] = {}
        for name, prepared in staged.items():
            if prepared.committable and not self.direct.writes_sink(name):
                sinks[name] = ledger.pack(prepared.committable, self.graph.parts)
        record = Ack(
            **stamp(self.staging.attempt),
            id=self.staging.checkpoint,
            job=self.job.name,
            prev=prev,
            sinks=sinks | self.operating.changed,
            states=self.operating.finished,
            memory=self.operating.remembered() | self.gating.memory,
            gates=self.gating.verdicts,
            inputs=self.exchange.inputs,
            ahead=self.exchange.ahead,
            channels=self.exchange.sent,
            through=self.direct.written,
            drift=self.drift,
            diverted=self.diverted,
            columns=self.traced,
            stats=self.measuring.stats(staged, self.operating, self.exchange, self.gating.verdicts),
        )
        created = ledger.create_ack(record)
        if created.is_new:
            self.write_samples()
        else:
            self.release()
        return created.record

    def release(self) -> None:
        """Delete everything that this attempt staged. Files that cannot be deleted are harmless: nothing names them."""
        sinks: dict[str, Sink] = {}
        for stage in self.job.operators:
            sinks |= stage.states
        for gate in self.job.gates:
            sinks |= gate.quarantine
        for name, sink in sinks.items():
            with contextlib.suppress(TidegateError):
                sink.discard(self.pipeline.context(name), self.staging)
        for sinking in self.job.sinks:
            self.direct.release(sinking)
        self.exchange.release()

    @contextlib.contextmanager
    def released_on_failure(self) -> Iterator[None]:
        """Delete the files of an attempt that fails before its ack: nothing names them yet."""
        try:
            yield
        except (TidegateError, KeyboardInterrupt) as error:
            # After damage, people may want to examine everything as it is.
            if not isinstance(error, Corrupt) or self.find_counting_ack() is not None:
                self.release()
            raise


def _refuse_changed_code(graph: Graph, plan: Plan) -> None:
    """Raise CODE_CHANGED unless the graph has the sources, sinks and jobs of the plan.

    Otherwise rows could be missing, or be staged for sinks that the checkpoint does not publish.
    """
    planned = {f"sink {name}": "" for name in plan.commits} | {f"job {name}": "" for name in plan.acks}
    for name, part in plan.sources.items():
        if not name.startswith(QUARANTINE):  # released rows, which are not declared
            planned[f"source {name}"] = part.kind
    declared = {f"sink {name}": "" for name in graph.tables} | {f"job {job.name}": "" for job in graph.jobs}
    for name, sourcing in graph.sources.items():
        declared[f"source {name}"] = sourcing.source.kind
    if plan.by_interval:
        planned["reading by interval"] = ""
    if graph.by_interval:
        declared["reading by interval"] = ""
    changed = sorted({name for name, _ in planned.items() ^ declared.items()})
    if changed:
        raise Invalid(
            f"checkpoint {plan.id} was planned by other code: {', '.join(changed)} is not the same in both",
            expected=", ".join(sorted(planned)),
            help=f"abort checkpoint {plan.id} and trigger again: the next one reads its input",
            reason="CODE_CHANGED",
        )
