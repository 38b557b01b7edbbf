"""The PostgreSQL sources and sinks, and what they share: connections, tables, types and errors."""

from tidegate.connectors.postgres.connection import Database, connection_problems
from tidegate.connectors.postgres.table import (
    FoundTable,
    TableColumn,
    TableName,
    find_oid,
    find_table,
    literal,
    quoted_name,
    table_problems,
)

__all__ = [
    "Database",
    "FoundTable",
    "TableColumn",
    "TableName",
    "connection_problems",
    "find_oid",
    "find_table",
    "literal",
    "quoted_name",
    "table_problems",
]
