"""What an ack says of its job, and what of that the history tells. By a clock that only the story moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.kit.limits import UNALIGNED, Limits
from tests.kit.slow_jobs import send, take_all
from tests.kit.toy_world import toy_limits
from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tidegate import Pipeline, seams
from tidegate.connectors.channel import Channel
from tidegate.coordinator import Coordinator
from tidegate.delta import Location
from tidegate.errors import Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.history.metrics import figures, metrics
from tidegate.history.query import CheckpointHistory
from tidegate.history.table import live_row
from tidegate.history.view import CheckpointView
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.records.records import Ack, Amount, Json, SparkWork, sum_of
from tidegate.spark.work import Steps, Unmetered

START = datetime(2026, 3, 1, tzinfo=UTC)


class TimedShop:
    """`first` and `second` read a source each, `both` takes from both; and a clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.seconds, self.bound = root, 0.0, 3
        self.feeds = {"first": ToyFeed(), "second": ToyFeed()}
        self.tables = ToyTables()
        self.limits: Limits = toy_limits(recorded=UNALIGNED, max_concurrent_checkpoints=3)

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.root / "shop"), "shop")

    @property
    def coordinator(self) -> Coordinator:
        pipeline = Pipeline("shop")
        streams = {name: pipeline.source(name, ToySource(feed, self.bound)) for name, feed in self.feeds.items()}
        for name, stream in streams.items():
            stream.job(name).sink(f"{name}s", ToySink(name, self.tables))
        for name, stream in streams.items():
            stream.job("both").sink(f"of-{name}", ToySink(f"of-{name}", self.tables))
        return Coordinator(pipeline.graph(), self.ledger, self.limits, Place("/"))

    def planned(self, rows: int) -> int:
        for feed in self.feeds.values():
            feed.available += rows
        return self.coordinator.trigger(f"run {self.ledger.view().last_id + 1}").plan.id  # type: ignore[union-attr]

    def work(self, id: int, job: str, **steps: float) -> Ack:
        """The job's task, of which each kind of step takes so many seconds."""

        def step(what: str) -> None:
            self.seconds += steps.get(what.split()[0], 0.0)

        return run_job(self.coordinator, id, job, None, step)  # type: ignore[arg-type]

    def end(self, *ids: int) -> None:
        for id in ids:
            assert self.coordinator.complete(id).state == "completed", id
        self.coordinator.publish()

    def row(self, id: int) -> CheckpointView:
        found = CheckpointHistory(self.ledger, {}).find(id)
        assert found is not None
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[TimedShop]:
    shop = TimedShop(tmp_path)
    clock = seams.Seams(
        now=lambda: START + timedelta(seconds=shop.seconds), monotonic=lambda: shop.seconds, sleep=lambda _: None
    )
    with (
        seams.installed(clock),
        mock.patch.object(Channel, "send", send),
        mock.patch.object(Channel, "read_all", take_all),
    ):
        yield shop


def test_an_ack_says_how_long_each_part_took_and_what_was_read(shop: TimedShop) -> None:
    id = shop.planned(2)
    shop.seconds += 5
    first = shop.work(id, "first", reading=1, staging=2, sending=4).stats
    assert first.started == "2026-03-01T00:00:05.000+00:00"
    assert (first.aligned_s, first.sync_s, first.async_s) == (0.0, 7.0, 0.0)
    assert list(first.seconds) == ["read", "share first", "stage firsts", "send first"]
    assert (first.read, first.received, first.processed) == ({"first": Amount(rows=2)}, {}, None)
    assert (first.sent["first"].rows, first.sent["first"].files) == (2, 1)


def test_an_ack_says_how_long_files_were_made_durable_beside_other_work(
    shop: TimedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From when the first of its files was begun with until the last one was durable."""

    def take_four_seconds(location: Location, paths: list[str]) -> None:
        shop.seconds += 4

    monkeypatch.setattr(Location, "sync", take_four_seconds)

    def sync_beside(channel: Channel, *given: Any) -> Json:
        *_, syncing = given
        syncing(["a file"])
        return send(channel, *given)

    monkeypatch.setattr(Channel, "send", sync_beside)
    id = shop.planned(2)
    stats = [shop.work(id, job).stats for job in ("first", "second", "both")]
    assert [each.async_s for each in stats] == [4.0, 4.0, 0.0]
    shop.end(id)
    assert shop.row(id).async_seconds == 4.0, "that of the slowest job"


def test_each_step_says_when_it_began_and_what_spark_did_in_it(
    shop: TimedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meter(Unmetered):
        def collect_work(self) -> Steps:
            return {None: SparkWork(queries=1, jobs=0), 0: SparkWork(queries=2, jobs=5)}

    monkeypatch.setattr("tidegate.execution.job.measuring.metered", lambda spark: nullcontext(Meter()))
    id = shop.planned(2)
    stats = shop.work(id, "first", reading=1, staging=2, sending=4).stats
    assert [(step.name, step.after_s, step.seconds) for step in stats.steps] == [
        ("read", 0.0, 1.0),
        ("share first", 1.0, 0.0),
        ("stage firsts", 3.0, 0.0),
        ("send first", 7.0, 0.0),
    ]
    assert stats.spark_of("read") == SparkWork(queries=2, jobs=5)
    assert stats.spark_of("stage", "send") == SparkWork(), "not known"
    assert stats.between_steps == SparkWork(queries=1, jobs=0)


def test_a_checkpoint_has_the_work_of_all_its_jobs(shop: TimedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    class Meter(Unmetered):
        def collect_work(self) -> Steps:
            return {step: SparkWork(queries=1, query_s=0.5, jobs=2, tasks=4) for step in (None, 0, 1, 2, 3)}

    monkeypatch.setattr("tidegate.execution.job.measuring.metered", lambda spark: nullcontext(Meter()))
    id = shop.planned(2)
    steps = [len(shop.work(id, job).stats.steps) for job in ("first", "second", "both")]
    shop.end(id)
    row, parts = shop.row(id), sum(steps) + 3
    assert (row.queries, row.query_seconds, row.spark_jobs, row.spark_tasks) == (parts, parts / 2, 2 * parts, 4 * parts)
    assert (row.analyses, row.task_seconds) == (None, None)
    assert row.plan_seconds == 0.0


def test_without_spark_nothing_is_known_of_it(shop: TimedShop) -> None:
    id = shop.planned(2)
    stats = shop.work(id, "first").stats
    assert [step.spark for step in stats.steps] == [None] * 4
    assert stats.spark == SparkWork()
    assert shop.row(id).queries is None


def test_alignment_is_between_the_first_input_and_the_last(shop: TimedShop) -> None:
    id = shop.planned(2)
    shop.work(id, "second", staging=1)
    shop.work(id, "first", staging=9)
    shop.seconds += 100
    both = shop.work(id, "both", staging=2).stats
    assert both.aligned_s == 9.0, "waiting for its own turn is no alignment"
    assert both.read == {}
    assert {name: told.rows for name, told in both.received.items()} == {"first": 2, "second": 2}
    shop.end(id)
    row = shop.row(id)
    assert (row.align_seconds, row.sync_seconds, row.delay_seconds) == (9.0, 9.0, 110.0)
    assert (row.rows_in, row.rate) == (4, 0.4), "what goes from job to job is read from sources once"


def test_rows_in_flight_are_told_where_they_are_left_and_where_they_are_taken(shop: TimedShop) -> None:
    ids = []

    def passed(rows: int) -> None:
        ids.append(shop.planned(rows))
        for job in ("first", "second"):
            shop.work(ids[-1], job)

    passed(1)
    passed(2)
    with pytest.raises(Rejected, match="busy"):
        shop.work(ids[1], "both")
    shop.end(*ids)
    left = [shop.row(id) for id in ids]
    assert [row.persisted_rows for row in left] == [2, 6], "of both sources"
    assert left[1].details.overtaken_jobs["both"].rows == 6
    assert left[1].persisted_bytes == left[1].details.overtaken_jobs["both"].bytes != 0
    assert left[1].processed_rows is None

    passed(1)
    ack = run_job(shop.coordinator, ids[2], "both", None, at_work=lambda plan, job: False)  # type: ignore[arg-type]
    assert ack.stats.processed is not None
    assert (ack.stats.processed.rows, ack.stats.processed.files) == (6, 4), "not those of this checkpoint"
    assert sum_of(ack.stats.received.values()).rows == 8
    shop.end(ids[2])
    row = shop.row(ids[2])
    assert (row.processed_rows, row.processed_bytes) == (6, left[1].persisted_bytes)
    assert (row.persisted_rows, row.persisted_bytes) == (None, None)


def test_a_channel_that_is_lost_hides_nothing_else(shop: TimedShop) -> None:
    shop.bound = 10_000
    id = shop.planned(2)
    for job in ("first", "second"):
        shop.work(id, job)
    next_id = shop.planned(1)
    for job in ("first", "second"):
        shop.work(next_id, job)
    with pytest.raises(Rejected):
        shop.work(next_id, "both")
    shop.end(id)
    entry = shop.ledger.entry(id)
    assert entry is not None
    with mock.patch("tidegate.connectors.channel.Sent.amount", new_callable=mock.PropertyMock) as told:
        told.side_effect = Rejected("its side file is gone")
        assert live_row(shop.ledger, entry).persisted_rows is None
    assert live_row(shop.ledger, entry).rows_in == 4


def test_a_source_that_tells_nothing_leaves_the_sum_unknown(shop: TimedShop) -> None:
    with mock.patch.object(ToySource, "verify", return_value=None):
        ack = shop.work(shop.planned(2), "first")
    assert ack.stats.read == {"first": Amount()}
    row = shop.row(1)
    assert (row.rows_in, row.rate) == (None, None)
    assert sum_of([]) == Amount(rows=0, bytes=0, files=0)
    assert sum_of([Amount(rows=1, bytes=2), Amount(rows=2)]) == Amount(rows=3)


def test_metrics_tell_each_source(shop: TimedShop) -> None:
    id = shop.planned(2)
    for job in ("first", "second", "both"):
        shop.work(id, job, staging=1)
    shop.end(id)
    found = figures(shop.ledger, shop.limits, {}, lambda plan: None, START)
    told = {(each.name, *each.labels.values()): each.value for each in metrics(found)}
    assert (told["numRecordsIn", "first"], told["numRecordsIn", "second"]) == (2, 2)
    assert told["checkpointSyncDuration",] == 2000
    assert told["lastCheckpointProcessedData",] == told["lastCheckpointPersistedData",] == 0
