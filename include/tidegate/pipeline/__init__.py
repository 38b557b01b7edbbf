"""Declare a pipeline, check it, and cut it into jobs. Importing this imports neither Spark nor Airflow."""

from tidegate.pipeline.declare import Pipeline, Stream
from tidegate.pipeline.graph.graph import Graph, Job, SinkNode, SourceNode, StageNode
from tidegate.pipeline.hooks import Suspension

__all__ = ["Graph", "Job", "Pipeline", "SinkNode", "SourceNode", "StageNode", "Stream", "Suspension"]
