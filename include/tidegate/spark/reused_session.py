"""One Spark session for many checkpoints: opened at first use, replaced after a failure."""

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
        """Called each time a session has been opened."""
        self._held: contextlib.ExitStack | None = None
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Return the session, opened now if there is none."""
        if self._session is None:
            resources = contextlib.ExitStack()
            self._session = resources.enter_context(session(self.settings))
            self._held = resources
            self.opened()
        return self._session

    def drop(self) -> None:
        """Release a session that failed, or may have: the next call opens another, on a new server if need be."""
        resources, self._held, self._session = self._held, None, None
        if resources is not None:
            with contextlib.suppress(Exception):
                resources.close()

    def cancel(self) -> None:
        """Cancel what runs in the session now. May be called from another thread."""
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
    """Return the runtime's view of the settings: the embedded server belongs to the project folder."""
    spark = settings.spark
    return SparkSettings(
        mode=cast(Literal["connect", "local", "submit"], spark.mode),
        remote=spark.remote,
        conf=spark.conf,
        idle_timeout=spark.idle_timeout,
        start_timeout=spark.start_timeout,
        home=settings.project.absolute() / ".tidegate" / "spark",
        master=spark.master,
        memory=spark.memory,
        python_path=(settings.project.absolute(),),
    )


_ANYWHERE = ("spark.sql.", "spark.databricks.", "spark.hadoop.", "spark.jars")


def control_settings(settings: Settings) -> SparkSettings:
    """Return the settings for `trigger` and `complete`, which need Spark only for tables that delta-rs cannot publish.

    If jobs are submitted to a cluster, the embedded server does it, with the user's settings for tables and storage.
    """
    spark = spark_settings(settings)
    if spark.mode != "submit":
        return spark
    conf = {key: value for key, value in spark.conf.items() if key.startswith(_ANYWHERE)}
    return replace(spark, mode="connect", master="local[*]", conf=conf)
