"""Judge rows that are already staged: count as `row_marks` does, but from the files, and remove bad rows from the
files.

Spark has written mark columns that say which conditions each row meets. Here these are counted, rows that repeat
another one are found, and bad rows are removed, with Arrow, one part of a file at a time. So with a gate, Spark only
does what it does without one, and evaluates the conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from tidegate.connectors.prestaged import PrestagedRows
from tidegate.delta.rewrite import THREADS, RowGroup
from tidegate.errors import TidegateError
from tidegate.gates.judging.aggregates import Count, Leaf, Repeats
from tidegate.gates.judging.repeated import find_repeated, first_positions, positions_among, row_numbers
from tidegate.gates.judging.row_marks import BITS, EVERY_ROW, WORD, MarkColumns, Uniqueness, mark_columns_for
from tidegate.gates.judging.samples import SAMPLES
from tidegate.state.arrow.keys_as_numbers import codes_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

__all__ = ["InFiles", "MarkingFailed", "Prestage", "note_in_files"]

AT_ONCE = 32_000_000
"""The keys of at most this many rows are in memory at the same time. With more rows they are read in several turns."""


@dataclass(frozen=True)
class _Repeated:
    """Rows that have the same values as another one."""

    rows: int
    positions: dict[RowGroup, np.ndarray]
    values: pa.Table | None
    """A few of the values that occur more than once."""


Prestage = Callable[["DataFrame", Mapping[str, "Column"]], PrestagedRows | None]
"""Stages rows with their mark columns, or returns None if that is impossible: then nothing is staged."""


class MarkingFailed(Exception):
    """Spark could not evaluate all conditions for all rows."""


def note_in_files(
    frame: DataFrame, leaves: Mapping[Any, Leaf], mark_columns: dict[Uniqueness, MarkColumns], stage: Prestage
) -> tuple[InFiles, dict[Leaf, int | None]] | None:
    """Stage the rows, and count. None: it cannot be done. Raise MarkingFailed if a condition fails for some row."""
    marks = mark_columns_for(frame, leaves, mark_columns, "judged")
    if not marks.complete:
        return None
    try:
        ahead = stage(frame, marks.columns)
    except TidegateError:
        raise
    except Exception as error:  # evaluating the rules one by one shows which is at fault
        raise MarkingFailed from error
    if ahead is None:
        return None
    files = InFiles(ahead, marks)
    return files, files.read()


class InFiles:
    """Staged rows with their mark columns."""

    def __init__(self, ahead: PrestagedRows, marks: MarkColumns) -> None:
        self.ahead = ahead
        self._marks = marks
        self._words = [name for name in marks.names if name.startswith(BITS)]
        self._repeated: dict[Leaf, _Repeated] = {}
        self.draft_next: list[str] | None = None
        """The result of `PrestagedRows.draft_next` for these files, once bad rows are removed."""
        self._removed_samples: dict[RowGroup, dict[Leaf, pa.Table]] = {}
        """A few of the removed rows that each leaf counts."""

    # -- counting ---------------------------------------------------------------------------------------

    def read(self) -> dict[Leaf, int | None]:
        """Return the counts of the leaves that have marks."""
        counts = [0] * len(self._marks.conditions)
        for part in self.ahead.each(self._count):
            counts = [a + b for a, b in zip(counts, part, strict=True)]
        values: dict[Leaf, int | None] = {}
        for leaf, bits in self._marks.bits.items():
            met, passed = (
                self.ahead.rows if bit == EVERY_ROW else counts[bit] for bit in (bits.condition, bits.passed)
            )
            values[leaf] = None if leaf.none_of_none and not passed else met
        rules = self._marks.rules
        with ThreadPoolExecutor(THREADS) as pool:
            self._repeated = dict(zip(rules, pool.map(self._find_repeated, rules), strict=True))
        return values | {rule: repeated.rows for rule, repeated in self._repeated.items()}

    def _count(self, part: RowGroup) -> list[int]:
        """Return how many rows of a part have each bit. It counts different words, which are few."""
        import pyarrow.compute as pc

        counts: list[int] = []
        columns = self.ahead.columns(part, self._words) if self._words else {}
        for number, name in enumerate(self._words):
            tally = pc.value_counts(columns[name])
            words, times = (tally.field(field).to_numpy(zero_copy_only=False) for field in ("values", "counts"))
            bits = min(WORD, len(self._marks.conditions) - number * WORD)
            counts += [int(times[words & (1 << bit) != 0].sum()) for bit in range(bits)]
        return counts

    def _find_repeated(self, rule: Repeats) -> _Repeated:
        """Find the rows that repeat another one: first by numbers, which equal values share, then by the values."""
        import numpy as np
        import pyarrow as pa

        positions: dict[RowGroup, list[np.ndarray]] = {}
        values = []
        turns = -(-self.ahead.rows // AT_ONCE)
        for turn in range(turns):
            of_turn = partial(_numbers_of_turn, rule.columns, turn, turns)
            found = self.ahead.each_rows(rule.columns, of_turn)
            row_numbers_of_parts = [
                self._judged(rule, part, *each) for part, each in zip(self.ahead.parts, found, strict=True)
            ]
            shared_numbers = find_repeated([numbers for _, numbers in row_numbers_of_parts])
            if not len(shared_numbers):
                continue
            candidates: dict[RowGroup, np.ndarray] = {}
            for part, (selected, numbers) in zip(self.ahead.parts, row_numbers_of_parts, strict=True):
                hits = positions_among(numbers, shared_numbers)
                candidates[part] = hits if selected is None else selected[hits]
            tables = [
                self.ahead.columns(part, rule.columns).take(rows) for part, rows in candidates.items() if len(rows)
            ]
            candidate_rows = pa.concat_tables(tables)
            (equal,) = codes_of([candidate_rows], rule.columns)
            is_repeated = np.bincount(equal)[equal] > 1
            repeated_rows = candidate_rows.filter(is_repeated)
            values.append(repeated_rows.take(first_positions(equal[is_repeated])[:SAMPLES]))
            part_ends = np.cumsum([len(rows) for rows in candidates.values()])[:-1]
            for (part, rows), mask in zip(candidates.items(), np.split(is_repeated, part_ends), strict=True):
                positions.setdefault(part, []).append(rows[mask])
        return _Repeated(
            sum(len(rows) for turns_of_part in positions.values() for rows in turns_of_part),
            {part: np.concatenate(turns_of_part) for part, turns_of_part in positions.items()},
            pa.concat_tables(values).slice(0, SAMPLES) if values else None,
        )

    def _judged(
        self, rule: Repeats, part: RowGroup, selected: np.ndarray | None, numbers: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Return those of a part's rows that a rule judges: their positions (None: all rows), and their numbers."""
        import numpy as np

        bit = self._marks.judged[rule]
        if bit == EVERY_ROW:
            return selected, numbers
        mask = _has(self.ahead.columns(part, [f"{BITS}{bit // WORD}"]), bit)
        if selected is None and mask.all():
            return None, numbers
        mask = mask if selected is None else mask[selected]
        return (np.flatnonzero(mask) if selected is None else selected[mask]), numbers[mask]

    # -- telling rows apart -----------------------------------------------------------------------------

    def masks(self, part: RowGroup, leaves: Collection[Leaf]) -> dict[Leaf, np.ndarray]:
        """Return for each of these leaves a mask of the rows of a part that it counts."""
        import numpy as np

        bits = {leaf: self._marks.bits[leaf].condition for leaf in leaves if isinstance(leaf, Count)}
        names = {f"{BITS}{bit // WORD}" for bit in bits.values() if bit != EVERY_ROW}
        rows = self.ahead.columns(part, sorted(names)) if names else None
        every = np.full(part.rows, fill_value=True)
        masks: dict[Leaf, np.ndarray] = {}
        for count, bit in bits.items():
            masks[count] = every if bit == EVERY_ROW else _has(rows, bit)
        for leaf in leaves:
            if isinstance(leaf, Repeats):
                masks[leaf] = ~every
                masks[leaf][self._repeated[leaf].positions.get(part, [])] = True
        return masks

    def divide(self, named: Sequence[tuple[Leaf, str]], column: str) -> Iterator[pa.Table]:
        """Remove the rows that these leaves count from the files. Yield these rows, with the leaves' names in
        `column`."""
        import numpy as np
        import pyarrow as pa

        leaves = dict.fromkeys(leaf for leaf, _ in named)

        def find_bad(part: RowGroup) -> tuple[np.ndarray, np.ndarray]:
            """Return a mask of the bad rows of a part; and for each bad row, which of `named` count it."""
            masks = self.masks(part, leaves)
            is_bad = reduce(np.logical_or, masks.values())
            return is_bad, np.stack([masks[leaf][is_bad] for leaf, _ in named], axis=1)

        bad: dict[RowGroup, pa.Array] = {}
        broken: dict[RowGroup, np.ndarray] = {}
        for part, (is_bad, broken_rules) in zip(self.ahead.parts, self.ahead.each(find_bad), strict=True):
            bad[part], broken[part] = pa.array(is_bad), broken_rules
        names = pa.array([name for _, name in named], pa.string())

        def with_names(part: RowGroup, rows: pa.Table) -> pa.Table:
            self._removed_samples[part] = {
                leaf: rows.take(_spread(broken[part][:, number]))
                for number, (leaf, _) in enumerate(named)
                if isinstance(leaf, Count)
            }
            ends = np.concatenate([[0], np.cumsum(broken[part].sum(axis=1))]).astype(np.int32)
            names_of_rows = names.take(pa.array(np.nonzero(broken[part])[1]))
            return rows.append_column(column, pa.ListArray.from_arrays(pa.array(ends), names_of_rows))

        self.draft_next = self.ahead.draft_next(bad)
        return self.ahead.divide(bad, with_names)

    # -- samples of bad values --------------------------------------------------------------------------

    def samples(self, requested: Mapping[int, tuple[Leaf, Sequence[str]]]) -> dict[int, pa.Table]:
        """Return a few of the rows that each leaf counts, in some columns. For repeated rows, different values.

        requested: leaves and columns, by number.
        """
        import pyarrow as pa

        tables: dict[int, list[pa.Table]] = {}
        for number, (leaf, columns) in requested.items():
            if isinstance(leaf, Repeats):
                tables[number] = [self._repeated[leaf].values]
            elif any(leaf in samples for samples in self._removed_samples.values()):
                parts = [part for part in self.ahead.parts if part in self._removed_samples]
                tables[number] = [self._removed_samples[part][leaf].select(columns) for part in parts]
        missing = {number: SAMPLES for number in requested if number not in tables}
        for part in self.ahead.parts:
            if not missing:
                break
            masks = self.masks(part, {requested[number][0] for number in missing})
            positions = {number: _spread(masks[requested[number][0]]) for number in missing}
            names = {name for number, hits in positions.items() if len(hits) for name in requested[number][1]}
            rows = self.ahead.columns(part, sorted(names)) if names else None
            for number, hits in positions.items():
                if rows is not None and len(hits):
                    tables.setdefault(number, []).append(rows.select(requested[number][1]).take(hits))
                    missing[number] -= len(hits)
            missing = {number: count for number, count in missing.items() if count > 0}
        return {number: pa.concat_tables(parts).slice(0, SAMPLES) for number, parts in tables.items()}


def _spread(mask: np.ndarray) -> np.ndarray:
    """Return a few positions at which the mask is true, spread evenly."""
    import numpy as np

    positions = np.flatnonzero(mask)
    return positions[:: max(1, len(positions) // SAMPLES)][:SAMPLES]


def _has(rows: pa.Table, bit: int) -> np.ndarray:
    """Return a mask of the rows that have a bit."""
    words: np.ndarray = rows[f"{BITS}{bit // WORD}"].to_numpy()
    mask: np.ndarray = (words & (1 << bit % WORD)) != 0
    return mask


def _numbers_of_turn(
    columns: Sequence[str], turn: int, turns: int, rows: pa.Table
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the positions of the rows that belong to this turn (None: all rows), and a number for each. It may run in
    a worker."""
    import numpy as np

    numbers = row_numbers(rows, columns)
    if turns == 1:
        return None, numbers
    selected = np.flatnonzero(numbers % np.uint64(turns) == turn)
    return selected, numbers[selected]
