"""For an Airflow into which tidegate is not installed as a package. Where it is, its entry points say the same, and
this file says nothing: Airflow calls it an error if a plugin is registered twice."""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="tidegate"):
    from tidegate.dag.plugin import TidegatePlugin
    from tidegate.ui.plugin import TidegatePages

    __all__ = ["TidegatePages", "TidegatePlugin"]
