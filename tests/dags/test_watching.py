"""The trigger that watches a pipeline's sources, with its process, but without Airflow's triggerer around it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.dags.project import ODD_IS_BAD, Made, Project
from tidegate import seams

BY_HOUR = """
# for airflow
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("by_hour", interval="event")
rows = pipeline.source("rows", Files("by_hour/in/{start:%Y-%m-%dT%H}.json", schema="id long, file long"))
rows.sink("every", DeltaAppend("by_hour/every"))
dag = build_dag(pipeline)
"""


def load(made: Made) -> Any:
    """Airflow's view of the DAG file."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(made.dag_file), collect_dags=False)
    bag.process_file(str(made.dag_file))
    assert not bag.import_errors, bag.import_errors
    return bag.dags[made.name]


def watcher_of(made: Made) -> Any:
    """The trigger as the triggerer makes it, from what Airflow has stored."""
    from tidegate.dag.watching import SourceWatcher

    (asset,) = load(made).timetable.asset_condition.objects
    kind, arguments = asset.watchers[0].trigger.serialize()
    assert kind == "tidegate.dag.watching.SourceWatcher"
    return SourceWatcher(**arguments)


async def next_event(events: AsyncIterator[Any], seconds: float = 120.0) -> str:
    event = await asyncio.wait_for(anext(events), seconds)
    return str(event.payload["reason"])


def test_the_process_says_when_a_checkpoint_is_due_and_ends_with_its_trigger(project: Project) -> None:
    made = project.pipeline("watched", interval="event")
    watcher = watcher_of(made)

    async def story() -> int:
        events = watcher.run()
        assert await next_event(events) == "it is the first checkpoint"
        pid = int(watcher._process.pid)
        os.kill(pid, 0)
        await watcher.cleanup()
        return pid

    pid = asyncio.run(story())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_code_that_cannot_be_imported_is_reported_and_tried_again(
    project: Project, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.dag.watching import SourceWatcher

    monkeypatch.setattr(SourceWatcher, "log", logging.getLogger("the triggerer"))
    made = project.pipeline("broken", interval="event")
    watcher = watcher_of(made)
    good = made.dag_file.read_text()
    made.dag_file.write_text("raise RuntimeError('not today')")

    async def story() -> None:
        events = watcher.run()
        first = asyncio.ensure_future(next_event(events))
        while "not today" not in caplog.text:
            await asyncio.sleep(0.05)
            assert not first.done()
        made.dag_file.write_text(good)
        assert await first == "it is the first checkpoint"
        await watcher.cleanup()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())


def test_what_the_users_code_prints_and_reads_is_not_what_the_two_say(project: Project) -> None:
    made = project.pipeline("talkative", interval="event")
    watcher = watcher_of(made)
    talk = """
import sys
assert sys.stdin.read() == ""
print("{}")
print("x" * 200_000, end="", flush=True)
"""
    made.dag_file.write_text(made.dag_file.read_text() + talk)

    async def story() -> None:
        events = watcher.run()
        assert await next_event(events) == "it is the first checkpoint"
        await watcher.cleanup()

    asyncio.run(story())


def test_a_triggerer_that_cannot_look_lets_a_run_do_it_after_a_while(
    project: Project, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.dag import watching

    async def broken(id: str) -> None:
        raise RuntimeError(f"the vault of {id} quotes its secret")

    monkeypatch.setattr(watching.SourceWatcher, "log", logging.getLogger("the triggerer"))
    monkeypatch.setattr(watching, "find_connection_from_trigger", broken)
    monkeypatch.setattr(watching, "FIRST_PAUSE_S", 0.01)
    watcher = watcher_of(project.pipeline("blind", interval="event"))
    watcher.logins = ["airflow:mine"]
    seconds = itertools.count(step=watching.PATIENCE_S / 10)  # between two looks at the clock
    with caplog.at_level(logging.WARNING), seams.installed(seams.Seams(monotonic=lambda: next(seconds))):
        assert asyncio.run(next_event(watcher.run())) == "the triggerer cannot look for input"
    assert caplog.text.count("cannot look for input: RuntimeError") > 2
    assert "secret" not in caplog.text


def test_what_a_person_should_know_is_logged_and_asks_for_nothing(
    project: Project, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.dag.watching import SourceWatcher
    from tidegate.execution.watch_request import WatchReport

    monkeypatch.setattr(SourceWatcher, "log", logging.getLogger("the triggerer"))
    watcher = watcher_of(project.pipeline("noticed", interval="event"))
    with caplog.at_level(logging.WARNING):
        assert watcher._event_of(WatchReport(notice="NO_QUEUE: there is no queue")) is None
    assert "Pipeline noticed: NO_QUEUE: there is no queue" in caplog.text


def test_the_watcher_is_another_one_when_sources_or_settings_change(project: Project) -> None:
    first = watcher_of(project.pipeline("changing", interval="event")).serialize()
    assert watcher_of(project.pipeline("changing", interval="event")).serialize() == first
    assert watcher_of(project.pipeline("changing", interval="event", max_files=2)).serialize() != first
    gated = project.pipeline("changing", interval="event", gate=ODD_IS_BAD)
    assert watcher_of(gated).serialize() != first, "its gates can be asked for rows"
    assert watcher_of(project.pipeline("changing", interval="event", max_pause="1 h")).serialize() != first


def test_a_pipeline_that_reads_by_interval_has_no_events(project: Project) -> None:
    from airflow.dag_processing.dagbag import DagBag

    file = project.dags / "dag_by_hour.py"
    file.write_text(BY_HOUR)
    bag = DagBag(str(file), collect_dags=False)
    bag.process_file(str(file))
    file.unlink()
    (error,) = bag.import_errors.values()
    assert 'reads by data interval, and interval = "event" has none' in error


def test_a_run_by_event_needs_something_new_and_a_job_that_somebody_clears_does_not(project: Project) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from tests.dags.by_hand import context
    from tidegate.dag.tasks.task import Task

    dag = load(project.pipeline("asked", interval="event"))
    trigger, job = dag.task_dict["trigger"], dag.task_dict["job_main"]
    first = trigger.execute(context(dag, "first", run_type="asset_triggered"))["checkpoint"]
    task = Task.open(trigger.pipeline, trigger.project, context(dag, "first", run_type="asset_triggered"))
    task.coordinator.abort(first, "JOB_FAILED", "the disk is full")
    with pytest.raises(AirflowSkipException, match="no new input"):
        trigger.execute(context(dag, "second", run_type="asset_triggered"))
    assert trigger.execute(context(dag, "by hand", run_type="manual"))["checkpoint"] == first + 1
    task.coordinator.abort(first + 1, "CANCELLED", "by hand")
    assert job._plan(task).id == first + 2, "whoever clears a job wants a checkpoint, and a run that is not red"
