"""run without Spark: what it says as checkpoints go by, how long it continues, what signals do."""

import json
import os
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.shop import SHOP
from tidegate import seams
from tidegate.cli.running.interrupts import Interrupts
from tidegate.cli.running.progress import LiveProgress, progress_for
from tidegate.coordinator import AlreadyCovered, Outcome
from tidegate.errors import Rejected, Unavailable
from tidegate.ledger.ledger import stamp
from tidegate.records.interval import Interval
from tidegate.records.records import Ack, JobStats


@pytest.fixture
def shop(folder):
    (folder / "shop.py").write_text(SHOP)
    return folder


@pytest.fixture
def loop(monkeypatch):
    """Replaces the loop: tells what it was asked for, and does what the test says."""
    asked = []

    def install(behave=lambda observer, schedule: []):
        def run_checkpoints(coordinator, session, schedule, observer):
            asked.append((coordinator, schedule))
            return behave(observer, schedule)

        monkeypatch.setattr("tidegate.cli.running.run.run_checkpoints", run_checkpoints)
        return asked

    return install


def ack_of(plan, rows):
    return Ack(**stamp("a"), id=plan.id, job="main", prev=None, sinks={}, stats=JobStats(rows=rows))


@pytest.mark.parametrize(
    ("arguments", "checkpoints", "until_idle", "interval"),
    [
        (["--checkpoints", "3"], 3, False, 0.0),
        (["--until-idle"], None, True, 0.0),
        (["--forever"], None, False, 300.0),
        (["--forever", "-D", "interval=30 s", "-D", "min_pause=2"], None, False, 30.0),
    ],
)
def test_how_long_it_continues(shop, tidegate, loop, arguments, checkpoints, until_idle, interval):
    asked = loop()
    assert tidegate("run", "shop:pipeline", *arguments).code == 0
    [(coordinator, schedule)] = asked
    assert (schedule.checkpoints, schedule.until_idle, schedule.interval_s) == (checkpoints, until_idle, interval)
    assert schedule.tolerable_failures == 2
    assert schedule.min_pause_s == (2.0 if "min_pause=2" in arguments else 0.0)
    assert coordinator.graph.name == "orders"
    assert coordinator.place.base == str(shop)


def test_forever_needs_an_interval(shop, tidegate, loop):
    asked = loop()
    said = tidegate("run", "shop:pipeline", "--forever", "-D", "interval=never")
    assert (said.code, asked) == (2, [])
    assert "interval is 'never'" in said.err


def three_checkpoints(project):
    first = project.plan(1, None)
    project.complete(2, 1, publish=False)
    second = project.ledger.entry(2).plan

    def behave(observer, schedule):
        observer.waiting("checkpoint 7 is still open")
        observer.waiting("checkpoint 7 is still open")
        observer.planned(first)
        observer.step(first, "reading events")
        observer.retrying(first, Unavailable("Spark went away\nmore"), 2)
        observer.decided(first, Outcome(1, "completed"), [ack_of(first, {"good": 90, "bad": 10})], 2.0)
        observer.planned(second)
        observer.stuck("good", Unavailable("no space left"))
        observer.decided(second, Outcome(2, "aborted", "JOB_FAILED", "boom"), [], 1.0)
        return []

    return behave


def test_a_run_that_leaves_rows_unpublished_does_not_end_well(project, tidegate, loop):
    (project.folder / "shop.py").write_text(SHOP)
    full = Unavailable("no space left", help="free some", reason="STORAGE")

    def behave(observer, schedule):
        observer.published({"good": full, "bad": full})
        observer.published({"good": full})
        return []

    loop(behave)
    said = tidegate("run", "shop:pipeline", "--until-idle", "--json")
    assert said.code == 3
    error = json.loads(said.out)["error"]
    assert error["reason"] == "STORAGE"
    assert "rows of completed checkpoints could not be published to 'good'" in error["message"]
    assert "no space left" in error["message"]
    assert error["help"] == "free some; nothing is lost: each later run tries again"

    def repaired(observer, schedule):
        behave(observer, schedule)
        observer.published({})
        return []

    loop(repaired)
    assert tidegate("run", "shop:pipeline", "--until-idle").code == 0


def test_a_log_gets_one_line_per_event(project, tidegate, loop):
    (project.folder / "shop.py").write_text(SHOP)
    loop(three_checkpoints(project))
    said = tidegate("run", "shop:pipeline", "--until-idle")
    assert said.code == 1  # the last checkpoint was aborted
    assert said.out.splitlines()[:7] == [
        "waiting: checkpoint 7 is still open",
        "checkpoint 1: events: 1 file, 20 B",
        "checkpoint 1: Spark went away; retrying, at most 2 times",
        "checkpoint 1 completed in 2.0 s, 50 rows/s: good 90, bad 10",
        "checkpoint 2: events: 1 file, 20 B",
        "table good is not published yet: no space left",
        "checkpoint 2 aborted: JOB_FAILED: boom",
    ]
    assert "tidegate list orders" in said.out
    assert "tidegate explain orders 2" in said.out


def test_json_tells_the_same_at_the_end(project, tidegate, loop):
    (project.folder / "shop.py").write_text(SHOP)
    loop(three_checkpoints(project))
    said = tidegate("run", "shop:pipeline", "--until-idle", "--json")
    assert [(c["id"], c["state"], c["reason"], c["rows"]) for c in said.json["checkpoints"]] == [
        (1, "completed", "", {"good": 90, "bad": 10}),
        (2, "aborted", "JOB_FAILED", {}),
    ]
    assert said.json["stopped"] is False


def test_it_ends_with_what_is_in_the_sinks(project, tidegate, loop):
    (project.folder / "shop.py").write_text(SHOP)
    project.complete(1, None)
    loop()
    said = tidegate("run", "shop:pipeline", "--until-idle")
    assert said.code == 0
    assert "Nothing new: no checkpoint was needed." in said.out
    assert "Sinks of orders" in said.out
    assert f"good     3        0  {project.table}" in said.out
    assert "tidegate read orders good --limit 5" in said.out
    found = tidegate("run", "shop:pipeline", "--until-idle", "--json").json
    assert found["tables"] == {"good": {"rows": 3, "version": 0, "table": str(project.table)}}


def test_an_error_keeps_what_was_done_before_it(project, tidegate, loop):
    (project.folder / "shop.py").write_text(SHOP)
    plan = project.plan(1, None)

    def behave(observer, schedule):
        observer.decided(plan, Outcome(1, "completed"), [], 1.0)
        raise Rejected("too much waits", reason="TOO_MANY_UNPUBLISHED")

    loop(behave)
    said = tidegate("run", "shop:pipeline", "--checkpoints", "2", "--json")
    assert said.code == 1
    assert [c["id"] for c in said.json["checkpoints"]] == [1]
    assert said.json["error"]["reason"] == "TOO_MANY_UNPUBLISHED"
    assert said.err == "tidegate: too much waits\n"


# -- signals ---------------------------------------------------------------------------------------


def press(*signals):
    for number in signals or (signal.SIGINT,):
        os.kill(os.getpid(), number)


def test_the_first_ctrl_c_stops_after_the_running_checkpoint(project, tidegate, loop):
    (project.folder / "shop.py").write_text(SHOP)
    plan = project.plan(1, None)
    asked = []

    def behave(observer, schedule):
        asked.append(schedule.stop())
        press()
        asked.append(schedule.stop())
        observer.decided(plan, Outcome(1, "completed"), [], 1.0)
        return []

    loop(behave)
    before = signal.getsignal(signal.SIGINT)
    said = tidegate("run", "shop:pipeline", "--forever", "--json")
    assert asked == [False, True]
    assert (said.code, said.json["stopped"]) == (0, True)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_aborts_the_running_checkpoint(shop, tidegate, loop):
    def behave(observer, schedule):
        press()
        press()
        raise AssertionError("it went on")

    loop(behave)
    said = tidegate("run", "shop:pipeline", "--forever")
    assert said.code == 1
    assert "the running checkpoint was aborted" in said.out


def test_spark_is_told_to_let_go_from_another_thread():
    told = []

    def cancel():
        told.append(threading.current_thread() is threading.main_thread())

    with Interrupts(lambda: told.append("first"), cancel, None), pytest.raises(KeyboardInterrupt):
        press(signal.SIGINT, signal.SIGINT)
    assert told == ["first", False]


def test_a_spark_that_does_not_let_go_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr("tidegate.cli.running.interrupts._CANCEL_S", 0.05)
    never = threading.Event()
    with Interrupts(lambda: None, never.wait, None), pytest.raises(KeyboardInterrupt):
        press(signal.SIGINT, signal.SIGINT)
    never.set()


def test_what_takes_the_signals_away_does_not_keep_them():
    with Interrupts(lambda: None, lambda: None, None) as interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Spark in this process does so when it starts
        interrupts.install()
        press()
        assert interrupts()


def test_the_notice_goes_straight_to_the_file():
    reading, writing = os.pipe()
    with Interrupts(lambda: None, lambda: None, writing), pytest.raises(KeyboardInterrupt):
        press(signal.SIGINT, signal.SIGTERM)
    os.close(writing)
    with os.fdopen(reading) as notices:
        lines = notices.read().splitlines()
    assert lines == [
        "tidegate: stopping after the running checkpoint; Ctrl-C again aborts it",
        "tidegate: aborting the running checkpoint",
    ]


# -- the live line ---------------------------------------------------------------------------------


def test_a_terminal_gets_a_live_line(project, monkeypatch):
    from rich.console import Console

    from tidegate.cli.output import Output

    monkeypatch.setenv("TERM", "xterm")

    class Terminal:
        text = ""

        def write(self, text):
            self.text += text
            return len(text)

        def flush(self):
            pass

        def isatty(self):
            return True

    stream = Terminal()
    progress = progress_for(Output(stream, stream))
    assert isinstance(progress, LiveProgress)
    now = iter([0.0, 0.0, 1.5, 1.5, 1.5, 1.5])

    def line():
        console = Console(width=200)
        with seams.installed(seams.Seams(monotonic=lambda: 1.5)):
            return "".join(segment.text for segment in console.render(progress)).strip()

    with seams.installed(seams.Seams(monotonic=lambda: next(now))):
        plan = project.plan(1, None, summary="[red]2 files\x1b[2J")
        progress.planned(plan)
    progress.step(plan, "staging good")
    assert line().endswith("checkpoint 1 · events: [red]2 files\\x1b[2J · staging good · 1.5 s")
    progress.stopping()
    assert line().endswith("stopping after this checkpoint; Ctrl-C again aborts it")
    with progress:
        progress.decided(plan, Outcome(1, "completed"), [], 1.0)
    assert "checkpoint 1 completed in 1.0 s: nothing new" in stream.text


def test_intervals_are_made_one_after_the_other(shop, tidegate, loop):
    asked = loop()
    given = ["2026-01-01T00:00/2026-01-01T12:00", "2026-01-02/2026-01-03T00:00+01:00"]
    said = tidegate("run", "shop:pipeline", "--interval", given[0], "--interval", given[1], "--reprocess")
    assert said.code == 0
    schedules = [schedule for _, schedule in asked]
    assert [[moment.isoformat() for moment in schedule.interval] for schedule in schedules] == [
        ["2026-01-01T00:00:00+00:00", "2026-01-01T12:00:00+00:00"],
        ["2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+01:00"],
    ]
    assert all(schedule.reprocess and schedule.checkpoints == 1 for schedule in schedules)


@pytest.mark.parametrize("states", [("aborted", "completed"), ("completed", "aborted")])
def test_an_interval_that_failed_is_not_made_good_by_another(project, tidegate, loop, states):
    """A failure is tolerated, so the others are made all the same; the exit code tells of it."""
    (project.folder / "shop.py").write_text(SHOP)
    plan, made = project.plan(1, None), iter(states)

    def behave(observer, schedule):
        observer.decided(plan, Outcome(plan.id, next(made), "JOB_FAILED", "a torn file"), [], 1.0)
        return []

    loop(behave)
    intervals = ["--interval", "2026-01-01/2026-01-02", "--interval", "2026-01-02/2026-01-03"]
    said = tidegate("run", "shop:pipeline", *intervals)
    assert said.code == 1
    assert "a torn file" in said.out


@pytest.mark.parametrize("text", ["2026-01-01", "a/b", "2026-01-02/2026-01-01", "2026-01-01/2026-01-02/2026-01-03"])
def test_what_is_no_interval_is_refused(shop, tidegate, loop, text):
    asked = loop()
    said = tidegate("run", "shop:pipeline", "--interval", text)
    assert (said.code, asked) == (2, [])
    assert text in said.err


def test_reprocess_needs_an_interval(shop, tidegate, loop):
    asked = loop()
    said = tidegate("run", "shop:pipeline", "--until-idle", "--reprocess")
    assert (said.code, asked) == (2, [])
    assert "--interval" in said.err


def test_an_interval_that_is_done_is_told_and_is_no_failure(shop, tidegate, loop):
    day = datetime(2026, 1, 1, tzinfo=UTC)
    done = AlreadyCovered(
        Interval.between(day, day + timedelta(days=1)), 7, "interval 2026-01-01 is done: checkpoint 7 completed it"
    )
    loop(lambda observer, schedule: observer.covered(done))
    said = tidegate("run", "shop:pipeline", "--interval", "2026-01-01/2026-01-02")
    assert said.code == 0
    assert "checkpoint 7 completed it" in said.out
    found = tidegate("run", "shop:pipeline", "--interval", "2026-01-01/2026-01-02", "--json").json
    assert found["covered"] == [{"interval": "2026-01-01T00:00/2026-01-02T00:00", "checkpoint": 7}]
