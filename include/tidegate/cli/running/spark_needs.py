"""What Spark needs of this machine is looked at before anything is started by the commands that a person starts, which
are `tidegate run` and `tidegate up`. They fetch jars that are missing. Tasks of Airflow fetch nothing; they name the
command."""

from __future__ import annotations

import os

from tidegate.cli.output import Output
from tidegate.config import Settings
from tidegate.errors import TidegateError
from tidegate.spark.installation import find_java, spark_home
from tidegate.spark.jars import JARS_FOLDER_VARIABLE, fetch_jars, jar_paths, jars_folder

__all__ = ["provide_spark_needs"]


def provide_spark_needs(settings: Settings, out: Output) -> None:
    """Raise Invalid without a pyspark or a Java to run with. Fetch missing jars, with a line for each; a folder that
    somebody has named is not ours to write to."""
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
    out.line(f"Spark's jars of Delta are not there yet. They come once, into {jars_folder()}", "dim")
    fetch_jars(say=lambda text: out.line(f"  {text}", "dim"))
