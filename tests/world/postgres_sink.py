"""Tables of PostgreSQL that a pipeline publishes to."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from tests.world.other_side import Happening, Servers, SinkSide, Table, act, happened
from tests.world.postgres_server import PostgresSide
from tests.world.project import Project, Row, row_of

__all__ = ["PostgresAppendSide", "PostgresUpsertSide"]

MARKS = "tidegate_published"


class PostgresSinkSide(PostgresSide, SinkSide):
    """What both have in common."""

    in_flight: ClassVar[str] = "TABLE_CHANGED DATABASE_AWAY DATABASE_REFUSES UNAVAILABLE"
    sink: ClassVar[str]

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.name = servers.new_name("rows")
        self.older: tuple[Path, Table, int] | None = None
        self.names = ("'rows'", "sink rows", self.name, "connection 'shop'")

    def declared(self) -> tuple[str, str]:
        self.evolution = self.dice.choice(["", ', schema_evolution="add"'])
        rollback = self.dice.choice(["", ", allow_rollback=True"])
        return self.SOURCE, self.sink.format(self.name, self.evolution + rollback)

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.closing.callback(
            lambda: self.run(f"DROP TABLE IF EXISTS {self.name}, aside, {MARKS}, marks_aside, tidegate_history CASCADE")
        )

    def there(self, name: str = "") -> bool:
        return not self.is_away and bool(self.run(f"SELECT to_regclass('{name or self.name}') IS NOT NULL")[0][0])

    def published(self) -> Table:
        if not self.there():
            return Counter()
        found = {name for (name,) in self.run(
            f"SELECT attname FROM pg_attribute WHERE attrelid = '{self.name}'::regclass AND attnum > 0"
        )}  # fmt: skip
        picked = ", ".join(name if name in found else "NULL" for name in ("id", "n", "v"))
        return Counter(self.run(f"SELECT {picked} FROM {self.name}"))

    def wrong(self, succeeded: bool) -> list[str]:
        return [] if self.is_away and not succeeded else super().wrong(succeeded)

    def hand(
        self, *statements: str, reasons: str = "", back: str = "", undo: Callable[[], object] | None = None
    ) -> Happening | None:
        """A change by hand of the table as it is there. back: the statement that undoes it."""
        if not self.there():
            return None
        self.settle()
        self.run(*statements)
        self.table = self.published()

        def run_back() -> None:
            self.settle()
            self.run(back)
            self.table = self.published()

        return happened(reasons, run_back if back else undo)

    def insert(self, ids: Iterable[int]) -> str:
        values = ", ".join(f"({id}, {n}, '{v}')" for id, n, v in map(row_of, ids))
        return f"INSERT INTO {self.name} (id, n, v) VALUES {values}"

    # -- what others may do

    @act
    def others_change_rows(self) -> Happening | None:
        return self.hand(
            self.dice.choice(
                [
                    self.insert(self.some_ids()),
                    f"DELETE FROM {self.name} WHERE id = (SELECT max(id) FROM {self.name})",
                    f"UPDATE {self.name} SET v = 'by hand' WHERE id = (SELECT max(id) FROM {self.name})",
                    f"TRUNCATE {self.name}",
                ]
            )
        )

    @act
    def table_is_rewritten(self) -> Happening | None:
        return self.hand(f"VACUUM FULL {self.name}")

    @act
    def column_is_added_with_a_default(self) -> Happening | None:
        return self.hand(f"ALTER TABLE {self.name} ADD COLUMN IF NOT EXISTS filled text NOT NULL DEFAULT '?'")

    # -- what is refused until it is undone

    @act
    def column_is_added(self) -> Happening | None:
        return self.hand(
            f"ALTER TABLE {self.name} ADD COLUMN more text",
            reasons="BAD_OUTPUT TABLE_CHANGED",
            back=f"ALTER TABLE {self.name} DROP COLUMN more",
        )

    @act
    def column_is_renamed(self) -> Happening | None:
        if self.evolution:
            return None  # then a column of the name is added
        return self.hand(
            f"ALTER TABLE {self.name} RENAME COLUMN v TO w",
            reasons="BAD_OUTPUT TABLE_CHANGED",
            back=f"ALTER TABLE {self.name} RENAME COLUMN w TO v",
        )

    @act
    def column_is_dropped(self) -> Happening | None:
        return self.hand(
            f"ALTER TABLE {self.name} DROP COLUMN v",
            reasons="BAD_OUTPUT TABLE_CHANGED",
            back=f"ALTER TABLE {self.name} ADD COLUMN v text",
        )

    @act
    def column_has_another_type(self) -> Happening | None:
        return self.hand(
            f"ALTER TABLE {self.name} ALTER COLUMN v TYPE bytea USING v::bytea",
            reasons="BAD_OUTPUT TABLE_CHANGED",
            back=f"ALTER TABLE {self.name} ALTER COLUMN v TYPE text USING convert_from(v, 'UTF8')",
        )

    @act
    def rule_is_added(self) -> Happening | None:
        return self.hand(
            f"ALTER TABLE {self.name} ADD CONSTRAINT small CHECK (id < 5) NOT VALID",
            reasons="BAD_ROWS BAD_OUTPUT DATABASE_REFUSES",
            back=f"ALTER TABLE {self.name} DROP CONSTRAINT small",
        )

    @act
    def column_must_be_filled(self) -> Happening | None:
        """With what no row of ours has."""
        return self.hand(
            f"ALTER TABLE {self.name} ADD COLUMN must bigint",
            f"ALTER TABLE {self.name} ADD CONSTRAINT filled CHECK (must IS NOT NULL) NOT VALID",
            reasons="BAD_ROWS BAD_OUTPUT TABLE_CHANGED DATABASE_REFUSES",
            back=f"ALTER TABLE {self.name} DROP COLUMN must",
        )

    @act
    def table_is_dropped(self) -> Happening | None:
        return self._other_table(again=False)

    @act
    def table_is_made_again(self) -> Happening | None:
        return self._other_table(again=True)

    def _other_table(self, *, again: bool) -> Happening | None:
        if not self.there():
            return None
        self.settle()
        done = self.done
        self.run("DROP TABLE IF EXISTS aside", f"ALTER TABLE {self.name} RENAME TO aside")
        if again:
            self.run(f"CREATE TABLE {self.name} (LIKE aside INCLUDING ALL)")
        undo = self.replaced(Counter(), 0)

        def put_back() -> None:
            self.run(f"DROP TABLE IF EXISTS {self.name}", f"ALTER TABLE aside RENAME TO {self.name}")
            undo()

        return happened("TABLE_DAMAGED TABLE_GONE", put_back, remedy="rollback", effect=lambda: self.begin_anew(done))

    @act
    def table_is_dumped_and_restored(self) -> Happening | None:
        """With the same rows, so that the cause's statement says what is so."""
        if not self.there():
            return None
        self.settle()
        self.run(
            "DROP TABLE IF EXISTS aside",
            f"ALTER TABLE {self.name} RENAME TO aside",
            f"CREATE TABLE {self.name} (LIKE aside INCLUDING ALL)",
            f"INSERT INTO {self.name} SELECT * FROM aside",
            "DROP TABLE aside",
        )
        return happened("TABLE_DAMAGED", statement=self.carry_out)

    def carry_out(self, help: str) -> None:
        """Run the statement of a cause."""
        found = re.search(r"UPDATE \S*tidegate_published\S* SET .*? WHERE app_id = '[^']*'", help)
        assert found is not None, help
        self.run(found[0])

    @act
    def marks_are_gone(self) -> Happening | None:
        if not self.there(MARKS):
            return None
        self.settle()
        self.run(f"ALTER TABLE {MARKS} RENAME TO marks_aside")

        def undo() -> None:
            self.run(f"DROP TABLE IF EXISTS {MARKS}", f"ALTER TABLE marks_aside RENAME TO {MARKS}")

        return happened("TABLE_DAMAGED MARKS_GONE", undo)

    @act
    def mark_is_deleted(self) -> Happening | None:
        if not self.there(MARKS):
            return None
        self.settle()
        self.run(
            "DROP TABLE IF EXISTS marks_aside",
            f"CREATE TABLE marks_aside AS SELECT * FROM {MARKS}",
            f"DELETE FROM {MARKS}",
        )

        def undo() -> None:
            self.run(f"INSERT INTO {MARKS} SELECT * FROM marks_aside ON CONFLICT DO NOTHING", "DROP TABLE marks_aside")

        return happened("TABLE_DAMAGED MARKS_GONE", undo)

    # -- the server

    @act
    def copy_is_made(self) -> Happening | None:
        if self.is_away or self.older is not None:
            return None
        self.settle()
        self.older = self.cold_copy(), Counter(self.table), self.done
        return happened()

    @act
    def older_copy_is_put_back(self) -> Happening | None:
        if self.older is None or self.is_away:
            return None
        self.settle()
        newest = self.cold_copy()
        older, rows, done = self.older
        self.older = None
        self.server.put_back(older)
        undo = self.replaced(rows, done)

        def put_back() -> None:
            self.server.put_back(newest)
            undo()

        return happened("TABLE_DAMAGED STAGED_FILES_GONE MARKS_GONE", put_back)

    @act
    def standby_takes_over(self) -> Happening | None:
        """One that had everything."""
        if self.is_away:
            return None
        copy = self.cold_copy()
        self.server.put_back(copy, signal_file="standby.signal")
        self.server.promote()
        return happened()


class PostgresAppendSide(PostgresSinkSide):
    kind = "postgres-append"
    sink: ClassVar[str] = 'PostgresAppend("{}", connection="shop"{})'


class PostgresUpsertSide(PostgresSinkSide):
    """By a key that all rows of a file share: the newest one stays."""

    kind = "postgres-upsert"
    sink: ClassVar[str] = 'PostgresUpsert("{}", connection="shop", keys=["n"], order_by=["id"]{})'

    def row(self, id: int) -> Row:
        return id, id % 4, row_of(id)[2]

    def add(self, table: Table, ids: Iterable[int]) -> Table:
        newest: dict[Any, Row] = {row[1]: row for row in table.elements()}
        newest |= {row[1]: row for row in map(self.row, ids)}
        return Counter(newest.values())
