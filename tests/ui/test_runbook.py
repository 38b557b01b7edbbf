"""The runbook's table, played: from the list of pipelines to the cause by clicks, and the remedy as it is told there.

The pipeline is a toy's, so that each row takes a second. Five of them are played with real files, disks and processes,
too (test_browser.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyIntervals, ToySource
from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page
from tests.ui.known_dags import put_dag
from tests.ui.states import break_rules, hold, running
from tidegate.checkpoint import troubles
from tidegate.errors import Invalid, TidegateError
from tidegate.history import health
from tidegate.records.interval import Interval
from tidegate.records.records import Unread

pytestmark = in_turn(seconds=115)

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "operations" / "runbook.md"
FRAME = "document.querySelector('iframe')?.contentDocument"
MOST_CLICKS = 3
DAY = datetime(2026, 1, 1, tzinfo=UTC)
HOURLY = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline("hourly", interval="never", root={root!r}, data={root!r})
pipeline.source("in", Generator(rows=3)).sink("a", DeltaAppend("a"))
dag = build_dag(pipeline, project={root!r})
"""


def hour(number: int) -> tuple[datetime, datetime]:
    return DAY + timedelta(hours=number), DAY + timedelta(hours=number + 1)


_numbers = itertools.count(1)


def run(what: str) -> str:
    """A run of its own: the same run would get the same checkpoint."""
    return f"airflow:orders:{what} {next(_numbers)}"


class Mishap:
    """One row: what breaks, what the list and the pipeline's first page show, and what mends it."""

    def __init__(self, world: ToyWorld, page: Page, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.world, self.page, self.monkeypatch, self.folder = world, page, monkeypatch, folder
        self.clicks = 0

    # -- what a person does --------------------------------------------------------------------------

    def look_for(self, texts: tuple[str, ...], served: str) -> None:
        """From the list of all pipelines, as somebody who has got a call: click until all of this is read."""
        name, page = self.world.name, self.page
        page.here = "document"
        page.goto(f"{served}/tidegate/pipelines")
        row = f"tr[data-key={name}]"
        eventually("the list shows trouble", lambda: "well" not in page.text(f"{row} .badge") != "")
        if all(text in page.text(row) for text in texts):
            return
        self.go_there()
        eventually("its page shows trouble", lambda: "well" not in page.text("header .badge") != "")
        if any(text not in page.text(".banner") for text in texts):
            self.click(".banner a[href^='#/checkpoint/']")
        for text in texts:
            page.has(text, ".banner")

    def go_there(self) -> None:
        """From the list to the pipeline's own page, which Airflow shows in a frame."""
        self.click(f"#pipeline-{self.world.name}")
        self.page.here = FRAME

    def act(self, selector: str, told: str) -> None:
        """Take an action, where its dialog tells what it will do."""
        if self.page.here != FRAME:
            self.go_there()
        self.click(selector)
        self.page.has(told, "#dialog-effects")
        self.click("#dialog-send")
        eventually("the dialog is gone", lambda: not self.page.there("dialog"))

    def click(self, selector: str) -> None:
        self.page.click(selector)
        self.clicks += 1

    # -- what breaks ---------------------------------------------------------------------------------

    def abort(self, reason: str, detail: str) -> None:
        world = self.world
        world.coordinator().abort(world.trigger(run("breaks")), reason, detail, counts=reason != "ENVIRONMENT_FAILED")

    def break_rules(self) -> None:
        break_rules(self.world, run("breaks"))

    def lose_a_file(self) -> None:
        self.abort("JOB_FAILED", "source 'in': 1 of 1 planned file(s) changed: 00001.json is gone\n  Help: put it back")

    def kill(self) -> None:
        self.abort(
            "JOB_FAILED",
            "task job_main is failed, without a message: its process was killed\n  Help: give it spark.memory",
        )

    def change_code(self) -> None:
        self.abort("JOB_FAILED", "the code has changed since the checkpoint was planned: KeyError: 'id'")

    def lose_spark(self) -> None:
        self.abort("ENVIRONMENT_FAILED", "Java is missing\n  Help: install Java 17")

    def fill_the_disk(self) -> None:
        self.monkeypatch.setattr(health, "_room_if_full", lambda folder: 0)

    def skip_input(self) -> None:
        self.world.source = Skipping(self.world.feed, 3, 0)
        self.world.checkpoint(run("skips"), rows=1)

    def change_state(self) -> None:
        error = Invalid("deduplicate 'once': by is file, and was id", help="revert the change", reason="STATE_CHANGED")
        troubles.record_error(self.world.ledger, run("trouble"), "trigger", error)

    def hold(self) -> None:
        self.held = hold(self.world)

    def refuse_publishing(self) -> None:
        self.world.weather.stuck.add("b")
        self.monkeypatch.setattr(health, "PUBLISHING_S", 0.0)  # so much later
        self.world.decided(run("unpublished"), rows=1)
        with suppress(TidegateError):
            self.world.publish()

    def offer_a_row_that_is_refused(self) -> None:
        told = "sink b: public.b would not accept a row: column v is text of at most 3 letters"
        self.abort("BAD_ROWS", f"{told}\n  Help: change such rows in a stage before it")

    def let_the_target_change_its_mind(self) -> None:
        """By a rule that is new since the rows were staged."""
        self.world.weather.stuck.add("b")
        self.monkeypatch.setattr(health, "PUBLISHING_S", 0.0)  # so much later
        late = run("refused late")
        self.world.decided(late, rows=1)
        error = Invalid("b refuses this commit: CHECK v > 0", help="change what refuses it", reason="COMMIT_REFUSED")
        troubles.record_error(self.world.ledger, late, "publishing to b", error)

    def damage(self) -> None:
        id = self.world.checkpoint(run("damaged"), rows=1)
        self.record = self.world.path(id, "plan.json")
        self.kept = self.record.read_bytes()
        self.record.write_text("{")

    def miss_intervals(self) -> None:
        """Another pipeline, with one run for each hour, of which one has never come."""
        put_dag(self.folder, "hourly", HOURLY)
        self.world = ToyWorld(self.folder)
        self.world.name = "hourly"
        self.world.source = ToyIntervals(self.world.feed)
        for number in (0, 2):
            self.make_hour(number)

    def make_hour(self, number: int) -> None:
        self.world.feed.intervals[Interval.between(*hour(number))] = [10 * number + 1]
        self.world.checkpoint(run("hour"), interval=hour(number))

    # -- what mends it -------------------------------------------------------------------------------

    def make_the_missing_hour(self) -> None:
        self.make_hour(1)

    def resume(self) -> None:
        self.act("#act-resume", "What it will do")
        self.run()

    def run(self) -> None:
        """The pipeline's next run."""
        self.world.checkpoint(run("next"), rows=1)

    def make_room(self) -> None:
        self.monkeypatch.undo()

    def read_in_order_of_arrival(self) -> None:
        self.world.source = None
        self.run()

    def approve(self) -> None:
        self.act("#act-approve", "exactly the judged rows are published")
        answers = self.world.ledger.entry(self.held).answers  # type: ignore[union-attr]
        assert [answer.approve for answer in answers.values()] == [True]
        running(self.world)  # its rows were never staged
        self.run()

    def repair_the_table(self) -> None:
        self.world.weather.stuck.clear()
        self.run()

    def restore(self) -> None:
        self.record.write_bytes(self.kept)


class Skipping(ToySource):
    """Finds something that no run will ever read."""

    def plan(self, *args: Any, **words: Any) -> Any:
        unread = Unread(count=1, what="1 file lies below the position: 00000.json", help='use order="arrival"')
        return dataclasses.replace(super().plan(*args, **words), unread=unread)


Step = Callable[[Mishap], None]
ROWS: dict[str, tuple[Step, tuple[str, ...], Step]] = {
    "rows break a gate's rules": (Mishap.break_rules, ("GATE_FAILED", "2 of 9 rows", "-5"), Mishap.resume),
    "a file or folder is gone": (Mishap.lose_a_file, ("JOB_FAILED", "00001.json", "put it back"), Mishap.resume),
    "a process was killed, or Spark's server": (Mishap.kill, ("its process was killed", "spark.memory"), Mishap.resume),
    "code changed while a checkpoint was running": (
        Mishap.change_code, ("code has changed since the checkpoint", "KeyError"), Mishap.resume,
    ),
    "Spark does not start, or sees another disk": (
        Mishap.lose_spark, ("ENVIRONMENT_FAILED", "Java is missing", "install Java 17"), Mishap.run,
    ),
    "a disk is full": (Mishap.fill_the_disk, ("a disk is full", "make room"), Mishap.make_room),
    'a file arrived below the position of `order="name"`': (
        Mishap.skip_input, ("leaves input unread", "00000.json", 'order="arrival"'), Mishap.read_in_order_of_arrival,
    ),
    "intervals were missed": (
        Mishap.miss_intervals, ("No checkpoint has made 2026-01-01", "airflow backfill create --dag-id hourly"),
        Mishap.make_the_missing_hour,
    ),
    "code that cannot continue from the stored state": (
        Mishap.change_state, ("STATE_CHANGED", "by is file, and was id", "revert the change"), Mishap.run,
    ),
    "a gate waits for you": (Mishap.hold, ("held by gate", "positive", "the button Approve"), Mishap.approve),
    "the target refuses a row": (
        Mishap.offer_a_row_that_is_refused, ("BAD_ROWS", "column v", "in a stage before it"), Mishap.resume,
    ),
    "the target refuses a row only now: a key is taken, a rule is new": (
        Mishap.let_the_target_change_its_mind, ("COMMIT_REFUSED", "CHECK v > 0", "change what refuses it"),
        Mishap.repair_the_table,
    ),
    "a table accepts no commits": (Mishap.refuse_publishing, ("not on all tables",), Mishap.repair_the_table),
    "a record or table is damaged": (Mishap.damage, ("plan.json",), Mishap.restore),
}  # fmt: skip


def test_every_row_of_the_table_is_played():
    table = RUNBOOK.read_text().partition("| what broke |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert len(rows) > 10
    assert set(rows) == set(ROWS)


@pytest.fixture
def story(
    browser: Browser,
    served: str,
    tokens: dict[str, str],
    world: ToyWorld,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Mishap]:
    running(world)
    world.checkpoint(run("before"), rows=1)
    page = browser.page()
    page.cookie(served, "_token", tokens["admin"])
    yield Mishap(world, page, monkeypatch, tmp_path)
    page.close()
    running(world)


@pytest.mark.parametrize("row", ROWS)
def test_what_breaks_is_found_by_three_clicks_and_mended_as_told(story: Mishap, served: str, row: str):
    breaks, shows, mends = ROWS[row]
    breaks(story)
    story.look_for(shows, served)
    assert story.clicks <= MOST_CLICKS
    mends(story)
    story.page.here = "document"
    story.page.goto(f"{served}/tidegate/dag/{story.world.name}?mended")
    story.page.has(f"{story.world.name} is well", ".banner")
    wrong = [each for each in story.page.wrong if not re.search("503|favicon", each)]
    assert wrong == []


def test_the_list_itself_tells_the_cause(story: Mishap, served: str):
    story.kill()
    story.look_for(("its process was killed",), served)
    assert story.clicks == 0


def test_the_page_of_a_red_dag_is_one_click_from_the_cause(story: Mishap, served: str):
    story.break_rules()
    story.page.goto(f"{served}/dags/orders")
    story.click("a[href$='/plugin/checkpoints']")
    story.page.here = FRAME
    for text in ("GATE_FAILED", "2 of 9 rows", "-5"):
        story.page.has(text, ".banner")
    assert story.clicks == 1
