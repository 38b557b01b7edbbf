"""What Airflow does to runs and tasks, done by a real scheduler: nothing is lost and nothing is doubled."""

from __future__ import annotations

import os
import signal
from urllib.parse import quote

from tests.dags import processes
from tests.dags.project import ENDLESS, HELD, ODD_IS_BAD, SLOW_APART, SLOW_BESIDE, Made
from tests.dags.server import Airflow, Run
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.checkpoint.approvals import answer


def by_hand(airflow: Airflow, name: str, stage: str = HELD) -> Made:
    """A pipeline whose runs the test triggers."""
    made = airflow.project.pipeline(name, stage=stage, interval="never").feed()
    airflow.known(name)
    return made


def test_five_checkpoints_each_exactly_once(airflow: Airflow):
    airflow.project.pipeline("after_five", arguments='schedule=[asset("five", "every")]')
    airflow.known("after_five")
    made = airflow.project.pipeline("five", interval="2 s").feed(5)
    airflow.known("five")
    eventually("five checkpoints are in the tables", lambda: len(made.published) >= 5, 180)
    made.check(5)
    assert set(made.outcomes()) <= {"completed", "open"}
    done = eventually("five runs have ended", lambda: [r for r in airflow.runs("five") if r.state == "success"][:5])
    # Two runs start when a DAG is unpaused. Whichever comes second is skipped if the first has gone past its interval.
    assert {run.tasks()["complete"] for run in done} <= {"success", "skipped"}
    events = [event["extra"] for event in airflow.events("five") if event["uri"] == "tidegate://five/every"]
    assert {e["checkpoint"]: e["rows"] for e in events if e["checkpoint"] < 5} == dict.fromkeys(range(1, 5), made.ROWS)
    eventually("a pipeline that is scheduled on them has run", lambda: airflow.runs("after_five"))
    airflow.call("PATCH", "/dags/five", {"is_paused": True})


@in_turn(seconds=40)
def test_a_second_run_waits_without_a_worker(airflow: Airflow):
    made = by_hand(airflow, "waits").hold().feed()
    first, second = airflow.trigger("waits"), airflow.trigger("waits")
    made.at_work()
    waiting = first if first.tasks()["trigger"] != "success" else second
    waiting.until("trigger", "deferred")
    assert made.outcomes() == ["open"]
    made.release()
    assert (first.ended(), second.ended()) == ("success", "success")
    assert made.outcomes() == ["completed", "completed"]
    made.check(2)


@in_turn(seconds=40)
def test_a_run_does_not_wait_for_one_that_was_ended_by_hand(airflow: Airflow):
    made = by_hand(airflow, "given_up").hold()
    first = airflow.trigger("given_up")
    made.at_work()
    second = airflow.trigger("given_up")
    second.until("trigger", "deferred")
    first.mark_run("failed")  # skips its `complete`
    second.until("trigger", "success")
    made.release()
    assert second.ended() == "success"
    assert "the run of checkpoint 1 has ended without deciding it" in second.log("trigger")
    assert made.outcomes() == ["RUN_GONE", "completed"]
    made.check(1)


@in_turn(seconds=40)
def test_two_at_once_complete_in_their_order(airflow: Airflow):
    """Of two jobs: while the second one is at work on a checkpoint, the first one continues with the next."""
    project = airflow.project
    made = project.pipeline("at_once", gate=SLOW_APART, interval="never", max_concurrent_checkpoints=2).hold().feed(2)
    airflow.known("at_once")
    first = airflow.trigger("at_once")
    made.at_work()
    assert first.tasks()["job_main"] == "success"
    second = airflow.trigger("at_once")
    second.until("job_main", "success")
    second.until("job_apart", "deferred")  # it continues from what the first one's has done
    assert made.outcomes() == ["open", "open"]
    made.release()
    assert (first.ended(), second.ended()) == ("success", "success")
    assert made.outcomes() == ["completed", "completed"]
    made.check(2)


@in_turn(seconds=40)
def test_checkpoints_go_past_a_slow_job(airflow: Airflow):
    """And it catches up in one go. (With alignment they wait for it: the story above.)"""
    settings = {"unaligned": True, "max_concurrent_checkpoints": 2, "interval": "never"}
    made = airflow.project.pipeline("passed", gate=SLOW_BESIDE, **settings).hold().feed(4)
    airflow.known("passed")
    first = airflow.trigger("passed")
    made.at_work()
    for count in (2, 3):
        run = airflow.trigger("passed")
        assert run.ended() == "success"
        assert run.tasks()["job_apart"] == "skipped"
        assert len(made.rows("fast")) == count * made.ROWS, "published while it is at work"
    assert "does not wait for job 'apart', which is still busy with checkpoint 1" in run.log("job_apart")
    assert (first.tasks()["job_apart"], made.rows_or_none("every")) == ("running", [])
    assert made.outcomes() == ["completed"] * 3
    made.release()
    assert first.ended() == "success"
    assert airflow.trigger("passed").ended() == "success"
    made.check(4)
    entry = made.entries[-1]
    assert [each.entry for each in entry.acks["apart"].ack.inputs["main"]] == [2, 3, 4]


@in_turn(seconds=40)
def test_at_least_once_rows_are_there_before_the_run_decides(airflow: Airflow):
    made = airflow.project.pipeline("early", gate=SLOW_BESIDE, mode="at_least_once", interval="never").hold().feed()
    airflow.known("early")
    run = airflow.trigger("early")
    made.at_work()
    assert len(made.rows("fast")) == made.ROWS, "the first job has written them"
    assert (made.rows_or_none("every"), made.outcomes()) == ([], ["open"])
    assert run.tasks()["complete"] not in ("running", "success")
    made.release()
    assert run.ended() == "success"
    assert len(made.rows("fast")) == made.ROWS, "and nobody has written them again"
    made.check(1)


@in_turn(seconds=40)
def test_clearing_an_old_run_changes_nothing(airflow: Airflow):
    """Scenario 8: newer checkpoints exist."""
    made = by_hand(airflow, "cleared", stage="pass").feed()
    old = airflow.trigger("cleared")
    assert old.ended() == "success"
    assert airflow.trigger("cleared").ended() == "success"
    events = len(airflow.events("cleared"))
    old.clear()
    eventually("all is run again", lambda: old.tries()["complete"] == 2 and old.state == "success")
    assert old.tasks() == {"trigger": "success", "job_main": "success", "complete": "skipped"}
    assert made.outcomes() == ["completed", "completed"]
    assert len(airflow.events("cleared")) == events
    assert "Checkpoint 1 was completed before: nothing to do" in old.log("trigger", tries=2)
    made.check(2)


def test_a_killed_task_is_tried_again(airflow: Airflow):
    made = by_hand(airflow, "killed").hold()
    run = airflow.trigger("killed")
    os.kill(made.at_work(), signal.SIGKILL)
    made.release()
    assert run.ended() == "success"
    assert run.tries()["job_main"] == 2
    assert made.outcomes() == ["completed"]
    made.check(1)


@in_turn(seconds=40)
def test_a_worker_is_killed_and_its_child_lives_on(airflow: Airflow):
    """Scenario 9: the child overlaps the retry."""
    made = by_hand(airflow, "orphan").hold()
    run = airflow.trigger("orphan")
    child = made.at_work()
    worker = processes.parent(child)
    assert worker is not None
    assert processes.parent(worker) == airflow.processes["scheduler"].pid
    os.kill(worker, signal.SIGKILL)
    retry = made.at_work(but=child)
    assert processes.alive(child)
    assert processes.alive(retry)
    made.release()
    assert run.ended() == "success"
    eventually("the child has ended", lambda: not processes.alive(child), timeout=180.0)
    assert made.outcomes() == ["completed"]
    made.check(1)


@in_turn(seconds=40)
def test_sigterm_ends_a_job_and_its_spark_work(airflow: Airflow):
    """If its work continued, the retry would never get a core."""
    made = by_hand(airflow, "told_to_end", stage=ENDLESS)
    (made.folder / "endless").touch()
    run = airflow.trigger("told_to_end")
    child = made.at_work()
    (made.folder / "endless").unlink()
    os.kill(child, signal.SIGTERM)
    eventually("the job has ended", lambda: not processes.alive(child), timeout=180.0)
    assert run.ended() == "success"
    made.check(1)


def test_work_is_done_but_airflow_is_not_told(airflow: Airflow):
    """Scenario 7: the API server is away when the job's work is done, and the job is killed before it comes back."""
    made = by_hand(airflow, "untold").hold()
    run = airflow.trigger("untold")
    child = made.at_work()
    server = airflow.processes["api-server"].pid
    os.killpg(server, signal.SIGSTOP)
    try:
        made.release()
        eventually("the job's work is done", lambda: made.entries[0].acks)
        os.kill(child, signal.SIGKILL)
    finally:
        os.killpg(server, signal.SIGCONT)
    assert run.ended() == "success"
    assert made.outcomes() == ["completed"]
    made.check(1)


@in_turn(seconds=40)
def test_a_job_marked_failed_by_hand_is_fenced(airflow: Airflow):
    made = by_hand(airflow, "marked_failed").hold()
    run = airflow.trigger("marked_failed")
    child = made.at_work()
    run.mark("job_main", "failed")
    assert run.ended() == "failed"
    assert made.outcomes() == ["JOB_FAILED"]
    eventually("the job has ended", lambda: not processes.alive(child), timeout=180.0)
    made.release()
    assert airflow.trigger("marked_failed").ended() == "success"
    made.check(1)


@in_turn(seconds=40)
def test_a_run_marked_green_by_hand_is_made_up_for_by_the_next(airflow: Airflow):
    made = by_hand(airflow, "marked_green").hold()
    run = airflow.trigger("marked_green")
    made.at_work()
    run.mark_run("success")
    made.release()
    assert airflow.trigger("marked_green").ended() == "success"
    assert made.outcomes() in (["RUN_GONE", "completed"], ["completed", "completed"])
    made.check(1)


@in_turn(seconds=40)
def test_a_dag_is_paused_and_deleted_in_mid_run_and_added_again(airflow: Airflow):
    """Scenario 22."""
    made = by_hand(airflow, "deleted").hold()
    run = airflow.trigger("deleted")
    child = made.at_work()
    airflow.call("PATCH", "/dags/deleted", {"is_paused": True})
    run.mark_run("failed")
    eventually("the job has ended", lambda: not processes.alive(child), timeout=180.0)
    eventually("the DAG is deleted", lambda: airflow.call("DELETE", "/dags/deleted", fine=(409,)) is None)
    text = made.dag_file.read_text()
    made.dag_file.write_text(text + "\n")  # so that it is read again
    made.release()
    airflow.known("deleted")
    airflow.call("PATCH", "/dags/deleted", {"is_paused": False})
    assert airflow.trigger("deleted").ended() == "success"
    assert made.outcomes() == ["RUN_GONE", "completed"]
    made.check(1)


def run_with(airflow: Airflow, made: Made, policy: str) -> Run:
    """A run whose gate finds bad rows; what follows is this."""
    (made.folder / "policy").write_text(policy)
    return airflow.trigger(made.name)


@in_turn(seconds=40)
def test_the_task_of_a_gate_shows_its_verdict(airflow: Airflow):
    made = airflow.project.pipeline("shown", gate=ODD_IS_BAD, interval="never").feed(2)
    airflow.known("shown")
    run = run_with(airflow, made, "abort")
    assert run.ended() == "failed"
    assert run.tasks() == {"trigger": "success", "job_main": "success", "gate_checked": "failed", "complete": "failed"}
    told = run.log("gate_checked")
    assert "GATE_FAILED: gate 'checked' stops checkpoint 1, after judging 4 rows" in told
    assert "even (critical): 2 rows are odd" in told
    assert "quarantine show" not in told, "nothing was quarantined"
    assert run.links("gate_checked") == {
        "Checkpoint": f"/dags/shown/runs/{quote(run.run_id, safe='')}/plugin/checkpoint",
        "Quarantine": "/dags/shown/plugin/checkpoints",
    }
    run = run_with(airflow, made, "quarantine")
    assert run.ended() == "success"
    told = run.log("gate_checked")
    assert "QUARANTINE. 4 rows judged, 2 quarantined" in told
    assert "tidegate quarantine show shown checked --checkpoint 2" in told
    assert sorted(made.rows("every")) == [(2, 1), (4, 1)]
    assert made.outcomes() == ["GATE_FAILED", "completed"]


@in_turn(seconds=40)
def test_people_answer_a_gate_that_holds(airflow: Airflow):
    """In Airflow or by command: the task waits without a worker, and continues with what the ledger says."""
    made = airflow.project.pipeline("asks", gate=ODD_IS_BAD, interval="never").feed(3)
    airflow.known("asks")

    def last_log(run: Run) -> str:
        """Who answers at once makes Airflow begin another try; the answer must not be lost with the first."""
        return run.log("gate_checked", run.tries()["gate_checked"])

    def respond(run: Run, option: str, note: str) -> None:
        run.until("gate_checked", "deferred")
        details = f"{run.path}/taskInstances/gate_checked/-1/hitlDetails"
        assert "2 rows are odd" in airflow.call("GET", details)["body"]
        assert made.outcomes()[-1] == "open"
        airflow.call("PATCH", details, {"chosen_options": [option], "params_input": {"note": note}})

    run = run_with(airflow, made, "hold")
    respond(run, "Approve", "as agreed")
    assert (run.ended(), made.outcomes()) == ("success", ["completed"])
    said = made.ledger.answer(1, "checked")
    assert said is not None
    assert (said.approve, said.note, said.by.endswith(" in Airflow")) == (True, "as agreed", True)

    run = run_with(airflow, made, "hold")
    run.until("gate_checked", "deferred")
    answer(made.ledger, 2, None, approve=True, by="a command")
    assert run.ended() == "success"
    assert "approved by a command" in last_log(run)

    run = run_with(airflow, made, "hold")
    respond(run, "Reject", "not this one")
    assert (run.ended(), run.tasks()["gate_checked"]) == ("failed", "failed")
    assert "not this one" in last_log(run)
    assert made.outcomes() == ["completed", "completed", "GATE_REJECTED"]
    made.check(2)
    run = run_with(airflow, made, "hold")
    assert (run.ended(), run.tasks()["trigger"]) == ("success", "skipped"), "suspended, until somebody resumes"
