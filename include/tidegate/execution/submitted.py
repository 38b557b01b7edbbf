"""The driver of a submitted job, which jobs/run_job.py calls inside spark-submit.

It opens the ledger and runs the job as in every other mode. If that fails, it writes the error for the task. On
success the task finds the ack in the ledger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from tidegate import seams
from tidegate.errors import TidegateError, name_of, trace_without_values
from tidegate.execution.job.gates import warm_gates
from tidegate.execution.job.run_job import run_job
from tidegate.execution.loading import find_pipeline
from tidegate.execution.opening import open_coordinator
from tidegate.records import typed
from tidegate.records.records import Plan
from tidegate.spark.errors import translated
from tidegate.spark.server.processes import ProcessId, is_alive
from tidegate.spark.session import spark_settings
from tidegate.spark.storage.same_disk import on_one_machine
from tidegate.spark.submit import ERROR_FILE, REQUEST_FILE, DriverFailure, DriverRequest
from tidegate.spark.workers.shipping import ship_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the job in the folder's request. Exit with 0 if its ack exists, or with 1 and the reason in error.json."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    if len(argv) != 1 or not Path(argv[0], REQUEST_FILE).is_file():
        sys.exit(f"usage: run_job.py FOLDER, which holds a {REQUEST_FILE}: tidegate's job tasks call it (spark.mode)")
    folder = Path(argv[0])
    signal.signal(signal.SIGTERM, _ending_on_sigterm)
    try:
        _work(typed.decode(Path(folder, REQUEST_FILE).read_bytes(), DriverRequest), folder)
    except Exception as error:
        if not isinstance(error, TidegateError):
            print(trace_without_values(error), file=sys.stderr, flush=True)
        temporary = folder / f"{ERROR_FILE}.tmp"
        temporary.write_bytes(msgspec.json.encode(DriverFailure.from_error(error)))
        temporary.replace(folder / ERROR_FILE)
        failure = error if isinstance(error, TidegateError) else name_of(error)
        print(f"The job failed: {failure}", flush=True)
        sys.exit(1)
    sys.exit(0)


def _work(request: DriverRequest, folder: Path) -> None:
    if request.task is not None:
        _end_with(ProcessId.from_json(request.task))
    pipeline = find_pipeline(request.pipeline, request.declared_in, "Spark's driver")
    coordinator, settings = open_coordinator(pipeline, request.project)
    warm_gates(coordinator.graph)
    with _session(spark_settings(settings, request.job).login) as spark:
        if not on_one_machine(spark):
            ship_code(spark, map(Path, request.python_path), folder)
        run_job(
            coordinator, request.checkpoint, request.job, spark, lambda doing: print(doing, flush=True), _starts_again
        )


def _starts_again(plan: Plan, job: str) -> bool:
    """Return False: before it submitted this, the task has made sure that no other attempt is running."""
    return False


@contextlib.contextmanager
def _session(login: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open the application's session. spark-submit has configured it, except for secrets, which must not be on disk."""
    from pyspark.sql import SparkSession

    before = signal.getsignal(signal.SIGINT)
    with translated():
        spark = SparkSession.builder.config(map=dict(login)).getOrCreate()
    signal.signal(signal.SIGINT, before)
    try:
        yield spark
    finally:
        with contextlib.suppress(Exception):
            spark.stop()


# -- its end ---------------------------------------------------------------------------------------------


def _ending_on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, so that staged files are removed."""
    raise KeyboardInterrupt


def _end_with(task: ProcessId) -> None:
    """End this process and Spark when the task that submitted it ends. If it was killed, a retry runs the job again."""

    def watch() -> None:
        while is_alive(task):
            seams.sleep(1.0)
        print("The task that submitted this has gone: so does this.", flush=True)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watch-task").start()
