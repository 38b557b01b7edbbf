"""The executor of `tidegate up`: Airflow's LocalExecutor, but it forks a process for each task.

LocalExecutor's workers wait for tasks at one queue. A worker that is killed while it waits keeps the queue's lock
forever, and one that is killed while its task runs is noticed only when the task's heartbeats stop. Here each process
is forked for one task, so that its exit code is known at once.
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
    """Forks a process for each task, and reports to the scheduler when one was killed."""

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
            self.activity_queue: Any = _OneTaskQueue(workload)
            earlier_pids = set(self.workers)
            self._spawn_workers_with_gc_freeze(1)  # type: ignore[no-untyped-call]
            (pid,) = self.workers.keys() - earlier_pids
            self._tasks[pid] = workload

    def sync(self) -> None:
        for pid, process in list(self.workers.items()):
            if not process.is_alive():
                workload = self._tasks.pop(pid)
                del self.workers[pid]
                if process.exitcode:
                    state = workload.failure_state
                else:
                    state = workload.success_state
                self.change_state(workload.key, state, _why(process.exitcode or 0))
                process.close()

    def end(self) -> None:
        for process in self.workers.values():
            process.join()
        self.sync()


class _OneTaskQueue:
    """A worker's queue of tasks: a single task, then the end marker."""

    def __init__(self, workload: ExecutorWorkload) -> None:
        self._workloads: list[ExecutorWorkload | None] = [None, workload]

    def get(self) -> ExecutorWorkload | None:
        return self._workloads.pop()


class _FailureIsExit:
    """A worker's queue of results: it ends the worker with exit code 1 if the task could not be run."""

    def put(self, result: tuple[Any, Any, Exception | None]) -> None:
        if result[2] is not None:
            raise SystemExit(1)


class _NothingUnread:
    """A worker's counter of unread tasks, which nothing reads here."""

    value = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _why(code: int) -> str | None:
    """Return an explanation of an exit code, for the task's events."""
    if code >= 0:
        if code:
            return f"its process ended with exit code {code}"
        return None
    return f"its process was killed by {signal_name(-code)}"


def _record_dead_schedulers(own_id: object) -> None:
    """Mark every other scheduler as failed in Airflow's database, so that this one adopts their tasks at once instead
    of after missed heartbeats. Only in SQLite, which a single machine uses: `up` has ended all earlier processes."""
    if not conf.get("database", "sql_alchemy_conn").startswith("sqlite"):
        return
    with create_session() as session:
        running = (Job.job_type == "SchedulerJob", Job.state == JobState.RUNNING, Job.id != own_id)
        session.execute(update(Job).where(*running).values(state=JobState.FAILED))
