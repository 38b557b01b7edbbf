"""Judge rows by a suite: counts, Great Expectations' results, a few samples, and which rows are bad."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.gates.expectations.library import Compiled, Walk, compiled
from tidegate.gates.expectations.suite import Rule, Suite
from tidegate.gates.judging.aggregates import Count, FailedAggregate, Leaf, Repeats, evaluate, guarded
from tidegate.gates.judging.in_files import InFiles, NotNoted, Stage, note_in_files
from tidegate.gates.judging.row_marks import MarkedRows, mark
from tidegate.gates.judging.samples import SAMPLES, add_samples, display_column, private_of, redact, texts_of, truncate
from tidegate.records.names import quoted
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Judged", "RuleFinding", "judge", "plain", "split", "tell_of_files"]

BROADCAST_ROWS = 500_000
"""Up to so many repeated rows, their values are sent to each worker."""
FEW, FEW_ROWS = 0.1, 1000
"""Up to this share of rows, or up to so many, the bad ones are kept beside all others."""
_BROKEN = "_tidegate_broken"
_ROWS = Count((), None)
"""How many rows there are: one leaf for all suites, because what is noted beside rows goes by leaves."""


@dataclass(frozen=True)
class RuleFinding:
    """What one rule found."""

    rule: Rule
    success: bool
    result: Json
    """Great Expectations' result of it, its samples few and short."""
    leaf: Leaf | None = field(compare=False, repr=False)
    """How the rows that break it are told; None if it speaks of no rows, or could not be judged."""
    repeated: DataFrame | None = field(default=None, compare=False, repr=False)
    """Of a rule of uniqueness: the values that are there more than once."""

    @property
    def bad(self) -> int | None:
        """How many rows break it; None if that is not known."""
        count = self.result["result"].get("unexpected_count")
        return int(count) if self.rule.kind.tells_rows and count is not None else None

    @property
    def takes_rows(self) -> bool:
        """Whether it has failed by rows that can be told from the others. Those within `mostly` go on."""
        return not self.success and self.leaf is not None and bool(self.bad)


class _Marked(NamedTuple):
    """Rows, and what tells of each whether it breaks a rule, by the number of the finding."""

    rows: DataFrame
    marks: dict[int, Column]


@dataclass(frozen=True)
class Judged:
    """What all rules of a suite found in some rows."""

    suite: Suite
    rows: int
    findings: tuple[RuleFinding, ...]
    bad: DataFrame | None = field(default=None, compare=False, repr=False)
    """If they are few: all rows that break a rule, with a column for each finding that says whether they break that."""
    frame: DataFrame | None = field(default=None, compare=False, repr=False)
    """The rows as they were judged, if `judge` has kept them."""
    noted: MarkedRows | None = field(default=None, compare=False, repr=False)
    kept: tuple[DataFrame, ...] = field(default=(), compare=False, repr=False)
    """What is kept in Spark for whoever asks on, and is to be let go."""
    files: InFiles | None = field(default=None, compare=False, repr=False)
    """The files that hold the rows, if they were staged to be judged."""
    marked: _Marked | None = field(default=None, compare=False, repr=False)
    """`frame` with marks for all that break a rule, if these are few."""

    def record(self) -> Json:
        """Great Expectations' result of the whole suite."""
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
    stage: Stage | None = None,
) -> Judged:
    """What the suite says of these rows. Of columns that are private no value is told.

    keeping: keep the rows in Spark, so that they are computed once. Else they are read again and again.
    hashing: find repeated rows by hashes of their values, if that proves right.
    stage: keep them in a table's files instead, if that can be done. Of bad values `tell_of_files` is to tell then.
    """
    known = compiled(suite, frame)
    leaves: dict[Any, Leaf] = {**known.first, "rows": _ROWS}
    held = _held(frame, leaves, known, stage, keeping=keeping, hashing=hashing)
    rows, findings, repeated = _found(suite, frame, held, known, leaves, private)
    judged = Judged(suite, rows, findings, frame=held.frame if keeping else None, noted=held.noted, files=held.files)
    if held.files is not None:
        return judged
    frame = held.frame
    marked = _marked_if_few(frame, judged)
    bad = _bad_rows(frame, marked) if marked is not None else None
    kept = (*held.kept, *repeated.values(), *([bad] if bad is not None else ()))
    if _look_at_bad(frame, bad, judged, private):
        return replace(judged, bad=bad, marked=marked, kept=kept)
    again = judge(suite, _rows(judged), private, keeping=True, hashing=False)
    return replace(again, kept=(*kept, *again.kept))


@dataclass(frozen=True)
class _Held:
    """Rows that are there to be read as often as it takes, and what is counted of them already."""

    frame: DataFrame
    """Of rows in files as they were given: not to be read."""
    plain: Callable[[], DataFrame]
    """Without what is noted beside them."""
    counted: Mapping[Leaf, Any] = field(default_factory=dict)
    noted: MarkedRows | None = None
    files: InFiles | None = None
    kept: tuple[DataFrame, ...] = ()


def _held(
    frame: DataFrame, leaves: Mapping[Any, Leaf], known: Compiled, stage: Stage | None, *, keeping: bool, hashing: bool
) -> _Held:
    try:
        in_files = note_in_files(frame, leaves, known.beside, stage) if stage and known.tells_all else None
        found = mark(frame, leaves, known.beside, FEW_ROWS, FEW, hashing=hashing) if keeping and not in_files else None
    except NotNoted:
        in_files = found = None
    if in_files is not None:
        return _Held(frame, cache(in_files[0].ahead.read), in_files[1], files=in_files[0])
    if not keeping:
        return _Held(frame, lambda: frame)
    if found is None:
        rows = materialize(frame)
        return _Held(rows, lambda: rows, kept=(rows,))
    noted, counted = found
    plain = cache(lambda: noted.rows.select(*map(quoted, frame.columns)))
    return _Held(noted.rows, plain, counted, noted, kept=(*noted.kept, noted.rows))


def _found(
    suite: Suite, frame: DataFrame, held: _Held, known: Compiled, leaves: dict[Any, Leaf], private: Collection[str]
) -> tuple[int, tuple[RuleFinding, ...], dict[Leaf, DataFrame]]:
    """How many rows there are, and what each rule finds in them; with values that are there more than once."""
    walk = Walk(known.expectations, frame, known, held.plain)
    rows = 0
    repeated: dict[Leaf, DataFrame] = {}
    while leaves:
        asked = {key: leaf for key, leaf in leaves.items() if leaf not in held.counted}
        there = {key: held.counted[leaf] for key, leaf in leaves.items() if leaf in held.counted}
        read = evaluate(held.plain(), asked, repeated) if asked else {}
        for key, value in {**there, **read}.items():
            if isinstance(value, FailedAggregate):
                walk.failed[key] = value.error
            elif key == "rows":
                rows = int(value)
            else:
                walk.take(key, value)
        leaves = walk.step(reading=True)
    findings = zip(suite.rules, known.expectations, strict=True)
    return rows, tuple(_finding(*each, walk, private, repeated) for each in findings), repeated


# -- which rows are bad ---------------------------------------------------------------------------------


def split(frame: DataFrame, judged: Judged, taken: Sequence[RuleFinding], named: str) -> tuple[DataFrame, DataFrame]:
    """The rows that break none of these findings' rules; and those that do, with the rules' names in column `named`.

    frame: the rows that were judged, maybe with more columns.
    """
    from pyspark.sql import functions as f

    plain = [f.col(quoted(name)) for name in _plain(frame, judged)]
    numbers = [judged.findings.index(each) for each in taken]
    known = judged.marked if frame is judged.frame else None
    marked, marks = known if known is not None and list(known.marks) == numbers else _marked(frame, judged, numbers)
    good = marked.where(~_any(marks.values())).select(*plain)
    if judged.bad is not None and set(frame.columns) <= set(judged.bad.columns):
        marked, marks = judged.bad, {number: _mark(number) for number in marks}
    names = [f.when(mark, f.lit(judged.findings[number].rule.name)) for number, mark in marks.items()]
    bad = marked.where(_any(marks.values())).select(*plain, f.array_compact(f.array(*names)).alias(named))
    return good, bad


def plain(judged: Judged) -> DataFrame | None:
    """The rows that `judge` has kept, as they were."""
    return None if judged.frame is None else _rows(judged)


def _rows(judged: Judged) -> DataFrame:
    from pyspark.sql import functions as f

    assert judged.frame is not None
    return judged.frame.select(*(f.col(quoted(name)) for name in _plain(judged.frame, judged)))


def _plain(frame: DataFrame, judged: Judged) -> list[str]:
    """The columns without what is noted beside them."""
    noted = set(judged.noted.names) if judged.noted is not None else set()
    return [name for name in frame.columns if name not in noted]


def _marked_if_few(frame: DataFrame, judged: Judged) -> _Marked | None:
    """The rows with marks for all that break a rule; None: there are none, or too many to be kept beside the others."""
    broken = {number: each.bad for number, each in enumerate(judged.findings) if each.bad and each.leaf is not None}
    few = 0 < sum(broken.values()) <= max(judged.rows * FEW, FEW_ROWS)
    return _marked(frame, judged, list(broken)) if few else None


def _bad_rows(frame: DataFrame, marked: _Marked) -> DataFrame:
    """All rows that break a rule, found once."""
    from pyspark.sql import functions as f

    told = [mark.alias(f"{_BROKEN}{number}") for number, mark in marked.marks.items()]
    bad = marked.rows.where(_any(marked.marks.values()))
    return materialize(bad.select(*(f.col(quoted(name)) for name in frame.columns), *told))


def _mark(number: int) -> Column:
    from pyspark.sql import functions as f

    return f.col(f"{_BROKEN}{number}")


def _any(marks: Iterable[Column]) -> Column:
    return reduce(lambda any, one: any | one, marks)


def _marked(frame: DataFrame, judged: Judged, numbers: Sequence[int]) -> _Marked:
    """The rows, and for each of these findings whether they break its rule."""
    marks: dict[int, Column] = {}
    by_leaf: dict[Leaf, Column] = {}
    for number in numbers:
        leaf = judged.findings[number].leaf
        assert leaf is not None
        if leaf not in by_leaf:
            frame, by_leaf[leaf] = _told(frame, judged, leaf, number)
        marks[number] = by_leaf[leaf]
    return _Marked(frame, marks)


def _told(frame: DataFrame, judged: Judged, leaf: Leaf, number: int) -> tuple[DataFrame, Column]:
    """The rows, maybe with a column more, and whether the leaf counts them, which is that of finding `number`."""
    from pyspark.sql import functions as f

    noted = judged.noted.marked(frame, leaf) if judged.noted is not None else None
    if noted is not None:
        return noted
    if isinstance(leaf, Repeats):
        name = f"{_BROKEN}_r{number}"
        repeated, same = _repeats(judged.findings[number], name)
        found = f.col(f"{name}_times").isNotNull()
        return frame.join(repeated, same, "left"), f.coalesce(guarded((*leaf.guards, found)), f.lit(False))
    assert isinstance(leaf, Count)
    return frame, _counts(leaf)


def _repeats(finding: RuleFinding, name: str) -> tuple[DataFrame, Column]:
    """The values that are there more than once, under names of their own; and whether a row has one of them."""
    from pyspark.sql import functions as f

    assert isinstance(finding.leaf, Repeats)
    assert finding.repeated is not None
    columns = finding.leaf.columns
    names = [f"{name}_{number}" for number in range(len(columns))]
    repeated = finding.repeated.toDF(*names, f"{name}_times")
    if (finding.bad or 0) <= BROADCAST_ROWS:
        repeated = f.broadcast(repeated)  # so that not every row is moved to find a few
    same = [f.col(column).eqNullSafe(f.col(aside)) for column, aside in zip(columns, names, strict=True)]
    return repeated, reduce(lambda all, one: all & one, same)


def _counts(leaf: Count) -> Column:
    """True for the rows that a leaf counts, false for all others."""
    from pyspark.sql import functions as f

    assert leaf.condition is not None
    every = (*leaf.guards, leaf.condition)
    return f.coalesce(guarded(every), f.lit(False))


# -- what is told of bad values -------------------------------------------------------------------------


def _finding(
    rule: Rule, expectation: Any, walk: Walk, private: Collection[str], repeated: Mapping[Leaf, DataFrame]
) -> RuleFinding:
    result = walk.result(expectation)
    said = result.setdefault("result", {})
    redact(result, rule, private)
    leaf = walk.row_leaf(expectation) if rule.kind.tells_rows and "unexpected_count" in said else None
    return RuleFinding(rule, bool(result["success"]), truncate(result), leaf, repeated.get(leaf) if leaf else None)


def _look_at_bad(frame: DataFrame, bad: DataFrame | None, judged: Judged, private: Collection[str]) -> bool:
    """Add a few of the values that break each rule, as texts. Never more than that leaves Spark.

    In the same pass: whether repeated rows that were found by hashes have as many different values as hashes. False:
    some have been found only because the hashes of different values are the same.
    """
    from pyspark.sql import functions as f

    findings = judged.findings
    twice = judged.noted.twice if judged.noted is not None else {}
    hashed = {n: each.leaf for n, each in enumerate(findings) if isinstance(each.leaf, Repeats) and each.leaf in twice}
    told = {n: each for n, each in enumerate(findings) if each.bad and not private_of(each.rule, private)}
    in_rows = [number for number, each in told.items() if each.repeated is None and each.leaf is not None]
    if looked_at := sorted({*in_rows, *hashed}):
        if bad is not None:
            rows, marks = bad, {number: _mark(number) for number in looked_at}
        else:
            rows, marks = _marked(frame, judged, looked_at)
        values = [_sample(frame, findings[n], marks[n]).alias(f"s{n}") for n in in_rows]
        values += [f.when(marks[n], f.struct(*map(f.col, leaf.columns))).alias(f"v{n}") for n, leaf in hashed.items()]
        lists = [f.slice(f.collect_list(f"s{n}"), 1, SAMPLES) for n in in_rows]
        counts = [f.size(f.collect_set(f"v{n}")) for n in hashed]
        row = rows.withColumn(_BROKEN, f.rand(0)).select(*values).agg(*lists, *counts).collect()[0]
        if any(row[len(lists) + at] > twice[leaf] for at, leaf in enumerate(hashed.values())):
            return False
        for number, samples in zip(in_rows, row, strict=False):
            add_samples(findings[number].result, findings[number].rule, samples)
    for finding in told.values():
        if isinstance(finding.leaf, Repeats) and finding.repeated is not None:
            texts = f.array(*[display_column(frame, column) for column in finding.leaf.columns])
            add_samples(
                finding.result,
                finding.rule,
                [row[0] for row in finding.repeated.select(texts).limit(SAMPLES).collect()],
            )
    return True


def tell_of_files(frame: DataFrame, judged: Judged, private: Collection[str]) -> None:
    """Add a few of the values that break each rule to what was found in files, as texts."""
    assert judged.files is not None
    findings = judged.findings
    told = {n: each for n, each in enumerate(findings) if each.bad and not private_of(each.rule, private)}
    columns = {
        n: each.leaf.columns if isinstance(each.leaf, Repeats) else each.rule.columns for n, each in told.items()
    }
    fields = {
        name: name if name in frame.columns else name.split(".")[0] for every in columns.values() for name in every
    }
    wanted = {
        n: (each.leaf, list(dict.fromkeys(fields[name] for name in columns[n])))
        for n, each in told.items()
        if each.leaf
    }
    texts = texts_of(judged.files.samples(wanted), columns, frame)
    for number, samples in texts.items():
        add_samples(findings[number].result, findings[number].rule, samples)


def _sample(frame: DataFrame, finding: RuleFinding, mark: Column) -> Column:
    """The values of a row that breaks a rule, else null. Of very many such rows only some are looked at."""
    from pyspark.sql import functions as f

    assert finding.bad
    if finding.bad > 50 * SAMPLES:
        mark = mark & (f.col(_BROKEN) < 10 * SAMPLES / finding.bad)
    return f.when(mark, f.array(*[display_column(frame, column) for column in finding.rule.columns]))
