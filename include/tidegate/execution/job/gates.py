"""Runs the gates of a job: they judge, set bad rows aside, let released ones back in; keeps the verdicts for the
ack."""

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
from tidegate.connectors.prestaged import PrestagedRows
from tidegate.connectors.sink import Prepared, SinkContext, Staging
from tidegate.connectors.source import SourceContext
from tidegate.coordinator import Coordinator
from tidegate.delta import Location
from tidegate.errors import Invalid, TidegateError
from tidegate.execution.job.exchange import BaseMemory
from tidegate.execution.job.stages import rows_after_gate
from tidegate.execution.job.watermarks import EventTimes
from tidegate.gates.base import POLICIES, BrokenRule, GateContext, Judgement, exact_share, memory_key
from tidegate.gates.quarantine.columns import CHECKPOINT, OWN_PREFIX
from tidegate.gates.quarantine.returning import LateLimit, ReleasedInPlace, ReleasedRows
from tidegate.gates.quarantine.table import IN_PLACE, REPEATED, QuarantineSink, quarantine_name
from tidegate.pipeline.graph.graph import Graph, SinkNode
from tidegate.pipeline.graph.late_sensitive import find_late_sensitive_operators
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.records import typed
from tidegate.records.records import Json, LateBehind, Plan, RecordedRule, Request, Verdict
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.materialize import materialize, release
from tidegate.spark.row_id import rows_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

__all__ = ["GateRunner", "refuse_reserved_columns", "returning", "warm_gates"]


def returning(
    coordinator: Coordinator,
    plan: Plan,
    name: str,
    sink: QuarantineSink,
    spark: SparkSession,
    fields: Sequence[StructField] = (),
    takers: Sequence[LateLimit] = (),
) -> ReleasedRows | None:
    """Return the rows that the plan releases from a quarantine of this name; None: it lets out others, in place.

    fields: the columns of the gate's stream. takers: the operators behind it that take no late rows.
    """
    ledger = coordinator.ledger
    splits = ledger.unpack(plan.sources[name].splits)
    requests = [typed.convert(request, Request) for request in splits["requests"]]
    if not requests:
        return None
    context = SourceContext(coordinator.graph.name, name, coordinator.place, ledger)
    source = sink.source(ledger.home)
    source.verify(splits["table"], context)
    rows = source.read(spark, splits["table"], context)
    repeated = splits.get(REPEATED)
    if repeated is None:
        return sink.returning(rows, requests, plan.id, fields, takers)
    live = sink.source(repeated["home"])
    live.verify(repeated["table"], context)
    asked = sink.returning(live.read(spark, repeated["table"], context), requests, plan.id)
    return sink.select_released_again(rows, asked, repeated["since"], fields, takers)


def _read_rows_to_let_out(
    coordinator: Coordinator, plan: Plan, name: str, sink: QuarantineSink, spark: SparkSession
) -> tuple[ReleasedRows, int] | None:
    """Return the rows that the pipeline's checkpoint has held back which a line's plan repeats, as far as the line is
    to let them out there; and the number of that checkpoint. None: none."""
    splits = coordinator.ledger.unpack(plan.sources[name].splits)
    if IN_PLACE not in splits:
        return None
    asked = splits[IN_PLACE]
    context = SourceContext(coordinator.graph.name, name, coordinator.place, coordinator.ledger)
    live = sink.source(asked["home"])
    live.verify(asked["table"], context)
    rows = live.read(spark, asked["table"], context)
    requests = [typed.convert(request, Request) for request in asked["requests"]]
    return sink.returning(rows.where(f"{CHECKPOINT} = {asked['checkpoint']}"), requests, plan.id), asked["checkpoint"]


RULES_SHOWN = 100
"""The number of broken rules in a verdict itself; its results have all of them."""

FILES = 5
"""The number of files that are named of each source whose rows a gate rejects."""

_warming: list[threading.Thread] = []


def warm_gates(graph: Graph) -> None:
    """Let the gates do slow preparations, such as importing Great Expectations, in parallel with Spark's work."""

    def warm() -> None:
        for gated in graph.gates:
            with contextlib.suppress(Exception):  # it is told when the gate judges
                gated.gate.warm_up()

    if graph.gates and not any(thread.is_alive() for thread in _warming):
        _import_spark()
        _warming[:] = [threading.Thread(target=warm, daemon=True, name="warm-gates")]
        _warming[0].start()


def _import_spark() -> None:
    """Import what Great Expectations imports of Spark, before a thread does that beside this one.

    Two threads that import parts of one package at the same time may each find half of it: Python raises KeyError, or
    Great Expectations takes Spark for missing.
    """
    with contextlib.suppress(ImportError):  # a part that is not installed is missing for both
        import pyspark.ml.feature
        import pyspark.sql.connect.session  # noqa: F401


class GateRunner:
    """The gates' side of one attempt."""

    def __init__(
        self,
        coordinator: Coordinator,
        plan: Plan,
        staging: Staging,
        prev: BaseMemory | None,
        held_rows: Callable[[str, DataFrame], DataFrame | None],
        event_times: EventTimes,
    ) -> None:
        """held_rows: returns the rows that an operator holds for some keys, as of the base."""
        self.coordinator = coordinator
        self.held = held_rows
        self.event_times = event_times
        self.plan = plan
        self.staging = staging
        self.before: Mapping[str, Json] = prev.memory if prev is not None else {}
        self.verdicts: dict[str, Verdict] = {}
        self.staged: dict[str, Prepared] = {}
        """The rows for quarantine, by the tables' names."""
        self.memory: dict[str, Json] = {}
        self.ahead: dict[str, PrestagedRows] = {}
        """Rows that are staged already, by their stream."""
        self.persisted: list[DataFrame] = []
        self.small = False
        """Whether the job has little input."""
        self.judged: list[tuple[Location, str]] = []
        """Folders with rows that were judged in files, and are read from there."""

    @property
    def aborts(self) -> bool:
        """True if the checkpoint cannot be completed any more, so that nothing need be staged for it."""
        return any(verdict.outcome == "abort" for verdict in self.verdicts.values())

    def run(self, stage: GateNode, frame: DataFrame, table: SinkNode | None = None) -> DataFrame:
        """Return the rows that pass. They are computed once, so exactly the judged rows are staged, whatever the stages
        do.

        table: the only one who takes them. They may be staged for it before they are judged (`ahead`).
        """
        if stage.gate.quarantines:
            refuse_reserved_columns(stage, frame.columns)
        warming = any(thread.is_alive() for thread in _warming)
        if warming or not stage.gate.persists:
            frame = materialize(frame)
            self.persisted.append(frame)
        if warming:
            frame.count()  # so Spark computes the rows meanwhile
        seams.fault("S5.gate.before")
        judgement = stage.gate.judge(frame, self._context(stage, table))
        self.persisted += judgement.persisted
        if judgement.prestaged is not None:
            return self._judge_prestaged(stage, judgement, judgement.prestaged)
        frame = judgement.frame if judgement.frame is not None else frame
        chosen = self.plan.quarantine_all and stage.gate.quarantines and _outcome(judgement.broken) == "hold"
        judgement = _quarantine_all(judgement, frame) if chosen else judgement
        good, bad = judgement.split or (frame, None)
        released = self._released_rows(stage, frame)
        in_place = self._in_place(stage, bad, frame) if bad is not None else None
        if stage.gate.quarantines and (bad is not None or released is not None or self.staging.interval is not None):
            self._quarantine(stage, bad, frame, released, in_place)
        verdict = self._verdict(stage, judgement, released, in_place, chosen=chosen)
        if verdict.outcome == "hold":
            verdict = msgspec.structs.replace(verdict, rows_hash=_hash_of(judgement, frame))
        self.verdicts[stage.name] = verdict
        # Rows that were quarantined as a whole do not update the gate's memory, nor do rejected ones.
        self._remember(stage, self.before.get(memory_key(stage.name), {}) if chosen else judgement.memory)
        seams.fault("S5.gate.after")
        for rows in (released, in_place.released if in_place is not None else None):
            good = rows.joined(good) if rows is not None else good
        return good

    def _judge_prestaged(self, stage: GateNode, judgement: Judgement, ahead: PrestagedRows) -> DataFrame:
        """Return the rows that pass of staged rows: the bad ones are removed from the files, which then hold those that
        pass."""
        for name, sink in stage.quarantine.items() if judgement.quarantined is not None else ():
            schema = msgspec.json.decode(ahead.frame.schema.json())
            context = self.coordinator.context(name)
            self.staged[name] = sink.prepare_in_process(
                judgement.quarantined or (), schema, stage.input, context, self.staging
            )
        self.verdicts[stage.name] = self._verdict(stage, judgement, None, None, chosen=False)
        self._remember(stage, judgement.memory)
        seams.fault("S5.gate.after")
        if not ahead.for_table:
            return ahead.passed()
        self.ahead[stage.name] = ahead
        return ahead.frame

    def _remember(self, stage: GateNode, memory: Json) -> None:
        """Replace a gate's memory for the next checkpoint, also by nothing."""
        if memory or memory_key(stage.name) in self.before:
            self.memory[memory_key(stage.name)] = memory

    def _staging_for(self, stage: GateNode, table: SinkNode | None) -> Callable[..., PrestagedRows | None] | None:
        """Return how a gate may have its rows staged. None: others join those that pass, or all may be quarantined."""
        if self._released_from(stage) or self.plan.quarantine_all:
            return None
        if table is not None:
            context = self.coordinator.context(table.name)
            return self._capturing_event_time(
                stage, partial(table.sink.prestage, context=context, staging=self.staging)
            )
        for name, sink in stage.quarantine.items() if self.staging.interval is None else ():
            return self._capturing_event_time(stage, partial(self._stage_judged, sink, self.coordinator.context(name)))
        return None

    def _capturing_event_time(
        self, stage: GateNode, staging: Callable[..., PrestagedRows | None]
    ) -> Callable[..., PrestagedRows | None]:
        """Let the rows be staged as `staging` does. If they are all that a source has, find its highest event time:
        Spark need not read the source once more."""

        def staged(*args: Any, **kwargs: Any) -> PrestagedRows | None:
            rows = staging(*args, **kwargs)
            if rows is not None and self.event_times.needs_rows(stage.input):
                with contextlib.suppress(Exception):  # else a query finds it, or tells what is wrong
                    self._capture_event_time(stage.input, rows)
            return rows

        return staged

    def _capture_event_time(self, source: str, rows: PrestagedRows) -> None:
        column = self.coordinator.graph.sources[source].event_time
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
        """Stage rows beside a gate's quarantine, in a folder that goes with this attempt."""
        self.judged.append((sink.staging_folder(context), sink.judged_folder(context, self.staging)))
        return sink.stage_judged(frame, beside, context, self.staging, plainly=self.small, draft=draft)

    def _context(self, stage: GateNode, table: SinkNode | None) -> GateContext:
        graph, place, ledger = self.coordinator.graph, self.coordinator.place, self.coordinator.ledger
        payload = self.plan.fixed_inputs.get(stage.name)
        source_context = SourceContext(graph.name, stage.name, place, ledger)
        return GateContext(
            pipeline=graph.name,
            gate=stage.name,
            place=place,
            checkpoint=self.staging.checkpoint,
            clock=self.plan.time,
            memory=self.before.get(memory_key(stage.name), {}),
            cut_freely=self.coordinator.cuts_freely,
            planned_inputs=(ledger.unpack(payload), source_context) if payload is not None else None,
            stage=self._staging_for(stage, table),
            lookup_operator_rows=partial(self.held, stage.gate.against) if stage.gate.against is not None else None,
        )

    def _released_rows(self, stage: GateNode, frame: DataFrame) -> ReleasedRows | None:
        """Return the rows released from its quarantine."""
        for name, sink in self._released_from(stage).items():
            takers = self._takers(stage)
            fields = frame.schema.fields if takers else ()
            released = returning(self.coordinator, self.plan, name, sink, frame.sparkSession, fields, takers)
            if released is not None:
                self.persisted.append(released.rows)
                return released
        return None

    def _in_place(self, stage: GateNode, bad: DataFrame, frame: DataFrame) -> ReleasedInPlace | None:
        """Return which bad rows a line lets out where the pipeline has held them back. None: none are asked for."""
        for name, sink in self._released_from(stage).items():
            found = _read_rows_to_let_out(self.coordinator, self.plan, name, sink, frame.sparkSession)
            if found is None:
                continue
            asked, checkpoint = found
            fields, takers = frame.schema.fields, self._takers(stage)
            in_place = sink.released_in_place(bad, self.staging, stage.input, asked, checkpoint - 1, fields, takers)
            self.persisted += [asked.rows, in_place.all, in_place.released.rows]
            return in_place
        return None

    def _takers(self, stage: GateNode) -> list[LateLimit]:
        return [self._takes_until(stage, each) for each in self._late_sensitive_operators(stage)]

    def _takes_until(self, stage: GateNode, behind: LateBehind) -> LateLimit:
        there = partial(rows_after_gate, self.coordinator.graph, stage.name, behind.stream) if behind.stages else None
        return LateLimit(behind, self.event_times.watermark_at_base(behind.operator), there)

    def _released_from(self, stage: GateNode) -> dict[str, QuarantineSink]:
        """Return a gate's quarantine, if the plan releases or discards rows of it."""
        parts = {name: self.plan.sources.get(name) for name in stage.quarantine}
        return {name: stage.quarantine[name] for name, part in parts.items() if part is not None and not part.empty}

    def _late_sensitive_operators(self, stage: GateNode) -> list[LateBehind]:
        """Return the operators behind a gate that take no late rows, if it sets rows aside that may be released."""
        return find_late_sensitive_operators(self.coordinator.graph, stage.name) if stage.quarantine else []

    def _quarantine(
        self,
        stage: GateNode,
        bad: DataFrame | None,
        frame: DataFrame,
        released: ReleasedRows | None,
        in_place: ReleasedInPlace | None,
    ) -> None:
        for name, sink in stage.quarantine.items():
            context = self.coordinator.context(name)
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
        *,
        chosen: bool,
    ) -> Verdict:
        gate = stage.gate
        prepared = self.staged.get(quarantine_name(stage.name))
        set_aside = (prepared.rows if prepared is not None else 0) - (released.selected if released is not None else 0)
        back = [rows for rows in (released, in_place.released if in_place is not None else None) if rows is not None]
        set_aside -= in_place.released.released if in_place is not None else 0
        broken = [
            RecordedRule(rule=rule.rule, policy=rule.policy, severity=rule.severity, rows=rule.rows, why=rule.why)
            for rule in judgement.broken
        ]
        unsplit = (
            judgement.split is None
            and judgement.quarantined is None
            and any(rule.policy == "quarantine" for rule in broken)
        )
        outcome, why = _outcome(judgement.broken), judgement.why
        if outcome == "abort":
            pass  # its rules say why
        elif chosen:
            outcome, why = "quarantine", "it would be held again: somebody chose to quarantine all of it"
        elif set_aside > exact_share(gate.at_most, judgement.rows):
            most = f"{100 * gate.at_most:.4g} %"
            outcome, why = "abort", f"{set_aside:,} of {judgement.rows:,} rows are bad, and at most {most} may be"
        elif unsplit:
            outcome, why = "abort", "the gate says quarantine, but not which rows"
        elif outcome != "hold" and set_aside:
            outcome = "quarantine"
        if outcome == "abort":
            why = "; ".join(filter(None, (why, self._input(stage))))
        return Verdict(
            outcome=outcome,  # type: ignore[arg-type]
            rows=judgement.rows,
            quarantined=set_aside,
            released=sum(rows.released for rows in back),
            stays=dict(sum((Counter(rows.stays) for rows in back), Counter[str]())),
            behind=self._late_sensitive_operators(stage),
            hold=gate.hold_record if outcome == "hold" else None,
            why=why,
            broken=sorted(broken, key=lambda rule: POLICIES.index(rule.policy))[:RULES_SHOWN],
            policy=gate.describe(),
            results=self.coordinator.ledger.pack(judgement.results, self.coordinator.graph.parts),
        )

    def _input(self, stage: GateNode) -> str:
        """Return the files that the rows may come from, for the user who has to correct one: the checkpoint's input
        that leads to the gate. Only Spark could say which of several files a row is from, and only while it reads them:
        stages and shuffles lose that."""
        inputs = []
        for name in self.coordinator.graph.lineage.sources(stage.input):
            part = self.plan.sources.get(name)
            if part is None or part.empty:
                continue
            files = self.coordinator.graph.sources[name].source.files(self.coordinator.ledger.unpack(part.splits))
            listed = files if len(files) <= FILES else [*files[: FILES - 1], "…", files[-1]]
            several = f" ({len(files):,} files)" if len(files) > FILES else ""
            inputs.append(f"{', '.join(listed) or part.summary}{several} of source {name}")
        return f"its input is {'; '.join(inputs)}" if inputs else ""

    def release(self) -> None:
        """Release what is cached in Spark, and remove files that only this attempt needed."""
        for location, folder in self.judged:
            with contextlib.suppress(TidegateError):
                location.remove_folder(folder)
        for frame in self.persisted:
            release(frame)


def _outcome(broken: Sequence[BrokenRule]) -> str:
    """Return the outcome that follows from broken rules, apart from rows that are quarantined."""
    policies = {rule.policy for rule in broken}
    return "abort" if "abort" in policies else "hold" if "hold" in policies else "warn" if broken else "pass"


def _hash_of(judgement: Judgement, frame: DataFrame) -> str:
    """Return the hash of the judged rows, so that an approval of them is one of no others. Without it, a backfill asks
    again."""
    if judgement.rows_hash:
        return judgement.rows_hash
    with contextlib.suppress(Exception):  # of rows that cannot be hashed nobody can say that they are the same
        return rows_hash((judgement.frame if judgement.frame is not None else frame).select(*frame.columns))
    return ""


def _quarantine_all(judgement: Judgement, frame: DataFrame) -> Judgement:
    """Set all rows aside: bad ones, and the others, because nobody can say why they are held."""
    from pyspark.sql import functions as f

    holding = [rule.rule for rule in judgement.broken if rule.policy == "hold"]
    good, bad = judgement.split or (frame, None)
    set_aside = good.withColumn(Judgement.RULES, f.array(*map(f.lit, holding)))
    broken = tuple(replace(rule, policy="quarantine") if rule.policy == "hold" else rule for rule in judgement.broken)
    return replace(
        judgement, broken=broken, split=(empty_like(good), set_aside if bad is None else set_aside.unionByName(bad))
    )


def refuse_reserved_columns(stage: GateNode, columns: Sequence[str]) -> None:
    """Raise Invalid if the input has columns called like those that quarantine, or the gate as it judges, adds."""
    clashing = sorted(name for name in columns if name.casefold().startswith(OWN_PREFIX))
    if clashing:
        raise Invalid(
            f"gate {stage.name!r}: stream {stage.input!r} has column {', '.join(clashing)}",
            expected=f"columns that do not begin with {OWN_PREFIX}: quarantine adds some of these names",
            help="rename them in the stage before",
            reason="BAD_OUTPUT",
        )
