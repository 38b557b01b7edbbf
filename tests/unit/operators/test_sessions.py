"""Sessions as workers keep them in files, against plain Python: many checkpoints in a row."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.operators.kernels.sessions import MergeSessions
from tidegate.state.arrow.kernel_worker import COUNTED, SPILLED, KernelPlan, Lookup, run_kernel_on_range
from tidegate.state.arrow.merging import GIVEN, EmitPlan, MergePlan
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout
from tidegate.state.arrow.spill import Arriving, Limits
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP
from tidegate.state.lateness import WindowLimits

GAP, DELAY = 10, 5
TIME = pa.timestamp("us", "UTC")
ROW = tuple[int | None, Any, int]
"""Its time, its key, its value."""
OWN = [(GROUP, pa.int32()), (CHECKPOINT, pa.int64()), (DELETED, pa.bool_())]
VALUES = [("n", pa.int64()), ("m", pa.int64())]


class Kept:
    """Sessions in files, of one range of key groups."""

    def __init__(self, folder: Path, most_bytes: int = 1 << 30) -> None:
        self.limits, self.spilled = Limits(most_bytes, most_bytes), 0
        key = ("k", pa.string())
        schema = pa.schema([*OWN, ("start", TIME), key, ("end", TIME), *VALUES])
        self.layout = StateLayout(("start", "k"), schema)
        self.given = StateLayout((), pa.schema([("start", TIME), ("end", TIME), key, *VALUES]))
        self.arriving = pa.schema([key, ("_at", pa.int64()), *VALUES, (GROUP, pa.int32())])
        self.folder, self.checkpoint = folder, 0
        self.files: list[SortedFile] = []
        self.counts: Counter[str] = Counter()

    def take(self, rows: list[ROW], limits: WindowLimits) -> Counter[Any]:
        """One checkpoint; return the sessions that it gives."""
        self.checkpoint += 1
        compacts = len(self.files) > 3
        lookup = Lookup(
            MergePlan(
                layout=self.layout,
                groups=4,
                count=1,
                checkpoint=self.checkpoint,
                expiry_time=None,
                limit=None,
                folder=str(self.folder),
                runs=self.files,
                batches=[(self.files, True)] if compacts else [],
            ),
            ["k"],
            time="end",
            expire_before=None if limits.closed is None else limits.closed + 1,
            expired_since=None if limits.closed_before is None else limits.closed_before + 1,
            time_can_advance=True,
        )
        work = MergeSessions(["k"], "start", "end", {"n": "sum", "m": "max"}, GAP, limits)
        plan = KernelPlan(
            lookups=[lookup],
            stored=[self.layout.schema],
            stored_by=[("start", "k")],
            kernel=work,
            arriving=Arriving([self.arriving]),
            key_group_columns=["k"],
            groups=4,
            count=1,
            limits=self.limits,
            emit_plan=EmitPlan(self.given, f"{self.folder}/given"),
        )
        told = [{"k": k, "_at": at, "n": 1, "m": value, GROUP: 0} for at, k, value in rows]
        batches = pa.Table.from_pylist(told, self.arriving).to_batches()
        given: Counter[Any] = Counter()
        added = []
        for line in run_kernel_on_range(plan, batches, 0, f"{self.checkpoint}.parquet"):
            self.spilled += line.size if line.kind == SPILLED else 0
            if line.kind == COUNTED:
                self.counts[line.name] += line.rows
            elif line.rows and line.kind == GIVEN:
                given += Counter(map(session, pq.read_table(f"{self.folder}/given/{line.name}").to_pylist()))
            elif line.rows and line.kind > GIVEN:
                self._refuse_twice(line.name)
                added.append(SortedFile(f"{self.folder}/{line.name}", (0, 3)))
        self.files = added if compacts else self.files + added
        return given

    def _refuse_twice(self, name: str) -> None:
        """A session that grows at its end keeps its key: as a row and as a deleted one, it would be either."""
        table = pq.read_table(f"{self.folder}/{name}")
        keys = [tuple(row.values()) for row in table.select(["start", "k"]).to_pylist()]
        assert len(keys) == len(set(keys)), f"{name} has a session twice"


def session(row: dict[str, Any]) -> tuple[Any, ...]:
    micros = [round(row[name].timestamp() * 1_000_000) for name in ("start", "end")]
    return (*micros, row["k"], row["n"], row["m"])


class PlainSessions:
    """The same in plain Python."""

    def __init__(self) -> None:
        self.sessions: list[tuple[int, int, Any, int, int]] = []
        self.counts: Counter[str] = Counter()

    def take(self, rows: list[ROW], limits: WindowLimits) -> Counter[Any]:
        late, closed = limits.late, limits.closed
        self.sessions = [each for each in self.sessions if late is None or each[1] > late]
        for at, k, value in rows:
            if at is None or (late is not None and at + GAP <= late):
                self.counts["without_time" if at is None else "late"] += 1
                continue
            met = [each for each in self.sessions if each[2] == k and each[0] <= at + GAP and each[1] >= at]
            self.sessions = [each for each in self.sessions if each not in met]
            parts = [*met, (at, at + GAP, k, 1, value)]
            starts, ends, _, counts, values = zip(*parts, strict=True)
            self.sessions.append((min(starts), max(ends), k, sum(counts), max(values)))
        return Counter(each for each in self.sessions if closed is not None and each[1] <= closed)


@pytest.mark.parametrize("seed", range(40))
def test_each_session_is_given_once_it_is_complete_however_its_rows_came(seed: int, tmp_path: Path) -> None:
    """A session's end moves with its rows: what has ended by an older file may live on in a newer one."""
    rng = random.Random(seed)
    is_narrow = seed % 3 == 0  # the rows of several keys wait on the disk then, though all are of one group
    kept, told = Kept(tmp_path, 250 if is_narrow else 1 << 30), PlainSessions()
    (tmp_path / "given").mkdir()
    before: int | None = None
    now, clock = before, 0
    for _ in range(12):
        rows: list[ROW] = []
        for _ in range(rng.choice([0, 1, 3, 12])):
            clock += rng.choice([0, 1, 2, 9, 10, 11])
            at = rng.choice([clock, clock, clock - rng.randrange(20), None])
            rows.append((at, rng.choice(["a", "b", None]), rng.randrange(9)))
        highest = [at - DELAY for at, _, _ in rows if at is not None]
        now = max([*highest, *([before] if before is not None else [])], default=None)
        limits = WindowLimits.from_watermarks(before, now, includes_end=True)
        assert kept.take(rows, limits) == told.take(rows, limits)
        before = now
    assert kept.counts == told.counts
    assert bool(kept.spilled) is is_narrow


def test_sessions_that_overlap_without_a_new_row_stay_what_they_are(tmp_path: Path) -> None:
    """They were changed by hand: what nothing new has joined is given as it is held."""
    work = MergeSessions(["k"], "start", "end", {"n": "sum", "m": "max"}, GAP, WindowLimits(None, None, 25, 25))
    rows = [{GROUP: 0, "k": "a", "start": start, "end": end, "n": 1, "m": 0} for start, end in [(0, 20), (15, 40)]]
    held = pa.Table.from_pylist(rows, pa.schema([OWN[0], ("start", TIME), ("k", pa.string()), ("end", TIME), *VALUES]))
    none = pa.schema([("k", pa.string()), ("_at", pa.int64()), *VALUES, OWN[0]]).empty_table()
    folded = work(none, [held])
    assert [session(row) for some in folded.rows for row in some.to_pylist()] == [(0, 20, "a", 1, 0)]
    assert not folded.changes[0].num_rows
