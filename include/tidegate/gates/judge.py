"""Judge rows by a suite: counts, Great Expectations' results, a few samples, and which rows are bad."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from tidegate.gates.leaves import Count, Failed, Leaf, Repeats, evaluate, guarded
from tidegate.gates.library import SAMPLES, Compiled, Walk, compile_suite
from tidegate.gates.suite import Rule, Suite
from tidegate.model.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Finding", "Judged", "compiled", "judge", "split"]

SAMPLE_LENGTH = 256
BROADCAST_ROWS = 500_000
"""Up to so many repeated rows, their values are sent to each worker."""
_BROKEN = "_tidegate_broken"


@dataclass(frozen=True)
class Finding:
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


@dataclass(frozen=True)
class Judged:
    """What all rules of a suite found in some rows."""

    suite: Suite
    rows: int
    findings: tuple[Finding, ...]
    kept: tuple[DataFrame, ...] = field(default=(), compare=False, repr=False)
    """What is kept in Spark for whoever asks on, and is to be let go."""

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


def judge(suite: Suite, frame: DataFrame, private: Collection[str] = ()) -> Judged:
    """What the suite says of these rows. Of columns that are private no value is told."""
    known = compiled(suite, frame)
    walk = Walk(known.expectations, frame, known)
    leaves: dict[Any, Leaf] = {**known.first, "rows": Count((), None)}
    rows = 0
    repeated: dict[Leaf, DataFrame] = {}
    while leaves:
        for key, value in evaluate(frame, leaves, repeated).items():
            if isinstance(value, Failed):
                walk.failed[key] = value.error
            elif key == "rows":
                rows = int(value)
            else:
                walk.take(key, value)
        leaves = walk.step(reading=True)
    findings = tuple(
        _finding(rule, walk, expectation, private, repeated)
        for rule, expectation in zip(suite.rules, known.expectations, strict=True)
    )
    _add_samples(frame, [finding for finding in findings if finding.bad and not private_of(finding.rule, private)])
    return Judged(suite, rows, findings, tuple(repeated.values()))


_compiled: dict[tuple[str, str, int], Compiled] = {}
_COMPILED_LIMIT = 64


def compiled(suite: Suite, frame: DataFrame) -> Compiled:
    """The suite's conditions for rows of this schema. Made once in a process for each suite and schema."""
    key = (suite.fingerprint, frame.schema.json(), id(frame.sparkSession))
    if key not in _compiled:
        suite.check_columns(frame.columns)
        made = compile_suite(suite, frame)
        while len(_compiled) >= _COMPILED_LIMIT:
            _compiled.pop(next(iter(_compiled)))
        _compiled[key] = made
    return _compiled[key]


# -- which rows are bad ---------------------------------------------------------------------------------


def split(frame: DataFrame, findings: Sequence[Finding], named: str) -> tuple[DataFrame, DataFrame]:
    """The rows that break none of these findings' rules; and those that do, with the rules' names in column `named`."""
    from pyspark.sql import functions as f

    columns = frame.columns
    marks = []
    for number, finding in enumerate(findings):
        if isinstance(finding.leaf, Repeats):
            frame, mark = _repeated(frame, finding, f"{_BROKEN}{number}")
        else:
            assert isinstance(finding.leaf, Count)
            mark = _counts(finding.leaf)
        marks.append((finding.rule.name, mark))
    bad = reduce(lambda any, one: any | one, (mark for _, mark in marks))
    names = f.array_compact(f.array(*[f.when(mark, f.lit(name)) for name, mark in marks]))
    plain = [f.col(_quoted(name)) for name in columns]
    return frame.where(~bad).select(*plain), frame.where(bad).select(*plain, names.alias(named))


def _counts(leaf: Count) -> Column:
    """True for the rows that a leaf counts, false for all others."""
    from pyspark.sql import functions as f

    assert leaf.condition is not None
    every = (*leaf.guards, leaf.condition)
    return f.coalesce(guarded(every), f.lit(False))


def _repeated(frame: DataFrame, finding: Finding, mark: str) -> tuple[DataFrame, Column]:
    """The rows, with a column that is true where a row's values are there more than once."""
    from pyspark.sql import functions as f

    leaf = finding.leaf
    assert isinstance(leaf, Repeats)
    assert finding.repeated is not None
    names = [f"{mark}_{number}" for number in range(len(leaf.columns))]
    repeated = finding.repeated.toDF(*names, f"{mark}_times")
    if (finding.bad or 0) <= BROADCAST_ROWS:
        repeated = f.broadcast(repeated)  # so that not every row is moved to find a few
    same = [f.col(column).eqNullSafe(f.col(name)) for column, name in zip(leaf.columns, names, strict=True)]
    joined = frame.join(repeated, reduce(lambda all, one: all & one, same), "left")
    found = f.col(f"{mark}_times").isNotNull()
    return joined, f.coalesce(guarded((*leaf.guards, found)), f.lit(False))


# -- what is told of bad values -------------------------------------------------------------------------

_TELLS_NO_VALUE = ("unique_value_count", "proportion", "row_count", "column_count", "to_exist", "type")


def private_of(rule: Rule, private: Collection[str]) -> bool:
    """Whether a rule speaks of a private column."""
    spoken_of = {column.split(".")[0] for column in rule.columns}
    return bool(private) and (rule.type == "unexpected_rows_expectation" or not spoken_of.isdisjoint(private))


def _finding(
    rule: Rule, walk: Walk, expectation: Any, private: Collection[str], repeated: Mapping[Leaf, DataFrame]
) -> Finding:
    result = walk.result(expectation)
    said = result.setdefault("result", {})
    hidden = private_of(rule, private)
    if hidden and not any(word in rule.type for word in _TELLS_NO_VALUE):
        for key in ("observed_value", "details"):
            if key in said:
                said[key] = None
        said |= {key: [] for key in said if key.startswith("partial_")}
    if hidden and result["exception_info"]["raised_exception"]:
        result["exception_info"]["exception_message"] = "not told: the column is private"  # it may hold a value
    leaf = walk.row_leaf(expectation) if rule.kind.tells_rows and "unexpected_count" in said else None
    return Finding(rule, bool(result["success"]), _short(result), leaf, repeated.get(leaf) if leaf else None)


def _short(value: Any) -> Any:
    """A result without long lists and long texts."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in list(value.items())[:100]}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value[:SAMPLES]]
    return value[:SAMPLE_LENGTH] if isinstance(value, str) and len(value) > SAMPLE_LENGTH else value


def _add_samples(frame: DataFrame, findings: Sequence[Finding]) -> None:
    """A few of the values that break each rule, as texts. Never more than that leaves Spark."""
    from pyspark.sql import functions as f

    counted = [finding for finding in findings if isinstance(finding.leaf, Count)]
    if counted:
        numbered = frame.withColumn(_BROKEN, f.rand())
        values = [_sample(frame, finding).alias(f"s{number}") for number, finding in enumerate(counted)]
        lists = [f.slice(f.collect_list(f"s{number}"), 1, SAMPLES) for number in range(len(counted))]
        for finding, samples in zip(counted, numbered.select(*values).agg(*lists).collect()[0], strict=True):
            _tell(finding, samples)
    for finding in findings:
        if isinstance(finding.leaf, Repeats):
            assert finding.repeated is not None
            texts = f.array(*[_text(frame, column) for column in finding.leaf.columns])
            rows = finding.repeated.select(texts).limit(SAMPLES).collect()
            _tell(finding, [row[0] for row in rows])


def _sample(frame: DataFrame, finding: Finding) -> Column:
    """The values of a row that breaks a rule, else null. Of very many such rows only some are looked at."""
    from pyspark.sql import functions as f

    assert isinstance(finding.leaf, Count)
    assert finding.bad
    mark = _counts(finding.leaf)
    if finding.bad > 50 * SAMPLES:
        mark = mark & (f.col(_BROKEN) < 10 * SAMPLES / finding.bad)
    return f.when(mark, f.array(*[_text(frame, column) for column in finding.rule.columns]))


def _tell(finding: Finding, samples: Sequence[Sequence[str | None]]) -> None:
    told = finding.result["result"]["partial_unexpected_list"]
    told += [_shaped(finding.rule, list(sample)) for sample in samples]


def _text(frame: DataFrame, name: str) -> Column:
    """A column's values as short texts."""
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes).get(name, "string")
    column = f.col(name)
    if kind == "binary":
        column = f.hex(f.substring(column, 1, SAMPLE_LENGTH // 2))
    elif kind.startswith(("struct", "array", "map", "variant")):
        column = f.to_json(column)
    return f.left(column.cast("string"), f.lit(SAMPLE_LENGTH))


def _shaped(rule: Rule, values: list[str | None]) -> Any:
    """As Great Expectations shapes them: a value, a pair, or values by column."""
    if "column" in rule.kwargs:
        return values[0]
    return values if "column_A" in rule.kwargs else dict(zip(rule.columns, values, strict=True))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
