"""The base class of the Delta sinks, for appends and upserts: ownership, schema, staging, publishing."""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from tidegate import seams
from tidegate.connectors.declaring import collation_problems, column_problems
from tidegate.connectors.delta.sink.interval import is_published, publication_of, refuse_features, trace_of
from tidegate.connectors.delta.sink.prerewritten import PrerewrittenFiles
from tidegate.connectors.delta.sink.properties import path_problems, property_problems
from tidegate.connectors.delta.sink.restore import commit_restore, has_skipped, plan_restore
from tidegate.connectors.delta.sink.row_rules import declared_by, rules_of
from tidegate.connectors.delta.sink.shadow import promoted_files, seed_shadow
from tidegate.connectors.delta.sink.wider_types import (
    has_narrower_files,
    is_widening,
    with_wider_types_of,
)
from tidegate.connectors.row_rules import DeclaredRules, RowRule, exempting, partition_rules, refusing
from tidegate.connectors.sink import (
    STAGED_FILES_GONE,
    ExactlyOnceSink,
    Head,
    Prepared,
    Publication,
    RestorePlan,
    Sink,
    SinkContext,
    Staging,
    TableDescription,
    entry_folder,
)
from tidegate.delta import (
    CommitStamp,
    Committed,
    Location,
    Snapshot,
    StagedFile,
    add_columns,
    change_columns,
    create,
    find_commit,
    from_spark,
    locate,
    missing_files,
    open_table,
    owner_of,
    refuse_owner,
    refuse_unsafe,
    reopen,
    required_columns,
    schema_problems,
    verify,
    version_of,
)
from tidegate.delta.dividing import Divided, Division, as_declared
from tidegate.delta.log.commit_file import can_be_put
from tidegate.delta.log.commits import PUBLISHING
from tidegate.delta.log.schema import Difference, columns, differences, render, with_comments
from tidegate.errors import Corrupt, Invalid
from tidegate.records import typed
from tidegate.records.names import listed, quoted
from tidegate.records.place import Place, is_relative, shared_uri
from tidegate.records.records import Json, PublishedTable, Struct
from tidegate.spark.frame_facts import empty_if

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MERGED", "DeltaSink", "Evolution", "StagedBatch", "all_files", "files_to_add", "refuse_unsafe_store"]

Evolution = Literal["refuse", "add", "widen"]

MERGED = "merged-"
"""The prefix of folders that publishers write, next to the folders of attempts."""


class StagedBatch(Struct, frozen=True, kw_only=True):
    """A committable: the files staged by one attempt."""

    columns: Json
    """The output's schema in Delta's form."""
    files: list[StagedFile]
    """Files with rows to add. They become files of the table unchanged."""
    deletes: list[StagedFile] = []
    """Files with rows whose keys must be removed."""
    not_null: list[str] = []
    """NOT NULL columns of the table, which were checked to hold no null in these files."""
    since: int | None = None
    """In an interval pipeline: the table's version before staging. None: the table did not exist."""
    without: list[str] = []
    """For a swap: files of the version to which the table returns that the backfill has replaced."""
    ahead: PrerewrittenFiles | msgspec.UnsetType = msgspec.UNSET
    """For an upsert: files of the table that the job has rewritten in advance, which may be outdated by now."""


class DeltaSink(ExactlyOnceSink):
    """Publishes to a Delta table. Other writers may commit to the same table."""

    can_publish_directly = True
    rewrites: ClassVar[bool]
    """True: publishing replaces rows. False: it only adds rows."""
    delete_when: str | None = None
    """The SQL condition of rows that only remove a key."""
    omit: tuple[str, ...] = ()
    """Columns of the output that the table does not get."""

    def __init__(
        self,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        schema_evolution: Evolution = "refuse",
        properties: Mapping[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        self.path = path
        self.partition_by = tuple(listed(partition_by))
        self.schema_evolution = schema_evolution
        self.properties = dict(properties or {})
        self.take_over = take_over

    def target(self, place: Place) -> str:
        return locate(place, self.path).url

    def shared_uri(self, place: Place) -> str:
        """See Sink."""
        return shared_uri(self.target(place))

    def relative_path(self) -> str | None:
        return self.path if is_relative(self.path) else None

    def delta_table(self, context: SinkContext) -> Location:
        return locate(context.place, self.path)

    def staging_folder(self, context: SinkContext) -> Location:
        return self.delta_table(context)

    def describe(self) -> Json:
        return {
            "kind": self.kind,
            "path": self.path,
            "partition_by": list(self.partition_by),
            "schema_evolution": self.schema_evolution,
            "properties": self.properties,
        }

    def problems(self) -> list[str]:
        problems = path_problems(self.path) + column_problems("partition_by", self.partition_by)
        if self.schema_evolution not in ("refuse", "add", "widen"):
            problems.append(f'schema_evolution is {self.schema_evolution!r}: write "refuse", "add" or "widen"')
        return problems + property_problems(self.properties)

    def check(self, context: SinkContext) -> None:
        if context.known_head is not None and context.known_head.last_entry is not None:
            return
        snapshot = self.open(context)
        if snapshot is None or snapshot.txn(context.app_id) is None:
            refuse_unsafe_store(self.delta_table(context))

    def check_output(self, frame: DataFrame, context: SinkContext) -> None:
        self.output_schema(frame, context, self.open(context))

    def declared_rules(self, place: Place) -> Json | None:
        snapshot = open_table(locate(place, self.path))
        return declared_by(snapshot) if snapshot is not None else None

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        found = self._table_rules(columns, declared, nulls=True)
        return dataclasses.replace(found, rules=(*found.rules, *partition_rules(columns, self.partition_by)))

    def _table_rules(self, output: Json, declared: Json | None, *, nulls: bool) -> DeclaredRules:
        fields = [field for field in output["fields"] if field["name"] not in self.omit]
        found = rules_of({"type": "struct", "fields": fields}, declared, nulls=nulls)
        return dataclasses.replace(found, rules=tuple(exempting(found.rules, self.delete_when)))

    def rules_to_enforce(self, frame: DataFrame, snapshot: Snapshot | None) -> Sequence[RowRule]:
        """Return the table's rules that only publishing would find broken. For NOT NULL, see `checked_not_null`."""
        if snapshot is None:
            return ()
        return self._table_rules(msgspec.json.decode(frame.schema.json()), declared_by(snapshot), nulls=False).rules

    def refusing_rows(self, frame: DataFrame, snapshot: Snapshot | None) -> DataFrame:
        """Return the rows. Writing them fails if the table would not accept one."""
        written = next(name for name in frame.columns if name not in self.omit)
        return refusing(frame, self.rules_to_enforce(frame, snapshot), written)

    def test_store(self, context: SinkContext) -> None:
        refuse_unsafe_store(self.delta_table(context))

    def head(self, context: SinkContext) -> Head:
        snapshot = self.open(context)
        if snapshot is None:
            return Head(version=None, last_entry=None)
        return Head(version=snapshot.version, last_entry=snapshot.txn(context.app_id), opened=snapshot)

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        interval = publication.interval
        is_published = head.last_entry is not None and head.last_entry >= publication.id
        if is_published and interval is None and not publication.direct:
            return None  # It is published already. The caller sees that in the head that it reads next.
        location = self.delta_table(context)
        batches, stamp = batches_of(publication, location, context), stamp_of(publication, context)
        folder = f"{entry_folder(context, publication.id)}/{MERGED}{seams.new_id()}"
        if head.version is None:
            committed = self._publish_first(location, batches, stamp, folder, context)
        else:
            snapshot = reopen(location, head.version)
            if snapshot is None or snapshot.txn(context.app_id) != head.last_entry:
                return None
            self.refuse_target(snapshot, context)
            if interval is not None:
                evolved = self.evolved(snapshot, batches, stamp)
                if evolved is None:
                    return None
                committed = self.replace_interval(evolved, publication, batches, stamp, context, folder)
            elif self.spark_reasons(snapshot):
                committed = self.publish_through_spark(snapshot, batches, stamp, context)
            else:
                evolved = self.evolved(snapshot, batches, stamp)
                if evolved is None:
                    return None
                committed = self.publish_next(evolved, batches, stamp, folder)
        rows = sum(file.rows for file in all_files(batches))
        return published(location, committed, rows)

    def has_skipped(self, id: int, context: SinkContext) -> bool:
        snapshot = self.open(context)
        return snapshot is not None and has_skipped(snapshot, context.app_id, id)

    def divide(self, committable: Json, division: Division, context: SinkContext, staging: Staging) -> Divided:
        batch, location = typed.convert(committable, StagedBatch), self.delta_table(context)
        as_output = partial(as_declared, context.sink, schema=division.schema)
        parted = division.part(location, batch.files, staging.folder(context), batch.columns, as_output)
        # Files that the job has rewritten in advance have all rows.
        rest = msgspec.structs.replace(batch, files=parted.files, ahead=msgspec.UNSET)
        return Divided(msgspec.to_builtins(rest), parted.taken, parted.rows)

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        batches = [typed.convert(committable, StagedBatch) for committable in committables]
        return missing_files(self.delta_table(context), all_files(batches))

    def restore_plan(
        self, to: int | None, reported: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        snapshot = self.open(context)
        if snapshot is None:
            return RestorePlan(exists=False, not_published_yet=to is not None)
        return plan_restore(snapshot, to, reported, context, rewrites=self.rewrites)

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        if head.last_entry is not None and head.last_entry >= publication.id:
            return None
        location = self.delta_table(context)
        snapshot = reopen(location, head.version)
        if snapshot is None or snapshot.txn(context.app_id) != head.last_entry:
            return None
        self.refuse_target(snapshot, context)
        batches, stamp = batches_of(publication, location, context), stamp_of(publication, context)
        if batches:
            evolved = self.evolved(snapshot, batches, stamp)
            if evolved is None:
                return None
            snapshot = evolved
        added, without = files_to_add(batches), set[str]()
        for batch in batches:
            without.update(batch.without)
        return published(location, commit_restore(snapshot, publication, stamp, context, added, without), None)

    def shadow(self, folder: str) -> DeltaSink:
        shadow = copy.copy(self)
        shadow.path = f"{self.path.rstrip('/')}/{folder}"
        return shadow

    def create_shadow(
        self, shadow: Sink, since: PublishedTable | None, context: SinkContext, shadow_context: SinkContext
    ) -> None:
        assert isinstance(shadow, DeltaSink)
        target, location = self.open(context), shadow.delta_table(shadow_context)
        if target is None or open_table(location) is not None:
            return  # without a target, the first checkpoint creates the shadow, as it would have created the target
        stamp = dataclasses.replace(self._stamp_of_seed(shadow_context), publishes=False)
        seed_shadow(target, self._version_to_replace(target, since), location, stamp, self.properties)

    def _stamp_of_seed(self, shadow_context: SinkContext) -> CommitStamp:
        publication = Publication(id=0, generation=0, attempt=seams.new_id(), previous=None, committables=())
        return stamp_of(publication, shadow_context)

    def _version_to_replace(self, target: Snapshot | None, since: PublishedTable | None) -> Snapshot | None:
        """Return the version of the target whose rows a shadow continues. None: it only adds rows, or had none."""
        if target is None or since is None or not self.rewrites:
            return None
        return version_of(target, since.version)

    def promote_shadow(
        self, shadow: Sink, since: PublishedTable | None, context: SinkContext, shadow_context: SinkContext
    ) -> Json | None:
        assert isinstance(shadow, DeltaSink)
        snapshot, target = open_table(shadow.delta_table(shadow_context)), open_table(self.delta_table(context))
        if snapshot is None:
            return None
        base = self._version_to_replace(target, since)
        added, without = promoted_files(snapshot, base, self.delta_table(context))
        if not added and not without:
            return None
        required = sorted(required_columns(snapshot.schema))
        batch = StagedBatch(columns=snapshot.schema, files=added, not_null=required, without=without)
        builtins: Json = msgspec.to_builtins(batch)
        return builtins

    def drop_shadow(self, shadow: Sink, promoted: Sequence[Json], context: SinkContext) -> None:
        assert isinstance(shadow, DeltaSink)
        location = self.delta_table(context)
        folder = shadow.delta_table(context).url.removeprefix(f"{location.url}/")
        batches = [typed.convert(committable, StagedBatch) for committable in promoted]
        in_use = {file.path for file in files_to_add(batches)}
        if in_use:
            location.remove_files([path for path, _ in location.walk(folder) if path not in in_use])
        else:
            location.remove_folder(folder)

    def has_publication(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        if head.version is None or head.last_entry is None or head.last_entry < publication.id:
            return False  # The transaction id never decreases, so the table has at most the entries up to it.
        location, snapshot = self.delta_table(context), head.opened
        if not isinstance(snapshot, Snapshot) or snapshot.location != location:
            snapshot = reopen(location, head.version)
        return snapshot is not None and is_published(snapshot, publication, context)

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        snapshot = self.open(context)
        if snapshot is None:
            return None
        find = publication_of if context.by_interval else find_commit
        return published(self.delta_table(context), find(snapshot, context.app_id, id), None)

    def verify(self, published: PublishedTable, context: SinkContext) -> None:
        verify(self.delta_table(context), published.version, published.log_hash)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        location, folder = self.delta_table(context), entry_folder(context, id)
        names = {path[len(folder) + 1 :].split("/")[0] for path, _ in location.walk(folder)}
        return sorted(name for name in names if not name.startswith(MERGED))

    def discard(self, context: SinkContext, staging: Staging) -> None:
        self.delta_table(context).remove_folder(staging.folder(context))

    # --- for subclasses ------------------------------------------------------------------------------------

    def open(self, context: SinkContext) -> Snapshot | None:
        """Open the table's latest version. Return None if the table does not exist yet. Raise Invalid if this sink may
        not publish to it."""
        snapshot = open_table(self.delta_table(context))
        if snapshot is not None:
            self.refuse_target(snapshot, context)
        return snapshot

    def refuse_target(self, snapshot: Snapshot, context: SinkContext) -> None:
        """Raise Invalid if publishing there would lose or duplicate rows, or break a guarantee of the table."""
        if not self.take_over:
            refuse_owner(snapshot, context.pipeline, context.sink, context.uid)
        refuse_unsafe(snapshot, rewrites=self.rewrites or context.by_interval)
        if context.by_interval:
            refuse_features(snapshot, context)
        if snapshot.partition_by != self.partition_by:
            raise Invalid(
                f"sink {context.sink}: {snapshot.location.url} is partitioned by "
                f"{list(snapshot.partition_by)}, but the sink declares {list(self.partition_by)}",
                expected="the table's partition columns, in the same order",
                help=f"write partition_by={list(snapshot.partition_by)}, or use another table",
                reason="OTHER_PARTITIONS",
            )

    def output_schema(self, frame: DataFrame, context: SinkContext, snapshot: Snapshot | None) -> Json:
        """Return the output's Delta schema. Raise Invalid with all its problems if the table cannot take it."""
        return self.fitting(msgspec.json.decode(frame.schema.json()), context, snapshot)

    def fitting(self, output: Json, context: SinkContext, snapshot: Snapshot | None) -> Json:
        """Like `output_schema`, for an output's schema in Spark's JSON form."""
        schema = from_spark(output)
        problems = schema_problems(schema, self.partition_by) + self.output_problems(schema)
        problems += collation_problems(output)
        remedies = ["change the last stage before the sink"]
        if not problems and snapshot is not None:
            allowed = {"new", "missing"} if self.schema_evolution != "refuse" else set()
            if self.spark_reasons(snapshot):
                allowed.add("missing")  # The table may fill them: generated columns, defaults.
            schema, changes = self._with_wider_types(schema, snapshot)
            unfit = [change for change in changes if change.kind not in allowed]
            problems = [change.text for change in unfit]
            if any(change.kind in ("new", "missing") for change in unfit):
                remedies.append('set schema_evolution="add" for new columns')
            if any(change.kind == "type" for change in unfit):
                casts = ", ".join(_casts(unfit, snapshot.schema))
                remedies[0] = f"cast to the table's types in the last stage before the sink: {casts}"
                widenings = [change.column for change in unfit if is_widening(change, schema, snapshot.schema)]
                if set(widenings) - set(self.partition_by):
                    remedies.append(self._remedy_for_widening(snapshot))
                # After a rollback, a column of a source may have become wider in another way than the table has.
                remedies.append(
                    "if the column is one of a source with on_type='widen', declare it there with the table's type: "
                    "what does not fit goes to the rescue column"
                )
                remedies.append("give the sink another path, whose table begins with the new types")
        if problems:
            title = f"sink {context.sink}: the output does not fit {self.delta_table(context).url}:"
            expected = "names and types of the table" if snapshot else "columns that a Delta table can hold"
            raise Invalid(
                "\n    ".join([title, *problems]),
                expected=expected,
                help=", or ".join(remedies),
                reason="BAD_OUTPUT",
            )
        return with_comments(schema, self._description(context).columns)

    def _with_wider_types(self, schema: Json, snapshot: Snapshot) -> tuple[Json, list[Difference]]:
        """Return the output's schema as it is staged, and its differences from the table, without those that the sink
        takes care of.

        Where the table's type is the wider one, the rows are cast. Where the output's is, publishing changes the table.
        """
        changes = differences(schema, snapshot.schema)
        if self.schema_evolution != "widen":
            return schema, changes
        schema = with_wider_types_of(snapshot.schema, schema)
        can_widen = self._can_widen(snapshot)
        left = []
        for change in differences(schema, snapshot.schema):
            may_widen = can_widen and change.column not in self.partition_by
            if not (may_widen and is_widening(change, schema, snapshot.schema)):
                left.append(change)
        return schema, left

    def _can_widen(self, snapshot: Snapshot) -> bool:
        """Return whether publishing can change the types of the table's columns."""
        return can_be_put(snapshot, ()) and not self.spark_reasons(snapshot)

    def _remedy_for_widening(self, snapshot: Snapshot) -> str:
        if self.schema_evolution != "widen":
            return 'set schema_evolution="widen", if all readers of the table support Delta\'s type widening'
        reasons = ", ".join(self.spark_reasons(snapshot)) or "its object store has no conditional writes"
        return f"widen the column by hand, because tidegate cannot ({reasons}): ALTER TABLE … ALTER COLUMN … TYPE …"

    def in_staged_types(self, frame: DataFrame, schema: Json) -> DataFrame:
        """Return the rows with the types of a schema that `output_schema` has returned for them."""
        from pyspark.sql import functions as F

        present = columns(from_spark(msgspec.json.decode(frame.schema.json())))
        casts = {}
        for name, field in columns(schema).items():
            if present[name]["type"] != field["type"]:
                casts[name] = F.col(quoted(name)).cast(render(field["type"]))
        return empty_if(frame, frame.withColumns(casts)) if casts else frame

    def _description(self, context: SinkContext) -> TableDescription:
        return self.described_by(context.place) if self.described_by is not None else TableDescription()

    def output_problems(self, schema: Json) -> list[str]:
        """Return further problems of an output with this schema, for a subclass to add."""
        return []

    @abstractmethod
    def spark_reasons(self, snapshot: Snapshot) -> list[str]:
        """Return the reasons why only delta-spark can publish to this table."""

    @abstractmethod
    def first_files(self, batches: Sequence[StagedBatch], location: Location, folder: str) -> list[StagedFile]:
        """Return the files of a table's first version."""

    @abstractmethod
    def publish_next(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, folder: str
    ) -> Committed | None:
        """Commit the batches directly after `snapshot`."""

    def trace(self, committables: Sequence[Json]) -> Json:
        paths: list[str] = []
        for committable in committables:
            paths += [file["path"] for file in committable["files"]]
        return trace_of(paths)

    def replace_interval(
        self,
        snapshot: Snapshot,
        publication: Publication,
        batches: Sequence[StagedBatch],
        stamp: CommitStamp,
        context: SinkContext,
        folder: str,
    ) -> Committed | None:
        """Commit the batches directly after `snapshot`, in place of the current rows of their interval."""
        raise NotImplementedError

    @abstractmethod
    def publish_through_spark(
        self, snapshot: Snapshot, batches: Sequence[StagedBatch], stamp: CommitStamp, context: SinkContext
    ) -> Committed | None:
        """Commit the batches through delta-spark, for a table with `spark_reasons`."""

    def evolved(self, snapshot: Snapshot, batches: Iterable[StagedBatch], stamp: CommitStamp) -> Snapshot | None:
        """Return the table with all columns of the batches, after committing those that it lacks, and wider types.

        Return None if another commit came first. Raise Invalid if the staged rows no longer fit the table.
        """
        allowed = {"missing", "new"} if self.schema_evolution != "refuse" else {"missing"}
        may_widen = self.schema_evolution == "widen" and self._can_widen(snapshot)
        required = required_columns(snapshot.schema)
        changes: list[Difference] = []
        fields: dict[str, Json] = {}
        nulls: list[str] = []
        target = snapshot.schema
        for batch in batches:
            if may_widen:
                target = with_wider_types_of(batch.columns, target, unchanged=self.partition_by)
            for change in differences(batch.columns, target):
                is_narrower = change.column not in self.partition_by and is_widening(change, target, batch.columns)
                if not (is_narrower and (has_narrower_files(snapshot) or target != snapshot.schema)):
                    changes.append(change)
            fields |= columns(batch.columns)
            nulls += [f"{name!r} is NOT NULL in the table" for name in sorted(required - set(batch.not_null))]
        unfit = [change.text for change in changes if change.kind not in allowed] + nulls
        if unfit:
            raise Invalid(
                "\n    ".join([f"{snapshot.location.url} was changed since the rows were staged:", *unfit]),
                expected="the schema that the table had when the checkpoint was made",
                help="change the table back, then run again to publish the pending checkpoints",
                reason="TABLE_CHANGED",
            )
        new_names = dict.fromkeys(change.column for change in changes if change.kind == "new")
        if not new_names and target == snapshot.schema:
            return snapshot
        new_fields = [fields[name] for name in new_names]
        before_rows = dataclasses.replace(stamp, publishes=False)
        if target != snapshot.schema or has_narrower_files(snapshot):
            whole = {**target, "fields": [*target["fields"], *new_fields]}
            committed = change_columns(snapshot, whole, before_rows)
        else:
            committed = add_columns(snapshot, new_fields, before_rows)
        return open_table(snapshot.location, committed.version) if committed else None

    def _publish_first(
        self,
        location: Location,
        batches: Sequence[StagedBatch],
        stamp: CommitStamp,
        folder: str,
        context: SinkContext,
    ) -> Committed | None:
        """Create the table. If types have become wider among the pending rows, it begins empty, and the next attempt
        to publish changes it."""
        if any(change.kind == "type" for batch in batches for change in differences(batch.columns, united(batches))):
            self._create(location, batches[:1], [], dataclasses.replace(stamp, publishes=False), context)
            return None
        return self._create(location, batches, self.first_files(batches, location, folder), stamp, context)

    def _create(
        self,
        location: Location,
        batches: Sequence[StagedBatch],
        files: list[StagedFile],
        stamp: CommitStamp,
        context: SinkContext,
    ) -> Committed | None:
        return create(
            location,
            united(batches),
            files,
            stamp,
            partition_by=self.partition_by,
            properties=self.properties,
            description=self._description(context).table,
        )


def refuse_unsafe_store(location: Location) -> None:
    """Raise Invalid if two publishers could both commit the same version there, so that one overwrites the other."""
    if location.is_local or location.has_lock:
        return  # delta-rs uses the lock, so conditional writes are not needed
    from tidegate.ledger.object_store import ObjectStore

    try:
        ObjectStore(location.url, location.options).refuse_unsafe()
    except Invalid as error:
        if error.reason != "BAD_STORE":  # BAD_STORE is a store that only delta-rs supports: it reports its own limits
            raise


def united(batches: Sequence[StagedBatch]) -> Json:
    """Return one schema with all columns of the batches."""
    fields: dict[str, Json] = {}
    for batch in batches:
        for field in batch.columns["fields"]:
            fields.setdefault(field["name"], field)
    return {"type": "struct", "fields": list(fields.values())}


def files_to_add(batches: Iterable[StagedBatch]) -> list[StagedFile]:
    """Return the files with rows to add."""
    return [file for batch in batches for file in batch.files]


def all_files(batches: Iterable[StagedBatch]) -> list[StagedFile]:
    """Return all staged files, including those with rows to remove."""
    return [file for batch in batches for file in (*batch.files, *batch.deletes)]


def batches_of(publication: Publication, location: Location, context: SinkContext) -> list[StagedBatch]:
    """Return the staged batches, oldest first. Raise Corrupt if files are missing, for example after a VACUUM or a
    manual clean-up."""
    try:
        batches = [typed.convert(committable, StagedBatch) for committable in publication.committables]
    except msgspec.ValidationError as error:
        raise Corrupt(
            f"sink {context.sink}: checkpoint {publication.id} staged something that this sink does not write: {error}",
            expected="a committable of this sink",
            help="was the sink's kind changed while a checkpoint was pending? Change it back, and run once",
            reason="BAD_COMMITTABLE",
        ) from error
    files = all_files(batches)
    missing = missing_files(location, files)
    if missing:
        raise Corrupt(
            f"sink {context.sink}: {len(missing)} of {len(files)} files that checkpoint {publication.id} staged "
            f"in {location.url} are gone or changed, first {missing[0]!r}",
            expected="every staged file as the job wrote it, until it is published",
            help="put back the files that a VACUUM or a clean-up has removed, or roll back to an older checkpoint",
            reason=STAGED_FILES_GONE,
        )
    return batches


def stamp_of(publication: Publication, context: SinkContext) -> CommitStamp:
    """Return the metadata that a publication writes to the table's log with the rows."""
    faults = ("S5.through.before", "S5.through.after") if publication.direct else PUBLISHING
    floor = 0
    if publication.interval is not None:
        floor = publication.previous or 0
    return CommitStamp(
        app_id=context.app_id,
        id=publication.id,
        pipeline=context.pipeline,
        generation=publication.generation,
        attempt=publication.attempt,
        owner=owner_of(context.pipeline, context.sink, context.uid),
        floor=floor,
        direct=publication.direct,
        faults=faults,
    )


def published(location: Location, committed: Committed | None, rows: int | None) -> PublishedTable | None:
    """Return the result of a publication, for the coordinator."""
    if committed is None:
        return None
    return PublishedTable(uri=location.url, version=committed.version, log_hash=committed.log_hash, rows=rows)


def staged_result(batch: StagedBatch, rows: int) -> Prepared:
    """Return the result of `prepare`."""
    files = [*batch.files, *batch.deletes]
    return Prepared(msgspec.to_builtins(batch), rows, sum(file.size for file in files), len(files))


def _casts(changes: Iterable[Difference], table: Json) -> list[str]:
    """Return SQL that casts columns to the table's types."""
    types = {name: render(field["type"]) for name, field in columns(table).items()}
    return [f"CAST({change.column} AS {types[change.column]})" for change in changes if change.kind == "type"]
