"""Where rows come from: sources plan ranges without a JVM, and read the same rows again."""

from tidegate.connectors.adaptive import Adaptive
from tidegate.connectors.delta.source.delta_table import DeltaTable
from tidegate.connectors.files.source import Files
from tidegate.connectors.generator import Generator
from tidegate.connectors.kafka.source import Kafka
from tidegate.connectors.postgres.changes import PostgresChanges
from tidegate.connectors.postgres.source import PostgresTable
from tidegate.connectors.source import Blobs, Planned, Source, SourceContext
from tidegate.records.place import Place
from tidegate.records.records import Amount, Lag, Unread
from tidegate.spark.refusals.malformed_record import malformed_record

__all__ = [
    "Adaptive",
    "Amount",
    "Blobs",
    "DeltaTable",
    "Files",
    "Generator",
    "Kafka",
    "Lag",
    "Place",
    "Planned",
    "PostgresChanges",
    "PostgresTable",
    "Source",
    "SourceContext",
    "Unread",
    "malformed_record",
]
