"""A join as workers keep its sides in files, against plain Python: rows come again, and meet what is there."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.operators.join.kernel import FROM_RIGHT, IntervalJoinKernel, JoinSide
from tidegate.state.arrow import kernel_worker
from tidegate.state.arrow.kernel_worker import SPILLED, KernelPlan, Lookup, run_kernel_on_range
from tidegate.state.arrow.merging import GIVEN, EmitPlan, MergePlan
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout
from tidegate.state.arrow.spill import Arriving, Limits
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP, TOUCHED
from tidegate.state.record import RowTtl

LOW, HIGH, DELAY = -3, 6, 4
OWN = [(GROUP, pa.int32()), (CHECKPOINT, pa.int64()), (DELETED, pa.bool_())]
Row = tuple[bool, int, int, int]
"""Whether it is from the right, its key, its time, its value."""


class Kept:
    """Both sides in files, of one range of key groups."""

    def __init__(self, folder: Path, *, outer: bool, most_bytes: int = 1 << 30) -> None:
        self.folder, self.outer, self.most_bytes = folder, outer, most_bytes
        self.spilled = 0
        values = [("v", pa.int64()), ("_at", pa.int64()), ("_n", pa.int64()), ("_matched", pa.bool_())]
        keys = [("k", pa.int64()), ("_row", pa.string())]
        self.layouts = [
            StateLayout(
                ("k", "_row"), pa.schema([*OWN, *([] if self._notes(n) else [(TOUCHED, pa.int64())]), *keys, *values])
            )
            for n in (0, 1)
        ]
        self.given = StateLayout((), pa.schema([("k", pa.int64()), ("l", pa.int64()), ("r", pa.int64())]))
        aliased = [("_l", pa.int64()), ("_r", pa.int64())]
        self.arriving = pa.schema(
            [("k", pa.int64()), ("_at", pa.int64()), ("_row", pa.string()), (FROM_RIGHT, pa.bool_()), *aliased, OWN[0]]
        )
        self.files: list[list[SortedFile]] = [[], []]
        self.checkpoint = 0

    def _notes(self, place: int) -> bool:
        return self.outer and place == 0

    def take(self, rows: list[Row], before: int | None, now: int | None) -> Counter[Any]:
        """One checkpoint; return the rows that it gives."""
        self.checkpoint += 1
        ends = [None if now is None else now - HIGH, None if now is None else now + LOW]
        compacts = [len(files) > 3 for files in self.files]
        sides, lookups = [], []
        for place in (0, 1):
            expires = not self._notes(place)
            name, alias = ("l", "_l") if place == 0 else ("r", "_r")
            sides.append(JoinSide({"v": alias}, ["v"], [(name, "v")], ends[place], not expires, expires=expires))
            plan = MergePlan(
                layout=self.layouts[place],
                groups=4,
                count=1,
                checkpoint=self.checkpoint,
                expiry_time=RowTtl("_at", HIGH if place == 0 else -LOW, before, now) if expires else None,
                limit=before if expires else None,
                folder=str(self.folder / str(place)),
                runs=self.files[place],
                batches=[(self.files[place], True)] if compacts[place] else [],
            )
            lookups.append(Lookup(plan, ["k"], None if expires else "_at", None if expires else ends[place]))
        work = IntervalJoinKernel(["k"], (sides[0], sides[1]), LOW, HIGH, before, nulls_wait=self.outer)
        told = [
            {
                "k": k,
                "_at": at,
                "_row": f"{right} {k} {at} {v}",
                FROM_RIGHT: right,
                "_r" if right else "_l": v,
                GROUP: k % 4,
            }
            for right, k, at, v in rows
        ]
        batches = pa.Table.from_pylist(told, self.arriving).to_batches()
        plan_of_all = KernelPlan(
            lookups=lookups,
            stored=[layout.schema for layout in self.layouts],
            stored_by=[("k", "_row"), ("k", "_row")],
            kernel=work,
            arriving=Arriving([self.arriving]),
            key_group_columns=["k"],
            groups=4,
            count=1,
            limits=Limits(self.most_bytes, self.most_bytes),
            emit_plan=EmitPlan(self.given, str(self.folder / "given")),
        )
        given: Counter[Any] = Counter()
        added: list[list[SortedFile]] = [[], []]
        for line in run_kernel_on_range(plan_of_all, batches, 0, f"{self.checkpoint}.parquet"):
            self.spilled += line.size if line.kind == SPILLED else 0
            if line.rows and line.kind == GIVEN:
                table = pq.read_table(self.folder / "given" / line.name)
                given += Counter((row["k"], row["l"], row["r"]) for row in table.to_pylist())
            elif line.rows and line.kind > GIVEN:
                added[line.state].append(SortedFile(str(self.folder / str(line.state) / line.name), (0, 3)))
        for place in (0, 1):
            self.files[place] = added[place] if compacts[place] else self.files[place] + added[place]
        return given


class PlainJoin:
    """The same in plain Python."""

    def __init__(self, *, outer: bool) -> None:
        self.outer = outer
        self.rows: list[tuple[Row, list[bool]]] = []

    def take(self, rows: list[Row], before: int | None, now: int | None) -> Counter[Any]:
        given: Counter[Any] = Counter()
        for row in rows:
            right, k, at, v = row
            if before is not None and at < before:
                continue
            mine = (row, [False])
            for other, has_met in self.rows:
                left_at, right_at = (other[2], at) if right else (at, other[2])
                if other[0] is right or other[1] != k or not LOW <= right_at - left_at <= HIGH:
                    continue
                has_met[0] = mine[1][0] = True
                given[(k, other[3], v) if right else (k, v, other[3])] += 1
            self.rows.append(mine)
        living = []
        for row, has_met in self.rows:
            right, k, at, v = row
            if now is None or (at - LOW >= now if right else at + HIGH >= now):
                living.append((row, has_met))
            elif self.outer and not right and not has_met[0]:
                given[k, v, None] += 1
        self.rows = living
        return given


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("outer", [False, True])
def test_each_pair_is_given_once_for_each_copy_of_its_rows(outer: bool, seed: int, tmp_path: Path) -> None:
    """In memory, or, with every third seed, a few rows at a time: the others wait on the disk."""
    for name in ("0", "1", "given"):
        (tmp_path / name).mkdir()
    rng = random.Random(seed)
    is_narrow = seed % 3 == 0
    kept = Kept(tmp_path, outer=outer, most_bytes=600 if is_narrow else 1 << 30)
    told = PlainJoin(outer=outer)
    before: int | None = None
    clock, came = 0, list[Row]()
    for _ in range(14):
        rows: list[Row] = []
        for _ in range(rng.choice([0, 1, 4, 15])):
            clock += rng.choice([0, 0, 1, 3])
            row = (rng.random() < 0.5, rng.randrange(3), clock - rng.randrange(4), rng.randrange(3))
            rows.append(rng.choice(came[-20:]) if came and rng.random() < 0.25 else row)
            came.append(rows[-1])
        highest = [at - DELAY for _, _, at, _ in rows]
        now = max([*highest, *([before] if before is not None else [])], default=None)
        assert kept.take(rows, before, now) == told.take(rows, before, now)
        before = now
    assert bool(kept.spilled) is is_narrow


def test_of_its_own_side_a_batch_looks_up_only_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is stored under a key is needed for the other side's rows only."""
    for name in ("0", "1", "given"):
        (tmp_path / name).mkdir()
    kept, found = Kept(tmp_path, outer=False), list[int]()
    rows = Lookup.rows

    def counted(self: Lookup, *told: Any) -> pa.Table:
        table = rows(self, *told)
        found.append(table.num_rows)
        return table

    monkeypatch.setattr(kernel_worker.Lookup, "rows", counted)
    kept.take([(False, 1, 0, v) for v in range(9)], None, None)
    kept.take([(False, 1, 0, 100), (False, 1, 0, 4)], None, None)
    assert found[2:] == [1, 0], "the copy"
    kept.take([(True, 1, 0, 0)], None, None)
    assert found[4:] == [10, 0]
