"""Tables of PostgreSQL: rows and a mark with the checkpoint's number in one transaction, after the decision."""

from tidegate.sinks.postgres.append import PostgresAppend
from tidegate.sinks.postgres.upsert import PostgresUpsert

__all__ = ["PostgresAppend", "PostgresUpsert"]
