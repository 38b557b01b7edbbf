"""Rows of a table of PostgreSQL: those that are added, or every change of a row."""

from tidegate.sources.postgres.slot import PostgresChanges
from tidegate.sources.postgres.table import PostgresTable

__all__ = ["PostgresChanges", "PostgresTable"]
