"""Runs the gates of a job: judges rows, quarantines bad ones, lets released ones pass, and collects the verdicts."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate import seams
from tidegate.checkpoint.context import PipelineContext
from tidegate.connectors.prestaged import PrestagedRows
from tidegate.connectors.sink import Prepared, SinkContext, Staging
from tidegate.connectors.source import SourceContext
from tidegate.delta import Location
from tidegate.errors import Invalid, TidegateError
from tidegate.execution.job.exchange import BaseMemory
from tidegate.execution.job.stages import rows_after_gate
from tidegate.execution.job.watermarks import EventTimes
from tidegate.gates.base import POLICIES, BrokenRule, GateContext, Judgement, exact_share, memory_key
from tidegate.gates.quarantine.columns import CHECKPOINT, OWN_PREFIX
from tidegate.gates.quarantine.returning import LateLimit, ReleasedInPlace, ReleasedRows
from tidegate.gates.quarantine.table import IN_PLACE, REPEATED, QuarantineSink, quarantine_name
from tidegate.gates.row_rules import RowRules
from tidegate.pipeline.graph.graph import Graph, SinkNode
from tidegate.pipeline.graph.late_sensitive import find_late_sensitive_operators
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.records import typed
from tidegate.records.records import Drift, Json, LateBehind, Plan, RecordedRule, Request, Verdict
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.materialize import materialize, release
from tidegate.spark.row_id import rows_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = ["GateRunner", "refuse_reserved_columns", "returning", "warm_gates", "without_marks"]


def returning(
    pipeline: PipelineContext,
    plan: Plan,
    name: str,
    sink: QuarantineSink,
    spark: SparkSession,
    fields: Sequence[StructField] = (),
    takers: Sequence[LateLimit] = (),
    row_rules: Callable[[], RowRules | None] | None = None,
) -> ReleasedRows | None:
    """Return the rows that the plan releases from the quarantine with this name, or None if it has no requests.

    fields: the columns of the gate's stream. takers: the downstream operators that drop late rows. row_rules: returns
    the gate's rules about single rows.
    """
    ledger = pipeline.ledger
    splits = ledger.unpack(plan.sources[name].splits)
    requests = [typed.convert(request, Request) for request in splits["requests"]]
    if not requests:
        return None
    context = SourceContext(pipeline.graph.name, name, pipeline.place, ledger)
    source = sink.source(ledger.home)
    source.verify(splits["table"], context)
    rows = source.read(spark, splits["table"], context)
    repeated = splits.get(REPEATED)
    if repeated is None:
        return sink.returning(rows, requests, plan.id, fields, takers, row_rules)
    # A backfill repeats requests that were made about the pipeline's own quarantine.
    live = sink.source(repeated["home"])
    live.verify(repeated["table"], context)
    requested = sink.returning(live.read(spark, repeated["table"], context), requests, plan.id)
    return sink.select_released_again(rows, requested, repeated["since"], fields, takers, row_rules)


def _read_rows_to_release_in_place(
    pipeline: PipelineContext, plan: Plan, name: str, sink: QuarantineSink, spark: SparkSession
) -> tuple[ReleasedRows, int] | None:
    """Return the rows that a backfill releases at once, and the checkpoint that it repeats.

    The pipeline quarantined these rows in that checkpoint, and released them later. None: the plan has no such rows.
    """
    splits = pipeline.ledger.unpack(plan.sources[name].splits)
    if IN_PLACE not in splits:
        return None
    in_place = splits[IN_PLACE]
    checkpoint = in_place["checkpoint"]
    context = SourceContext(pipeline.graph.name, name, pipeline.place, pipeline.ledger)
    live = sink.source(in_place["home"])
    live.verify(in_place["table"], context)
    rows = live.read(spark, in_place["table"], context)
    requests = [typed.convert(request, Request) for request in in_place["requests"]]
    return sink.returning(rows.where(f"{CHECKPOINT} = {checkpoint}"), requests, plan.id), checkpoint


RULES_SHOWN = 100
"""Maximum number of broken rules in a verdict itself. Its results have all of them."""

FILES = 5
"""Maximum number of input files of a source that a rejection names."""

_warming: list[threading.Thread] = []


def warm_gates(graph: Graph) -> None:
    """Start slow preparations of the gates, such as importing Great Expectations, in parallel with Spark's work."""

    def warm() -> None:
        for gated in graph.gates:
            with contextlib.suppress(Exception):  # it is raised again when the gate judges
                gated.gate.warm_up()

    if graph.gates and not any(thread.is_alive() for thread in _warming):
        _import_spark()
        _warming[:] = [threading.Thread(target=warm, daemon=True, name="warm-gates")]
        _warming[0].start()


def _import_spark() -> None:
    """Import the parts of Spark that Great Expectations needs, before another thread imports them.

    Two threads that import parts of one package at the same time may each see half of it: Python raises KeyError, or
    Great Expectations believes that Spark is not installed.
    """
    with contextlib.suppress(ImportError):  # parts that are not installed are missing for the other thread, too
        import pyspark.ml.feature
        import pyspark.sql.connect.session  # noqa: F401


class GateRunner:
    """Runs the gates of one attempt."""

    def __init__(
        self,
        pipeline: PipelineContext,
        plan: Plan,
        staging: Staging,
        prev: BaseMemory | None,
        lookup_stored_rows: Callable[[str, DataFrame], DataFrame | None],
        event_times: EventTimes,
        drift: Mapping[str, Drift],
    ) -> None:
        """Prepare to run them.

        lookup_stored_rows: returns the rows that an operator has stored for some keys at the base. drift: by source,
            what of its input does not fit its schema, once it has been read.
        """
        self.pipeline = pipeline
        self.lookup_stored_rows = lookup_stored_rows
        self.event_times = event_times
        self.drift = drift
        self.plan = plan
        self.staging = staging
        self.before: Mapping[str, Json] = prev.memory if prev is not None else {}
        self.verdicts: dict[str, Verdict] = {}
        self.staged: dict[str, Prepared] = {}
        """The rows for quarantine, by the tables' names."""
        self.memory: dict[str, Json] = {}
        self.ahead: dict[str, PrestagedRows] = {}
        """Rows that were staged before they were judged, by stream."""
        self.persisted: list[DataFrame] = []
        self.small = False
        """Whether the job has little input."""
        self.judged: list[tuple[Location, str]] = []
        """Temporary folders with rows that were judged in files."""

    @property
    def aborts(self) -> bool:
        """Whether a verdict aborts the checkpoint, so that staging can stop."""
        return any(verdict.outcome == "abort" for verdict in self.verdicts.values())

    def run(self, stage: GateNode, frame: DataFrame, table: SinkNode | None = None) -> DataFrame:
        """Judge the rows, and return those that pass.

        They are computed once, so that exactly the judged rows are staged, even if stages are not deterministic.

        table: the sink that is the only user of the rows, if any. They may be staged for it before they are judged, see
            `ahead`.
        """
        if stage.gate.quarantines:
            refuse_reserved_columns(stage, without_marks(stage, frame).columns)
        warming = any(thread.is_alive() for thread in _warming)
        if warming or not stage.gate.persists:
            frame = materialize(frame)
            self.persisted.append(frame)
        if warming:
            frame.count()  # Spark computes the rows while the gates prepare
        seams.fault("S5.gate.before")
        judgement = stage.gate.judge(frame, self._context(stage, table))
        self.persisted += judgement.persisted
        if judgement.prestaged is not None:
            return self._finish_prestaged(stage, judgement, judgement.prestaged)
        if judgement.frame is not None:
            frame = judgement.frame
        memory = judgement.memory
        chosen = self.plan.quarantine_all or self.plan.quarantine_held
        if chosen and stage.gate.quarantines and _outcome(judgement.broken) == "hold":
            judgement = _quarantine_all(judgement, frame)
        if any(rule.was_held for rule in judgement.broken):
            # As for rejected rows, the gate does not remember these.
            memory = self.before.get(memory_key(stage.name), {})
        good, bad = judgement.split or (frame, None)
        released = self._released_rows(stage, frame)
        in_place = self._in_place(stage, bad, frame) if bad is not None else None
        if stage.gate.quarantines and (bad is not None or released is not None or self.staging.interval is not None):
            self._quarantine(stage, bad, frame, released, in_place)
        verdict = self._verdict(stage, judgement, released, in_place)
        if verdict.outcome == "hold":
            verdict = msgspec.structs.replace(verdict, rows_hash=_hash_of(judgement, frame))
        self.verdicts[stage.name] = verdict
        self._remember(stage, memory)
        seams.fault("S5.gate.after")
        if released is not None:
            good = released.joined(good)
        if in_place is not None:
            good = in_place.released.joined(good)
        return good

    def _finish_prestaged(self, stage: GateNode, judgement: Judgement, prestaged: PrestagedRows) -> DataFrame:
        """Return the rows that pass, of rows that were staged before they were judged.

        The bad ones have been removed from the files, and go to quarantine from here.
        """
        if judgement.quarantined is not None:
            for name, sink in stage.quarantine.items():
                schema = msgspec.json.decode(prestaged.frame.schema.json())
                context = self.pipeline.context(name)
                self.staged[name] = sink.prepare_in_process(
                    judgement.quarantined, schema, stage.input, context, self.staging
                )
        self.verdicts[stage.name] = self._verdict(stage, judgement, None, None)
        self._remember(stage, judgement.memory)
        seams.fault("S5.gate.after")
        if not prestaged.for_table:
            return prestaged.passed()
        self.ahead[stage.name] = prestaged
        return prestaged.frame

    def _remember(self, stage: GateNode, memory: Json) -> None:
        """Set a gate's memory for the next checkpoint. An empty one replaces what the base has."""
        if memory or memory_key(stage.name) in self.before:
            self.memory[memory_key(stage.name)] = memory

    def _staging_for(self, stage: GateNode, table: SinkNode | None) -> Callable[..., PrestagedRows | None] | None:
        """Return a function with which a gate can stage its rows before it judges them.

        None if it must not: released rows will join those that pass, or all rows may be quarantined.
        """
        if self._released_from(stage) or self.plan.quarantine_all or self.plan.quarantine_held:
            return None
        if table is not None:
            context = self.pipeline.context(table.name)
            return self._capturing_event_time(
                stage, partial(table.sink.prestage, context=context, staging=self.staging)
            )
        if self.staging.interval is not None:
            return None
        for name, sink in stage.quarantine.items():
            return self._capturing_event_time(stage, partial(self._stage_judged, sink, self.pipeline.context(name)))
        return None

    def _capturing_event_time(
        self, stage: GateNode, prestage: Callable[..., PrestagedRows | None]
    ) -> Callable[..., PrestagedRows | None]:
        """Wrap `prestage` so that it also finds the highest event time of a source whose rows it stages.

        Spark then need not read the source a second time for it.
        """

        def prestage_and_capture(*args: Any, **kwargs: Any) -> PrestagedRows | None:
            rows = prestage(*args, **kwargs)
            if rows is not None and self.event_times.needs_rows(stage.input):
                with contextlib.suppress(Exception):  # a query finds it later, or raises what is wrong
                    self._capture_event_time(stage.input, rows)
            return rows

        return prestage_and_capture

    def _capture_event_time(self, source: str, rows: PrestagedRows) -> None:
        column = self.pipeline.graph.sources[source].event_time
        if column is not None and rows.has_time(column):
            self.event_times.record_maximum(source, rows.highest(column), rows.rows)

    def _stage_judged(
        self,
        sink: QuarantineSink,
        context: SinkContext,
        frame: DataFrame,
        beside: Mapping[str, Column],
        *,
        draft: Collection[str] | None = None,
    ) -> PrestagedRows | None:
        """Stage rows next to a gate's quarantine, in a folder that is removed with this attempt."""
        self.judged.append((sink.staging_folder(context), sink.judged_folder(context, self.staging)))
        return sink.stage_judged(frame, beside, context, self.staging, plainly=self.small, draft=draft)

    def _context(self, stage: GateNode, table: SinkNode | None) -> GateContext:
        graph, place, ledger = self.pipeline.graph, self.pipeline.place, self.pipeline.ledger
        planned_inputs = None
        if stage.name in self.plan.fixed_inputs:
            inputs = ledger.unpack(self.plan.fixed_inputs[stage.name])
            planned_inputs = inputs, SourceContext(graph.name, stage.name, place, ledger)
        lookup_operator_rows = None
        if stage.gate.against is not None:
            lookup_operator_rows = partial(self.lookup_stored_rows, stage.gate.against)
        planned = self.plan.sources.get(stage.input)
        return GateContext(
            pipeline=graph.name,
            gate=stage.name,
            place=place,
            checkpoint=self.staging.checkpoint,
            clock=self.plan.time,
            memory=self.before.get(memory_key(stage.name), {}),
            cut_freely=self.pipeline.cuts_freely,
            quarantine_held=self.plan.quarantine_held,
            planned_inputs=planned_inputs,
            stage=self._staging_for(stage, table),
            drift=self.drift.get(stage.input),
            schema=planned.schema if planned is not None else None,
            lookup_operator_rows=lookup_operator_rows,
        )

    def _released_rows(self, stage: GateNode, frame: DataFrame) -> ReleasedRows | None:
        """Return the rows that the plan releases from the gate's quarantine."""
        for name, sink in self._released_from(stage).items():
            rules, fields, takers = self._row_rules(stage, frame), frame.schema.fields, self._takers(stage)
            released = returning(self.pipeline, self.plan, name, sink, frame.sparkSession, fields, takers, rules)
            if released is not None:
                self.persisted += released.persisted
                return released
        return None

    def _in_place(self, stage: GateNode, bad: DataFrame, frame: DataFrame) -> ReleasedInPlace | None:
        """Return the bad rows, with those that a backfill releases at once. None if it releases none."""
        for name, sink in self._released_from(stage).items():
            request = _read_rows_to_release_in_place(self.pipeline, self.plan, name, sink, frame.sparkSession)
            if request is None:
                continue
            requested, checkpoint = request
            rules, fields, takers = self._row_rules(stage, frame), frame.schema.fields, self._takers(stage)
            in_place = sink.released_in_place(
                bad, self.staging, stage.input, requested, checkpoint - 1, fields, takers, rules
            )
            self.persisted += [*requested.persisted, in_place.all, *in_place.released.persisted]
            return in_place
        return None

    def _row_rules(self, stage: GateNode, frame: DataFrame) -> Callable[[], RowRules | None]:
        return lambda: stage.gate.row_rules(frame, self._context(stage, None))

    def _takers(self, stage: GateNode) -> list[LateLimit]:
        return [self._late_limit(stage, operator) for operator in self._late_sensitive_operators(stage)]

    def _late_limit(self, stage: GateNode, operator: LateBehind) -> LateLimit:
        run_stages = None
        if operator.stages:
            run_stages = partial(rows_after_gate, self.pipeline.graph, stage.name, operator.stream)
        return LateLimit(operator, self.event_times.base_watermark(operator.operator), run_stages)

    def _released_from(self, stage: GateNode) -> dict[str, QuarantineSink]:
        """Return the gate's quarantine, if the plan releases or discards rows of it."""
        sinks = {}
        for name, sink in stage.quarantine.items():
            part = self.plan.sources.get(name)
            if part is not None and not part.empty:
                sinks[name] = sink
        return sinks

    def _late_sensitive_operators(self, stage: GateNode) -> list[LateBehind]:
        """Return the downstream operators that drop late rows, if the gate quarantines."""
        if not stage.quarantine:
            return []
        return find_late_sensitive_operators(self.pipeline.graph, stage.name)

    def _quarantine(
        self,
        stage: GateNode,
        bad: DataFrame | None,
        frame: DataFrame,
        released: ReleasedRows | None,
        in_place: ReleasedInPlace | None,
    ) -> None:
        for name, sink in stage.quarantine.items():
            context = self.pipeline.context(name)
            if in_place is None:
                rows = sink.rows(bad, frame, self.staging, stage.input, released)
            else:
                rows = in_place.rows(released)
            prepare = sink.prepare if released is None else sink.prepare_marked
            self.staged[name] = prepare(rows, context, self.staging)

    def _verdict(
        self,
        stage: GateNode,
        judgement: Judgement,
        released: ReleasedRows | None,
        in_place: ReleasedInPlace | None,
    ) -> Verdict:
        gate = stage.gate
        # The quarantine is staged with rows of both kinds: bad ones of this checkpoint, and earlier ones that requests
        # are about.
        prepared = self.staged.get(quarantine_name(stage.name))
        quarantined = prepared.rows if prepared is not None else 0
        released_count = 0
        stays = Counter[str]()
        if released is not None:
            quarantined -= released.selected
            released_count += released.released
            stays.update(released.stays)
        if in_place is not None:
            quarantined -= in_place.released.released
            released_count += in_place.released.released
            stays.update(in_place.released.stays)
        broken = [
            RecordedRule(rule=rule.rule, policy=rule.policy, severity=rule.severity, rows=rule.rows, why=rule.why)
            for rule in judgement.broken
        ]
        names_no_rows = (
            judgement.split is None
            and judgement.quarantined is None
            and any(rule.policy == "quarantine" for rule in broken)
        )
        outcome, why = _outcome(judgement.broken), judgement.why
        if outcome == "abort":
            pass  # its rules have the reason
        elif any(rule.was_held for rule in judgement.broken):
            if quarantined == judgement.rows:
                what = "all of it"
            else:
                what = "the rows that break its rules"
            outcome, why = "quarantine", f"it would be held again, but a user chose to quarantine {what}"
        elif quarantined > exact_share(gate.at_most, judgement.rows):
            most = f"{100 * gate.at_most:.4g} %"
            outcome, why = "abort", f"{quarantined:,} of {judgement.rows:,} rows are bad, and at most {most} may be"
        elif names_no_rows:
            outcome, why = "abort", "the gate says quarantine, but not which rows"
        elif outcome != "hold" and quarantined:
            outcome = "quarantine"
        if outcome == "abort":
            why = "; ".join(filter(None, (why, self._describe_input(stage))))
        return Verdict(
            outcome=outcome,  # type: ignore[arg-type]
            rows=judgement.rows,
            quarantined=quarantined,
            released=released_count,
            stays=dict(stays),
            behind=self._late_sensitive_operators(stage),
            hold=gate.hold_record if outcome == "hold" else None,
            why=why,
            broken=sorted(broken, key=lambda rule: POLICIES.index(rule.policy))[:RULES_SHOWN],
            policy=gate.describe(),
            results=self.pipeline.ledger.pack(judgement.results, self.pipeline.graph.parts),
        )

    def _describe_input(self, stage: GateNode) -> str:
        """Return the files that the judged rows may be from, for a user who has to correct one.

        These are all of the checkpoint's input upstream of the gate. Spark knows a row's file only while it reads it;
        stages and shuffles lose it.
        """
        inputs = []
        for name in self.pipeline.graph.lineage.sources(stage.input):
            part = self.plan.sources.get(name)
            if part is None or part.empty:
                continue
            files = self.pipeline.graph.sources[name].source.files(self.pipeline.ledger.unpack(part.splits))
            if not files:
                text = part.summary
            elif len(files) <= FILES:
                text = ", ".join(files)
            else:
                text = f"{', '.join([*files[: FILES - 1], '…', files[-1]])} ({len(files):,} files)"
            inputs.append(f"{text} of source {name}")
        if inputs:
            return f"its input is {'; '.join(inputs)}"
        return ""

    def release(self) -> None:
        """Release what is cached in Spark, and remove files that only this attempt needed."""
        for location, folder in self.judged:
            with contextlib.suppress(TidegateError):
                location.remove_folder(folder)
        for frame in self.persisted:
            release(frame)


def _outcome(broken: Sequence[BrokenRule]) -> str:
    """Return the outcome that follows from broken rules, without regard to quarantined rows."""
    policies = {rule.policy for rule in broken}
    for policy in ("abort", "hold"):
        if policy in policies:
            return policy
    return "warn" if broken else "pass"


def _hash_of(judgement: Judgement, frame: DataFrame) -> str:
    """Return the hash of the judged rows, which an approval refers to. "" if they cannot be hashed.

    A backfill that gets the same rows inherits the approval. Without a hash it asks again.
    """
    if judgement.rows_hash:
        return judgement.rows_hash
    judged = judgement.frame if judgement.frame is not None else frame
    with contextlib.suppress(Exception):
        return rows_hash(judged.select(*frame.columns))
    return ""


def _quarantine_all(judgement: Judgement, frame: DataFrame) -> Judgement:
    """Quarantine all rows: the bad ones, and all others because of the rules that hold the checkpoint."""
    from pyspark.sql import functions as f

    holding_rules = [rule.rule for rule in judgement.broken if rule.policy == "hold"]
    good, bad = judgement.split or (frame, None)
    quarantined = good.withColumn(Judgement.RULES, f.array(*map(f.lit, holding_rules)))
    if bad is not None:
        quarantined = quarantined.unionByName(bad)
    broken = []
    for rule in judgement.broken:
        broken.append(replace(rule, policy="quarantine", was_held=True) if rule.policy == "hold" else rule)
    return replace(judgement, broken=tuple(broken), split=(empty_like(good), quarantined))


def without_marks(stage: GateNode, frame: DataFrame) -> DataFrame:
    """Return the judged rows without the columns that an operator has added for the gate."""
    if stage.gate.marks:
        return frame.drop(*stage.gate.marks)
    return frame


def refuse_reserved_columns(stage: GateNode, columns: Sequence[str]) -> None:
    """Raise Invalid if the input has columns with names that tidegate adds while judging or in quarantine."""
    clashing = sorted(name for name in columns if name.casefold().startswith(OWN_PREFIX))
    if clashing:
        raise Invalid(
            f"gate {stage.name!r}: stream {stage.input!r} has column {', '.join(clashing)}",
            expected=f"columns that do not begin with {OWN_PREFIX}: quarantine adds some of these names",
            help="rename them in the stage before",
            reason="BAD_OUTPUT",
        )
