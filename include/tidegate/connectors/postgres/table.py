"""Names of tables, and what the catalogue says of one. Names are taken as they are written, and always quoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = [
    "FoundTable",
    "TableColumn",
    "TableName",
    "find_oid",
    "find_table",
    "literal",
    "quoted_name",
    "table_problems",
]

MAX_NAME_LENGTH: Final = 63
"""Bytes. PostgreSQL cuts off the rest, and two names could become one."""


@dataclass(frozen=True)
class TableName:
    """A table in a schema."""

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """Read "sales" (in the schema public) or "shop.sales"."""
        schema, dot, name = text.partition(".")
        return cls(schema, name) if dot else cls("public", schema)

    @property
    def sql(self) -> str:
        """The name as SQL has it."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class TableColumn:
    """One column of a table that exists."""

    name: str
    number: int
    """It keeps this number when it is renamed, and no other column ever gets it."""
    type: str
    """As PostgreSQL's format_type writes it: "bigint", "numeric(10,2)", "character varying(20)"."""
    not_null: bool
    filled: bool
    """True: it has a default, or counts by itself."""
    generated: bool
    """True: nobody else may write it."""
    computed: bool
    """True: it is made of other columns."""
    default: str
    exact: bool
    """False: its collation takes different texts for equal."""


@dataclass(frozen=True)
class FoundTable:
    """A table that exists."""

    oid: int
    """Another one if the table is dropped and made again."""
    is_table: bool
    """False: it is a view, or something else that is no table."""
    survives: bool
    """False: it is empty after a crash of the server."""
    columns: dict[str, TableColumn]
    dropped: tuple[int, ...]
    """The numbers of columns that it had once."""
    keys: tuple[frozenset[str], ...]
    """The columns of each unique index or primary key, if it applies to all rows and takes no different texts for
    equal."""
    first_columns: frozenset[str]
    """The columns with which an index begins."""


def quoted_name(name: str) -> str:
    """Quote the name of a table or column for PostgreSQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Write a text as a literal of PostgreSQL."""
    return "'" + text.replace("'", "''") + "'"


def table_problems(table: object) -> list[str]:
    """Return the problems of the name of a table."""
    if not isinstance(table, str) or not table:
        return [f"table is {table!r}; it must be a name such as 'sales' or 'shop.sales'"]
    parts = table.split(".")
    if len(parts) > 2 or not all(parts) or "\0" in table:
        return [f"table {table!r} must be a name such as 'sales', or a schema and a name such as 'shop.sales'"]
    return [
        f"{part!r} is longer than {MAX_NAME_LENGTH} bytes" for part in parts if len(part.encode()) > MAX_NAME_LENGTH
    ]


def find_oid(cursor: Any, table: TableName) -> int | None:
    """Return the number of a table, also if the user may not look into its schema. None: there is none."""
    cursor.execute(
        "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(table.schema)} AND c.relname = {literal(table.name)}"
    )
    row = cursor.fetchone()
    return int(row[0]) if row is not None else None


def find_table(cursor: Any, table: TableName) -> FoundTable | None:
    """Look a table up, within the transaction of a cursor of any driver. None: there is none."""
    cursor.execute(_FIND.format(schema=literal(table.schema), name=literal(table.name)))
    row = cursor.fetchone()
    if row is None:
        return None
    found = msgspec.json.decode(row[0])
    columns = [TableColumn(**column) for column in found["columns"] or []]
    return FoundTable(
        oid=found["oid"],
        is_table=found["kind"] in ("r", "p"),
        survives=found["survives"],
        columns={column.name: column for column in columns},
        dropped=tuple(found["dropped"] or []),
        keys=tuple(frozenset(names) for names in found["keys"] or []),
        first_columns=frozenset(found["first_columns"] or []),
    )


_FIND = """
SELECT json_build_object(
  'oid', c.oid::bigint,
  'kind', c.relkind,
  'survives', c.relpersistence = 'p' AND NOT EXISTS (
    SELECT 1 FROM pg_partition_tree(c.oid) tree JOIN pg_class part ON part.oid = tree.relid
    WHERE part.relpersistence <> 'p'
  ),
  'columns', (
    SELECT json_agg(json_build_object(
      'name', a.attname,
      'number', a.attnum,
      'type', format_type(a.atttypid, a.atttypmod),
      'not_null', a.attnotnull,
      'filled', a.atthasdef OR a.attidentity <> '',
      'generated', a.attgenerated <> '' OR a.attidentity = 'a',
      'computed', a.attgenerated <> '',
      'default', coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
      'exact', coalesce(l.collisdeterministic, true)
    ) ORDER BY a.attnum)
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  ),
  'dropped', (
    SELECT json_agg(a.attnum ORDER BY a.attnum) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attisdropped
  ),
  'keys', (
    SELECT json_agg((
      SELECT json_agg(a.attname) FROM pg_attribute a
      WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
    ))
    FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
        SELECT 1 FROM pg_collation l WHERE l.oid = ANY (i.indcollation) AND NOT l.collisdeterministic
      )
  ),
  'first_columns', (
    SELECT json_agg(a.attname) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
  )
)::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema} AND c.relname = {name}
"""
