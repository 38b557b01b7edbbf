"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.sinks.base import AtLeastOnceSink, ExactlyOnceSink, Sink, SinkContext
from tidegate.sinks.delta.append import DeltaAppend
from tidegate.sinks.delta.upsert import DeltaUpsert
from tidegate.sinks.kafka.sink import KafkaTopic
from tidegate.sinks.transactional import StagedRows, TransactionalSink

__all__ = [
    "AtLeastOnceSink",
    "DeltaAppend",
    "DeltaUpsert",
    "ExactlyOnceSink",
    "KafkaTopic",
    "Sink",
    "SinkContext",
    "StagedRows",
    "TransactionalSink",
]
