"""Checks the rights that publishing needs, so that missing ones are reported before anything is planned."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tidegate.connectors.postgres import FoundTable, TableName, find_oid, literal, quoted_name
from tidegate.connectors.postgres.mark import history_of, marks_of
from tidegate.errors import Invalid

__all__ = ["dependents_of", "is_owner", "refuse_missing_rights"]


def refuse_missing_rights(
    cursor: Any, connection: str, table: TableName, existing: FoundTable | None, *, upsert: bool, rollback: bool
) -> None:
    """Raise Invalid with the statements that grant all missing rights."""
    cursor.execute(f"SELECT to_regnamespace({literal(quoted_name(table.schema))}) IS NOT NULL, current_user::text")
    exists, user = cursor.fetchone()
    if not exists:
        raise Invalid(
            f"connection {connection!r}: schema {table.schema!r} does not exist",
            help=f"create it: CREATE SCHEMA {quoted_name(table.schema)}; or name another one",
            reason="NO_SCHEMA",
        )
    needed = {marks_of(table): ["SELECT", "INSERT", "UPDATE", "DELETE"]}
    if upsert and rollback:
        needed[history_of(table)] = ["SELECT", "INSERT", "DELETE"]
    if existing is not None:
        needed[table] = ["INSERT"]
        if upsert or rollback:
            needed[table] += ["SELECT", "DELETE"]
        if upsert:
            needed[table].append("UPDATE")
    grants = list(_missing_grants(cursor, table, needed, creates_table=existing is None))
    if grants:
        statements = "; ".join(f"{grant} TO {quoted_name(user)}" for grant in grants)
        raise Invalid(
            f"connection {connection!r}: user {user!r} lacks rights that publishing to {table} needs",
            expected="the rights that docs/guides/postgres.md lists",
            help=f"ask an owner to run: {statements}",
            reason="NO_RIGHTS",
        )


def is_owner(cursor: Any, table: TableName) -> bool:
    """Return whether the user may alter the table."""
    cursor.execute(f"SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = {literal(table.sql)}::regclass")
    return bool(cursor.fetchone()[0])


def dependents_of(cursor: Any, oid: int, numbers: Collection[int]) -> list[str]:
    """Return what keeps PostgreSQL from changing the types of these columns, in words: views, policies, functions,
    publications with conditions or columns, and the like.

    numbers: those of the columns.
    """
    if not numbers:
        return []
    listed = ", ".join(map(str, numbers))
    cursor.execute(
        "SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d "
        f"WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = {oid} AND d.refobjsubid IN ({listed}) "
        "AND (d.classid IN ('pg_rewrite'::regclass, 'pg_policy'::regclass, 'pg_trigger'::regclass, "
        "'pg_publication_rel'::regclass, 'pg_proc'::regclass) OR "
        "(d.classid = 'pg_attrdef'::regclass AND EXISTS (SELECT 1 FROM pg_attrdef a JOIN pg_attribute c "
        "ON c.attrelid = a.adrelid AND c.attnum = a.adnum WHERE a.oid = d.objid AND c.attgenerated <> ''))) "
        "UNION ALL SELECT 'its partitioning' FROM pg_partitioned_table p "
        f"WHERE p.partrelid = {oid} AND p.partattrs::smallint[] && ARRAY[{listed}]::smallint[] ORDER BY 1"
    )
    return [str(row[0]) for row in cursor.fetchall()]


def _missing_grants(
    cursor: Any, table: TableName, needed: dict[TableName, list[str]], *, creates_table: bool
) -> Iterator[str]:
    """Yield the GRANT statements for missing rights, without the user."""
    schema = quoted_name(table.schema)
    cursor.execute(
        f"SELECT has_schema_privilege({literal(table.schema)}, 'CREATE'), "
        f"has_schema_privilege({literal(table.schema)}, 'USAGE'), "
        "has_database_privilege(current_database(), 'TEMP'), current_database()::text"
    )
    may_create, may_use, may_create_temporary, database = cursor.fetchone()
    if not may_use:
        yield f"GRANT USAGE ON SCHEMA {schema}"
    if not may_create_temporary:
        yield f"GRANT TEMPORARY ON DATABASE {quoted_name(database)}"
    for name, rights in needed.items():
        oid = find_oid(cursor, name)
        if oid is None:
            creates_table = True
            continue
        missing = []
        for right in rights:
            cursor.execute(f"SELECT has_table_privilege({oid}::oid, {literal(right)})")
            if not cursor.fetchone()[0]:
                missing.append(right)
        if missing:
            yield f"GRANT {', '.join(missing)} ON {name.sql}"
    if creates_table and not may_create:
        yield f"GRANT CREATE ON SCHEMA {schema}"
