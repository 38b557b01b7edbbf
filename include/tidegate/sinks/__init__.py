"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.sinks.delta.append import DeltaAppend
from tidegate.sinks.delta.upsert import DeltaUpsert

__all__ = ["DeltaAppend", "DeltaUpsert"]
