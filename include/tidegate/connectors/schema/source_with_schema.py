"""A source whose columns are declared, and which may follow its input: the arguments that all of them have."""

from __future__ import annotations

import copy
from typing import Self

from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.connectors.schema.drift import OnNewColumn, OnType, SchemaPolicy
from tidegate.connectors.source import Source
from tidegate.records.records import SourceSchema

__all__ = ["SourceWithSchema"]


class SourceWithSchema(Source):
    """A source with `schema=` and the policies for what does not fit it."""

    schema: str | None
    on_new_column: OnNewColumn
    on_type: OnType
    rescue_column: str
    evolved_columns: frozenset[str] = frozenset()
    """The columns that the plan's schema has, but not the declared one."""

    def declare_schema(
        self, schema: str | None, on_new_column: OnNewColumn, on_type: OnType, rescue_column: str
    ) -> None:
        """Set these arguments."""
        self.schema = schema
        self.on_new_column = on_new_column
        self.on_type = on_type
        self.rescue_column = rescue_column

    @property
    def schema_policy(self) -> SchemaPolicy:
        """See Source."""
        return SchemaPolicy(self.on_new_column, self.on_type, self.rescue_column)

    @property
    def declared_schema(self) -> str:
        """See Source."""
        return self.schema or ""

    def with_schema(self, schema: SourceSchema) -> Self:
        """See Source."""
        if schema.ddl == self.schema:
            return self
        evolved = copy.copy(self)
        evolved.schema = schema.ddl
        declared = {column.name for column in parse_ddl(self.schema)}
        evolved.evolved_columns = frozenset(column.name for column in parse_ddl(schema.ddl)) - declared
        return evolved
