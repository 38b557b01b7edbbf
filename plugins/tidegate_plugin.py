"""For an Airflow into which tidegate is not installed as a package; otherwise its entry point says the same."""

from tidegate.dag.plugin import TidegatePlugin

__all__ = ["TidegatePlugin"]
