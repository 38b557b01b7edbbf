"""Every condition of a suite, evaluated once for each row while it is kept: all counts follow from what is noted.

Beside each row stand a bit for each condition that it meets, and a hash for each set of columns that is to be unique.
Bits are counted, and hashes that are there twice are found, by Spark's Python workers: that takes a half of what
grouping takes. Equal values have equal hashes, so no repeated row is missed; whether equal hashes come of equal values
is looked at among the few rows that have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from tidegate.gates.judging.aggregates import Count, Leaf, Repeats, guarded
from tidegate.spark.materialize import materialize, release

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["BITS", "EVERY_ROW", "WORD", "MarkColumns", "MarkedRows", "Uniqueness", "beside", "mark"]

Uniqueness = Literal["hash", "judged", "none"]

BITS, _HASH, _TWICE = "_tidegate_bits", "_tidegate_hash", "_tidegate_twice"
WORD = 62
"""So many bits are noted in one column."""
_SURE = 200_000
"""So many repeated rows are told by their hashes at most: their values are compared in one place."""
_HASHED = ("boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "string", "binary")
EVERY_ROW = -1
_COUNTS = -1
"""Where a scan tells of bits, not of a rule."""
_FOUND = "rule int, rows long, numbers array<long>"


@dataclass(frozen=True)
class _Bits:
    """Which bits are set for a row that a leaf counts, and for one that passes its guards."""

    met: int
    passed: int


class MarkColumns:
    """What is noted beside each row of a suite's, as columns. The same for every checkpoint, so it is made once.

    uniqueness: what is noted for each set of columns that is to be unique: their hash; only whether the row is to be
    looked at, because whoever reads the files hashes their columns himself; or nothing.
    """

    def __init__(self, leaves: Iterable[Leaf], types: Mapping[str, str], uniqueness: Uniqueness) -> None:
        from pyspark.sql import functions as f

        self.conditions: list[Column] = []
        leaves = list(leaves)
        self.bits = {leaf: self._noted(leaf) for leaf in leaves if isinstance(leaf, Count) and not leaf.alone}
        unique = [leaf for leaf in leaves if isinstance(leaf, Repeats) and uniqueness != "none"]
        self.rules = [leaf for leaf in unique if all(_hashes(types.get(name)) for name in leaf.columns)]
        self.complete = len(self.rules) == sum(isinstance(leaf, Repeats) for leaf in leaves)
        """Whether that is noted for each."""
        judged = self.rules if uniqueness == "judged" else []
        self.judged = {leaf: self._bit(guarded(leaf.guards)) if leaf.guards else EVERY_ROW for leaf in judged}
        """By which bit a row is told that a rule of uniqueness looks at."""
        words = [self.conditions[at : at + WORD] for at in range(0, len(self.conditions), WORD)]
        self.columns = {f"{BITS}{at}": _word(word) for at, word in enumerate(words)}
        for number, leaf in enumerate(self.rules if uniqueness == "hash" else []):
            hashed = _hash([f.col(name) for name in leaf.columns])
            self.columns[f"{_HASH}{number}"] = f.when(guarded(leaf.guards), hashed) if leaf.guards else hashed
        self.names = list(self.columns)

    def _noted(self, leaf: Count) -> _Bits:
        """Give a leaf its bits."""
        from pyspark.sql import functions as f

        passed = EVERY_ROW
        if leaf.guards and (leaf.none_of_none or leaf.condition is None):
            passed = self._bit(guarded(leaf.guards))
        if leaf.condition is None:
            return _Bits(passed, passed)
        met = f.when(guarded(leaf.guards), leaf.condition) if leaf.guards else leaf.condition
        return _Bits(self._bit(met), passed)

    def _bit(self, condition: Column) -> int:
        self.conditions.append(condition)
        return len(self.conditions) - 1


class MarkedRows:
    """Rows, kept with what is noted of each."""

    def __init__(self, frame: DataFrame, beside: MarkColumns) -> None:
        self._conditions, self._bits, self._rules = beside.conditions, beside.bits, beside.rules
        self._found: DataFrame | None = None
        self._repeated: dict[int, DataFrame] = {}
        self.twice: dict[Repeats, int] = {}
        """The rules whose repeated rows are told by their hashes, and how many different hashes these have."""
        self.names = beside.names
        self.rows = materialize(frame.select("*", *(column.alias(name) for name, column in beside.columns.items())))

    # -- counting ---------------------------------------------------------------------------------------

    def read(self, most: int, share: float) -> dict[Leaf, int | None]:
        """What the leaves count, as far as it is noted. Raises if a condition cannot be evaluated for some row.

        most, share: how many rows, or what share of all, may be repeated to be told by their hashes.
        """
        counts, found = self._scan() if self._rules else (self._sums(), {})
        rows = counts[EVERY_ROW]
        values: dict[Leaf, int | None] = {}
        for leaf, bits in self._bits.items():
            empty = leaf.none_of_none and not counts[bits.passed]
            values[leaf] = None if empty else counts[bits.met]
        few = {leaf: told for leaf, told in found.items() if told[0] <= min(max(most, share * rows), _SURE)}
        self.twice = {leaf: hashes for leaf, (_, hashes) in few.items() if hashes}
        return values | {leaf: repeated for leaf, (repeated, _) in few.items()}

    def _sums(self) -> list[int]:
        """How many rows have each bit; and, last, how many there are."""
        from pyspark.sql import functions as f

        bits = [f.count(f.when(self._has(number), 1)) for number in range(len(self._conditions))]
        row = self.rows.agg(*(each.alias(f"n{at}") for at, each in enumerate([*bits, f.count(f.lit(1))]))).collect()[0]
        return list(row)

    def _scan(self) -> tuple[list[int], dict[Repeats, tuple[int, int]]]:
        """The same; and for each rule of uniqueness how many rows have a hash that another one has, too, and how many
        different ones they have."""
        from pyspark.sql import functions as f

        spark = self.rows.sparkSession
        split = max(int(spark.conf.get("spark.sql.shuffle.partitions", "") or 1), 1)
        sort = _sorter(len(self._conditions), len(self._rules), split)
        parts = self.rows.select(*self.names).mapInArrow(sort, "rule int, bucket int, numbers binary")
        self._found = materialize(parts.repartitionById(split, f.col("bucket")).mapInArrow(_finder(), _FOUND))
        counts, found = [0] * (len(self._conditions) + 1), [(0, 0)] * len(self._rules)
        told = self._found.select("rule", "rows", f.size("numbers"), f.when(f.col("rule") == _COUNTS, f.col("numbers")))
        for rule, repeated, hashes, numbers in told.collect():
            if rule == _COUNTS:
                counts = [a + b for a, b in zip(counts, numbers, strict=True)]
            else:
                found[rule] = (found[rule][0] + repeated, found[rule][1] + hashes)
        return counts, dict(zip(self._rules, found, strict=True))

    # -- telling rows apart -----------------------------------------------------------------------------

    def marked(self, rows: DataFrame, leaf: Leaf) -> tuple[DataFrame, Column] | None:
        """`rows`, which are of these, maybe with a column more; and whether a leaf counts them. None: not noted.

        Each leaf is to be asked for once: its column is added each time.
        """
        from pyspark.sql import functions as f

        if leaf in self._bits:
            met = self._bits[leaf].met
            return rows, self._has(met) if met != EVERY_ROW else f.lit(True)
        return self._joined(rows, leaf) if isinstance(leaf, Repeats) and leaf in self.twice else None

    def _joined(self, rows: DataFrame, leaf: Repeats) -> tuple[DataFrame, Column]:
        from pyspark.sql import functions as f

        assert self._found is not None
        number = self._rules.index(leaf)
        name = f"{_TWICE}{number}"
        if number not in self._repeated:
            hashes = self._found.where(f.col("rule") == number).select(f.explode("numbers").alias(name))
            self._repeated[number] = f.broadcast(hashes)
        rows = rows.join(self._repeated[number], f.col(f"{_HASH}{number}") == f.col(name), "left")
        return rows, f.col(name).isNotNull()

    def _has(self, bit: int) -> Column:
        from pyspark.sql import functions as f

        return f.col(f"{BITS}{bit // WORD}").bitwiseAND(f.lit(1 << bit % WORD)) != 0

    @property
    def kept(self) -> tuple[DataFrame, ...]:
        """What is kept in Spark."""
        return (self.rows, *([self._found] if self._found is not None else ()))


def mark(
    frame: DataFrame,
    leaves: Mapping[Any, Leaf],
    made: dict[Uniqueness, MarkColumns],
    most: int,
    share: float,
    *,
    hashing: bool = True,
) -> tuple[MarkedRows, dict[Leaf, int | None]] | None:
    """Keep the rows and count. None: some condition fails for some row, so each rule must be asked by itself.

    made: what was made before for these leaves. hashing: find repeated rows by hashes, too.
    """
    noted = None
    try:
        noted = MarkedRows(frame, beside(frame, leaves, made, "hash" if hashing else "none"))
        return noted, noted.read(most, share)
    except Exception:  # whatever it is: asked one by one, the rules tell whose fault it is
        for each in noted.kept if noted is not None else ():
            release(each)
        return None


def beside(
    frame: DataFrame, leaves: Mapping[Any, Leaf], made: dict[Uniqueness, MarkColumns], how: Uniqueness
) -> MarkColumns:
    """What is noted beside these rows, made once."""
    if how not in made:
        made[how] = MarkColumns(leaves.values(), dict(frame.dtypes), how)
    return made[how]


def _hashes(kind: str | None) -> bool:
    """Whether equal values of this type have equal hashes, and `groupBy` takes the same values for equal."""
    return kind is not None and (kind in _HASHED or kind.startswith("decimal("))


def _hash(columns: list[Column]) -> Column:
    """One number for the values of a row. A null leaves a hash as it is, so of several columns it is told beside."""
    from pyspark.sql import functions as f

    nulls = [column.isNull() for column in columns] if len(columns) > 1 else []
    return f.xxhash64(*columns, *nulls)


def _word(conditions: list[Column]) -> Column:
    """The bits as one number."""
    from pyspark.sql import functions as f

    bits = (f.when(condition, f.lit(1 << at)).otherwise(f.lit(0)) for at, condition in enumerate(conditions))
    return reduce(lambda all, one: all.bitwiseOR(one), bits).cast("long")


# What Spark's Python workers do. They get whole arrays, never a row; and these functions bring all that they need, for
# workers need not have tidegate: so nothing of this module is called in them.


def _sorter(bits: int, rules: int, split: int) -> Any:
    """Count the bits of a partition's rows; and sort the hashes of each rule, cut into `split` ranges."""
    words, size, told = -(-bits // WORD), WORD, _COUNTS

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
        done = [(told, 0, counts.tobytes())]
        ends = np.array([-(2**63) + bucket * (2**64 // split) for bucket in range(1, split)], np.int64)
        for rule, parts in enumerate(hashes):
            values = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
            cut = np.split(values, np.searchsorted(values, ends))
            done += [(rule, bucket, part.tobytes()) for bucket, part in enumerate(cut)]
        kinds = (pa.int32(), pa.int32(), pa.binary())
        columns = [pa.array(column, kind) for column, kind in zip(zip(*done, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=["rule", "bucket", "numbers"])

    return work


def _finder() -> Any:
    """Add up the bits of all partitions; and find the hashes of a range that are there twice."""
    told = _COUNTS

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        parts: dict[int, list[Any]] = {}
        for batch in batches:
            for rule, numbers in zip(batch.column(0).to_pylist(), batch.column(2).to_pylist(), strict=True):
                parts.setdefault(rule, []).append(np.frombuffer(numbers, np.int64))
        done: list[tuple[int, int, Any]] = []
        for rule, arrays in parts.items():
            if rule == told:
                done.append((rule, 0, np.sum(arrays, axis=0)))
                continue
            values = np.sort(np.concatenate(arrays), kind="stable")  # runs that are sorted are merged
            first = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.zeros(0, np.int64)
            times = np.diff(np.append(first, len(values)))
            done.append((rule, int(times[times > 1].sum()), values[first[times > 1]]))
        kinds = (pa.int32(), pa.int64(), pa.list_(pa.int64()))
        columns = [pa.array(column, kind) for column, kind in zip(zip(*done, strict=True), kinds, strict=True)]
        if done:
            yield pa.RecordBatch.from_arrays(columns, names=["rule", "rows", "numbers"])

    return work
