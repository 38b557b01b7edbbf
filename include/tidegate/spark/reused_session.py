"""One Spark session for many checkpoints: opened at first use, replaced after it failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from tidegate.config import Settings
from tidegate.spark.session import SparkSettings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReusedSession", "control_settings", "spark_settings"]


class ReusedSession:
    """Call it for the session; `drop` one that failed. Released at the end of the `with` block."""

    def __init__(self, settings: SparkSettings) -> None:
        self.settings = settings
        self.opened: Callable[[], None] = lambda: None
        """Called each time when a session has been opened."""
        self._held: contextlib.ExitStack | None = None
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """The session, opened now if there is none."""
        if self._session is None:
            held = contextlib.ExitStack()
            self._session = held.enter_context(session(self.settings))
            self._held = held
            self.opened()
        return self._session

    def drop(self) -> None:
        """Let go of a session that failed, or may have: the next call opens another, on a new server if need be."""
        held, self._held, self._session = self._held, None, None
        if held is not None:
            with contextlib.suppress(Exception):
                held.close()

    def cancel(self) -> None:
        """End what runs in the session now. May be called from another thread."""
        if self._session is not None:
            with contextlib.suppress(Exception):
                if self.settings.mode == "local":
                    self._session.sparkContext.cancelAllJobs()
                else:
                    self._session.interruptAll()

    def __enter__(self) -> ReusedSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def spark_settings(settings: Settings) -> SparkSettings:
    """The runtime's view of the settings: the embedded server belongs to the project folder."""
    given = settings.spark
    return SparkSettings(
        mode=cast(Literal["connect", "local", "submit"], given.mode),
        remote=given.remote,
        conf=given.conf,
        idle_timeout=given.idle_timeout,
        start_timeout=given.start_timeout,
        home=settings.project.absolute() / ".tidegate" / "spark",
        master=given.master,
        memory=given.memory,
        python_path=(settings.project.absolute(),),
    )


_ANYWHERE = ("spark.sql.", "spark.databricks.", "spark.hadoop.", "spark.jars")


def control_settings(settings: Settings) -> SparkSettings:
    """For `trigger` and `complete`, which need Spark only for tables that delta-rs cannot publish to. Where jobs are
    submitted to a cluster, the embedded server does that, with what the user says of tables and storage."""
    given = spark_settings(settings)
    if given.mode != "submit":
        return given
    conf = {key: value for key, value in given.conf.items() if key.startswith(_ANYWHERE)}
    return replace(given, mode="connect", master="local[*]", conf=conf)
