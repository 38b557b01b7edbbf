"""Spark's work as cells of a table: the columns that `show` and `profile` share."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.records.records import SparkWork

__all__ = ["COLUMNS", "columns_with_figures", "spark_cells"]

COLUMNS = ("queries", "in queries", "planned", "run", "analyses", "in analyses", "jobs", "stages", "tasks", "task time")
"""`planned` and `run` are parts of the time in queries."""


def spark_cells(work: SparkWork | None) -> list[str]:
    """Return a part's figures, in the order of COLUMNS. Unknown ones are empty."""
    work = work or SparkWork()
    counts_and_times = (
        (work.queries, work.query_s, work.planning_s, work.running_s),
        (work.analyses, work.analysis_s),
        (work.jobs, work.stages, work.tasks, work.task_s),
    )
    return [_text(figure) for group in counts_and_times for figure in group]


def _text(figure: float | None) -> str:
    if not figure:
        return "" if figure is None else "0"
    if isinstance(figure, float):
        return f"{figure:.2f} s"
    return f"{figure:,}"


def columns_with_figures(works: Sequence[SparkWork | None]) -> list[int]:
    """Return the positions of the columns with known figures."""
    cells = [spark_cells(work) for work in works]
    return [place for place in range(len(COLUMNS)) if any(row[place] for row in cells)]
