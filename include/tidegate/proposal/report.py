"""The report of a proposal: everything that differs, and what a merge of the code would do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from tidegate.backfill.compare import tables_of
from tidegate.backfill.open_backfill import OpenBackfill, without_shadow
from tidegate.backfill.results import changed_results
from tidegate.checkpoint.compatibility import additions, check
from tidegate.checkpoint.references import acks_of, memory_of
from tidegate.history.query import view_of
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.proposal.code_lines import ChangedLines
from tidegate.proposal.replay import Made, ReplayRange, impossible, lost_manual_edits
from tidegate.proposal.tables import TableDifference, compare_table
from tidegate.protocol.moved_sources import source_changes
from tidegate.records.records import KeySample

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.coordinator import Coordinator
    from tidegate.errors import TidegateError
    from tidegate.history.view import CheckpointView
    from tidegate.protocol.view import Entry

__all__ = [
    "FIGURES",
    "CodeChange",
    "GateChange",
    "GateFindings",
    "Merge",
    "ProposalReport",
    "SinceLast",
    "any_differs",
    "code_change",
    "make_report",
    "predict_merge",
    "refused_report",
]

FIGURES: Mapping[str, str] = {
    "rows_in": "sum",
    "rows_out": "sum",
    "bytes_out": "sum",
    "late": "sum",
    "quarantined": "sum",
    "state_rows": "last",
    "state_bytes": "last",
    "sync_seconds": "sum",
    "task_seconds": "sum",
    "queries": "sum",
}
"""The measures to compare: the sum over all replayed checkpoints, or the value of the last one."""


class CodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline's code."""

    before: str
    """The fingerprint of the code that made the last checkpoint."""
    after: str
    parts: list[str]
    """Sources, sinks, states and hooks that are new or gone."""
    operators: dict[str, list[str]]
    """By operator that is declared differently, the parts of its declaration."""
    results: list[str]
    """Columns that are computed differently, with their types in the tables."""
    lines: list[ChangedLines] = []
    """If a version was named to compare with, the lines that differ, and the tables that they lead to."""


class GateFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of a gate over all replayed checkpoints."""

    judged: int
    quarantined: int
    outcomes: dict[str, int]
    """By outcome, the number of checkpoints."""
    broken: dict[str, int]
    """By rule, the number of rows that broke it, or of checkpoints if the rule is not about rows."""


class GateChange(msgspec.Struct, frozen=True, kw_only=True):
    """A gate before and after. None: the code does not have it."""

    gate: str
    before: GateFindings | None
    after: GateFindings | None

    @property
    def is_worse(self) -> bool:
        """Whether the proposed code breaks a rule that held, or breaks one with more rows."""
        before = self.before.broken if self.before is not None else {}
        after = self.after.broken if self.after is not None else {}
        return any(count > before.get(rule, 0) for rule, count in after.items())


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """What happens if the pipeline gets this code."""

    action: Literal["same", "continues", "differs", "refused"]
    """same: the same rows and states, nothing to do; continues: only new rows are made by the new code, and none of the
    replayed ones differs; differs: new rows are made by the new code, older ones stay as they are until a backfill;
    refused: the pipeline does not continue with it."""
    reasons: list[str]
    backfill: str
    """The command that corrects what is there, or empty."""


class SinceLast(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from the report of an earlier proposal. Each pair is the value there, and the value now."""

    proposal: str
    created: str
    same_code: bool
    same_checkpoints: bool
    """Whether both have replayed the same checkpoints. Otherwise rows may differ for that reason."""
    merge: list[str]
    """What happens if it is merged. Empty: the same."""
    tables: dict[str, dict[str, list[int]]]
    """By table, the counts that are others: rows_before, rows_after, added, removed, changed."""
    gates: list[str]
    """Gates with other verdicts of the proposed code."""
    compares_tables: bool = True
    """False: one of the replays did not reach its end."""

    @property
    def differs(self) -> bool:
        return bool(self.merge or self.tables or self.gates)


class ProposalReport(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal's report."""

    pipeline: str
    begins_after: int
    """The checkpoint after which the replay began; 0: from the beginning."""
    replayed: list[int]
    """The pipeline's checkpoints whose input was replayed."""
    stopped: str
    """Why the replay did not reach the last of them, or empty. Tables are then not compared."""
    code: CodeChange
    merge: Merge
    tables: dict[str, TableDifference]
    unchanged_sinks: list[str]
    """Sinks that are not compared: a replay writes nothing there."""
    manual_edits: list[str]
    """Changes of states by hand in the replayed checkpoints. The replay does not repeat them, so rows may differ."""
    gates: list[GateChange]
    figures: dict[str, list[float | None]]
    """By measure, the value before and after. Empty if the replay has stopped."""
    sample: KeySample | None = None
    """If only rows of some keys were replayed and compared. There are then no verdicts of gates, and no figures."""
    carried: list[str] = []
    """Tables that were not replayed again, because nothing has changed on their path since the last push. If there are
    any, there are no figures."""
    broken_limits: list[str] = []
    since: SinceLast | None = None
    """If a proposal was named to compare with."""

    @property
    def seconds(self) -> tuple[float, float]:
        before, after = self.figures.get("sync_seconds", [None, None])
        return before or 0.0, after or 0.0

    @property
    def differs(self) -> bool:
        return any_differs(self.tables)


def any_differs(tables: Mapping[str, TableDifference]) -> bool:
    """Return whether rows or columns of one of these tables differ."""
    return any(table.differing or table.schema.changed for table in tables.values())


def make_report(
    line: OpenBackfill,
    chosen: ReplayRange,
    made: Made,
    *,
    live: Coordinator,
    command: str,
    examples: int = 0,
    hidden: Collection[str] = (),
) -> ProposalReport:
    """Compare what the line has made with what the pipeline has made of the same input.

    live: the pipeline with all its sinks, of which the line may have only some. hidden: columns, in lower case, whose
    values are not shown.
    """
    tables = {}
    if made.stopped is None:
        tables = {name: compare_table(line, name, examples, hidden) for name in tables_of(line)}
    before = [entry for id in chosen.ids if (entry := live.real_entry(id)) is not None]
    views = [view_of(live.ledger, entry) for entry in before]
    code, is_sample = code_change(live), line.record.sample is not None
    after = [entry for entry, _ in made.checkpoints]
    merge = predict_merge(
        live,
        code,
        differs=any_differs(tables) or made.stopped is not None,
        command=command,
        origin=chosen.origin,
        declined=made.declined,
    )
    return ProposalReport(
        pipeline=live.graph.name,
        begins_after=chosen.origin,
        replayed=list(chosen.ids),
        stopped=_without_hidden(made.stopped.what, line) if made.stopped is not None else "",
        code=code,
        merge=msgspec.structs.replace(merge, reasons=[_without_hidden(reason, line) for reason in merge.reasons]),
        tables=tables,
        unchanged_sinks=without_shadow(live.graph),
        manual_edits=lost_manual_edits(live.ledger, chosen),
        gates=[] if is_sample or not any(entry.acks for entry in after) else _gate_changes(before, after),
        figures={} if is_sample or made.stopped else _figures(views, [view for _, view in made.checkpoints]),
        sample=line.record.sample,
    )


def _without_hidden(text: str, line: OpenBackfill) -> str:
    """Return a text about the hidden tables of a line as one about the tables that they stand for."""
    for name, sinking in line.backfill.graph.sinks.items():
        hidden = sinking.sink.delta_table(line.backfill.context(name))
        shown = line.live.graph.sinks[name].sink.delta_table(line.live.context(name))
        if hidden is not None and shown is not None:
            text = text.replace(hidden.url, shown.url)
    return text


def refused_report(live: Coordinator, chosen: ReplayRange, problems: Sequence[str], *, command: str) -> ProposalReport:
    """Return the report about code that cannot replay these checkpoints."""
    code = code_change(live)
    merge = predict_merge(live, code, differs=True, command=command, origin=0)
    if impossible(live, ReplayRange(0, ())):
        merge = msgspec.structs.replace(merge, backfill="")
    return ProposalReport(
        pipeline=live.graph.name,
        begins_after=chosen.origin,
        replayed=[],
        stopped="; ".join(problems),
        code=code,
        merge=merge,
        tables={},
        unchanged_sinks=[],
        manual_edits=[],
        gates=[],
        figures={},
    )


def code_change(live: PipelineContext) -> CodeChange:
    """Return what is declared differently than in the last checkpoint."""
    last = live.ledger.view().last_completed
    assert last is not None
    changes = source_changes(live.ledger.view(), last)
    return CodeChange(
        before=last.plan.code_fingerprint,
        after=live.graph.code_fingerprint(),
        parts=additions(live.graph, last, changes),
        operators=_changed_operators(live, last),
        results=list(changed_results(live)),
    )


def _changed_operators(live: PipelineContext, last: Entry) -> dict[str, list[str]]:
    """Return the operators whose state has another meaning than in the last checkpoint, and the parts that differ."""
    recorded, changed = memory_of(acks_of(live.ledger, last)), {}
    for name, declared in meaning_of(live.graph).items():
        before = recorded.get(name)
        if before is None or before == declared:
            continue
        parts = [part for part in sorted({*before, *declared}) if before.get(part) != declared.get(part)]
        changed[name.rpartition(".")[0]] = parts
    return changed


def predict_merge(
    live: PipelineContext,
    code: CodeChange,
    *,
    differs: bool,
    command: str,
    origin: int,
    declined: TidegateError | None = None,
) -> Merge:
    """Predict what happens if the pipeline gets this code.

    differs: rows or columns of a table do. declined: the error with which the replay has stopped, and so would the
    pipeline.
    """
    last = live.ledger.view().last_completed
    assert last is not None
    errors = list(check(live, last, source_changes(live.ledger.view(), last)))
    if declined is not None:
        errors.append(declined)
    start = str(origin) if origin else "beginning"
    backfill = f"tidegate backfill {command} --from {start}"
    reasons = []
    for line in live.ledger.backfills():
        reasons.append(f"backfill {line.name} is open: only when it is swapped in or discarded can another one begin")
        backfill = ""
    if errors:
        reasons += ["; ".join(filter(None, (error.what, error.help))) for error in errors]
        if declined is not None:  # it would stop a backfill, too
            backfill = ""
        return Merge(action="refused", reasons=reasons, backfill=backfill)
    if not differs:
        action: Literal["same", "continues"] = "same" if code.before == code.after else "continues"
        return Merge(action=action, reasons=[], backfill="")
    return Merge(action="differs", reasons=reasons, backfill=backfill)


def _gate_changes(before: Sequence[Entry], after: Sequence[Entry]) -> list[GateChange]:
    old, new = _findings(before), _findings(after)
    return [GateChange(gate=name, before=old.get(name), after=new.get(name)) for name in sorted({*old, *new})]


def _findings(entries: Sequence[Entry]) -> dict[str, GateFindings]:
    found: dict[str, GateFindings] = {}
    for entry in entries:
        for acked in entry.acks.values():
            for gate, verdict in acked.ack.gates.items():
                earlier = found.get(gate) or GateFindings(judged=0, quarantined=0, outcomes={}, broken={})
                broken = dict(earlier.broken)
                for rule in verdict.broken:
                    count = rule.rows if rule.rows is not None else 1
                    broken[rule.rule] = broken.get(rule.rule, 0) + count
                found[gate] = GateFindings(
                    judged=earlier.judged + verdict.rows,
                    quarantined=earlier.quarantined + verdict.quarantined,
                    outcomes=earlier.outcomes | {verdict.outcome: earlier.outcomes.get(verdict.outcome, 0) + 1},
                    broken=broken,
                )
    return found


def _figures(before: Sequence[CheckpointView], after: Sequence[CheckpointView]) -> dict[str, list[float | None]]:
    figures = {}
    for name, how in FIGURES.items():
        pair = [_figure(views, name, how) for views in (before, after)]
        if any(value for value in pair):
            figures[name] = pair
    return figures


def _figure(views: Sequence[CheckpointView], name: str, how: str) -> float | None:
    values = [value for view in views if (value := getattr(view, name)) is not None]
    if not values:
        return None
    return float(sum(values) if how == "sum" else values[-1])
