"""Judging rows that are staged already: the same counts as `noted`, taken from the files, and files without bad rows.

Spark has noted beside each row which conditions it meets. Here these are counted, rows that repeat another one are
found, and bad rows are taken out, with Arrow, a part of a file at a time. So of a checkpoint with a gate Spark does
what it does without one, and evaluates the conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from tidegate.delta.rewrite import THREADS, RowGroup
from tidegate.errors import TidegateError
from tidegate.gates.judging.aggregates import Count, Leaf, Repeats
from tidegate.gates.judging.repeated import among, first_of_each, groups, numbered, twice
from tidegate.gates.judging.row_marks import BITS, EVERY_ROW, WORD, MarkColumns, Uniqueness, beside
from tidegate.gates.judging.samples import SAMPLES
from tidegate.sinks.prestaged import PrestagedRows

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["InFiles", "NotNoted", "Stage", "note_in_files"]

AT_ONCE = 32_000_000
"""Of so many rows at most the keys are held in memory at once; of more they are read several times."""


@dataclass(frozen=True)
class _Repeated:
    """Rows that have the same values as another one."""

    rows: int
    at: dict[RowGroup, np.ndarray]
    """Where they are."""
    values: pa.Table | None
    """A few of the values that are there more than once."""


Stage = Callable[["DataFrame", Mapping[str, "Column"]], PrestagedRows | None]
"""Stages rows with what is noted beside each, or answers None: then nothing is staged."""


class NotNoted(Exception):
    """Spark could not evaluate all conditions for all rows."""


def note_in_files(
    frame: DataFrame, leaves: Mapping[Any, Leaf], made: dict[Uniqueness, MarkColumns], stage: Stage
) -> tuple[InFiles, dict[Leaf, int | None]] | None:
    """Have the rows staged, and count. None: it cannot be done. NotNoted: some condition fails for some row."""
    noted = beside(frame, leaves, made, "judged")
    if not noted.complete:
        return None
    try:
        ahead = stage(frame, noted.columns)
    except TidegateError:
        raise
    except Exception as error:  # whatever it is: asked one by one, the rules tell whose fault it is
        raise NotNoted from error
    if ahead is None:
        return None
    files = InFiles(ahead, noted)
    return files, files.read()


class InFiles:
    """Rows that are staged, and what is noted beside them."""

    def __init__(self, ahead: PrestagedRows, beside: MarkColumns) -> None:
        self.ahead = ahead
        self._beside = beside
        self._words = [name for name in beside.names if name.startswith(BITS)]
        self._repeated: dict[Leaf, _Repeated] = {}
        self.draft_next: list[str] | None = None
        """What `Ahead.draft_next` says of these files, once bad rows are taken out."""
        self._at_hand: dict[RowGroup, dict[Leaf, pa.Table]] = {}
        """Of rows that were taken out, a few that each leaf counts."""

    # -- counting ---------------------------------------------------------------------------------------

    def read(self) -> dict[Leaf, int | None]:
        """What the leaves count, as far as it is noted."""
        counts = [0] * len(self._beside.conditions)
        for part in self.ahead.each(self._count):
            counts = [a + b for a, b in zip(counts, part, strict=True)]
        values: dict[Leaf, int | None] = {}
        for leaf, bits in self._beside.bits.items():
            met, passed = (self.ahead.rows if bit == EVERY_ROW else counts[bit] for bit in (bits.met, bits.passed))
            values[leaf] = None if leaf.none_of_none and not passed else met
        with ThreadPoolExecutor(THREADS) as pool:
            self._repeated = dict(zip(self._beside.rules, pool.map(self._find, self._beside.rules), strict=True))
        return values | {rule: found.rows for rule, found in self._repeated.items()}

    def _count(self, part: RowGroup) -> list[int]:
        """How many rows of a part have each bit. Few of the words are different from each other."""
        import pyarrow.compute as pc

        counts: list[int] = []
        noted = self.ahead.columns(part, self._words) if self._words else {}
        for number, name in enumerate(self._words):
            found = pc.value_counts(noted[name])
            words, times = (found.field(at).to_numpy(zero_copy_only=False) for at in ("values", "counts"))
            bits = min(WORD, len(self._beside.conditions) - number * WORD)
            counts += [int(times[words & (1 << bit) != 0].sum()) for bit in range(bits)]
        return counts

    def _find(self, rule: Repeats) -> _Repeated:
        """The rows that repeat another one: first by numbers that equal values have in common, then by the values."""
        import numpy as np
        import pyarrow as pa

        at: dict[RowGroup, list[np.ndarray]] = {}
        values = []
        turns = -(-self.ahead.rows // AT_ONCE)
        for turn in range(turns):
            seen = self.ahead.each(partial(self._numbers, rule, turn, turns))
            few = twice([numbers for _, numbers in seen])
            if not len(few):
                continue
            places = {}
            for part, (which, numbers) in zip(self.ahead.parts, seen, strict=True):
                found = among(numbers, few)
                places[part] = found if which is None else which[found]
            suspects = [self.ahead.columns(part, rule.columns).take(each) for part, each in places.items() if len(each)]
            same = groups(pa.concat_tables(suspects))
            again = np.bincount(same)[same] > 1
            values.append(pa.concat_tables(suspects).filter(again).take(first_of_each(same[again])[:SAMPLES]))
            kept = np.split(again, np.cumsum([len(each) for each in places.values()])[:-1])
            for (part, each), sure in zip(places.items(), kept, strict=True):
                at.setdefault(part, []).append(each[sure])
        return _Repeated(
            sum(len(each) for parts in at.values() for each in parts),
            {part: np.concatenate(each) for part, each in at.items()},
            pa.concat_tables(values).slice(0, SAMPLES) if values else None,
        )

    def _numbers(self, rule: Repeats, turn: int, turns: int, part: RowGroup) -> tuple[np.ndarray | None, np.ndarray]:
        """The rows of a part whose turn it is, if not all, and a number for each."""
        import numpy as np

        bit = self._beside.judged[rule]
        names = [] if bit == EVERY_ROW else [f"{BITS}{bit // WORD}"]
        rows = self.ahead.columns(part, [*rule.columns, *names])
        found = numbered(rows, rule.columns)
        wanted = _has(rows, bit) if names else None
        if turns > 1:
            its = found % np.uint64(turns) == turn
            wanted = its if wanted is None else wanted & its
        if wanted is None or wanted.all():
            return None, found
        which = np.flatnonzero(wanted)
        return which, found[which]

    # -- telling rows apart -----------------------------------------------------------------------------

    def marks(self, part: RowGroup, leaves: Collection[Leaf]) -> dict[Leaf, np.ndarray]:
        """For each of these leaves, which rows of a part it counts."""
        import numpy as np

        bits = {leaf: self._beside.bits[leaf].met for leaf in leaves if isinstance(leaf, Count)}
        names = {f"{BITS}{bit // WORD}" for bit in bits.values() if bit != EVERY_ROW}
        rows = self.ahead.columns(part, sorted(names)) if names else None
        every = np.full(part.rows, fill_value=True)
        marks: dict[Leaf, np.ndarray] = {
            leaf: _has(rows, bit) if bit != EVERY_ROW else every for leaf, bit in bits.items()
        }
        for leaf in leaves:
            if isinstance(leaf, Repeats):
                marks[leaf] = ~every
                marks[leaf][self._repeated[leaf].at.get(part, [])] = True
        return marks

    def divide(self, named: Sequence[tuple[Leaf, str]], column: str) -> Iterator[pa.Table]:
        """Take the rows out of the files that these leaves count. By and by, these rows, with the names of theirs."""
        import numpy as np
        import pyarrow as pa

        leaves = dict.fromkeys(leaf for leaf, _ in named)

        def marked(part: RowGroup) -> tuple[np.ndarray, np.ndarray]:
            marks = self.marks(part, leaves)
            broken = reduce(np.logical_or, marks.values())
            return broken, np.stack([marks[leaf][broken] for leaf, _ in named], axis=1)

        every = dict(zip(self.ahead.parts, self.ahead.each(marked), strict=True))
        told = {part: marks for part, (_, marks) in every.items()}
        names = pa.array([name for _, name in named], pa.string())

        def with_names(part: RowGroup, rows: pa.Table) -> pa.Table:
            self._at_hand[part] = {
                leaf: rows.take(_spread(told[part][:, at]))
                for at, (leaf, _) in enumerate(named)
                if isinstance(leaf, Count)
            }
            ends = np.concatenate([[0], np.cumsum(told[part].sum(axis=1))]).astype(np.int32)
            listed = pa.ListArray.from_arrays(pa.array(ends), names.take(pa.array(np.nonzero(told[part])[1])))
            return rows.append_column(column, listed)

        bad = {part: pa.array(broken) for part, (broken, _) in every.items()}
        self.draft_next = self.ahead.draft_next(bad)
        return self.ahead.divide(bad, with_names)

    # -- what is told of bad values ---------------------------------------------------------------------

    def samples(self, wanted: Mapping[int, tuple[Leaf, Sequence[str]]]) -> dict[int, pa.Table]:
        """A few of the rows that each leaf counts, in some columns. Of repeated rows, values that are different."""
        import pyarrow as pa

        found: dict[int, list[pa.Table]] = {}
        for number, (leaf, columns) in wanted.items():
            if isinstance(leaf, Repeats):
                found[number] = [self._repeated[leaf].values]
            elif any(leaf in tables for tables in self._at_hand.values()):
                parts = [part for part in self.ahead.parts if part in self._at_hand]
                found[number] = [self._at_hand[part][leaf].select(columns) for part in parts]
        left = dict.fromkeys((number for number in wanted if number not in found), SAMPLES)
        for part in self.ahead.parts:
            if not left:
                break
            marks = self.marks(part, {wanted[number][0] for number in left})
            places = {number: _spread(marks[wanted[number][0]]) for number in left}
            names = {name for number, each in places.items() if len(each) for name in wanted[number][1]}
            rows = self.ahead.columns(part, sorted(names)) if names else None
            for number, each in places.items():
                if rows is not None and len(each):
                    found.setdefault(number, []).append(rows.select(wanted[number][1]).take(each))
                    left[number] -= len(each)
            left = {number: lacking for number, lacking in left.items() if lacking > 0}
        return {number: pa.concat_tables(tables).slice(0, SAMPLES) for number, tables in found.items()}


def _spread(mask: np.ndarray) -> np.ndarray:
    """A few of the places where it is true."""
    import numpy as np

    every = np.flatnonzero(mask)
    return every[:: max(1, len(every) // SAMPLES)][:SAMPLES]


def _has(rows: pa.Table, bit: int) -> np.ndarray:
    """Which rows have a bit."""
    words: np.ndarray = rows[f"{BITS}{bit // WORD}"].to_numpy()
    found: np.ndarray = (words & (1 << bit % WORD)) != 0
    return found
