"""The list of many pipelines: current, without reading what has not changed, and never for long."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec
import pytest

from tests.kit.toy_world import ToyWorld
from tidegate.lifecycle import control

COUNT = 1000


@pytest.fixture
def declare(tmp_path: Path, app: None):
    """Make so many pipelines, each with a ledger of its own; answers with what Airflow knows of them."""
    from tidegate.pipeline.card import Card
    from tidegate.ui import listing
    from tidegate.ui.pipelines import PipelineRef

    def known(n: int) -> PipelineRef:
        root = tmp_path / f"at{n}"
        shutil.copytree(tmp_path / "orders", root / "orders")
        card = Card(
            pipeline="orders",
            project=str(tmp_path),
            root=str(root),
            data=str(tmp_path),
            by_interval=False,
            tolerable_failed_checkpoints=0,
            jobs=["main"],
            gates={},
            parts=[],
            settings=[],
        )
        return PipelineRef(f"dag{n}", card, "mia", ("sales",))

    listing._rows.clear()
    ToyWorld(tmp_path).checkpoint("run", rows=3)
    yield lambda count: [known(n) for n in range(count)]
    listing._rows.clear()


def listed(pipelines, budget_s: float = 60.0):
    from tidegate import seams
    from tidegate.ui.listing import list_pipelines

    rows, complete = list_pipelines(pipelines, seams.monotonic() + budget_s, lambda dag_id: True)
    return msgspec.to_builtins(rows), complete


def test_a_thousand_pipelines_are_listed_and_none_is_read_twice(declare, monkeypatch):
    from tidegate.ui import listing

    pipelines = declare(COUNT)
    first, complete = listed(pipelines, 0.05)
    assert not complete, "a request reads for a bounded time"
    assert len(first) == COUNT
    assert {row["summary"] for row in first} >= {"not read yet"}
    rows, complete = listed(pipelines)
    assert complete
    assert {(row["state"], row["last_completed"]["id"], row["owner"]) for row in rows} == {("well", 1, "mia")}
    monkeypatch.setattr(listing, "_read", lambda pipeline: pytest.fail("nothing has changed"))
    began = time.thread_time()
    again, complete = listed(pipelines)
    assert complete
    assert [row | {"age_seconds": 0} for row in again] == [row | {"age_seconds": 0} for row in rows]
    assert time.thread_time() - began < 1.0, "processor time, which others do not stretch"


def test_what_has_changed_is_read_again(declare):
    known = declare(3)
    listed(known)
    ledger = known[1].ledger()
    control.suspend(ledger, "mia", "the feed is odd")
    rows, complete = listed(known)
    assert ([row["state"] for row in rows], complete) == (["well", "suspended", "well"], True)
    control.resume(ledger, "mia", "")
    assert [row["state"] for row in listed(known)[0]] == ["well", "well", "well"]


def test_a_damaged_one_hides_no_other_and_is_looked_at_each_time(declare, tmp_path):
    known = declare(2)
    record = tmp_path / "at1" / "orders" / "checkpoints" / "00000001" / "plan.json"
    kept = record.read_bytes()
    record.write_text("{")
    assert [row["state"] for row in listed(known)[0]] == ["well", "damaged"]
    record.write_bytes(kept)
    assert [row["state"] for row in listed(known)[0]] == ["well", "well"]


def test_one_that_fails_as_nobody_has_foreseen_hides_no_other(declare, monkeypatch):
    from tidegate import seams
    from tidegate.ledger import Ledger
    from tidegate.ui import listing
    from tidegate.ui.pipelines import PipelineRef

    listing._metrics.cached.clear()
    known = [
        PipelineRef(each.dag_id, msgspec.structs.replace(each.card, pipeline=name))
        for each, name in zip(declare(2), ("orders", "broken"), strict=True)
    ]
    view = Ledger.view

    def viewed(ledger, *args, **words):
        if ledger.pipeline == "broken":
            raise TypeError("unsupported operand type(s)")
        return view(ledger, *args, **words)

    monkeypatch.setattr(Ledger, "view", viewed)
    rows = listed(known)[0]
    assert [row["state"] for row in rows] == ["well", "damaged"]
    assert "TypeError (" in rows[1]["summary"]
    assert "unsupported operand" not in rows[1]["summary"], "what it says is in the log: it might quote a row"
    assert "web server" in rows[1]["remedy"][0]
    found = listing.metrics_of(known, seams.monotonic() + 60)
    readable = {name: [each.value for each in all if each.name == "readable"] for name, all in found.items()}
    assert readable == {"orders": [1], "broken": [0]}
    listing._metrics.cached.clear()


def test_a_swap_of_everything_is_listed_and_scraped(tmp_path, app):
    from tests.simulation.toy_backfill import Endless, backfilled
    from tidegate import seams
    from tidegate.pipeline.card import Card
    from tidegate.ui import listing, views
    from tidegate.ui.pipelines import PipelineRef

    listing._metrics.cached.clear()
    listing._rows.clear()
    world = Endless(tmp_path)
    world.name = "orders"
    for number in range(3):
        world.checkpoint(f"run {number}")
    swapped = backfilled(world, 0)
    names = {"pipeline": "orders", "project": str(tmp_path), "root": str(tmp_path), "data": str(tmp_path)}
    card = Card(
        **names, by_interval=False, tolerable_failed_checkpoints=0, jobs=["main"], gates={}, parts=[], settings=[]
    )
    known = PipelineRef("dag", card)
    assert [row["state"] for row in listed([known])[0]] == ["well"]
    found = {each.name: each.value for each in listing.metrics_of([known], seams.monotonic() + 60)["orders"]}
    assert (found["readable"], found["numberOfCompletedCheckpoints"]) == (1, 3)
    assert views.overview(known, {}).latest.swap.back_to == 0
    assert views.checkpoint(known, swapped.id).back_to == 0
    assert views.graph(known).checkpoint == 3, "its figures are the last that there are"
    back = views.rollback_plan(known, 3)
    assert (back.undone, msgspec.to_builtins(back.undone_swaps)) == ([], [{"id": 4, "backfill": "fix"}])
    listing._metrics.cached.clear()
    listing._rows.clear()


def test_a_scrape_of_a_thousand_pipelines_is_bounded_and_the_next_one_continues(declare, tmp_path, monkeypatch):
    from tidegate import seams
    from tidegate.ui import listing
    from tidegate.ui.pipelines import PipelineRef

    listing._metrics.cached.clear()
    [like] = declare(1)
    pipelines = []
    for number in range(4):
        world = ToyWorld(tmp_path / "more")
        world.name = f"orders{number}"
        world.checkpoint("run", rows=1)
        card = msgspec.structs.replace(like.card, root=str(tmp_path / "more"), pipeline=f"orders{number}")
        pipelines.append(PipelineRef(f"more{number}", card))
    clock = [1000.0]
    read = listing._read_metrics

    def takes_a_second(pipeline):
        clock[0] += 1
        return read(pipeline)

    monkeypatch.setattr(seams, "monotonic", lambda: clock[0])
    monkeypatch.setattr(listing, "_read_metrics", takes_a_second)

    def ages():
        found = listing.metrics_of(pipelines, clock[0] + 1.5)
        return {name: each.value for name, all in found.items() for each in all if each.name == "readAge"}

    assert ages() == {"orders0": 2000, "orders1": 1000}, "it has read two, and knows no others yet"
    assert ages() == {"orders0": 4000, "orders1": 3000, "orders2": 2000, "orders3": 1000}
    began = clock[0]
    control.suspend(pipelines[1].ledger(), "mia", "")
    found = {each.name: each.value for each in listing.metrics_of(pipelines, clock[0] + 99)["orders1"]}
    assert (found["suspended"], clock[0] - began) == (1, 1), "of four, the one that has changed was read"
    listing._metrics.cached.clear()


def test_what_one_request_reads_no_other_waits_for(declare):
    from tidegate.ui import listing

    pipelines = declare(3)
    listed(pipelines[:2])
    with listing._reading:
        rows, complete = listed(pipelines)
    assert ([row["state"] for row in rows], complete) == (["well", "well", ""], False)


def test_a_card_of_another_version_is_another_pipeline(declare, monkeypatch):
    """Its ledger is the same, and what is told of it may differ: how many failures it tolerates is on the card."""
    from tidegate.ui import listing
    from tidegate.ui.pipelines import PipelineRef

    [known] = declare(1)
    listed([known])
    read, asked = listing._read, []
    monkeypatch.setattr(listing, "_read", lambda pipeline: asked.append(pipeline) or read(pipeline))
    listed([known])
    assert asked == []
    stricter = PipelineRef(known.dag_id, msgspec.structs.replace(known.card, tolerable_failed_checkpoints=7))
    listed([stricter])
    assert asked == [stricter]
