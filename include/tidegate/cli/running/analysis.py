"""Spark's part of `check` and `plan`: it plans the whole pipeline on empty frames."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.cli.output import Output
from tidegate.cli.running.spark_needs import provide_spark_needs
from tidegate.cli.targets import Target
from tidegate.errors import TidegateError
from tidegate.protocol.view import Entry
from tidegate.records.records import SourceChange

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["add_option", "analysed"]


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --no-spark."""
    parser.add_argument(
        "--no-spark", action="store_true", help="start no Spark: columns, keys and expressions are not checked"
    )


def analysed(
    args: argparse.Namespace,
    target: Target,
    pipeline: PipelineContext,
    base: Entry | None,
    out: Output,
    changes: Sequence[SourceChange] = (),
    notes: list[str] | None = None,
) -> list[TidegateError]:
    """Return every error that Spark finds in the declaration; none with --no-spark.

    notes: receives what is no error, but worth knowing.
    """
    if args.no_spark:
        return []
    from tidegate.execution.analysis import analyse
    from tidegate.spark.errors import silence_pyspark
    from tidegate.spark.session import control_settings, session

    silence_pyspark()  # its errors are reported below
    out.line("Spark plans the pipeline on empty frames; no row is read (--no-spark skips this) …", "dim")
    try:
        provide_spark_needs(target.settings, out)
        with session(control_settings(target.settings)) as spark:
            return analyse(pipeline, spark, base, changes, notes=notes)
    except TidegateError as error:
        if not error.of_environment:
            raise
        return [error]
