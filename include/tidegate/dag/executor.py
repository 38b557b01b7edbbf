"""The executor of `tidegate up`: Airflow's LocalExecutor, but each task has a process of its own from the start.

LocalExecutor's workers wait for tasks at one queue. One that is killed while it waits keeps the queue's lock forever,
and one that is killed at work is missed only when its task's heartbeats are. Here a process is forked with its task,
and its exit code says at once what has become of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.configuration import conf
from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecutorWorkload
from airflow.jobs.job import Job, JobState
from airflow.utils.session import create_session
from sqlalchemy import update

from tidegate.spark.server.processes import signal_name

__all__ = ["ForkingLocalExecutor"]


class ForkingLocalExecutor(LocalExecutor):
    """Forks a process for each task, and tells the scheduler when one has been killed."""

    def start(self) -> None:
        self.workers = {}
        self._tasks: dict[int, ExecutorWorkload] = {}
        self.result_queue: Any = _FailureIsExit()
        self._unread_messages: Any = _NothingUnread()
        _record_dead_schedulers(self.job_id)

    def _process_workloads(self, workload_list: Sequence[ExecutorWorkload]) -> None:
        for workload in workload_list:
            queues: Any = (self.queued_tasks, self.queued_callbacks, self.queued_connection_tests)
            for waiting in queues:
                waiting.pop(workload.key, None)
            self.running.add(workload.key)
            self.activity_queue: Any = _OnlyOne(workload)
            known = set(self.workers)
            self._spawn_workers_with_gc_freeze(1)  # type: ignore[no-untyped-call]
            (pid,) = self.workers.keys() - known
            self._tasks[pid] = workload

    def sync(self) -> None:
        for pid, process in list(self.workers.items()):
            if not process.is_alive():
                workload = self._tasks.pop(pid)
                del self.workers[pid]
                state = workload.failure_state if process.exitcode else workload.success_state
                self.change_state(workload.key, state, _why(process.exitcode or 0))
                process.close()

    def end(self) -> None:
        for process in self.workers.values():
            process.join()
        self.sync()


class _OnlyOne:
    """What a worker reads as the queue of tasks: its own, and then nothing more."""

    def __init__(self, workload: ExecutorWorkload) -> None:
        self._workloads: list[ExecutorWorkload | None] = [None, workload]

    def get(self) -> ExecutorWorkload | None:
        return self._workloads.pop()


class _FailureIsExit:
    """What a worker writes results to: it ends with exit code 1 if its task could not be run."""

    def put(self, result: tuple[Any, Any, Exception | None]) -> None:
        if result[2] is not None:
            raise SystemExit(1)


class _NothingUnread:
    """Where a worker counts down what waits in the queue."""

    value = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _why(code: int) -> str | None:
    """Explain an exit code to whoever reads the task's events."""
    if code >= 0:
        return f"its process ended with exit code {code}" if code else None
    return f"its process was killed by {signal_name(-code)}"


def _record_dead_schedulers(own: object) -> None:
    """Record in Airflow's database that every other scheduler is dead, so that this one takes over their tasks at once
    instead of when their heartbeats are missed. Only in SQLite, which one machine has for itself: `up` has ended
    whatever ran before with all of its processes."""
    if not conf.get("database", "sql_alchemy_conn").startswith("sqlite"):
        return
    with create_session() as session:
        running = (Job.job_type == "SchedulerJob", Job.state == JobState.RUNNING, Job.id != own)
        session.execute(update(Job).where(*running).values(state=JobState.FAILED))
