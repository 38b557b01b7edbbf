"""`tidegate up` with a real Airflow, in a copy of the project: it comes up, continues, and leaves nothing running.

Ctrl-C at one that runs is in tests/chaos, which ends so.
"""

from __future__ import annotations

import contextlib
import re
import stat
import sys
from collections.abc import Iterator
from decimal import Decimal

import pytest
import sqlalchemy

from jobs import orders_feed
from tests.dags.up_project import Project
from tests.kit import postgres
from tests.kit.example import Expected
from tests.kit.sampling import in_turn, only_with_all
from tidegate.spark.server.processes import ProcessId, is_alive

pytestmark = in_turn(seconds=60)

ROWS = 60


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Where there is a PostgreSQL, Airflow's metadata are in it, as compose.yaml has it."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgres.postgres()) if postgres.programs() else ""
        env = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url} if url else {}
        project = Project.copy(tmp_path_factory.mktemp("project"), **env)
        orders_feed.feed(project.folder / "data", files=12, rows=ROWS)
        yield project
        project.clean_up()


@pytest.fixture(scope="module")
def killed(project: Project) -> list[ProcessId]:
    """The first call is killed as soon as Airflow runs. These processes of it live on."""
    with project.up() as up:
        up.says("Airflow is running: http://127.0.0.1:")
        up.process.kill()
        up.ends()
    return [ProcessId.from_json(each) for each in project.home.state()["processes"].values()]


@pytest.fixture(scope="module")
def ended(project: Project, killed: list[ProcessId]) -> None:
    """The second call, which ends by itself."""
    assert len(killed) == 4
    assert all(is_alive(each) for each in killed)
    feeder = f"{sys.executable} -m jobs.orders_feed --files 0 --every 1"
    with project.up("--checkpoints", "2", "--beside", feeder) as up:
        for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
            up.says(f"Took over the {name} of an earlier call that was killed.")
        up.says("Airflow is running: ")
        assert all(is_alive(each) for each in killed), "what a killed call has left just goes on"
        third = project.tidegate("up")
        assert third.returncode == 1
        assert "is already running on http://127.0.0.1:" in third.stderr
        assert up.ends() == 0


def test_a_killed_one_is_taken_over_by_the_next_which_ends_after_so_many_checkpoints(project, ended):
    states = [row["state"] for row in project.json("list", "orders", "--limit", "200")["checkpoints"]]
    assert states.count("completed") >= 2
    assert project.left_running() == []


def test_its_metadata_are_where_they_were_asked_to_be(project, ended):
    url = project.env.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN")
    if url is None:
        pytest.skip("there is no PostgreSQL: apt-get install postgresql")
    assert not (project.home.folder / "airflow.db").exists()
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        states = connection.execute(sqlalchemy.text("SELECT DISTINCT state FROM dag_run WHERE state <> 'queued'"))
        assert "success" in [state for (state,) in states]
    engine.dispose()


def test_what_it_keeps_is_private(project, ended):
    home = project.home
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700
    files = [path for path in home.folder.rglob("*") if path.is_file()]
    assert {oct(stat.S_IMODE(path.stat().st_mode) & 0o077) for path in files} == {"0o0"}
    password, fresh = home.password()
    assert not fresh
    logs = "".join(path.read_text(errors="replace") for path in home.log("").parent.iterdir())
    assert password not in logs


def test_after_all_that_every_event_counts_once(project, ended):
    done = project.json("list", "orders", "--limit", "200")["checkpoints"]
    completed = [row["id"] for row in reversed(done) if row["state"] == "completed"]
    assert completed == sorted(completed)
    last = next(row["id"] for row in done if row["state"] == "completed")
    ends = project.json("show", "orders", str(last))["records"]["plan"]["sources"]
    files = [int(re.search(r"(\d+)\.json", ends[name]["end"]["after"])[1]) for name in ("orders", "payments")]
    expected = Expected(*files, ROWS)
    totals = project.json("read", "orders", "totals", "--limit", "1000000")["rows"]
    assert {row["customer_id"]: (Decimal(row["spent"]), row["orders"]) for row in totals} == {
        customer: value[:2] for customer, value in expected.totals.items()
    }
    aside = project.json("read", "orders", "quarantine.checked", "--limit", "1")
    assert aside["total"] == expected.quarantine.total()


def test_a_broken_dag_file_is_told_with_its_line(project, ended):
    broken = project.folder / "dags" / "broken.py"
    broken.write_text("import no_such_module_of_mine\n")
    try:
        done = project.tidegate("up", "--checkpoints", "1")
    finally:
        broken.unlink()
    assert done.returncode == 2
    assert "a DAG file cannot be read: broken.py" in done.stderr
    assert "No module named 'no_such_module_of_mine'" in done.stderr
    assert 'broken.py", line 1' in done.stderr
    assert project.left_running() == []


@only_with_all
def test_a_run_that_fails_ends_it_with_what_its_task_said(project, ended):
    code = project.folder / "jobs" / "orders.py"
    right = code.read_text()
    code.write_text(right.replace("    return checked.drop", "    no_such_name\n    return checked.drop"))
    try:
        done = project.tidegate("up", "--checkpoints", "3")  # what was acknowledged before is still completed
    finally:
        code.write_text(right)
    assert done.returncode == 1
    assert re.search(r"run \S+ of DAG orders has failed: task job_main failed, try \d", done.stderr)
    assert "stage 'clean' failed: NameError: name 'no_such_name' is not defined" in done.stderr
    assert "aborted" in done.stdout
    assert project.left_running() == []
