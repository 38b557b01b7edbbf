"""For an Airflow into which tidegate is not installed as a package; otherwise its entry points say the same."""

from tidegate.dag.plugin import TidegatePlugin
from tidegate.ui.plugin import TidegatePages

__all__ = ["TidegatePages", "TidegatePlugin"]
