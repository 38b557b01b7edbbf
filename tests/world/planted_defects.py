"""Defects that were found by hand once, planted again: `make world` must find each within one life of its seed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.world.life import Lived, live
from tests.world.other_side import Servers
from tidegate.checkpoint.planning import Plans
from tidegate.checkpoint.publishing import publish, table_mismatch
from tidegate.connectors.files.export_folder import ExportFolder, ExportManifest, LastEntry, LogEntry
from tidegate.connectors.postgres import changes, literal
from tidegate.connectors.postgres.messages import lsn_text
from tidegate.records import typed
from tidegate.sources import PostgresChanges, PostgresTable

__all__ = ["PLANTED", "Planted"]

Patches = Iterator[Any]


def _a_table_that_is_gone_is_called_damaged() -> Patches:
    for module in (publish, table_mismatch):
        yield mock.patch.object(module, "missing_table_error", return_value=None)


def _the_hint_of_an_export_is_believed() -> Patches:
    real = ExportFolder.latest

    def latest(self: ExportFolder) -> LastEntry | None:
        hint = self._store.read("_latest.json")
        if hint is None:
            return real(self)
        number = typed.decode(hint, ExportManifest).number
        data = self._store.read(f"_tidegate/{number:08d}.json")
        return LastEntry(number, typed.decode(data, LogEntry)) if data is not None else real(self)

    yield mock.patch.object(ExportFolder, "latest", latest)


def _an_older_copy_is_read_on() -> Patches:
    yield mock.patch.object(PostgresTable, "_refuse_older_copy")


def _latest_forgets_what_was_there() -> Patches:
    real = PostgresTable.beginning

    def beginning(self: PostgresTable, context: Any) -> Any:
        found = real(self, context)
        return {key: value for key, value in found.items() if key != "seen"} if found is not None else None

    yield mock.patch.object(PostgresTable, "beginning", beginning)


def _columns_are_known_by_their_names_now() -> Patches:
    def by_name(names: Any, table: Any, *_: Any) -> list[int]:
        return [table.columns[name].number if name in table.columns else 0 for name in names]

    yield mock.patch.object(changes, "column_numbers", by_name)


def _a_range_ends_anywhere() -> Patches:
    """In the record of a commit; and the slot is moved there."""
    real = PostgresChanges.plan

    def plan(self: PostgresChanges, start: Any, context: Any) -> Any:
        planned = real(self, start, context)
        if planned.is_empty:
            return planned
        cut = planned.splits["end"] - 8
        end = {key: value for key, value in planned.end.items() if key != "commit"} | {"lsn": cut}
        splits = {key: value for key, value in planned.splits.items() if key not in ("commit", "after_commit")}
        return dataclasses.replace(planned, end=end, splits=splits | {"end": cut})

    def release(self: PostgresChanges, before: Any, context: Any) -> None:
        with self._database(context).session("letting go of the log") as session:
            session.execute(f"SELECT pg_replication_slot_advance({literal(self.slot)}, '{lsn_text(before['lsn'])}')")

    yield mock.patch.object(PostgresChanges, "plan", plan)
    yield mock.patch.object(PostgresChanges, "release", release)


def _a_watch_overlooks_what_has_arrived() -> Patches:
    yield mock.patch.object(Plans, "find_reason", return_value="")


class Planted(NamedTuple):
    patches: Callable[[], Patches]
    kind: str
    seed: int
    acts: tuple[str, ...]
    found: str
    """In what is found then."""

    def live(self, folder: Path, servers: Servers) -> Lived:
        """The life that finds it."""
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            return live(self.seed, folder, servers, kinds=[self.kind], acts=self.acts)


PLANTED = {
    "B8": Planted(_a_table_that_is_gone_is_called_damaged, "delta-append", 0, ("table_is_dropped",), "is refused"),
    "E": Planted(
        _the_hint_of_an_export_is_believed,
        "export",
        0,
        ("hint_is_lost", "hint_is_an_older_one", "hint_is_an_older_one"),
        "",
    ),
    "A10": Planted(
        _an_older_copy_is_read_on,
        "postgres-table",
        3,  # 25 transactions in the older copy: with two, it depends on how many ids plans take
        ("copy_is_made", "transaction_is_rolled_back", "older_copy_is_put_back"),
        "was not read",
    ),
    "A17": Planted(
        _latest_forgets_what_was_there, "postgres-table", 0, ("transaction_is_rolled_back",), "was never shown"
    ),
    "A9": Planted(_columns_are_known_by_their_names_now, "postgres-changes", 0, ("column_is_renamed",), "is there as"),
    "watch": Planted(_a_watch_overlooks_what_has_arrived, "files", 0, (), "that nobody asks for"),
    "A5": Planted(_a_range_ends_anywhere, "postgres-changes", 0, ("transaction_is_rolled_back",) * 4, "was not read"),
}
"""By their numbers in the list of defects. E is "export: hint believed"; nobody has ever made the one of the watch."""
