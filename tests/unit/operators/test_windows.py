"""Rows that end, as workers merge them: what is given in the end is what plain Python says, however rows were cut."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.operators.kernels.merged import with_columns
from tidegate.operators.kernels.windows import WEIGHT, MergeWindows
from tidegate.state.arrow import sorted_files
from tidegate.state.arrow.kernel_worker import COUNTED, IS_CURRENT, KernelPlan, Lookup, run_kernel_on_range
from tidegate.state.arrow.merging import GIVEN, REPLACED, EmitPlan, MergePlan
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout
from tidegate.state.arrow.spill import Arriving, Limits
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP
from tidegate.state.lateness import ExpiredRows, WindowLimits, closing_starts

SIZE, DELAY = 10, 4
TIME = pa.timestamp("us", "UTC")
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int64(), [-5, 0, 7, 1 << 60]),
    "far apart": (pa.int64(), [-(1 << 63), 0, (1 << 63) - 1]),
    "texts": (pa.string(), ["", "a", "b"]),
    "null": (pa.int32(), [None, 1, 2]),
}

Window = tuple[int, Any]


class WindowState:
    """A state that is told of rows, checkpoint by checkpoint."""

    def __init__(self, folder: Path, kind: pa.DataType, allowed: int, on_update: bool) -> None:
        fields = [(GROUP, pa.int32()), (CHECKPOINT, pa.int64()), (DELETED, pa.bool_()), ("start", TIME), ("k", kind)]
        self.layout = StateLayout(
            ("start", "k"), pa.schema([*fields, ("end", TIME), ("n", pa.int64()), ("m", pa.int64())])
        )
        numbers = [("n", pa.int64()), ("m", pa.int64())]
        self.given_layout = StateLayout((), pa.schema([("start", TIME), ("end", TIME), ("k", kind), *numbers]))
        self.arriving = pa.schema([(GROUP, pa.int32()), ("start", TIME), ("k", kind), ("m", pa.int64())])
        self.folder, self.kind, self.allowed, self.on_update = folder, kind, allowed, on_update
        self.before: int | None = None
        self.files: list[SortedFile] = []
        self.counts: Counter[str] = Counter()
        self.given: dict[Window, tuple[int, int]] = {}
        self.checkpoint = 0

    def take(self, rows: list[tuple[int | None, Any, int]]) -> list[tuple[Window, tuple[int, int]]]:
        """One checkpoint; the windows that it gives, and those that stay if all that change are wanted."""
        self.checkpoint += 1
        highest = max((at - DELAY for at, _, _ in rows if at is not None), default=None)
        known = [each for each in (self.before, highest) if each is not None]
        now = max(known) if known else None
        limits = WindowLimits.from_watermarks(self.before, now, self.allowed)
        self.before, given, replaced = now, [], []
        old, added = self.files, []
        plan = self.plan(limits, old)
        for split in range(2):
            mine = [each for each in rows if group_of(each) // 2 == split]
            for line in run_kernel_on_range(plan, self.batches(mine), split, f"{self.checkpoint}-{split}"):
                if line.kind == COUNTED:
                    self.counts[line.name] += line.rows
                elif line.rows and line.kind == GIVEN:
                    given += told(f"{self.folder}/aside/{line.name}")
                elif line.rows and line.kind == REPLACED:
                    replaced += told(f"{self.folder}/before/{line.name}")
                elif line.rows and line.kind > GIVEN:
                    added.append(SortedFile(f"{self.folder}/{line.name}", (2 * split, 2 * split + 1)))
        self.files = added if len(old) > 4 else old + added
        again = {window: self.given[window] for window, _ in given if window in self.given}
        assert dict(replaced) == again, "what was given before, and is given again, is replaced"
        assert len(replaced) == len(again)
        self.given |= dict(given)
        return given

    def plan(self, limits: WindowLimits, files: list[SortedFile]) -> KernelPlan:
        due = None if self.on_update else closing_starts(limits, SIZE)
        merging = MergePlan(
            layout=self.layout,
            groups=4,
            count=2,
            checkpoint=self.checkpoint,
            expiry_time=None,
            limit=None,
            folder=str(self.folder),
            runs=files,
            batches=[(files, False)] if len(files) > 4 else [],
            expired=None if limits.late is None else ExpiredRows("end", limits.late),
        )
        lookup = Lookup(
            merging,
            ["start", "k"],
            "start",
            None if due is None else due.upto + 1,
            None if due is None or due.after is None else due.after + 1,
        )
        ops = {"n": "sum", "m": "max"}
        return KernelPlan(
            lookups=[lookup],
            stored=[self.layout.schema],
            stored_by=[self.layout.keys],
            kernel=MergeWindows(["k"], "start", "end", ops, SIZE, limits, self.on_update, {"n": 1}),
            arriving=Arriving([self.arriving], prepared=lambda rows: with_columns(rows, {"n": 1, WEIGHT: 1})),
            key_group_columns=["start", "k"],
            groups=4,
            count=2,
            limits=Limits(1 << 30, 1 << 30),
            emit_plan=EmitPlan(
                self.given_layout, str(self.folder / "aside"), retractions_folder=str(self.folder / "before")
            ),
            is_current_column=IS_CURRENT,
        )

    def batches(self, rows: list[tuple[int | None, Any, int]]) -> list[pa.RecordBatch]:
        starts = [None if at is None else at - at % SIZE for at, _, _ in rows]
        table = pa.table(
            {
                GROUP: pa.array(list(map(group_of, rows)), pa.int32()),
                "start": pa.array(starts, TIME),
                "k": pa.array([k for _, k, _ in rows], self.kind),
                "m": pa.array([v for _, _, v in rows], pa.int64()),
            }
        )
        return table.to_batches(max_chunksize=3)


def group_of(row: tuple[int | None, Any, int]) -> int:
    """The key group: of the window and the key, as in a state."""
    at, k, _ = row
    return len(f"{None if at is None else at // SIZE}{k!r}") % 4


def told(path: str) -> list[tuple[Window, tuple[int, int]]]:
    with sorted_files.opened(SortedFile(path, (0, 3))) as file:
        rows = file.read()
    starts, ends = (rows[name].cast(pa.int64()).to_pylist() for name in ("start", "end"))
    assert ends == [start + SIZE for start in starts]
    columns = (rows[name].to_pylist() for name in ("k", "n", "m"))
    return [((start, k), (n, m)) for start, k, n, m in zip(starts, *columns, strict=True)]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("on_update", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_windows_are_given_as_they_are_in_the_end(
    kind: str, on_update: bool, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_files, "GROUP_ROWS", 4)
    r, (type_, values) = random.Random(f"{kind} {seed}"), KEYS[kind]
    story = WindowState(tmp_path, type_, 0, on_update)
    rows = [(at + r.randint(0, DELAY - 1), r.choice(values), r.randint(0, 99)) for at in range(120)]
    cuts = sorted(r.sample(range(1, 120), r.choice([0, 3, 12])))
    given: dict[Window, tuple[int, int]] = {}
    for a, b in zip([0, *cuts], [*cuts, 120], strict=True):
        for window, result in story.take([*rows[a:b], (None, values[0], 1)]):
            assert on_update or window not in given, "once"
            given[window] = result
    for window, result in story.take([]):
        raise AssertionError(f"nothing is new, and {window} was given: {result}")
    expected: dict[Window, list[int]] = defaultdict(list)
    for at, k, v in rows:
        expected[at - at % SIZE, k].append(v)
    assert story.before is not None
    complete = {key: (len(vs), max(vs)) for key, vs in expected.items() if on_update or key[0] + SIZE <= story.before}
    assert given == complete
    assert (story.counts["late"], story.counts["without_time"]) == (0, len(cuts) + 1)


def test_late_rows_are_counted_or_change_a_window_that_was_given(tmp_path: Path) -> None:
    story = WindowState(tmp_path, pa.int64(), 10, on_update=False)
    assert story.take([(1, 7, 1), (15, 7, 2)]) == [((0, 7), (1, 1))]
    assert story.take([(3, 7, 5), (3, 8, 6)]) == [((0, 7), (2, 5)), ((0, 8), (1, 6))], "given again, or for once"
    assert story.take([(40, 7, 3)]) == [((10, 7), (1, 2))]
    assert story.take([(19, 7, 9), (41, 7, 9)]) == []
    assert story.counts["late"] == 1, "it ended more than 10 before the watermark"


def test_what_nothing_has_changed_ends_all_the_same(tmp_path: Path) -> None:
    story = WindowState(tmp_path, pa.int64(), 0, on_update=False)
    assert story.take([(1, 7, 1), (2, 8, 1)]) == []
    assert sorted(story.take([(30, 9, 1)])) == [((0, 7), (1, 1)), ((0, 8), (1, 1))]
