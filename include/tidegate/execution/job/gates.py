"""Run the gates of a job: judge, set bad rows aside, let others back in, and keep the verdicts for the ack."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.execution.job.exchange import Remembered
from tidegate.gates.base import BrokenRule as Broken
from tidegate.gates.base import GateContext, Judgement, exact_share
from tidegate.gates.quarantine.columns import OWN_COLUMNS
from tidegate.gates.quarantine.returning import ReleasedRows
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name
from tidegate.pipeline.graph.gated import GateNode
from tidegate.pipeline.graph.graph import Graph, SinkNode
from tidegate.records.records import Json, Plan, RecordedRule, Request, Verdict
from tidegate.sinks.base import Prepared, Staging
from tidegate.sinks.prestaged import PrestagedRows
from tidegate.sources.base import SourceContext
from tidegate.spark.empty import empty_like
from tidegate.spark.materialize import materialize, release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.gates.quarantine.returning import ReleasedRows

__all__ = ["GateRunner", "returning", "warm_gates"]


def returning(
    coordinator: Coordinator, plan: Plan, name: str, sink: QuarantineSink, spark: SparkSession
) -> ReleasedRows | None:
    """What the plan says is to come back from a quarantine of this name; None: nothing."""
    part = plan.sources.get(name)
    if part is None or part.empty:
        return None
    ledger = coordinator.ledger
    splits = ledger.unpack(part.splits)
    requests = [msgspec.convert(each, Request) for each in splits["requests"]]
    context = SourceContext(coordinator.graph.name, name, coordinator.place, ledger)
    source = sink.source(ledger.home)
    source.verify(splits["table"], context)
    return sink.returning(source.read(spark, splits["table"], context), requests, plan.id)


TOLD = 100
"""So many broken rules are told in a verdict itself; all are in its results."""

FILES = 5
"""So many files are named of each source whose rows a gate does not let pass."""

_WORST = ("abort", "hold", "quarantine", "warn")


_warming: list[threading.Thread] = []


def warm_gates(graph: Graph) -> None:
    """Let the gates do beforehand what takes long, such as importing Great Expectations: beside Spark's work."""

    def warm() -> None:
        for gated in graph.gates:
            with contextlib.suppress(Exception):  # it is told when the gate judges
                gated.gate.warm()

    if graph.gates and not any(thread.is_alive() for thread in _warming):
        _warming[:] = [threading.Thread(target=warm, daemon=True, name="warm-gates")]
        _warming[0].start()


class GateRunner:
    """The gates' side of one attempt."""

    def __init__(
        self,
        coordinator: Coordinator,
        plan: Plan,
        staging: Staging,
        prev: Remembered | None,
        held: Callable[[str, DataFrame], DataFrame | None],
    ) -> None:
        """held: what an operator holds of some keys, as of the base."""
        self.coordinator = coordinator
        self.held = held
        self.plan = plan
        self.staging = staging
        self.before: Mapping[str, Json] = prev.memory if prev is not None else {}
        self.verdicts: dict[str, Verdict] = {}
        self.staged: dict[str, Prepared] = {}
        """What goes into quarantine, by the tables' names."""
        self.memory: dict[str, Json] = {}
        self.ahead: dict[str, PrestagedRows] = {}
        """Rows that are staged already, by the streams that they are."""
        self.kept: list[DataFrame] = []

    @property
    def aborts(self) -> bool:
        """Whether the checkpoint cannot be completed any more, so that there is nothing to stage for it."""
        return any(verdict.outcome == "abort" for verdict in self.verdicts.values())

    def run(self, stage: GateNode, frame: DataFrame, table: SinkNode | None = None) -> DataFrame:
        """The rows that pass. They are computed once: what is judged is what is staged, whatever the stages do.

        table: the only one who takes them. They may be staged for it before they are judged (`ahead`).
        """
        if stage.gate.quarantines:
            _refuse_own_columns(stage, frame.columns)
        warming = any(thread.is_alive() for thread in _warming)
        if warming or not stage.gate.keeps:
            frame = materialize(frame)
            self.kept.append(frame)
        if warming:
            frame.count()  # so Spark computes the rows meanwhile
        seams.fault("S5.gate.before")
        judgement = stage.gate.judge(frame, self._context(stage, table))
        self.kept += judgement.kept
        if judgement.ahead is not None:
            return self._pass_ahead(stage, judgement, judgement.ahead)
        frame = judgement.frame if judgement.frame is not None else frame
        chosen = self.plan.set_aside and stage.gate.quarantines and _outcome(judgement.broken) == "hold"
        judgement = _all_aside(judgement, frame) if chosen else judgement
        good, bad = judgement.split or (frame, None)
        back = self._back(stage, frame)
        if stage.gate.quarantines and (bad is not None or back is not None or self.staging.interval is not None):
            self._set_aside(stage, bad, frame, back)
        self.verdicts[stage.name] = self._verdict(stage, judgement, back, chosen=chosen)
        # What is set aside as a whole is not gone by later, as what was rejected is not.
        self._remember(stage, self.before.get(_remembered(stage), {}) if chosen else judgement.memory)
        seams.fault("S5.gate.after")
        return back.joined(good) if back is not None else good

    def _pass_ahead(self, stage: GateNode, judgement: Judgement, ahead: PrestagedRows) -> DataFrame:
        """The same of rows that are staged: the bad ones are taken out of the files, which hold those that pass."""
        for name, sink in stage.quarantine.items() if judgement.apart is not None else ():
            schema = msgspec.json.decode(ahead.frame.schema.json())
            context = self.coordinator.context(name)
            self.staged[name] = sink.prepare_apart(judgement.apart or (), schema, stage.input, context, self.staging)
        self.verdicts[stage.name] = self._verdict(stage, judgement, None, chosen=False)
        self._remember(stage, judgement.memory)
        self.ahead[stage.name] = ahead
        seams.fault("S5.gate.after")
        return ahead.frame

    def _remember(self, stage: GateNode, memory: Json) -> None:
        """What a gate wants to know next time, in place of what it wanted before: also if that is nothing any more."""
        if memory or _remembered(stage) in self.before:
            self.memory[_remembered(stage)] = memory

    def _staging_for(self, stage: GateNode, table: SinkNode | None) -> Callable[..., PrestagedRows | None] | None:
        """How a gate may have its rows staged: not if others join those that pass, or all of them may be set aside."""
        returning = any(not part.empty for name, part in self.plan.sources.items() if name in stage.quarantine)
        if table is None or returning or self.plan.set_aside:
            return None
        return partial(table.sink.ahead, context=self.coordinator.context(table.name), staging=self.staging)

    def _context(self, stage: GateNode, table: SinkNode | None) -> GateContext:
        graph, place, ledger = self.coordinator.graph, self.coordinator.place, self.coordinator.ledger
        payload = self.plan.pins.get(stage.name)
        where = SourceContext(graph.name, stage.name, place, ledger)
        return GateContext(
            pipeline=graph.name,
            gate=stage.name,
            place=place,
            checkpoint=self.staging.checkpoint,
            clock=self.plan.created,
            memory=self.before.get(_remembered(stage), {}),
            pinned=(ledger.unpack(payload), where) if payload is not None else None,
            stage=self._staging_for(stage, table),
            held=partial(self.held, stage.gate.against) if stage.gate.against is not None else None,
        )

    def _back(self, stage: GateNode, frame: DataFrame) -> ReleasedRows | None:
        """What comes back from its quarantine."""
        for name, sink in stage.quarantine.items():
            back = returning(self.coordinator, self.plan, name, sink, frame.sparkSession)
            if back is not None:
                self.kept.append(back.rows)
                return back
        return None

    def _set_aside(self, stage: GateNode, bad: DataFrame | None, frame: DataFrame, back: ReleasedRows | None) -> None:
        for name, sink in stage.quarantine.items():
            context = self.coordinator.context(name)
            rows = sink.rows(bad, frame, self.staging, stage.input, back)
            prepare = sink.prepare if back is None else sink.prepare_marked
            self.staged[name] = prepare(rows, context, self.staging)

    def _verdict(self, stage: GateNode, judgement: Judgement, back: ReleasedRows | None, *, chosen: bool) -> Verdict:
        gate = stage.gate
        prepared = self.staged.get(quarantine_name(stage.name))
        aside = (prepared.rows if prepared is not None else 0) - (back.settled if back is not None else 0)
        broken = [
            RecordedRule(rule=each.rule, policy=each.policy, severity=each.severity, rows=each.rows, why=each.why)
            for each in judgement.broken
        ]
        unsplit = (
            judgement.split is None and judgement.apart is None and any(each.policy == "quarantine" for each in broken)
        )
        outcome, why = _outcome(judgement.broken), ""
        if outcome == "abort":
            pass  # its rules say why
        elif chosen:
            outcome, why = "quarantine", "it would be held again: somebody chose to set all of it aside"
        elif aside > exact_share(gate.at_most, judgement.rows):
            outcome, why = "abort", f"{aside} of {judgement.rows} rows are bad, at most {gate.at_most:.4g} may be"
        elif unsplit:
            outcome, why = "abort", "the gate says quarantine, but not which rows"
        elif outcome != "hold" and aside:
            outcome = "quarantine"
        if outcome == "abort":
            why = "; ".join(filter(None, (why, self._input(stage))))
        return Verdict(
            outcome=outcome,  # type: ignore[arg-type]
            rows=judgement.rows,
            quarantined=aside,
            released=back.released if back is not None else 0,
            hold=gate.hold_record if outcome == "hold" else None,
            why=why,
            broken=sorted(broken, key=lambda each: _WORST.index(each.policy))[:TOLD],
            policy=gate.describe(),
            results=self.coordinator.ledger.pack(judgement.results, self.coordinator.graph.parts),
        )

    def _input(self, stage: GateNode) -> str:
        """Which files the rows may come from, for whoever has to correct one: the checkpoint's input that leads to the
        gate. Which of several it is, only Spark could tell, where it reads them: stages and shuffles forget it."""
        told = []
        for name in self.coordinator.graph.lineage.sources(stage.input):
            part = self.plan.sources.get(name)
            if part is None or part.empty:
                continue
            files = self.coordinator.graph.sources[name].source.files(self.coordinator.ledger.unpack(part.splits))
            shown = files if len(files) <= FILES else [*files[: FILES - 1], "…", files[-1]]
            several = f" ({len(files):,} files)" if len(files) > FILES else ""
            told.append(f"{', '.join(shown) or part.summary}{several} of source {name}")
        return f"its input is {'; '.join(told)}" if told else ""

    def let_go(self) -> None:
        """Free what was kept in Spark."""
        for frame in self.kept:
            release(frame)


def _outcome(broken: Sequence[Broken]) -> str:
    """What follows from rules that are broken, but for what is set aside."""
    policies = {each.policy for each in broken}
    return "abort" if "abort" in policies else "hold" if "hold" in policies else "warn" if broken else "pass"


def _all_aside(judgement: Judgement, frame: DataFrame) -> Judgement:
    """Nothing goes on: neither the rows that are bad, nor the others, of which nobody can tell why they are held."""
    from pyspark.sql import functions as f

    held = [each.rule for each in judgement.broken if each.policy == "hold"]
    good, bad = judgement.split or (frame, None)
    aside = good.withColumn(Judgement.RULES, f.array(*map(f.lit, held)))
    broken = tuple(replace(each, policy="quarantine") if each.policy == "hold" else each for each in judgement.broken)
    return replace(judgement, broken=broken, split=(empty_like(good), aside if bad is None else aside.unionByName(bad)))


def _remembered(stage: GateNode) -> str:
    """Under which name an ack keeps what a gate remembers. A dot is in no name that users give."""
    return f"gate.{stage.name}"


def _refuse_own_columns(stage: GateNode, columns: Sequence[str]) -> None:
    """Columns that quarantine adds."""
    taken = sorted(set(OWN_COLUMNS).intersection(columns))
    if taken:
        raise Invalid(
            f"gate {stage.name!r}: stream {stage.input!r} has column {', '.join(taken)}",
            expected="columns that do not begin with _tidegate_: quarantine adds some of these names",
            help="rename them in the stage before",
            reason="BAD_OUTPUT",
        )
