"""Where rows come from: sources plan ranges without a JVM, and read the same rows again."""

from tidegate.sources.adaptive import Adaptive
from tidegate.sources.base import Blobs, Planned, Source, SourceContext
from tidegate.sources.delta.source import DeltaTable
from tidegate.sources.files.malformed import malformed_record
from tidegate.sources.files.source import Files
from tidegate.sources.generator import Generator
from tidegate.sources.postgres import PostgresChanges, PostgresTable

__all__ = [
    "Adaptive",
    "Blobs",
    "DeltaTable",
    "Files",
    "Generator",
    "Planned",
    "PostgresChanges",
    "PostgresTable",
    "Source",
    "SourceContext",
    "malformed_record",
]
