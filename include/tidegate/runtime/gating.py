"""Run the gates of a job: judge, set bad rows aside, and keep the verdicts for the ack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.gates.base import GateContext, Judgement
from tidegate.gates.quarantine import CHECKPOINT, ID, STREAM, quarantine_name, with_origin
from tidegate.model.records import BrokenRule, Verdict
from tidegate.pipeline.gated import Gated
from tidegate.sinks.base import Prepared, Staging
from tidegate.state.kept import keep, let_go

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Gating"]

TOLD = 100
"""So many broken rules are told in a verdict itself; all are in its results."""


class Gating:
    """The gates' side of one attempt."""

    def __init__(self, coordinator: Coordinator, staging: Staging) -> None:
        self.coordinator = coordinator
        self.staging = staging
        self.verdicts: dict[str, Verdict] = {}
        self.staged: dict[str, Prepared] = {}
        """What goes into quarantine, by the tables' names."""
        self.kept: list[DataFrame] = []

    @property
    def aborts(self) -> bool:
        """Whether the checkpoint cannot be completed any more, so that there is nothing to stage for it."""
        return any(verdict.outcome == "abort" for verdict in self.verdicts.values())

    def run(self, stage: Gated, frame: DataFrame) -> DataFrame:
        """The rows that pass. They are computed once: what is judged is what is staged, whatever the stages do."""
        _refuse_own_columns(stage, frame)
        frame = keep(frame)
        self.kept.append(frame)
        seams.fault("S5.gate.before")
        context = GateContext(self.coordinator.graph.name, stage.name, self.coordinator.place, self.staging.checkpoint)
        judgement = stage.gate.judge(frame, context)
        good, bad = judgement.split or (frame, None)
        if stage.gate.quarantines and (bad is not None or self.staging.interval is not None):
            self._set_aside(stage, bad, frame)
        self.verdicts[stage.name] = self._verdict(stage, judgement)
        seams.fault("S5.gate.after")
        return good

    def _set_aside(self, stage: Gated, bad: DataFrame | None, frame: DataFrame) -> None:
        from pyspark.sql import functions as f

        if bad is None:  # an interval that is made again replaces what it has set aside before, also by nothing
            bad = frame.where("false").withColumn(Judgement.RULES, f.array().cast("array<string>"))
        rows = with_origin(bad, self.staging.checkpoint, stage.input)
        for name, sink in stage.quarantine.items():
            self.staged[name] = sink.prepare(rows, self.coordinator.context(name), self.staging)

    def _verdict(self, stage: Gated, judgement: Judgement) -> Verdict:
        gate = stage.gate
        prepared = self.staged.get(quarantine_name(stage.name))
        aside = prepared.rows if prepared is not None else 0
        broken = [
            BrokenRule(rule=each.rule, policy=each.policy, severity=each.severity, rows=each.rows, why=each.why)
            for each in judgement.broken
        ]
        unsplit = judgement.split is None and any(each.policy == "quarantine" for each in broken)
        outcome, why = "pass", ""
        if any(each.policy == "abort" for each in broken):
            outcome = "abort"
        elif aside > gate.at_most * judgement.rows:
            outcome, why = "abort", f"{aside} of {judgement.rows} rows are bad, at most {gate.at_most:.4g} may be"
        elif unsplit:
            outcome, why = "abort", "the gate says quarantine, but not which rows"
        elif aside:
            outcome = "quarantine"
        elif broken:
            outcome = "warn"
        return Verdict(
            outcome=outcome,  # type: ignore[arg-type]
            rows=judgement.rows,
            quarantined=aside,
            why=why,
            broken=sorted(broken, key=lambda each: _WORST.index(each.policy))[:TOLD],
            policy=gate.describe(),
            results=self.coordinator.ledger.pack(judgement.results),
        )

    def let_go(self) -> None:
        """Free what was kept in Spark."""
        for frame in self.kept:
            let_go(frame)


_WORST = ("abort", "quarantine", "warn")


def _refuse_own_columns(stage: Gated, frame: DataFrame) -> None:
    """Columns that quarantine adds."""
    taken = sorted({ID, CHECKPOINT, STREAM, Judgement.RULES}.intersection(frame.columns))
    if taken:
        raise Invalid(
            f"gate {stage.name!r}: stream {stage.input!r} has column {', '.join(taken)}",
            expected="columns that do not begin with _tidegate_: quarantine adds some of these names",
            help="rename them in the stage before",
            reason="BAD_OUTPUT",
        )
