"""Tables of PostgreSQL that are read: rows that are only added, and all changes by a slot."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from tests.world.other_side import Happening, Servers, SourceSide, act, happened
from tests.world.postgres_server import PostgresSide
from tests.world.project import Project, Row, row_of

__all__ = ["PostgresChangesSide", "PostgresRowsSide"]

UPDATED, DELETED = 1_000_000, 2_000_000
"""What the ids of changes are above those of the rows that they change."""


class PostgresSourceSide(PostgresSide, SourceSide):
    """What both have in common."""

    deleted = False
    """Whether rows were deleted that may have been read: then they tell no longer that it is the same database."""

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.name = servers.new_name("events")
        self.open: tuple[Any, list[int]] | None = None
        """A transaction that has not ended, and its rows."""
        self.transactions = 0
        self.column, self.others = "n", "m"
        self.has_more = False
        self.copies: list[tuple[Any, dict[str, bool], str]] = []
        self.names = ("'events'", self.name, "connection 'shop'", "sink rows")

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.closing.callback(self.drop)
        self.make(self.name)

    def make(self, name: str) -> None:
        self.run(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, n bigint, v text, "
            "xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
            f"CREATE INDEX ON {name} (xid)",
        )

    def drop(self) -> None:
        self.commit_open()
        self.run(f"DROP TABLE IF EXISTS {self.name}, aside CASCADE")

    @property
    def is_there(self) -> bool:
        return not self.is_away and bool(self.run(f"SELECT to_regclass('{self.name}') IS NOT NULL")[0][0])

    def arrive(self) -> None:
        self.commit_open()
        if self.is_there:
            self.add(self.some_ids())

    def add(self, ids: list[int]) -> None:
        """A transaction."""
        self.run(self.insert(ids))
        self.transactions += 1
        self.show(f"transaction {self.transactions}", ids)

    def insert(self, ids: list[int]) -> str:
        values = ", ".join(f"({id}, {n}, '{v}')" for id, n, v in map(row_of, ids))
        return f"INSERT INTO {self.name} (id, {self.column}, v) VALUES {values}"

    def open_one(self) -> list[int]:
        import psycopg

        session = psycopg.connect(**self.server.options)  # type: ignore[arg-type]
        ids = self.some_ids()
        session.execute(self.insert(ids).encode())
        self.open = session, ids
        return ids

    def commit_open(self) -> None:
        if self.open is not None:
            (session, ids), self.open = self.open, None
            session.commit()
            session.close()
            self.transactions += 1
            self.show(f"transaction {self.transactions}", ids)

    def before_it_stops(self) -> None:
        self.commit_open()

    def seen(self, row: dict[str, Any]) -> Row:
        n = row.get("n") if row.get("n") is not None else row.get("m")
        return row["id"], int(n) if n is not None else None, row.get("v")

    # -- columns

    @act
    def column_is_added_or_dropped(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.has_more = not self.has_more
        change = "ADD COLUMN more text DEFAULT '?'" if self.has_more else "DROP COLUMN more"
        self.run(f"ALTER TABLE {self.name} {change}")
        return happened()

    @act
    def column_is_renamed(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.run(f"ALTER TABLE {self.name} RENAME COLUMN {self.column} TO {self.others}")
        self.column, self.others = self.others, self.column
        return happened()

    @act
    def column_has_another_type(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        name, column = self.name, self.column
        self.run(f"ALTER TABLE {name} ALTER COLUMN {column} TYPE text")
        back = f"ALTER TABLE {name} ALTER COLUMN {column} TYPE bigint USING {column}::bigint"
        return happened("BAD_OUTPUT TABLE_CHANGED BAD_VALUES", lambda: self.run(back), passing=True)

    # -- the table

    @act
    def table_is_renamed(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.run(f"ALTER TABLE {self.name} RENAME TO aside")
        return happened("NO_TABLE NO_PUBLICATION", lambda: self.run(f"ALTER TABLE aside RENAME TO {self.name}"))

    @act
    def transaction_commits_late(self) -> Happening | None:
        if self.open is not None or not self.is_there:
            return None
        self.open_one()
        self.add(self.some_ids())
        return happened()

    @act
    def transaction_is_rolled_back(self) -> Happening | None:
        if not self.is_there:
            return None
        self.run(f"BEGIN; {self.insert(self.some_ids())}; ROLLBACK")
        return happened()

    # -- the server

    @act
    def copy_is_made(self) -> Happening | None:
        if self.is_away or len(self.copies) > 1:
            return None
        copy = self.cold_copy()
        self.copies.append((copy, {name: unit.shown for name, unit in self.units.items()}, self.column))
        return self.happened_at_a_start()

    @act
    def older_copy_is_put_back(self) -> Happening | None:
        """And continues, for longer than the other one had, or not."""
        if not self.copies or not self.is_there:
            return None
        newest = self.cold_copy()
        older, shown, column = self.copies.pop()
        now = {name: unit.shown for name, unit in self.units.items()}, self.column, self.has_more
        self.server.put_back(older)
        self._have(shown, column)
        if not self.is_there:
            self.server.put_back(newest)
            self._have(now[0], now[1])
            return self.happened_at_a_start()
        for _ in range(self.dice.choice([0, 2, 25])):
            self.add(self.some_ids())

        def undo() -> None:
            self.commit_open()
            self.server.put_back(newest)
            self._have(now[0], now[1])
            self.has_more = now[2]

        done = self.happened_at_a_start("OLDER_COPY TABLE_REPLACED LOG_SHORTER OTHER_TIMELINE", undo=undo)
        done.remedy = ""
        return done

    def _have(self, shown: dict[str, bool], column: str) -> None:
        for name, unit in self.units.items():
            unit.shown = shown.get(name, False)
        self.column, self.others = ("n", "m") if column == "n" else ("m", "n")
        columns = self.run(f"SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('{self.name}')")
        self.has_more = ("more",) in columns

    @act
    def standby_takes_over(self) -> Happening | None:
        """One that had everything."""
        if self.is_away or self.deleted:
            return None
        copy = self.cold_copy()
        self.server.put_back(copy, signal_file="standby.signal")
        self.server.promote()
        return happened("OTHER_TIMELINE OLDER_COPY", remedy="source accept", effect=lambda: None)


class PostgresRowsSide(PostgresSourceSide):
    kind = "postgres-table"
    in_flight: ClassVar[str] = "TABLE_CHANGED ROWS_CHANGED DATABASE_AWAY UNAVAILABLE"

    def declared(self) -> tuple[str, str]:
        self.start = self.dice.choice(["beginning", "latest"])
        rows = self.dice.choice([1, 3, 1000])
        return (
            f'PostgresTable("{self.name}", connection="shop", xid_column="xid", start="{self.start}", max_rows={rows})',
            self.SINK,
        )

    def begin(self, project: Project) -> None:
        super().begin(project)
        if self.start == "latest":  # what is committed before the first look never comes
            self.open_one()
            self.run(self.insert(self.some_ids()))

    def arrive(self) -> None:
        if self.start == "latest" and not self.transactions and self.open is not None and self.project.commands == 0:
            return
        super().arrive()

    def wrong(self, succeeded: bool) -> list[str]:
        return super().wrong(succeeded and self.open is None)  # what comes after an open transaction waits for it

    def happened_at_a_start(self, reasons: str = "", **more: Any) -> Happening:
        if not self.deleted:
            return happened(reasons, **more)
        return happened(f"{reasons} OLDER_COPY", remedy="source accept", effect=lambda: None, **more)

    @act
    def rows_are_deleted(self) -> Happening | None:
        """They may have been read."""
        self.commit_open()
        if not self.is_there:
            return None
        self.deleted = True
        self.run(self.dice.choice([f"TRUNCATE {self.name}", f"DELETE FROM {self.name}"]))
        self.hide(*self.units)
        return happened()

    @act
    def table_is_made_again(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        shown = {name: unit.shown for name, unit in self.units.items()}
        column, has_more = self.column, self.has_more
        self.run(f"ALTER TABLE {self.name} RENAME TO aside")
        self.make(self.name)
        self.column, self.others, self.has_more = "n", "m", False
        self.hide(*self.units)
        self.add(self.some_ids())

        def undo() -> None:
            self.commit_open()
            self.run(f"DROP TABLE {self.name}", f"ALTER TABLE aside RENAME TO {self.name}")
            self._have(shown, column)
            self.has_more = has_more

        return happened("TABLE_REPLACED", undo)

    @act
    def index_is_dropped(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.run(f"DROP INDEX IF EXISTS {self.name}_xid_idx")
        back = f"CREATE INDEX {self.name}_xid_idx ON {self.name} (xid)"
        return happened("NO_INDEX", lambda: self.run(back), passing=True)

    @act
    def xid_is_no_longer_filled(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.run(f"ALTER TABLE {self.name} ALTER COLUMN xid DROP DEFAULT")
        self.is_away = True  # nobody can add a row

        def undo() -> None:
            self.run(f"ALTER TABLE {self.name} ALTER COLUMN xid SET DEFAULT pg_current_xact_id()")
            self.is_away = False

        return happened("NO_XID_COLUMN", undo, passing=True)


class PostgresChangesSide(PostgresSourceSide):
    kind = "postgres-changes"
    in_flight: ClassVar[str] = "TABLE_CHANGED DATABASE_AWAY UNAVAILABLE"

    def declared(self) -> tuple[str, str]:
        size = self.dice.choice([1, 700, 5000, 1 << 20])
        names = f'slot="{self.name}", publication="{self.name}"'
        return f'PostgresChanges("{self.name}", connection="shop", {names}, max_bytes={size})', self.SINK

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.whole = self.dice.random() < 0.5
        if self.whole:
            self.run(f"ALTER TABLE {self.name} REPLICA IDENTITY FULL")
        self.run(
            f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}",
            f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput')",
        )
        self.living: list[int] = []

    def drop(self) -> None:
        super().drop()
        self.run(
            f"DROP PUBLICATION IF EXISTS {self.name}",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active",
        )

    def add(self, ids: list[int]) -> None:
        super().add(ids)
        self.living += ids

    def arrive(self) -> None:
        super().arrive()
        if self.living and self.is_there and self.dice.random() < 0.4:
            id = self.living.pop(self.dice.randrange(len(self.living)))
            number = self.transactions + 1
            if self.dice.random() < 0.5:
                changed = self.run(f"UPDATE {self.name} SET v = v WHERE id = {id} RETURNING id")
                kind = UPDATED
            else:
                changed = self.run(f"DELETE FROM {self.name} WHERE id = {id} RETURNING id")
                kind = DELETED
            if changed:
                self.transactions = number
                self.show(f"transaction {number}", [kind + id])

    def published(self) -> list[Row]:
        return [row for row in super().published() if row[0] is not None]

    def seen(self, row: dict[str, Any]) -> Row:
        found, kind = super().seen(row), row["_change_type"]
        if kind == "insert":
            return found
        if kind in ("truncate", "update_preimage"):
            return (None, None, None)  # type: ignore[return-value]
        number = {"update_postimage": UPDATED, "delete": DELETED}[kind] + found[0]
        right = row_of(found[0]) if self.whole or kind != "delete" else (found[0], None, None)
        return row_of(number) if found == right else (number, *found[1:])

    @act
    def table_is_truncated(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.run(f"TRUNCATE {self.name}")
        self.living = []
        return happened()

    @act
    def slot_is_made_again(self) -> Happening | None:
        """What it had kept is lost: nothing but another source continues."""
        self.commit_open()
        if not self.is_there:
            return None
        self.add(self.some_ids())
        self.run(
            f"SELECT pg_drop_replication_slot('{self.name}')",
            f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput')",
        )
        return happened("SLOT_ADVANCED NO_SLOT", final=True)

    @act
    def slot_is_dropped(self) -> Happening | None:
        self.commit_open()
        if self.is_away:
            return None
        self.run(f"SELECT pg_drop_replication_slot('{self.name}')")
        return happened("NO_SLOT", final=True)

    @act
    def slot_is_moved_on(self) -> Happening | None:
        """By somebody else who reads it."""
        self.commit_open()
        if not self.is_there:
            return None
        self.add(self.some_ids())
        self.run(f"SELECT pg_replication_slot_advance('{self.name}', pg_current_wal_insert_lsn())")
        return happened("SLOT_ADVANCED", final=True)

    @act
    def publication_lacks_the_table(self) -> Happening | None:
        self.commit_open()
        if not self.is_there:
            return None
        self.run(f"ALTER PUBLICATION {self.name} DROP TABLE {self.name}")
        back = f"ALTER PUBLICATION {self.name} ADD TABLE {self.name}"
        return happened("NO_PUBLICATION", lambda: self.run(back), passing=True)
