"""Every record of the ledger, written once and never changed (docs/protocol.md, section 1).

    pipeline.json            PipelineRecord   uid of the pipeline, generated at its first start
    forking.json             PipelineRecord   the same, while the pipeline is being forked from another one
    checkpoints/<id>/
      plan.json              Plan             fixes the input of checkpoint <id>
      acks/<job>.json        Ack              a job's only effect: names everything that it staged
      overtaken/<job>.json   Overtaken        the checkpoint went past the job, which was still busy with another
      manifest-<sha>.json    Manifest         all that the decision will make true, self-contained
      decision.json          Decision         THE COMMIT POINT: completed or aborted
      published.json         Published        a hint for readers, never the truth
      retired.json           Retired          retention's tombstone: this entry may be deleted
      holds/<gate>.json      Answer           the answer of a person, or of the time limit, to a verdict that holds
      samples/<job>.json     Samples          a hint: a few rows of each stream of the job, for people to look at
    asked/<gate>/<number>.json Request        a person's request about rows in the gate's quarantine
    pins/<owner>.json        Pin              spares a checkpoint that somebody refers to from retention
    intervals/<key>/<id>.json Filled          an interval pipeline's checkpoint <id> completed this interval
    beginnings/<source>/<id>.json Beginning where a "from now on" source begins, whatever becomes of <id>
    discarded.json           Discarded        the last checkpoint's tombstone, if the pipeline was cancelled for good
    latest.json              LatestHint       a hint: an entry up to which everything is decided and published
    kept.json                RetainedCount    a hint: the number of completed entries in a range of ids
    audit/<time>-<attempt>.json Act           an action that somebody took on the pages; .done.json: Acted
    trouble.json             Trouble          a hint: the last error that no checkpoint records
    progress/<job>.json      JobNote          a hint: what an attempt at a job is doing
    told.json                Told             a hint: what the pipeline's hooks were notified of
    waiting/<sha of run>.json WaitingRun      a hint: a run waits for a checkpoint, and how urgent it is
    tried.json               Tried            a hint: the stores that were shown to keep conditional puts
    declined.json            Declined         a hint: why the code cannot make a checkpoint, found by a job
    tables.json              SeenTables       a hint: the logs of tables on object stores, as they were seen last
    lines/<name>/line.json   BackfillRecord   a backfill; its own ledger is in a folder beside it
    lines/<name>/discarded.json BackfillDiscarded its tombstone
    lines/<name>/compared.json BackfillCompared a hint: what a swap would have changed when somebody last looked
    runs/<sha of run>/<id>   (empty)          the checkpoints of a run; never deleted
    blobs/<id>-<sha>.json    (side files)     long lists of the records above, named by their hash

`format` comes first. An unknown field is an error and not ignored: it may matter to a newer tidegate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from tidegate.records.interval import Interval

__all__ = [
    "FORMAT",
    "KINDS",
    "RENAMED_PARAMETERS",
    "REQUEST",
    "STATES",
    "Act",
    "Acted",
    "Amount",
    "Blob",
    "Claimed",
    "ComparedTable",
    "Copy",
    "Handle",
    "Hold",
    "HookProgress",
    "Id",
    "InFlight",
    "JobNote",
    "JobStats",
    "Json",
    "Kind",
    "Origin",
    "Overtaken",
    "Overtaking",
    "Pace",
    "Payload",
    "PipelineRecord",
    "Rank",
    "Record",
    "RecordedRule",
    "SampledRows",
    "Samples",
    "Sha",
    "SourceChange",
    "SparkWork",
    "State",
    "StepStats",
    "Struct",
    "SwappedBackfill",
    "Timed",
    "Trouble",
    "Verdict",
    "WaitingRun",
    "sum_of",
    "work_of",
]


FORMAT = 1
"""The record format that this version writes, and the only one that it reads."""

Json = dict[str, Any]
"""A JSON object that belongs to a source or a sink: opaque to everyone else."""

Id = Annotated[int, msgspec.Meta(ge=1)]
"""A checkpoint: its position in the log."""

Sha = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A sha256 in hex. Checked, because some are parts of file names."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a record."""


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole record: one JSON file."""

    title: ClassVar[str] = "record"

    format: int = FORMAT
    attempt: str
    """Fresh random id of the writer: distinguishes its own write from another one's after an unclear answer."""
    created: str
    """Wall-clock time in UTC, for display. No decision depends on it."""

    def flaw(self) -> str | None:
        """Return a contradiction between fields that are valid one by one; None if there is none. Called after
        decoding."""
        return None


class Blob(Struct, frozen=True, kw_only=True):
    """A long list in a file next to its record: where it is, and its expected hash."""

    path: Annotated[str, msgspec.Meta(pattern="^blobs/[^/]+$")]
    """Below the ledger. Retention deletes by this path, so it can name nothing but a side file."""
    sha: Sha
    size: Annotated[int, msgspec.Meta(ge=0)]


class Payload(Struct, frozen=True, kw_only=True):
    """A JSON object of a source or sink: inline if it is short, else in a file that is named by hash."""

    data: Json | None = None
    blob: Blob | None = None


State: TypeAlias = Literal[
    "completed",
    "aborted",
    "open",
    "held",
    "rollback",
    "rolled back",
    "swap",
    "replaced",
    "suspended",
    "resumed",
    "stopped",
    "cancelled",
    "source moved",
    "source dropped",
    "source accepted",
]
Kind: TypeAlias = Literal["scheduled", "manual", "control", "restart", "fork"]
ShownKind: TypeAlias = Literal["scheduled", "manual", "control", "restart", "swap", "fork"]
"""A swap is a restart in its plan, and is shown as what it is."""

STATES: Final[tuple[str, ...]] = get_args(State)
KINDS: Final[tuple[str, ...]] = get_args(ShownKind)


class Handle(Struct, frozen=True, kw_only=True):
    """Names one ack: the entry that it lies in and the hash of its bytes."""

    entry: Id
    sha: Sha


class Overtaking(Struct, frozen=True, kw_only=True):
    """The jobs that the checkpoint may go past while they are busy with an earlier one."""

    jobs: list[str]
    after_s: float
    """How long it waits for them first."""


class InFlight(Struct, frozen=True, kw_only=True):
    """Rows that one job has sent and another one has not read yet."""

    job: str
    """The sender."""
    ack: Handle
    channels: dict[str, Payload]
    """Those of its channels that the other job reads."""


class Overtaken(Record, frozen=True, kw_only=True):
    """Checkpoint `id` does not wait for `job`: the job's last ack counts, and the input that it has not read is in
    flight."""

    title: ClassVar[str] = "overtaken"

    id: Id
    job: str
    busy_with: Id | None
    """The checkpoint that it was working on. None: a job upstream of it was overtaken."""


class Origin(Struct, frozen=True, kw_only=True):
    """The checkpoint that a pipeline was forked from. Its own log begins with it, under the same number."""

    pipeline: str
    uid: str
    entry: Id
    manifest: Sha
    by: str
    note: str = ""


class Copy(Record, frozen=True, kw_only=True):
    """Describes a folder that holds the copy of a savepoint."""

    title: ClassVar[str] = "savepoint.json"

    name: str
    origin: Origin
    files: Payload
    """The size and sha256 of every other file: {"files": {path: [size, sha256]}}."""
    states: dict[str, Payload] = {}
    """States that the folder holds as one file, instead of the files that the checkpoint's own records name."""


class Claimed(Record, frozen=True, kw_only=True):
    """Claims a folder: the pipeline with this uid owns it, and removes it."""

    title: ClassVar[str] = "claimed.json"

    uid: str


class PipelineRecord(Record, frozen=True, kw_only=True):
    """Identity of a pipeline, generated at its first start. To every table, a new uid is a new pipeline."""

    title: ClassVar[str] = "pipeline.json"

    uid: str
    name: str
    origin: Origin | None = None


LINE_RUN: Final = "line:"
"""Begins the run under which a line is swapped in."""


class BackfillRecord(Record, frozen=True, kw_only=True):
    """lines/<name>/line.json: a line, which recomputes what the pipeline has made (docs/protocol.md, section 14)."""

    title: ClassVar[str] = "line.json"

    name: str
    uid: str
    """Names the one run under which the line is swapped in, whoever does that and however often."""
    origin: Annotated[int, msgspec.Meta(ge=0)]
    """The checkpoint that it was forked from; 0: the beginning."""
    manifest: Sha | None
    """The manifest of that checkpoint."""
    cuts: Literal["own", "recorded"] = "own"
    """recorded: one checkpoint for each live one, with exactly its ranges. own: as large as the sources' bounds
    allow."""
    in_place: dict[str, list[int]] = {}
    """By gate, the requests whose rows it lets out where they were held back."""
    by: str
    note: str = ""

    @property
    def run(self) -> str:
        return f"{LINE_RUN}{self.uid}"

    def flaw(self) -> str | None:
        return None if (self.origin == 0) == (self.manifest is None) else "a checkpoint has a manifest"


class BackfillDiscarded(Record, frozen=True, kw_only=True):
    """lines/<name>/discarded.json: the line's tombstone. It stays, since no other line may have the name."""

    title: ClassVar[str] = "discarded.json"

    name: str
    by: str


class ComparedTable(Struct, frozen=True, kw_only=True):
    """One table, before and after the swap."""

    rows_now: int
    rows_after: int
    rows_removed: int = msgspec.field(name="taken_away")
    """Rows that the swap removes. A row that it changes counts as removed and as added."""
    rows_added: int = msgspec.field(name="brought")


class BackfillCompared(Record, frozen=True, kw_only=True):
    """lines/<name>/compared.json: what a swap of the line would have changed, as somebody has looked.

    A hint for people: the next one replaces it, and losing it does no harm.
    """

    title: ClassVar[str] = "compared.json"

    head: Annotated[int, msgspec.Meta(ge=0)]
    """The line's last completed checkpoint by then. If there is a later one, this is out of date."""
    tables: dict[str, ComparedTable]
    unchanged_sinks: list[str] = msgspec.field(default_factory=list, name="left_out")
    """Sinks that stay as they are."""
    tables_with_other_writers: list[str] = msgspec.field(default_factory=list, name="shared")
    """Tables that others have written to since: whoever swaps says what becomes of that."""
    problems: list[str] = []
    """Why a swap would have been refused."""


class Timed(Struct, frozen=True, kw_only=True):
    """A completed checkpoint: the amount that it read of the source, and its duration by its writers' clocks."""

    id: Id
    amount: int
    seconds: float


class Pace(Struct, frozen=True, kw_only=True):
    """One source's pace in one plan."""

    unit: str
    """The unit of amounts: bytes or rows."""
    at_most: int | None
    """None: nothing is known yet, so only the source's own bounds apply."""
    planned: int = msgspec.field(name="taken")
    """The amount that the plan reads."""
    target_s: float
    """How long a checkpoint should take."""
    fixed_s: float = 0.0
    """How long it takes regardless of its input, as far as that was ever observed."""
    based_on: list[Timed] = msgspec.field(default_factory=list, name="seen")
    """The checkpoints on which the pace is based, oldest first."""
    why: str
    """For display."""


class Amount(Struct, frozen=True, kw_only=True):
    """An amount of data. None: not known."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """Return the total. A figure that one amount does not know is not known of the total."""
    parts = list(amounts)
    return Amount(
        rows=_sum(part.rows for part in parts),
        bytes=_sum(part.bytes for part in parts),
        files=_sum(part.files for part in parts),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


class SparkWork(Struct, frozen=True, kw_only=True):
    """What Spark did for a part of a job (spark/work.py). None: not known, because of how Spark is reached."""

    queries: int | None = None
    """Requests to compute something, each of which Spark plans: a write, a count, a frame that is computed once."""
    query_s: float | None = None
    """How long they took. Those that run at the same time count each; so it is with all durations here."""
    analyses: int | None = None
    """Requests to look at a plan without computing it, such as for the columns of a frame: round trips to a server."""
    analysis_s: float | None = None
    planning_s: float | None = None
    """The part of `query_s` in which Spark analysed, optimized and planned."""
    jobs: int | None = None
    stages: int | None = None
    tasks: int | None = None
    running_s: float | None = None
    """The part of `query_s` in which a Spark job of the query ran: its tasks at work, and scheduling."""
    task_s: float | None = None
    """The duration of all tasks together."""
    slowest_task_s: float | None = None
    """That of the slowest one: many times the average means that the rows are unevenly spread."""
    spilled_bytes: int | None = None
    """Written to disks by tasks whose memory was too small."""
    read_bytes: int | None = None
    """From files and shuffles; so is what was written."""
    written_bytes: int | None = None


def work_of(parts: Iterable[SparkWork | None]) -> SparkWork:
    """Return the total. A figure that one part does not know is not known of the total, nor is that of no parts."""
    known = [part or SparkWork() for part in parts]
    if not known:
        return SparkWork()
    totals: dict[str, Any] = {}
    for field in SparkWork.__struct_fields__:
        figures = [getattr(part, field) for part in known]
        total = None if None in figures else max(figures) if field == "slowest_task_s" else sum(figures)
        totals[field] = round(total, 3) if isinstance(total, float) else total
    return SparkWork(**totals)


class Computed(Struct, frozen=True, kw_only=True):
    """How an operator was computed."""

    workers: bool = False
    """By its kernel, in workers: in one query if they read and write its state's files themselves."""
    spark: bool = False
    """By Spark: it brings rows to the workers and takes them, or computes all of it, in several queries, each planned
    and started after the other."""
    why: list[str] = []
    """Why not by workers alone, as far as there is a reason beside the kind of the operator."""
    spilled: int = 0
    """The bytes that workers have written to local disk, because memory could not hold them."""
    row_groups_read: int = 0
    """The row groups of its state's files in which workers looked for rows."""
    row_groups: int = 0
    """All row groups of these files: the statistics of the others say that nothing in them is looked for. One that
    several workers came upon counts for each."""

    @property
    def text(self) -> str:
        """The same for people."""
        ways = " and ".join(name for name, used in (("workers", self.workers), ("Spark", self.spark)) if used)
        read = f", read {self.row_groups_read:,} of {self.row_groups:,} row groups" if self.row_groups else ""
        spilled = f", {max(self.spilled / 1e6, 0.1):,.1f} MB spilled to disk" if self.spilled else ""
        return f"{ways}{read}{spilled}: {'; '.join(self.why)}" if self.why else f"{ways}{read}{spilled}"


class StepStats(Struct, frozen=True, kw_only=True):
    """A step of a job, in the order in which they were taken. A step that was taken twice is there twice."""

    name: str
    after_s: float
    """When it began, from the start of the attempt."""
    seconds: float
    spark: SparkWork | None = None
    computed: Computed | None = None
    """For the step of an operator that had something to do."""


class JobStats(Struct, frozen=True, kw_only=True):
    """Measurements that a job took of itself. They are shown, and no decision depends on them."""

    started: str = ""
    """The start of the attempt, by the clock of its machine. Empty: written by a version that did not record it."""
    seconds: dict[str, float] = {}
    """The duration of each step, by name."""
    steps: list[StepStats] = []
    """Each step by itself. Empty: written by a version that did not record them."""
    between_steps: SparkWork | None = msgspec.field(default=None, name="between")
    """What Spark did outside of all steps."""
    aligned_s: float | None = None
    sync_s: float | None = None
    async_s: float | None = None
    read: dict[str, Amount] = msgspec.field(default_factory=dict, name="taken")
    """The amount read, by source."""
    received: dict[str, Amount] = {}
    """The amount read from channels of other jobs, by stream."""
    sent: dict[str, Amount] = {}
    """The amount written to channels for other jobs, by stream."""
    processed: Amount | None = None
    """The part of `received` that was in flight: sent in older checkpoints."""
    rows: dict[str, int] = {}
    """The number of rows staged, by sink; bytes and files likewise."""
    bytes: dict[str, int] = {}
    files: dict[str, int] = {}
    watermarks: dict[str, str] = {}
    """The watermarks, by source and operator."""
    idle: list[str] = []
    """Idle sources, for which event time did not wait."""
    counts: dict[str, dict[str, int]] = {}
    """Counters of operators, such as late rows."""

    @property
    def spark(self) -> SparkWork:
        """What Spark did in all."""
        return work_of([*(step.spark for step in self.steps), self.between_steps]) if self.steps else SparkWork()

    def spark_of(self, *prefixes: str) -> SparkWork:
        """Return what Spark did in the steps whose names begin with one of these prefixes, such as `state totals`."""
        return work_of(step.spark for step in self.steps if step.name.startswith(prefixes))


class RecordedRule(Struct, frozen=True, kw_only=True):
    """A rule of a gate that failed, and the consequence."""

    rule: str
    policy: Literal["abort", "hold", "quarantine", "warn"]
    severity: str
    rows: int | None
    """The number of rows that broke it; None if the rule is not about rows."""
    why: str


class Hold(Struct, frozen=True, kw_only=True):
    """The time that a verdict waits for a person, and the answer that counts if nobody gives one."""

    limit_s: float | None
    default: Literal["approve", "reject"]


class LateBehind(Struct, frozen=True, kw_only=True):
    """An operator behind a gate that takes no row that comes too late, or has no time: see `Lateness`."""

    operator: str
    what: str
    """What it is called."""
    column: str | None = None
    """Where its rows have their time; None: nothing says so."""
    lasts: int = 1
    slide: int = 0
    allowed: int = 0
    stream: str = ""
    """The stream that it takes; "": recorded before this was."""
    stages: list[str] = []
    """The stages between the gate and that stream: they may make the time anew."""


class Verdict(Struct, frozen=True, kw_only=True):
    """A gate's judgement of exactly the rows that the ack names.

    With outcome `abort` the checkpoint cannot complete; with `hold` it cannot complete before somebody approves.
    """

    outcome: Literal["pass", "warn", "quarantine", "hold", "abort"]
    rows: int
    quarantined: int
    released: int = 0
    """Rows released from quarantine that continued with those that passed."""
    stays: dict[str, int] = {}
    """Rows that were to be released and stay in quarantine, by the reason: an operator behind would have lost them."""
    behind: list[LateBehind] = []
    """The operators behind that take no row which comes too late."""
    hold: Hold | None = None
    why: str = ""
    """The cause of the outcome other than its rules."""
    broken: list[RecordedRule]
    policy: Json
    results: Payload
    """The full findings, for display: for expectations, the result of Great Expectations itself."""
    rows_hash: str = ""
    """Of one that holds: a hash of the judged rows as a multiset. Empty: it is not known."""


class Position(Struct, frozen=True, kw_only=True):
    """The point up to which a source has been read. Only the source interprets `at`; None is the beginning."""

    kind: str
    at: Json | None


class Unread(Struct, frozen=True, kw_only=True):
    """Input that exists at a source, and that no run will ever read by itself."""

    count: int
    what: str
    """The number, the reason, and a few names."""
    help: str
    """How to have it read after all, or how to get rid of it."""


class Lag(Struct, frozen=True, kw_only=True):
    """How much input waits at a source after a plan's range, as far as the source can tell without reading it. None: it
    cannot tell. What it does not count one by one, it estimates from a part."""

    rows: int | None = None
    """At most: a source may count what turns out to be no rows."""
    bytes: int | None = None
    files: int | None = None
    seconds: float | None = None
    """The age of the first of them, by the source's own times. None: unknown, or there are none."""

    @property
    def waits(self) -> bool:
        """True: there is some."""
        return bool(self.rows or self.bytes or self.files)


class Range(Struct, frozen=True, kw_only=True):
    """One source's part of a plan: from `start` (exclusive) to `end` (inclusive), and the input between them."""

    kind: str
    start: Json | None
    end: Json | None
    splits: Payload
    """The input to read, with fingerprints: enough to read the same rows again, or to notice that this is
    impossible."""
    empty: bool
    """True: there is nothing new; a checkpoint may still be planned."""
    more: bool = False
    """True: a bound cut this range short, and more input is already waiting."""
    summary: str = ""
    """For display: "3 of 9 files, 1.2 MB"."""
    unread: Unread | None = None
    """The input that the source has skipped for good, as of this plan."""
    lag: Lag | None = None
    """How much input waits after this range. None: the source cannot tell at all."""
    pace: Pace | None = None
    """For a source whose bound follows from the duration of checkpoints."""

    @property
    def is_exhausted(self) -> bool:
        """True: the source was asked, and had nothing new."""
        return self.empty and not self.more

    @property
    def stands(self) -> bool:
        """True: nothing is read of the source, whatever it has. It stays where it was."""
        return self.empty and self.more and self.splits.data == {}


class PublishedTable(Struct, frozen=True, kw_only=True):
    """The state of a table right after this checkpoint was published on it."""

    uri: str
    version: int
    """The version that readers can ask for. In a target without versions: the number of the checkpoint."""
    log_hash: str
    """The hash of that version's commit. Empty: the target is no Delta table, so nobody can read it as of then."""
    rows: int | None = None

    @property
    def is_delta(self) -> bool:
        """True: it is a version of a Delta table."""
        return bool(self.log_hash)

    @property
    def shown_version(self) -> str:
        """What the table shows, in a word: its version, or the last checkpoint that the target was given."""
        return f"version {self.version}" if self.is_delta else f"checkpoint {self.version}"


class SourceChange(Struct, frozen=True, kw_only=True):
    """From here on the position of source `name` belongs to source `to`; None: to nobody any more."""

    name: str
    to: str | None
    position: Json | None = None
    """For a source that is read on from another system by right, and is called as before: its position there."""


class Control(Struct, frozen=True, kw_only=True):
    """An action of a person, or of a rule, with a place of its own among the checkpoints."""

    action: Literal["suspend", "resume", "stop", "cancel", "move source", "drop source", "accept source"]
    by: str
    reason: str = ""
    source: SourceChange | None = None
    """For a source that is moved, dropped, or read on from another system."""
    final: bool = False
    """For a cancellation: it is for good. No entry follows it, and every checkpoint without a name is removed."""
    quarantine_all: bool = msgspec.field(default=False, name="set_aside")
    """For resume: the next checkpoint quarantines rows that a gate would hold again."""


class Restored(Struct, frozen=True, kw_only=True):
    """The effect of a rollback on one table."""

    how: Literal["restore", "discard", "retract", "keep"]
    """restore: back to the version, unless others have committed since. discard: back to it, whatever others have
    committed. retract: take back only this pipeline's own rows. keep: leave the rows as they are."""
    to: PublishedTable | None
    """The state of the table as of the target. None: the table was created later, and becomes empty."""


class SwappedBackfill(Struct, frozen=True, kw_only=True):
    """The line that a swap brings in (docs/protocol.md, section 14).

    It has replayed all input from the rollback's target to the plan's base, the pipeline's last checkpoint until then.
    """

    name: str
    uid: str
    head: Id
    """The line's last checkpoint, whose content the swap brings in: a number of the line's own log."""
    manifest: Sha
    """The manifest of that checkpoint."""
    swapped_by: str = ""
    """The process or run that swaps. The entry's own run is the line's, whoever tries."""


class Rollback(Struct, frozen=True, kw_only=True):
    """A rollback: positions, state and outputs return to checkpoint `target`. Entries in between no longer count.

    A swap is a rollback that brings the content of a line: its positions are the line's, its jobs continue from the
    copies of the line's acks in its own folder, and its tables are those as of the target with the line's changes.
    """

    target: Annotated[int, msgspec.Meta(ge=0)]
    """0: the beginning, before the first checkpoint. Only a swap goes back to there."""
    manifest: Sha | None
    """None: the target is the beginning."""
    line: SwappedBackfill | None = None
    """The line that it brings in, if it is a swap."""
    by: str
    reason: str = ""
    tables: dict[str, Restored]
    left: list[str] = []
    """Tables that somebody has let go of: nothing pending for them is ever published, and they are not restored."""
    dropped: dict[str, list[Id]] = {}
    """By job, the checkpoints whose rows were in flight to it as of the target, and are let go of: no job ever reads
    them, and no source reads them again."""
    suspended: Control | None = None
    """The suspension that was in force. It stays in force after the rollback, until somebody resumes."""


class Drain(Struct, frozen=True, kw_only=True):
    """The last checkpoint: event time ends with it, so nothing waits for event time any more."""

    by: str
    reason: str = ""


class ChangeByHand(Struct, frozen=True, kw_only=True):
    """What a person has done to an operator's state: `edit` its rows, or `bootstrap` it with history."""

    operator: str
    action: Literal["edit", "bootstrap"]
    by: str


class Plan(Record, frozen=True, kw_only=True):
    """The plan of checkpoint `id`. Creating it creates the entry."""

    title: ClassVar[str] = "plan.json"

    id: Id
    kind: Kind
    run: str
    generation: int = 0
    base: Id | None
    clock: str | None = None
    """The time that counts in this checkpoint, whenever it is computed: see `time`. None: written by a version that did
    not record it, or an entry without rows."""
    control: Control | None = None
    """The action that the entry records, if it is not a checkpoint."""
    rollback: Rollback | None = msgspec.field(default=None, name="restart")
    """The rollback that the entry is, if it is one; it reads no input."""
    drain: Drain | None = None
    """For the last checkpoint: event time ends with it. For a rollback: its target is such a checkpoint."""
    draining: Drain | None = None
    """A drain was requested, and more input waits than this checkpoint reads. Later ones read on; the one that leaves
    no input is the last."""
    interval: tuple[str, str] | None = None
    """The run's data interval, in UTC."""
    by_interval: bool = False
    """True: the plan of an interval pipeline. It rests on nothing, and replaces the rows of its interval in the
    tables."""
    quarantine_all: bool = msgspec.field(default=False, name="set_aside")
    """True: rows that a gate would hold go to its quarantine. A person chose this after a rejection."""
    reach: tuple[str, str] | None = None
    """The span of the intervals of this checkpoint and all below it."""
    by_hand: ChangeByHand | None = None
    """For a checkpoint that a person makes: the change. It reads no input. See `is_by_hand`."""
    replays: list[Id] = []
    """For a checkpoint of a line: the live entries whose input it reads again, in order (docs/protocol.md, L2)."""
    drops: list[Id] = []
    """For a checkpoint of a line: the live entries up to there, made by hand, whose changes a person has chosen to
    lose."""
    sources: dict[str, Range]
    source_changes: list[SourceChange] = []
    """The sources that were moved, dropped or accepted since the base: it has them as they were before."""
    fixed_inputs: dict[str, Payload] = msgspec.field(default_factory=dict, name="pins")
    """Inputs that operators read besides their streams, such as the version of a table, by uid. Fixed for all
    attempts."""
    hooks: dict[str, Json] = {}
    """Data that the pipeline's hooks store with the checkpoint, by name; for a rollback, the data of its target; for a
    swap, what they get back after it."""
    triggers: list[str]
    acks: list[str]
    takes: dict[str, dict[str, str]] = {}
    """For each job, the streams that it reads, and the job that produces each."""
    overtaking: Overtaking | None = None
    commits: list[str]
    notifies: list[str] = []
    """The hooks that are to be told whether it was completed or aborted."""
    through: list[str] | None = None
    """At least once: the sinks to whose tables jobs commit before the decision. None: exactly once."""
    timeout_s: float
    config: Json
    config_fingerprint: str
    code_fingerprint: str
    planning_s: float | None = None
    """How long the trigger took, until it wrote this. None: written by a version that did not record it."""
    quotes_rows: bool = True
    """False: no text in the entry's records quotes the value of a row. Versions that quoted some did not record it."""

    @property
    def time(self) -> str:
        """The time by which operators, gates and idle sources go in this checkpoint (docs/protocol.md, section 9)."""
        return self.clock or self.created

    @property
    def is_by_hand(self) -> bool:
        """True: a person has changed an operator's state with it. An earlier version recorded only that no source is
        read."""
        ordinary = self.control is None and self.rollback is None and self.kind != "fork"
        stand = bool(self.sources) and all(part.stands for part in self.sources.values())
        return self.by_hand is not None or (ordinary and stand and not self.replays)

    @property
    def made_by(self) -> str:
        """The run, or of a swap the process or run, whose end means that nobody decides the entry any more."""
        line = self.rollback.line if self.rollback is not None else None
        return (line.swapped_by if line is not None else "") or self.run

    def flaw(self) -> str | None:
        if self.base is not None and self.base >= self.id:
            return f"checkpoint {self.id} cannot rest on {self.base}"
        if (self.kind == "control") != (self.control is not None):
            return "a control entry names its action, a checkpoint does not"
        if self.control is not None and (self.control.source is not None) != self.control.action.endswith(" source"):
            return "an entry that moves, drops or accepts a source names it, others do not"
        if self.control is not None and self.control.source is not None:
            accepts, change = self.control.action == "accept source", self.control.source
            if accepts != (change.position is not None) or (accepts and change.to != change.name):
                return "an entry that accepts a source has its position, under its own name; others have none"
        if (self.kind == "restart") != (self.rollback is not None):
            return "a rollback names its target, a checkpoint does not"
        if self.rollback is not None and (flaw := self._flaw_of_rollback(self.rollback)) is not None:
            return flaw
        if self.replays != sorted(set(self.replays)):
            return f"{self.replays} are not different checkpoints in ascending order"
        if not all(texts is None or Interval.is_record(texts) for texts in (self.interval, self.reach)):
            return f"{self.interval} or {self.reach} is no interval"
        if self.by_interval and (self.interval is None or self.base is not None):
            return "a checkpoint of an interval pipeline has an interval and rests on nothing"
        return None

    def _flaw_of_rollback(self, rollback: Rollback) -> str | None:
        if rollback.target >= self.id or (rollback.target == 0 and rollback.line is None):
            return f"entry {self.id} cannot go back to {rollback.target}"
        if (rollback.target == 0) != (rollback.manifest is None):
            return "a target has a manifest, the beginning has none"
        if rollback.line is not None and rollback.line.head >= self.id:
            return f"entry {self.id} cannot bring in checkpoint {rollback.line.head} of a line: its number is too high"
        return None


class Ack(Record, frozen=True, kw_only=True):
    """ "Everything that `job` did for checkpoint `id` is durable, and this is all of it." The first ack counts,
    whole."""

    title: ClassVar[str] = "ack"

    id: Id
    job: str
    prev: Handle | None
    sinks: dict[str, Payload]
    states: dict[str, Payload] = {}
    """Every keyed state as of this checkpoint, changed or not (state/record.py)."""
    memory: dict[str, Json] = {}
    """Small state of operators and sources, by name: watermarks, counters."""
    gates: dict[str, Verdict] = {}
    inputs: dict[str, list[Handle]] = {}
    """For each upstream job, the acks whose channels it has read: all since its own last ack, in order."""
    ahead: list[Handle] = []
    """At least once: acks of later checkpoints that it has read, in this checkpoint or before."""
    channels: dict[str, Payload] = {}
    """The rows that it has sent to other jobs, by stream (connectors/channel.py)."""
    through: dict[str, PublishedTable] = {}
    """At least once: the state of each table after it had written there."""
    stats: JobStats


class Answer(Record, frozen=True, kw_only=True):
    """The answer to a verdict that holds checkpoint `id`: a person's, or the time limit's. The first one counts."""

    title: ClassVar[str] = "answer"

    id: Id
    gate: str
    ack: Handle
    """The ack that holds the verdict."""
    approve: bool
    by: str
    note: str = ""


class Request(Record, frozen=True, kw_only=True):
    """A person's request about rows in quarantine. The next plan takes up all requests that exist, in order.

    It applies to rows that wait there, were quarantined by checkpoint `seen` or before, and match every condition
    given.
    """

    title: ClassVar[str] = "request"

    number: Id
    gate: str
    action: Literal["release", "discard", "withdraw"]
    """release: let them continue from the gate. discard: keep them out for good. withdraw: cancel an earlier
    request."""
    seen: int = 0
    ids: list[str] = []
    checkpoints: list[int] = []
    rules: list[str] = []
    correct: dict[str, str | None] = {}
    """Values, as text, for columns to be corrected on release."""
    in_place: bool = False
    """Of a release: no checkpoint of the pipeline takes it up. A line with recorded cuts lets the rows out where they
    were held back."""
    withdraws: Id | None = None
    by: str
    note: str = ""

    def flaw(self) -> str | None:
        if (self.action == "withdraw") != (self.withdraws is not None):
            return "a withdrawal names a request, other actions name none"
        return "only rows that are released have a place" if self.in_place and self.action != "release" else None


class TablePart(Struct, frozen=True, kw_only=True):
    """The part that checkpoint `id` publishes on one table, and the entry that must be the last one there before it."""

    after: Id | None
    committables: list[Payload]
    restore: Restored | None = None
    """For a rollback. It follows whatever the table holds, and always makes a commit: that fences the undone
    entries."""
    through: PublishedTable | None = None
    """At least once: the state of the table after jobs had written to it, up to this checkpoint."""


class Manifest(Record, frozen=True, kw_only=True):
    """Everything that a completed decision makes true. Self-contained: recovery needs no older record."""

    title: ClassVar[str] = "manifest"

    id: Id
    base: Id | None
    base_manifest: Sha | None
    positions: dict[str, Position]
    jobs: dict[str, Handle]
    tables: dict[str, TablePart]
    in_flight: dict[str, list[InFlight]] = {}
    """For each job that was overtaken, the input that it has not read yet, in the order of reading."""
    let_go: dict[str, Id] = {}
    """For a job that is behind, the entry up to which a rollback has let go of the input that it had not read."""


class Decision(Record, frozen=True, kw_only=True):
    """The commit point. Created once; every reader obeys it."""

    title: ClassVar[str] = "decision.json"

    id: Id
    outcome: Literal["completed", "aborted"]
    manifest: Sha | None = None
    reason: str = ""
    detail: str = ""
    counts: bool = False
    """True: the abort counts towards the tolerable failures."""

    def flaw(self) -> str | None:
        if (self.outcome == "completed") != (self.manifest is not None):
            return "a completed decision names a manifest, an aborted one names none"
        return None


class Published(Record, frozen=True, kw_only=True):
    """All tables of `id` are published. A hint for readers; a publisher asks the tables themselves."""

    title: ClassVar[str] = "published.json"

    id: Id
    tables: dict[str, PublishedTable]
    home: str | None = None
    """The pipeline's own folder when this was written. If it is elsewhere now, the project was moved or copied."""
    paths: dict[str, str] = {}
    """By sink, the path of its table, if it is relative to the setting `data`: it moves with the project."""


class Retired(Record, frozen=True, kw_only=True):
    """Retention's tombstone: nothing may refer to `id` any more."""

    title: ClassVar[str] = "retired.json"

    id: Id


class Discarded(Record, frozen=True, kw_only=True):
    """The files of the last checkpoint, `id`, are removed: entry `control` has cancelled the pipeline for good."""

    title: ClassVar[str] = "discarded.json"

    id: Id
    control: Id


class Pin(Record, frozen=True, kw_only=True):
    """Somebody refers to checkpoint `entry`: retention spares it until the pin is gone."""

    title: ClassVar[str] = "pin"

    owner: str
    kind: Literal["rollback", "savepoint", "fork", "copy", "day", "line"]
    """line: a line was forked from `entry`. It spares every entry above, too, for the line has yet to replay them."""
    entry: Id
    manifest: Sha
    rollback: Id | None = msgspec.field(default=None, name="restart")
    """For a rollback: its planned entry. If that is retired, or belongs to somebody else, the pin is of no use."""
    by: str = ""
    note: str = ""

    def flaw(self) -> str | None:
        if (self.kind == "rollback") != (self.rollback is not None):
            return "the pin of a rollback names its entry, other pins name none"
        return None


class Filled(Record, frozen=True, kw_only=True):
    """Checkpoint `id` completed an interval. Never deleted: a later one finds here what it replaces."""

    title: ClassVar[str] = "interval"

    id: Id
    interval: tuple[str, str]
    traces: dict[str, Json]
    """For each sink, the data by which the checkpoint's rows can be found in its target."""

    def flaw(self) -> str | None:
        return None if Interval.is_record(self.interval) else f"{self.interval} is no interval"


class Beginning(Record, frozen=True, kw_only=True):
    """The beginning of a source, if it depends on the moment of the first look.

    It is decided once, for checkpoint `id` or any that takes its place. Never deleted.
    """

    title: ClassVar[str] = "beginning"

    id: Id
    source: str
    at: Json


class LatestHint(Record, frozen=True, kw_only=True):
    """All entries up to `id` are decided, and published if completed. Any old value is right, only slower."""

    title: ClassVar[str] = "latest.json"

    id: Id


class Tried(Record, frozen=True, kw_only=True):
    """Object stores that passed the test of creating an object only once. If the hint is lost, they are tested
    again."""

    title: ClassVar[str] = "tried.json"

    stores: list[str]


class SeenTable(Struct, frozen=True, kw_only=True):
    """A table's log as a publisher has seen it. It is used only while the store has the same commit at this version."""

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
    """The version of the log's own last checkpoint."""
    transactions: dict[str, int | None] = {}


class SeenTables(Record, frozen=True, kw_only=True):
    """The logs of tables on object stores, after the last publication. If the hint is lost, they are read again."""

    title: ClassVar[str] = "tables.json"

    tables: list[SeenTable]


class RetainedCount(Record, frozen=True, kw_only=True):
    """The number of entries from `low` to `upto`, all decided, that are completed and not rolled back. Any old value is
    right, only slower."""

    title: ClassVar[str] = "kept.json"

    low: Id
    upto: Id
    completed: Annotated[int, msgspec.Meta(ge=0)]
    rollback: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The last rollback then known: the entries that it had undone are not counted."""
    reached: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The highest `low` before a rollback took it down again: below it there may be holes."""

    def flaw(self) -> str | None:
        if not 0 <= self.completed <= self.upto - self.low + 1:
            return f"{self.completed} of the entries {self.low} to {self.upto} cannot be completed"
        return None


class Trouble(Record, frozen=True, kw_only=True):
    """The last error of a run: it could not plan, its job is being retried, or it could not publish.

    A hint, like latest.json: the next one replaces it, and losing it does no harm.
    """

    title: ClassVar[str] = "trouble.json"

    run: str
    step: str
    """The step that failed: a task's id, or a step of `tidegate run`."""
    entry: Id | None
    """The run's checkpoint, if it had one by then."""
    after: int
    """The last entry of the log by then: any later entry knows more."""
    kind: str
    reason: str
    what: str
    expected: str
    help: str
    unplanned: int = 0
    """The number of runs in a row that ended and could not plan a checkpoint."""
    quotes_rows: bool = True
    """False: no text quotes the value of a row. Versions that quoted some did not record it."""


class Declined(Record, frozen=True, kw_only=True):
    """An error of the pipeline's declaration that a job has found: no run makes a checkpoint until something changes.

    A hint: if it is lost, the next checkpoint's job finds the error again.
    """

    title: ClassVar[str] = "declined.json"

    id: Id
    """The checkpoint whose job found it, and that is aborted for it."""
    declaration: str
    """Says everything that the error may depend on, and that a run can see without Spark."""
    reason: str
    what: str
    expected: str
    help: str
    notified: bool = False
    """Whether the pipeline's hooks were called for it."""


class JobNote(Record, frozen=True, kw_only=True):
    """What an attempt at a job is doing. `created` is when it was so.

    A hint, for whoever watches: the next one replaces it, and losing it does no harm.
    """

    title: ClassVar[str] = "progress"

    id: Id
    job: str
    started: str
    step: str
    """The step that it is at; "": between two of them."""
    current_step_seconds: float = msgspec.field(name="step_s")
    """For how long by then."""
    step_seconds: dict[str, float] = msgspec.field(name="seconds")
    """How long each finished step took."""
    read: dict[str, Amount] = msgspec.field(name="taken")
    """By source, what it reads."""
    tasks_done: int | None = None
    """Of the query that Spark works at, the tasks that are over, how many it has by now, and what they have read. Null:
    Spark does not tell, or works at none."""
    tasks: int | None = None
    bytes_read: int | None = None


class SampledRows(Struct, frozen=True, kw_only=True):
    """A few rows of a stream, as text. Not the first ones nor the last: those that were at hand."""

    columns: list[str] = []
    rows: list[list[str | None]] = []
    """The values of each, in the order of `columns`; null is none. Long ones are cut."""
    hidden: list[str] = []
    """Columns of which the settings say that nobody takes samples."""
    left_out: int = 0
    """How many further columns the stream has."""
    problem: str = ""
    """Why there is no sample."""


class Samples(Record, frozen=True, kw_only=True):
    """checkpoints/<id>/samples/<job>.json: samples of what a job's stages, gates and operators let through.

    A hint, for people: the attempt whose ack counts writes it after its ack, and no record names it. It lies in the
    entry's folder, so it goes when the entry goes.
    """

    title: ClassVar[str] = "samples"

    id: Id
    job: str
    streams: dict[str, SampledRows]


Rank: TypeAlias = Literal["savepoint", "manual", "periodic"]
"""How urgent a checkpoint is: the first of these comes first."""


class WaitingRun(Record, frozen=True, kw_only=True):
    """A run could not plan its checkpoint yet, and asks again. The file's age tells when it has last asked.

    A hint: if it is lost, or its run is dead, another run comes first, or waits a little (protocol/turns.py).
    """

    title: ClassVar[str] = "waiting"

    run: str
    rank: Rank


class HookProgress(Record, frozen=True, kw_only=True):
    """What the pipeline's hooks were notified of. If lost, they are notified again."""

    title: ClassVar[str] = "told.json"

    id: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The entry of the last suspension; 0: there was none."""
    settled: dict[str, Id] = {}
    """By hook, the last checkpoint of whose outcome it was notified."""


REQUEST = "request"
"""The key in a run's conf that names the act which the run is to perform."""


RENAMED_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = {
    "resume": {"after_end": "restart_finished"},
    "rollback": {"undone": "expected_undone", "keep": "keep_rows_of"},
    "release": {"shown": "expected_rows"},
    "backfill": {
        "to": "stop_after",
        "larger": "batch_factor",
        "drop_by_hand": "drop_manual_edits",
        "pause": "pause_seconds",
    },
    "swap": {"keep": "keep_rows_of", "drop_by_hand": "drop_manual_edits"},
}
"""By action: what parameters of requests were called until 0.2, and are called now. Older acts have the old names."""


class Act(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.json: an authorized person requested this action."""

    title: ClassVar[str] = "act"

    action: str
    by: str
    request: Json = msgspec.field(name="asked")
    """The parameters of the request, as they were sent."""
    run: str = ""
    """The ledger's name of the only DAG run that may perform it; empty: it is performed at once."""

    @property
    def parameters(self) -> Json:
        """The parameters of the request under today's names."""
        renamed = RENAMED_PARAMETERS.get(self.action, {})
        return {renamed.get(name, name): value for name, value in self.request.items()}

    @property
    def key(self) -> str:
        """Its name in the ledger, by which a run is told what to do."""
        return f"{self.created[:23].replace(':', '').replace('.', '')}-{self.attempt}"


class Acted(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.done.json: the outcome. If it is missing, nobody lived to write it down."""

    title: ClassVar[str] = "acted"

    succeeded: bool = msgspec.field(name="done")
    message: str = msgspec.field(name="told")
