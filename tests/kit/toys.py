"""A source and a sink in memory that follow the contracts of their base classes exactly.

A toy's DataFrame is a `ToyFrame`: a list of rows. Each row is (offset, tag); the tag is new for each read, like the
output of a stage that is not deterministic, so that rows of two attempts differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from tests.kit.weather import Weather
from tidegate import seams
from tidegate.connectors.schema.drift import SchemaPolicy, Survey
from tidegate.connectors.sink import (
    ExactlyOnceSink,
    Head,
    Prepared,
    Publication,
    RestorePlan,
    SinkContext,
    Staging,
    entry_folder,
)
from tidegate.connectors.source import Planned, Source, SourceContext, smallest_bound
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Amount, Drift, Json, PublishedTable, SourceSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "NO_SPARK",
    "DriftingToySource",
    "ToyCommit",
    "ToyFeed",
    "ToyFrame",
    "ToyIntervals",
    "ToySink",
    "ToySource",
    "ToyTable",
    "ToyTables",
]

Row = tuple[int, str]
NO_SPARK: Any = None
"""The session of toys: they need none."""


@dataclass
class ToyFrame:
    """Rows that pretend to be a DataFrame."""

    rows: list[Row]
    columns: ClassVar[tuple[str, ...]] = ("offset", "tag")
    sparkSession: ClassVar[Any] = None
    schema: ClassVar[Any] = SimpleNamespace(fields=())

    def localCheckpoint(self, eager: bool = True) -> ToyFrame:
        return self

    def limit(self, count: int) -> ToyFrame:
        return ToyFrame(self.rows[:count])


# -- source ------------------------------------------------------------------------------------------------


@dataclass
class ToyFeed:
    """The input of a toy source: offsets 1 to `available`, which may grow."""

    available: int = 0
    intervals: dict[Interval, list[int]] = field(default_factory=dict)
    """The offsets of each interval, for sources that read by interval. They may change."""
    weather: Weather = field(default_factory=Weather)


class ToySource(Source):
    """Offsets of a feed, at most `bound` per checkpoint. `padding` makes splits too long for a record."""

    kind: ClassVar[str] = "toy"
    unit = "rows"

    def __init__(self, feed: ToyFeed, bound: int = 3, padding: int = 0) -> None:
        self.feed = feed
        self.bound = bound
        self.padding = padding

    def describe(self) -> Json:
        return {"bound": self.bound}

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        self.feed.weather.pause(f"plan {context.source}")
        if self.feed.weather.mishap("plan", "lost"):
            raise Unavailable(f"source {context.source!r} does not answer")
        begin = start["at"] if start else 0
        end = min(self.feed.available, begin + (smallest_bound([self.bound, context.at_most]) or 1))
        splits = {"after": begin, "to": end, "padding": "x" * self.padding}
        return Planned(
            end={"at": end},
            splits=splits,
            is_empty=end == begin,
            has_more=end < self.feed.available,
            amount=end - begin,
        )

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        self.feed.weather.pause(f"verify {context.source}")
        if splits["to"] > self.feed.available:
            raise Invalid(f"source {context.source!r} ends at {self.feed.available}", expected=f"{splits['to']}")
        return Amount(rows=splits["to"] - splits["after"])

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        self.feed.weather.pause(f"read rows of {context.source}")
        if self.feed.weather.mishap("rows", "lost"):
            raise Unavailable(f"source {context.source!r} does not answer")
        tag = seams.new_id()
        frame: Any = ToyFrame([(offset, tag) for offset in range(splits["after"] + 1, splits["to"] + 1)])
        return frame  # type: ignore[no-any-return]


class DriftingToySource(ToySource):
    """A toy whose schema follows its input: a test says what each checkpoint finds."""

    schema_policy = SchemaPolicy(on_new_column="evolve", on_type="rescue")
    declared_schema = "id bigint, customer struct<name:string>"

    def __init__(self, feed: ToyFeed, bound: int = 3, padding: int = 0) -> None:
        super().__init__(feed, bound, padding)
        self.found: Drift | None = None

    def with_schema(self, schema: SourceSchema) -> Source:
        return self

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey:
        return Survey(self.found, is_clean=self.found is None)


class ToyIntervals(ToySource):
    """The offsets that a feed has for the run's data interval when the run is planned."""

    kind: ClassVar[str] = "toy-intervals"

    @property
    def by_interval(self) -> bool:
        return True

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        self.feed.weather.pause(f"plan {context.source}")
        if self.feed.weather.mishap("plan", "lost"):
            raise Unavailable(f"source {context.source!r} does not answer")
        assert context.interval is not None
        offsets = list(self.feed.intervals.get(context.interval, ()))
        splits = {"offsets": offsets, "padding": "x" * self.padding}
        return Planned(end=None, splits=splits, is_empty=not offsets)

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        self.feed.weather.pause(f"verify {context.source}")
        return Amount(rows=len(splits["offsets"]))

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        self.feed.weather.pause(f"read rows of {context.source}")
        if self.feed.weather.mishap("rows", "lost"):
            raise Unavailable(f"source {context.source!r} does not answer")
        tag = seams.new_id()
        frame: Any = ToyFrame([(offset, tag) for offset in splits["offsets"]])
        return frame  # type: ignore[no-any-return]


# -- sink --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToyCommit:
    """One version of a toy table. `files` are names of staged files; a foreign commit has no id."""

    app_id: str
    id: int | None
    files: tuple[str, ...]
    attempt: str = ""
    removed: tuple[str, ...] = ()
    """Files that are no longer part of the table from this version on."""
    interval: Interval | None = None
    floor: int = 0
    """A lower bound for `ToyTable.last` after this commit."""


@dataclass
class ToyTable:
    """A versioned table: version n is commits[n]. `files` also holds files that no commit names."""

    commits: list[ToyCommit] = field(default_factory=list)
    files: dict[str, list[Row]] = field(default_factory=dict)

    def last(self, app_id: str) -> int | None:
        """Return the last checkpoint that was published here, like Delta's txn version."""
        latest = next((commit for commit in reversed(self.commits) if commit.app_id == app_id), None)
        return None if latest is None or latest.id is None else max(latest.id, latest.floor)

    def version_of(self, id: int | None, app_id: str) -> int:
        """Return the version that the entry made; for None the version before the pipeline's first commit, or -1."""
        published = [(version, commit.id) for version, commit in enumerate(self.commits) if commit.app_id == app_id]
        if id is None:
            return published[0][0] - 1
        match = next((version for version, commit_id in published if commit_id == id), None)
        if match is None:
            raise Corrupt(f"checkpoint {id} is not on the table, later ones are", reason="LOG_CLEANED")
        return match

    def live(self, version: int | None = None) -> list[str]:
        """Return the files that a reader of a version sees, by default of the last one."""
        names: dict[str, None] = {}
        for commit in self.commits if version is None else self.commits[: version + 1]:
            for name in commit.removed:
                names.pop(name, None)
            names |= dict.fromkeys(commit.files)
        return list(names)

    def rows(self, commit: ToyCommit) -> list[Row]:
        """Return the rows that a commit added. KeyError if one of its files is missing."""
        return [row for name in commit.files for row in self.files[name]]


@dataclass
class ToyTables:
    """All targets of a test."""

    weather: Weather = field(default_factory=Weather)
    tables: dict[str, ToyTable] = field(default_factory=dict)
    watch: Callable[[str, ToyCommit], None] = lambda table, commit: None
    """Called for each commit of a sink."""

    def __getitem__(self, name: str) -> ToyTable:
        return self.tables.setdefault(name, ToyTable())


class ToySink(ExactlyOnceSink):
    """Appends to a toy table: one commit per checkpoint, by compare-and-swap on its version. In an interval pipeline
    the commit removes the interval's earlier rows."""

    kind: ClassVar[str] = "toy"
    can_publish_directly = True

    def __init__(self, name: str, tables: ToyTables, skip: int = 0) -> None:
        self.name = name
        self.tables = tables
        self.skip = skip
        """Drops rows whose offset is divisible by this, so that some checkpoints publish nothing here."""

    def target(self, place: Place) -> str:
        return f"toy:{self.name}"

    def describe(self) -> Json:
        return {"name": self.name, "skip": self.skip}

    def check(self, context: SinkContext) -> None:
        self._ask("check", "lost")

    def prepare(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        """One file per row, so that an attempt can die or overlap another one in the middle."""
        toy_frame: Any = frame
        names = []
        for offset, tag in toy_frame.rows:
            if self.skip and offset % self.skip == 0:
                continue
            self._ask(f"stage {offset} on", "lost")
            key = f"{staging.interval.key}/" if staging.interval is not None else ""
            names.append(f"{staging.folder(context)}/{key}{offset}")
            self._table.files[names[-1]] = [(offset, tag)]
        committable = {"files": names} if names or staging.interval is not None else None
        return Prepared(committable=committable, rows=len(names), files=len(names))

    def head(self, context: SinkContext) -> Head:
        self._ask("head of", "lost")
        commits = self._table.commits
        return Head(version=len(commits) - 1 if commits else None, last_entry=self._table.last(context.app_id))

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        names = tuple(name for committable in publication.committables for name in committable["files"])
        if missing := [name for name in names if name not in self._table.files]:
            problem = f"{len(missing)} files that checkpoint {publication.id} staged are gone"
            raise Corrupt(problem, reason="STAGED_FILES_GONE")
        removed = self._replaced(publication, head)
        floor = (publication.previous or 0) if publication.interval is not None else 0
        seams.fault("S5.through.before" if publication.direct else "S10.publish.before")
        mishap = self._ask(f"commit {publication.id} on", "lost unclear")
        commits = self._table.commits
        if (len(commits) - 1 if commits else None) != head.version:
            return None
        version = len(commits)
        attempt, interval = publication.attempt, publication.interval
        commits.append(ToyCommit(context.app_id, publication.id, names, attempt, removed, interval, floor))
        self.tables.watch(self.name, commits[version])
        if mishap:
            raise Unavailable(f"the answer of {self.name!r} was lost")
        seams.fault("S5.through.after" if publication.direct else "S10.publish.after")
        return self._published(version)

    def _replaced(self, publication: Publication, head: Head) -> tuple[str, ...]:
        """Return the live files of the interval; Corrupt if they are not the published ones."""
        if publication.interval is None or head.version is None:
            return ()
        live = [name for name in self._table.live(head.version) if f"/{publication.interval.key}/" in name]
        expected = publication.replaces[1]["files"] if publication.replaces is not None else []
        if sorted(live) != sorted(expected):
            raise Corrupt(f"interval {publication.interval} shows {live}, not {expected}", reason="REWRITTEN")
        return tuple(live)

    def interval_problems(self) -> list[str]:
        return []

    def trace(self, committables: Sequence[Json]) -> Json:
        return {"files": [name for committable in committables for name in committable["files"]]}

    def has_publication(self, publication: Publication, head: Head, context: SinkContext) -> bool:
        self._ask(f"look for {publication.id} on", "lost")
        upto = 0 if head.version is None else head.version + 1
        return any((c.app_id, c.id) == (context.app_id, publication.id) for c in self._table.commits[:upto])

    def locate(self, id: int, context: SinkContext) -> PublishedTable | None:
        self._ask(f"locate {id} on", "lost")
        for version, commit in enumerate(self._table.commits):
            if (commit.app_id, commit.id) == (context.app_id, id):
                return self._published(version)
        return None

    def has_skipped(self, id: int, context: SinkContext) -> bool:
        self._ask(f"look for {id} on", "lost")
        ids = [commit.id for commit in self._table.commits if commit.app_id == context.app_id and commit.id]
        return bool(ids) and id not in ids and ids[0] < id < ids[-1]

    def missing_files(self, committables: Sequence[Json], context: SinkContext) -> list[str]:
        staged = [name for committable in committables for name in committable["files"]]
        return [name for name in staged if name not in self._table.files]

    def restore_plan(
        self, to: int | None, known: PublishedTable | None, committables: Sequence[Json], context: SinkContext
    ) -> RestorePlan:
        self._ask("look back on", "lost")
        commits = self._table.commits
        version = len(commits) - 1 if commits else None
        last = self._table.last(context.app_id)
        if not commits or (to is not None and (last is None or last < to)):
            return RestorePlan(exists=bool(commits), not_published_yet=to is not None, version=version)
        if last is None:
            return RestorePlan(exists=False, version=version)  # others have written there, and this pipeline never has
        then = self._table.version_of(to, context.app_id)
        missing = [name for name in self._table.live(then) if name not in self._table.files]
        ours = {context.app_id, replace(context, direct=True).app_id}
        foreign = tuple(f"version {n}" for n, c in enumerate(commits) if n > then and c.app_id not in ours)
        target = self._published(then) if then >= 0 else None
        return RestorePlan(target_version=target, version=version, foreign_commits=foreign, problems=tuple(missing))

    def restore(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        restored = publication.restore
        assert restored is not None
        upto = None if head.version is None else self._table.live(head.version)
        then = self._table.live(restored.to.version) if restored.to is not None else []
        if restored.how == "keep":
            then = upto or []
        then = [*then, *(name for committable in publication.committables for name in committable["files"])]
        if missing := [name for name in then if name not in self._table.files]:
            raise Corrupt(f"{len(missing)} files of an older version are gone", reason="VERSION_FILES_GONE")
        seams.fault("S10.publish.before")
        mishap = self._ask(f"commit {publication.id} on", "lost unclear")
        commits = self._table.commits
        if (len(commits) - 1 if commits else None) != head.version:
            return None
        removed = tuple(name for name in upto or [] if name not in then)
        restored_files = tuple(name for name in then if name not in (upto or []))
        commits.append(ToyCommit(context.app_id, publication.id, restored_files, publication.attempt, removed))
        self.tables.watch(self.name, commits[-1])
        if mishap:
            raise Unavailable(f"the answer of {self.name!r} was lost")
        seams.fault("S10.publish.after")
        return self._published(len(commits) - 1)

    def attempts(self, id: int, context: SinkContext) -> list[str]:
        self._ask(f"attempts for {id} on", "lost")
        return sorted({name.split("/")[3] for name in self._staged(f"{entry_folder(context, id)}/")})

    def discard(self, context: SinkContext, staging: Staging) -> None:
        for name in list(self._staged(f"{staging.folder(context)}/")):
            self._ask(f"discard {name} of", "lost")
            self._table.files.pop(name, None)

    def retire(self, context: SinkContext, staging: Staging) -> None:
        """Do nothing: the table names all staged files."""

    @property
    def _table(self) -> ToyTable:
        return self.tables[self.name]

    def _staged(self, prefix: str) -> Iterator[str]:
        return (name for name in list(self._table.files) if name.startswith(prefix))  # other threads write

    def _ask(self, what: str, possible: str) -> str:
        """Let other processes run, then let the weather decide. 'lost' is raised here; callers handle others."""
        self.tables.weather.pause(f"{what} {self.name}")
        mishap = self.tables.weather.mishap(what.split()[0], possible)
        if mishap == "lost":
            raise Unavailable(f"table {self.name!r} does not answer")
        return mishap

    def _published(self, version: int) -> PublishedTable:
        return PublishedTable(uri=f"toy:{self.name}", version=version, log_hash=f"{version}")
