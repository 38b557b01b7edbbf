"""`tidegate up` keeps Airflow's components at work. The processes are real; the clock and Airflow's answers are not."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.kit.waiting import eventually
from tidegate import seams
from tidegate.cli.up.home import Home
from tidegate.cli.up.processes import Child, Processes, adopt_processes, end_leftover_processes, last_error
from tidegate.cli.up.supervise import Supervisor
from tidegate.errors import Unavailable
from tidegate.spark.server.processes import is_alive

LIVES = "import time\nprint('all is well', flush=True)\nwhile True: time.sleep(0.05)"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Answers:
    """What Airflow answers."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.silent = False
        self.ill: set[str] = set()
        self.queued: dict[str, str] = {}
        self.running = 0
        self._beats: dict[str, datetime] = {}

    def heartbeats(self) -> dict[str, datetime]:
        if self.silent:
            raise Unavailable("no answer", reason="AIRFLOW_SILENT")
        for name in ("scheduler", "dag-processor", "triggerer"):
            if name not in self.ill or name not in self._beats:
                self._beats[name] = seams.now()
        return self._beats

    def waiting_tasks(self) -> tuple[dict[str, str], int]:
        return self.queued, self.running


class Clock:
    """Continues only when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0


class Kept:
    """Two components under supervision."""

    def __init__(self, home: Home, clock: Clock, code: str, taken_over: Iterable[Child] = ()) -> None:
        self.clock = clock
        self.airflow = Answers(clock)
        self.told: list[str] = []
        self.processes = Processes(home, 1, taken_over)
        commands = {name: [sys.executable, "-c", code] for name in ("api-server", "scheduler")}
        self.supervisor = Supervisor(self.processes, self.airflow, commands, 4, self.told.append)  # type: ignore[arg-type]
        self.supervisor.start()

    def pid(self, name: str) -> int:
        return next(child.id.pid for child in self.processes.children if child.name == name and child.id)

    def end(self, name: str) -> None:
        """It is killed from outside."""
        child = next(child for child in self.processes.children if child.name == name)
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()

    def pass_(self, seconds: float) -> None:
        """Time passes, and the supervisor looks every second."""
        for _ in range(int(seconds)):
            self.clock.at += 1.0
            self.supervisor.check_components()


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    made = seams.Seams(monotonic=lambda: clock.at, now=lambda: BEGIN + timedelta(seconds=clock.at))
    with seams.installed(made):
        yield clock


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.make()
    return made


@pytest.fixture
def kept(home: Home, clock: Clock) -> Iterator[Kept]:
    made = Kept(home, clock, LIVES)
    with made.processes:
        yield made


def test_a_component_that_is_killed_is_started_again_and_nothing_else_is_touched(kept):
    server, scheduler = kept.pid("api-server"), kept.pid("scheduler")
    kept.pass_(10)
    kept.end("api-server")
    kept.pass_(2)
    assert kept.pid("api-server") != server
    assert kept.pid("scheduler") == scheduler
    assert kept.told == ["Airflow's api-server has ended, killed by SIGKILL. It will be restarted in 1 s."]


def test_what_a_killed_scheduler_leaves_in_its_session_is_ended_before_another_is_started(home, clock):
    made = Kept(home, clock, f"import os\nif os.fork() == 0: open(f'child-{{os.getpid()}}', 'w')\n{LIVES}")
    with made.processes:
        eventually("both have a child", lambda: len(list(home.project.glob("child-*"))) == 2)
        found = {int(path.name.partition("-")[2]) for path in home.project.glob("child-*")}
        workers = {pid for pid in found if os.getsid(pid) == made.pid("scheduler")}
        made.end("scheduler")
        made.pass_(1)
        assert len(workers) == 1
        assert not any(Path(f"/proc/{pid}").exists() and _runs(pid) for pid in workers)
        assert all(_runs(pid) for pid in found - workers)


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_each_end_in_a_row_waits_longer_and_then_it_is_given_up_with_its_last_error_line(home, clock):
    code = """
import sys
for number in range(40):
    print(f'INFO: 127.0.0.1:4{number} - "GET /api/v2/monitor/health HTTP/1.1" 200 OK')
print("sqlalchemy.exc.OperationalError: no such host: db")
print('INFO: 127.0.0.1:4 - "GET /api/v2/monitor/health HTTP/1.1" 500')
raise SystemExit(1)
"""
    made = Kept(home, clock, code)

    def until_it_is_given_up() -> None:
        for _ in range(200):
            made.pass_(1)
            for child in made.processes.children:
                child.process.wait()

    with made.processes, pytest.raises(Unavailable) as caught:
        until_it_is_given_up()
    waits = [text.rpartition("restarted in ")[2] for text in made.told if "scheduler" in text]
    assert waits == ["1 s.", "2 s.", "4 s.", "8 s."]
    error = caught.value
    assert "keeps ending: 5 times in a row" in error.what
    assert error.what.endswith("with exit code 1: sqlalchemy.exc.OperationalError: no such host: db")
    assert "GET" not in error.what
    assert "\n" not in error.what
    assert "tidegate up. The whole log: " in error.help
    assert error.reason == "AIRFLOW_ENDED"


def test_a_disk_that_is_full_for_a_while_does_not_end_it(kept, home, monkeypatch):
    """Who a component is cannot be written down: so it is not started, and none runs of which nobody knows."""
    write = Home.write_private

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept.pass_(90)
    monkeypatch.setattr(Home, "write_private", full)
    kept.end("scheduler")
    kept.pass_(3)
    assert [child.name for child in kept.processes.children] == ["api-server"]
    assert (
        kept.told[1] == "Airflow's scheduler cannot be started: No space left on device. It will be restarted in 2 s."
    )
    monkeypatch.setattr(Home, "write_private", write)
    kept.pass_(10)
    assert is_alive(kept.processes.children[1].id)
    assert set(home.state()["processes"]) == {"scheduler", "api-server"}


def test_one_that_is_killed_now_and_then_is_never_given_up(kept):
    for _ in range(20):
        kept.pass_(90)
        kept.end("scheduler")
    kept.pass_(2)
    assert kept.told == ["Airflow's scheduler has ended, killed by SIGKILL. It will be restarted in 1 s."] * 20


def test_a_task_that_stays_queued_though_there_is_room_has_the_scheduler_started_again(kept):
    """Airflow's LocalExecutor, one of whose idle workers was killed: it held the lock of the queue."""
    before = kept.pid("scheduler")
    kept.pass_(30)
    kept.airflow.queued = {"one": "task trigger of DAG orders"}
    kept.pass_(80)
    assert len(kept.told) == 1
    assert "Airflow's scheduler has not started task trigger of DAG orders for 6" in kept.told[0]
    assert kept.pid("scheduler") != before


def test_a_machine_that_is_only_slow_is_not_kept_from_starting_tasks(kept):
    """Starting the scheduler again does not help there: so it is done less and less often, until a task has started."""
    kept.pass_(30)
    kept.airflow.queued = {"one": "task trigger of DAG orders"}
    kept.pass_(400)
    assert [text.partition(" for ")[2].split(" s,")[0] for text in kept.told] == ["65", "125"]
    kept.airflow.queued, kept.airflow.running = {}, 1
    kept.pass_(10)
    kept.airflow.queued, kept.airflow.running = {"two": "task trigger of DAG orders"}, 0
    kept.pass_(75)
    assert len(kept.told) == 3


def test_a_task_that_is_queued_because_there_is_no_room_is_left_in_peace(kept):
    kept.pass_(30)
    kept.airflow.queued, kept.airflow.running = {"one": "task trigger of DAG orders"}, 4
    kept.pass_(600)
    assert kept.told == []


def test_tasks_that_follow_each_other_are_no_stall(kept):
    kept.pass_(30)
    for number in range(100):
        kept.airflow.queued = {str(number): "task trigger of DAG orders"}
        kept.pass_(10)
    assert kept.told == []


def test_a_scheduler_that_hangs_is_started_again(kept):
    before = kept.pid("scheduler")
    kept.pass_(30)
    kept.airflow.ill = {"scheduler"}
    kept.pass_(70)
    assert kept.pid("scheduler") != before
    assert "Airflow's scheduler has not responded for 6" in kept.told[0]


def test_it_is_not_well_by_the_heartbeat_of_the_one_before(kept):
    kept.pass_(30)
    kept.airflow.ill = {"scheduler"}
    kept.end("scheduler")
    kept.pass_(250)  # it takes long to start, and has not said a word yet
    assert len(kept.told) == 1
    kept.airflow.ill = set()
    kept.pass_(600)
    assert len(kept.told) == 1


def test_a_server_that_does_not_answer_is_started_again_and_the_others_are_not_blamed(kept):
    scheduler = kept.pid("scheduler")
    kept.pass_(30)
    kept.airflow.silent = True
    kept.pass_(70)
    assert [text.split(" has ")[0] for text in kept.told] == ["Airflow's api-server"]
    assert kept.pid("scheduler") == scheduler


def test_what_is_left_of_an_ended_component_is_known_to_the_next_call(kept, home):
    """`up` may be killed right after one of its components."""
    kept.end("scheduler")
    kept.end("api-server")
    known = set(home.state()["processes"])
    kept.supervisor.check_components()
    assert known == {"scheduler", "api-server"}


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", ""),
        ("starting\n\n", "starting"),
        ("ValueError: no\nlast words\n", "ValueError: no"),
        ("\x1b[31m2026-01-01 [error    ] it is broken\x1b[0m\nmore", "2026-01-01 [error    ] it is broken"),
        ("ERROR:    [Errno 98] error while attempting to bind\nINFO:     Waiting", "ERROR:    [Errno 98] error while"),
    ],
)
def test_the_line_that_says_why(tmp_path, log, told):
    path = tmp_path / "a.log"
    path.write_text(log)
    assert last_error(path).startswith(told)
    assert bool(last_error(path)) == bool(told)


def test_a_log_that_is_gone_says_nothing(tmp_path):
    assert last_error(tmp_path / "none.log") == ""


def test_a_process_that_is_ended_has_gone_from_what_is_known(kept, home):
    child = kept.processes.children[0]
    kept.processes.end(child)
    assert not is_alive(child.id)
    assert child.name not in home.state()["processes"]


# -- Ctrl-C --------------------------------------------------------------------------------------------


def test_all_components_together_get_the_grace_not_each_of_them(home):
    at = [0.0]

    def sleep(seconds: float) -> None:
        at[0] += seconds

    with seams.installed(seams.Seams(monotonic=lambda: at[0], sleep=sleep)), Processes(home, 1) as processes:
        for name in ("scheduler", "api-server", "triggerer"):
            processes.start(name, [sys.executable, "-c", f"import signal\nsignal.signal(15, signal.SIG_IGN)\n{LIVES}"])
        for child in processes.children:
            eventually("it ignores a polite end", lambda child=child: "all is well" in child.log.read_text())
        processes.stop(15.0, lambda: False)
        assert 15.0 <= at[0] < 20.0
        assert processes.children == []


# -- taking over what a killed call has left -------------------------------------------------------


@pytest.fixture
def leave(home, clock, monkeypatch):
    """A call of `tidegate up` is killed, and its components are not."""
    left = []

    def leave():
        monkeypatch.setenv("PYTEST_CURRENT_TEST", "")  # it changes while a test runs
        left.append(Kept(home, clock, LIVES))
        return left[0]

    yield leave
    for each in left:
        each.processes.stop(0, lambda: True)


def taken_over(home, port=None):
    return {child.name: child for child in adopt_processes(home, ("api-server", "scheduler"), "api-server", port)}


def test_components_that_a_killed_call_has_left_continue_under_the_next(leave, home, clock):
    left = leave()
    pids = {name: left.pid(name) for name in ("api-server", "scheduler")}
    found = taken_over(home)
    assert {name: child.id.pid for name, child in found.items()} == pids
    assert end_leftover_processes(home, found.values()) == []
    now = Kept(home, clock, LIVES, found.values())
    with now.processes:
        now.pass_(10)
        assert {child.name: child.id.pid for child in now.processes.children} == pids
        assert now.told == []
        left.end("scheduler")
        now.pass_(3)
        assert now.told == ["Airflow's scheduler has ended. It will be restarted in 1 s."]
        assert now.pid("scheduler") != pids["scheduler"]
        assert now.processes.children[0].id.pid == pids["api-server"]
        server = now.processes.children[0].id
    assert not is_alive(server), "it ends with the call that took it over"


@pytest.mark.parametrize("what", ["a variable", "a plugin", "the port", "the server"])
def test_but_not_if_the_next_call_would_start_them_otherwise(leave, home, monkeypatch, what):
    left, port = leave(), None
    assert len(taken_over(home)) == 2
    if what == "a variable":
        monkeypatch.setenv("AWS_PROFILE", "other")
    elif what == "a plugin":
        (home.project / "plugins").mkdir()
        (home.project / "plugins" / "mine.py").touch()
    elif what == "the port":
        port = 2
    else:
        left.end("api-server")
    assert taken_over(home, port) == {}
    assert "scheduler" in end_leftover_processes(home)


def test_nothing_is_taken_over_where_nothing_was_left(home):
    assert taken_over(home) == {}
