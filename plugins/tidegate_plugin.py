"""Tells Airflow what of tidegate it has to know: the timetable of `interval`."""

from airflow.plugins_manager import AirflowPlugin

from tidegate.dag.timetable import Every


class TidegatePlugin(AirflowPlugin):
    """Whoever parses, schedules or shows a DAG reads its timetable by this."""

    name = "tidegate"
    timetables = [Every]
