"""Checks what Spark needs on this machine, and fetches missing jars, before `tidegate run` and `tidegate up` start
anything. Airflow's tasks fetch nothing: their error names the command."""

from __future__ import annotations

import os

from tidegate.cli.output import Output
from tidegate.config import Settings
from tidegate.errors import TidegateError
from tidegate.spark.installation import find_java, spark_home
from tidegate.spark.jars import JARS_FOLDER_VARIABLE, fetch_jars, jar_paths, jars_folder

__all__ = ["provide_spark_needs"]


def provide_spark_needs(settings: Settings, out: Output) -> None:
    """Raise Invalid without a supported pyspark or Java. Fetch missing jars, with a line for each, but not into a
    folder that the user has set."""
    spark_home()
    if settings.spark.remote:
        return
    find_java()
    try:
        jar_paths()
        return
    except TidegateError as error:
        if error.reason not in ("JARS_MISSING", "JARS_CORRUPT") or os.environ.get(JARS_FOLDER_VARIABLE):
            raise
    out.line(f"Fetching the Delta jars for Spark, once, into {jars_folder()}", "dim")
    fetch_jars(say=lambda text: out.line(f"  {text}", "dim"))
