"""Jars that are missing are fetched by the commands that a person starts: `tidegate run` and `tidegate up`. Tasks of
Airflow fetch nothing; they name the command."""

from __future__ import annotations

import os

from tidegate.cli.output import Output
from tidegate.config import Settings
from tidegate.errors import TidegateError
from tidegate.spark.installation import spark_home
from tidegate.spark.jars import JARS_FOLDER_VARIABLE, fetch_jars, jar_paths, jars_folder

__all__ = ["fetch_missing_jars"]


def fetch_missing_jars(settings: Settings, out: Output) -> None:
    """Fetch them, with a line for each. A folder that somebody has named is not ours to write to."""
    spark_home()  # raises if there is no Spark at all
    if settings.spark.remote or os.environ.get(JARS_FOLDER_VARIABLE):
        return
    try:
        jar_paths()
        return
    except TidegateError as error:
        if error.reason not in ("JARS_MISSING", "JARS_CORRUPT"):
            raise
    out.line(f"Spark's jars of Delta are not there yet. They come once, into {jars_folder()}", "dim")
    fetch_jars(say=lambda text: out.line(f"  {text}", "dim"))
