"""Checkpoints by event: a real triggerer watches the sources, and a real scheduler runs the DAG when input arrives."""

from __future__ import annotations

import os
import signal

from tests.dags.project import Made
from tests.dags.server import Airflow
from tests.kit.processes import input_watchers
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually

pytestmark = in_turn(seconds=130)


def completed(made: Made, count: int) -> None:
    eventually(f"{made.name} has {count} checkpoints", lambda: made.outcomes() == ["completed"] * count, 180)
    eventually(f"{made.name}'s tables have them", lambda: made.published == made.completed)


def test_a_checkpoint_follows_each_arrival_and_a_burst_is_one(airflow: Airflow) -> None:
    made = airflow.project.pipeline("by_event", interval="event", max_pause="1 day", max_files=100)
    airflow.known("by_event")
    completed(made, 1)
    for count in (2, 3):
        made.feed()
        completed(made, count)
    made.feed(files=4)
    eventually("all files are read", lambda: made.holds(6), 180)
    assert len(made.outcomes()) <= 5, "four files that arrive together are not four checkpoints"
    made.check(6)
    for run in airflow.runs("by_event"):
        assert run.ended() == "success"


def test_whoever_is_killed_no_arrival_is_missed_and_none_makes_two_checkpoints(airflow: Airflow) -> None:
    made = airflow.project.pipeline("hardy", interval="event", max_pause="1 day")
    airflow.known("hardy")
    completed(made, 1)
    for pid in eventually("its sources are watched", lambda: input_watchers(airflow.project.folder)):
        os.kill(pid, signal.SIGKILL)
    made.feed()
    completed(made, 2)

    triggerer = airflow.processes["triggerer"]
    before = input_watchers(airflow.project.folder)
    os.killpg(triggerer.pid, signal.SIGKILL)
    triggerer.wait()
    eventually("nobody watches any more", lambda: not set(before) & set(input_watchers(airflow.project.folder)))
    made.feed()
    airflow.start("triggerer")
    completed(made, 3)
    made.check(2)


def test_without_input_the_longest_pause_ends_with_a_checkpoint(airflow: Airflow) -> None:
    made = airflow.project.pipeline("in_time", interval="event", max_pause="10 s")
    airflow.known("in_time")
    eventually("event time moves on without input", lambda: len(made.completed) >= 3, 240)
    assert all(part.empty for entry in made.entries for part in entry.plan.sources.values())
