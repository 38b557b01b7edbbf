"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.records.place import Place
from tidegate.sinks.base import AtLeastOnceSink, ExactlyOnceSink, Sink, SinkContext
from tidegate.sinks.delta.append import DeltaAppend
from tidegate.sinks.delta.upsert import DeltaUpsert
from tidegate.sinks.transactional import StagedRows, TransactionalSink

__all__ = [
    "AtLeastOnceSink",
    "DeltaAppend",
    "DeltaUpsert",
    "ExactlyOnceSink",
    "Place",
    "Sink",
    "SinkContext",
    "StagedRows",
    "TransactionalSink",
]
