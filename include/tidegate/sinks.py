"""Where rows go: prepared out of sight, published after the decision."""

from tidegate.connectors.delta.sink.append import DeltaAppend
from tidegate.connectors.delta.sink.upsert import DeltaUpsert
from tidegate.connectors.files.export import FileExport
from tidegate.connectors.iceberg import IcebergAppend
from tidegate.connectors.kafka.sink import KafkaTopic
from tidegate.connectors.postgres.append import PostgresAppend
from tidegate.connectors.postgres.upsert import PostgresUpsert
from tidegate.connectors.row_rules import DeclaredRules, RowRule
from tidegate.connectors.sink import AtLeastOnceSink, ExactlyOnceSink, Sink, SinkContext
from tidegate.connectors.transactional import StagedRows, TransactionalSink
from tidegate.records.place import Place

__all__ = [
    "AtLeastOnceSink",
    "DeclaredRules",
    "DeltaAppend",
    "DeltaUpsert",
    "ExactlyOnceSink",
    "FileExport",
    "IcebergAppend",
    "KafkaTopic",
    "Place",
    "PostgresAppend",
    "PostgresUpsert",
    "RowRule",
    "Sink",
    "SinkContext",
    "StagedRows",
    "TransactionalSink",
]
