"""Evaluate every condition of a suite once for each row while the rows are persisted, and derive all counts from that.

Mark columns next to each row hold a bit for each condition that it meets, and a hash for each set of columns that must
be unique. Spark's Python workers count the bits and find repeated hashes, in half the time that grouping takes. Equal
values have equal hashes, so no repeated row is missed. Whether equal hashes stand for equal values is checked among the
few rows that have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from tidegate.gates.judging.aggregates import Count, Leaf, Repeats, guarded
from tidegate.records.names import quoted
from tidegate.spark.materialize import materialize, release
from tidegate.versions.spark import repartition_by_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = [
    "BITS",
    "EVERY_ROW",
    "WORD",
    "MarkColumns",
    "MarkedRows",
    "Uniqueness",
    "any_mark",
    "mark",
    "mark_columns_for",
    "only_marked",
    "unmarked",
]

Uniqueness = Literal["hash", "judged", "none"]

BITS, _HASH, _TWICE = "_tidegate_bits", "_tidegate_hash", "_tidegate_twice"
WORD = 62
"""Bits in one mark column."""
_SURE = 200_000
"""Above this number of repeated rows, hashes are not used to find them: their values are compared in one process."""
_HASHED = ("boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "string", "binary")
EVERY_ROW = -1
_COUNTS = -1
"""Marks the row of a scan that counts bits, instead of the number of a rule."""
_FOUND = "rule int, rows long, numbers array<long>"


@dataclass(frozen=True)
class _Bits:
    """The bits that are set for a row that a leaf counts, and for a row that passes its guards."""

    condition: int
    passed: int


class MarkColumns:
    """The mark columns of a suite. They are the same for every checkpoint, so they are made once.

    uniqueness: the mark for each set of columns that must be unique: their hash; only whether the row is to be judged,
    because the reader of the files hashes the columns itself; or nothing.
    """

    def __init__(self, leaves: Iterable[Leaf], types: Mapping[str, str], uniqueness: Uniqueness) -> None:
        from pyspark.sql import functions as f

        self.conditions: list[Column] = []
        leaves = list(leaves)
        self.bits = {leaf: self._assign_bits(leaf) for leaf in leaves if isinstance(leaf, Count) and not leaf.alone}
        unique = [leaf for leaf in leaves if isinstance(leaf, Repeats) and uniqueness != "none"]
        self.rules = [leaf for leaf in unique if all(_is_hashable(types.get(name)) for name in leaf.columns)]
        self.complete = len(self.rules) == sum(isinstance(leaf, Repeats) for leaf in leaves)
        """True: every rule of uniqueness has its mark."""
        judged = self.rules if uniqueness == "judged" else []
        self.judged = {leaf: self._add_condition(guarded(leaf.guards)) if leaf.guards else EVERY_ROW for leaf in judged}
        """The bit of the rows that a rule of uniqueness judges."""
        words = [self.conditions[start : start + WORD] for start in range(0, len(self.conditions), WORD)]
        self.columns = {f"{BITS}{number}": _word_column(word) for number, word in enumerate(words)}
        for number, leaf in enumerate(self.rules if uniqueness == "hash" else []):
            hashed = _hash_column([f.col(name) for name in leaf.columns])
            self.columns[f"{_HASH}{number}"] = f.when(guarded(leaf.guards), hashed) if leaf.guards else hashed
        self.names = list(self.columns)

    def _assign_bits(self, leaf: Count) -> _Bits:
        """Assign bits to a leaf."""
        from pyspark.sql import functions as f

        passed = EVERY_ROW
        if leaf.guards and (leaf.none_of_none or leaf.condition is None):
            passed = self._add_condition(guarded(leaf.guards))
        if leaf.condition is None:
            return _Bits(passed, passed)
        met = f.when(guarded(leaf.guards), leaf.condition) if leaf.guards else leaf.condition
        return _Bits(self._add_condition(met), passed)

    def _add_condition(self, condition: Column) -> int:
        self.conditions.append(condition)
        return len(self.conditions) - 1


class MarkedRows:
    """Rows that are persisted with their marks."""

    def __init__(self, frame: DataFrame, mark_columns_for: MarkColumns) -> None:
        self._conditions = mark_columns_for.conditions
        self._bits = mark_columns_for.bits
        self._rules = mark_columns_for.rules
        self._scanned: DataFrame | None = None
        self._repeated: dict[int, DataFrame] = {}
        self.twice: dict[Repeats, int] = {}
        """The rules whose repeated rows are found by their hashes, with the number of different hashes of these
        rows."""
        self.names = mark_columns_for.names
        self.rows = materialize(
            frame.select("*", *(column.alias(name) for name, column in mark_columns_for.columns.items()))
        )

    # -- counting ---------------------------------------------------------------------------------------

    def read(self, max_rows: int, share: float) -> dict[Leaf, int | None]:
        """Return the counts of the leaves that have marks. Raise if a condition cannot be evaluated for some row.

        max_rows, share: the number of repeated rows, or their share of all, up to which hashes are used to find them.
        """
        counts, repeats = self._count_and_find_repeats() if self._rules else (self._count_bits(), {})
        rows = counts[EVERY_ROW]
        values: dict[Leaf, int | None] = {}
        for leaf, bits in self._bits.items():
            empty = leaf.none_of_none and not counts[bits.passed]
            values[leaf] = None if empty else counts[bits.condition]
        limit = min(max(max_rows, share * rows), _SURE)
        for rule, (repeated_rows, hashes) in repeats.items():
            if repeated_rows <= limit:
                values[rule] = repeated_rows
                if hashes:
                    self.twice[rule] = hashes
        return values

    def _count_bits(self) -> list[int]:
        """Return the number of rows with each bit and, last, the number of all rows."""
        from pyspark.sql import functions as f

        bits = [f.count(f.when(self._has(number), 1)) for number in range(len(self._conditions))]
        counts = [*bits, f.count(f.lit(1))]
        return list(self.rows.agg(*(count.alias(f"n{n}") for n, count in enumerate(counts))).collect()[0])

    def _count_and_find_repeats(self) -> tuple[list[int], dict[Repeats, tuple[int, int]]]:
        """Return the counts of `_count_bits`, and repeats for each rule of uniqueness.

        These are the number of rows that share a hash with another row, and the number of different hashes among them.
        """
        from pyspark.sql import functions as f

        spark = self.rows.sparkSession
        split = max(int(spark.conf.get("spark.sql.shuffle.partitions", "") or 1), 1)
        sort = _make_sorter(len(self._conditions), len(self._rules), split)
        parts = self.rows.select(*self.names).mapInArrow(sort, "rule int, bucket int, numbers binary")
        spread = repartition_by_id(parts, split, f.col("bucket"))
        self._scanned = materialize(spread.mapInArrow(_make_finder(), _FOUND))
        counts, repeats = [0] * (len(self._conditions) + 1), [(0, 0)] * len(self._rules)
        bit_counts = f.when(f.col("rule") == _COUNTS, f.col("numbers"))
        for rule, rows, hashes, numbers in self._scanned.select(
            "rule", "rows", f.size("numbers"), bit_counts
        ).collect():
            if rule == _COUNTS:
                counts = [a + b for a, b in zip(counts, numbers, strict=True)]
            else:
                repeats[rule] = (repeats[rule][0] + rows, repeats[rule][1] + hashes)
        return counts, dict(zip(self._rules, repeats, strict=True))

    # -- which rows a leaf counts -----------------------------------------------------------------------

    def marked(self, rows: DataFrame, leaf: Leaf) -> tuple[DataFrame, Column] | None:
        """Return `rows`, possibly with one more column, and the condition that a leaf counts a row.

        None if the leaf has no mark. rows: some of the marked rows. Call this once for each leaf, since each call may
        add a column.
        """
        from pyspark.sql import functions as f

        if leaf in self._bits:
            bit = self._bits[leaf].condition
            return rows, self._has(bit) if bit != EVERY_ROW else f.lit(True)
        if isinstance(leaf, Repeats) and leaf in self.twice:
            return self._join_repeated(rows, leaf)
        return None

    def _join_repeated(self, rows: DataFrame, leaf: Repeats) -> tuple[DataFrame, Column]:
        from pyspark.sql import functions as f

        assert self._scanned is not None
        number = self._rules.index(leaf)
        name = f"{_TWICE}{number}"
        if number not in self._repeated:
            hashes = self._scanned.where(f.col("rule") == number).select(f.explode("numbers").alias(name))
            self._repeated[number] = f.broadcast(hashes)
        rows = rows.join(self._repeated[number], f.col(f"{_HASH}{number}") == f.col(name), "left")
        return rows, f.col(name).isNotNull()

    def _has(self, bit: int) -> Column:
        from pyspark.sql import functions as f

        return f.col(f"{BITS}{bit // WORD}").bitwiseAND(f.lit(1 << bit % WORD)) != 0

    @property
    def persisted(self) -> tuple[DataFrame, ...]:
        """The frames that are persisted in Spark."""
        return (self.rows, *([self._scanned] if self._scanned is not None else ()))


def mark(
    frame: DataFrame,
    leaves: Mapping[Any, Leaf],
    mark_columns: dict[Uniqueness, MarkColumns],
    max_rows: int,
    share: float,
    *,
    hashing: bool = True,
) -> tuple[MarkedRows, dict[Leaf, int | None]] | None:
    """Persist the rows and count. None: a condition fails for some row, so each rule must be evaluated by itself.

    mark_columns: those that were made before for these leaves. hashing: find repeated rows by hashes, too.
    """
    noted = None
    try:
        noted = MarkedRows(frame, mark_columns_for(frame, leaves, mark_columns, "hash" if hashing else "none"))
        return noted, noted.read(max_rows, share)
    except Exception:  # evaluating the rules one by one shows which is at fault
        for rows in noted.persisted if noted is not None else ():
            release(rows)
        return None


def unmarked(rows: DataFrame, marks: Iterable[Column], columns: Iterable[str]) -> DataFrame:
    """Return the rows for which no mark is true, with these columns."""
    return rows.where(~any_mark(marks)).select(*map(quoted, columns))


def only_marked(rows: DataFrame, marks: Mapping[str, Column], columns: Iterable[str], named: str) -> DataFrame:
    """Return the rows for which a mark is true, with the names of these marks in column `named`.

    marks: by the names of their rules. They are never null.
    """
    from pyspark.sql import functions as f

    names = [f.when(mark, f.lit(name)) for name, mark in marks.items()]
    bad = rows.where(any_mark(marks.values()))
    return bad.select(*map(quoted, columns), f.array_compact(f.array(*names)).alias(named))


def any_mark(marks: Iterable[Column]) -> Column:
    """Return the condition that one of the marks is true."""
    return reduce(lambda first, second: first | second, marks)


def mark_columns_for(
    frame: DataFrame, leaves: Mapping[Any, Leaf], mark_columns: dict[Uniqueness, MarkColumns], uniqueness: Uniqueness
) -> MarkColumns:
    """Return the mark columns for these rows. They are made once."""
    if uniqueness not in mark_columns:
        mark_columns[uniqueness] = MarkColumns(leaves.values(), dict(frame.dtypes), uniqueness)
    return mark_columns[uniqueness]


def _is_hashable(kind: str | None) -> bool:
    """Return whether equal values of this type have equal hashes, and `groupBy` considers the same values equal."""
    return kind is not None and (kind in _HASHED or kind.startswith("decimal("))


def _hash_column(columns: list[Column]) -> Column:
    """Return one number for the values of a row. A null does not change a hash, so with several columns the nulls are
    hashed, too."""
    from pyspark.sql import functions as f

    nulls = [column.isNull() for column in columns] if len(columns) > 1 else []
    return f.xxhash64(*columns, *nulls)


def _word_column(conditions: list[Column]) -> Column:
    """Combine the bits into one number."""
    from pyspark.sql import functions as f

    bits = (f.when(condition, f.lit(1 << bit)).otherwise(f.lit(0)) for bit, condition in enumerate(conditions))
    return reduce(lambda word, bit: word.bitwiseOR(bit), bits).cast("long")


# The functions below run in Spark's Python workers. They get whole arrays, never single rows. Workers may not have
# tidegate installed, so these functions contain all that they need and call nothing of this module.


def _make_sorter(bits: int, rules: int, split: int) -> Any:
    """Return a function that counts the bits of a partition's rows, and sorts the hashes of each rule into `split`
    ranges."""
    words, size, counts_rule = -(-bits // WORD), WORD, _COUNTS

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        counts = np.zeros(bits + 1, np.int64)
        hashes: list[list[Any]] = [[] for _ in range(rules)]
        for batch in batches:
            counts[bits] += batch.num_rows
            for word in range(words):
                noted = batch.column(word).to_numpy(zero_copy_only=False)
                for bit in range(word * size, min((word + 1) * size, bits)):
                    counts[bit] += np.count_nonzero(noted & np.int64(1 << bit % size))
            for rule in range(rules):
                hashes[rule].append(batch.column(words + rule).drop_null().to_numpy(zero_copy_only=False))
        output = [(counts_rule, 0, counts.tobytes())]
        ends = np.array([-(2**63) + bucket * (2**64 // split) for bucket in range(1, split)], np.int64)
        for rule, parts in enumerate(hashes):
            values = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
            cut = np.split(values, np.searchsorted(values, ends))
            output += [(rule, bucket, part.tobytes()) for bucket, part in enumerate(cut)]
        kinds = (pa.int32(), pa.int32(), pa.binary())
        columns = [pa.array(column, kind) for column, kind in zip(zip(*output, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=["rule", "bucket", "numbers"])

    return work


def _make_finder() -> Any:
    """Return a function that adds up the bits of all partitions, and finds the repeated hashes of a range."""
    counts_rule = _COUNTS

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        parts: dict[int, list[Any]] = {}
        for batch in batches:
            for rule, numbers in zip(batch.column(0).to_pylist(), batch.column(2).to_pylist(), strict=True):
                parts.setdefault(rule, []).append(np.frombuffer(numbers, np.int64))
        output: list[tuple[int, int, Any]] = []
        for rule, arrays in parts.items():
            if rule == counts_rule:
                output.append((rule, 0, np.sum(arrays, axis=0)))
                continue
            values = np.sort(np.concatenate(arrays), kind="stable")  # runs that are sorted are merged
            first = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.zeros(0, np.int64)
            times = np.diff(np.append(first, len(values)))
            output.append((rule, int(times[times > 1].sum()), values[first[times > 1]]))
        kinds = (pa.int32(), pa.int64(), pa.list_(pa.int64()))
        columns = [pa.array(column, kind) for column, kind in zip(zip(*output, strict=True), kinds, strict=True)]
        if output:
            yield pa.RecordBatch.from_arrays(columns, names=["rule", "rows", "numbers"])

    return work
