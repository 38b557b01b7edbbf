"""The contract of sources, as tests. A connector subclasses them, and says how rows get into its input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tidegate import seams
from tidegate.connectors.source import Planned, Source, SourceContext
from tidegate.errors import Invalid
from tidegate.pipeline import Pipeline
from tidegate.records.codec import sha256
from tidegate.records.place import Place
from tidegate.records.records import Blob, Json
from tidegate.sinks import DeltaAppend
from tidegate.testing.running import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["MemoryBlobs", "SourceContract", "drain"]

CRASHES = ("S1.entry.after", "S3.inputs.after", "S6.ack.after", "S9.decision.before", "S10.publish.before")
NAMES = (None, "DE", "a=b %")
_MANY = 1000


class MemoryBlobs:
    """The ledger's side files, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put_blob(self, data: bytes) -> Blob:
        path = f"blobs/{len(self.files)}.json"
        self.files[path] = data
        return Blob(path=path, sha=sha256(data), size=len(data))

    def get_blob(self, blob: Blob) -> bytes:
        data = self.files[blob.path]
        assert sha256(data) == blob.sha
        return data


def drain(source: Source, context: SourceContext, start: Json | None = None) -> tuple[list[Planned], Json | None]:
    """Plan until all input is planned. Return the plans, and the position after them."""
    plans = []
    while not (planned := source.plan(start, context)).is_empty:
        plans.append(planned)
        start = planned.end
        assert len(plans) < _MANY, "it plans forever: does `end` come after `start`?"
    return plans, start


def _only_the_columns(rows: DataFrame) -> DataFrame:
    return rows.select("id", "name")


class SourceContract:
    """Tests that every source must pass. Subclass it, and implement `source` and `put`.

        class TestMySource(SourceContract):
            def source(self):
                return MySource(f"{self.folder}/input", max_rows=2)

            def put(self, rows):
                write_input(f"{self.folder}/input", rows)

    The source has the columns id (an integer) and name (text, may be null). Each test has its own folder,
    `self.folder`, which is also the setting `data`. The tests need a fixture `spark`, such as
    `tidegate.testing.local_spark`.
    """

    folder: Path
    spark: SparkSession
    unique_name: str
    """A name that no other test uses, for a table or a topic on a shared server."""

    secrets: ClassVar[Sequence[str]] = ()
    """Passwords and keys of the connection. The tests check that they are never shown."""

    # -- to be implemented -------------------------------------------------------------------------------

    def source(self) -> Source:
        """Return a new source. Each call stands for another process.

        If its ranges can be bounded, choose a low bound, so that the tests need several ranges.
        """
        raise NotImplementedError

    def put(self, rows: Sequence[tuple[int, str | None]]) -> None:
        """Add rows to the source's input."""
        raise NotImplementedError

    def create(self) -> None:
        """Create the source's input without rows, if it must exist before the source plans."""

    def place(self) -> Place:
        """Return where relative paths start, and the connections, if the source needs any."""
        return Place(str(self.folder))

    def spoil(self) -> None:
        """Remove or change input that has been planned, so that it cannot be read again as it was."""
        pytest.skip("`spoil` is not implemented")

    # -- helpers -----------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _set_up_folder(self, tmp_path: Path, spark: SparkSession) -> None:
        self.set_up(tmp_path, spark)

    def set_up(self, folder: Path, spark: SparkSession) -> None:
        """Prepare a test in its own folder."""
        self.folder, self.spark, self.unique_name = folder, spark, f"test_{seams.new_id()}"
        self.context = SourceContext("shop", "orders", self.place(), MemoryBlobs())
        self.all_rows: list[tuple[int, str | None]] = []
        self.create()

    def arrive(self, count: int = 3) -> None:
        """Let `count` new rows arrive."""
        first = len(self.all_rows)
        rows = [(id, NAMES[id % len(NAMES)]) for id in range(first, first + count)]
        self.put(rows)
        self.all_rows += rows

    def plan(self, start: Json | None = None) -> Planned:
        """Plan the range after a position."""
        return self.source().plan(start, self.context)

    def drained(self, start: Json | None = None) -> tuple[list[Planned], Json | None]:
        """Plan until all input is planned."""
        return drain(self.source(), self.context, start)

    def read(self, splits: Json) -> DataFrame:
        """Verify and read a range, as a job does."""
        source = self.source()
        source.verify(splits, self.context)
        return source.read(self.spark, splits, self.context).select("id", "name")

    def rows_of(self, *plans: Planned) -> list[tuple[Any, ...]]:
        """Return the rows of these ranges."""
        rows: list[tuple[Any, ...]] = []
        for plan in plans:
            rows += map(tuple, self.read(plan.splits).collect())
        return sorted(rows, key=repr)

    # -- each row once -----------------------------------------------------------------------------------

    def test_from_the_beginning_to_the_end_each_row_comes_exactly_once(self) -> None:
        for _ in range(3):
            self.arrive()
        plans, end = self.drained()
        self.arrive(5)
        later, _ = self.drained(end)
        assert Counter(self.rows_of(*plans, *later)) == Counter(self.all_rows)
        assert not plans[-1].has_more
        first_without_more = next(index for index, plan in enumerate(plans) if not plan.has_more)
        # A server may append to its log by itself, after the last row. So more ranges may follow, but without rows.
        assert self.rows_of(*plans[first_without_more + 1 :]) == [], "`has_more` was False, but rows followed"

    def test_wherever_the_input_is_cut_the_rows_are_the_same(self) -> None:
        plans, end = [], None
        for count in (1, 4, 2):
            self.arrive(count)
            planned = self.plan(end)
            plans.append(planned)
            end = planned.end
        later, _ = self.drained(end)
        assert Counter(self.rows_of(*plans, *later)) == Counter(self.all_rows)
        whole, _ = self.drained()
        assert self.rows_of(*whole) == self.rows_of(*plans, *later)

    def test_a_bound_from_outside_is_kept_as_far_as_possible(self) -> None:
        unit = self.source().unit
        if unit is None:
            pytest.skip("this source accepts no bound from outside")
        for _ in range(3):
            self.arrive()
        unbounded, _ = self.drained()
        self.context = replace(self.context, at_most=1)
        bounded, _ = self.drained()
        assert len(bounded) >= len(unbounded)
        assert Counter(self.rows_of(*bounded)) == Counter(self.all_rows)

    def test_a_backfill_stops_at_a_position_that_the_source_has_had(self) -> None:
        if not self.source().can_stop:
            pytest.skip("this source cannot stop at a position")
        plans, end = [], None
        for _ in range(3):
            self.arrive()
            planned = self.plan(end)
            plans.append(planned)
            end = planned.end
        for number, last in enumerate(plans, 1):
            self.context = replace(self.context, stop_position=last.end, bound_factor=10)
            again, reached = self.drained()
            assert self.rows_of(*again) == self.rows_of(*plans[:number])
            assert self.source().covers(reached, last.end, self.context)
        self.context = replace(self.context, stop_position=None)
        rest, _ = self.drained(plans[0].end)
        assert self.rows_of(plans[0], *rest) == self.rows_of(*self.drained()[0])

    def test_whatever_step_a_process_dies_at_each_row_is_read_once(self) -> None:
        place = self.place()
        settings = {"data": place.base, **{f"connections.{name}": value for name, value in place.connections.items()}}
        for point in (None, *CRASHES):
            pipeline = Pipeline("reads")  # another process
            columns = pipeline.stage(pipeline.source("in", self.source()), name="columns")(_only_the_columns)
            columns.sink("out", DeltaAppend("tables/out"))
            with run(pipeline, self.folder / "run", spark=self.spark, settings=settings) as running:
                self.arrive()
                if point is not None:
                    running.crash_at(point)
                    self.arrive()
                running.until_idle()
                rows = [(row["id"], row["name"]) for row in running.rows("out")]
            assert Counter(rows) == Counter(self.all_rows), f"after a crash at {point}"

    def test_planned_again_from_the_same_start_a_range_starts_at_the_same_place(self) -> None:
        self.arrive()
        _, start = self.drained()
        self.arrive()
        first = self.plan(start)
        assert self.rows_of(self.plan(start)) == self.rows_of(first)
        self.arrive()
        again = self.plan(start)
        assert self.rows_of(again)[0] == self.rows_of(first)[0]

    def test_a_range_read_twice_gives_the_same_rows_whatever_has_come_since(self) -> None:
        self.arrive()
        planned = self.plan()
        before = self.rows_of(planned)
        self.arrive()
        assert self.rows_of(planned) == before != []

    # -- ranges and positions ----------------------------------------------------------------------------

    def test_an_empty_range_has_no_rows_and_all_columns(self) -> None:
        self.arrive()
        plans, end = self.drained()
        source = self.source()
        full = source.read(self.spark, plans[0].splits, self.context)
        planned = source.plan(end, self.context)
        assert planned.is_empty
        assert planned.end == end
        assert not planned.has_more
        source.verify(planned.splits, self.context)
        empty = source.read(self.spark, planned.splits, self.context)
        assert empty.dtypes == full.dtypes
        assert empty.count() == 0
        assert full.unionAll(empty).count() == full.count()

    def test_positions_and_splits_survive_as_json(self) -> None:
        self.arrive()
        planned = self.plan()
        splits = json.loads(json.dumps(planned.splits))
        assert splits == planned.splits
        assert self.rows_of(replace(planned, splits=splits)) == self.rows_of(planned)
        end = json.loads(json.dumps(planned.end))
        assert end == planned.end
        # The splits may differ: the end of a range may depend on what the server does between the two plans.
        assert self.rows_of(self.plan(end)) == self.rows_of(self.plan(planned.end))

    def test_a_range_that_cannot_be_read_as_planned_is_refused(self) -> None:
        self.arrive()
        planned = self.plan()
        self.spoil()
        with pytest.raises(Invalid) as refused:
            self.source().verify(planned.splits, self.context)
        assert refused.value.help

    def test_a_range_has_no_more_rows_than_its_upper_bound(self) -> None:
        for _ in range(3):
            self.arrive()
        plans, _ = self.drained()
        for planned in plans:
            bound = self.source().upper_bound(json.loads(json.dumps(planned.splits)))
            assert bound.rows is None or len(self.rows_of(planned)) <= bound.rows

    def test_the_lag_is_no_less_than_nothing(self) -> None:
        for _ in range(3):
            self.arrive()
        plans, _ = self.drained()
        for plan in plans:
            if plan.lag is not None:
                figures = (plan.lag.rows, plan.lag.bytes, plan.lag.files, plan.lag.seconds)
                assert all(figure is None or figure >= 0 for figure in figures)

    def test_notices_may_come_often_and_take_nothing_that_is_still_wanted(self) -> None:
        self.arrive()
        first = self.plan()
        assert first.end is not None
        self.arrive()
        second = self.plan(first.end)
        before = self.rows_of(second)
        for _ in range(2):
            self.source().on_checkpoint_completed(first.end, self.context)
            self.source().release(first.end, self.context)
        assert self.rows_of(second) == before != []

    # -- the declaration ---------------------------------------------------------------------------------

    def test_the_declaration_is_sound_and_its_description_plain(self) -> None:
        source = self.source()
        assert source.problems() == []
        described = source.describe()
        assert described["kind"] == source.kind
        assert json.loads(json.dumps(described)) == described

    def test_no_secret_is_shown(self) -> None:
        self.arrive()
        source, planned = self.source(), self.plan()
        texts = [repr(source), json.dumps(source.describe()), repr(planned)]
        assert [secret for secret in self.secrets if any(secret in text for text in texts)] == []
