"""A gate that compares a total of the rows with that of another stream, or with a control total in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from tidegate.connectors.source import SourceContext
from tidegate.gates.base import BrokenRule, GateContext, Judgement, Policy, repeatable_problems
from tidegate.gates.by_key import BROKEN, KeyGate, split_bad_keys
from tidegate.gates.table_as_planned import TableAsPlanned, refuse_type_mismatch
from tidegate.operators.inputs import key_problems, need_number, null_safe_equality
from tidegate.operators.join.other_totals import GROUP, IS_TOTAL, TOTAL, TotalsBeside
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.connectors.delta.source.delta_table import DeltaTable
    from tidegate.operators.base import Operator

__all__ = ["Agrees"]

DISAGREES: Final = "agrees"
MISSING: Final = "missing"
SHOWN: Final = 20
"""Groups that a verdict's findings have."""
_OURS, _THEIRS, _ROWS, _DIFFERENCE = "_tidegate_ours", "_tidegate_theirs", "_tidegate_rows", "_tidegate_difference"


class OtherStream(Protocol):
    """A stream of the same pipeline."""

    name: str


class Agrees(KeyGate):
    """Check that a total of the rows agrees with that of another stream, or with a control total in a Delta table.

        checked = orders.gate(Agrees("sum(amount)", to=payments, other="sum(paid)"))
        checked = orders.gate(Agrees("count(*)", to="tables/deliveries", other="max(rows)", by="delivery"))

    Another stream is compared checkpoint by checkpoint, and both must be in one job. It may be a source of control
    files. Of a table, all attempts read the version that was current when the checkpoint was planned, and only groups
    of which there are rows count. A total that is null, such as a sum of no rows, counts as 0.

    function: an SQL aggregate of these rows, which returns a number.
    to: the other stream, or the table's path.
    other: the aggregate of the other stream's or the table's rows. The default is `function`.
    by: columns that form groups, each of which must agree. With a table it is needed.
    key: the other side's columns, in the same order. By default they have the same names.
    tolerance: how far the totals may differ: a number, or a share of the greater one, such as "0.1 %".
    on_failure: "abort" the checkpoint, "hold" it for a person, only "warn", or, with `by`, "quarantine" all rows of the
        groups that do not agree. A group that is missing on this side then only warns.
    at_most: the largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted.
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
    """

    kind: ClassVar[str] = "agrees"

    def __init__(
        self,
        function: str,
        *,
        to: OtherStream | str,
        other: str | None = None,
        by: str | Sequence[str] = (),
        key: str | Sequence[str] | None = None,
        tolerance: float | str = 0,
        on_failure: Policy = "abort",
        at_most: float = 1.0,
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(by, on_failure, at_most, hold_for, unanswered)
        self.function = function
        self.to = to
        self.other = other if other is not None else function
        self.key = listed(key) if key is not None else self.by
        self.tolerance = tolerance
        self.table = TableAsPlanned(to) if isinstance(to, str) else None
        self.marks = () if self.table is not None else (IS_TOTAL, TOTAL, GROUP)

    @property
    def _target_name(self) -> str:
        return self.to if isinstance(self.to, str) else str(getattr(self.to, "name", self.to))

    @property
    def identity_parts(self) -> list[str]:
        return [self.function, *self.by]

    def describe(self) -> Json:
        return super().describe() | {
            "function": self.function,
            "to": {"table": self.to} if self.table is not None else {"stream": self._target_name},
            "other": self.other,
            "key": self.key,
            "tolerance": self.tolerance,
        }

    def problems(self) -> list[str]:
        problems = [problem for problem in super().problems() if self.by or not problem.startswith("it has no key")]
        for name, function in (("function", self.function), ("other", self.other)):
            if not isinstance(function, str) or not function.strip():
                problems.append(f'{name} is {function!r}: expected an SQL aggregate such as "sum(amount)"')
            problems += repeatable_problems(name, function)
        if len(self.key) != len(self.by):
            problems.append(f"by and key have {len(self.by)} and {len(self.key)} names: expected as many")
        elif self.key is not self.by:
            problems += key_problems(self.key, "key")
        if self.table is not None:
            problems += self.table.problems("to")
            if not self.by:
                problems.append("to is a table: name the columns in by=… that find a control total there")
        elif not isinstance(getattr(self.to, "name", None), str):
            problems.append(f"to is {self.to!r}: expected a stream or a table's path")
        if not self.by and self.on_failure == "quarantine":
            problems.append("on_failure is 'quarantine', but without by=… no rows are to blame")
        if _share_or_number(self.tolerance) is None:
            problems.append(f'tolerance is {self.tolerance!r}: expected a number, or a share such as "0.1 %"')
        return problems

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        reasons = ["totals over all rows of a checkpoint"]
        return [*reasons, "as of when it reads its table"] if self.table is not None else reasons

    @property
    def other_streams(self) -> Sequence[object]:
        return () if self.table is not None else (self.to,)

    @property
    def operator_in_front(self) -> Operator | None:
        return TotalsBeside(self.other, self.key, self._target_name) if self.table is None else None

    @property
    def reads_tables(self) -> bool:
        return self.table is not None

    @property
    def input_table(self) -> DeltaTable | None:
        return self.table.table if self.table is not None else None

    def fix_inputs(self, context: SourceContext) -> Json | None:
        """Return the table's version. Raise Invalid if the table or a column does not exist."""
        return self.table.fix(self.key, context) if self.table is not None else None

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        return self.table.lost_versions(recorded, context) if self.table is not None else ()

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        super().check_columns(frame, context)
        need_number(frame, self.function, context.gate)
        if self.table is not None:
            self.table.check_types(frame, self._pairs, context)

    @property
    def _pairs(self) -> dict[str, str]:
        return dict(zip(self.by, self.key, strict=True))

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        rows = frame if self.table is not None else frame.where(f"NOT {IS_TOTAL}").drop(*self.marks)
        super().check_columns(rows, context)
        need_number(rows, self.function, context.gate)
        if context.cut_freely:
            count = rows.count()
            why = "not judged: the backfill cuts its input as it likes, so totals of a checkpoint say nothing"
            return Judgement(count, why=why, results={"success": True, "rows": count}, frame=rows)
        ours = rows.groupBy(*map(quoted, self.by)).agg(
            f.expr(self.function).alias(_OURS), f.count(f.lit(1)).alias(_ROWS)
        )
        groups = materialize(self._compared(rows, ours, self._totals_of_target(frame, rows, context)))
        differs = f.col(_DIFFERENCE).isNotNull()
        here = f.col(_ROWS) > 0
        count, total, bad_groups, bad_rows, missing = groups.agg(
            f.count(f.lit(1)),
            f.coalesce(f.sum(_ROWS), f.lit(0)),
            f.count_if(differs),
            f.coalesce(f.sum(f.when(differs, f.col(_ROWS))), f.lit(0)),
            f.count_if(differs & ~here),
        ).collect()[0]
        shown: list[Any] = []
        if bad_groups:
            shown = (
                groups.where(differs).orderBy(f.abs(_DIFFERENCE).desc(), *map(quoted, self.by)).limit(SHOWN).collect()
            )
        broken = self._broken(count, bad_groups, bad_rows, missing, shown, context)
        good_and_bad = None
        if any(rule.policy == "quarantine" for rule in broken) and self.by:
            bad = groups.where(differs & here).withColumn(BROKEN, f.array(f.lit(DISAGREES)))
            good_and_bad = split_bad_keys(rows, self.by, bad, bad_groups, nulls=True)
        results: Json = {
            "success": not broken,
            "rows": total,
            "compared": count,
            "disagree": bad_groups,
            "groups": [self._group_result(row) for row in shown],
        }
        return Judgement(total, broken, results, good_and_bad, (groups,), rows)

    def _totals_of_target(self, frame: DataFrame, rows: DataFrame, context: GateContext) -> DataFrame:
        """Return the other side's totals by group, whose columns have the names of ours."""
        from pyspark.sql import functions as f

        if self.table is None:
            groups = [f.col(GROUP).getField(f"by{place}").alias(name) for place, name in enumerate(self.by)]
            theirs = frame.where(IS_TOTAL).select(*groups, f.col(TOTAL).alias(_THEIRS))
            refuse_type_mismatch(
                rows, theirs.schema, dict(zip(self.by, self.by, strict=True)), self._target_name, context.gate
            )
            return theirs
        table = self.table.read(rows, self._pairs, context)
        need_number(table, self.other, context.gate)
        names = [f.col(quoted(key)).alias(name) for name, key in self._pairs.items()]
        totals = table.groupBy(*map(quoted, self.key)).agg(f.expr(self.other).alias(_THEIRS))
        return totals.select(*names, _THEIRS)

    def _compared(self, rows: DataFrame, ours: DataFrame, theirs: DataFrame) -> DataFrame:
        """Return the groups with both totals, and with their difference if they do not agree."""
        from pyspark.sql import functions as f

        names = [f"_tidegate_by{place}" for place in range(len(self.by))]
        theirs = theirs.toDF(*names, _THEIRS)
        how = "left" if self.table is not None else "full"
        if self.by:
            both = ours.join(theirs, null_safe_equality(self.by, names, nulls=True), how)
        else:
            both = ours.crossJoin(theirs)
        by = []
        for name, theirs_name in zip(self.by, names, strict=True):
            ours_or_theirs = f.when(f.col(_ROWS).isNull(), f.col(theirs_name)).otherwise(f.col(quoted(name)))
            by.append(ours_or_theirs.cast(rows.schema[name].dataType).alias(name))
        both = both.select(
            *by,
            f.coalesce(_OURS, f.lit(0)).alias(_OURS),
            f.coalesce(_THEIRS, f.lit(0)).alias(_THEIRS),
            f.coalesce(_ROWS, f.lit(0)).alias(_ROWS),
        )
        difference = f.col(_OURS) - f.col(_THEIRS)
        return both.withColumn(_DIFFERENCE, f.when(~self._agrees(difference), difference))

    def _agrees(self, difference: Column) -> Column:
        from pyspark.sql import functions as f

        tolerance = _share_or_number(self.tolerance)
        assert tolerance is not None
        limit = f.expr(f"{tolerance[0]}BD")
        if tolerance[1]:
            limit = limit * f.greatest(f.abs(_OURS), f.abs(_THEIRS))
        return f.abs(difference) <= limit

    def _broken(
        self, count: int, bad: int, bad_rows: int, missing: int, shown: Sequence[Any], context: GateContext
    ) -> tuple[BrokenRule, ...]:
        if not bad:
            return ()
        worst = shown[0]
        ours, theirs = f"{_text(worst[_OURS])} is {self.function}", f"{_text(worst[_THEIRS])} is {self.other}"
        why = f"{ours}, and {theirs} of {self._target_name}: the difference is {_text(worst[_DIFFERENCE])}"
        if self.by:
            why = f"{bad:,} of {count:,} groups disagree; of the one that differs most, {why}"
        if not self.by or not bad_rows:  # no row is to blame
            policy: Policy = "warn" if self.on_failure == "quarantine" else self.on_failure
            return (BrokenRule(MISSING if self.by else DISAGREES, policy, why=why),)
        broken = self.rules_broken({DISAGREES: (bad_rows, why)}, context)
        if not missing:
            return broken
        policy = "warn" if broken[0].policy == "quarantine" else broken[0].policy
        why = f"{missing:,} groups of {self._target_name} have no rows here"
        return (*broken, BrokenRule(MISSING, policy, why=why))

    def _group_result(self, row: Any) -> Json:
        """Return what was found about a group, for the verdict's results."""
        return {
            "group": [None if row[name] is None else str(row[name]) for name in self.by],
            "value": _text(row[_OURS]),
            "other": _text(row[_THEIRS]),
            "difference": _text(row[_DIFFERENCE]),
            "rows": row[_ROWS],
        }


def _share_or_number(tolerance: object) -> tuple[str, bool] | None:
    """Return a tolerance as a decimal number, and whether it is a share. None: it is neither."""
    from decimal import Decimal, InvalidOperation

    is_share = isinstance(tolerance, str) and tolerance.strip().endswith("%")
    text = str(tolerance).strip().removesuffix("%").strip()
    if isinstance(tolerance, bool) or (isinstance(tolerance, str) and not is_share):
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or number < 0:
        return None
    return f"{number / 100 if is_share else number:f}", is_share


def _text(number: object) -> str:
    return f"{number:,.4f}".rstrip("0").rstrip(".") if isinstance(number, float) else f"{number:,}"
