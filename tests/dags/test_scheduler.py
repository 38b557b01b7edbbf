"""What Airflow does to runs and tasks, done by a real scheduler: nothing is lost and nothing is doubled."""

from __future__ import annotations

from tests.dags.server import Airflow
from tests.waiting import eventually


def test_five_checkpoints_each_exactly_once(airflow: Airflow):
    made = airflow.project.pipeline("five", interval="2 s").feed(5)
    airflow.known("five")
    eventually("five checkpoints are in the tables", lambda: len(made.published) >= 5, 180)
    made.check(5)
    assert set(made.outcomes()) <= {"completed", "open"}
    done = eventually("five runs have ended", lambda: [r for r in airflow.runs("five") if r.state == "success"][:5])
    assert {r.tasks()["complete"] for r in done} == {"success"}
    events = [event["extra"] for event in airflow.events("five") if event["uri"] == "tidegate://five/every"]
    assert {e["checkpoint"]: e["rows"] for e in events if e["checkpoint"] < 5} == dict.fromkeys(range(1, 5), made.ROWS)
