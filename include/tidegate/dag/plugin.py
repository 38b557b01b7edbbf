"""What Airflow has to know of tidegate. It finds this by the package's entry point, in every one of its processes."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from tidegate.dag.links import LINKS
from tidegate.dag.timetable import Every

__all__ = ["TidegatePlugin"]


class TidegatePlugin(AirflowPlugin):
    """Whoever parses, schedules or shows a DAG reads its timetable by this."""

    name = "tidegate"
    timetables = [Every]
    operator_extra_links = list(LINKS)
