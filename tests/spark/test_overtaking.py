"""A slow job on real Spark: checkpoints go past it, and in the end its tables are what they would have been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.random_cuts import counted
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.coordinator import Triggered
from tidegate.errors import Invalid, Rejected
from tidegate.execution.job.run_job import run_job
from tidegate.records.records import Drain
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=35)

TABLES = ("clean", "scored", "totals", "again", "sizes")
JOBS = ("main", "slow", "later")


def build(pipeline: Pipeline, slow: str = "slow", later: str = "later") -> None:
    """`slow` scores rows and counts them by key; `later` counts how many keys have how many rows."""
    rows = sources(pipeline, "id long, k string, v long")
    clean = pipeline.stage(rows, name="clean")(lambda frame: frame.where("v > 0"))
    clean.sink("clean", DeltaAppend("tables/clean"))
    scored = pipeline.stage(clean.job(slow), name="scored")(lambda frame: frame.selectExpr("id", "k", "v * 2 AS score"))
    scored.sink("scored", DeltaAppend("tables/scored"))
    totals = scored.aggregate(by="k", n="count(*)", s="sum(score)", uid="totals")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    totals.job(later).sink("again", DeltaUpsert("tables/again", keys=["k"]))  # has no use for rows that are replaced
    sizes = totals.job(later).aggregate(by="n", keys="count(*)", uid="sizes")
    sizes.sink("sizes", DeltaUpsert("tables/sizes", keys=["n"]))


def tables(play: SmallPipeline) -> dict[str, Any]:
    return {name: counted(play.rows(f"tables/{name}")) for name in TABLES}


def batch(number: int) -> list[dict[str, Any]]:
    return [{"id": 10 * number + n, "k": "abc"[n % (number % 3 + 1)], "v": n % 4} for n in range(9)]


class TwoPipelines:
    """A pipeline whose slow job is slow, and one without a slow job that is told the same."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.play = SmallPipeline(root / "slow", spark, build, unaligned=True)
        self.play.limit(max_concurrent_checkpoints=2, num_retained=2)
        self.other = SmallPipeline(root / "fast", spark, lambda pipeline: build(pipeline, "main", "main"))
        self.batches = 0

    def planned(self, **options: Any) -> int:
        """One more batch has landed, and is in a plan; `main` has done its part."""
        self.batches += 1
        for play in (self.play, self.other):
            play.feed(batch(self.batches))
        self.other.checkpoint()
        triggered = self.play.coordinator().trigger(f"run {self.play.ledger.view().last_id + 1}", **options)
        assert isinstance(triggered, Triggered)
        run_job(self.play.coordinator(), triggered.plan.id, "main", self.play.spark)
        return triggered.plan.id

    def work(self, id: int, job: str, meanwhile: Any = lambda: None) -> None:
        """The job's task. meanwhile: what happens before it acknowledges."""
        run_job(
            self.play.coordinator(),
            id,
            job,
            self.play.spark,
            lambda step: meanwhile() if step == "acknowledging" else None,
        )

    def is_passed(self, id: int, job: str) -> None:
        with pytest.raises(Rejected) as told:
            self.work(id, job)
        assert told.value.reason == "PASSED_BY"

    def end(self, *ids: int) -> None:
        for id in ids:
            assert self.play.coordinator().complete(id).state == "completed", id
        self.play.coordinator().publish()
        self.play.coordinator().retire()

    def in_flight(self, id: int, job: str) -> list[tuple[str, int]]:
        entry = self.play.ledger.entry(id)
        assert entry is not None
        assert entry.manifest is not None
        return [(each.job, each.ack.entry) for each in entry.manifest.in_flight.get(job, ())]

    @property
    def channels(self) -> set[tuple[str, int]]:
        root = self.play.root / "ledger/play/channels"
        return {(path.relative_to(root).parts[0], int(path.parts[-4])) for path in root.rglob("*.parquet")}


def test_checkpoints_go_past_a_slow_job_and_it_catches_up_in_one_go(tmp_path: Path, spark: Any) -> None:
    story = TwoPipelines(tmp_path, spark)
    first = story.planned()
    story.work(first, "slow")
    story.work(first, "later")
    story.end(first)
    assert tables(story.play) == tables(story.other)

    _while_it_is_at_work(story)
    _it_catches_up(story)
    _going_back_to_what_had_rows_in_flight(story)
    _the_end_of_time_waits_for_it(story)


def _while_it_is_at_work(story: TwoPipelines) -> None:
    """Checkpoint 2 is its own; 3 and 4 come meanwhile, and do not wait."""
    play, done = story.play, tables(story.play)
    second = story.planned()

    def meanwhile() -> None:
        third = story.planned()
        assert play.coordinator().complete(second).state == "open", "nothing has gone past it yet"
        story.is_passed(third, "slow")
        story.is_passed(third, "later")
        assert play.coordinator().complete(third).state == "open", "in their order"
        story.end(second, third)
        fourth = story.planned()
        story.is_passed(fourth, "slow")
        story.end(fourth)
        assert tables(play) == {**done, "clean": tables(story.other)["clean"]}
        assert story.in_flight(fourth, "slow") == [("main", second), ("main", third), ("main", fourth)]
        assert {id for stream, id in story.channels if stream == "clean"} >= {second, third, fourth}
        assert play.ledger.ids()[0] == 1, "its last ack lies there, and two are retained"

    story.work(second, "slow", meanwhile)
    assert play.ack(second, "slow").inputs == {"main": [play.ledger.entry(second).acks["main"].handle]}  # type: ignore[union-attr]


def _it_catches_up(story: TwoPipelines) -> None:
    play = story.play
    fifth = story.planned()
    story.work(fifth, "slow")
    assert [each.entry for each in play.ack(fifth, "slow").inputs["main"]] == [3, 4, fifth]
    story.is_passed(fifth, "later")  # for all that anybody knows, it is at work on what slow has sent in 2
    play.ledger.store.delete(f"checkpoints/{fifth:08d}/overtaken/later.json")
    run_job(play.coordinator(), fifth, "later", play.spark, at_work=lambda plan, job: False)
    assert [each.entry for each in play.ack(fifth, "later").inputs["slow"]] == [2, fifth]
    story.end(fifth)
    entry = play.ledger.entry(fifth)
    assert entry is not None
    assert entry.manifest is not None
    assert not entry.manifest.in_flight
    assert len(entry.manifest.tables["scored"].committables) == 2, "what it did in 2 and in 5"
    assert tables(play) == tables(story.other)


def _going_back_to_what_had_rows_in_flight(story: TwoPipelines) -> None:
    play = story.play
    sixth = story.planned()

    def meanwhile() -> None:
        seventh = story.planned()
        story.is_passed(seventh, "slow")
        story.end(sixth, seventh)

    story.work(sixth, "slow", meanwhile)
    done = play.coordinator().roll_back(sixth + 1, run="back", by="mia")
    assert done.error is None
    back = tables(play)
    play.build = lambda pipeline: build(pipeline, "other")
    with pytest.raises(Invalid, match="job 'slow' lags"):
        play.coordinator().trigger("renamed")
    play.build = build
    next_id = story.planned()
    story.work(next_id, "slow")
    assert [each.entry for each in play.ack(next_id, "slow").inputs["main"]] == [sixth, sixth + 1, next_id], (
        "read again from the channels: what it had made of that was rolled back"
    )
    story.work(next_id, "later")
    story.end(next_id)
    assert back["scored"] != tables(play)["scored"]
    assert tables(play) == tables(story.other)
    assert {stream for stream, _ in story.channels} == {"clean", "totals"}


def _the_end_of_time_waits_for_it(story: TwoPipelines) -> None:
    """So do savepoints: alignment is forced."""
    eighth = story.planned()
    last: list[int] = []

    def meanwhile() -> None:
        last.append(story.planned(drain=Drain(by="mia")))
        with pytest.raises(Rejected) as told:
            story.work(last[0], "slow")
        assert told.value.reason == "BASE_IN_PROGRESS"
        assert story.play.coordinator().complete(eighth).state == "open"

    story.work(eighth, "slow", meanwhile)
    for id, job in ((eighth, "later"), (last[0], "slow"), (last[0], "later")):
        story.work(id, job)
    story.end(eighth, last[0])
    assert tables(story.play) == tables(story.other)
