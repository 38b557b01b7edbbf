"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.records.place import Place
from tidegate.sinks.base import AtLeastOnceSink, ExactlyOnceSink, Sink, SinkContext
from tidegate.sinks.delta.append import DeltaAppend
from tidegate.sinks.delta.upsert import DeltaUpsert
from tidegate.sinks.files.export import FileExport
from tidegate.sinks.iceberg import IcebergAppend
from tidegate.sinks.kafka.sink import KafkaTopic
from tidegate.sinks.postgres import PostgresAppend, PostgresUpsert
from tidegate.sinks.transactional import StagedRows, TransactionalSink

__all__ = [
    "AtLeastOnceSink",
    "DeltaAppend",
    "DeltaUpsert",
    "ExactlyOnceSink",
    "FileExport",
    "IcebergAppend",
    "KafkaTopic",
    "Place",
    "PostgresAppend",
    "PostgresUpsert",
    "Sink",
    "SinkContext",
    "StagedRows",
    "TransactionalSink",
]
