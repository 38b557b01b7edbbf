"""Every record of the ledger, written once and never changed (docs/protocol.md, section 1).

    pipeline.json            PipelineRecord   uid of the pipeline, generated at its first start
    forking.json             PipelineRecord   the same, while the pipeline is being forked
    checkpoints/<id>/
      plan.json              Plan             fixes the input of checkpoint <id>
      acks/<job>.json        Ack              a job's only effect: names everything that it staged
      overtaken/<job>.json   Overtaken        the checkpoint overtook the job, which was busy with an earlier one
      manifest-<sha>.json    Manifest         everything that the decision will make true, self-contained
      decision.json          Decision         THE COMMIT POINT: completed or aborted
      published.json         Published        a hint for readers, never the truth
      announced.json         Announced        who tells other DAGs of it, if not its own run
      diverted.json          Diverted         whether the table took a divert's rows, or the rows that it was to divert
      retired.json           Retired          retention's tombstone: this entry may be deleted
      holds/<gate>.json      Answer           a person's answer to a verdict that holds, or the time limit's
      samples/<job>.json     Samples          a hint: a few rows of each stream of the job, for people to look at
    asked/<gate>/<number>.json Request        a person's request about rows in the gate's quarantine
    pins/<owner>.json        Pin              spares a checkpoint from retention while something refers to it
    intervals/<key>/<id>.json Filled          an interval pipeline's checkpoint <id> completed this interval
    beginnings/<source>/<id>.json Beginning where a "from now on" source begins, even if <id> is aborted
    discarded.json           Discarded        the last checkpoint's tombstone, if the pipeline was cancelled for good
    latest.json              LatestHint       a hint: an entry up to which everything is decided and published
    kept.json                RetainedCount    a hint: the number of completed entries in a range of ids
    audit/<time>-<attempt>.json Act           an action requested on the pages; .done.json: Acted
    trouble.json             Trouble          a hint: the last error that no checkpoint records
    progress/<job>.json      JobNote          a hint: the progress of an attempt at a job
    told.json                HookProgress     a hint: which events hooks have been notified of
    telling.json             Telling          a hint: somebody is telling people of broken promises
    waiting/<sha of run>.json WaitingRun      a hint: a run waits for a checkpoint, and how urgent it is
    tried.json               Tried            a hint: the stores that passed the test of conditional puts
    declined.json            Declined         a hint: why the code cannot make a checkpoint, found by a job
    tables.json              SeenTables       a hint: the logs of tables on object stores, as last seen
    lines/<name>/line.json   BackfillRecord   a backfill; its own ledger is in a folder next to it
    lines/<name>/discarded.json BackfillDiscarded its tombstone
    lines/<name>/compared.json BackfillCompared a hint: the changes that a swap would have made, as last computed
    runs/<sha of run>/<id>   (empty)          the checkpoints of a run; never deleted
    blobs/<id>-<sha>.json    (side files)     long lists of the records above, named by their hash

`format` comes first. An unknown field is an error rather than ignored: it may matter to a newer tidegate.

The hints are defined in hints.py, the figures of jobs in measures.py; all of them can be imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from tidegate.records.base import FORMAT, Id, Json, Record, Sha, Struct
from tidegate.records.hints import (
    Declined,
    HookProgress,
    JobNote,
    LatestHint,
    Rank,
    RetainedCount,
    SampledRows,
    Samples,
    SeenTable,
    SeenTables,
    Telling,
    Tried,
    Trouble,
    WaitingRun,
)
from tidegate.records.interval import Interval
from tidegate.records.measures import Amount, Computed, JobStats, Pace, SparkWork, StepStats, Timed, sum_of, work_of

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
    "Computed",
    "Copy",
    "Declined",
    "Handle",
    "Hold",
    "HookProgress",
    "Id",
    "InFlight",
    "JobNote",
    "JobStats",
    "Json",
    "KeySample",
    "Kind",
    "LatestHint",
    "Origin",
    "Overtaken",
    "Overtaking",
    "Pace",
    "Payload",
    "PipelineRecord",
    "Promise",
    "Rank",
    "Record",
    "RecordedRule",
    "RetainedCount",
    "SampledRows",
    "Samples",
    "SeenTable",
    "SeenTables",
    "Sha",
    "SourceChange",
    "SparkWork",
    "State",
    "StepStats",
    "Struct",
    "SwappedBackfill",
    "Telling",
    "Timed",
    "TracedColumns",
    "Tried",
    "Trouble",
    "Verdict",
    "WaitingRun",
    "sum_of",
    "work_of",
]


class Blob(Struct, frozen=True, kw_only=True):
    """Refers to a side file, which holds a long list of a record."""

    path: Annotated[str, msgspec.Meta(pattern="^blobs/[^/]+$")]
    """Relative to the ledger. Retention deletes by this path, so it can name nothing but a side file."""
    sha: Sha
    size: Annotated[int, msgspec.Meta(ge=0)]


class Payload(Struct, frozen=True, kw_only=True):
    """A JSON object of a source or sink: inline if it is short, otherwise in a side file named by its hash."""

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
"""As displayed. In a plan, a swap has the kind "restart"."""

STATES: Final[tuple[str, ...]] = get_args(State)
KINDS: Final[tuple[str, ...]] = get_args(ShownKind)


class Handle(Struct, frozen=True, kw_only=True):
    """Names one ack by its entry and the hash of its bytes."""

    entry: Id
    sha: Sha


class Overtaking(Struct, frozen=True, kw_only=True):
    """The jobs that the checkpoint may overtake while they are busy with an earlier one."""

    jobs: list[str]
    after_s: float
    """How long it waits for them first."""


class InFlight(Struct, frozen=True, kw_only=True):
    """Rows that one job has sent and another has not read yet."""

    job: str
    """The sender."""
    ack: Handle
    channels: dict[str, Payload]
    """The sender's channels that the other job reads."""


class Overtaken(Record, frozen=True, kw_only=True):
    """Checkpoint `id` does not wait for `job`: the job's last ack counts, and its unread input is in flight."""

    title: ClassVar[str] = "overtaken"

    id: Id
    job: str
    busy_with: Id | None
    """The checkpoint that it was working on. None if a job upstream of it was overtaken."""


class Origin(Struct, frozen=True, kw_only=True):
    """The checkpoint that a pipeline was forked from. The fork's own log begins with it, under the same number."""

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
    """States that the folder holds as one file, in place of the files that the checkpoint's own records name."""


class Claimed(Record, frozen=True, kw_only=True):
    """Claims a folder: the pipeline with this uid owns it, and removes it."""

    title: ClassVar[str] = "claimed.json"

    uid: str


class PipelineRecord(Record, frozen=True, kw_only=True):
    """Identity of a pipeline, generated at its first start. A table takes a new uid for a new pipeline."""

    title: ClassVar[str] = "pipeline.json"

    uid: str
    name: str
    origin: Origin | None = None


LINE_RUN: Final = "line:"
"""Prefix of the run under which a backfill is swapped in."""


class KeySample(Struct, frozen=True, kw_only=True):
    """Rows of some values of a column: those whose hash is in a share of all hashes."""

    share: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    by: str
    """The column's name in the tables."""
    sources: dict[str, str]
    """Its name in each source that is sampled."""


class BackfillRecord(Record, frozen=True, kw_only=True):
    """lines/<name>/line.json: a backfill. docs/protocol.md, section 14, calls it a line."""

    title: ClassVar[str] = "line.json"

    name: str
    uid: str
    """Names the one run under which the backfill is swapped in. Every process that tries uses the same run."""
    origin: Annotated[int, msgspec.Meta(ge=0)]
    """The checkpoint that it was forked from, or 0 for the beginning."""
    manifest: Sha | None
    """The manifest of that checkpoint."""
    cuts: Literal["own", "recorded"] = "own"
    """recorded: one checkpoint for each live one, with exactly its ranges. own: as large as the sources' bounds
    allow."""
    in_place: dict[str, list[int]] = {}
    """By gate, the requests whose rows it releases in the checkpoints that quarantined them."""
    purpose: Literal["backfill", "proposal"] = "backfill"
    """proposal: it shows what other code would make of the same input. It is only swapped in by its name."""
    sample: KeySample | None = None
    """It reads only these rows, and is never swapped in."""
    shadows: dict[str, str] = {}
    """Of a proposal, the folder of each shadow: other code, which may lack some of its sinks, can remove them."""
    by: str
    note: str = ""

    @property
    def run(self) -> str:
        return f"{LINE_RUN}{self.uid}"

    def flaw(self) -> str | None:
        if (self.origin == 0) == (self.manifest is None):
            return None
        return "a checkpoint has a manifest"


class BackfillDiscarded(Record, frozen=True, kw_only=True):
    """lines/<name>/discarded.json: the backfill's tombstone. It is never deleted, so the name is never reused."""

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
    """lines/<name>/compared.json: the changes that a swap would have made at the last comparison.

    A hint for people: the next comparison replaces it, and losing it does no harm.
    """

    title: ClassVar[str] = "compared.json"

    head: Annotated[int, msgspec.Meta(ge=0)]
    """The backfill's last completed checkpoint at the time. A later one makes this record out of date."""
    tables: dict[str, ComparedTable]
    unchanged_sinks: list[str] = msgspec.field(default_factory=list, name="left_out")
    """Sinks that the swap leaves unchanged."""
    tables_with_other_writers: list[str] = msgspec.field(default_factory=list, name="shared")
    """Tables with commits by other writers since the origin. The swap needs a choice for each of them."""
    problems: list[str] = []
    """The reasons for which a swap would have been refused."""


class ProposalReported(Record, frozen=True, kw_only=True):
    """lines/<name>/report.json: the report of a kept proposal. Without it, the proposal was not kept, and is
    not accepted: it is being made, or its process has ended before the report."""

    title: ClassVar[str] = "report.json"

    report: Json


class ProposalPushed(Record, frozen=True, kw_only=True):
    """pushes/<label>.json: the newest report for a label, such as a pull request. A hint: without it, everything is
    replayed again."""

    title: ClassVar[str] = "pushes"

    report: Json
    request: list[str | int | None]
    """Which checkpoints the command was asked for: --over, --from, --to, --sample."""
    checkpoints: list[str]
    """The checkpoints that it was compared with, and their manifests."""
    path_hashes: dict[str, str]
    """By sink, a hash of all that its rows come through; without sinks of which that is not known completely."""


class RecordedRule(Struct, frozen=True, kw_only=True):
    """A gate's rule that failed, and the consequence."""

    rule: str
    policy: Literal["abort", "hold", "quarantine", "warn"]
    severity: str
    rows: int | None
    """The number of rows that broke it, or None if the rule is not about rows."""
    why: str


class Hold(Struct, frozen=True, kw_only=True):
    """How long a verdict waits for a person, and the answer that counts if none arrives."""

    limit_s: float | None
    default: Literal["approve", "reject"]


class LateBehind(Struct, frozen=True, kw_only=True):
    """An operator downstream of a gate that drops rows that are late or have no event time: see `Lateness`."""

    operator: str
    what: str
    """The operator's display name."""
    column: str | None = None
    """The event-time column of its rows, or None if undeclared."""
    lasts: int = 1
    slide: int = 0
    allowed: int = 0
    stream: str = ""
    """The stream that it reads. Empty if a version wrote it that did not record this."""
    stages: list[str] = []
    """The stages between the gate and that stream, which may compute a new event time."""


class Verdict(Struct, frozen=True, kw_only=True):
    """A gate's judgement of exactly the rows that the ack names.

    With outcome `abort` the checkpoint cannot complete; with `hold` it cannot complete until it is approved.
    """

    outcome: Literal["pass", "warn", "quarantine", "hold", "abort"]
    rows: int
    quarantined: int
    released: int = 0
    """Rows released from quarantine that continued with those that passed."""
    stays: dict[str, int] = {}
    """By reason, rows that stay in quarantine despite a release: an operator downstream would have dropped them."""
    behind: list[LateBehind] = []
    """The downstream operators that drop late rows."""
    hold: Hold | None = None
    why: str = ""
    """The cause of the outcome, if it is not a rule."""
    broken: list[RecordedRule]
    policy: Json
    results: Payload
    """The full findings, for display: for expectations, the result of Great Expectations itself."""
    rows_hash: str = ""
    """For a verdict that holds: a hash of the judged rows as a multiset, or empty if unknown."""


class Position(Struct, frozen=True, kw_only=True):
    """How far a source has been read. Only the source interprets `at`; None is the beginning."""

    kind: str
    at: Json | None


class Unread(Struct, frozen=True, kw_only=True):
    """Input at a source that no run will ever read by itself."""

    count: int
    what: str
    """A text with the number, the reason, and a few names."""
    help: str
    """How to have it read after all, or how to get rid of it."""


class Lag(Struct, frozen=True, kw_only=True):
    """The input waiting at a source after a plan's range, as far as the source knows it without reading. A figure may
    be an estimate; None means unknown."""

    rows: int | None = None
    """An upper bound: a source may count entries that turn out to be no rows."""
    bytes: int | None = None
    files: int | None = None
    seconds: float | None = None
    """The age of the oldest waiting input, by the source's own times. None if unknown, or if nothing waits."""

    @property
    def waits(self) -> bool:
        """True if any input waits."""
        return bool(self.rows or self.bytes or self.files)


class KnownColumn(Struct, frozen=True, kw_only=True):
    """A column of the input that the declared schema lacks."""

    type: str
    """The narrowest type that holds all of its values so far; `void` if all were null."""
    checkpoint: Id
    """The checkpoint that found it first."""
    file: str = ""
    """The first input file in which that checkpoint found it."""


class SourceSchema(Struct, frozen=True, kw_only=True):
    """The schema with which a range is read: the declared one, and what the source has taken over from its input."""

    ddl: str
    known: dict[str, KnownColumn] = {}
    """By path, such as `customer.vip`, the columns that the declared schema lacks."""
    widened: dict[str, KnownColumn] = {}
    """By name, the columns whose type has become wider than the one that they began with."""
    more: int = 0
    """How many more columns were found than are remembered."""
    through: int = 0
    """The last checkpoint whose findings are included."""
    evolves: bool = False
    """True: a new key of the input becomes a column with the next plan, if it can."""


class FoundColumn(Struct, frozen=True, kw_only=True):
    """A part of a checkpoint's input that does not fit the schema with which it was read."""

    path: str
    kind: Literal["new", "type", "case"]
    """A column that the schema lacks, a value of another type, or a key that differs from a column only in case."""
    type: str
    records: int
    """In how many records of the checkpoint."""
    file: str = ""
    """The first of the files with such a record, by name."""
    wider: str = ""
    """For values of another type: the type that the column becomes with the next plan, so that it holds such values."""


class Drift(Struct, frozen=True, kw_only=True):
    """What of a source's input, in one checkpoint, does not fit the schema with which it was read."""

    found: list[FoundColumn]
    records: int
    """The number of records with anything that does not fit."""
    more: int = 0
    """How many more columns there are than are named."""


class Range(Struct, frozen=True, kw_only=True):
    """One source's part of a plan: from `start` (exclusive) to `end` (inclusive), and the input between them."""

    kind: str
    start: Json | None
    end: Json | None
    splits: Payload
    """The input to read, with fingerprints: enough to read the same rows again, or to notice that this is
    impossible."""
    empty: bool
    """True if the source has nothing new; a checkpoint may still be planned."""
    more: bool = False
    """True if a bound cut this range short, and more input is already waiting."""
    summary: str = ""
    """For display: "3 of 9 files, 1.2 MB"."""
    unread: Unread | None = None
    """The input that the source has skipped for good, as of this plan."""
    lag: Lag | None = None
    """The input waiting after this range, or None if the source cannot measure it."""
    pace: Pace | None = None
    """For a source whose bound follows from the duration of checkpoints."""
    schema: SourceSchema | None = None
    """For a source whose schema may follow its input."""

    @property
    def is_exhausted(self) -> bool:
        """True if the source was queried, and had nothing new."""
        return self.empty and not self.more

    @property
    def does_not_move(self) -> bool:
        """True if nothing is read from the source, even if it has input: its position does not move."""
        return self.empty and self.more and self.splits.data == {}


class PublishedTable(Struct, frozen=True, kw_only=True):
    """The state of a table right after this checkpoint was published on it."""

    uri: str
    version: int
    """The version that readers can ask for. In a target without versions: the number of the checkpoint."""
    log_hash: str
    """The hash of that version's commit. Empty if the target is not a Delta table, and so has no time travel."""
    rows: int | None = None

    @property
    def is_delta(self) -> bool:
        """True if it is a version of a Delta table."""
        return bool(self.log_hash)

    @property
    def displayed_version(self) -> str:
        """The table's version, or the target's last checkpoint, for display."""
        if self.is_delta:
            return f"version {self.version}"
        return f"checkpoint {self.version}"


class SourceChange(Struct, frozen=True, kw_only=True):
    """From here on the position of source `name` belongs to source `to`, or to no source if that is None."""

    name: str
    to: str | None
    position: Json | None = None
    """For an accepted source, which keeps its name and continues on another system: its position there."""


class Control(Struct, frozen=True, kw_only=True):
    """An action of a person, or of a rule, that has its own entry in the log."""

    action: Literal["suspend", "resume", "stop", "cancel", "move source", "drop source", "accept source"]
    by: str
    reason: str = ""
    source: SourceChange | None = None
    """For a source that is moved, dropped or accepted."""
    final: bool = False
    """True for a final cancellation: no entry follows it, and every checkpoint without a name is removed."""
    quarantine_all: bool = msgspec.field(default=False, name="set_aside")
    """For resume: the next checkpoint quarantines rows that a gate would hold again."""


class Restored(Struct, frozen=True, kw_only=True):
    """The effect of a rollback on one table."""

    how: Literal["restore", "discard", "retract", "keep"]
    """restore: return to the version, unless another writer has committed since. discard: return to it, and discard
    such commits. retract: remove only this pipeline's own rows. keep: leave the rows as they are."""
    to: PublishedTable | None
    """The state of the table as of the target. None if the table was created later, and becomes empty."""


class SwappedBackfill(Struct, frozen=True, kw_only=True):
    """The backfill that a swap brings in (docs/protocol.md, section 14).

    It has replayed all input from the rollback's target to the plan's base, the pipeline's last checkpoint until then.
    """

    name: str
    uid: str
    head: Id
    """The backfill's last checkpoint, whose content the swap brings in: a number in the backfill's own log."""
    manifest: Sha
    """The manifest of that checkpoint."""
    swapped_by: str = ""
    """The process or run that swaps. The entry's own run is always the backfill's."""


class Rollback(Struct, frozen=True, kw_only=True):
    """A rollback: positions, state and outputs return to checkpoint `target`. Entries in between no longer count.

    A swap is a rollback that brings in a backfill's content. Its positions are the backfill's. Its jobs continue from
    copies of the backfill's acks in the entry's folder. Its tables are those as of the target, with the backfill's
    changes.
    """

    target: Annotated[int, msgspec.Meta(ge=0)]
    """0 is the beginning, before the first checkpoint. Only a swap returns to it."""
    manifest: Sha | None
    """None if the target is the beginning."""
    line: SwappedBackfill | None = None
    """The backfill that it brings in, if it is a swap."""
    by: str
    reason: str = ""
    tables: dict[str, Restored]
    left: list[str] = []
    """Tables that a person chose to abandon: their pending commits are never published, and they are not restored."""
    dropped: dict[str, list[Id]] = {}
    """By job, the checkpoints whose rows were in flight to it as of the target and are dropped: no job ever reads them,
    and no source reads them again."""
    suspended: Control | None = None
    """The suspension in force. It stays in force after the rollback, until the pipeline is resumed."""


class Drain(Struct, frozen=True, kw_only=True):
    """Marks the last checkpoint: event time ends with it, so nothing waits for event time any more."""

    by: str
    reason: str = ""


class ChangeByHand(Struct, frozen=True, kw_only=True):
    """A person's change to an operator's state: `edit` changes rows, `bootstrap` loads history. Or, with `divert`, to
    the rows that a table is about to get."""

    operator: str
    """For `divert`: the sink."""
    action: Literal["edit", "bootstrap", "divert"]
    by: str


class Divert(Struct, frozen=True, kw_only=True):
    """A person's choice: of the rows that wait for a table, these go to a quarantine instead (docs/protocol.md,
    section 15).

    It applies if the table holds `after` when it is published. Otherwise the table has taken the rows meanwhile.
    """

    table: str
    gate: str
    """The gate whose quarantine takes the rows."""
    after: Id | None
    """The last checkpoint that the table held: those above it wait."""
    condition: str
    """Which rows, as Spark SQL over the columns of the sink."""
    refused: str
    """What the table's target said when it refused them, without the values of rows."""
    by: str
    note: str = ""


class DivertedRows(Struct, frozen=True, kw_only=True):
    """In an ack: what a divert has staged."""

    rest: list[Payload]
    """What the table gets in place of all that waits for it."""
    quarantined: list[Payload]
    """The rows that go to quarantine, with those of an earlier divert that this one replaces."""
    rows: int
    """How many these are."""
    by_checkpoint: dict[str, int] = {}
    """How many of them each waiting checkpoint had."""


class Promise(Struct, frozen=True, kw_only=True):
    """How old a sink's table may be (history/promises.py). No decision depends on it."""

    fresh_s: float
    jobs: list[str]
    """The job that writes to the sink, and all jobs before it."""
    sources: list[str]
    """The sources whose rows reach the sink."""


class Plan(Record, frozen=True, kw_only=True):
    """The plan of checkpoint `id`. Creating it creates the entry."""

    title: ClassVar[str] = "plan.json"

    id: Id
    kind: Kind
    run: str
    generation: int = 0
    base: Id | None
    clock: str | None = None
    """The checkpoint's logical time, the same in every attempt: see `time`. None for an entry without rows, or if a
    version wrote it that did not record this."""
    control: Control | None = None
    """The action that the entry records, if it is not a checkpoint."""
    rollback: Rollback | None = msgspec.field(default=None, name="restart")
    """The rollback that the entry records, if it is one. It reads no input."""
    drain: Drain | None = None
    """For the last checkpoint: event time ends with it. For a rollback: its target is such a checkpoint."""
    draining: Drain | None = None
    """A drain was requested, and more input waits than this checkpoint reads. Later ones continue reading; the one that
    leaves no input is the last."""
    interval: tuple[str, str] | None = None
    """The run's data interval, in UTC."""
    by_interval: bool = False
    """True for the plan of an interval pipeline. It has no base, and replaces the rows of its interval in the
    tables."""
    quarantine_all: bool = msgspec.field(default=False, name="set_aside")
    """True if rows that a gate would hold go to its quarantine. A person chose this after a rejection."""
    quarantine_held: bool = False
    """True if rows that break a rule for which a gate would hold go to its quarantine. A person answered so when an
    earlier checkpoint was held."""
    reach: tuple[str, str] | None = None
    """The span of the intervals of this checkpoint and all below it."""
    by_hand: ChangeByHand | None = None
    """The change, for a checkpoint that a person makes by hand. It reads no input. See `is_manual_edit`."""
    divert: Divert | None = None
    """The rows that it diverts, for a change by hand of that kind."""
    replays: list[Id] = []
    """For a backfill's checkpoint: the live entries whose input it reads again, in order (docs/protocol.md, L2)."""
    drops: list[Id] = []
    """For a backfill's checkpoint: the live entries made by hand, up to this point, whose changes a person chose to
    lose."""
    sources: dict[str, Range]
    source_changes: list[SourceChange] = []
    """The sources that were moved, dropped or accepted since the base, which still has them as they were before."""
    fixed_inputs: dict[str, Payload] = msgspec.field(default_factory=dict, name="pins")
    """By uid, inputs that operators read in addition to their streams, such as a table at a version. They are the same
    for all attempts."""
    hooks: dict[str, Json] = {}
    """By name, data that the pipeline's hooks store with the checkpoint. For a rollback, the data of its target; for a
    swap, the data that the hooks get back after it."""
    triggers: list[str]
    acks: list[str]
    takes: dict[str, dict[str, str]] = {}
    """For each job, the streams that it reads, and the job that produces each."""
    overtaking: Overtaking | None = None
    commits: list[str]
    notifies: list[str] = []
    """The hooks to notify of its outcome."""
    through: list[str] | None = None
    """At least once: the sinks to whose tables jobs commit before the decision. None: exactly once."""
    promises: dict[str, Promise] = {}
    """By sink, how old its table may be. Recorded for those who look on without the code."""
    timeout_s: float
    config: Json
    config_fingerprint: str
    code_fingerprint: str
    planning_s: float | None = None
    """How long the trigger took until it wrote this. None if a version wrote it that did not record this."""
    quotes_rows: bool = True
    """False if no text in the entry's records quotes the value of a row. Versions that quoted some did not record
    it."""

    @property
    def time(self) -> str:
        """The clock of operators, gates and idle sources in this checkpoint (docs/protocol.md, section 9)."""
        return self.clock or self.created

    @property
    def is_manual_edit(self) -> bool:
        """True if a person changed an operator's state with it."""
        if self.by_hand is not None:
            return True
        # Earlier versions recorded only that no source is read.
        if self.control is not None or self.rollback is not None or self.kind == "fork" or self.replays:
            return False
        return bool(self.sources) and all(part.does_not_move for part in self.sources.values())

    @property
    def responsible_run(self) -> str:
        """The run that has to decide the entry; for a swap, the process or run that swaps. If it has ended, the entry
        is abandoned."""
        swapped = self.rollback.line if self.rollback is not None else None
        if swapped is not None and swapped.swapped_by:
            return swapped.swapped_by
        return self.run

    def flaw(self) -> str | None:
        if self.base is not None and self.base >= self.id:
            return f"checkpoint {self.id} cannot rest on {self.base}"
        if (self.kind == "control") != (self.control is not None):
            return "a control entry names its action, a checkpoint does not"
        if self.control is not None and (flaw := self._flaw_of_control(self.control)) is not None:
            return flaw
        if (self.kind == "restart") != (self.rollback is not None):
            return "a rollback names its target, a checkpoint does not"
        if self.rollback is not None and (flaw := self._flaw_of_rollback(self.rollback)) is not None:
            return flaw
        if (self.divert is not None) != (self.by_hand is not None and self.by_hand.action == "divert"):
            return "a change by hand that diverts rows says which, others do not"
        if self.replays != sorted(set(self.replays)):
            return f"{self.replays} are not different checkpoints in ascending order"
        if not all(texts is None or Interval.is_record(texts) for texts in (self.interval, self.reach)):
            return f"{self.interval} or {self.reach} is not an interval"
        if self.by_interval and (self.interval is None or self.base is not None):
            return "a checkpoint of an interval pipeline has an interval and no base"
        return None

    def _flaw_of_control(self, control: Control) -> str | None:
        change = control.source
        if (change is not None) != control.action.endswith(" source"):
            return "an entry that moves, drops or accepts a source names it, other entries do not"
        if change is None:
            return None
        accepts = control.action == "accept source"
        if accepts != (change.position is not None) or (accepts and change.to != change.name):
            return "an entry that accepts a source has its position, under its own name; other entries have none"
        return None

    def _flaw_of_rollback(self, rollback: Rollback) -> str | None:
        if rollback.target >= self.id or (rollback.target == 0 and rollback.line is None):
            return f"entry {self.id} cannot return to {rollback.target}"
        if (rollback.target == 0) != (rollback.manifest is None):
            return "a target has a manifest, the beginning has none"
        if rollback.line is not None and rollback.line.head >= self.id:
            return (
                f"entry {self.id} cannot bring in checkpoint {rollback.line.head} of a backfill: its number is too high"
            )
        return None


class TracedColumns(Struct, frozen=True, kw_only=True):
    """What Spark's plans told of the columns of stages that are functions of DataFrames, for lineage."""

    code: str
    """The fingerprint of the code that it is about."""
    inputs: dict[str, str] = {}
    """By stream that a stage reads, a short hash of the columns that it had."""
    stages: Payload
    """By stage, stream and column, the columns of the stage's inputs that it is made of: `[input, column, how]` for
    each; null if unknown."""


class Ack(Record, frozen=True, kw_only=True):
    """States that everything `job` did for checkpoint `id` is durable, and lists all of it. The first ack counts."""

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
    """At least once: the state of each table after the job had written to it."""
    drift: dict[str, Drift] = {}
    """By source, what of its input does not fit the schema, if anything."""
    diverted: DivertedRows | None = None
    """What it has staged for a divert, if the plan has one and the job writes to its table."""
    columns: TracedColumns | None = None
    """What the columns of its stages are made of, as far as Spark's plans tell."""
    stats: JobStats


class Answer(Record, frozen=True, kw_only=True):
    """The answer to a verdict that holds checkpoint `id`: a person's, or the time limit's. The first one counts."""

    title: ClassVar[str] = "answer"

    id: Id
    gate: str
    ack: Handle
    """The ack that holds the verdict."""
    approve: bool
    quarantine: bool = False
    """For a rejection: the input is read again at once, and the rows for which the gate held it go to quarantine."""
    by: str
    note: str = ""

    @property
    def choice(self) -> Literal["approved", "rejected", "quarantined"]:
        """The answer in a word."""
        if self.approve:
            return "approved"
        return "quarantined" if self.quarantine else "rejected"


class Request(Record, frozen=True, kw_only=True):
    """A person's request about rows in quarantine. The next plan takes up all requests that exist, in order.

    It applies to rows that wait there, were quarantined by checkpoint `seen` or before, and match every condition.
    """

    title: ClassVar[str] = "request"

    number: Id
    gate: str
    action: Literal["release", "rejudge", "discard", "withdraw"]
    """release: the rows continue from the gate. rejudge: those that pass the gate's rules as they are by then do so.
    discard: they stay out for good. withdraw: cancel an earlier request."""
    seen: int = 0
    ids: list[str] = []
    checkpoints: list[int] = []
    rules: list[str] = []
    correct: dict[str, str | None] = {}
    """Values, as text, for columns to be corrected on release."""
    correct_sql: dict[str, str] = {}
    """Spark SQL expressions over the row as it was quarantined, for columns to be corrected on release."""
    in_place: bool = False
    """For a release that no checkpoint of the pipeline takes up: a backfill with recorded cuts releases the rows in the
    checkpoints that quarantined them."""
    withdraws: Id | None = None
    by: str
    note: str = ""

    def flaw(self) -> str | None:
        if (self.action == "withdraw") != (self.withdraws is not None):
            return "a withdrawal names a request, other actions name none"
        if self.in_place and self.action != "release":
            return "only rows that are released have a place"
        if self.correct_sql and self.action != "release":
            return "only rows that are released are corrected"
        if self.correct.keys() & self.correct_sql.keys():
            return "a column is corrected in two ways"
        return None

    @property
    def corrects(self) -> bool:
        """Whether it changes columns of the rows that it releases."""
        return self.action == "release" and bool(self.correct or self.correct_sql)

    @property
    def corrections(self) -> list[str]:
        """Its corrections, for people."""
        constants = []
        for name, value in self.correct.items():
            constants.append(f"{name} to {'null' if value is None else repr(value)}")
        return constants + [f"{name} = {sql}" for name, sql in self.correct_sql.items()]

    @property
    def judges(self) -> bool:
        """Whether the gate's rules about single rows judge its rows before they continue."""
        return self.corrects or self.action == "rejudge"


class DivertedPart(Struct, frozen=True, kw_only=True):
    """What a table gets only if a divert applies: if `table` holds `after` when it is published there."""

    table: str
    """The table whose waiting rows are diverted. Its quarantine has such a part, too."""
    after: Id | None
    committables: list[Payload]


class TablePart(Struct, frozen=True, kw_only=True):
    """The part that checkpoint `id` publishes on one table, and the entry that must be the last one there before it."""

    after: Id | None
    committables: list[Payload]
    diverted: DivertedPart | None = None
    """For a divert. If it applies, these come before `committables`, and on the table also instead of all that waited
    for it."""
    restore: Restored | None = None
    """For a rollback. It is applied to any content of the table, and always makes a commit, which fences the undone
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
    """For a lagging job, the entry up to which a rollback has dropped its unread input."""


class Decision(Record, frozen=True, kw_only=True):
    """The commit point. It is created once, and every reader obeys it."""

    title: ClassVar[str] = "decision.json"

    id: Id
    outcome: Literal["completed", "aborted"]
    manifest: Sha | None = None
    reason: str = ""
    detail: str = ""
    counts: bool = False
    """True if the abort counts towards the tolerable failures."""

    def flaw(self) -> str | None:
        if (self.outcome == "completed") != (self.manifest is not None):
            return "a completed decision names a manifest, an aborted one names none"
        return None


class Diverted(Record, frozen=True, kw_only=True):
    """Whether the divert of checkpoint `id` applied. Created before anything else is published on its tables."""

    title: ClassVar[str] = "diverted.json"

    id: Id
    applied: bool
    """False: the table had taken the rows, or another divert, before it could."""


class Published(Record, frozen=True, kw_only=True):
    """All tables of `id` are published. A hint for readers; a publisher queries the tables themselves."""

    title: ClassVar[str] = "published.json"

    id: Id
    tables: dict[str, PublishedTable]
    home: str | None = None
    """The pipeline's own folder when this was written. A different one now means that the project was moved or
    copied."""
    paths: dict[str, str] = {}
    """By sink, the path of its table if it is relative to the setting `data`, and so moves with the project."""


class Announced(Record, frozen=True, kw_only=True):
    """Whoever creates this tells other DAGs what `id` has changed, by asset events. An entry that its own run's task
    tells them of has none."""

    title: ClassVar[str] = "announced.json"

    id: Id
    by: str
    """The run whose task does it, or `web server`."""


class Retired(Record, frozen=True, kw_only=True):
    """Retention's tombstone: nothing may refer to `id` any more."""

    title: ClassVar[str] = "retired.json"

    id: Id


class Discarded(Record, frozen=True, kw_only=True):
    """The files of the last checkpoint, `id`, are removed, since entry `control` cancelled the pipeline for good."""

    title: ClassVar[str] = "discarded.json"

    id: Id
    control: Id


class Pin(Record, frozen=True, kw_only=True):
    """Spares checkpoint `entry` from retention until the pin is deleted."""

    title: ClassVar[str] = "pin"

    owner: str
    kind: Literal["rollback", "savepoint", "fork", "copy", "day", "line"]
    """line: a backfill was forked from `entry`. The pin also spares every entry above it, for the backfill has yet to
    replay them."""
    entry: Id
    manifest: Sha
    rollback: Id | None = msgspec.field(default=None, name="restart")
    """For a rollback: its planned entry. If that is retired, or another process took its number, the pin is useless."""
    by: str = ""
    note: str = ""

    def flaw(self) -> str | None:
        if (self.kind == "rollback") != (self.rollback is not None):
            return "the pin of a rollback names its entry, other pins name none"
        return None


class Filled(Record, frozen=True, kw_only=True):
    """Checkpoint `id` completed an interval. It is never deleted: a later checkpoint of the interval looks up here the
    rows that it replaces."""

    title: ClassVar[str] = "interval"

    id: Id
    interval: tuple[str, str]
    traces: dict[str, Json]
    """For each sink, the data by which the checkpoint's rows can be found in its target."""

    def flaw(self) -> str | None:
        if Interval.is_record(self.interval):
            return None
        return f"{self.interval} is not an interval"


class Beginning(Record, frozen=True, kw_only=True):
    """Where a source begins, if that depends on when it is first planned.

    It is decided once, for checkpoint `id` or any that replaces it, and never deleted.
    """

    title: ClassVar[str] = "beginning"

    id: Id
    source: str
    at: Json


REQUEST = "request"
"""The key in a run's conf that names the act for the run to perform."""


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
"""By action, the names of request parameters until 0.2, and their names now. Older acts have the old names."""


class Act(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.json: an authorized person requested this action."""

    title: ClassVar[str] = "act"

    action: str
    by: str
    request: Json = msgspec.field(name="asked")
    """The parameters of the request, as they were sent."""
    run: str = ""
    """The ledger's name of the only DAG run that may perform it, or empty if it is performed at once."""

    @property
    def parameters(self) -> Json:
        """The parameters of the request under today's names."""
        renamed = RENAMED_PARAMETERS.get(self.action, {})
        return {renamed.get(name, name): value for name, value in self.request.items()}

    @property
    def key(self) -> str:
        """Its name in the ledger, which a run's conf refers to."""
        return f"{self.created[:23].replace(':', '').replace('.', '')}-{self.attempt}"


class RowExplained(Record, frozen=True, kw_only=True):
    """explained/<time>-<attempt>.json: the answer of a run that was asked why a row is there. A hint for people."""

    title: ClassVar[str] = "explained"

    answer: Json | None
    """As `tidegate why --json` prints it. None: there is no answer, as `problem` says."""
    problem: str = ""
    help: str = ""


class Acted(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.done.json: the outcome. It is missing if the process died before it could write it."""

    title: ClassVar[str] = "acted"

    succeeded: bool = msgspec.field(name="done")
    message: str = msgspec.field(name="told")
