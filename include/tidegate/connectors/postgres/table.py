"""Names of tables, and looking up tables in the catalogue. Names are case-sensitive, and always quoted in SQL."""

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
"""In bytes. PostgreSQL truncates longer names, so two names could become the same."""


@dataclass(frozen=True)
class TableName:
    """The name of a table, with its schema."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse "sales" (in the schema public) or "shop.sales"."""
        schema, dot, name = text.partition(".")
        if not dot:
            return cls("public", text)
        return cls(schema, name)

    @property
    def sql(self) -> str:
        """The name in SQL."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class TableColumn:
    """A column of an existing table."""

    name: str
    number: int
    """The column keeps this number when it is renamed, and no other column ever gets it."""
    type: str
    """The type as format_type writes it, such as "bigint", "numeric(10,2)" or "character varying(20)"."""
    not_null: bool
    filled: bool
    """Whether the column has a default or is an identity column."""
    generated: bool
    """Whether only the table itself may write the column."""
    computed: bool
    """Whether the column is computed from other columns."""
    default: str
    exact: bool
    """False if the collation treats different texts as equal."""
    labels: tuple[str, ...] | None = None
    """The values of an enum. None: the column has another type."""


@dataclass(frozen=True)
class TableCheck:
    """A CHECK constraint of an existing table."""

    name: str
    expression: str
    columns: tuple[str, ...]
    """The columns that it names."""


@dataclass(frozen=True)
class FoundTable:
    """An existing table."""

    oid: int
    """It changes when the table is dropped and created again."""
    is_table: bool
    """False for a view and the like."""
    survives: bool
    """False if the table is empty after a crash of the server."""
    columns: dict[str, TableColumn]
    dropped: tuple[int, ...]
    """The numbers of columns that were dropped."""
    keys: tuple[frozenset[str], ...]
    """The columns of each primary key or unique index that applies to all rows and does not treat different texts as
    equal."""
    first_columns: frozenset[str]
    """The columns that are the first one of an index."""
    checks: tuple[TableCheck, ...] = ()
    further_rules: tuple[str, ...] = ()
    """Further constraints and triggers, which single rows cannot be judged by, in words."""


def quoted_name(name: str) -> str:
    """Return the name of a table or column, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def table_problems(table: object) -> list[str]:
    """Return the problems of a table's name."""
    if not isinstance(table, str) or not table:
        return [f"table is {table!r}; it must be a name such as 'sales' or 'shop.sales'"]
    parts = table.split(".")
    if len(parts) > 2 or not all(parts) or "\0" in table:
        return [f"table {table!r} must be a name such as 'sales', or a schema and a name such as 'shop.sales'"]
    too_long = [part for part in parts if len(part.encode()) > MAX_NAME_LENGTH]
    return [f"{part!r} is longer than {MAX_NAME_LENGTH} bytes" for part in too_long]


def find_oid(cursor: Any, table: TableName) -> int | None:
    """Return the oid of a table, or None if it does not exist. This needs no right on its schema."""
    cursor.execute(
        "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(table.schema)} AND c.relname = {literal(table.name)}"
    )
    row = cursor.fetchone()
    return int(row[0]) if row is not None else None


def find_table(cursor: Any, table: TableName) -> FoundTable | None:
    """Look up a table in the transaction of a cursor, of any driver. Return None if it does not exist."""
    cursor.execute(_FIND.format(schema=literal(table.schema), name=literal(table.name)))
    row = cursor.fetchone()
    if row is None:
        return None
    description = msgspec.json.decode(row[0])
    columns = [_column(column) for column in description["columns"] or []]
    return FoundTable(
        oid=description["oid"],
        is_table=description["kind"] in ("r", "p"),
        survives=description["survives"],
        columns={column.name: column for column in columns},
        dropped=tuple(description["dropped"] or []),
        keys=tuple(frozenset(names) for names in description["keys"] or []),
        first_columns=frozenset(description["first_columns"] or []),
        checks=tuple(
            TableCheck(check["name"], check["expression"], tuple(check["columns"] or []))
            for check in description["checks"] or []
        ),
        further_rules=tuple(description["further_rules"] or []),
    )


def _column(described: dict[str, Any]) -> TableColumn:
    labels = described.pop("labels")
    return TableColumn(**described, labels=tuple(labels) if labels is not None else None)


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
      'exact', coalesce(l.collisdeterministic, true),
      'labels', (
        SELECT json_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = a.atttypid
      )
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
  ),
  'checks', (
    SELECT json_agg(json_build_object(
      'name', k.conname,
      'expression', pg_get_expr(k.conbin, k.conrelid),
      'columns', (
        SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY (k.conkey)
      )
    ) ORDER BY k.conname)
    FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c'
  ),
  'further_rules', (
    SELECT json_agg(r.rule ORDER BY r.rule) FROM (
      SELECT CASE k.contype WHEN 'f' THEN 'foreign key ' WHEN 'x' THEN 'exclusion ' ELSE 'unique key ' END
        || k.conname AS rule
      FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('f', 'x', 'u', 'p')
      UNION ALL
      SELECT 'unique index ' || x.relname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
      WHERE i.indrelid = c.oid AND i.indisunique
        AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.conrelid = c.oid)
      UNION ALL
      SELECT 'trigger ' || t.tgname FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
    ) r
  )
)::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema} AND c.relname = {name}
"""
