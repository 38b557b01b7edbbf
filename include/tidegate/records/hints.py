"""Records that are hints: the next one replaces them. If one is lost, something is slower or not shown, never wrong."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec

from tidegate.records.base import Id, Json, Record, Sha, Struct
from tidegate.records.measures import Amount

__all__ = [
    "Declined",
    "HookProgress",
    "JobNote",
    "LatestHint",
    "Rank",
    "RetainedCount",
    "SampledRows",
    "Samples",
    "SeenTable",
    "SeenTables",
    "Telling",
    "Tried",
    "Trouble",
    "WaitingRun",
]


class LatestHint(Record, frozen=True, kw_only=True):
    """All entries up to `id` are decided, and published if completed. An old value is correct, only slower."""

    title: ClassVar[str] = "latest.json"

    id: Id


class Tried(Record, frozen=True, kw_only=True):
    """Object stores that passed the test of conditional puts. If the hint is lost, they are tested again."""

    title: ClassVar[str] = "tried.json"

    stores: list[str]


class SeenTable(Struct, frozen=True, kw_only=True):
    """A table's log as a publisher saw it. It is used only while the store has the same commit at this version."""

    url: str
    version: Annotated[int, msgspec.Meta(ge=0)]
    log_hash: Sha
    tag: str
    """The store's tag of the commit's file."""
    table_id: str
    columns: Json
    partition_by: list[str] = []
    properties: dict[str, str] = {}
    writer: int
    features: list[str] = []
    since: Annotated[int, msgspec.Meta(ge=0)]
    """The version of the last Delta log checkpoint."""
    transactions: dict[str, int | None] = {}


class SeenTables(Record, frozen=True, kw_only=True):
    """The logs of tables on object stores, after the last publication. If the hint is lost, they are read again."""

    title: ClassVar[str] = "tables.json"

    tables: list[SeenTable]


class RetainedCount(Record, frozen=True, kw_only=True):
    """The number of entries from `low` to `upto`, all decided, that are completed and not rolled back. An old value is
    correct, only slower."""

    title: ClassVar[str] = "kept.json"

    low: Id
    upto: Id
    completed: Annotated[int, msgspec.Meta(ge=0)]
    rollback: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The last rollback at the time. The entries that it undid are not counted."""
    reached: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The highest `low` before a rollback lowered it. Below it, ids may be missing."""

    def flaw(self) -> str | None:
        if not 0 <= self.completed <= self.upto - self.low + 1:
            return f"{self.completed} of the entries {self.low} to {self.upto} cannot be completed"
        return None


class Trouble(Record, frozen=True, kw_only=True):
    """The last error of a run that could not plan or publish, or whose job is being retried.

    A hint, like latest.json: the next one replaces it, and losing it does no harm.
    """

    title: ClassVar[str] = "trouble.json"

    run: str
    step: str
    """The step that failed: a task's id, or a step of `tidegate run`."""
    entry: Id | None
    """The run's checkpoint, if it had one."""
    after: int
    """The last entry of the log at the time. A later entry supersedes this error."""
    kind: str
    reason: str
    what: str
    expected: str
    help: str
    unplanned: int = 0
    """The number of consecutive runs that ended without planning a checkpoint."""
    quotes_rows: bool = True
    """False if no text quotes the value of a row. Versions that quoted some did not record it."""


class Declined(Record, frozen=True, kw_only=True):
    """An error in the pipeline's declaration that a job has found. No run makes a checkpoint until something changes.

    A hint: if it is lost, the next checkpoint's job finds the error again.
    """

    title: ClassVar[str] = "declined.json"

    id: Id
    """The checkpoint whose job found the error, and that is aborted for it."""
    declaration: str
    """Identifies everything that the error may depend on and that a run can see without Spark."""
    reason: str
    what: str
    expected: str
    help: str
    notified: bool = False
    """True if the pipeline's hooks were notified of it."""


class JobNote(Record, frozen=True, kw_only=True):
    """The progress of an attempt at a job, as of `created`.

    A hint for display: the next one replaces it, and losing it does no harm.
    """

    title: ClassVar[str] = "progress"

    id: Id
    job: str
    started: str
    step: str
    """The current step, or "" between steps."""
    current_step_seconds: float = msgspec.field(name="step_s")
    """How long the current step had taken."""
    step_seconds: dict[str, float] = msgspec.field(name="seconds")
    """How long each finished step took."""
    read: dict[str, Amount] = msgspec.field(name="taken")
    """The amount it reads, by source."""
    tasks_done: int | None = None
    """Finished tasks of the running Spark query. Like the next two, None if no query runs or Spark does not report
    it."""
    tasks: int | None = None
    """All tasks of that query so far."""
    bytes_read: int | None = None
    """Bytes that they have read."""


class SampledRows(Struct, frozen=True, kw_only=True):
    """A few rows of a stream, as text. They are arbitrary ones, not the first or last."""

    columns: list[str] = []
    rows: list[list[str | None]] = []
    """The values of each row, in the order of `columns`. Long values are cut."""
    hidden: list[str] = []
    """Columns that the settings exclude from samples."""
    left_out: int = 0
    """The number of further columns of the stream."""
    problem: str = ""
    """Why the sample is missing."""


class Samples(Record, frozen=True, kw_only=True):
    """checkpoints/<id>/samples/<job>.json: samples of the output of a job's stages, gates and operators.

    A hint for people: the attempt whose ack counts writes it after its ack, and no record names it. It is in the
    entry's folder, and is deleted with it.
    """

    title: ClassVar[str] = "samples"

    id: Id
    job: str
    streams: dict[str, SampledRows]


Rank: TypeAlias = Literal["savepoint", "manual", "periodic"]
"""How urgent a checkpoint is, the most urgent first."""


class WaitingRun(Record, frozen=True, kw_only=True):
    """A run could not plan its checkpoint yet, and retries. The file's age says when it last did.

    A hint: if it is lost, or its run is dead, another run goes first, or waits a little (protocol/turns.py).
    """

    title: ClassVar[str] = "waiting"

    run: str
    rank: Rank


class Telling(Record, frozen=True, kw_only=True):
    """Somebody is telling people of broken promises now: nobody else does. It is deleted afterwards."""

    title: ClassVar[str] = "telling.json"


class HookProgress(Record, frozen=True, kw_only=True):
    """The last events of which the pipeline's hooks and notifiers were told. If it is lost, they are told again."""

    title: ClassVar[str] = "told.json"

    id: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The entry of the last suspension, or 0."""
    settled: dict[str, Id] = {}
    """By hook, the last checkpoint whose outcome it was notified of."""
    broken_promises: list[str] = []
    """The sinks of which notifiers were told that their promise is broken, and not yet that it is kept again."""
