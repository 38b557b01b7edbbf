"""Operators' memory: keyed state as files of a Delta table, changed keys only, newest row wins."""

from tidegate.state.record import StateFile, StateTable
from tidegate.state.table import StateSink, state_sink_name

__all__ = ["StateFile", "StateSink", "StateTable", "state_sink_name"]
