"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.sinks.delta import DeltaAppend
from tidegate.sinks.delta_upsert import DeltaUpsert

__all__ = ["DeltaAppend", "DeltaUpsert"]
