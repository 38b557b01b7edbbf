"""Registers tidegate's plugins with an Airflow in which tidegate is not installed as a package. Otherwise its entry
points register them, and this file does nothing: Airflow reports an error if a plugin is registered twice."""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="tidegate"):
    from tidegate.dag.plugin import TidegatePlugin
    from tidegate.ui.plugin import TidegatePages

    __all__ = ["TidegatePages", "TidegatePlugin"]
