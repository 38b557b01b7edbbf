"""Judge rows by a suite: counts, Great Expectations' results, a few samples, and which rows are bad."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.gates.expectations.library import Compiled, Walk, compiled
from tidegate.gates.expectations.suite import Rule, Suite
from tidegate.gates.judging.aggregates import Count, FailedAggregate, Leaf, Repeats, evaluate, guarded
from tidegate.gates.judging.in_files import InFiles, MarkingFailed, Prestage, note_in_files
from tidegate.gates.judging.row_marks import MarkedRows, any_mark, mark, only_marked, unmarked
from tidegate.gates.judging.samples import SAMPLES, add_samples, display_column, private_of, redact, texts_of, truncate
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Judged", "RuleFinding", "add_samples_from_files", "counting_condition", "judge", "plain", "split"]

BROADCAST_ROWS = 500_000
"""Up to this many repeated rows, their values are sent to each worker."""
FEW, FEW_ROWS = 0.1, 1000
"""Up to this share of all rows, or up to this number, bad rows are persisted separately."""
_BROKEN = "_tidegate_broken"
_ROWS = Count((), None)
"""Counts all rows. It is one leaf for all suites, because mark columns are found by their leaves."""


@dataclass(frozen=True)
class RuleFinding:
    """The finding of one rule."""

    rule: Rule
    success: bool
    result: Json
    """Great Expectations' result for the rule, with few and short samples."""
    leaf: Leaf | None = field(compare=False, repr=False)
    """The leaf that counts the rows that break it. None: the rule is not about rows, or could not be judged."""
    repeated: DataFrame | None = field(default=None, compare=False, repr=False)
    """For a rule of uniqueness: the values that occur more than once."""
    bad: int | None = None
    """The number of rows that break it. None: it is not known."""

    @property
    def removes_rows(self) -> bool:
        """True: it has failed, and the rows that break it can be identified. If it holds within `mostly`, they pass."""
        return not self.success and self.leaf is not None and bool(self.bad)


class _Marked(NamedTuple):
    """Rows, and for the number of each finding the condition that a row breaks its rule."""

    rows: DataFrame
    marks: dict[int, Column]


@dataclass(frozen=True)
class Judged:
    """The findings of all rules of a suite for some rows."""

    suite: Suite
    rows: int
    findings: tuple[RuleFinding, ...]
    bad: DataFrame | None = field(default=None, compare=False, repr=False)
    """All rows that break a rule, if they are few, with a column for each finding that says whether a row breaks its
    rule."""
    frame: DataFrame | None = field(default=None, compare=False, repr=False)
    """The rows as they were judged, if `judge` has persisted them."""
    marked_rows: MarkedRows | None = field(default=None, compare=False, repr=False)
    persisted: tuple[DataFrame, ...] = field(default=(), compare=False, repr=False)
    """Frames that are persisted in Spark for later steps. The caller releases them."""
    files: InFiles | None = field(default=None, compare=False, repr=False)
    """The files that hold the rows, if they were staged before they were judged."""
    marked: _Marked | None = field(default=None, compare=False, repr=False)
    """`frame` with marks for all rows that break a rule, if these are few."""

    def record(self) -> Json:
        """Return Great Expectations' result for the whole suite."""
        passed = sum(finding.success for finding in self.findings)
        total = len(self.findings)
        return {
            "success": passed == total,
            "suite_name": self.suite.name,
            "suite_parameters": {},
            "statistics": {
                "evaluated_expectations": total,
                "successful_expectations": passed,
                "unsuccessful_expectations": total - passed,
                "success_percent": passed / total * 100 if total else None,
            },
            "results": [finding.result for finding in self.findings],
            "meta": {},
        }


def judge(
    suite: Suite,
    frame: DataFrame,
    private: Collection[str] = (),
    *,
    keeping: bool = False,
    hashing: bool = True,
    stage: Prestage | None = None,
) -> Judged:
    """Judge these rows by a suite. No value of a private column is in the result.

    keeping: persist the rows in Spark, so that they are computed once. Otherwise they are read again and again.
    hashing: find repeated rows by hashes of their values, if that proves right.
    stage: write the rows to a table's files instead, if possible. `add_samples_from_files` must then add samples of bad
    values.
    """
    suite_plan = compiled(suite, frame)
    leaves: dict[Any, Leaf] = {**suite_plan.first, "rows": _ROWS}
    readable = _make_readable(frame, leaves, suite_plan, stage, keeping=keeping, hashing=hashing)
    rows, findings, repeated = _evaluate_rules(suite, frame, readable, suite_plan, leaves, private)
    judged = Judged(
        suite,
        rows,
        findings,
        frame=readable.frame if keeping else None,
        marked_rows=readable.noted,
        files=readable.files,
    )
    if readable.files is not None:
        return judged
    frame = readable.frame
    marked = _mark_bad_rows(frame, judged)
    bad = _materialize_bad_rows(frame, marked) if marked is not None else None
    persisted = [*readable.persisted, *repeated.values()]
    if bad is not None:
        persisted.append(bad)
    if _add_samples_and_check_hashes(frame, bad, judged, private):
        return replace(judged, bad=bad, marked=marked, persisted=tuple(persisted))
    again = judge(suite, _plain_rows(judged), private, keeping=True, hashing=False)
    return replace(again, persisted=(*persisted, *again.persisted))


@dataclass(frozen=True)
class _ReadableRows:
    """Rows that can be read several times, and the counts that are already known."""

    frame: DataFrame
    """If the rows are in files: the input, which must not be read again."""
    plain: Callable[[], DataFrame]
    """Returns the rows without mark columns."""
    counted: Mapping[Leaf, Any] = field(default_factory=dict)
    noted: MarkedRows | None = None
    files: InFiles | None = None
    persisted: tuple[DataFrame, ...] = ()


def _make_readable(
    frame: DataFrame,
    leaves: Mapping[Any, Leaf],
    suite_plan: Compiled,
    stage: Prestage | None,
    *,
    keeping: bool,
    hashing: bool,
) -> _ReadableRows:
    """Stage or persist the rows, with mark columns if possible."""
    in_files = marked = None
    try:
        if stage and suite_plan.identifies_all:
            in_files = note_in_files(frame, leaves, suite_plan.mark_columns, stage)
        if keeping and not in_files:
            marked = mark(frame, leaves, suite_plan.mark_columns, FEW_ROWS, FEW, hashing=hashing)
    except MarkingFailed:
        in_files = marked = None
    if in_files is not None:
        files, counts = in_files
        return _ReadableRows(frame, cache(files.ahead.read), counts, files=files)
    if not keeping:
        return _ReadableRows(frame, lambda: frame)
    if marked is None:
        rows = materialize(frame)
        return _ReadableRows(rows, lambda: rows, persisted=(rows,))
    noted, counted = marked
    plain = cache(lambda: noted.rows.select(*map(quoted, frame.columns)))
    return _ReadableRows(noted.rows, plain, counted, noted, persisted=(*noted.persisted, noted.rows))


def _evaluate_rules(
    suite: Suite,
    frame: DataFrame,
    readable: _ReadableRows,
    suite_plan: Compiled,
    leaves: dict[Any, Leaf],
    private: Collection[str],
) -> tuple[int, tuple[RuleFinding, ...], dict[Leaf, DataFrame]]:
    """Return the number of rows, the finding of each rule, and the values that occur more than once."""
    walk = Walk(suite_plan.expectations, frame, suite_plan, readable.plain)
    rows = 0
    repeated: dict[Leaf, DataFrame] = {}
    while leaves:
        numbers = {key: readable.counted[leaf] for key, leaf in leaves.items() if leaf in readable.counted}
        uncounted = {key: leaf for key, leaf in leaves.items() if leaf not in readable.counted}
        if uncounted:
            numbers |= evaluate(readable.plain(), uncounted, repeated)
        for key, value in numbers.items():
            if isinstance(value, FailedAggregate):
                walk.failed[key] = value.error
            elif key == "rows":
                rows = int(value)
            else:
                walk.record_leaf(key, value)
        leaves = walk.step(reading=True)
    findings = [
        _make_finding(rule, expectation, walk, private, repeated)
        for rule, expectation in zip(suite.rules, suite_plan.expectations, strict=True)
    ]
    return rows, tuple(findings), repeated


# -- which rows are bad ---------------------------------------------------------------------------------


def split(frame: DataFrame, judged: Judged, findings: Sequence[RuleFinding], named: str) -> tuple[DataFrame, DataFrame]:
    """Return the rows that break none of these findings' rules, and those that do, with the rules' names in column
    `named`.

    frame: the rows that were judged, possibly with more columns.
    """
    plain = _plain_columns(frame, judged)
    numbers = [judged.findings.index(finding) for finding in findings]
    before = judged.marked if frame is judged.frame else None
    marked, marks = (
        before if before is not None and list(before.marks) == numbers else _mark_findings(frame, judged, numbers)
    )
    good = unmarked(marked, marks.values(), plain)
    if judged.bad is not None and set(frame.columns) <= set(judged.bad.columns):
        marked, marks = judged.bad, {number: _mark_column(number) for number in marks}
    by_name = {judged.findings[number].rule.name: mark for number, mark in marks.items()}
    return good, only_marked(marked, by_name, plain, named)


def plain(judged: Judged) -> DataFrame | None:
    """Return the rows that `judge` has persisted, without mark columns."""
    return None if judged.frame is None else _plain_rows(judged)


def _plain_rows(judged: Judged) -> DataFrame:
    from pyspark.sql import functions as f

    assert judged.frame is not None
    return judged.frame.select(*(f.col(quoted(name)) for name in _plain_columns(judged.frame, judged)))


def _plain_columns(frame: DataFrame, judged: Judged) -> list[str]:
    """Return the columns without mark columns."""
    noted = set(judged.marked_rows.names) if judged.marked_rows is not None else set()
    return [name for name in frame.columns if name not in noted]


def _mark_bad_rows(frame: DataFrame, judged: Judged) -> _Marked | None:
    """Return the rows that break a rule, with marks. None if there are none, or too many to persist separately."""
    broken = {
        number: finding.bad
        for number, finding in enumerate(judged.findings)
        if finding.bad and finding.leaf is not None
    }
    few = 0 < sum(broken.values()) <= max(judged.rows * FEW, FEW_ROWS)
    return _mark_findings(frame, judged, list(broken)) if few else None


def _materialize_bad_rows(frame: DataFrame, marked: _Marked) -> DataFrame:
    """Find all rows that break a rule, once."""
    from pyspark.sql import functions as f

    marks = [mark.alias(f"{_BROKEN}{number}") for number, mark in marked.marks.items()]
    bad = marked.rows.where(any_mark(marked.marks.values()))
    return materialize(bad.select(*(f.col(quoted(name)) for name in frame.columns), *marks))


def _mark_column(number: int) -> Column:
    from pyspark.sql import functions as f

    return f.col(f"{_BROKEN}{number}")


def _mark_findings(frame: DataFrame, judged: Judged, numbers: Sequence[int]) -> _Marked:
    """Return the rows, and for each of these findings the condition that a row breaks its rule."""
    marks: dict[int, Column] = {}
    by_leaf: dict[Leaf, Column] = {}
    for number in numbers:
        leaf = judged.findings[number].leaf
        assert leaf is not None
        if leaf not in by_leaf:
            frame, by_leaf[leaf] = _mark_leaf(frame, judged, leaf, number)
        marks[number] = by_leaf[leaf]
    return _Marked(frame, marks)


def _mark_leaf(frame: DataFrame, judged: Judged, leaf: Leaf, number: int) -> tuple[DataFrame, Column]:
    """Return the rows, possibly with one more column, and the condition that the leaf counts a row. The leaf is that of
    finding `number`."""
    from pyspark.sql import functions as f

    noted = judged.marked_rows.marked(frame, leaf) if judged.marked_rows is not None else None
    if noted is not None:
        return noted
    if isinstance(leaf, Repeats):
        name = f"{_BROKEN}_r{number}"
        repeated, same = _repeated_values(judged.findings[number], name)
        is_repeated = f.col(f"{name}_times").isNotNull()
        return frame.join(repeated, same, "left"), f.coalesce(guarded((*leaf.guards, is_repeated)), f.lit(False))
    assert isinstance(leaf, Count)
    return frame, counting_condition(leaf)


def _repeated_values(finding: RuleFinding, name: str) -> tuple[DataFrame, Column]:
    """Return the values that occur more than once, in columns of unique names, and the condition that a row has one of
    them."""
    from pyspark.sql import functions as f

    assert isinstance(finding.leaf, Repeats)
    assert finding.repeated is not None
    columns = finding.leaf.columns
    names = [f"{name}_{number}" for number in range(len(columns))]
    repeated = finding.repeated.toDF(*names, f"{name}_times")
    if (finding.bad or 0) <= BROADCAST_ROWS:
        repeated = f.broadcast(repeated)  # so that not every row is moved to find a few
    same = [f.col(column).eqNullSafe(f.col(name)) for column, name in zip(columns, names, strict=True)]
    return repeated, reduce(lambda first, second: first & second, same)


def counting_condition(leaf: Count) -> Column:
    """Return a condition that is true for the rows that a leaf counts, and false for all others."""
    from pyspark.sql import functions as f

    assert leaf.condition is not None
    every = (*leaf.guards, leaf.condition)
    return f.coalesce(guarded(every), f.lit(False))


# -- samples of bad values ------------------------------------------------------------------------------


def _make_finding(
    rule: Rule, expectation: Any, walk: Walk, private: Collection[str], repeated: Mapping[Leaf, DataFrame]
) -> RuleFinding:
    result = walk.result(expectation)
    result.setdefault("result", {})
    result = redact(result, rule, private)
    details = result["result"]
    leaf = bad = None
    if rule.kind.identifies_rows and details:
        leaf, bad = walk.row_leaf(expectation), walk.bad_rows(expectation)
    return RuleFinding(rule, bool(result["success"]), truncate(result), leaf, repeated.get(leaf) if leaf else None, bad)


def _add_samples_and_check_hashes(
    frame: DataFrame, bad: DataFrame | None, judged: Judged, private: Collection[str]
) -> bool:
    """Add a few of the values that break each rule, as short texts: no more than these leave Spark.

    The same pass checks that repeated rows that were found by hashes have as many different values as hashes. False:
    they do not, so some rows were found only because different values have the same hash.
    """
    from pyspark.sql import functions as f

    findings = judged.findings
    hash_counts = judged.marked_rows.twice if judged.marked_rows is not None else {}
    hashed = {
        number: finding.leaf
        for number, finding in enumerate(findings)
        if isinstance(finding.leaf, Repeats) and finding.leaf in hash_counts
    }
    showable = _findings_to_show(judged, private)
    in_rows = [number for number, finding in showable.items() if finding.repeated is None and finding.leaf is not None]
    numbers = sorted({*in_rows, *hashed})
    if numbers:
        if bad is not None:
            rows, marks = bad, {number: _mark_column(number) for number in numbers}
        else:
            rows, marks = _mark_findings(frame, judged, numbers)
        values = [_sample(frame, findings[n], marks[n]).alias(f"s{n}") for n in in_rows]
        values += [f.when(marks[n], f.struct(*map(f.col, leaf.columns))).alias(f"v{n}") for n, leaf in hashed.items()]
        lists = [f.slice(f.collect_list(f"s{n}"), 1, SAMPLES) for n in in_rows]
        counts = [f.size(f.collect_set(f"v{n}")) for n in hashed]
        row = rows.withColumn(_BROKEN, f.rand(0)).select(*values).agg(*lists, *counts).collect()[0]
        value_counts = row[len(lists) :]
        if any(count > hash_counts[leaf] for count, leaf in zip(value_counts, hashed.values(), strict=True)):
            return False
        for number, samples in zip(in_rows, row, strict=False):
            add_samples(findings[number].result, findings[number].rule, samples)
    for finding in showable.values():
        if isinstance(finding.leaf, Repeats) and finding.repeated is not None:
            texts = f.array(*[display_column(frame, column) for column in finding.leaf.columns])
            samples = [row[0] for row in finding.repeated.select(texts).limit(SAMPLES).collect()]
            add_samples(finding.result, finding.rule, samples)
    return True


def _findings_to_show(judged: Judged, private: Collection[str]) -> dict[int, RuleFinding]:
    """Return the findings of which bad values may be shown, by number."""
    return {
        number: finding
        for number, finding in enumerate(judged.findings)
        if finding.bad and finding.rule.columns and not private_of(finding.rule, private)
    }


def add_samples_from_files(frame: DataFrame, judged: Judged, private: Collection[str]) -> None:
    """Add a few of the values that break each rule, as short texts, to findings about rows in files."""
    assert judged.files is not None
    findings = judged.findings
    columns: dict[int, Sequence[str]] = {}
    requested: dict[int, tuple[Leaf, list[str]]] = {}
    for number, finding in _findings_to_show(judged, private).items():
        columns[number] = finding.leaf.columns if isinstance(finding.leaf, Repeats) else finding.rule.columns
        if finding.leaf is not None:
            fields = [name if name in frame.columns else name.split(".")[0] for name in columns[number]]
            requested[number] = finding.leaf, list(dict.fromkeys(fields))
    texts = texts_of(judged.files.samples(requested), columns, frame)
    for number, samples in texts.items():
        add_samples(findings[number].result, findings[number].rule, samples)


def _sample(frame: DataFrame, finding: RuleFinding, mark: Column) -> Column:
    """Return the values of a row that breaks a rule, else null. If very many rows do, a random selection of them."""
    from pyspark.sql import functions as f

    assert finding.bad
    if finding.bad > 50 * SAMPLES:
        mark = mark & (f.col(_BROKEN) < 10 * SAMPLES / finding.bad)
    return f.when(mark, f.array(*[display_column(frame, column) for column in finding.rule.columns]))
