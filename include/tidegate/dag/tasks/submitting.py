"""Runs spark-submit for a job task, through the Spark provider's hook, and ends it with all of its processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection

from tidegate import seams
from tidegate.errors import Invalid
from tidegate.execution.loading import declaring_files
from tidegate.execution.opening import airflow_logins
from tidegate.records.airflow_login import login_variables
from tidegate.spark.server.processes import identify
from tidegate.versions.airflow import AirflowException, can_import_airflow

if TYPE_CHECKING:
    from tidegate.connectors.sink import Sink
    from tidegate.connectors.source import Source
    from tidegate.dag.tasks.task import Task
    from tidegate.records.records import Ack
    from tidegate.spark.submit import Submission

__all__ = ["SparkSubmit", "submitting"]

log = logging.getLogger(__name__)

_GRACE_S = 2.0
"""The time that Spark has to leave its cluster. Airflow sends SIGKILL to the task 5 s after SIGTERM."""
_CONNECTION = "tidegate"


@contextlib.contextmanager
def submitting(task: Task, checkpoint: int, job: str) -> Iterator[SparkSubmit]:
    """Yield spark-submit for one job, ready to run. Its processes and files are gone after the block."""
    from tidegate.spark.session import spark_settings
    from tidegate.spark.submit import DriverRequest, prepared

    pipeline = task.pipeline
    dag_file = getattr(task.context.get("dag"), "fileloc", None) or ""
    process_identity = identify(os.getpid())
    request = DriverRequest(
        pipeline=pipeline.name,
        declared_in=declaring_files(pipeline, dag_file),
        project=task.project,
        checkpoint=checkpoint,
        job=job,
        task={"pid": process_identity.pid, "start": process_identity.start} if process_identity else None,
    )
    with prepared(spark_settings(task.settings, job), request) as submission:
        graph = task.coordinator.graph
        parts: list[Source | Sink] = [node.source for node in graph.sources.values()]
        for node in graph.sinks.values():
            parts.append(node.sink)
        logins = login_variables(airflow_logins(task.settings, parts))  # its driver cannot ask Airflow
        submission.environment.update(can_import_airflow(submission.environment | logins))
        process = SparkSubmit(task, submission, checkpoint, job)
        try:
            yield process
        finally:
            process.cancel()


class SparkSubmit:
    """One call of spark-submit, in a new process session, so that its driver and all children end together."""

    def __init__(self, task: Task, submission: Submission, checkpoint: int, job: str) -> None:
        self.task = task
        self.submission = submission
        self.checkpoint = checkpoint
        self.job = job
        self.hook = _hook(submission)

    def run(self) -> Ack:
        """Run spark-submit, and return the job's ack from the ledger. Its exit code does not matter."""
        from tidegate.execution.job.run_job import ask_job

        output = ""
        try:
            self.hook.submit(
                str(self.submission.application),
                env=self.submission.environment,
                cwd=self.submission.folder,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except AirflowException as error:
            output = str(error).partition("Last spark-submit output:")[2] or str(error)
        ack = ask_job(self.task.coordinator, self.checkpoint, self.job)
        if ack is None:
            raise self.submission.error(output)
        return ack

    def cancel(self) -> None:
        """End spark-submit and its children; the cluster frees the executors. May be called from any thread."""
        process: subprocess.Popen[str] | None = self.hook._submit_sp
        if process is None:
            return
        until = seams.monotonic() + _GRACE_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            while seams.monotonic() < until:
                process.poll()  # reap it, otherwise the group still exists
                os.killpg(process.pid, 0)
                seams.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _hook(submission: Submission) -> Any:
    """Return the provider's hook. tidegate's settings make its connection, so that Airflow needs none."""
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    except ImportError as error:
        raise Invalid(
            "spark.mode = submit needs Airflow's Spark provider, which is not installed.",
            expected="apache-airflow-providers-apache-spark 6.3 or later where tasks run",
            help="install it, or use another spark.mode",
            reason="SPARK_PROVIDER_MISSING",
        ) from error

    class MasterHook(SparkSubmitHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return Connection(conn_id=conn_id, conn_type="spark", host=submission.master)

    return MasterHook(
        conn_id=_CONNECTION,
        name=submission.name,
        properties_file=str(submission.properties_file),
        application_args=[str(submission.folder)],
        deploy_mode="client",
        spark_binary="spark-submit",
    )
