"""A Delta table that a pipeline publishes to, and all that people do to it there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from tests.world.delta_source import DeltaFolder, arrow_rows
from tests.world.other_side import Happening, Servers, SinkSide, Table, act, full_disk, happened, read_only
from tests.world.project import Project, Row, row_of

__all__ = ["DeltaAppendSide", "DeltaUpsertSide"]

GONE = "TABLE_GONE TABLE_DAMAGED STAGED_FILES_GONE"


class DeltaSinkSide(SinkSide):
    """What both have in common."""

    in_flight: ClassVar[str] = "STAGED_FILES_GONE ROWS_MISSING"
    sink: ClassVar[str]
    is_torn = False

    def __init__(self, dice: random.Random, servers: Servers) -> None:
        super().__init__(dice, servers)
        self.older: tuple[Path, Table, int] | None = None

    def declared(self) -> tuple[str, str]:
        self.evolution = self.dice.choice(["", ', schema_evolution="add"'])
        return self.SOURCE, self.sink.format(self.evolution)

    def begin(self, project: Project) -> None:
        super().begin(project)
        self.target = DeltaFolder(project.path("tables/rows"))
        self.names = ("'rows'", "sink rows", str(self.target.path))

    def wrong(self, succeeded: bool) -> list[str]:
        return [] if self.is_torn and not succeeded else super().wrong(succeeded)  # readers see an older version

    def published(self) -> Table:
        if not self.target.exists:
            return Counter()
        rows = self.target.table.to_pyarrow_table().to_pylist()
        return Counter((row["id"], row.get("n"), row.get("v")) for row in rows)

    def hand(self, change: Callable[[], object]) -> bool:
        """A change by hand, of a table as it is there. False: there is none."""
        self.settle()
        if not self.target.exists:
            return False
        change()
        return True

    def by_hand(self) -> Happening | None:
        """After a change by hand, the table is as it is."""
        self.table = self.published()
        return happened()

    # -- what others may do

    @act
    def others_add_rows(self) -> Happening | None:
        rows = arrow_rows(self.some_ids())
        return self.by_hand() if self.hand(lambda: self.target.write(rows)) else None

    @act
    def others_delete_rows(self) -> Happening | None:
        ids = [row[0] for row in self.published()]
        if not ids or not self.hand(lambda: self.target.table.delete(f"id = {self.dice.choice(ids)}")):
            return None
        return self.by_hand()

    @act
    def others_delete_all(self) -> Happening | None:
        return self.by_hand() if self.hand(lambda: self.target.table.delete()) else None

    @act
    def others_update_rows(self) -> Happening | None:
        ids = [row[0] for row in self.published()]
        if not ids:
            return None
        where = f"id = {self.dice.choice(ids)}"
        changed = self.hand(lambda: self.target.table.update(predicate=where, updates={"v": "'by hand'"}))
        return self.by_hand() if changed else None

    @act
    def others_overwrite(self) -> Happening | None:
        rows = arrow_rows(self.some_ids())
        return self.by_hand() if self.hand(lambda: self.target.write(rows, mode="overwrite")) else None

    @act
    def files_are_compacted(self) -> Happening | None:
        return self.by_hand() if self.hand(lambda: self.target.table.optimize.compact()) else None

    @act
    def table_is_restored(self) -> Happening | None:
        """By RESTORE, which is one more version."""
        if not self.target.exists or self.target.version < 1 or len(self.target.log_files()) < 2:
            return None
        try:
            done = self.hand(lambda: self.target.table.restore(self.target.version - 1))
        except Exception:  # of a version whose files are gone
            return None
        return self.by_hand() if done else None

    @act
    def files_are_removed(self) -> Happening | None:
        """By a VACUUM that keeps nothing: also what is staged and not published yet."""
        if not self.target.exists:
            return None
        copy = self.target.copy()
        self.hand(self.target.vacuum)
        return happened("", lambda: self.target.put_missing(copy))

    @act
    def old_log_is_removed(self) -> Happening | None:
        return self.by_hand() if self.hand(self.target.clean_log) else None

    @act
    def times_are_changed(self) -> Happening | None:
        return happened() if self.hand(lambda: self.target.set_times(self.dice.choice([0, 2_000_000_000]))) else None

    # -- what is refused, until it is as it was or somebody decides

    @act
    def column_is_added(self) -> Happening | None:
        rows = arrow_rows(self.some_ids(), more="?")
        if not self.hand(lambda: self.target.write(rows)):
            return None
        self.by_hand()
        changed = self.sink.format(', schema_evolution="add"')
        return happened(
            "BAD_OUTPUT SCHEMA_CHANGED TABLE_CHANGED",
            code=lambda: self.project.write_code(writes=changed),
            advice="schema_evolution",
        )

    @act
    def rule_is_added(self) -> Happening | None:
        """That all rows keep to which are there."""
        rule = {"small": f"id < {self.project.last_id + 2}"}
        if not self.hand(lambda: self.target.table.alter.add_constraint(rule)):
            return None
        return happened(
            "COMMIT_REFUSED",
            lambda: self.target.table.alter.drop_constraint("small"),
            passing=True,
        )

    @act
    def rows_must_stay(self) -> Happening | None:
        def set_to(value: str) -> None:
            self.target.table.alter.set_table_properties({"delta.appendOnly": value})

        if not self.hand(lambda: set_to("true")):
            return None
        return happened("APPEND_ONLY UNSAFE_TABLE", lambda: set_to("false"), passing=True)

    @act
    def table_is_dropped(self) -> Happening | None:
        """By hand. It is put back, or begins anew as the cause says."""
        if not self.target.exists:
            return None
        self.settle()
        copy, done = self.target.copy(), self.done
        self.target.put(None)
        gone = self._gone(copy, Counter(), 0, remedy="rollback", effect=lambda: self.begin_anew(done))
        gone.reasons = frozenset({"TABLE_GONE"})
        return gone

    @act
    def table_is_made_again(self) -> Happening | None:
        """By others, with rows of theirs."""
        if not self.target.exists:
            return None
        self.settle()
        copy = self.target.copy()
        self.target.put(None)
        self.target.write(arrow_rows(ids := self.some_ids()))
        return self._gone(copy, Counter(map(row_of, ids)), 0)

    @act
    def older_copy_is_put_back(self) -> Happening | None:
        """What was published since is published again, or it is refused."""
        if self.older is None or not self.target.exists:
            return None
        self.settle()
        copy = self.target.copy()
        older, rows, done = self.older
        self.older = None
        self.target.put(older)
        return self._gone(copy, rows, done)

    def _gone(self, copy: Path, table: Table, done: int, **more: Any) -> Happening:
        undo = self.replaced(table, done)

        def put_back() -> None:
            staged = self.target.copy() if self.target.path.exists() else None
            self.target.put(copy)
            if staged is not None:  # what checkpoints have staged meanwhile is theirs
                self.target.put_missing(staged, below="tidegate")
            undo()

        return happened(GONE, put_back, **more)

    @act
    def copy_is_made(self) -> Happening | None:
        if not self.target.exists:
            return None
        self.settle()
        self.older = self.target.copy(), Counter(self.table), self.done
        return happened()

    @act
    def last_commit_is_torn(self) -> Happening | None:
        self.settle()
        if not self.target.exists or not self.target.log_files():
            return None
        mend, self.is_torn = self.target.tear_head(), True

        def undo() -> None:
            mend()
            self.is_torn = False

        return happened("LOG_TORN", undo, passing=True)

    @act
    def disk_is_full(self) -> Happening | None:
        return full_disk(self.target.path, self.closing) if self.target.exists else None

    @act
    def folder_is_read_only(self) -> Happening | None:
        return read_only(self.target.path, self.closing) if self.target.exists else None


class DeltaAppendSide(DeltaSinkSide):
    kind = "delta-append"
    sink: ClassVar[str] = 'DeltaAppend("tables/rows"{})'


class DeltaUpsertSide(DeltaSinkSide):
    """By a key that all rows of a file share: the newest one stays."""

    kind = "delta-upsert"
    sink: ClassVar[str] = 'DeltaUpsert("tables/rows", keys=["n"], order_by=["id"]{})'

    def row(self, id: int) -> Row:
        return id, id % 4, row_of(id)[2]

    def add(self, table: Table, ids: Iterable[int]) -> Table:
        newest = {row[1]: row for row in table.elements()}
        newest |= {row[1]: row for row in map(self.row, ids)}
        return Counter(newest.values())
