"""The Delta table of a state, published after the decision like any sink's table, with a tagged commit per checkpoint.

Only tidegate writes to it. Each commit makes the table's live files exactly those that the checkpoint's record names:
it adds the checkpoint's files and removes those that compaction replaced. So any retained version is that checkpoint's
state, for any engine. The newest row of a key counts (`view_sql` returns the query).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

from tidegate.connectors.delta.sink.table import published, stamp_of
from tidegate.connectors.sink import ExactlyOnceSink, Head, Publication, RestorePlan, SinkContext, Staging, entry_folder
from tidegate.delta import (
    CommitStamp,
    Committed,
    Location,
    Snapshot,
    StagedFile,
    add_columns,
    create,
    data_files,
    find_commit,
    forget_log,
    missing_files,
    open_table,
    overwrite,
    refuse_owner,
    reopen,
    replace,
    verify,
)
from tidegate.delta.log.schema import differences
from tidegate.errors import Corrupt, Invalid
from tidegate.records import typed
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.state.columns import CHECKPOINT, DELETED, TOUCHED
from tidegate.state.record import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["STATE", "StateSink", "expired_name", "state_sink", "state_sink_name", "view_sql"]

STATE = "state."
"""The prefix of states' names among the tables of a plan. Names that users choose have no dot."""


def state_sink_name(operator: str, part: str) -> str:
    """Return the name of a state in plans and manifests."""
    if part:
        return f"{STATE}{operator}.{part}"
    return f"{STATE}{operator}"


def expired_name(operator: str) -> str:
    """Return the key in an ack's memory for the times up to which an operator's rows have expired, by part."""
    return f"{operator}.expired"


def state_sink(name: str) -> StateSink:
    """Return the table of the state with this name."""
    operator, _, part = name.removeprefix(STATE).partition(".")
    return StateSink(operator, part)


class StateSink(ExactlyOnceSink):
    """The table of one keyed state."""

    kind: ClassVar[str] = "state"

    def __init__(self, operator: str, part: str) -> None:
        self.operator = operator
        self.part = part
        self.folder = f"state/{operator}.{part}" if part else f"state/{operator}"

    def target(self, place: Place) -> str:
        return self.folder

    def location(self, context: SinkContext) -> Location:
        """Return the location of the table, next to the pipeline's ledger."""
        return Location(f"{context.home}/{self.folder}", context.place.options)

    def delta_table(self, context: SinkContext) -> Location:
        return self.location(context)

    def staging_folder(self, context: SinkContext) -> Location:
        return Location(context.home, context.place.options)

    def describe(self) -> Json:
        return {}

    def check(self, context: SinkContext) -> None:
        if context.known_head is None:
            self._open(context)

    def _open(self, context: SinkContext) -> Snapshot | None:
        snapshot = open_table(self.location(context))
        if snapshot is not None:
            refuse_owner(snapshot, context.pipeline, context.sink, context.uid)
        return snapshot

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> NoReturn:
        raise AssertionError("an operator stages its state itself")

    def head(self, context: SinkContext) -> Head:
        snapshot = self._open(context)
        if snapshot is None:
            return Head(None, None)
        return Head(snapshot.version, snapshot.txn(context.app_id))

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None
        location, stamp = self.location(context), stamp_of(publication, context)
        tables = []
        for committable in publication.committables:
            tables.append(typed.convert(committable, StateTable))
        if head.version is None:
            files = tables[-1].files
            self._refuse_missing(location, [file.file for file in files], publication.id)
            committed = create(location, tables[-1].columns, [file.file for file in files], stamp)
        else:
            snapshot = reopen(location, head.version)
            if snapshot is None or snapshot.txn(context.app_id) != head.last_entry:
                return None
            committed = self._publish_next(snapshot, tables[-1], stamp)
        return published(location, committed, sum(file.file.rows for file in tables[-1].files))

    def _publish_next(self, snapshot: Snapshot, table: StateTable, stamp: CommitStamp) -> Committed | None:
        target = {file.file.path: file.file for file in table.files}
        live = data_files(snapshot)
        added = [file for path, file in target.items() if path not in live]
        self._refuse_missing(snapshot.location, added, stamp.id)
        all_are_new = len(added) == len(target)
        changes = differences(table.columns, snapshot.schema)
        if all_are_new and any(difference.kind != "new" for difference in changes):
            # The state was rewritten because a column was removed, or has a wider type.
            return overwrite(snapshot, table.columns, added, stamp)
        ready = _with_columns(snapshot, table.columns, stamp)
        if ready is None:
            return None
        return replace(ready, added, [file for path, file in live.items() if path not in target], stamp)

    def _refuse_missing(self, location: Location, files: Sequence[StagedFile], id: int) -> None:
        if missing := missing_files(location, files):
            raise Corrupt(
                f"state of operator {self.operator!r}: {len(missing)} files that checkpoint {id} needs are missing or "
                f"changed, first {missing[0]!r} in {location.url}",
                expected="every file of a state as it was written, until no retained checkpoint needs it",
                help="only tidegate may delete files there: put the files back, or roll back to an older checkpoint",
                reason="STATE_FILES_GONE",
            )

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        files: list[StagedFile] = []
        for committable in committables:
            for file in typed.convert(committable, StateTable).files:
                files.append(file.file)
        return missing_files(self.location(context), files)

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        """Return the plan. A state is defined by its record, not by a table version, so it only needs its files."""
        snapshot = self._open(context)
        if snapshot is None:
            return RestorePlan(exists=False, not_published_yet=bool(committables))
        last = snapshot.txn(context.app_id)
        if to is not None and (last is None or last < to):
            return RestorePlan(not_published_yet=True, version=snapshot.version)
        missing = self.missing_files(committables, context)
        problems = []
        if missing:
            summary = f"state of operator {self.operator!r}: {len(missing)} of its files are gone"
            problems.append(f"{summary}, first {missing[0]!r}")
        return RestorePlan(version=snapshot.version, problems=tuple(problems))

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if publication.committables:
            return self.publish(publication, head, context)
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None
        snapshot = reopen(self.location(context), head.version)
        if snapshot is None or snapshot.txn(context.app_id) != head.last_entry:
            return None
        committed = replace(snapshot, [], [*data_files(snapshot).values()], stamp_of(publication, context))
        return published(self.location(context), committed, None)

    def clear(self, publication: Publication, context: SinkContext) -> bool:
        """Make the table show no rows, without publishing. Return False if it had none, or the commit lost a race."""
        snapshot = self._open(context)
        if snapshot is None:
            return False
        live = [*data_files(snapshot).values()]
        if not live:
            return False
        stamp = dataclasses.replace(stamp_of(publication, context), publishes=False)
        return replace(snapshot, [], live, stamp) is not None

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        snapshot = self._open(context)
        committed = find_commit(snapshot, context.app_id, id) if snapshot else None
        return published(self.location(context), committed, None)

    def verify(self, at: PublishedTable, context: SinkContext) -> None:
        verify(self.location(context), at.version, at.log_hash)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        location, folder = self.location(context), entry_folder(context, id)
        return sorted({path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self.location(context).remove_folder(staging.folder(context))

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Do nothing: later checkpoints need these files. `retire_files` removes those that none needs."""

    def delete_history(self, before: PublishedTable, context: SinkContext) -> None:
        forget_log(self.location(context), before.version)

    def retire_files(self, gone: Json | None, kept: Iterable[Json], context: SinkContext) -> None:
        """Remove files of the retired checkpoint's record that no kept record and no live version of the table names.

        kept: read only as long as there are files to remove.
        """
        unneeded = _paths(gone) if gone is not None else set()
        for record in kept if unneeded else ():
            unneeded -= _paths(record)
            if not unneeded:
                return
        if unneeded:
            snapshot = self._open(context)
            live = set(data_files(snapshot)) if snapshot is not None else set()
            self.location(context).remove_files(sorted(unneeded - live))


def _paths(record: Json) -> set[str]:
    return {file.file.path for file in typed.convert(record, StateTable).files}


def _with_columns(snapshot: Snapshot, columns: Json, stamp: CommitStamp) -> Snapshot | None:
    """Return the table with all columns of the state, after a commit that adds missing ones. None: it lost a race."""
    changes = differences(columns, snapshot.schema)
    fields = {field["name"]: field for field in columns["fields"]}
    new = [fields[difference.column] for difference in changes if difference.kind == "new"]
    conflicts = []
    for difference in changes:
        if difference.kind in ("case", "type"):
            conflicts.append(difference.text)
    if conflicts:
        raise Invalid(
            "\n    ".join([f"{snapshot.location.url} has other columns than the state:", *conflicts]),
            expected="the columns that the state had before, and new ones",
            help="do not change a state's table by hand; give the operator a new uid, so that it starts afresh",
            reason="STATE_TABLE_CHANGED",
        )
    if not new:
        return snapshot
    committed = add_columns(snapshot, new, dataclasses.replace(stamp, publishes=False))
    if committed:
        return open_table(snapshot.location, committed.version)
    return None


def view_sql(
    table: StateTable, source: str, *, where: str | None = None, quote: str = "`", expired: int | None = None
) -> str:
    """Return the query for the state's rows in its table: the newest row of each key, without deleted ones.

    source: the engine's name for the table at a version. quote: its quote for names. expired: leave out rows whose
    time is up to this, in microseconds since 1970, because they have expired, though files may still hold them.
    """

    def named(name: str) -> str:
        return f"{quote}{name.replace(quote, quote * 2)}{quote}"

    columns, keys = (", ".join(map(named, names)) for names in (table.shown, table.keys))
    sql = (
        f"SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {named(CHECKPOINT)} DESC) "
        f"AS {named('_age')} FROM {source}) AS versions WHERE {named('_age')} = 1 AND NOT {named(DELETED)}"
    )
    if expired is not None and any(field["name"] == TOUCHED for field in table.columns["fields"]):
        sql += f" AND ({named(TOUCHED)} IS NULL OR {named(TOUCHED)} > {expired})"
    if where:
        return f"SELECT * FROM ({sql}) AS rows WHERE {where}"
    return sql
