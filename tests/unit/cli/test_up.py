"""`tidegate up` without Airflow: its folder, its ports, its processes, what it refuses."""

from __future__ import annotations

import argparse
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import eventually
from tidegate import seams
from tidegate.checkpoint.suspension import suspended
from tidegate.cli.main import main
from tidegate.cli.output import Output
from tidegate.cli.up import up as up_command
from tidegate.cli.up.airflow import Dag, DagRun, failure_text, import_failure
from tidegate.cli.up.follow import Followed, FollowedPipelines
from tidegate.cli.up.home import Home, free_port
from tidegate.cli.up.processes import Processes, end_leftover_processes, lock_project, log_end
from tidegate.cli.up.screen import screen_for
from tidegate.cli.up.up import StopSignals, Up
from tidegate.config import load_settings
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.lifecycle.control import resume, suspend
from tidegate.spark.server.processes import ProcessId, identify, is_alive

# A process with a child in a process group of its own, as Airflow's tasks are. Both ignore a polite end.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    open("child.tmp", "w").write(str(os.getpid()))
    os.rename("child.tmp", "child")
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.make()
    return made


def child_of_stubborn(home: Home) -> ProcessId:
    path = home.project / "child"
    eventually("the child of the stubborn process", path.exists)
    found = identify(int(path.read_text()))
    assert found is not None
    path.unlink()
    return found


# -- the folder ------------------------------------------------------------------------------------


def test_secrets_and_password_are_made_once_and_private(home):
    password, fresh = home.password()
    assert fresh
    assert home.password() == (password, False)
    assert home.secrets() == home.secrets()
    assert len(home.secrets()["jwt"]) == 128
    for path in (home.passwords_file, home.folder / "secrets.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700


def test_airflow_is_told_to_stay_on_loopback_and_in_the_project(home, monkeypatch):
    monkeypatch.delenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", raising=False)
    told = home.environment(18080)
    assert told["AIRFLOW_HOME"] == str(home.project / ".tidegate" / "airflow")
    assert told["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert told["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:18080/execution/"
    assert told["AIRFLOW__CORE__DAGS_FOLDER"] == str(home.project / "dags")
    assert told["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{home.folder}/airflow.db"
    assert told["PYTHONPATH"].split(os.pathsep)[0] == str(home.project)


def test_another_database_is_the_users_choice(home, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://somewhere/airflow")
    assert home.environment(1)["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "postgresql://somewhere/airflow"
    home.set_migrated()
    assert not home.is_migrated(), "only of its own database it can know"


@pytest.mark.slow
def test_what_is_imported_before_the_fork_is_libraries_only(home):
    text = (home.folder / "config" / "airflow_local_settings.py").read_text()
    run = "import sys; sys.argv = ['airflow', 'scheduler']; exec(open(sys.argv0).read()); print(*sys.modules)"
    run = run.replace("sys.argv0", repr(str(home.folder / "config" / "airflow_local_settings.py")))
    modules = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout.split()
    assert {"pandas", "deltalake", "grpc", "pyspark.sql.connect.session", "tidegate.coordinator"} <= set(modules)
    assert not {name for name in modules if name.split(".")[0] in ("jobs", "airflow")}, text


# -- ports -----------------------------------------------------------------------------------------


def test_a_port_that_is_asked_for_and_taken_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Unavailable, match=r"port \d+ is in use"):
            free_port(taken.getsockname()[1], None)


def test_the_last_port_is_taken_again_unless_somebody_else_has_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        last = taken.getsockname()[1]
        taken.listen()
        assert free_port(None, last) != last
    assert free_port(None, last) == last


@pytest.mark.parametrize("last", [None, "8080", -1, 70000, {}])
def test_a_state_file_that_says_nonsense_does_no_harm(last):
    assert 0 < free_port(None, last) < 65536


# -- processes -------------------------------------------------------------------------------------


def test_all_of_a_session_ends_also_what_has_a_process_group_of_its_own(home):
    with Processes(home, 1) as processes:
        processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        leader = processes.children[0].id
        child = child_of_stubborn(home)
        assert is_alive(child)
        assert home.state()["processes"]["stubborn"]["pid"] == leader.pid
    assert not is_alive(leader)
    assert not is_alive(child)
    assert home.state()["processes"] == {}


@pytest.mark.parametrize("leader_too", [True, False], ids=["leader-lives", "leader-died"])
def test_what_a_killed_call_has_left_is_ended_by_the_next(home, leader_too):
    processes = Processes(home, 1)
    started = processes.start("stubborn", [sys.executable, "-c", STUBBORN])
    child = child_of_stubborn(home)
    if not leader_too:
        started.process.kill()
        started.process.wait()
    assert end_leftover_processes(home) == ["stubborn"]
    assert not is_alive(child)
    started.process.wait()
    assert end_leftover_processes(home) == []


def test_a_process_that_has_the_pid_of_an_old_one_is_left_lock_project(home):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        known = {"pid": other.pid, "start": "12345/another time"}
        home.write_private(home.state_file, json.dumps({"format": 1, "processes": {"scheduler": known}}))
        assert end_leftover_processes(home) == []
        assert other.poll() is None
        other.communicate(b"\n")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"processes": 5}', '{"processes": {"a": {"pid": 0}}}'])
def test_a_state_file_that_is_torn_is_as_good_as_none(home, text):
    home.write_private(home.state_file, text)
    assert end_leftover_processes(home) == []


def test_a_program_that_is_not_there_is_told(home):
    with Processes(home, 1) as processes, pytest.raises(Invalid, match="no-such-program-here cannot be started"):
        processes.start("beside-1", ["no-such-program-here"])


def test_the_log_of_the_call_before_is_kept(home):
    with Processes(home, 1) as processes:
        for word in ("first", "second"):
            processes.start("x", [sys.executable, "-c", f"print('{word}')"]).process.wait()
    assert home.log("x").read_text() == "second\n"
    assert "first" in log_end(home.log("x").with_suffix(".log.1"))


def test_only_one_in_a_project(home):
    home.write_private(home.state_file, '{"port": 4711}')
    with (
        lock_project(home),
        pytest.raises(Rejected, match=r"is already running on http://127.0.0.1:4711"),
        lock_project(home),
    ):
        pass


# -- what it refuses -------------------------------------------------------------------------------


def test_a_folder_without_dags_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["up"]) == 2
    assert "there are no DAG files" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_settings_on_the_command_line_would_not_reach_the_tasks(capsys):
    assert main(["up", "-D", "interval=5 s"]) == 2
    assert "does not accept -D" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--port", "0"], ["--port", "70000"], ["--checkpoints", "0"], ["--checkpoints", "x"]]
)
def test_numbers_that_make_no_sense_are_refused(words, capsys):
    assert main(["up", *words]) == 2
    assert "is not a whole number from 1 to" in capsys.readouterr().err


# -- what it says ----------------------------------------------------------------------------------


def test_a_checkpoint_is_one_plain_line(capsys):
    row = {
        "id": 3,
        "state": "completed",
        "seconds": 2.04,
        "rows": {"orders": 1200, "bad": 0},
        "reason": "",
        "detail": "",
    }
    screen = screen_for(Output(sys.stdout, sys.stderr))
    with screen:
        screen.decided("orders", row)
        screen.decided("orders", row | {"id": 4, "state": "aborted", "reason": "JOB_FAILED", "detail": "no\nmore"})
    assert capsys.readouterr().out.splitlines() == [
        "orders: checkpoint 3 completed in 2.0 s: orders 1,200",
        "orders: checkpoint 4 aborted in 2.0 s: JOB_FAILED: no",
    ]


def test_a_failed_task_is_told_as_a_person_would_read_its_log(home):
    log = home.task_log("orders", "manual__1", "main", 2)
    log.parent.mkdir(parents=True)
    records = [
        {"event": "::group::Pre Execute"},
        {"event": "starting", "level": "info"},
        {
            "event": "Task failed",
            "error_detail": [{"exc_type": "Invalid", "exc_value": "stage 'x' failed", "frames": []}],
        },
    ]
    log.write_text("".join(json.dumps(record) + "\n" for record in records))

    class Answers:
        def failed_tasks(self, run: DagRun) -> list[tuple[str, int]]:
            return [("main", 2), ("complete", 1)]

    told = failure_text(Answers(), home, DagRun("orders", "manual__1", "failed"))  # type: ignore[arg-type]
    assert told.splitlines()[0].startswith("task main failed, try 2.")
    assert "Invalid: stage 'x' failed" in told
    assert "frames" not in told
    assert "::group::" not in told


def test_broken_dag_files_are_listed():
    error = import_failure({"a.py": "  boom", "b.py": "  bang"})
    assert "2 DAG files cannot be read" in error.what
    assert "a.py:\n  boom" in error.what
    assert error.reason == "BROKEN_DAG"


# -- a pipeline that is suspended ----------------------------------------------------------------------


class NoAirflow:
    """Airflow, as far as it is asked here: one DAG, which has no runs."""

    def __init__(self) -> None:
        self.triggered = 0

    def dags(self) -> list[Dag]:
        return [Dag("orders", "orders", False, None)]

    def runs(self, dag: Dag) -> list[DagRun]:
        return []

    def import_errors(self) -> dict[str, str]:
        return {}

    def trigger(self, dag: Dag) -> str:
        self.triggered += 1
        return "manual__1"


def up_of(project, *words: str) -> Up:
    """`tidegate up` of the project, without its processes."""
    home = Home(project.folder)
    home.make()
    args = argparse.Namespace(checkpoints=int(words[0]) if words else None, beside=[], port=None, dags=[])
    out = Output(sys.stdout, sys.stderr)
    up = Up(args, load_settings(), home, screen_for(out), StopSignals(out))
    up.airflow = NoAirflow()
    up.pipelines = FollowedPipelines(up.airflow, up.settings)
    return up


def test_a_pipeline_that_had_failed_too_often_continues_when_a_person_starts_it(project, capsys):
    project.complete(1, None)
    project.plan(2, 1)
    project.abort(2, detail="a stage failed")
    up = up_of(project, "1")
    for _ in range(3):
        up._poll_airflow()
    assert "orders is resumed: it was suspended because checkpoint 2 failed" in capsys.readouterr().out
    assert up.airflow.triggered
    assert suspended(project.ledger.view(), 0) is None


def test_of_several_dags_only_the_named_ones_are_unpaused_and_followed(project):
    up = up_of(project)
    up.airflow.dags = lambda: [Dag(name, "orders", True, None) for name in ("orders", "rides")]
    unpaused = []
    up.airflow.unpause = lambda dag: unpaused.append(dag.id)
    up.dags = ["rides", "rdies"]
    up.pipelines = FollowedPipelines(up.airflow, up.settings, up.dags)
    assert up._no_pipeline() == "the DAG 'rdies'"
    assert unpaused == list(up.pipelines.followed) == ["rides"]


def test_one_that_is_suspended_is_told_instead_of_waited_for(project, capsys):
    project.complete(1, None)
    suspend(project.ledger, "mia", "the feed is broken")
    up = up_of(project)
    up._poll_airflow()
    up._poll_airflow()
    told = capsys.readouterr().out
    assert told.count("pipeline 'orders' is suspended (suspended by mia: the feed is broken)") == 1
    assert "resume orders" in told
    counted = up_of(project, "1")
    counted._poll_airflow()
    with pytest.raises(Rejected, match="its runs make no checkpoint"):
        counted._poll_airflow()
    assert not counted.airflow.triggered


def test_suspending_and_resuming_is_no_checkpoint_that_is_being_made(project):
    project.complete(1, None)
    followed = Followed(NoAirflow().dags()[0], project.ledger, [])
    suspend(project.ledger, "mia", "")
    resume(project.ledger, "mia")
    assert followed.decided() == []
    assert followed.open == []


def test_what_cannot_be_read_for_a_while_is_told_when_it_can(project, monkeypatch):
    """The ledger's disk is away: `up` continues, and forgets nothing."""
    followed = Followed(NoAirflow().dags()[0], project.ledger, [])
    project.complete(1, None)
    real = type(project.ledger).entry

    def away(*_: object) -> None:
        raise Unavailable("no answer", reason="STORE")

    monkeypatch.setattr(type(project.ledger), "entry", away)
    assert followed.decided() == []
    monkeypatch.setattr(type(project.ledger), "entry", real)
    assert [row["id"] for row in followed.decided()] == [1]


# -- Ctrl-C --------------------------------------------------------------------------------------------


def test_ctrl_c_waits_for_what_runs_of_the_dag_make_and_for_nobody_else(project):
    """A `tidegate run` beside it always has a checkpoint open, and brings it to its end by itself."""
    project.plan(1, None, run="process:here:4711:12:ab")
    up = up_of(project)
    up._poll_airflow()
    followed = up.pipelines.followed["orders"]
    followed.decided()
    assert followed.open == [1]
    assert followed.open_in_runs() == []
    up._finish_checkpoints()  # at once

    project.plan(2, None, run="airflow:orders:manual__1")
    followed.decided()
    assert followed.open_in_runs() == [2]


def test_ctrl_c_does_not_wait_for_checkpoints_that_begin_behind_it(project):
    project.plan(1, None, run="airflow:orders:manual__1")
    up = up_of(project)
    up._poll_airflow()
    followed = up.pipelines.followed["orders"]
    looks = iter(
        [lambda: None, lambda: (project.abort(1, detail="over"), project.plan(2, None, run="airflow:orders:2"))]
    )

    def sleep(seconds: float) -> None:
        next(looks)()

    with seams.installed(seams.Seams(sleep=sleep)):
        up._finish_checkpoints()
    assert followed.open_in_runs() == [2]


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, None),
        ({"no_proxy": "mine"}, None),
        ({"http_proxy": "http://proxy:3128"}, "127.0.0.1,localhost"),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "mine,127.0.0.1"}, "mine,127.0.0.1,localhost"),
        ({"all_proxy": "socks5://proxy", "no_proxy": "*"}, None),
    ],
)
def test_airflows_parts_reach_each_other_whatever_proxy_there_is(tmp_path, monkeypatch, given, direct):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    home = Home(tmp_path)
    home.make()
    environment = home.environment(8080)
    for name in ("no_proxy", "NO_PROXY"):
        assert environment.get(name) == (direct if direct else given.get(name))


def test_a_project_that_cannot_be_written_is_told_with_the_command(tmp_path):
    (tmp_path / ".tidegate").touch()
    with pytest.raises(Unavailable, match="cannot be written") as error:
        Home(tmp_path).make()
    assert "chown" in error.value.help


@pytest.mark.parametrize(("found", "what"), [(None, "not installed"), ("2.11.0", "Airflow 2.11.0 is installed")])
def test_without_a_fitting_airflow_the_command_that_installs_it_is_told(monkeypatch, found, what):
    monkeypatch.setattr(up_command, "installed_version", lambda name: found)
    with pytest.raises(Invalid, match=what) as error:
        up_command.refuse_without_airflow()
    assert "pip install 'tidegate[airflow]'" in error.value.help
    assert error.value.reason == "AIRFLOW_MISSING"
