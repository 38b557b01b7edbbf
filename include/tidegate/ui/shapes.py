"""The shapes of the API's answers, for its description. Clients may rely on these fields; later versions may add some.

Answers are not built from these models: each request would validate them field by field. `tests/ui/test_shapes.py`
calls each route and compares its answer with its shape, both ways.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import BaseModel, Field, RootModel, create_model

from tidegate.history.part_states import PART_STATES, PartState
from tidegate.history.row import MEASURES, CheckpointRow
from tidegate.records.records import State
from tidegate.ui.examples import EXAMPLES

__all__ = ["answers"]

_COLUMNS: dict[str, Any] = {
    name: (hint, Field(..., description=MEASURES[name].help) if name in MEASURES else ...)
    for name, hint in get_type_hints(CheckpointRow).items()
}


Row = create_model(
    "Row",
    __doc__="A checkpoint in short. Durations are seconds, sizes bytes, times ISO 8601; null: none, or not measured.",
    **_COLUMNS,
    state=(State, ...),
    undone_by=(int | None, Field(..., description="The rollback or swap that undid it")),
    replaced_by=(str | None, Field(..., description="The backfill that this swapped in")),
)


class CheckpointWithDetails(Row):  # type: ignore[valid-type,misc]
    """A checkpoint with all details."""

    details: dict[str, Any] = Field(
        description="jobs, sources, gates, states, tables, missing_acks, overtaken_jobs, config, detail …, each by name"
    )
    records_retained: bool = Field(description="False: its records are deleted, and this is from the history")


class ProgressAnswer(BaseModel):
    """What an attempt at a job was doing when it last said so, which a short one never does."""

    format: int
    attempt: str
    reported_at: str = Field(description="When the attempt last reported")
    age_seconds: float
    id: int
    job: str
    started: str
    step: str = Field(description="Empty: it is between two")
    current_step_seconds: float
    step_seconds: dict[str, float] = Field(description="How long each finished step took")
    read: dict[str, dict[str, int | None]] = Field(description="By source, the rows, bytes and files that it reads")
    tasks_done: int | None = Field(description="Of the query that Spark works at")
    tasks: int | None
    bytes_read: int | None


class CheckpointWithProgress(CheckpointWithDetails):
    """A checkpoint that is open or held."""

    progress: dict[str, ProgressAnswer] = Field(description="By job without an ack")


class Me(BaseModel):
    """The user."""

    name: str | None


class CountsAnswer(BaseModel):
    """Checkpoints of the whole history."""

    triggered: int
    in_progress: int
    held: int
    completed: int
    failed: int
    cancelled: int = Field(description="Aborted by a rollback or a cancel: not failures")
    rollbacks: int
    rolled_back: int
    swaps: int = Field(description="Backfills that were swapped in")
    replaced: int = Field(description="Checkpoints that a backfill's result has replaced")


class HealthAnswer(BaseModel):
    """A pipeline's health: one state, one cause, what to do in this order. `state` and `reason` are stable."""

    state: str = Field(examples=["well", "suspended"])
    needs_nothing: bool = Field(description="True: no action is needed")
    summary: str = Field(description="The state in a sentence")
    cause: str
    remedy: list[str]
    checkpoint: int | None = Field(None, description="The checkpoint that the state is about")
    reason: str = Field("", examples=["GATE_FAILED"])
    run_id: str | None = Field(None, description="The DAG run whose log says more")
    task: str | None = Field(None, description="Its task")
    gates: list[str] = Field([], description="Gates whose findings are to be looked at")


class LastCompleted(BaseModel):
    """The last completed checkpoint."""

    id: int
    decided: str
    seconds: float | None
    rows_out: int | None
    run: str


class RecentCheckpoints(BaseModel):
    """The last checkpoints and other entries, oldest first: each field has one value for each."""

    id: list[int]
    state: list[str]
    planned: list[str]
    seconds: list[float | None] = Field(description="From the plan to the decision; null: it is not decided")
    reason: list[str] = Field(description="Why it was aborted; empty: it was not")


class ListedPipeline(HealthAnswer):
    """A pipeline in the list. One whose records are damaged has no figures."""

    dag: str
    pipeline: str
    last_completed: LastCompleted | None = None
    age_seconds: float | None = None
    lag_seconds: float | None = None
    failures: int = Field(0, description="In a row, since the last completed one")
    in_progress: int = Field(0, description="Checkpoints that are planned and not decided")
    recent: RecentCheckpoints | None = Field(None, description="Null: not read yet, or not readable")
    owner: str
    tags: list[str] = Field(description="Of its DAG, without `tidegate`")


class NoticeAnswer(BaseModel):
    """Something that is to be set up, and how."""

    problem: str = Field(description="What is not set up")
    help: str
    is_blocking: bool = Field(description="True: pipelines cannot run so")


class PipelinesAnswer(BaseModel):
    """All that the caller may see."""

    pipelines: list[ListedPipeline]
    total: int
    complete: bool = Field(description="Whether all rows are current; if not, the next request continues there")
    notices: list[NoticeAnswer] = Field(description="What this Airflow lacks for pipelines")


class SavepointAnswer(BaseModel):
    """A savepoint."""

    name: str
    checkpoint: int
    created_by: str
    note: str
    created_at: str
    retained: bool = Field(description="Whether the checkpoint is still retained")


class LatestAnswer(BaseModel):
    """The newest of each kind."""

    completed: CheckpointWithDetails | None
    failed: CheckpointWithDetails | None
    rollback: CheckpointWithDetails | None
    swap: CheckpointWithDetails | None
    savepoint: SavepointAnswer | None


class SuspensionAnswer(BaseModel):
    """Why no run plans a checkpoint."""

    cause: str = Field(description="Who or what suspended the pipeline")
    why: str
    failed_checkpoints: list[int] = Field(description="Those that failed in a row, oldest first")
    action: str
    rejected_checkpoint: int | None = Field(description="The one whose rejection suspended it")
    entry: int | None


class ComparedBackfillTable(BaseModel):
    """Rows of one table."""

    rows_now: int
    rows_after: int
    rows_removed: int = Field(description="A row that the swap changes counts as removed and as added")
    rows_added: int


class ComparedBackfill(BaseModel):
    """What a swap would have changed as of the last comparison."""

    compared_at: str
    is_current: bool = Field(description="True: neither the backfill nor the pipeline has continued since")
    tables: dict[str, ComparedBackfillTable]
    unchanged_sinks: list[str] = Field(description="Sinks that stay as they are")
    tables_with_other_writers: list[str] = Field(
        description="Tables to which other writers have written since: a swap asks what to do with those rows"
    )
    problems: list[str] = Field(description="Why a swap would have been refused")


class HeldBackfill(BaseModel):
    """A checkpoint of a backfill that gates hold: `approve` and `reject` take it with the backfill's name."""

    checkpoint: int = Field(description="A number of the backfill's own log")
    gates: list[str]
    why: str


class BackfillAnswer(BaseModel):
    """A backfill and its progress."""

    name: str
    origin: int = Field(description="The checkpoint after which it begins; 0: the beginning")
    created_by: str
    note: str
    created_at: str
    state: str = Field(examples=["replaying", "held", "stopped", "caught_up", "blocked", "swapped"])
    checkpoints: int = Field(description="How many checkpoints it has made itself")
    caught_up_to: int = Field(description="The pipeline's checkpoint whose input it has read completely")
    caught_up_at: str | None = Field(description="When that checkpoint was completed")
    pending: int = Field(description="The pipeline's checkpoints whose input it has not read yet")
    oldest_pending_seconds: float | None = Field(description="The age of the oldest of these")
    swap: int | None = Field(description="The entry that has swapped it in")
    blocked_by: str = Field(description="Why it cannot continue; empty: it can")
    held_checkpoint: HeldBackfill | None
    stop_reason: str = Field(description="Why its last checkpoint was aborted; empty: it was not")
    last_comparison: ComparedBackfill | None


class Overview(BaseModel):
    """A pipeline at a glance."""

    dag: str
    pipeline: str
    started: bool
    by_interval: bool
    gates: list[str]
    health: HealthAnswer
    suspended: SuspensionAnswer | None
    counts: CountsAnswer
    latest: LatestAnswer
    open_checkpoints: list[CheckpointWithProgress] = Field(description="Those that are open or held")
    savepoints: list[SavepointAnswer]
    backfills: list[BackfillAnswer]
    recent: RecentCheckpoints
    history_problem: str
    now: str
    permissions: dict[str, bool] = Field(
        description="trigger, edit, answer, rollback, drain, backfill, swap: what the caller may do"
    )


class Checkpoints(BaseModel):
    """A page of the history."""

    checkpoints: list[Row]  # type: ignore[valid-type]
    total: int = Field(description="The number of all entries that match the filter")
    limit: int
    offset: int
    problem: str = Field(description="Why the history's table is left out; empty: it is not")


class Tasks(BaseModel):
    """The DAG's tasks of each part."""

    jobs: dict[str, str]
    gates: dict[str, str]
    complete: str


class Checkpoint(CheckpointWithProgress):
    """One checkpoint, however old."""

    sampled_parts: list[str] = Field(description="Stages, gates and operators of which it has kept some rows")
    savepoints: list[str]
    run_id: str | None
    previous: int | None
    next: int | None
    tasks: Tasks
    now: str


class ManifestAnswer(BaseModel):
    """The manifest as stored; null: none, or it is retired."""

    manifest: dict[str, Any] | None


class FindingAnswer(BaseModel):
    """One rule, and some of the values that broke it."""

    rule: str
    type: str
    column: str
    success: bool
    unexpected: int | None
    observed: str | None
    values: list[str]
    file: str | None = Field(description="The file with the first row that has the first of these values, if found")
    line: int | None = Field(description="Its line there")


class Findings(BaseModel):
    """A gate's findings on a checkpoint."""

    checkpoint: int
    gate: str
    rules: list[FindingAnswer]
    files: list[str] = Field(description="Some of the files that the checkpoint has read before this gate")
    file_count: int


class CheckpointOfRun(BaseModel):
    """The checkpoint that a run has made."""

    checkpoint: int | None
    run_id: str


class Spread(BaseModel):
    """The spread of a measure over completed checkpoints."""

    min: float
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float = Field(description="p99.9")
    max: float
    count: int


class Summary(BaseModel):
    """Measures by name; null: it was never measured."""

    measures: dict[str, Spread | None]


class Setting(BaseModel):
    """A setting, where it came from, and what the last checkpoint used."""

    key: str
    value: str
    origin: str
    used: str | None
    help: str = Field(description="What it does, in a sentence")


class Configuration(BaseModel):
    """As Airflow has read the DAG last."""

    pipeline: str
    root: str
    project: str
    settings: list[Setting]


class PartAnswer(BaseModel):
    """A source, stage, operator, gate or sink, and what it did in the checkpoint."""

    name: str
    role: str = Field(examples=["source", "stage", "operator", "gate", "sink"])
    kind: str
    inputs: list[str]
    job: str
    state: PartState | None = Field(description="; ".join(f"{state}: {text}" for state, text in PART_STATES.items()))
    rows: int | None
    seconds: float | None
    bytes: int | None
    late: int | None
    watermark: str | None
    verdict: str | None
    rate: float | None = Field(description="Of a source: rows per second of its job's work")
    waiting: int | None = Field(description="Of a source: the maximum number of rows that waited after those")
    waiting_files: int | None = Field(description="Of a source: files that waited")
    waiting_bytes: int | None = Field(description="Of a source: bytes that waited")
    waiting_seconds: float | None = Field(description="Of a source: how long the oldest waiting input has waited")
    sent: int | None = Field(description="Rows that it sent to other jobs")
    state_delta: int | None = Field(description="Of an operator: bytes of state that it wrote")
    state_files: int | None = Field(description="Of an operator: files of its state")
    event_time: str | None = Field(
        description="Event time up to which its output is complete: its own watermark, or the lowest of its inputs'"
    )
    quarantined: int | None = None
    released: int | None = Field(
        None, description="Of a gate: rows released from quarantine, which joined those that passed"
    )
    summary: str | None = Field(None, description="What a source has read")


class InFlightAnswer(BaseModel):
    """Rows that a job has yet to take from other jobs."""

    rows: int | None
    bytes: int | None


class GraphAnswer(BaseModel):
    """The pipeline's graph."""

    checkpoint: int | None = Field(description="The one that the states and figures are of")
    state: str | None = Field(description="The checkpoint's state")
    jobs: list[str]
    job_states: dict[str, PartState]
    parts: list[PartAnswer]
    in_flight: dict[str, InFlightAnswer] = Field(description="By job that the checkpoint went past")
    sampled_parts: list[str] = Field(
        description="Stages, gates and operators of which the checkpoint has kept some rows"
    )


class Pair(BaseModel):
    """The same of two checkpoints."""

    before: Any
    after: Any


class Compared(BaseModel):
    """Two checkpoints side by side."""

    before: dict[str, Any]
    after: dict[str, Any]
    measures: dict[str, Pair]
    sources: dict[str, Pair]
    tables: dict[str, Pair]
    states: dict[str, Pair]
    gates: dict[str, Pair]
    settings: dict[str, Pair] = Field(description="Those that differ")
    code_changed: bool


class Requested(BaseModel):
    """A request about rows that no checkpoint has carried out yet."""

    number: int
    action: str
    requested_by: str
    requested_at: str


class Waiting(BaseModel):
    """One gate's quarantine in numbers."""

    waiting: int
    settled: dict[str, int]
    rules: dict[str, int]
    complete: bool = Field(description="Whether all was counted; if not, ask again: it continues from there")
    requests: list[Requested]


class Quarantine(BaseModel):
    """By gate."""

    gates: dict[str, Waiting]


class QuarantinedRow(BaseModel):
    """A row that waits. Values are texts, cut if they are long."""

    id: str
    checkpoint: int
    rules: list[str]
    stays_because: str | None = Field(None, description="Why a requested release did not take it")
    values: dict[str, str | None]


class RowsAnswer(BaseModel):
    """A page of the rows that wait at a gate."""

    gate: str
    total: int
    complete: bool = Field(description="Whether all was counted; if not, there may be more: ask again")
    columns: list[str]
    rows: list[QuarantinedRow]


class TargetAnswer(BaseModel):
    """A table, now and after a rollback."""

    version: int | None = Field(description="The table's current version")
    restored_version: int
    uri: str
    rows_stay_because: str = Field(description="Why a rollback does not remove the target's rows; empty: it does")


class JudgedCheckpoint(BaseModel):
    """What a gate has found on a checkpoint."""

    id: int
    outcome: str
    rows: int
    broken: dict[str, int | None] = Field(description="By rule, the rows that broke it; null: it is not about rows")


class GateTrend(BaseModel):
    """A gate over the last checkpoints, oldest first."""

    gate: str
    checkpoints: list[JudgedCheckpoint]


class TableRows(BaseModel):
    """Some rows of a table as of a checkpoint. Values are texts, cut if they are long."""

    checkpoint: int
    sink: str
    table: str
    version: int
    columns: list[str]
    rows: list[dict[str, str | None]]


class RowChangeAnswer(BaseModel):
    """One row before and after; null: the row is new, or was removed. Values are texts, cut if they are long."""

    before: dict[str, str | None] | None
    after: dict[str, str | None] | None


class TableChanges(BaseModel):
    """How a table differs between two checkpoints."""

    checkpoint: int
    since: int
    sink: str
    table: str
    keys: list[str] = Field(
        description="Rows are matched by these. Without any, a changed row is one removed, one added"
    )
    columns: list[str]
    added: int
    removed: int
    changed: int
    rows: list[RowChangeAnswer]


class QuarantinedRowStatus(QuarantinedRow):
    """A quarantined row, and what has become of it."""

    status: str = Field(examples=["waiting", "released", "discarded"])


class QuarantinedRowsAt(BaseModel):
    """Some of the rows that a gate has quarantined at a checkpoint."""

    gate: str
    checkpoint: int
    columns: list[str]
    rows: list[QuarantinedRowStatus]


class StreamSample(BaseModel):
    """A few rows of one stream, in no particular order. Values are texts, cut if they are long."""

    stream: str
    columns: list[str]
    rows: list[dict[str, str | None]]
    hidden: list[str] = Field(description="Columns that the setting sample_hidden keeps out of samples")
    left_out: int = Field(description="How many further columns it has")
    problem: str = Field(description="Why the sample is missing; empty: it is not")


class PartSamples(BaseModel):
    """Some of the rows that a stage, a gate or an operator emitted in a checkpoint."""

    checkpoint: int
    part: str
    streams: list[StreamSample]


class UndoneSwap(BaseModel):
    """A swap that a rollback undoes."""

    id: int
    backfill: str | None


class RollbackPlan(BaseModel):
    """The effects that a rollback would have."""

    to: int
    decided: str
    undone: list[int] = Field(description="Checkpoints that no longer count")
    undone_swaps: list[UndoneSwap]
    aborted: list[int] = Field(description="Open checkpoints that the rollback aborts")
    sources: list[str]
    tables: dict[str, TargetAnswer]


class ActedAnswer(BaseModel):
    """An action that a user has taken."""

    requested_at: str
    requested_by: str
    action: str
    request: dict[str, Any] = Field(description="Its parameters")
    succeeded: bool | None = Field(description="Null: the result is unknown")
    message: str = Field(description="The outcome in a sentence")


class Audit(BaseModel):
    """Newest first."""

    actions: list[ActedAnswer]


class Points(RootModel[dict[str, list[Any]]]):
    """Measures by name, each with a value per checkpoint, oldest first."""


def answers(shape: type[BaseModel]) -> dict[str, Any]:
    """The arguments of a route that describe its answer without validating it."""
    content = {"application/json": {"example": EXAMPLES[shape.__name__]}}
    return {"response_model": None, "responses": {200: {"model": shape, "content": content}}}
