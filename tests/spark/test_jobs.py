"""A pipeline in several jobs on real Spark: the same tables as in one, whatever becomes of the attempts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.random_cuts import counted
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.coordinator import Triggered
from tidegate.errors import Corrupt, Fenced, Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)

START = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = ("clean", "paid", "hours", "totals")
ONE = {"paying": "main", "hours": "main", "totals": "main"}
FOUR = {name: name for name in ONE}


def shop(jobs: dict[str, str]) -> Callable[[Pipeline], None]:
    """orders and payments meet; windows of these are given on every update, and totals count what they replace."""

    def build(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "id long, k string, v long, at timestamp", "orders", event_time="at")
        payments = sources(pipeline, "id long, w long, at timestamp", "payments", event_time="at")
        clean = pipeline.stage(orders, name="clean")(lambda frame: frame.where("v > 0"))
        clean.sink("clean", DeltaAppend("tables/clean"))
        paid = clean.job(jobs["paying"]).join(payments, on="id", within="1 h", prefix="paid_", how="left", uid="paid")
        paid.sink("paid", DeltaAppend("tables/paid"))
        counts = {"n": "count(*)", "s": "sum(v)", "p": "sum(w)"}
        hours = paid.job(jobs["hours"]).window(
            tumbling="1 h", by="k", event_time="at", emit="update", uid="hours", **counts
        )
        hours.sink("hours", DeltaUpsert("tables/hours", keys=["k", "window_start"]))
        totals = hours.job(jobs["totals"]).aggregate(by="k", n="sum(n)", hours="count(*)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))

    return build


def at(minutes: int) -> str:
    return str(START + timedelta(minutes=minutes))


def feed(play: SmallPipeline, batch: int) -> None:
    """Orders over two hours a batch, some paid in the same batch, some in the next, some never; the second has none."""
    if batch == 1:
        play.feed([{"id": n, "w": 10 * n, "at": at(12 * n + 50)} for n in range(3, 9, 3)], "payments")
        return
    ids = range(10 * batch, 10 * batch + 10)
    play.feed([{"id": n, "k": "ab"[n % 2], "v": n % 4, "at": at(12 * n)} for n in ids], "orders")
    play.feed([{"id": n, "w": n, "at": at(12 * n + 5)} for n in ids if n % 3], "payments")


def rows(play: SmallPipeline) -> dict[str, Any]:
    return {name: counted(play.rows(f"tables/{name}")) for name in TABLES}


def planned(play: SmallPipeline) -> int:
    triggered = play.coordinator().trigger(f"run {play.ledger.view().last_id + 1}")
    assert isinstance(triggered, Triggered)
    return triggered.plan.id


def channels(play: SmallPipeline) -> set[tuple[str, int]]:
    """(stream, checkpoint) of all files that lie in channels."""
    root = play.root / "ledger/play/channels"
    return {(path.relative_to(root).parts[0], int(path.parts[-4])) for path in root.rglob("*.parquet")}


def test_tables_are_the_same_in_one_job_and_in_four(tmp_path: Path, spark: Any) -> None:
    one, four = SmallPipeline(tmp_path / "one", spark, shop(ONE)), SmallPipeline(tmp_path / "four", spark, shop(FOUR))
    for play in (one, four):
        play.limit(num_retained=1)
        for source in ("orders", "payments"):
            (play.root / "landing" / source).mkdir(parents=True)
    for batch in (1, 2):  # the first has payments only
        for play in (one, four):
            feed(play, batch)
            id = play.checkpoint()
        assert rows(one) == rows(four), f"after checkpoint {id}"
    assert [job.name for job in four.coordinator().graph.jobs] == ["main", "paying", "hours", "totals"]
    assert {stream for stream, _ in channels(four)} == {"clean", "paid", "hours"}
    assert {checkpoint for _, checkpoint in channels(four)} == {2}, "what is retired is gone"

    _what_one_job_says_to_the_next(four)
    _a_checkpoint_that_is_aborted_between_its_jobs(one, four)
    _operators_that_move_keep_their_state_and_time_ends_everywhere(one, four)


def _what_one_job_says_to_the_next(four: SmallPipeline) -> None:
    acks = {job: four.ack(2, job) for job in ("main", "paying", "hours", "totals")}
    entry = four.ledger.entry(2)
    assert entry is not None
    assert acks["main"].inputs == {}
    assert acks["hours"].inputs == {"paying": [entry.acks["paying"].handle]}
    assert {job: sorted(ack.channels) for job, ack in acks.items()} == {
        "main": ["clean"],
        "paying": ["paid"],
        "hours": ["hours"],
        "totals": [],
    }
    stats = {job: ack.stats for job, ack in acks.items()}
    assert (stats["main"].read["orders"].rows, stats["paying"].read["payments"].rows) == (10, 7), (
        "counted by who looks for the highest time"
    )
    assert stats["paying"].received["clean"].rows == stats["main"].rows["clean"]
    assert all(None not in (each.sync_s, each.async_s) and each.processed is None for each in stats.values())
    remembered = [name for ack in acks.values() for name in ack.memory]
    assert len(remembered) == len(set(remembered)), "each thing in one ack"
    marks = {job: ack.stats.watermarks for job, ack in acks.items()}
    assert marks["main"]["orders"] < marks["paying"]["payments"]
    behind = datetime.fromisoformat(marks["main"]["orders"]) - timedelta(hours=1)
    assert datetime.fromisoformat(marks["hours"]["hours"]) == behind, "of sources that other jobs have read"


def _a_checkpoint_that_is_aborted_between_its_jobs(one: SmallPipeline, four: SmallPipeline) -> None:
    for play in (one, four):
        feed(play, 3)
    id = planned(four)
    with pytest.raises(Rejected, match="reads from job 'main', which has not acked") as caught:
        run_job(four.coordinator(), id, "paying", four.spark)
    assert caught.value.reason == "UPSTREAM_MISSING"
    run_job(four.coordinator(), id, "main", four.spark)
    run_job(four.coordinator(), id, "paying", four.spark)
    assert {stream for stream, checkpoint in channels(four) if checkpoint == id} == {"clean", "paid"}
    four.coordinator().abort(id, "TEST")
    assert id not in {checkpoint for _, checkpoint in channels(four)}
    with pytest.raises(Fenced):
        run_job(four.coordinator(), id, "hours", four.spark)

    id = planned(four)
    run_job(four.coordinator(), id, "main", four.spark)
    lost = next(path for path in (four.root / "ledger/play/channels/clean").rglob(f"{id:08d}/**/*.parquet"))
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(Corrupt, match="channel 'clean' has lost") as damaged:
        run_job(four.coordinator(), id, "paying", four.spark)
    assert damaged.value.reason == "CHANNEL_DAMAGED"
    lost.write_bytes(kept)
    for job in ("paying", "hours", "totals"):
        run_job(four.coordinator(), id, job, four.spark)
    assert four.coordinator().complete(id).state == "completed"
    four.coordinator().publish()
    one.checkpoint()
    assert rows(one) == rows(four)


def _operators_that_move_keep_their_state_and_time_ends_everywhere(one: SmallPipeline, four: SmallPipeline) -> None:
    """The join goes to where its orders are read, the totals get a job of their own."""
    four.build = shop({"paying": "main", "hours": "windows", "totals": "totals"})
    one.build = shop({**ONE, "totals": "apart"})
    for play in (one, four):
        feed(play, 4)
        play.checkpoint(drain=Drain(by="mia"))
    assert rows(one) == rows(four)
    ids = {row["id"] for row in four.rows("tables/clean")}
    assert {row["id"] for row in four.rows("tables/paid")} == ids, "those that were never paid as well"
    counts = {row["k"]: row["n"] for row in four.rows("tables/totals")}
    assert sum(counts.values()) == len(four.rows("tables/paid"))


def totalled(pipeline: Pipeline) -> None:
    """Rows in a table, and how many there are of each key in another, made by another job."""
    kept = pipeline.stage(sources(pipeline, "id long, k string"), name="kept")(lambda frame: frame)
    kept.sink("kept", DeltaAppend("tables/kept"))
    totals = kept.job("totals").aggregate(by="k", n="count(*)", uid="totals")
    totals.sink("totals", DeltaAppend("tables/totals", changelog=True))


def test_at_least_once_a_job_takes_what_is_there_and_what_fails_comes_twice(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, totalled, mode="at_least_once")
    play.limit(max_concurrent_checkpoints=2)
    ids = []
    for batch in ([{"id": 1, "k": "a"}, {"id": 2, "k": "b"}], [{"id": 3, "k": "a"}]):
        play.feed(batch)
        ids.append(planned(play))
        run_job(play.coordinator(), ids[-1], "main", spark)
    both = [{"k": "a", "n": 2}, {"k": "b", "n": 1}]
    for id in ids:
        run_job(play.coordinator(), id, "totals", spark)
        assert counted(play.rows("tables/totals")) == counted(both), "of both, once"
    assert [[each.entry for each in play.ack(id, "totals").inputs["main"]] for id in ids] == [ids, []]
    assert play.coordinator().complete(ids[0]).state == "completed"
    play.coordinator().abort(ids[1], "TEST")
    play.checkpoint()
    assert sorted(row["id"] for row in play.rows("tables/kept")) == [1, 2, 3, 3]
    assert counted(play.rows("tables/totals")) == counted([*both, {"k": "a", "n": 3}]), "taken, and again"
