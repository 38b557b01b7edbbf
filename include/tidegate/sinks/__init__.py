"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.sinks.delta import DeltaAppend

__all__ = ["DeltaAppend"]
