"""A gate that learns what is usual for an aggregate, and finds checkpoints whose rows are not like those before."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, ClassVar, Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from tidegate.errors import Invalid
from tidegate.gates.base import BrokenRule, GateContext, Judgement, Policy, is_share, repeatable_problems
from tidegate.gates.builtin import Remembering
from tidegate.gates.by_key import BROKEN, split_bad_keys
from tidegate.gates.usual import BUCKETS, SPREADS, Band, Season, Usual, bucket_of
from tidegate.operators.inputs import key_problems, need_number
from tidegate.records.codec import fingerprint
from tidegate.records.moments import from_micros
from tidegate.records.names import listed, quoted
from tidegate.records.records import Json
from tidegate.spark.event_time import time_micros
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Anomaly"]

MAX_GROUPS: Final = 50
"""The ack stores what is usual for each group: about a kilobyte for a week's season."""
UNUSUAL, WITHOUT_ROWS = "anomaly", "anomaly_without_rows"
"""The rules."""
_VALUE, _ROWS, _AT = "_tidegate_value", "_tidegate_rows", "_tidegate_at"


class Anomaly(Remembering):
    """Check that an aggregate of the rows is about what it usually is at this time.

        checked = orders.gate(Anomaly("avg(amount)", by="country", season="week", on_failure="hold"))

    The forecast is robust: it learns from earlier completed checkpoints, hour by hour of the season, and one fault
    hardly moves it. Checkpoints that are aborted or rejected do not count; one that is approved does. After six unusual
    values in a row on the same side, these are the new normal. With "abort" such a value is never learned, so after a
    lasting change let the gate "hold" or "warn" for a while.

    A verdict has the value and the band in which it was expected, and so has the plot on the checkpoint's page. A group
    that is too new is not judged, and neither is a null, such as the average of no rows. NaN and infinity are never
    usual. A backfill is only judged with `--cuts recorded`.

    function: an SQL aggregate that returns a number, such as "count(*)" or "sum(amount) / count(*)".
    by: columns whose values form groups, each with its own history: at most 50 groups.
    season: "day" or "week", if the value depends on the hour of the day or of the week, and None if not.
    event_time: the column whose median says in which hour the rows are. By default it is the time at which the
        checkpoint was planned.
    timezone: the time zone of the season, such as "Europe/Berlin".
    sensitivity: "low", "medium" or "high": a band of 7, 5 or 4 standard deviations to each side.
    after: the number of checkpoints in a group's history before it is judged. In addition, its spread must be known, by
        20 values after the first three of an hour; and with a season the hour, or one at most two hours away, must
        have had three values.
    least: groups with fewer rows are not judged.
    on_failure: "abort" the checkpoint, "hold" it for a person, only "warn", or, with `by`, "quarantine" all rows of the
        groups that are unusual. A group without rows then only warns.
    at_most: the largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted.
    hold_for: with "hold", how long to wait for a person. None waits without limit.
    unanswered: with "hold", whether to "approve" or "reject" if nobody answers in time.
    """

    kind: ClassVar[str] = "anomaly"

    def __init__(
        self,
        function: str,
        *,
        by: str | Sequence[str] = (),
        season: Season | None = None,
        event_time: str | None = None,
        timezone: str = "UTC",
        sensitivity: Literal["low", "medium", "high"] = "medium",
        after: int = 30,
        least: int = 0,
        on_failure: Policy = "warn",
        at_most: float = 1.0,
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        super().__init__(on_failure, hold_for, unanswered)
        self.function = function
        self.by = listed(by)
        self.season: Season | None = season
        self.event_time = event_time
        self.timezone = timezone
        self.sensitivity = sensitivity
        self.after = after
        self.least = least
        self.at_most = at_most

    @property
    def identity_parts(self) -> list[str]:
        return [self.function, *self.by]

    @property
    def quarantines(self) -> bool:
        return self.on_failure in ("quarantine", "hold")

    def describe(self) -> Json:
        limit = {"at_most": self.at_most} if self.on_failure == "quarantine" else {}
        return (
            super().describe()
            | limit
            | {
                "function": self.function,
                "by": self.by,
                "season": self.season,
                "event_time": self.event_time,
                "timezone": self.timezone,
                "sensitivity": self.sensitivity,
                "after": self.after,
                "least": self.least,
            }
        )

    def problems(self) -> list[str]:
        if self.on_failure == "quarantine":
            problems = [] if self.by else ["on_failure is 'quarantine', but without by=… no rows are to blame"]
        else:
            problems = super().problems()
        if not is_share(self.at_most):
            problems.append(f"at_most is {self.at_most!r}: expected a share from 0 to 1")
        if not isinstance(self.function, str) or not self.function.strip():
            problems.append(f'{self.function!r} is no SQL aggregate such as "avg(amount)"')
        problems += repeatable_problems("function", self.function)
        if self.by:
            problems += key_problems(self.by)
        if not isinstance(self.season, str | None) or self.season not in BUCKETS:
            problems.append(f'season is {self.season!r}: expected "day", "week" or None')
        if not isinstance(self.sensitivity, str) or self.sensitivity not in SPREADS:
            problems.append(f"sensitivity is {self.sensitivity!r}: expected {', '.join(SPREADS)}")
        if not isinstance(self.event_time, str | None):
            problems.append(f"event_time is {self.event_time!r}: expected the name of a column, or None")
        for name, number, minimum in (("after", self.after, 3), ("least", self.least, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < minimum:
                problems.append(f"{name} is {number!r}: expected a whole number, at least {minimum}")
        try:
            ZoneInfo(self.timezone)
        except Exception:
            problems.append(f'timezone is {self.timezone!r}: expected a name such as "Europe/Berlin"')
        return problems

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        return [*super().depends_on_checkpoint_cuts, "aggregates over all rows of a checkpoint"]

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        missing = [name for name in self.by if name not in frame.columns]
        if missing:
            raise Invalid(
                f"gate {context.gate!r}: the rows have no column {', '.join(missing)}",
                expected=f"columns of the rows: {', '.join(frame.columns)}",
                help="correct by",
                reason="BAD_GATE",
            )
        need_number(frame, self.function, context.gate)
        if self.event_time is not None:
            time_micros(frame, self.event_time, f"gate {context.gate!r}")

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        from pyspark.sql import functions as f

        self.check_columns(frame, context)
        if context.cut_freely:
            rows = frame.count()
            why = "not judged: the backfill cuts its input as it likes, so its aggregates say nothing"
            return Judgement(rows, why=why, results={"success": True, "rows": rows}, memory=context.memory)
        names = [f"_tidegate_by{number}" for number in range(len(self.by))]
        texts = [f.col(quoted(name)).cast("string").alias(alias) for name, alias in zip(self.by, names, strict=True)]
        grouped = frame.groupBy(*map(quoted, self.by)).agg(*self._aggregates(frame, context))
        measured = grouped.select(*texts, _VALUE, _ROWS, _AT).limit(MAX_GROUPS + 1).collect()
        if len(measured) > MAX_GROUPS:
            raise Invalid(
                f"gate {context.gate!r}: the rows have more than {MAX_GROUPS} groups by {', '.join(self.by)}",
                expected=f"at most {MAX_GROUPS} groups: each has a history of its own",
                help="group by a column with few values, or name the important ones in an upstream stage, as in "
                "CASE WHEN country IN ('DE', 'FR') THEN country END",
                reason="BAD_GATE",
            )
        values = {_key(row[: len(self.by)]): _number(row[_VALUE]) for row in measured}
        counts = {_key(row[: len(self.by)]): int(row[_ROWS]) for row in measured}
        micros = {_key(row[: len(self.by)]): row[_AT] for row in measured}
        of_no_rows = None
        if self._remembered_groups(context).keys() - values.keys():
            nothing = frame.where("false").groupBy().agg(*self._aggregates(frame, context))
            of_no_rows = _number(nothing.collect()[0][_VALUE])
        moments = {key: from_micros(int(at)) for key, at in micros.items() if at is not None}
        judgement = self.judge_values(values, counts, moments, of_no_rows, context)
        if not any(rule.policy == "quarantine" for rule in judgement.broken):
            return judgement
        unusual = [found["group"] for found in judgement.results["groups"] if found["unusual"] and found["rows"]]
        fractions = {name for name, kind in grouped.dtypes if kind in ("float", "double")}
        bad_groups = grouped.where(_is_one_of(unusual, self.by, fractions)).withColumn(BROKEN, f.array(f.lit(UNUSUAL)))
        return replace(judgement, split=split_bad_keys(frame, self.by, bad_groups, len(unusual), nulls=True))

    def _aggregates(self, frame: DataFrame, context: GateContext) -> list[Column]:
        from pyspark.sql import functions as f

        at = f.lit(None).cast("double")
        if self.event_time is not None:
            at = f.median(time_micros(frame, self.event_time, f"gate {context.gate!r}"))
        return [f.expr(self.function).cast("double").alias(_VALUE), f.count(f.lit(1)).alias(_ROWS), at.alias(_AT)]

    def judge_values(
        self,
        values: dict[str, float | None],
        counts: dict[str, int],
        moments: dict[str, datetime],
        of_no_rows: float | None,
        context: GateContext,
    ) -> Judgement:
        """Judge a checkpoint by its groups' values. of_no_rows: the value of a group without rows, such as 0.

        counts: the groups' numbers of rows. moments: their event times, if the season goes by these.
        """
        clock, width = parse_time(context.clock), SPREADS[self.sensitivity]
        groups, found = self._remembered_groups(context), []
        for key in sorted(values.keys() | groups.keys()):
            memory = groups.get(key, {})
            usual = Usual(self.season, memory.get("usual"))
            value = values.get(key, of_no_rows)
            moment = moments.get(key, clock).astimezone(ZoneInfo(self.timezone))
            finding = self._finding(key, value, counts.get(key, 0), usual, bucket_of(moment, self.season), width)
            if value is not None and math.isfinite(value) and finding.enough_rows:
                usual.add(value, bucket_of(moment, self.season), width)
            unseen = 0 if key in values else memory.get("unseen", 0) + 1
            groups[key] = {"usual": usual.memory(), **({"unseen": unseen} if unseen else {})}
            found.append(finding)
        return self._judgement(sum(counts.values()), found, groups)

    def _finding(
        self, key: str, value: float | None, rows: int, usual: Usual, bucket: int, width: float
    ) -> GroupFinding:
        """Judge one value."""
        finding = GroupFinding(group=msgspec.json.decode(key), value=value, rows=rows, history=usual.count)
        finding.enough_rows = rows >= self.least
        band = usual.band(bucket, width)
        if value is None:
            finding.why = "it has no value"
        elif not math.isfinite(value):
            finding.unusual = True
        elif not finding.enough_rows:
            finding.why = f"it has fewer than {self.least:,} rows"
        elif usual.count < self.after or usual.spread is None:
            finding.why = f"its history is too short: {usual.count} of {self.after} checkpoints"
            if usual.count >= self.after:
                finding.why = f"its history is too short: {usual.count} checkpoints do not show its spread yet"
        elif band is None:
            finding.why = f"its history has too few values of this hour of the {self.season or 'day'}"
        else:
            finding.band = band
            finding.unusual = not usual.fits(value, bucket, width)
        return finding

    def _judgement(self, rows: int, found: Sequence[GroupFinding], groups: dict[str, Json]) -> Judgement:
        broken = tuple(self._rules_broken(found))
        not_judged = [finding for finding in found if finding.why]
        results: Json = {"rows": rows, "function": self.function, "groups": [finding.result() for finding in found]}
        memory: Json = {"of": self._meaning, "groups": _without_forgotten(groups)}
        why = ""
        if not_judged:
            why = f"not judged: {not_judged[0].why}"
        if not_judged and self.by:
            why = f"{len(not_judged)} of {len(found)} groups are not judged; of the first one, {not_judged[0].why}"
        return Judgement(rows, broken, {"success": not broken, **results}, memory=memory, why=why)

    def _rules_broken(self, found: Sequence[GroupFinding]) -> Iterator[BrokenRule]:
        """Yield the broken rules: with "quarantine" one for groups with rows, and a warning for those without."""
        unusual = [finding for finding in found if finding.unusual]
        if self.on_failure != "quarantine":
            if unusual:
                yield BrokenRule(UNUSUAL, self.on_failure, why=self._describe_farthest(unusual, len(found)))
            return
        with_rows = [finding for finding in unusual if finding.rows]
        without_rows = [finding for finding in unusual if not finding.rows]
        if with_rows:
            rows = sum(finding.rows for finding in with_rows)
            yield BrokenRule(UNUSUAL, "quarantine", rows=rows, why=self._describe_farthest(with_rows, len(found)))
        if without_rows:
            yield BrokenRule(WITHOUT_ROWS, "warn", why=self._describe_farthest(without_rows, len(found)))

    def _describe_farthest(self, unusual: Sequence[GroupFinding], group_count: int) -> str:
        worst = max(unusual, key=GroupFinding.distance)
        which = f" of {len(unusual)} of {group_count} groups is unusual; the farthest" if self.by else ""
        return f"{self.function}{which} is {worst.text()}"

    @property
    def _meaning(self) -> str:
        """A hash of the settings that a history depends on."""
        return fingerprint([self.function, self.by, self.season, self.timezone, self.event_time])

    def _remembered_groups(self, context: GateContext) -> dict[str, Json]:
        """Return what is remembered of each group, unless it was about something else."""
        if context.memory.get("of") != self._meaning:
            return {}
        return dict(context.memory["groups"])


class GroupFinding(msgspec.Struct):
    """A group's value, and what was expected."""

    group: list[str | None]
    value: float | None
    rows: int
    history: int
    band: Band | None = None
    unusual: bool = False
    enough_rows: bool = True
    why: str = ""
    """Why it was not judged."""

    def distance(self) -> float:
        """Return how far the value is from the band, in widths of the band."""
        if self.band is None or self.value is None:
            return math.inf
        beyond = max(self.band.low - self.value, self.value - self.band.high)
        return beyond / max(self.band.high - self.band.low, 1e-12)

    def text(self) -> str:
        """Return the numbers, for display."""
        if self.band is None:
            return f"{self.value}, which is no number"
        value, low, high = map(_display_number, (self.value, self.band.low, self.band.high))
        expected = _display_number(self.band.expected)
        return f"{value}; {low} to {high} was expected, about {expected}, from {self.history:,} checkpoints"

    def result(self) -> Json:
        """Return it for the verdict's results."""
        value = self.value if self.value is None or math.isfinite(self.value) else str(self.value)
        result: Json = {"group": self.group, "value": value, "rows": self.rows, "unusual": self.unusual}
        if self.band is not None:
            result |= {"low": self.band.low, "expected": self.band.expected, "high": self.band.high}
        if self.why:
            result["not_judged"] = self.why
        return result


def _is_one_of(groups: Sequence[Sequence[str | None]], by: Sequence[str], fractions: Collection[str]) -> Column:
    """Return the condition that a row is of one of these groups, which are named by their values' texts.

    fractions: the columns of floats and doubles. Spark may ask for the rows before it groups them, and only a group has
    0.0 for -0.0.
    """
    from pyspark.sql import functions as f

    columns = []
    for name in by:
        column = f.col(quoted(name))
        if name in fractions:
            column = f.when(column == 0, f.abs(column)).otherwise(column)
        columns.append(column.cast("string"))
    conditions = []
    for texts in groups:
        same = [column.eqNullSafe(f.lit(text)) for column, text in zip(columns, texts, strict=True)]
        conditions.append(reduce(and_, same))
    return reduce(or_, conditions)


def _key(values: Sequence[str | None]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]


def _display_number(number: float | None) -> str:
    return f"{number:,.4g}" if number is not None and abs(number) < 1e4 else f"{number:,.0f}"


def _without_forgotten(groups: dict[str, Json]) -> dict[str, Json]:
    """Return the groups that were seen last, if there are too many."""
    if len(groups) <= MAX_GROUPS:
        return groups
    newest = sorted(groups, key=lambda key: (groups[key].get("unseen", 0), key))[:MAX_GROUPS]
    return {key: groups[key] for key in sorted(newest)}
