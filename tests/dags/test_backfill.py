"""Backfills by a real scheduler: intervals in any order, several at once, and again; exactly their rows, each time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.dags.server import Airflow
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.history.backfill import backfill_statuses
from tidegate.ledger.ledger import open_ledger
from tidegate.lifecycle import savepoint

DAG_FILE = '''
"""Made by a test."""
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("hourly", interval="1 h", max_concurrent_checkpoints=3)
rows = pipeline.source("rows", Files("hourly/in/{start:%Y-%m-%dT%H}.json", schema="id long, file long"))
rows.sink("every", DeltaAppend("hourly/every"))
dag = build_dag(pipeline, is_paused_upon_creation=True)
'''
HOURS = 6
ROWS = 3


@in_turn(seconds=110)
def test_six_intervals_three_at_once_backwards_and_again(airflow: Airflow):
    folder = airflow.project.folder / "hourly"
    for hour in range(HOURS):
        feed(folder, hour, version=0)
    (airflow.project.dags / "dag_hourly.py").write_text(DAG_FILE)
    airflow.known("hourly")
    airflow.call("PATCH", "/dags/hourly", {"is_paused": False})
    others(folder / "every")

    backfill(airflow, "none")
    assert rows(folder) == expected(versions=[0] * HOURS)
    ids = open_ledger(str(airflow.project.folder / "ledger"), "hourly").ids()

    for hour in (2, 5):
        feed(folder, hour, version=1)
    backfill(airflow, "completed")
    assert rows(folder) == expected(versions=[1 if hour in (2, 5) else 0 for hour in range(HOURS)])
    again = open_ledger(str(airflow.project.folder / "ledger"), "hourly").ids()
    assert again[-1] >= ids[-1] + HOURS, "each interval has been made again"

    feed(folder, 4, version=2)
    cleared = next(run for run in airflow.runs("hourly") if "2026-01-01T05:00" in run.run_id)
    cleared.clear("complete")
    assert cleared.ended() == "success"
    assert rows(folder)[4, 0] == ROWS, "to look again at how it ended makes nothing again"
    cleared.clear()
    assert cleared.ended() == "success"
    assert rows(folder) == expected(versions=[{2: 1, 4: 2, 5: 1}.get(hour, 0) for hour in range(HOURS)])
    airflow.call("PATCH", "/dags/hourly", {"is_paused": True})


@in_turn(seconds=110)
def test_a_backfill_by_dates_of_a_pipeline_that_reads_whatever_is_new_is_one_replay_that_its_runs_follow(
    airflow: Airflow,
):
    """Scenario 21, too: its runs and those of the schedule come at the same instant."""
    made = airflow.project.pipeline("continuous", interval="3 s", min_pause="0 s", num_retained=5).feed(3)
    airflow.known("continuous")
    eventually("three checkpoints are in the tables", lambda: len(made.published) >= 3, 180)
    savepoint.create(made.ledger, "second", 2, "ann")  # it stays, however many come until it is wanted
    eventually("the first one is retired", lambda: made.ledger.ids()[0] == 2, 180)

    # From before all that is retained: it is refused, and there is no run.
    long_ago = {"from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-01T00:00:06Z"}
    asked = long_ago | {"dag_id": "continuous", "reprocess_behavior": "none"}
    assert airflow.call("POST", "/backfills", asked, fine=(422,)) is None
    assert airflow.call("GET", "/backfills?dag_id=continuous")["backfills"] == []
    assert airflow.call("GET", "/dags/continuous/dagRuns?run_type=backfill")["dag_runs"] == []
    assert airflow.runs("continuous__backfill") == []

    # From the second checkpoint on: the runs of then are cleared by Airflow, and all follow one replay.
    second = made.ledger.decision(2)
    assert second is not None
    since = datetime.fromisoformat(second.created) + timedelta(seconds=0.001)
    made.feed(3)
    eventually("all input is in the tables", lambda: made.holds(6), 180)
    before = time.time()
    wanted = {"from_date": since.isoformat(), "to_date": (since + timedelta(seconds=12)).isoformat()}
    request(airflow, "continuous", wanted, "completed")
    ended = eventually("its runs have ended", lambda: ended_backfill(airflow, "continuous", 2, before), 240)
    assert {run.state for run in ended} == {"success"}, [run.log("trigger")[-2000:] for run in ended]
    told = [run.log("trigger", run.tries()["trigger"]) for run in ended]
    assert all("has read all that the pipeline had completed by the end" in each for each in told)
    assert {state for run in ended for state in run.tasks().values()} == {"skipped"}, "they make no checkpoint"
    airflow.call("PATCH", "/dags/continuous", {"is_paused": True})
    (line,) = backfill_statuses(made.ledger, {})
    assert (line.record.origin, line.blocked_by, line.head is not None) == (2, "", True)
    made.check(6)

    # Its configuration may say that it begins at the beginning, whatever its dates are.
    discard(made.project.folder, made.name, line.record.name)
    before = time.time()
    airflow.call("PATCH", "/dags/continuous", {"is_paused": False})
    request(airflow, "continuous", long_ago | {"dag_run_conf": {"from": "beginning"}}, "completed")
    ended = eventually("its runs have ended", lambda: ended_backfill(airflow, "continuous", 3, before), 240)
    airflow.call("PATCH", "/dags/continuous", {"is_paused": True})
    assert {run.state for run in ended} == {"success"}, [run.log("trigger")[-2000:] for run in ended]
    (line,) = backfill_statuses(made.ledger, {})
    assert line.record.origin == 0


def discard(project: Path, pipeline: str, name: str) -> None:
    command = [sys.executable, "-m", "tidegate", "backfill", f"dags.dag_{pipeline}:pipeline", "--discard", name]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def feed(folder: Path, hour: int, version: int) -> None:
    """The hour's file: ids that tell the hour, and as `file` how often it was written."""
    path = folder / "in" / f"2026-01-01T{hour:02d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": hour, "file": version}) for _ in range(ROWS)]
    path.with_suffix(".tmp").write_text("\n".join(lines) + "\n")
    path.with_suffix(".tmp").rename(path)


def others(table: Path) -> None:
    """Somebody else's rows in the same table: they stay."""
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(table), pa.table({"id": pa.array([99], pa.int64()), "file": pa.array([9], pa.int64())}))


def expected(versions: list[int]) -> Counter[tuple[int, int]]:
    return Counter({(99, 9): 1} | dict.fromkeys(enumerate(versions), ROWS))


def rows(folder: Path) -> Counter[tuple[int, int]]:
    from deltalake import DeltaTable

    found = DeltaTable(str(folder / "every")).to_pyarrow_table().to_pylist()
    return Counter((row["id"], row["file"]) for row in found if row["id"] == 99 or row["id"] < HOURS)


def backfill(airflow: Airflow, reprocess: str) -> None:
    """All six hours, three at once, backwards; until the last one has ended."""
    before = time.time()
    last = f"2026-01-01T{HOURS - 1:02d}:00:00Z"
    request(airflow, "hourly", {"from_date": "2026-01-01T00:00:00Z", "to_date": last}, reprocess)
    ended = eventually("six runs have ended", lambda: ended_backfill(airflow, "hourly", HOURS, before), 240)
    assert {run.state for run in ended} == {"success"}, [run.tasks() for run in ended if run.state != "success"]


def request(airflow: Airflow, dag_id: str, wanted: dict[str, Any], reprocess: str) -> None:
    wanted = wanted | {"dag_id": dag_id, "max_active_runs": 3, "run_backwards": True, "reprocess_behavior": reprocess}

    def all_over() -> bool:
        made_before = airflow.call("GET", f"/backfills?dag_id={dag_id}")["backfills"]
        return all(each["completed_at"] for each in made_before)

    def made() -> object:
        with airflow.still():
            return airflow.call("POST", "/backfills", wanted, fine=(409,))  # 409: the one before is not marked as done

    eventually("the backfills before it are over", all_over, 180)

    eventually("a backfill is made", made, 180)


def ended_backfill(airflow: Airflow, dag_id: str, number: int, since: float = 0.0) -> list[Any] | None:
    """The backfill's runs, once all have ended."""
    found = airflow.call("GET", f"/dags/{dag_id}/dagRuns?run_type=backfill&limit=100")["dag_runs"]
    done = [
        run
        for run in found
        if run["state"] in ("success", "failed") and datetime.fromisoformat(run["end_date"]).timestamp() > since
    ]
    runs = {run.run_id: run for run in airflow.runs(dag_id)}
    return [runs[run["dag_run_id"]] for run in done] if len(done) >= number else None
