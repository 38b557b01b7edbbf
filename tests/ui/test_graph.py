"""The graph tells, on its boxes and lines, what goes through it, how far event time is, what waits; and shows rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.api_answers import check_answer
from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import put_dag
from tidegate.history.details import CheckpointDetails, GateDetails, JobDetails, OvertakenJob, SourceDetails, StateSize
from tidegate.history.query import CheckpointHistory
from tidegate.ledger.ledger import stamp
from tidegate.records.codec import encode
from tidegate.records.records import Amount, Lag, SampledRows, Samples

BACKLOGGED = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator

pipeline = Pipeline("backlogged", interval="never", root={root!r}, data={root!r})
rows = pipeline.source("in", Generator(rows=3))
rates = pipeline.source("rates", Generator(rows=3))
clean = pipeline.stage(rows, name="clean")(lambda rows: rows)
judged = clean.gate(Volume(least=1), name="enough")
judged.sink("a", DeltaAppend("a"))
counted = judged.aggregate(by=["key"], n="count(*)", uid="totals")
counted.job("later").sink("totals", DeltaUpsert("totals", keys=["key"]))
judged.join(rates, on=["key"], uid="rated").sink("b", DeltaAppend("b"))
dag = build_dag(pipeline, project={root!r})
"""
CLICK = """
document.querySelector(".graph a[data-key='clean'] rect")
  .dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, view: window }))
"""
DETAILS = CheckpointDetails(
    config={"sample_rows": 20},
    sources={
        "in": SourceDetails(summary="3 of 15 files", has_more=True, lag=Lag(files=12, bytes=3_400_000, seconds=130.0)),
        "rates": SourceDetails(summary="nothing new", lag=Lag(rows=0)),
    },
    jobs={
        "main": JobDetails(
            read={"in": Amount(rows=1200, bytes=340_000, files=3)},
            sync_s=2.0,
            rows={"a": 1180},
            watermarks={"in": "2026-03-01T10:11:00Z", "rates": "2026-03-01T09:00:00Z"},
            seconds={"gate enough": 0.4},
        ),
        "later": JobDetails(rows={"totals": 40}, seconds={"state totals": 1.5}, counts={"totals": {"late": 5}}),
    },
    gates={"enough": GateDetails(outcome="quarantine", rows=1200, quarantined=25, released=5)},
    states={"state.totals": StateSize(rows=4012, bytes=96_110, delta=5_208, files=3)},
    overtaken_jobs={"later": OvertakenJob(last_checkpoint=1, in_flight=[2], rows=300, bytes=9_000, files=1)},
)


@pytest.fixture(scope="module")
def backlogged(app: Any, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A pipeline of its own, with a checkpoint that has kept a sample of its stage."""
    root = tmp_path_factory.mktemp("backlogged")
    put_dag(root, "backlogged", BACKLOGGED)
    world = ToyWorld(root)
    world.name = "backlogged"
    id = world.checkpoint("airflow:backlogged:one", rows=2)
    entry = world.ledger.entry(id)
    assert entry is not None
    asked = msgspec.structs.replace(entry.plan, config=entry.plan.config | {"sample_rows": 20})
    world.path(id, "plan.json").write_bytes(encode(asked))
    rows = [["81", "<b>bold</b>"], ["82", None]]
    streams = {"clean": SampledRows(columns=["order_id", "note"], rows=rows, hidden=["email"], left_out=3)}
    samples = Samples(**stamp(entry.acks["main"].ack.attempt), id=id, job="main", streams=streams)
    world.ledger.put_samples(samples)
    return id


@pytest.fixture
def measured(backlogged: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """As if its checkpoint had measured all this."""
    newest = CheckpointHistory.newest

    def told(self: CheckpointHistory, *outcomes: str) -> Any:
        found = newest(self, *outcomes)
        is_ours = found is not None and self.ledger.pipeline == "backlogged"
        return msgspec.structs.replace(found, details=DETAILS) if is_ours else found

    monkeypatch.setattr(CheckpointHistory, "newest", told)
    return backlogged


def keep(page: Page, name: str) -> None:
    """A picture of what is in sight, for people, where SCREENSHOTS says."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(folder, f"{name}.png"))


def test_a_part_says_how_far_event_time_has_come_in_what_it_gives(client: Any, tokens: dict[str, str], measured: int):
    from tidegate.ui.answers import GraphAnswer

    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    answer = client.get("/tidegate/api/v1/dags/backlogged/graph")
    check_answer(answer.content, GraphAnswer)
    told = answer.json()
    parts = {(part["role"], part["name"]): part for part in told["parts"]}
    times = {name: part["event_time"] for (role, name), part in parts.items() if role != "sink"}
    assert {times[name] for name in ("in", "clean", "enough", "totals")} == {"2026-03-01T10:11:00Z"}
    assert times["rated"] == times["rates"] == "2026-03-01T09:00:00Z", "it waits for the slower one"
    source, state = parts["source", "in"], parts["operator", "totals"]
    waits = [source[name] for name in ("waiting", "waiting_files", "waiting_bytes", "waiting_seconds")]
    assert waits == [None, 12, 3_400_000, 130.0]
    assert [state[name] for name in ("rows", "bytes", "state_delta", "state_files")] == [4012, 96_110, 5_208, 3]
    assert told["in_flight"] == {"later": {"rows": 300, "bytes": 9_000}}
    assert told["sampled_parts"] == ["clean"]


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 420)])
def test_the_graph_shows_what_flows_waits_and_is_remembered_and_rows_of_a_part(
    served: str, tokens: dict[str, str], measured: int, theme: str, width: int
):
    with Browser() as browser:
        page = browser.page(width, 900)
        page.cookie(served, "_token", tokens["viewer"])
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
        page.goto(f"{served}/tidegate/dag/backlogged#/graph")
        page.has("1,200 rows", ".graph")
        for told in (
            "12 files",
            "3.4 MB",
            "1,180 rows",
            "03-01 10:11",
            "03-01 09:00",
            "300 ",
            "in flight",
            "96.1 kB",
            "+5.2 kB",
            "1.5 s",
            "5 late",
            "25 quarantined",
            "✓ done",
        ):
            page.has(told, ".graph")
        page.has("later ✓ done", "main")
        keep(page, f"{theme}-{width}-graph-measured")
        page.run(CLICK)
        page.has("stage clean", "main")
        assert "part=clean" in page.run("location.hash"), "the address can be copied"
        page.click(f"[data-key='sample {measured} clean'] button")
        page.has("<b>bold</b>", f"[data-key='sample {measured} clean']")
        page.has("A sample of 2 rows; without email, as the settings say; 3 further columns are left out", "main")
        page.click("#zoom-in")
        page.has("<b>bold</b>", f"[data-key='sample {measured} clean']")
        assert page.run("location.hash").count("part=clean") == 1, "what is looked at stays"
        page.run("document.querySelector('#part-close').scrollIntoView()")
        keep(page, f"{theme}-{width}-graph-sample")
        page.run("document.querySelector(\".graph a[data-key='enough']\").focus()")
        page.key("Enter")
        page.has("gate enough", "main")
        page.has("With the setting sample_rows", "main")
        page.click("#part-close")
        page.has("Select a part", "main")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.wrong == []
