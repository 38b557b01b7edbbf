"""What publishing needs, and what the user may do: a missing right is told before anything is planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.connectors.postgres import FoundTable, TableName, find_oid, literal, quoted_name
from tidegate.connectors.postgres.mark import history_of, marks_of
from tidegate.errors import Invalid

__all__ = ["is_owner", "refuse_missing_rights"]


def refuse_missing_rights(
    cursor: Any, connection: str, table: TableName, found: FoundTable | None, *, upsert: bool, rollback: bool
) -> None:
    """Raise Invalid with all rights that the user lacks, as the statements that grant them."""
    cursor.execute(f"SELECT to_regnamespace({literal(quoted_name(table.schema))}) IS NOT NULL, current_user::text")
    exists, user = cursor.fetchone()
    if not exists:
        raise Invalid(
            f"connection {connection!r}: there is no schema {table.schema!r}",
            help=f"create it: CREATE SCHEMA {quoted_name(table.schema)}; or name another one",
            reason="NO_SCHEMA",
        )
    needed = {marks_of(table): ["SELECT", "INSERT", "UPDATE", "DELETE"]}
    if upsert and rollback:
        needed[history_of(table)] = ["SELECT", "INSERT", "DELETE"]
    if found is not None:
        more = ["SELECT", "DELETE"] if upsert or rollback else []
        needed[table] = ["INSERT", *more, *(["UPDATE"] if upsert else [])]
    grants = list(_missing(cursor, table, needed, makes_table=found is None))
    if grants:
        raise Invalid(
            f"connection {connection!r}: user {user!r} lacks rights that publishing to {table} needs",
            expected="the rights that docs/guides/postgres.md lists",
            help="let an owner run: " + "; ".join(f"{grant} TO {quoted_name(user)}" for grant in grants),
            reason="NO_RIGHTS",
        )


def is_owner(cursor: Any, table: TableName) -> bool:
    """Return whether the user may change the table itself."""
    cursor.execute(f"SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = {literal(table.sql)}::regclass")
    return bool(cursor.fetchone()[0])


def _missing(cursor: Any, table: TableName, needed: dict[TableName, list[str]], *, makes_table: bool) -> Iterator[str]:
    """Yield the beginnings of the statements that grant what is missing."""
    schema, makes_tables = quoted_name(table.schema), makes_table
    cursor.execute(
        f"SELECT has_schema_privilege({literal(table.schema)}, 'CREATE'), "
        f"has_schema_privilege({literal(table.schema)}, 'USAGE'), "
        "has_database_privilege(current_database(), 'TEMP'), current_database()::text"
    )
    may_create, may_use, may_make_temporary, database = cursor.fetchone()
    if not may_use:
        yield f"GRANT USAGE ON SCHEMA {schema}"
    if not may_make_temporary:
        yield f"GRANT TEMPORARY ON DATABASE {quoted_name(database)}"
    for name, rights in needed.items():
        oid = find_oid(cursor, name)
        if oid is None:
            makes_tables = True
            continue
        lacking = []
        for right in rights:
            cursor.execute(f"SELECT has_table_privilege({oid}::oid, {literal(right)})")
            if not cursor.fetchone()[0]:
                lacking.append(right)
        if lacking:
            yield f"GRANT {', '.join(lacking)} ON {name.sql}"
    if makes_tables and not may_create:
        yield f"GRANT CREATE ON SCHEMA {schema}"
