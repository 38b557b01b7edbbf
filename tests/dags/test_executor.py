"""The executor of `tidegate up`: a killed process loses its own task, which is told at once, and nothing else."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.workloads import BundleInfo, ExecuteTask
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.jobs.job import Job, JobState
from airflow.utils.session import create_session
from sqlalchemy import select

from tests.kit.waiting import eventually
from tidegate.dag.executor import ForkingLocalExecutor


@pytest.fixture
def folder(airflow_db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a task does is what its name says. Each has a file here while it waits to be told to continue."""

    def run(workload: ExecuteTask, **_: Any) -> int:
        name = workload.ti.task_id
        if name.startswith("waits"):
            (tmp_path / name).touch()
            eventually("told to go on", lambda: not (tmp_path / name).exists())
        if name == "fails":
            raise RuntimeError("it cannot be run")
        return 0

    monkeypatch.setattr(BaseExecutor, "run_workload", staticmethod(run))
    return tmp_path


@pytest.fixture
def executor(folder: Path) -> Iterator[ForkingLocalExecutor]:
    made = ForkingLocalExecutor(parallelism=2)
    made.job_id = -1
    made.start()
    yield made
    for process in made.workers.values():
        process.kill()
    made.end()


def queue(executor: ForkingLocalExecutor, *names: str) -> None:
    for name in names:
        ids: dict[str, Any] = {"id": uuid.uuid4(), "dag_version_id": uuid.uuid4()}
        task = TaskInstanceDTO(
            **ids,
            task_id=name,
            dag_id="orders",
            run_id="run",
            try_number=1,
            pool_slots=1,
            queue="default",
            priority_weight=1,
        )
        folder = BundleInfo(name="dags")
        workload = ExecuteTask(token="", dag_rel_path=Path("a.py"), bundle_info=folder, log_path=None, ti=task)
        executor.queue_workload(workload, None)  # type: ignore[arg-type]


def ended(executor: ForkingLocalExecutor) -> dict[str, tuple[str, Any]]:
    """What the scheduler is told when it asks now: the state of each task that is over, and why."""
    executor.heartbeat()
    return {key.task_id: (str(state), why) for key, (state, why) in executor.event_buffer.items()}


def test_how_a_process_ends_says_what_became_of_its_task(executor, folder):
    queue(executor, "well", "fails")
    eventually("both are over", lambda: len(ended(executor)) == 2)
    assert ended(executor) == {"well": ("success", None), "fails": ("failed", "its process ended with exit code 1")}


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (40, "signal 40")])
def test_one_that_is_killed_is_missed_at_once_and_holds_up_nobody(executor, folder, number, name):
    queue(executor, "waits a", "waits b")
    executor.heartbeat()
    eventually("both are at work", lambda: len(list(folder.iterdir())) == 2)
    killed = next(pid for pid, task in executor._tasks.items() if task.ti.task_id == "waits a")
    os.kill(killed, number)
    queue(executor, "well")
    eventually("the killed one and the next are over", lambda: len(ended(executor)) == 2)
    assert ended(executor) == {"waits a": ("failed", f"its process was killed by {name}"), "well": ("success", None)}
    (folder / "waits b").unlink()
    eventually("the other is over", lambda: ended(executor).get("waits b") == ("success", None))


def test_no_more_run_than_there_is_room_for(executor, folder):
    queue(executor, "waits a", "waits b", "well")
    executor.heartbeat()
    eventually("two are at work", lambda: len(list(folder.iterdir())) == 2)
    assert ended(executor) == {}
    assert [key.task_id for key in executor.queued_tasks] == ["well"]
    (folder / "waits a").unlink()
    eventually("there is room", lambda: {"waits a", "well"} <= ended(executor).keys())


def test_to_end_is_to_wait_for_what_is_at_work(executor, folder):
    queue(executor, "well")
    executor.heartbeat()
    executor.end()
    assert ended(executor) == {"well": ("success", None)}
    assert executor.workers == {}


def test_schedulers_of_calls_that_were_killed_are_dead_at_once(airflow_db):
    """Airflow would wait until their heartbeats are missed before it gives their tasks to the new one."""
    with create_session() as session:
        jobs = [Job(job_type=kind, state=JobState.RUNNING) for kind in ("SchedulerJob", "SchedulerJob", "TriggererJob")]
        session.add_all(jobs)
        session.flush()
        killed, own, triggerer = (job.id for job in jobs)
    made = ForkingLocalExecutor(parallelism=2)
    made.job_id = own
    made.start()
    with create_session() as session:
        states = dict(session.execute(select(Job.id, Job.state)).all())
    assert (states[killed], states[own], states[triggerer]) == ("failed", "running", "running")
