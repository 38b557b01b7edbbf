"""Runs of a DAG as checkpoints, by `dag.test()`: every task is run, one after the other, in this process."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from tests.dags import by_hand
from tests.dags.in_process import GREEN, run
from tests.dags.listener import Listener
from tests.dags.project import ENDLESS, HELD, Made, Project
from tests.kit.sampling import in_turn
from tidegate.dag.tasks.task import open_coordinator
from tidegate.lifecycle.savepoint import savepoints

pytestmark = in_turn(seconds=110)


@pytest.fixture
def made(project: Project, request: pytest.FixtureRequest) -> Made:
    """A pipeline under the name of the test, with one file of input."""
    return project.pipeline(request.node.name.removeprefix("test_")[:60], stage=FAILS_IF_TOLD).feed()


FAILS_IF_TOLD = """
if (HERE / "broken").exists():
    raise ValueError(f"this stage is {'broken'}")
"""


def test_each_line_of_a_jobs_log_begins_with_the_checkpoint_and_the_job(made: Made, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "tidegate.dag"):
        assert run(made, 1) == GREEN
    told = [record.getMessage() for record in caplog.records if record.name.startswith("tidegate.dag.tasks")]
    assert "Checkpoint 1, job main: staging every" in told
    assert "Checkpoint 1: publishing" in told


def test_each_run_is_a_checkpoint(made: Made, monkeypatch: pytest.MonkeyPatch):
    with Listener(monkeypatch) as listener:
        assert run(made, 1) == GREEN
        assert listener.heard()[f"airflow.tidegate.{made.name}.lastCompletedCheckpointId"] == "1|g"
    made.check(1)
    made.feed()
    assert run(made, 2) == GREEN
    made.check(2)
    assert made.outcomes() == ["completed", "completed"]


def test_a_run_with_unknown_conf_is_red_and_plans_nothing(made: Made):
    state, tasks = run(made, run_conf={"savepont": "mine"})
    assert (state, tasks["trigger"], tasks["complete"]) == ("failed", "failed", "failed")
    assert made.entries == []


def test_a_run_may_give_its_checkpoint_a_name(made: Made):
    assert run(made, run_conf={"savepoint": "mine"}) == GREEN
    assert [(each.name, each.entry) for each in savepoints(made.ledger)] == [("mine", 1)]


def test_a_failing_job_makes_the_run_red_and_the_next_run_takes_its_input(made: Made):
    (made.folder / "broken").touch()
    state, tasks = run(made, 1)
    assert (state, tasks) == ("failed", {"trigger": "success", "job_main": "failed", "complete": "failed"})
    decision = made.entries[0].decision
    assert decision is not None
    assert (decision.reason, decision.counts) == ("JOB_FAILED", True)
    assert "job_main is failed" in decision.detail
    assert "stage 'seen' failed: ValueError (" in decision.detail
    assert "this stage is broken" not in decision.detail, "it may quote a row: only who may read XComs gets it"
    (made.folder / "broken").unlink()
    assert run(made, 2) == GREEN
    made.check(1)


def test_clearing_a_failed_run_gives_it_a_new_checkpoint(made: Made):
    (made.folder / "broken").touch()
    assert run(made, 1)[0] == "failed"
    (made.folder / "broken").unlink()
    assert run(made, 1) == GREEN
    assert made.outcomes() == ["JOB_FAILED", "completed"]
    assert {entry.plan.run for entry in made.entries} == {made.entries[0].plan.run}
    made.check(1)


def test_clearing_an_old_run_does_nothing_and_says_so(made: Made):
    """Scenario 8: newer checkpoints exist."""
    for number in (1, 2):
        run(made, number)
        made.feed()
    state, tasks = run(made, 1)
    assert (state, tasks) == ("success", {"trigger": "success", "job_main": "success", "complete": "skipped"})
    assert made.outcomes() == ["completed", "completed"]
    made.check(2)


def test_clearing_a_run_whose_checkpoint_is_retired_does_nothing_and_says_so(project: Project):
    made = project.pipeline("retired", num_retained=1)
    for number in (1, 2, 3):
        made.feed()
        assert run(made, number) == GREEN
    assert 1 not in made.ledger.ids()
    state, tasks = run(made, 1)
    assert (state, tasks["trigger"], tasks["job_main"]) == ("success", "skipped", "skipped")
    assert tasks["complete"] in ("skipped", "success")
    made.check(3)


def test_a_job_that_is_marked_green_by_hand_completes_nothing(made: Made):
    state, tasks = run(made, 1, mark_success_pattern="job_main")
    assert (state, tasks["complete"]) == ("failed", "failed")
    assert made.outcomes() == ["JOB_FAILED"]
    assert run(made, 2) == GREEN
    made.check(1)


def test_a_trigger_that_is_marked_green_by_hand_is_made_up_for(made: Made):
    assert run(made, 1, mark_success_pattern="trigger") == GREEN
    made.check(1)


def test_a_completion_that_is_marked_green_by_hand_is_made_up_for_by_the_next_run(made: Made):
    assert run(made, 1, mark_success_pattern="complete") == GREEN
    assert made.outcomes() == ["open"]
    assert run(made, 2) == GREEN
    assert made.outcomes() == ["RUN_GONE", "completed"]
    made.check(1)


def test_a_checkpoint_past_its_timeout_is_told_as_that(project: Project):
    made = project.pipeline("late", stage=ENDLESS, timeout="8 s").feed()
    (made.folder / "endless").touch()
    state, tasks = run(made, 1)
    assert (state, tasks["job_main"]) == ("failed", "failed")
    assert made.outcomes() == ["CHECKPOINT_EXPIRED"]
    (made.folder / "endless").unlink()
    project.pipeline("late", stage=ENDLESS)
    assert run(made, 2) == GREEN
    made.check(1)


def test_two_processes_run_the_same_try_at_once(project: Project):
    """Scenario 6."""
    made = project.pipeline("twice", stage=HELD).feed()

    def start(task: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.dags.by_hand", str(made.dag_file), task, "r"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
        told = [process.communicate(timeout=400) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], told
        return [out.splitlines()[-1] for out, _ in told]

    assert ended([start("trigger"), start("trigger")]) == ["{'checkpoint': 1, 'done': False}"] * 2
    made.hold()
    jobs = [start("job_main"), start("job_main")]
    made.at_work(but=made.at_work())
    made.release()
    assert ended(jobs) == ["{'checkpoint': 1}"] * 2
    assert made.outcomes() == ["open"]
    finish = by_hand.load(str(made.dag_file)).task_dict["job_main"]
    assert finish.execute(by_hand.context(finish.dag)) == {"checkpoint": 1}  # and a third time, when it is done
    coordinator, _ = open_coordinator(finish.pipeline, finish.project)
    assert coordinator.complete(1).state == "completed"
    coordinator.publish()
    made.check(1)
