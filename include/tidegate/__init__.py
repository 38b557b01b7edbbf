"""tidegate: checkpoints for Airflow + Spark + Delta pipelines.

Write `Pipeline`, sources, stages and sinks; everything else follows from them.
"""

from tidegate.pipeline import Pipeline

__all__ = ["Pipeline", "__version__"]

__version__ = "0.1.0"
