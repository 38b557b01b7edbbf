"""Where rows come from: sources plan ranges without a JVM, and read the same rows again."""

from tidegate.records.place import Place
from tidegate.records.records import Amount, Lag, Unread
from tidegate.sources.adaptive import Adaptive
from tidegate.sources.base import Blobs, Planned, Source, SourceContext
from tidegate.sources.delta.source import DeltaTable
from tidegate.sources.files.malformed import malformed_record
from tidegate.sources.files.source import Files
from tidegate.sources.generator import Generator
from tidegate.sources.kafka.source import Kafka
from tidegate.sources.postgres import PostgresChanges, PostgresTable

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
