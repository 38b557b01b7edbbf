"""Runs one job of one checkpoint: the spine that every row goes through.

    ask      is there still something to do?                    fenced, done, or continue
    read     the plan's ranges, verified, as DataFrames          nothing runs yet
    run      the stages, on DataFrames                           nothing runs yet, but for operators with state
    stage    every sink's rows, out of sight                     Spark works here
             at least once: each is committed at once            its table shows it, whatever comes now
    prepare  hooks that flush something of their own             may decline
    ask      again: has it been ended meanwhile?                 fenced; what was staged is let go
    ack      one record that names all of it; the first counts   the job's only effect
             a few rows of each stream, if settings ask for it    a hint, which nothing depends on

An attempt may die anywhere, or overlap another one: what it has written by then lies in folders of its
own that nobody names.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.checkpoint.compatibility import decline
from tidegate.checkpoint.manifests import ancestors
from tidegate.checkpoint.publishing.publish import refuse_damaged
from tidegate.connectors.sink import Prepared, Sink, Staging
from tidegate.connectors.source import SourceContext
from tidegate.coordinator import Coordinator
from tidegate.delta import Location
from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, TidegateError, Unavailable, name_of, quoted_text
from tidegate.execution.analysis import analyse, declaration_error
from tidegate.execution.at_once import all_at_once, stages_in_turn
from tidegate.execution.job import readiness
from tidegate.execution.job.accounting import refuse_unaccounted
from tidegate.execution.job.direct_write import DirectWriter
from tidegate.execution.job.exchange import Exchange, memory_of_base
from tidegate.execution.job.gates import GateRunner
from tidegate.execution.job.measuring import JobMeter
from tidegate.execution.job.operators import OperatorRunner
from tidegate.execution.job.progress_notes import noting_progress
from tidegate.execution.job.sampling import Sampling, samples_of
from tidegate.execution.job.small_input import is_small, planned_simply
from tidegate.execution.job.stages import naming_stages, stage_results
from tidegate.execution.job.upstream_view import key_to_send
from tidegate.execution.manual_edits import ManualEdit, no_rows_of
from tidegate.execution.runs import abandoned_reason
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.graph import Graph, Job, Node, OperatorNode, SinkNode, StageNode
from tidegate.pipeline.graph.nodes import GateNode, SourceNode, replaced_rows_of
from tidegate.pipeline.hooks import Preparing
from tidegate.protocol import rules
from tidegate.protocol.view import Entry
from tidegate.records.records import Ack, Amount, Handle, Payload, Plan, SampledRows, Samples
from tidegate.spark.errors import translated
from tidegate.spark.frame_facts import (
    empty_like,
    like_before,
    no_rows_like,
    without_callers,
)
from tidegate.spark.local_session import use_in_thread
from tidegate.spark.materialize import materialize, release
from tidegate.spark.storage.same_disk import on_one_machine, refuse_other_disks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ask_job", "run_job", "run_manual_edit"]


log = logging.getLogger(__name__)

ProgressCallback = Callable[[str], None]

AtWork = Callable[[Plan, str], bool]
"""Called for a checkpoint in which a job has no ack: returns whether somebody may be at work on it there. A hint: if it
is wrong, work is done twice, or a checkpoint later."""


def _as_its_process(plan: Plan, job: str) -> bool:
    return abandoned_reason(plan) is None


def run_job(
    coordinator: Coordinator,
    id: int,
    job_name: str,
    spark: SparkSession,
    step: ProgressCallback = lambda _: None,
    at_work: AtWork = _as_its_process,
) -> Ack:
    """Do the job for checkpoint `id`, or find that it is done. Return the ack that counts.

    Fenced: this work no longer counts. Invalid: the input or the code is at fault. Unavailable: try again.
    Rejected: it is not its turn; or it is busy with an earlier checkpoint, and this one does not wait (PASSED_BY).
    """
    with _reporting_changed_code(coordinator, id):
        return _run_job(Attempt(coordinator, id, job_name, step, at_work), spark)


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


def run_manual_edit(coordinator: Coordinator, id: int, job_name: str, spark: SparkSession, by_hand: ManualEdit) -> Ack:
    """Do the job of a checkpoint that changes an operator's state by hand."""
    attempt = Attempt(coordinator, id, job_name, lambda _: None, by_hand=by_hand)
    ack, prev = attempt.ask()
    assert ack is None, "nobody else knows of this run"
    if by_hand.stage.name in attempt.job.names:
        by_hand.check(attempt.operating)
    return attempt.do(spark, prev)


def ask_job(coordinator: Coordinator, id: int, job_name: str, at_work: AtWork = _as_its_process) -> Ack | None:
    """Return the job's ack, if it is done already: called before a Spark session is opened. Raises what `run_job`
    would."""
    with _reporting_changed_code(coordinator, id):
        return Attempt(coordinator, id, job_name, lambda _: None, at_work).ask()[0]


@contextlib.contextmanager
def _reporting_changed_code(coordinator: Coordinator, id: int) -> Iterator[None]:
    """Raise CODE_CHANGED for an unforeseen error in a checkpoint that other code has planned: no attempt with this code
    can finish what the other code has begun. So the checkpoint is aborted, and the next one takes its input with this
    code."""
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        entry = coordinator.ledger.entry(id)
        if entry is None or entry.plan.code_fingerprint == coordinator.graph.code_fingerprint():
            raise
        raise Invalid(
            f"the pipeline's code has changed since checkpoint {id} was planned, and cannot continue with what the "
            f"other code has begun: {name_of(error)}",
            expected="the code that has planned it, until it is decided",
            help="nothing is lost: the checkpoint is aborted, and the next one takes its input with today's code; if "
            "that fails, too, correct the code",
            reason="CODE_CHANGED",
            quoted=quoted_text(error),
        ) from error


class Attempt:
    """One attempt at a job. Its random id is its identity; Airflow's try number is not unique."""

    def __init__(
        self,
        coordinator: Coordinator,
        id: int,
        job_name: str,
        step: ProgressCallback,
        at_work: AtWork = _as_its_process,
        by_hand: ManualEdit | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.graph: Graph = coordinator.graph
        self.job: Job = coordinator.graph.job(job_name)
        self.id = id
        self.staging: Staging
        self.step = step
        self.at_work = at_work
        self.by_hand = by_hand
        """The change that this checkpoint makes, if it is made by hand. Then only the stages concerned run."""
        self.measuring = JobMeter(self.job)
        self.samples: dict[str, SampledRows] = {}
        """By stream, a few rows that it had, if the settings ask for it."""
        self.plan: Plan
        self.exchange: Exchange
        self.operating: OperatorRunner
        self.gating: GateRunner
        self.direct: DirectWriter

    def ask(self) -> tuple[Ack | None, Handle | None]:
        """J1: return the ack that exists already, or the ack to continue from."""
        entry, base = self.coordinator.entry_and_base(self.id)
        below = ancestors(self.coordinator.ledger, entry, base)
        answer = readiness.check_readiness(self.coordinator, entry, base, below, self.job, self.at_work)
        if isinstance(answer, rules.Stop):
            raise self._fenced(answer.why)
        assert entry is not None
        if isinstance(answer, rules.SkipJob):
            raise readiness.overtaken_error(self.coordinator, answer, self.job)
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
            before = memory_of_base(self.coordinator, self.job, self.plan, base, answer.prev)
        except Corrupt:
            if self._needs_prev():
                raise
            return self.ask()
        waiting = readiness.untaken_input(entry, base, below, self.job)
        look = readiness.early_input_reader(self.coordinator, entry, base, below, self.job, answer.prev)
        self.exchange = Exchange(self.coordinator, self.job, self.staging, entry, waiting, look)
        self.operating = OperatorRunner(
            self.coordinator, self.job, self.plan, self.staging, before, self.exchange.memory
        )
        self.operating.event_times.stands = self.by_hand is not None
        self.gating = GateRunner(
            self.coordinator, self.plan, self.staging, before, self.operating.stored_rows, self.operating.event_times
        )
        self.direct = DirectWriter(self.coordinator, self.plan, self.staging, self.refuse_ended)
        return None, answer.prev

    def do(self, spark: SparkSession, prev: Handle | None) -> Ack:
        """Read, run, stage and acknowledge."""
        with self.measuring.watching(spark), self.noting_progress(spark), without_callers():
            with self.released_on_failure(), self.fenced_if_ended(), translated(), naming_stages(self.job.stages):
                seams.fault("S3.inputs.after")
                streams = self.read(spark)
                with self.planned(spark), self.run(streams, spark):
                    staged = self.stage_sinks(streams) if not self.gating.aborts else self.release_staged()
                    refuse_unaccounted(self.job, self.measuring.taken, self.gating.verdicts, staged, self.exchange)
                    self.run_hooks()
                    self.operating.finish(self.job.operators)
                    self.exchange.finish()
                    self.collect_samples(streams, spark)
                self.verify_again()
                self.refuse_ended()
            return self.ack(staged, prev)

    def noting_progress(self, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
        """Note what is being done, for whoever watches."""
        return noting_progress(self.coordinator.ledger, self.id, self.measuring, self.staging.attempt, spark)

    def planned(self, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
        """Let Spark plan as suits the amount of input."""
        return planned_simply(spark) if spark is not None and self.has_little_input else contextlib.nullcontext()

    @property
    def has_little_input(self) -> bool:
        """Whether it has so little input that what planning costs is what counts. By hand, a whole state may change."""
        amounts = [*self.measuring.taken.values(), *self.exchange.received.values()]
        return self.by_hand is None and is_small(amounts)

    def _needs_prev(self) -> bool:
        """Return whether the checkpoint is still undecided: otherwise retention may rightly have removed its base."""
        entry, _ = self.coordinator.entry_and_base(self.id)
        return entry is not None and not entry.aborted and self.job.name not in entry.acks

    def _not_ready_error(self, answer: rules.Wait, entry: Entry) -> Rejected:
        subject = f"job {self.job.name!r} of checkpoint {self.id}"
        if answer.ids != (self.id,):
            return readiness.not_ready_error(self.coordinator, entry, answer, subject)
        missing = [repr(job) for job in self.job.after if job not in entry.acks]
        return Rejected(
            f"{subject} takes what job {', '.join(missing)} makes, which has not acked",
            expected="the jobs that it takes from, done before it",
            help=f"run {', '.join(missing)} first: in Airflow, clear that task",
            reason="UPSTREAM_MISSING",
        )

    def refuse_ended(self) -> None:
        """J1 again: staging takes long, and a checkpoint that was aborted or retired meanwhile needs no ack."""
        entry, base = self.coordinator.entry_and_base(self.id)
        below = ancestors(self.coordinator.ledger, entry, base)
        answer = readiness.check_readiness(self.coordinator, entry, base, below, self.job, self.at_work)
        if isinstance(answer, rules.Stop):
            raise self._fenced(answer.why)
        if entry is None or entry.aborted:  # though another attempt has done it in time
            raise self._fenced(f"checkpoint {self.id} was aborted")

    def find_wrong_declaration(self, spark: SparkSession, error: Invalid) -> Invalid | None:
        """Return one error that tells all that is wrong with the declaration, if that is why the job has failed, and
        let triggers know. None: it is not, as far as can be told."""
        if spark is None or self.by_hand is not None:  # the tests' toys need no Spark
            return None
        self.step("looking for errors of the declaration")
        try:
            _, base = self.coordinator.entry_and_base(self.id)
            found = analyse(self.coordinator, spark, base, self.plan.source_changes, self.plan)
        except Exception as unclear:  # then it is told as it is, and counts as any other failure
            log.debug("The declaration could not be analysed: %r", unclear)
            return None
        if not found or not all(isinstance(each, Invalid) for each in found):
            return None
        alone = len(found) == 1 and found[0].reason == error.reason
        reasons = {each.reason for each in found}
        wrong = error if alone else declaration_error(found if error.reason in reasons else [error, *found])
        decline(self.coordinator, self.id, wrong)
        return wrong

    def find_counting_ack(self) -> Ack | None:
        """Return the ack that counts if another attempt has created it. Then no failure of this one matters: what it
        continues from may be retired."""
        try:
            entry = self.coordinator.ledger.entry(self.id)
        except TidegateError:
            return None
        acked = entry.acks.get(self.job.name) if entry is not None and not entry.aborted else None
        return acked.ack if acked is not None else None

    @contextlib.contextmanager
    def fenced_if_ended(self) -> Iterator[None]:
        """Raise Fenced for a failure in an attempt that has been ended: that is its cause, as its files are removed.

        While it is unknown whether the attempt has been ended, the failure does not count as damage: it is retried.
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
        """Return the planned ranges as DataFrames. Each is checked first: nothing is read that differs from the
        plan."""
        if spark is not None:  # the tests' toys need no Spark
            refuse_other_disks(spark, self._staged_in() + (self._states_in() if on_one_machine(spark) else []))
            refuse_damaged(self.coordinator, self._tables_in_buckets())
        if self.by_hand is not None:
            made_streams = self.by_hand.streams
            sources = [sourcing.name for sourcing in self.job.sources if sourcing.name in made_streams]
            none = {name: no_rows_of(self.coordinator, self.plan, name, spark) for name in sources}
            return none | self.exchange.read_streams(spark, made_streams)
        with self.measuring.timed("read"):
            ledger = self.coordinator.ledger
            streams = {}
            for sourcing in self.job.sources:
                self.step(f"reading {sourcing.name}")
                if self.plan.sources[sourcing.name].stands:
                    self.measuring.taken[sourcing.name] = Amount()
                    streams[sourcing.name] = no_rows_of(self.coordinator, self.plan, sourcing.name, spark)
                    continue
                context = SourceContext(self.graph.name, sourcing.name, self.coordinator.place, ledger)
                splits = ledger.unpack(self.plan.sources[sourcing.name].splits)
                amount = sourcing.source.verify(splits, context)
                self.measuring.taken[sourcing.name] = amount if amount is not None else Amount()
                rows = sourcing.source.read(spark, splits, context)
                declared = sourcing.source.columns_depend_on()
                if spark is not None and declared is not None:
                    rows = like_before(rows, f"source {declared}")
                nothing = spark is not None and self.plan.sources[sourcing.name].empty
                streams[sourcing.name] = no_rows_like(rows) if nothing else rows
            return streams | self.exchange.read_streams(spark)

    def verify_again(self) -> None:
        """Check, for sources that ask for it, that the input was still as planned when the last row was read."""
        if self.by_hand is not None:
            return
        for sourcing in self.job.sources:
            if sourcing.source.verified_after and not self.plan.sources[sourcing.name].stands:
                self._verify(sourcing)

    def find_changed_input(self) -> TidegateError | None:
        """Return the error of a source whose input is no longer as planned. It was when it was checked, before Spark
        read it: so it changed in between, and that is why the job has failed, whatever Spark says of it."""
        if self.by_hand is not None:
            return None
        for sourcing in self.job.sources:
            if self.plan.sources[sourcing.name].stands:
                continue
            try:
                self._verify(sourcing)
            except (Corrupt, Invalid) as changed:
                return changed
            except TidegateError as unclear:  # then it is told as it is
                log.debug("The input of %s could not be checked again: %r", sourcing.name, unclear)
        return None

    def _verify(self, sourcing: SourceNode) -> None:
        context = SourceContext(self.graph.name, sourcing.name, self.coordinator.place, self.coordinator.ledger)
        sourcing.source.verify(self.coordinator.ledger.unpack(self.plan.sources[sourcing.name].splits), context)

    def _sinks(self) -> dict[str, Sink]:
        """Return all that the job stages for: its sinks, states and quarantines."""
        sinks: dict[str, Sink] = {sinking.name: sinking.sink for sinking in self.job.sinks}
        for stage in self.job.operators:
            sinks |= stage.states
        for gate in self.job.gates:
            sinks |= gate.quarantine
        return sinks

    def _staged_in(self) -> list[Location]:
        """Return the folders that Spark writes to and this process reads."""
        job, sinks = self.job, self._sinks()
        contexts = self.coordinator.contexts(sinks)
        locations = [sink.staging_folder(contexts[name]) for name, sink in sinks.items()]
        beside = Location(self.coordinator.ledger.home, self.coordinator.place.options)
        return [location for location in (*locations, beside if job.gives else None) if location is not None]

    def _tables_in_buckets(self) -> list[str]:
        """Return the tables that a trigger need not have looked at."""
        sinks = self._sinks()
        contexts = self.coordinator.contexts(sinks)
        tables = {name: sink.delta_table(contexts[name]) for name, sink in sinks.items()}
        return [name for name, table in tables.items() if table is not None and not table.is_local]

    def _states_in(self) -> list[Location]:
        """Return the folders of the states: workers write there, if they are on this machine."""
        states = dict(named for stage in self.job.operators for named in stage.states.items())
        contexts = self.coordinator.contexts(states)
        return [state.location(contexts[name]) for name, state in states.items()]

    @contextlib.contextmanager
    def run(self, streams: dict[str, DataFrame], spark: SparkSession) -> Iterator[None]:
        """Add each stage's results to the streams. Streams used twice are computed once, and always released."""
        cached: list[DataFrame] = []
        try:
            self.operating.received_keys = self.exchange.received_keys
            self._persist(streams, [sourcing.name for sourcing in self.job.sources], cached)
            self.operating.event_times.begin(streams, self.exchange.timed, small=self.has_little_input)
            self._persist_costly(streams, cached)
            self.operating.small = self.gating.small = self.has_little_input
            self.operating.read = {**self.measuring.taken, **self.exchange.received}
            for stages in stages_in_turn(self.job.stages, streams, one_by_one=self.by_hand is not None):
                self._take_turn(stages, streams, spark)
                if self.gating.aborts:
                    break  # nothing of this checkpoint can count: its ack says why, and names nothing
                for stage in stages:
                    self._persist(streams, stage.produces, cached)
            self.operating.event_times.find_maxima(self.exchange.timed)
            yield
        finally:
            self.operating.release()
            self.gating.release()
            for frame in cached:
                release(frame)

    def _take_turn(self, stages: Sequence[Node], streams: dict[str, DataFrame], spark: SparkSession) -> None:
        """Add the results of stages that do not wait for each other to the streams."""
        first = stages[0]
        if self.by_hand is not None and self._run_manual_edit(self.by_hand, first, streams):
            return
        if isinstance(first, GateNode):
            self._gate(first, streams)
        elif isinstance(first, StageNode):
            with self.measuring.timed("plan"):
                streams |= stage_results(first, streams, self.graph)
        else:
            operators = [stage for stage in stages if isinstance(stage, OperatorNode)]
            for stage in operators:
                self.step(f"state of {stage.name}")
            self.operating.several = len(operators) > 1
            timed = [stage for stage in operators if stage.spec.uses_event_time]
            if timed and self.operating.several:
                with self.measuring.timed("event time"):  # one query finds what all of them need
                    for stage in timed:
                        self.operating.event_times.of(stage)
            for results in all_at_once([partial(self._operate, stage, streams, spark) for stage in operators]):
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

    def _run_manual_edit(self, by_hand: ManualEdit, stage: Node, streams: dict[str, DataFrame]) -> bool:
        """Handle a stage that works differently in a checkpoint made by hand. Return False if it runs as usual."""
        if stage.name == by_hand.stage.name:
            with self.measuring.timed(f"state {stage.name}") as step:
                results = by_hand.work(self.operating, streams)
                self.measuring.note_computed(step, self.operating.computing[stage.name].recorded())
            mine = (stage.name, replaced_rows_of(stage.name))
            if by_hand.emits_rows:
                streams |= {name: frame if name in mine else empty_like(frame) for name, frame in results.items()}
            return True
        if stage.name not in by_hand.stages:
            return True
        if isinstance(stage, GateNode) and stage.input not in by_hand.live:
            streams[stage.name] = streams[stage.input]  # there is nothing to judge
            return True
        return False

    def _gate(self, stage: GateNode, streams: dict[str, DataFrame]) -> None:
        """Let rows pass, or not. Replaced rows have passed before."""
        self.step(f"judging {stage.input}")
        with self.measuring.timed(f"gate {stage.name}"):
            streams[stage.name] = self.gating.run(stage, streams[stage.input], self._sink_after_gate(stage, streams))
        replaced = streams.get(replaced_rows_of(stage.input))
        if replaced is not None:
            streams[replaced_rows_of(stage.name)] = replaced

    def _sink_after_gate(self, stage: GateNode, streams: Mapping[str, DataFrame]) -> SinkNode | None:
        """Return the sink that takes the rows of a gate, if nothing else does, and the rows are neither written
        directly nor replace others."""
        taking = [sinking for sinking in self.job.sinks if sinking.input == stage.name]
        alone = len(taking) == self.job.users(stage.name) == 1 and replaced_rows_of(stage.input) not in streams
        return taking[0] if alone and not self.direct.writes_sink(taking[0].name) else None

    def _persist(self, streams: dict[str, DataFrame], names: Any, cached: list[DataFrame]) -> None:
        for name in names:
            if self.job.users(name) > 1 and name in streams:
                with self.measuring.timed(f"share {name}"):
                    streams[name] = materialize(streams[name])
                cached.append(streams[name])

    def _persist_costly(self, streams: dict[str, DataFrame], cached: list[DataFrame]) -> None:
        """Compute the rows of a source once that would be read a second time for its event time. A gate finds it as it
        judges them."""
        judged = {gate.input for gate in self.job.gates}
        for sourcing in self.job.sources:
            name = sourcing.name
            alone = self.job.users(name) == 1 and name not in judged
            if sourcing.source.costly_to_read and alone and self.operating.event_times.needs_rows(name):
                streams[name] = materialize(streams[name])
                cached.append(streams[name])

    def stage_sinks(self, streams: Mapping[str, DataFrame]) -> dict[str, Prepared]:
        """Write every sink's rows, durably: where no table names them; or, at least once, into the tables."""
        staged = dict(self.gating.staged)
        by_hand = self.by_hand
        for sinking in self.job.sinks:
            if by_hand is not None and sinking.input not in by_hand.live:
                continue
            self.step(f"staging {sinking.name}")
            frame, withdrawn = streams[sinking.input], streams.get(replaced_rows_of(sinking.input))
            with self.measuring.timed(f"stage {sinking.name}"):
                context = self.direct.context(sinking.name)
                if sinking.input in self.gating.ahead:
                    ahead = self.gating.ahead[sinking.input]
                    staged[sinking.name] = sinking.sink.prepare_prestaged(ahead, context, self.staging)
                elif withdrawn is None or (self.graph.never_drops_keys(sinking) and by_hand is None):
                    staged[sinking.name] = sinking.sink.prepare(frame, context, self.staging)
                else:
                    staged[sinking.name] = sinking.sink.prepare_with_retractions(
                        frame, withdrawn, context, self.staging
                    )
            if self.direct.writes_sink(sinking.name):
                with self.measuring.timed(f"write {sinking.name}"):
                    self.direct.write(sinking, staged[sinking.name], frame)
        for stream in self.job.gives if by_hand is None else by_hand.streams.intersection(self.job.gives):
            self.step(f"sending {stream}")
            with self.measuring.timed(f"send {stream}"):
                key = key_to_send(self.graph, stream, streams, self.exchange.received_keys)
                self.exchange.send(stream, streams, key, by_hand=by_hand is not None)
        return staged

    def collect_samples(self, streams: Mapping[str, DataFrame], spark: SparkSession) -> None:
        """Take samples of what the job's stages, gates and operators have let through. Nothing of the attempt needs
        Spark after this: all is staged."""
        sampling = Sampling.of(self.plan.config)
        if spark is None or not sampling.rows or self.by_hand is not None or self.gating.aborts:
            return
        self.step("taking samples")
        names = [name for stage in self.job.stages for name in stage.produces if name in streams]
        frames = [(name, partial(self._frame_of, streams, name)) for name in names]
        with self.measuring.timed("samples"):
            self.samples = samples_of(spark, frames, sampling)

    def _frame_of(self, streams: Mapping[str, DataFrame], name: str) -> DataFrame:
        """Return the rows of a stream, now that all is staged: those that were staged before they were judged are read
        from their files."""
        ahead = self.gating.ahead.get(name)
        return ahead.passed() if ahead is not None else streams[name]

    def write_samples(self) -> None:
        """Keep the samples beside the ack, which counts. If they are lost, nothing else is."""
        if self.samples:
            with contextlib.suppress(TidegateError):
                self.coordinator.ledger.put_samples(
                    Samples(**stamp(self.staging.attempt), id=self.id, job=self.job.name, streams=self.samples)
                )

    def release_staged(self) -> dict[str, Prepared]:
        """Release the files staged before the verdict: nothing of this checkpoint can count."""
        for sinking in self.job.sinks:
            if sinking.input in self.gating.ahead:
                sinking.sink.discard(self.direct.context(sinking.name), self.staging)
        return {}

    def run_hooks(self) -> None:
        """Let the pipeline's hooks do their part of the snapshot, before it counts. There is none if a gate aborts."""
        for hook in self.graph.hooks if not self.gating.aborts else ():
            if hook.on_prepare is not None:
                self.step(f"hook {hook.name}")
                with self.measuring.timed(f"hook {hook.name}"):
                    hook.prepare(Preparing(self.graph.name, self.id, self.job.name, self.staging.attempt))

    def ack(self, staged: Mapping[str, Prepared], prev: Handle | None) -> Ack:
        """J5: create the ack. If another attempt's exists, that one counts, whole, and our files are released."""
        self.step("acknowledging")
        ledger = self.coordinator.ledger
        owed = {name: prepared.committable for name, prepared in staged.items() if not self.direct.writes_sink(name)}
        sinks: dict[str, Payload] = {
            name: ledger.pack(committable, self.graph.parts) for name, committable in owed.items() if committable
        }
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
            stats=self.measuring.stats(staged, self.operating, self.exchange, self.gating.verdicts),
        )
        created = ledger.create_ack(record)
        if created.is_new:
            self.write_samples()
        else:
            self.release()
        return created.record

    def release(self) -> None:
        """Remove everything that this attempt staged. A file that stays is never named by anyone."""
        states = {name: sink for operated in self.job.operators for name, sink in operated.states.items()}
        quarantines = {name: sink for gated in self.job.gates for name, sink in gated.quarantine.items()}
        for name, sink in {**states, **quarantines}.items():
            with contextlib.suppress(TidegateError):
                sink.discard(self.coordinator.context(name), self.staging)
        for sinking in self.job.sinks:
            self.direct.release(sinking)
        self.exchange.release()

    @contextlib.contextmanager
    def released_on_failure(self) -> Iterator[None]:
        """Up to the ack nothing names our files, so a failed attempt removes them."""
        try:
            yield
        except (TidegateError, KeyboardInterrupt) as error:
            # Damage: leave everything as it is for people to look into.
            if not isinstance(error, Corrupt) or self.find_counting_ack() is not None:
                self.release()
            raise


def _refuse_changed_code(graph: Graph, plan: Plan) -> None:
    """Raise if the plan reads or publishes something else: other rows would be staged for nobody, or be missing."""
    quarantine_sources = {
        name for name, part in plan.sources.items() if name.startswith(QUARANTINE)
    }  # not what is declared
    planned = {f"source {name}": part.kind for name, part in plan.sources.items() if name not in quarantine_sources}
    planned |= dict.fromkeys((f"sink {name}" for name in plan.commits), "")
    declared = {f"source {name}": sourcing.source.kind for name, sourcing in graph.sources.items()}
    declared |= dict.fromkeys((f"sink {name}" for name in graph.tables), "")
    planned |= {"reading by interval": ""} if plan.by_interval else {}
    declared |= {"reading by interval": ""} if graph.by_interval else {}
    planned |= dict.fromkeys((f"job {name}" for name in plan.acks), "")
    declared |= dict.fromkeys((f"job {job.name}" for job in graph.jobs), "")
    changed = sorted({name for name, _ in planned.items() ^ declared.items()})
    if changed:
        raise Invalid(
            f"checkpoint {plan.id} was planned by other code: {', '.join(changed)} is not the same in both",
            expected=", ".join(sorted(planned)),
            help=f"abort checkpoint {plan.id} and trigger again: its input is planned anew",
            reason="CODE_CHANGED",
        )
