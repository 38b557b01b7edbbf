"""Coordinate: what counts, and when. Knows no Spark and no Airflow."""

from tidegate.checkpoint.coordinator import Coordinator, Covered, Outcome, Triggered

__all__ = ["Coordinator", "Covered", "Outcome", "Triggered"]
