"""The gate directly before a sink, by the rules that the sink's target declares for single rows.

`stream.sink(…, refused="quarantine")` adds it. The rules are fixed when a checkpoint is planned, so all attempts, and a
backfill that repeats the checkpoint, judge alike, whatever becomes of the target in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from tidegate.connectors.row_rules import DeclaredRules, RowRule, is_broken
from tidegate.connectors.sink import Sink
from tidegate.connectors.source import SourceContext
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement, Policy
from tidegate.gates.judging.aggregates import Count, Leaf
from tidegate.gates.judging.in_files import MarkingFailed, note_in_files
from tidegate.gates.judging.row_marks import (
    MarkColumns,
    MarkedRows,
    Uniqueness,
    mark_columns_for,
    only_marked,
    unmarked,
)
from tidegate.gates.row_rules import RowRules
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Refused", "TargetRules", "target_gate_name"]

Refused = Literal["abort", "quarantine"]
"""What becomes of rows that a sink's target would refuse."""

_ALL = "\0all"
"""The key of the leaf that counts all rows. No rule has this name."""


def target_gate_name(sink: str) -> str:
    """Return the name of the gate before a sink, and so of its quarantine."""
    return f"{sink}-refused"


class TargetRules(Gate):
    """Sends rows to quarantine that a sink's target would refuse."""

    kind: ClassVar[str] = "target-rules"
    persists: ClassVar[bool] = True

    def __init__(self, name: str, sink: Sink, refused: Refused = "quarantine") -> None:
        """name: the sink's."""
        self.name = name
        self.sink = sink
        self.refused = refused

    def describe(self) -> Json:
        return {"sink": self.name, "refused": self.refused}

    @property
    def identity_parts(self) -> list[str]:
        return [self.name]

    @property
    def quarantines(self) -> bool:
        return True

    @property
    def policies(self) -> frozenset[Policy]:
        return frozenset({"quarantine"})

    def problems(self) -> list[str]:
        if self.refused != "quarantine":
            return [f'refused is {self.refused!r}: expected "abort" or "quarantine"']
        if isinstance(self.sink, Sink) and type(self.sink).row_rules is Sink.row_rules:
            return [
                f'refused="quarantine": a sink of kind {self.sink.kind} does not know which rows its target refuses'
            ]
        return []

    @property
    def reads_tables(self) -> bool:
        return False  # what a target declares is not published by checkpoints

    def fix_inputs(self, context: SourceContext) -> Json:
        return {"declared": self.sink.declared_rules(context.place)}

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        rules = self._rules(frame, self.sink.declared_rules(context.place)).rules
        frame.select(*(is_broken(rule) for rule in rules)).schema  # noqa: B018 - Spark plans it

    def _rules(self, frame: DataFrame, declared: Json | None) -> DeclaredRules:
        return self.sink.row_rules(msgspec.json.decode(frame.schema.json()), declared)

    def row_rules(self, frame: DataFrame, context: GateContext) -> RowRules:
        from pyspark.sql import functions as f

        rules = _name_rules_uniquely(self._planned_rules(frame, context))
        names = [f.when(is_broken(rule), f.lit(name)) for name, rule in rules.items()]
        broken = f.array_compact(f.array(*names)) if names else f.array().cast("array<string>")
        return RowRules(broken, binding=True)

    def _planned_rules(self, frame: DataFrame, context: GateContext) -> DeclaredRules:
        if context.planned_inputs is None:
            return self._rules(frame, self.sink.declared_rules(context.place))
        return self._rules(frame, context.planned_inputs[0]["declared"])

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        found = self._planned_rules(frame, context)
        rules = _name_rules_uniquely(found)
        leaves: dict[str, Leaf] = {_ALL: Count((), None)}
        leaves |= {name: Count((), is_broken(rule)) for name, rule in rules.items()}
        judgement = self._judge_in_files(frame, leaves, rules, context) or _judge_rows(frame, leaves, rules)
        return replace(judgement, results=judgement.results | {"not_judged": list(found.not_judged)})

    def _judge_in_files(
        self, frame: DataFrame, leaves: Mapping[str, Leaf], rules: Mapping[str, RowRule], context: GateContext
    ) -> Judgement | None:
        """Judge the rows in the files of the table, where they are staged. None: that is not possible here."""
        if context.stage is None:
            return None
        stage = partial(context.stage, draft=context.memory.get("draft"))
        try:
            staged = note_in_files(frame, leaves, {}, stage)
        except MarkingFailed as error:
            raise error.__cause__ or error from None
        if staged is None:
            return None
        files, counts = staged
        broken = {name: count for name in rules if (count := counts[leaves[name]])}
        named = [(leaves[name], name) for name in broken]
        bad = files.divide(named, Judgement.RULES) if named else None
        memory: Json = {"draft": files.draft_next} if files.draft_next is not None else {}
        return Judgement(
            counts[leaves[_ALL]] or 0,
            _broken_rules(broken, rules),
            _results(broken, rules),
            prestaged=files.ahead,
            quarantined=bad,
            memory=memory,
        )


def _judge_rows(frame: DataFrame, leaves: Mapping[str, Leaf], rules: Mapping[str, RowRule]) -> Judgement:
    """Persist the rows in Spark with their marks, and judge them there."""
    mark_columns: dict[Uniqueness, MarkColumns] = {}
    marked = MarkedRows(frame, mark_columns_for(frame, leaves, mark_columns, "none"))
    try:
        counts = marked.read(0, 0)
    except BaseException:
        for rows in marked.persisted:
            release(rows)
        raise
    broken = {name: count for name in rules if (count := counts[leaves[name]])}
    plain = marked.rows.select(*map(quoted, frame.columns))
    good_and_bad = None
    if broken:
        marks = {}
        for name in broken:
            found = marked.marked(marked.rows, leaves[name])
            assert found is not None, "every rule is a condition of single rows"
            marks[name] = found[1]
        good = unmarked(marked.rows, marks.values(), frame.columns)
        good_and_bad = good, only_marked(marked.rows, marks, frame.columns, Judgement.RULES)
    return Judgement(
        counts[leaves[_ALL]] or 0,
        _broken_rules(broken, rules),
        _results(broken, rules),
        good_and_bad,
        marked.persisted,
        plain,
    )


def _name_rules_uniquely(found: DeclaredRules) -> dict[str, RowRule]:
    """Return the rules by names that are unique among them."""
    named: dict[str, RowRule] = {}
    for rule in found.rules:
        name, number = rule.name, 2
        while name in named:
            name, number = f"{rule.name}#{number}", number + 1
        named[name] = rule
    return named


def _broken_rules(broken: Mapping[str, int], rules: Mapping[str, RowRule]) -> tuple[BrokenRule, ...]:
    return tuple(
        BrokenRule(name, "quarantine", rows=count, why=f"{count} rows: {rules[name].says}")
        for name, count in broken.items()
    )


def _results(broken: Mapping[str, int], rules: Mapping[str, RowRule]) -> Json:
    details = [{"rule": name, "says": rule.says, "rows": broken.get(name, 0)} for name, rule in rules.items()]
    return {"success": not broken, "rules": details}
