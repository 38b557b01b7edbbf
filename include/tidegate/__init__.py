"""tidegate: checkpoints for Airflow + Spark + Delta pipelines.

Write `Pipeline`, sources, stages and sinks; everything else follows from them.
"""

from tidegate.pipeline import Pipeline

__all__ = ["Pipeline", "__version__"]

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up when it is asked for: few ask, and it takes longer than all else here
        from importlib.metadata import version

        return version("tidegate")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
