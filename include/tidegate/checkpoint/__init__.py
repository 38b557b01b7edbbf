"""Coordinate: what counts, and when. Knows no Spark and no Airflow."""

from tidegate.checkpoint.coordinator import Coordinator, Outcome, Triggered

__all__ = ["Coordinator", "Outcome", "Triggered"]
