"""Every record of the ledger, written once and never changed (docs/protocol.md, section 1).

    pipeline.json            PipelineRecord   uid of the pipeline, made at its first start
    forking.json             PipelineRecord   the same, while the pipeline is being forked from another one
    checkpoints/<id>/
      plan.json              Plan             fixes the input of checkpoint <id>
      acks/<job>.json        Ack              a job's one effect: names everything that it staged
      overtaken/<job>.json   Overtaken        the checkpoint went past the job, which was still busy with another
      manifest-<sha>.json    Manifest         what the decision will make true, self-contained
      decision.json          Decision         THE COMMIT POINT: completed or aborted
      published.json         Published        a hint for readers, never the truth
      retired.json           Retired          retention's tombstone: this entry may be deleted
      holds/<gate>.json      Answer           what a person, or the time limit, says to a verdict that holds
    asked/<gate>/<number>.json Request        what is to become of rows in the gate's quarantine
    pins/<owner>.json        Pin              what retention must spare: a checkpoint that somebody refers to
    intervals/<key>/<id>.json Filled          an interval pipeline's checkpoint <id> completed this interval
    beginnings/<source>/<id>.json Beginning where a source begins that says "from now on", whatever becomes of <id>
    discarded.json           Discarded        the last checkpoint's tombstone, if the pipeline was cancelled for good
    latest.json              Latest           a hint: an entry up to which all is decided and published
    kept.json                Kept             a hint: how many completed entries there are from one to another
    audit/<time>-<attempt>.json Act           what somebody has done from the pages; .done.json: Acted
    trouble.json             Trouble          a hint: the last error that no checkpoint tells of
    told.json                Told             a hint: the last suspension that the pipeline's hooks were told of

`format` comes first. An unknown field is an error, not ignored: a newer tidegate may have meant something by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from tidegate.records.interval import Interval

__all__ = [
    "FORMAT",
    "KINDS",
    "REQUEST",
    "STATES",
    "Act",
    "Acted",
    "Amount",
    "Blob",
    "Claimed",
    "Copy",
    "Handle",
    "Hold",
    "Id",
    "InFlight",
    "JobStats",
    "Json",
    "Kind",
    "Origin",
    "Overtaken",
    "Overtaking",
    "Pace",
    "Payload",
    "PipelineRecord",
    "Record",
    "RecordedRule",
    "Sha",
    "State",
    "Struct",
    "Timed",
    "Told",
    "Trouble",
    "Verdict",
    "sum_of",
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
    """Fresh random id of the writer: tells an own write from somebody else's after an unclear answer."""
    created: str
    """Wall-clock time in UTC, for people. Nothing is decided by it."""

    def flaw(self) -> str | None:
        """What is wrong with the fields together, each by itself being right. Asked after reading."""
        return None


class Blob(Struct, frozen=True, kw_only=True):
    """A long list that lies beside its record: where, and what it must hash to."""

    path: Annotated[str, msgspec.Meta(pattern="^blobs/[^/]+$")]
    """Below the ledger. Retention deletes by it, so it can name nothing but a side file."""
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
    "suspended",
    "resumed",
    "stopped",
    "cancelled",
]
Kind: TypeAlias = Literal["scheduled", "manual", "control", "restart", "fork"]

STATES: Final[tuple[str, ...]] = get_args(State)
KINDS: Final[tuple[str, ...]] = get_args(Kind)


class Handle(Struct, frozen=True, kw_only=True):
    """Names one ack: the entry that it lies in and the hash of its bytes."""

    entry: Id
    sha: Sha


class Overtaking(Struct, frozen=True, kw_only=True):
    """Which jobs the checkpoint may go past while they are busy with an earlier one."""

    jobs: list[str]
    after_s: float
    """So long it waits for them first."""


class InFlight(Struct, frozen=True, kw_only=True):
    """What a job has sent, and another one has not taken."""

    job: str
    """Who has sent it."""
    ack: Handle
    channels: dict[str, Payload]
    """Of its channels those that the other one takes."""


class Overtaken(Record, frozen=True, kw_only=True):
    """Checkpoint `id` does not wait for `job`: its last ack stands for it, and what it has not taken is in flight."""

    title: ClassVar[str] = "overtaken"

    id: Id
    job: str
    busy_with: Id | None
    """The checkpoint that it was at work on. None: a job that it takes from was overtaken."""


class Origin(Struct, frozen=True, kw_only=True):
    """The checkpoint that a pipeline was forked from. Its own log begins with it, under the same number."""

    pipeline: str
    uid: str
    entry: Id
    manifest: Sha
    by: str
    note: str = ""


class Copy(Record, frozen=True, kw_only=True):
    """What a folder is that holds a savepoint."""

    title: ClassVar[str] = "savepoint.json"

    name: str
    origin: Origin
    files: Payload
    """The size and sha256 of every other file: {"files": {path: [size, sha256]}}."""
    states: dict[str, Payload] = {}
    """States that are in the folder as one file instead of those that the checkpoint's own records name."""


class Claimed(Record, frozen=True, kw_only=True):
    """The pipeline with this uid owns the folder, and removes it."""

    title: ClassVar[str] = "claimed.json"

    uid: str


class PipelineRecord(Record, frozen=True, kw_only=True):
    """Identity of a pipeline, made at its first start. A new uid means a new pipeline to every table."""

    title: ClassVar[str] = "pipeline.json"

    uid: str
    name: str
    origin: Origin | None = None


class Timed(Struct, frozen=True, kw_only=True):
    """A completed checkpoint: what it read of the source, and how long it took, by its writers' clocks."""

    id: Id
    amount: int
    seconds: float


class Pace(Struct, frozen=True, kw_only=True):
    """One source's pace in one plan."""

    unit: str
    """What amounts are counted in: bytes or rows."""
    at_most: int | None
    """None: nothing is known yet, so only the source's own bounds hold."""
    taken: int
    target_s: float
    """So long a checkpoint should take."""
    fixed_s: float = 0.0
    """So long it takes whatever it reads, as far as that was ever seen."""
    seen: list[Timed] = []
    """What it goes by, oldest first."""
    why: str
    """For people."""


class Amount(Struct, frozen=True, kw_only=True):
    """How much it is. None: nobody knows."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """All of them together; not known, if it is not known of one."""
    found = list(amounts)
    return Amount(
        rows=_sum(each.rows for each in found),
        bytes=_sum(each.bytes for each in found),
        files=_sum(each.files for each in found),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


class JobStats(Struct, frozen=True, kw_only=True):
    """What a job measured of itself; shown, never asked."""

    started: str = ""
    """When the attempt began, by the clock of its machine; empty: written before that was kept."""
    seconds: dict[str, float] = {}
    """How long each step took."""
    aligned_s: float | None = None
    sync_s: float | None = None
    async_s: float | None = None
    taken: dict[str, Amount] = {}
    """What it has read, by source."""
    received: dict[str, Amount] = {}
    """What it has taken from other jobs, by stream."""
    sent: dict[str, Amount] = {}
    """What it has put into channels for other jobs, by stream."""
    processed: Amount | None = None
    """What of that was in flight: sent in older checkpoints."""
    rows: dict[str, int] = {}
    """By sink, what it has staged; bytes and files likewise."""
    bytes: dict[str, int] = {}
    files: dict[str, int] = {}
    watermarks: dict[str, str] = {}
    """How far event time has come, by source and operator."""
    idle: list[str] = []
    """Sources that event time did not wait for."""
    counts: dict[str, dict[str, int]] = {}
    """What operators counted, such as late rows."""


class RecordedRule(Struct, frozen=True, kw_only=True):
    """A gate's rule that failed, and what follows from it."""

    rule: str
    policy: Literal["abort", "hold", "quarantine", "warn"]
    severity: str
    rows: int | None
    """How many rows broke it; None if it speaks of no rows."""
    why: str


class Hold(Struct, frozen=True, kw_only=True):
    """How long a verdict waits for a person, and what counts if nobody answers."""

    limit_s: float | None
    default: Literal["approve", "reject"]


class Verdict(Struct, frozen=True, kw_only=True):
    """What a gate found in exactly what the ack names. `abort`: the checkpoint cannot complete; `hold`: not before
    somebody approves."""

    outcome: Literal["pass", "warn", "quarantine", "hold", "abort"]
    rows: int
    quarantined: int
    released: int = 0
    """Rows from quarantine that went on with those that passed."""
    hold: Hold | None = None
    why: str = ""
    """What beside its rules led to the outcome."""
    broken: list[RecordedRule]
    policy: Json
    results: Payload
    """All that was found, for people: of expectations it is Great Expectations' own result."""


class Position(Struct, frozen=True, kw_only=True):
    """How far a source has been read. `at` is the source's own business; None is the beginning."""

    kind: str
    at: Json | None


class Unread(Struct, frozen=True, kw_only=True):
    """Input that lies at a source, and that no run will ever read by itself."""

    count: int
    what: str
    """How many, why, and the names of a few."""
    help: str
    """How to have it read after all, or how to be rid of it."""


class Range(Struct, frozen=True, kw_only=True):
    """One source's part of a plan: from `start` (exclusive) to `end` (inclusive), and what lies between."""

    kind: str
    start: Json | None
    end: Json | None
    splits: Payload
    """What to read, with fingerprints: enough to read the same rows again, or to notice that one cannot."""
    empty: bool
    """True: nothing new; the checkpoint may still be made."""
    more: bool = False
    """True: a bound cut this range short, more is waiting already."""
    summary: str = ""
    """For people: "3 of 9 files, 1.2 MB"."""
    unread: Unread | None = None
    """What the source has passed by for good, as of this plan."""
    pace: Pace | None = None
    """Of a source whose bound follows from how long checkpoints take."""


class PublishedTable(Struct, frozen=True, kw_only=True):
    """Where a table stood right after this checkpoint was published on it."""

    uri: str
    version: int
    log_hash: str
    rows: int | None = None


class Control(Struct, frozen=True, kw_only=True):
    """An act of a person, or of a rule, that takes its place among the checkpoints."""

    action: Literal["suspend", "resume", "stop", "cancel"]
    by: str
    reason: str = ""
    final: bool = False
    """Of a cancellation: for good. Nothing comes behind it, and what nobody has named is removed."""
    set_aside: bool = False
    """Of resume: the next checkpoint sets aside what a gate would hold again."""


class Restored(Struct, frozen=True, kw_only=True):
    """What a rollback does to one table."""

    how: Literal["restore", "discard", "retract", "keep"]
    """Back to the version, unless others have committed since; back, whatever others have committed; back with this
    pipeline's own rows only; or leave the rows as they are."""
    to: PublishedTable | None
    """Where the table stood as of the target; None: it was made after that, and is to be empty."""


class Restart(Struct, frozen=True, kw_only=True):
    """A rollback: positions, state and outputs go back to checkpoint `target`. What lies between no longer counts."""

    target: Id
    manifest: Sha
    by: str
    reason: str = ""
    tables: dict[str, Restored]
    left: list[str] = []
    """Tables that somebody has let go of: what was owed to them is never published, and nothing is put back there."""
    suspended: Control | None = None
    """Because of whom no checkpoint is planned behind it until somebody resumes: it answers no suspension."""


class Drain(Struct, frozen=True, kw_only=True):
    """The checkpoint at the end of time: whatever waits for event time is over with it. It is the last one."""

    by: str
    reason: str = ""


class Plan(Record, frozen=True, kw_only=True):
    """What checkpoint `id` is about. Its creation is the creation of the entry."""

    title: ClassVar[str] = "plan.json"

    id: Id
    kind: Kind
    run: str
    generation: int = 0
    base: Id | None
    control: Control | None = None
    """What the entry does instead of being a checkpoint."""
    restart: Restart | None = None
    """Where the entry goes back to instead of reading something."""
    drain: Drain | None = None
    """Of the last checkpoint: event time comes to its end. Of a rollback: it goes back to such a one."""
    draining: Drain | None = None
    """The end was asked for, and more input waits than this checkpoint takes: those behind it read on, and the one
    that leaves nothing is the last."""
    interval: tuple[str, str] | None = None
    """The run's data interval, in UTC."""
    by_interval: bool = False
    """True: an interval pipeline's. It rests on nothing, and replaces what its interval has put into the tables."""
    set_aside: bool = False
    """Rows that a gate would hold go to its quarantine: a person has chosen so after a rejection."""
    reach: tuple[str, str] | None = None
    """From where to where the intervals reach that this checkpoint and those below it were given."""
    sources: dict[str, Range]
    pins: dict[str, Payload] = {}
    """What operators read beside their streams, such as a table's version, by uid: the same for every attempt."""
    hooks: dict[str, Json] = {}
    """What the pipeline's hooks keep with the checkpoint, by name; of a rollback what they kept with its target."""
    triggers: list[str]
    acks: list[str]
    takes: dict[str, dict[str, str]] = {}
    """By job, the streams that it takes, and the jobs that make them."""
    overtaking: Overtaking | None = None
    commits: list[str]
    through: list[str] | None = None
    """At least once: the sinks whose rows jobs commit to their tables before the decision. None: exactly once."""
    timeout_s: float
    config: Json
    config_fingerprint: str
    code_fingerprint: str

    def flaw(self) -> str | None:
        if self.base is not None and self.base >= self.id:
            return f"checkpoint {self.id} cannot rest on {self.base}"
        if (self.kind == "control") != (self.control is not None):
            return "a control entry says what it does, a checkpoint does not"
        if (self.kind == "restart") != (self.restart is not None):
            return "a rollback says where it goes back to, a checkpoint does not"
        if self.restart is not None and self.restart.target >= self.id:
            return f"entry {self.id} cannot go back to {self.restart.target}"
        if not all(texts is None or Interval.is_record(texts) for texts in (self.interval, self.reach)):
            return f"{self.interval} or {self.reach} is no interval"
        if self.by_interval and (self.interval is None or self.base is not None):
            return "a checkpoint of an interval pipeline has an interval and rests on nothing"
        return None


class Ack(Record, frozen=True, kw_only=True):
    """ "Everything that job did for checkpoint `id` is durable, and this is all of it." First one wins, whole."""

    title: ClassVar[str] = "ack"

    id: Id
    job: str
    prev: Handle | None
    sinks: dict[str, Payload]
    states: dict[str, Payload] = {}
    """Every keyed state as of this checkpoint, changed or not (state/record.py)."""
    memory: dict[str, Json] = {}
    """What is small and remembered, per operator and source: watermarks, counters."""
    gates: dict[str, Verdict] = {}
    inputs: dict[str, list[Handle]] = {}
    """By job whose channels it takes, the acks that it has taken: all since its own last one, in their order."""
    ahead: list[Handle] = []
    """At least once: what it has taken, in this checkpoint or before, of later ones."""
    channels: dict[str, Payload] = {}
    """What it has sent to other jobs, by stream (sinks/channel.py)."""
    through: dict[str, PublishedTable] = {}
    """At least once: where the tables stood once it had written to them."""
    stats: JobStats


class Answer(Record, frozen=True, kw_only=True):
    """The answer to a verdict that holds checkpoint `id`. The first one counts: a person's, or the time limit's."""

    title: ClassVar[str] = "answer"

    id: Id
    gate: str
    ack: Handle
    """Of what exactly."""
    approve: bool
    by: str
    note: str = ""


class Request(Record, frozen=True, kw_only=True):
    """What is to become of rows in quarantine. The next plan takes up all that are there, in their order.

    It is about rows that wait there, were set aside by checkpoint `seen` or before, and meet all that is given.
    """

    title: ClassVar[str] = "request"

    number: Id
    gate: str
    action: Literal["release", "discard", "withdraw"]
    """Let them go on from where the gate stands; keep them out for good; or, take back an earlier request."""
    seen: int = 0
    ids: list[str] = []
    checkpoints: list[int] = []
    rules: list[str] = []
    correct: dict[str, str | None] = {}
    """Values, as texts, that columns get on release."""
    withdraws: Id | None = None
    by: str
    note: str = ""

    def flaw(self) -> str | None:
        if (self.action == "withdraw") != (self.withdraws is not None):
            return "a withdrawal names a request, all else none"
        return None


class TablePart(Struct, frozen=True, kw_only=True):
    """What checkpoint `id` publishes on one table, and which entry must be the last one there before it."""

    after: Id | None
    committables: list[Payload]
    restore: Restored | None = None
    """Of a rollback. It comes after whatever is there, and is always committed: so it fences what was cancelled."""
    through: PublishedTable | None = None
    """At least once: where the table stood once jobs had written to it, up to this checkpoint."""


class Manifest(Record, frozen=True, kw_only=True):
    """What a completed decision makes true. Self-contained: recovery needs no older record."""

    title: ClassVar[str] = "manifest"

    id: Id
    base: Id | None
    base_manifest: Sha | None
    positions: dict[str, Position]
    jobs: dict[str, Handle]
    tables: dict[str, TablePart]
    in_flight: dict[str, list[InFlight]] = {}
    """By job that was overtaken, what it has yet to take, in the order in which it will."""


class Decision(Record, frozen=True, kw_only=True):
    """The commit point. Created once; whoever reads it, obeys it."""

    title: ClassVar[str] = "decision.json"

    id: Id
    outcome: Literal["completed", "aborted"]
    manifest: Sha | None = None
    reason: str = ""
    detail: str = ""
    counts: bool = False
    """Whether an abort counts towards the tolerable failures."""

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
    """The pipeline's own folder when this was written. Elsewhere by now: the project was moved, or copied."""
    paths: dict[str, str] = {}
    """By sink, the path of its table, where that starts from the setting `data`: it moves with the project."""


class Retired(Record, frozen=True, kw_only=True):
    """Retention's tombstone: nothing may refer to `id` any more."""

    title: ClassVar[str] = "retired.json"

    id: Id


class Discarded(Record, frozen=True, kw_only=True):
    """What the last checkpoint `id` of a pipeline names is removed: entry `control` has cancelled it for good."""

    title: ClassVar[str] = "discarded.json"

    id: Id
    control: Id


class Pin(Record, frozen=True, kw_only=True):
    """Somebody refers to checkpoint `entry`: retention spares it until the pin is gone."""

    title: ClassVar[str] = "pin"

    owner: str
    kind: Literal["rollback", "savepoint", "fork", "copy", "day"]
    entry: Id
    manifest: Sha
    restart: Id | None = None
    """Of a rollback: the entry that it was going to be. When that is retired, or is another's, the pin is of no use."""
    by: str = ""
    note: str = ""

    def flaw(self) -> str | None:
        if (self.kind == "rollback") != (self.restart is not None):
            return "the pin of a rollback names its entry, all else none"
        return None


class Filled(Record, frozen=True, kw_only=True):
    """Checkpoint `id` completed an interval. Never deleted: it tells a later one what it replaces."""

    title: ClassVar[str] = "interval"

    id: Id
    interval: tuple[str, str]
    traces: dict[str, Json]
    """Per sink, what the checkpoint's rows can be found by in its target."""

    def flaw(self) -> str | None:
        return None if Interval.is_record(self.interval) else f"{self.interval} is no interval"


class Beginning(Record, frozen=True, kw_only=True):
    """Where a source begins, if that hangs on the moment of the first look: decided once, for checkpoint `id` or
    whichever comes in its place. Never deleted."""

    title: ClassVar[str] = "beginning"

    id: Id
    source: str
    at: Json


class LatestHint(Record, frozen=True, kw_only=True):
    """All entries up to `id` are decided, and published if completed. Any old value is right, only slower."""

    title: ClassVar[str] = "latest.json"

    id: Id


class Tried(Record, frozen=True, kw_only=True):
    """Object stores that were tried out, and make an object only once. A lost hint has them tried out again."""

    title: ClassVar[str] = "tried.json"

    stores: list[str]


class Kept(Record, frozen=True, kw_only=True):
    """Of the entries `low` to `upto`, all decided, so many are completed, and not rolled back. Any old value is true,
    only slower."""

    title: ClassVar[str] = "kept.json"

    low: Id
    upto: Id
    completed: Annotated[int, msgspec.Meta(ge=0)]
    rollback: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The last rollback that was known: what it had gone back behind was not counted."""

    def flaw(self) -> str | None:
        if not 0 <= self.completed <= self.upto - self.low + 1:
            return f"{self.completed} of the entries {self.low} to {self.upto} cannot be completed"
        return None


class Trouble(Record, frozen=True, kw_only=True):
    """The last error that a run met: it could not plan, its job is tried again, or it could not publish.

    A hint, like latest.json: the next one replaces it, and a lost one is no loss.
    """

    title: ClassVar[str] = "trouble.json"

    run: str
    step: str
    """What was being done: a task's id, or a step of `tidegate run`."""
    entry: Id | None
    """The run's checkpoint, if it had one by then."""
    after: int
    """The last entry of the log by then: whatever comes behind it knows more."""
    kind: str
    reason: str
    what: str
    expected: str
    help: str
    unplanned: int = 0
    """So many runs in a row have ended and could not plan a checkpoint."""


class Told(Record, frozen=True, kw_only=True):
    """The pipeline's hooks were told of the suspension that is entry `id`. A lost hint has them told again."""

    title: ClassVar[str] = "told.json"

    id: Id


REQUEST = "request"
"""What a run's conf holds if it is to do what was asked for: the act's key."""


class Act(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.json: somebody who may has asked for this."""

    title: ClassVar[str] = "act"

    action: str
    by: str
    asked: Json
    """What it was asked with."""
    run: str = ""
    """The ledger's name of the run of the DAG that is to do it, and no other; empty: it is done at once."""

    @property
    def key(self) -> str:
        """Its name in the ledger, by which a run is told what to do."""
        return f"{self.created[:23].replace(':', '').replace('.', '')}-{self.attempt}"


class Acted(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.done.json: what came of it. Missing: nobody came to write it down."""

    title: ClassVar[str] = "acted"

    done: bool
    told: str
