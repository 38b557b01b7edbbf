"""A gate of expectations: a suite in Great Expectations' form, and the policy for broken rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid
from tidegate.gates.base import (
    BrokenRule,
    Gate,
    GateContext,
    Judgement,
    Policy,
    is_share,
    policies_among,
    policy_problems,
)
from tidegate.gates.expectations.catalogue import CATALOGUE
from tidegate.gates.expectations.custom import sources_of
from tidegate.gates.expectations.origin import origin_of
from tidegate.gates.expectations.suite import SEVERITIES, Severity, Suite
from tidegate.gates.row_rules import RowRules
from tidegate.operators.inputs import null_safe_equality
from tidegate.records.names import listed, quoted
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    import pyarrow as pa
    from great_expectations import ExpectationSuite
    from great_expectations.data_context.data_context.file_data_context import FileDataContext
    from pyspark.sql import DataFrame

    from tidegate.gates.judging.judge import Judged, RuleFinding

__all__ = ["Expectations", "why_broken"]

EVERY_FILE = 1_000_000_000
_NEW = "_tidegate_new"


def _over_of(fixed: Json) -> Json | None:
    """Return the splits of the table in a plan's fixed inputs. Before version 0.2, plans fixed nothing else."""
    return fixed.get("over") if "suite" in fixed else fixed


class Expectations(Gate):
    """Judge rows by a suite of expectations of Great Expectations.

        checked = clean.gate(Expectations("orders", on_failure="quarantine", at_most=0.05))

    suite: the suite's name, for the file include/expectations/<suite>.yaml, or a path that ends in .yaml; or an
        ExpectationSuite of Great Expectations.
    context: the folder of a file context of Great Expectations, such as "gx". The suite is then the one that the
        context has saved under this name, as it is when a checkpoint is planned.
    modules: the names of modules that define expectations of your own, which the suite uses: classes that extend those
        of Great Expectations. They are imported where rows are judged, and only read elsewhere.
    on_failure: "abort" the checkpoint, "hold" it for a person, "quarantine" the bad rows and continue without them, or
        only "warn". Or a policy for each severity, such as {"critical": "abort", "warning": "quarantine"}, where other
        severities only warn. A rule that is not about single rows, such as a mean, cannot quarantine: it aborts.
    at_most: the largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted.
    private: columns whose values must not appear in verdicts.
    over: the path of a Delta table. The suite then judges its rows together with the new ones, as they will be after
        publishing. Only new rows can go to quarantine.
    keys: with `over`, the columns by which new rows replace the table's rows, as in `DeltaUpsert(keys=…)`.
    hold_for: with "hold", how long to wait for a person, such as "1 day". None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
    """

    kind: ClassVar[str] = "expectations"
    persists: ClassVar[bool] = True

    def __init__(
        self,
        suite: str | ExpectationSuite,
        *,
        context: str | FileDataContext | None = None,
        modules: Sequence[str] = (),
        on_failure: Policy | Mapping[str, Policy] = "abort",
        at_most: float = 1.0,
        private: Sequence[str] = (),
        over: str | None = None,
        keys: Sequence[str] = (),
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        self.modules = tuple(listed(modules))
        self.origin = origin_of(suite, context, self.modules)
        self.suite = self.origin.name
        self.on_failure = on_failure
        self.at_most = at_most
        self.private = tuple(listed(private))
        self.over = over
        self.keys = tuple(listed(keys))
        self.hold_for = hold_for
        self.unanswered = unanswered

    @property
    def identity_parts(self) -> list[str]:
        return [self.suite]

    def describe(self) -> Json:
        policies = dict(self._policies())
        description: Json = {
            **self.origin.describe(),
            "on_failure": policies,
            "at_most": self.at_most,
            "private": list(self.private),
        }
        if self.modules:
            description["modules"] = list(self.modules)
        if self.over is not None:
            description |= {"over": self.over, "keys": list(self.keys)}
        if "hold" in policies.values():
            description |= {"hold_for": self.hold_for, "unanswered": self.unanswered}
        return description

    @property
    def quarantines(self) -> bool:
        return not {"quarantine", "hold"}.isdisjoint(self._policies().values())

    def problems(self) -> list[str]:
        problems = self.origin.problems()
        if isinstance(self.on_failure, Mapping):
            unknown = [str(severity) for severity in self.on_failure if severity not in SEVERITIES]
            problems += [f"on_failure names severity {name!r}: expected {', '.join(SEVERITIES)}" for name in unknown]
        problems += policy_problems({f"severity {severity}": policy for severity, policy in self._policies().items()})
        if not is_share(self.at_most):
            problems.append(f"at_most is {self.at_most!r}: expected a share from 0 to 1")
        elif self.at_most < 1 and "quarantine" not in self._policies().values():
            problems.append("at_most limits what goes into quarantine, but on_failure quarantines nothing")
        if self.over is not None:
            problems += [f"over: {problem}" for problem in DeltaTable(self.over).problems()]
        elif self.keys:
            problems.append("keys say which rows of a table are replaced, but over=… is not set")
        return problems

    def interval_problems(self) -> list[str]:
        return [] if self.over is None else ["over: the table's rows of the same interval would be judged, too"]

    def load(self, place: Place) -> Suite:
        """Load the suite as it is now. Raise Invalid with all problems of it."""
        return self.origin.load(place)

    def check(self, context: GateContext) -> None:
        self.load(context.place)

    def declared_elsewhere(self, context: GateContext) -> str:
        try:
            return "\n".join([self.origin.read(context.place), *sources_of(self.modules).values()])
        except Invalid:
            return ""

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        self.load(context.place).check_columns(frame.columns)

    def warm_up(self) -> None:
        from tidegate.gates.expectations.library import warm

        warm()

    def fix_inputs(self, context: SourceContext) -> Json:
        """Return the suite's current text and the table's version, so that all attempts use the same."""
        suite: Json = {"suite": self.origin.read(context.place)}
        if self.over is None:
            return suite
        try:
            return suite | {"over": DeltaTable(self.over, max_files=EVERY_FILE).plan(None, context).splits}
        except Invalid as error:
            if error.reason != "NO_TABLE":
                raise
            return suite  # the first checkpoint creates the table

    def fix_inputs_again(self, recorded: Json, context: SourceContext) -> Json:
        """Return the suite's current text, since the suite belongs to the code, and the recorded table version."""
        inputs: Json = {"suite": self.origin.read(context.place)}
        over = _over_of(recorded)
        if over is not None:
            inputs["over"] = over
        return inputs

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        if self.over is None:
            return ()
        versions = {}
        for id, fixed in recorded.items():
            over = _over_of(fixed)
            if over is not None:
                versions[id] = over
        return DeltaTable(self.over, max_files=EVERY_FILE).lost_versions(versions, context)

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        return [*super().depends_on_checkpoint_cuts, "rules about all rows of a checkpoint, such as their number"]

    @property
    def reads_tables(self) -> bool:
        return self.over is not None

    def suite_for(self, context: GateContext) -> Suite:
        """Return the suite that the plan has fixed. Plans of versions before 0.2 have none; then load it from its
        file."""
        if context.planned_inputs is None or "suite" not in context.planned_inputs[0]:
            return self.load(context.place)
        return self.origin.parse(context.planned_inputs[0]["suite"], context.place)

    def private_columns(self, context: GateContext) -> tuple[str, ...]:
        """Return the columns whose values must not appear in verdicts."""
        return self.private

    def _table_to_read(self, context: GateContext) -> Json | None:
        """Return the table's splits, or None if `over` is not set, or the table does not exist yet."""
        if context.planned_inputs is None or self.over is None:
            return None
        return _over_of(context.planned_inputs[0])

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from tidegate.gates.judging.judge import add_samples_from_files, judge, plain, split

        over = self._table_to_read(context)
        if over is not None:
            return self._judge_over(materialize(frame), over, context)
        stage = partial(context.stage, draft=context.memory.get("draft")) if context.stage is not None else None
        private = self.private_columns(context)
        judged = judge(self.suite_for(context), frame, private, keeping=True, stage=stage)
        assert judged.frame is not None
        broken, quarantined = self._apply_policies(judged, context)
        if judged.files is None:
            good_and_bad = split(judged.frame, judged, quarantined, Judgement.RULES) if quarantined else None
            return Judgement(judged.rows, broken, judged.record(), good_and_bad, judged.persisted, plain(judged))
        named = [(finding.leaf, finding.rule.name) for finding in quarantined if finding.leaf is not None]
        add_samples = partial(add_samples_from_files, frame, judged, private)
        bad_rows = None
        if named:
            bad_rows = _with_samples_after(judged.files.divide(named, Judgement.RULES), add_samples)
        else:
            add_samples()
        draft = judged.files.draft_next
        memory: Json = {"draft": draft} if draft is not None else {}
        return Judgement(
            judged.rows, broken, judged.record(), prestaged=judged.files.ahead, quarantined=bad_rows, memory=memory
        )

    def row_rules(self, frame: DataFrame, context: GateContext) -> RowRules:
        from tidegate.gates.judging.single_rows import row_rules

        return row_rules(self.suite_for(context), frame, lambda rule: self._policies()[rule.severity] != "warn")

    def _judge_over(self, frame: DataFrame, over: Json, context: GateContext) -> Judgement:
        """Judge the table's rows together with the new ones. Only new rows are split into good and bad ones."""
        from pyspark.sql import functions as f

        from tidegate.gates.judging.judge import judge, split

        both = frame.withColumn(_NEW, f.lit(True)).unionByName(
            self._table_rows(frame, over, context).withColumn(_NEW, f.lit(False)), allowMissingColumns=True
        )
        judged = judge(self.suite_for(context), both.drop(_NEW), self.private_columns(context))
        broken, quarantined = self._apply_policies(judged, context)
        good_and_bad = None
        if quarantined:
            good, bad = (rows.where(_NEW).drop(_NEW) for rows in split(both, judged, quarantined, Judgement.RULES))
            columns = list(map(quoted, frame.columns))
            good_and_bad = good.select(*columns), bad.select(*columns, Judgement.RULES)
        return Judgement(frame.count(), broken, judged.record(), good_and_bad, (frame, *judged.persisted), frame)

    def _apply_policies(self, judged: Judged, context: GateContext) -> tuple[tuple[BrokenRule, ...], list[RuleFinding]]:
        """Return the broken rules, and the findings whose bad rows go to quarantine."""
        broken: list[BrokenRule] = []
        quarantined: list[RuleFinding] = []
        for finding in judged.findings:
            if finding.success:
                continue
            policy = self._policy(finding)
            was_held = context.quarantine_held and policy == "hold" and finding.removes_rows
            if was_held:
                policy = "quarantine"
            broken.append(_broken_rule(finding, policy, was_held=was_held))
            if finding.removes_rows and policy == "quarantine":
                quarantined.append(finding)
        return tuple(broken), quarantined

    def _table_rows(self, frame: DataFrame, splits: Json, context: GateContext) -> DataFrame:
        """Return the rows of the table version in the plan, without those that new rows replace."""
        assert context.planned_inputs is not None
        assert self.over is not None
        source_context = context.planned_inputs[1]
        table = DeltaTable(self.over, max_files=EVERY_FILE)
        table.verify(splits, source_context)
        rows = table.read(frame.sparkSession, splits, source_context)
        if not self.keys:
            return rows
        names = [f"_new_key{number}" for number in range(len(self.keys))]
        new = frame.selectExpr(*(f"{quoted(key)} AS {name}" for key, name in zip(self.keys, names, strict=True)))
        return rows.join(new, null_safe_equality(self.keys, names, nulls=True), "left_anti")

    @property
    def policies(self) -> frozenset[Policy]:
        return policies_among(self._policies().values())

    def _policy(self, finding: RuleFinding) -> Policy:
        """Return the policy for a broken rule."""
        policy = self._policies()[finding.rule.severity]
        return "abort" if policy == "quarantine" and not finding.removes_rows else policy

    def _policies(self) -> dict[Severity, Policy]:
        if isinstance(self.on_failure, Mapping):
            policies = self.on_failure
            return {severity: policies.get(severity, "warn") for severity in SEVERITIES}
        return dict.fromkeys(SEVERITIES, self.on_failure)


def _with_samples_after(rows: Iterator[pa.Table], add_samples: Callable[[], None]) -> Iterator[pa.Table]:
    """Yield the rows, and add samples of bad values afterwards, when some of them are in memory."""
    yield from rows
    add_samples()


_COUNTS = re.compile(r"\Aexpect_table_|unique_value_count|proportion_of")
"""Expectations that observe counts or names. All others observe values of rows, which must not be shown."""


def _observes_counts(type: str) -> bool:
    return type in CATALOGUE and _COUNTS.search(type) is not None


def _broken_rule(finding: RuleFinding, policy: Policy, *, was_held: bool) -> BrokenRule:
    return BrokenRule(
        finding.rule.name, policy, finding.rule.severity, finding.bad, why_broken(finding)[:300], was_held
    )


def why_broken(finding: RuleFinding) -> str:
    """Return why a rule is broken, in one line that quotes no value of a row."""
    details, info = finding.result["result"], finding.result["exception_info"]
    if info["raised_exception"]:
        why = "could not be judged; its findings say why"
    elif finding.bad is not None:
        total = f" of {details['element_count']} rows" if "element_count" in details else " rows"
        why = f"{finding.bad}{total} break it"
        why += f", {finding.rule.mostly:g} must keep it" if finding.rule.mostly < 1 else ""
    elif details.get("observed_value") is not None and _observes_counts(finding.rule.type):
        why = f"found {details['observed_value']!r}"
    elif details.get("observed_value") is not None:
        why = "does not hold; its findings have what was found"
    else:
        why = "does not hold"
    return why
