"""Runs a pipeline's checkpoints in a test, with the real loop, ledger and Spark, in a folder of the test.

For example:

    with tidegate.testing.run(pipeline, tmp_path) as running:
        running.checkpoint()
        running.crash_at("S9.decision.before")
        running.checkpoint()
        assert running.rows("totals") == [{"customer": 7, "spent": 30.0}]
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.config import Settings, load_settings
from tidegate.coordinator import Coordinator
from tidegate.delta import Location, open_table, read_table
from tidegate.delta.as_python import python_rows
from tidegate.errors import Rejected
from tidegate.execution.analysis import analyse
from tidegate.execution.loop import Observer, Schedule, SessionSource, run_checkpoints
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.ledger.refusals import no_such_sink, without_versions
from tidegate.records.place import is_url
from tidegate.records.records import Json
from tidegate.spark.session import cancel_in, reused_session, session, spark_settings
from tidegate.testing.crashes import Crash, crash_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.pipeline import Pipeline

__all__ = ["RunningPipeline", "local_spark", "run"]

_LOCAL = {"spark.mode": "local", "spark.master": "local[2]"}
_MAX_WAIT_S = 0.01


@contextlib.contextmanager
def local_spark() -> Iterator[SparkSession]:
    """Open a Spark session in this process, for a fixture such as:

        @pytest.fixture(scope="session")
        def spark():
            with tidegate.testing.local_spark() as spark:
                yield spark

    Sessions that are open at the same time share one Spark.
    """
    with session(spark_settings(load_settings(_LOCAL))) as spark:
        yield spark


@contextlib.contextmanager
def run(
    pipeline: Pipeline,
    folder: Path | str,
    *,
    spark: SparkSession | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[RunningPipeline]:
    """Open a pipeline in a folder.

        with tidegate.testing.run(pipeline, tmp_path, settings={"num_retained": "3"}) as running:
            running.checkpoint()

    While the block runs, tidegate does not pause before it retries.

    pipeline: the pipeline to run.
    folder: where the test writes. The ledger is in `folder/ledger`, and relative paths start from `folder/data`.
    spark: the session to compute with. The default is a session in this process, opened when it is needed.
    settings: settings as with `-D`, which override those of the project.
    """
    folder = Path(folder).absolute()
    overrides = {"root": str(folder / "ledger"), "data": str(folder / "data"), **_LOCAL, **(settings or {})}
    effective = load_settings(overrides, code=pipeline.settings)
    if not is_url(effective.data):
        Path(effective.data).mkdir(parents=True, exist_ok=True)
    short_waits = replace(seams.current(), sleep=lambda seconds: seams.Seams().sleep(min(seconds, _MAX_WAIT_S)))
    with contextlib.ExitStack() as resources:
        resources.enter_context(seams.installed(short_waits))
        if spark is not None:
            sessions: SessionSource = _GivenSession(spark)
        else:
            sessions = reused_session(effective)
        resources.callback(sessions.drop)
        yield RunningPipeline(pipeline, effective, sessions)


class RunningPipeline:
    """A pipeline in a folder of a test, as `run` returns it. Each checkpoint opens it again, like a new process."""

    def __init__(self, pipeline: Pipeline, settings: Settings, sessions: SessionSource) -> None:
        self.pipeline, self.settings, self._sessions = pipeline, settings, sessions

    def checkpoint(self) -> int:
        """Complete and publish one checkpoint, and return its number. Raise its error if it fails.

        If an earlier checkpoint has crashed, it is aborted or published first.
        """
        (id,) = self._run(Schedule(checkpoints=1, new_run=_run_of_a_dead_process))
        return id

    def until_idle(self) -> list[int]:
        """Make checkpoints until no source has new input, and return their numbers."""
        return self._run(Schedule(until_idle=True, new_run=_run_of_a_dead_process))

    def errors(self) -> list[str]:
        """Return all errors of the pipeline's declaration, as `tidegate check` prints them. No row is read."""
        coordinator = self.coordinator()
        base = None
        if coordinator.ledger.identity_or_none() is not None:
            base = coordinator.ledger.view().last_completed
        return [str(error) for error in analyse(coordinator, self._sessions(), base)]

    def crash_at(self, point: str, times_passed: int = 0) -> None:
        """Begin a checkpoint and crash at a fault point. Raise AssertionError if the point is never reached.

        point: one of `tidegate.testing.FAULT_POINTS`.
        times_passed: how often the checkpoint passes the point before it crashes there.
        """
        with crash_at(point, times_passed):
            self.checkpoint()

    def crash(self) -> None:
        """Begin a checkpoint in which a `TestSource` crashes. Raise AssertionError if none does."""
        try:
            self.checkpoint()
        except Crash:
            return
        raise AssertionError("the checkpoint did not crash")

    def _run(self, schedule: Schedule) -> list[int]:
        outcomes = run_checkpoints(self.coordinator(), self._sessions, schedule, Observer())
        for outcome in outcomes:
            if outcome.state != "completed":
                raise Rejected(
                    f"checkpoint {outcome.id} was {outcome.state}: {outcome.reason} {outcome.detail}".rstrip(),
                    expected="a completed checkpoint",
                    help="see what aborted it",
                    reason="NOT_COMPLETED",
                )
        return [outcome.id for outcome in outcomes]

    def rows(self, sink: str) -> list[Json]:
        """Return the rows of a sink's Delta table, or no rows if the table does not exist yet."""
        graph, place = self.coordinator().graph, self.settings.place()
        if sink not in graph.sinks:
            raise no_such_sink(graph.name, sink, 0, graph.sinks, help="name a sink of the pipeline")
        published = self.ledger.published(self.ledger.settled())
        recorded = published.tables.get(sink) if published is not None else None
        if recorded is not None and not recorded.is_delta:
            raise without_versions(sink, recorded)
        table = open_table(Location(graph.sinks[sink].sink.target(place), place.options))
        if table is not None:
            return python_rows(read_table(table))
        return []

    @property
    def ledger(self) -> Ledger:
        """The pipeline's ledger, opened by a new reader."""
        return open_ledger(self.settings.root, self.pipeline.name, self.settings.storage_options)

    @property
    def data(self) -> Path:
        """The folder from which relative paths start."""
        return Path(self.settings.data)

    def coordinator(self) -> Coordinator:
        """Open the pipeline, as each process does."""
        place = self.settings.place()
        return Coordinator(self.pipeline.graph(place, self.settings.mode), self.ledger, self.settings, place)


class _GivenSession:
    """A session that belongs to the test, and stays open."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, job: str | None = None) -> SparkSession:
        return self._spark

    def drop(self) -> None:
        """Do nothing: the test closes it."""

    def cancel(self) -> None:
        """Cancel its queries."""
        cancel_in(self._spark)


def _run_of_a_dead_process() -> str:
    """Return the run id of a dead process, so that the next checkpoint does not wait for this one.

    It has this process's number, but another start time.
    """
    return f"process:{socket.gethostname()}:{os.getpid()}:0:{seams.new_id()}"
