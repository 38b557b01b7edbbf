"""The Airflow plugin of tidegate. Airflow finds it by the package's entry point, in each of its processes."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from tidegate.dag.links import LINKS
from tidegate.dag.listeners import SchedulerListener, TaskListener
from tidegate.dag.timetable import Every

__all__ = ["TidegatePlugin"]


class TidegatePlugin(AirflowPlugin):
    """Registers the timetable, the links and the listeners, for processes that parse, schedule or show a DAG."""

    name = "tidegate"
    timetables = [Every]
    operator_extra_links = list(LINKS)
    listeners = [SchedulerListener(), TaskListener()]
