"""A run that is held up misses its deadline in a real Airflow, and people hear that a table is too old: nobody else
would look while no task begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from tests.dags.project import HELD, Made
from tests.dags.server import Airflow, Run
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tidegate.ledger.ledger import stamp
from tidegate.records.records import HookProgress
from tidegate.seams import new_id

pytestmark = in_turn(seconds=150)

PROMISES = """
import json

def write_down(context):
    with (HERE / "told").open("a") as file:
        print(json.dumps(context["tidegate"]), file=file)

pipeline.promise("every", fresh={fresh!r})
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    with Airflow(tmp_path_factory.mktemp("airflow")) as started:
        yield started


def promising(airflow: Airflow, name: str, fresh: str) -> Made:
    arguments = 'notify={"stale": write_down}'
    made = airflow.project.pipeline(
        name, stage=HELD, gate=PROMISES.format(fresh=fresh), arguments=arguments, interval="never"
    )
    airflow.known(name)
    return made.feed()


def deadlines_of(airflow: Airflow, run: Run) -> list[dict[str, Any]]:
    """What Airflow's page of the run shows."""
    found = airflow.call("GET", f"/ui/dags/{run.dag_id}/dagRuns/{run.run_id}/deadlines")
    return list(found["deadlines"])


def slots(airflow: Airflow, count: int) -> None:
    """How many tasks may run at the same time."""
    airflow.call("PATCH", "/pools/default_pool?update_mask=slots", {"slots": count})


def told(made: Made) -> list[dict[str, Any]]:
    path = made.folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_in_time_has_no_deadline_left_and_nobody_is_told(airflow: Airflow) -> None:
    made = promising(airflow, "in_time", "1 d").hold()
    run = airflow.trigger("in_time")
    made.at_work()
    (deadline,) = deadlines_of(airflow, run)
    assert (deadline["missed"], deadline["alert_name"]) == (False, "in_time is at most 1 day old")
    made.release()
    assert run.ended() == "success"
    eventually("the deadline is gone", lambda: deadlines_of(airflow, run) == [], 60)
    assert told(made) == []


def test_a_run_that_is_held_up_misses_its_deadline_and_the_stale_table_is_told_once(airflow: Airflow) -> None:
    """No task of the run can begin, so no task tells it."""
    made = promising(airflow, "held_up", "1 s")
    assert airflow.trigger("held_up").ended() == "success"
    slots(airflow, 0)
    known = made.ledger.hook_progress() or HookProgress(**stamp(new_id()))
    made.ledger.record_hook_progress(structs.replace(known, **stamp(new_id()), broken_promises=[]))
    (made.folder / "told").unlink(missing_ok=True)
    run = airflow.trigger("held_up")
    eventually("its deadline has passed", lambda: [each["missed"] for each in deadlines_of(airflow, run)] == [True], 90)
    eventually("somebody is told", lambda: told(made), 90)
    slots(airflow, 128)
    assert run.ended() == "success"
    assert [each["missed"] for each in deadlines_of(airflow, run)] == [True], "it stays visible"
    (notice,) = told(made)
    assert (notice["event"], notice["pipeline"], notice["checkpoint"]) == ("stale", "held_up", 1)
    assert notice["summary"].startswith("sink every is more than 1 s old since ")
