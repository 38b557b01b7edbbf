"""The API's answers. Clients may rely on these fields; later versions may add some.

Each route says what it returns, and its description and its example follow from that. The example is of a shop whose
gate has quarantined two orders.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from tidegate.history.part_states import PART_STATES, PartState
from tidegate.history.row import MEASURES
from tidegate.history.schemas.timeline import SourceTimeline
from tidegate.history.view import ListedCheckpoint
from tidegate.records.records import Json


def example(value: Any, description: str | None = None) -> msgspec.Meta:
    """Describe a field: an example of its value, and its meaning unless the name says it."""
    return msgspec.Meta(description=description, examples=[value])


_NOW: Final = "2026-03-01T10:11:38.000+00:00"
_DECIDED: Final = "2026-03-01T10:11:06.345+00:00"
_RUN_ID: Final = "scheduled__2026-03-01T10:11:00+00:00"
_RUN: Final = f"airflow:orders:{_RUN_ID}"
_TABLE: Final = "/srv/data/tables/totals"
_CHECKPOINT: Final[Json] = {
    **{"id": 7, "kind": "scheduled", "outcome": "completed", "state": "completed", "reason": "", "why": ""},
    **{"quotes_rows": False, "by": "", "run": _RUN, "attempt": "00f1e2d3c4b5a697", "base": 6, "generation": 0},
    **{"back_to": None, "backfill": None, "interval": None, "undone_by": None, "replaced_by": None},
    **{"planned": "2026-03-01T10:11:02.120+00:00", "decided": _DECIDED, "published": "2026-03-01T10:11:06.480+00:00"},
    **{"jobs": 1, "acked": 1, "released": 0, "verdict": "quarantine", "watermark": "2026-03-01T09:10:58.000+00:00"},
}
"""An example of each column that is no measure."""
_MEASURED: Final = {"s": 4.225, "rows": 120, "bytes": 18_332, "rows/s": 33.0, "times": 12}
"""An example of a measure, by its unit."""


_PLANNED_SCHEMA: Final[Json] = {
    "checkpoint": 7,
    "planned": "2026-03-01T10:11:02.120+00:00",
    "schema": "`id` bigint, `vip` boolean",
    "columns": [{"name": "vip", "before": None, "after": "boolean", "found_by": 6, "file": "0006.json"}],
}

Cells = dict[Annotated[str, example("amount")], Annotated[str | None, example("-5.00")]]
"""A row. Values are texts, cut if they are long."""


class CheckpointWithDetails(ListedCheckpoint, frozen=True, kw_only=True):
    """A checkpoint with all details."""

    details: Annotated[
        Json,
        example(
            {"detail": "", "missing_acks": [], "timeout_s": 600.0},
            "jobs, sources, gates, states, tables, missing_acks, overtaken_jobs, config, detail …, each by name",
        ),
    ]
    records_retained: Annotated[bool, example(True, "False: its records are deleted, and this is from the history")]


class ProgressAnswer(msgspec.Struct):
    """What an attempt at a job was doing when it last said so, which a short one never does."""

    format: int
    attempt: str
    reported_at: Annotated[str, msgspec.Meta(description="When the attempt last reported")]
    age_seconds: float | None
    id: int
    job: str
    started: str
    step: Annotated[str, msgspec.Meta(description="Empty: it is between two")]
    current_step_seconds: float
    step_seconds: Annotated[dict[str, float], msgspec.Meta(description="How long each finished step took")]
    read: Annotated[
        dict[str, dict[str, int | None]],
        msgspec.Meta(description="By source, the rows, bytes and files that it reads"),
    ]
    tasks_done: Annotated[int | None, msgspec.Meta(description="Of the query that Spark works at")]
    tasks: int | None
    bytes_read: int | None


class CheckpointWithProgress(CheckpointWithDetails, frozen=True, kw_only=True):
    """A checkpoint that is open or held."""

    progress: Annotated[dict[str, ProgressAnswer], example({}, "By job without an ack")]


class Me(msgspec.Struct):
    """The user."""

    name: Annotated[str | None, example("mia")]


class CountsAnswer(msgspec.Struct):
    """Checkpoints of the whole history."""

    triggered: Annotated[int, example(7)]
    in_progress: Annotated[int, example(0)]
    held: Annotated[int, example(0)]
    completed: Annotated[int, example(7)]
    failed: Annotated[int, example(0)]
    cancelled: Annotated[int, example(0, "Aborted by a rollback or a cancel: not failures")]
    rollbacks: Annotated[int, example(0)]
    rolled_back: Annotated[int, example(0)]
    swaps: Annotated[int, example(0, "Backfills that were swapped in")]
    replaced: Annotated[int, example(0, "Checkpoints that a backfill's result has replaced")]


class HealthAnswer(msgspec.Struct):
    """A pipeline's health: one state, one cause, what to do in this order. `state` and `reason` are stable."""

    state: Annotated[str, example("well")]
    needs_nothing: Annotated[bool, example(True, "True: no action is needed")]
    summary: Annotated[str, example("Pipeline orders is well: checkpoint 7 is completed", "The state in a sentence")]
    cause: Annotated[str, example("")]
    remedy: Annotated[list[str], example([])]
    checkpoint: Annotated[int | None, example(7, "The checkpoint that the state is about")] = None
    reason: Annotated[str, example("", "A stable code, such as GATE_FAILED")] = ""
    run_id: Annotated[str | None, example(_RUN_ID, "The DAG run whose log says more")] = None
    task: Annotated[str | None, example(None, "Its task")] = None
    gates: Annotated[list[str], example([], "Gates whose findings are to be looked at")] = []


class PromiseAnswer(msgspec.Struct):
    """How old a sink's table may be, and whether it is older."""

    sink: Annotated[str, example("totals")]
    fresh_seconds: Annotated[float, example(900.0, "How old its table may be")]
    kept: Annotated[bool, example(True)]
    breaks_at: Annotated[
        str, example("2026-03-01T10:26:02.120+00:00", "When it breaks without a newer checkpoint, or was broken")
    ]
    input_until: Annotated[
        str | None,
        example("2026-03-01T10:11:02.120+00:00", "The table has all input up to then; null: nothing is published yet"),
    ]
    checkpoint: Annotated[int | None, example(7, "The checkpoint that read the last of it")]


class ContractAnswer(msgspec.Struct):
    """The data contract of a sink, as it was when Airflow last read the DAG."""

    sink: Annotated[str, example("orders")]
    file: Annotated[str, example("contracts/orders.odcs.yaml")]
    name: Annotated[str, example("Orders")]
    version: Annotated[str, example("1.2.0")]
    status: Annotated[str, example("active")]
    domain: Annotated[str, example("sales")]
    team: Annotated[str, example("Checkout")]
    owner: Annotated[str, example("Mia Lang", "The member of the team whose role is owner")]
    purpose: Annotated[str, example("Orders for reports")]
    problem: Annotated[str, example("", "Why the file could not be read; empty: it could")]


class LastCompleted(msgspec.Struct):
    """The last completed checkpoint."""

    id: Annotated[int, example(7)]
    decided: Annotated[str | None, example(_DECIDED)]
    seconds: Annotated[float | None, example(4.225)]
    rows_out: Annotated[int | None, example(120)]
    run: Annotated[str, example(_RUN)]


class RecentCheckpoints(msgspec.Struct):
    """The last checkpoints and other entries, oldest first: each field has one value for each."""

    id: Annotated[list[int], example([6, 7])]
    state: Annotated[list[str], example(["completed", "completed"])]
    planned: Annotated[list[str], example(["2026-03-01T10:10:02.016+00:00", "2026-03-01T10:11:02.120+00:00"])]
    seconds: Annotated[
        list[float | None], example([3.9, 4.225], "From the plan to the decision; null: it is not decided")
    ]
    reason: Annotated[list[str], example(["", ""], "Why it was aborted; empty: it was not")]


class ListedPipeline(HealthAnswer, kw_only=True):
    """A pipeline in the list. One whose records are damaged has no figures."""

    dag: Annotated[str, example("orders")]
    pipeline: Annotated[str, example("orders")]
    last_completed: LastCompleted | None = None
    age_seconds: Annotated[float | None, example(31.5)] = None
    lag_seconds: Annotated[float | None, example(3608.3)] = None
    failures: Annotated[int, example(0, "In a row, since the last completed one")] = 0
    in_progress: Annotated[int, example(0, "Checkpoints that are planned and not decided")] = 0
    promises: list[PromiseAnswer] = []
    recent: Annotated[RecentCheckpoints | None, msgspec.Meta(description="Null: not read yet, or not readable")] = None
    owner: Annotated[str, example("mia")]
    tags: Annotated[list[str], example(["sales"], "Of its DAG, without `tidegate`")]


class NoticeAnswer(msgspec.Struct):
    """Something that is to be set up, and how."""

    problem: Annotated[str, example("LocalExecutor starts up to 32 workers of 150 MB each", "What is not set up")]
    help: Annotated[str, example("set [core] parallelism (AIRFLOW__CORE__PARALLELISM), to 4 to begin with")]
    is_blocking: Annotated[bool, example(False, "True: pipelines cannot run so")]


class PipelinesAnswer(msgspec.Struct):
    """All that the caller may see."""

    pipelines: list[ListedPipeline]
    total: Annotated[int, example(1)]
    complete: Annotated[bool, example(True, "Whether all rows are current; if not, the next request continues there")]
    notices: Annotated[list[NoticeAnswer], msgspec.Meta(description="What this Airflow lacks for pipelines")]


class SavepointAnswer(msgspec.Struct):
    """A savepoint."""

    name: Annotated[str, example("before-prices")]
    checkpoint: Annotated[int, example(7)]
    created_by: Annotated[str, example("mia in Airflow")]
    note: Annotated[str, example("last good one")]
    created_at: Annotated[str, example("2026-03-01T10:15:00.000+00:00")]
    retained: Annotated[bool, example(True, "Whether the checkpoint is still retained")]


class LatestAnswer(msgspec.Struct):
    """The newest of each kind."""

    completed: CheckpointWithDetails | None
    failed: Annotated[CheckpointWithDetails | None, example(None)]
    rollback: Annotated[CheckpointWithDetails | None, example(None)]
    swap: Annotated[CheckpointWithDetails | None, example(None)]
    savepoint: SavepointAnswer | None


class SuspensionAnswer(msgspec.Struct):
    """Why no run plans a checkpoint."""

    cause: Annotated[str, msgspec.Meta(description="Who or what suspended the pipeline")]
    why: str
    failed_checkpoints: Annotated[list[int], msgspec.Meta(description="Those that failed in a row, oldest first")]
    action: str
    rejected_checkpoint: Annotated[int | None, msgspec.Meta(description="The one whose rejection suspended it")]
    entry: int | None


class ComparedBackfillTable(msgspec.Struct):
    """Rows of one table."""

    rows_now: Annotated[int, example(78)]
    rows_after: Annotated[int, example(78)]
    rows_removed: Annotated[int, example(40, "A row that the swap changes counts as removed and as added")]
    rows_added: Annotated[int, example(40)]


class ComparedBackfill(msgspec.Struct):
    """What a swap would have changed as of the last comparison."""

    compared_at: Annotated[str, example("2026-03-01T10:10:20.000+00:00")]
    is_current: Annotated[bool, example(False, "True: neither the backfill nor the pipeline has continued since")]
    tables: dict[Annotated[str, example("totals")], ComparedBackfillTable]
    unchanged_sinks: Annotated[list[str], example([], "Sinks that stay as they are")]
    tables_with_other_writers: Annotated[
        list[str],
        example([], "Tables to which other writers have written since: a swap asks what to do with those rows"),
    ]
    problems: Annotated[list[str], example([], "Why a swap would have been refused")]


class HeldBackfill(msgspec.Struct):
    """A checkpoint of a backfill that gates hold: `approve` and `reject` take it with the backfill's name."""

    checkpoint: Annotated[int, msgspec.Meta(description="A number of the backfill's own log")]
    gates: list[str]
    why: str
    can_quarantine: Annotated[bool, msgspec.Meta(description="Whether `reject` can quarantine what broke the rules")]


class BackfillAnswer(msgspec.Struct):
    """A backfill and its progress."""

    name: Annotated[str, example("new-prices")]
    origin: Annotated[int, example(3, "The checkpoint after which it begins; 0: the beginning")]
    created_by: Annotated[str, example("mia in Airflow")]
    note: Annotated[str, example("prices were doubled")]
    created_at: Annotated[str, example("2026-03-01T10:05:00.000+00:00")]
    state: Annotated[str, example("replaying", "replaying, held, stopped, caught_up, blocked or swapped")]
    checkpoints: Annotated[int, example(2, "How many checkpoints it has made itself")]
    caught_up_to: Annotated[int, example(6, "The pipeline's checkpoint whose input it has read completely")]
    caught_up_at: Annotated[str | None, example("2026-03-01T10:10:06.000+00:00", "When that checkpoint was completed")]
    pending: Annotated[int, example(1, "The pipeline's checkpoints whose input it has not read yet")]
    oldest_pending_seconds: Annotated[float | None, example(31.5, "The age of the oldest of these")]
    swap: Annotated[int | None, example(None, "The entry that has swapped it in")]
    blocked_by: Annotated[str, example("", "Why it cannot continue; empty: it can")]
    held_checkpoint: Annotated[HeldBackfill | None, example(None)]
    stop_reason: Annotated[str, example("", "Why its last checkpoint was aborted; empty: it was not")]
    last_comparison: ComparedBackfill | None


class Overview(msgspec.Struct):
    """A pipeline at a glance."""

    dag: Annotated[str, example("orders")]
    pipeline: Annotated[str, example("orders")]
    started: Annotated[bool, example(True)]
    by_interval: Annotated[bool, example(False)]
    gates: Annotated[list[str], example(["checked"])]
    health: HealthAnswer
    promises: list[PromiseAnswer]
    contracts: list[ContractAnswer]
    suspended: Annotated[SuspensionAnswer | None, example(None)]
    counts: CountsAnswer
    latest: LatestAnswer
    open_checkpoints: Annotated[list[CheckpointWithProgress], example([], "Those that are open or held")]
    savepoints: list[SavepointAnswer]
    backfills: list[BackfillAnswer]
    recent: RecentCheckpoints
    history_problem: Annotated[str, example("")]
    now: Annotated[str, example(_NOW)]
    permissions: Annotated[
        dict[str, bool],
        example(
            dict.fromkeys(["trigger", "edit", "answer", "rollback", "drain", "backfill", "swap"], True),
            "trigger, edit, answer, rollback, drain, backfill, swap: what the caller may do",
        ),
    ]


class Checkpoints(msgspec.Struct):
    """A page of the history."""

    checkpoints: list[ListedCheckpoint]
    total: Annotated[int, example(7, "The number of all entries that match the filter")]
    limit: Annotated[int, example(1)]
    offset: Annotated[int, example(0)]
    problem: Annotated[str, example("", "Why the history's table is left out; empty: it is not")]


class Tasks(msgspec.Struct):
    """The DAG's tasks of each part."""

    jobs: Annotated[dict[str, str], example({"main": "job_main"})]
    gates: Annotated[dict[str, str], example({"checked": "gate_checked"})]
    complete: Annotated[str, example("complete")]


class Checkpoint(CheckpointWithProgress, frozen=True, kw_only=True):
    """One checkpoint, however old."""

    sampled_parts: Annotated[list[str], example(["paid"], "Stages, gates and operators of which it has kept some rows")]
    data_docs: Annotated[
        dict[str, str],
        example({}, "By gate, its page of Data Docs that `tidegate docs gates` has built, below /tidegate/docs/DAG"),
    ]
    savepoints: Annotated[list[str], example(["before-prices"])]
    run_id: Annotated[str | None, example(_RUN_ID)]
    dag_version: Annotated[int | None, example(3, "The DAG's version in Airflow with which the run was created")]
    previous: Annotated[int | None, example(6)]
    next: Annotated[int | None, example(None)]
    tasks: Tasks
    now: Annotated[str, example(_NOW)]


class ManifestAnswer(msgspec.Struct):
    """The manifest as stored; null: none, or it is retired."""

    manifest: Annotated[
        Json | None, example({"format": 1, "id": 7, "base": 6, "positions": {}, "jobs": {}, "tables": {}})
    ]


class FindingAnswer(msgspec.Struct):
    """One rule, and some of the values that broke it."""

    rule: Annotated[str, example("expect_column_values_to_be_between(amount)")]
    type: Annotated[str, example("expect_column_values_to_be_between")]
    column: Annotated[str, example("amount")]
    success: Annotated[bool, example(False)]
    unexpected: Annotated[int | None, example(2)]
    observed: Annotated[str | None, example(None)]
    values: Annotated[list[str], example(["-5.00", "-0.01"])]
    file: Annotated[
        str | None,
        example(
            "/srv/orders/in/00017.json", "The file with the first row that has the first of these values, if found"
        ),
    ]
    line: Annotated[int | None, example(12, "Its line there")]


class Findings(msgspec.Struct):
    """A gate's findings on a checkpoint."""

    checkpoint: Annotated[int, example(7)]
    gate: Annotated[str, example("checked")]
    rules: list[FindingAnswer]
    files: Annotated[
        list[str], example(["00017.json"], "Some of the files that the checkpoint has read before this gate")
    ]
    file_count: Annotated[int, example(1)]


class CheckpointOfRun(msgspec.Struct):
    """The checkpoint that a run has made."""

    checkpoint: Annotated[int | None, example(7)]
    run_id: Annotated[str, example(_RUN_ID)]


class Spread(msgspec.Struct):
    """The spread of a measure over completed checkpoints."""

    min: Annotated[float, example(3.1)]
    avg: Annotated[float, example(4.0)]
    p50: Annotated[float, example(3.9)]
    p90: Annotated[float, example(4.8)]
    p95: Annotated[float, example(5.0)]
    p99: Annotated[float, example(5.2)]
    p999: Annotated[float, example(5.3, "p99.9")]
    max: Annotated[float, example(5.3)]
    count: Annotated[int, example(7)]


class Summary(msgspec.Struct):
    """Measures by name; null: it was never measured."""

    measures: dict[Annotated[str, example("seconds")], Spread | None]


class Setting(msgspec.Struct):
    """A setting, where it came from, and what the last checkpoint used."""

    key: Annotated[str, example("num_retained")]
    value: Annotated[str, example("10")]
    origin: Annotated[str, example("default")]
    used: Annotated[str | None, example("10")]
    help: Annotated[str, example("how many completed checkpoints are kept", "What it does, in a sentence")]


class Configuration(msgspec.Struct):
    """As Airflow has read the DAG last."""

    pipeline: Annotated[str, example("orders")]
    root: Annotated[str, example("/srv/data/ledger")]
    project: Annotated[str, example("/srv/orders")]
    settings: list[Setting]


ROWS_OF_PARTS = (
    "of a source: rows read; of a gate: judged; of a sink: staged; of an operator: rows in its state, not those "
    "that it took or emitted (`profile` has these)"
)


class PartAnswer(msgspec.Struct):
    """A source, stage, operator, gate or sink, and what it did in the checkpoint."""

    name: Annotated[str, example("totals")]
    role: Annotated[str, example("sink", "source, stage, operator, gate or sink")]
    kind: Annotated[str, example("delta-upsert")]
    inputs: Annotated[list[str], example(["totals"])]
    job: Annotated[str, example("main")]
    state: Annotated[
        PartState | None, example("done", "; ".join(f"{state}: {text}" for state, text in PART_STATES.items()))
    ]
    rows: Annotated[int | None, example(78, ROWS_OF_PARTS)]
    seconds: Annotated[float | None, example(0.3)]
    bytes: Annotated[int | None, example(None)]
    late: Annotated[int | None, example(None)]
    watermark: Annotated[str | None, example(None)]
    verdict: Annotated[str | None, example(None)]
    rate: Annotated[float | None, example(None, "Of a source: rows per second of its job's work")]
    waiting: Annotated[int | None, example(None, "Of a source: the maximum number of rows that waited after those")]
    waiting_files: Annotated[int | None, example(None, "Of a source: files that waited")]
    waiting_bytes: Annotated[int | None, example(None, "Of a source: bytes that waited")]
    waiting_seconds: Annotated[float | None, example(None, "Of a source: how long the oldest waiting input has waited")]
    sent: Annotated[int | None, example(None, "Rows that it sent to other jobs")]
    state_delta: Annotated[int | None, example(None, "Of an operator: bytes of state that it wrote")]
    state_files: Annotated[int | None, example(None, "Of an operator: files of its state")]
    event_time: Annotated[
        str | None,
        example(
            "2026-03-01T09:10:58.000+00:00",
            "Event time up to which its output is complete: its own watermark, or the lowest of its inputs'",
        ),
    ]
    quarantined: Annotated[int | None, example(None)] = None
    released: Annotated[
        int | None, example(None, "Of a gate: rows released from quarantine, which joined those that passed")
    ] = None
    summary: Annotated[str | None, example(None, "What a source has read")] = None


class InFlightAnswer(msgspec.Struct):
    """Rows that a job has yet to take from other jobs."""

    rows: int | None
    bytes: int | None


class GraphAnswer(msgspec.Struct):
    """The pipeline's graph."""

    checkpoint: Annotated[int | None, example(7, "The one that the states and figures are of")]
    state: Annotated[str | None, example("completed", "The checkpoint's state")]
    jobs: Annotated[list[str], example(["main"])]
    job_states: Annotated[dict[str, PartState], example({"main": "done"})]
    parts: list[PartAnswer]
    in_flight: Annotated[dict[str, InFlightAnswer], example({}, "By job that the checkpoint went past")]
    sampled_parts: Annotated[
        list[str], example([], "Stages, gates and operators of which the checkpoint has kept some rows")
    ]


Points = Annotated[
    dict[str, list[Any]],
    example(
        {"id": [6, 7], "state": ["completed", "completed"], "seconds": [3.9, 4.225]},
        "Measures by name, each with a value per checkpoint, oldest first",
    ),
]


class Pair(msgspec.Struct):
    """The same of two checkpoints."""

    before: Annotated[Any, example(3.9)]
    after: Annotated[Any, example(4.225)]


class Compared(msgspec.Struct):
    """Two checkpoints side by side."""

    before: Annotated[Json, example(_CHECKPOINT | {"id": 6, "details": None})]
    after: Annotated[Json, example(_CHECKPOINT | {"details": None})]
    measures: dict[Annotated[str, example("seconds")], Pair]
    sources: Annotated[dict[str, Pair], example({})]
    tables: Annotated[dict[str, Pair], example({})]
    states: Annotated[dict[str, Pair], example({})]
    gates: Annotated[dict[str, Pair], example({})]
    settings: Annotated[dict[str, Pair], example({"num_retained": {"before": 5, "after": 10}}, "Those that differ")]
    code_changed: Annotated[bool, example(False)]


class Requested(msgspec.Struct):
    """A request about rows that no checkpoint has carried out yet."""

    number: int
    action: str
    requested_by: str
    requested_at: str


class Waiting(msgspec.Struct):
    """One gate's quarantine in numbers."""

    waiting: Annotated[int, example(2)]
    settled: Annotated[dict[str, int], example({"released": 1})]
    rules: Annotated[dict[str, int], example({"positive": 2})]
    complete: Annotated[bool, example(True, "Whether all was counted; if not, ask again: it continues from there")]
    requests: Annotated[list[Requested], example([])]


class ProposedTable(msgspec.Struct):
    """How many rows of a table differ."""

    rows_before: Annotated[int, example(78)]
    rows_after: Annotated[int, example(78)]
    added: Annotated[int, example(0)]
    removed: Annotated[int, example(0)]
    changed: Annotated[int, example(40)]


class ProposalAnswer(msgspec.Struct):
    """A proposal that was kept, or that is being made."""

    name: Annotated[str, example("proposal-1")]
    origin: Annotated[int, example(3, "The checkpoint after which it begins; 0: the beginning")]
    created_by: Annotated[str, example("mia on build-7")]
    created_at: Annotated[str, example("2026-03-01T10:05:00.000+00:00")]
    reported_at: Annotated[str | None, example("2026-03-01T10:06:10.000+00:00", "Null: it has no report (yet)")]
    merge: Annotated[str | None, example("differs", "What a merge does: same, continues, differs or refused")]
    is_sample: Annotated[bool, example(False, "It has read only a sample, and cannot be accepted")]
    tables: dict[Annotated[str, example("totals")], ProposedTable]


class Proposals(msgspec.Struct):
    """Newest first."""

    proposals: list[ProposalAnswer]


class ProposalReportAnswer(msgspec.Struct):
    """The report of a proposal."""

    proposal: ProposalAnswer
    report: Annotated[
        Json | None,
        example(
            {"pipeline": "orders", "begins_after": 3, "replayed": [4, 5, 6], "tables": {}},
            "As `tidegate propose --json` prints it. Without the right to read rows, it has no values of rows",
        ),
    ]


class Quarantine(msgspec.Struct):
    """By gate."""

    gates: dict[Annotated[str, example("checked")], Waiting]


class QuarantinedRow(msgspec.Struct):
    """A row that waits. Values are texts, cut if they are long."""

    id: Annotated[str, example("3f2a9c0e5b")]
    checkpoint: Annotated[int, example(7)]
    rules: Annotated[list[str], example(["positive"])]
    stays_because: Annotated[str | None, example(None, "Why a requested release did not take it")]
    diverted_because: Annotated[str | None, example(None, "If a person diverted it: what the target said, and who")]
    values: Cells


class RowsAnswer(msgspec.Struct):
    """A page of the rows that wait at a gate."""

    gate: Annotated[str, example("checked")]
    total: Annotated[int, example(2)]
    complete: Annotated[bool, example(True, "Whether all was counted; if not, there may be more: ask again")]
    columns: Annotated[list[str], example(["amount"])]
    rows: list[QuarantinedRow]


class TargetAnswer(msgspec.Struct):
    """A table, now and after a rollback."""

    version: Annotated[int | None, example(7, "The table's current version")]
    restored_version: Annotated[int, example(6)]
    uri: Annotated[str, example(_TABLE)]
    rows_stay_because: Annotated[str, example("", "Why a rollback does not remove the target's rows; empty: it does")]


class JudgedCheckpoint(msgspec.Struct):
    """What a gate has found on a checkpoint."""

    id: Annotated[int, example(7)]
    outcome: Annotated[str, example("quarantine")]
    rows: Annotated[int, example(80)]
    broken: Annotated[
        dict[str, int | None],
        example({"positive": 2}, "By rule, the rows that broke it; null: it is not about rows"),
    ]


class Schemas(msgspec.Struct):
    """How the schemas of sources that follow their input have changed."""

    sources: Annotated[
        dict[str, SourceTimeline],
        example({"orders": {"changes": [_PLANNED_SCHEMA], "is_complete": True}}, "By source"),
    ]


class GateTrend(msgspec.Struct):
    """A gate over the last checkpoints, oldest first."""

    gate: Annotated[str, example("checked")]
    checkpoints: list[JudgedCheckpoint]


class MeasuredGroup(msgspec.Struct):
    """A number that a gate has measured, checkpoint by checkpoint, and in which band it was expected."""

    group: Annotated[str, example("DE", "The group's values; empty: there is one group")]
    values: Annotated[list[float | None], example([12.3], "Null: it had no value")]
    low: Annotated[list[float | None], example([40.1], "Null: it was not judged")]
    expected: Annotated[list[float | None], example([50.2])]
    high: Annotated[list[float | None], example([60.2])]
    unusual: Annotated[list[bool], example([True])]


class MeasuredByGate(msgspec.Struct):
    """What a gate has measured in the last retained checkpoints, oldest first."""

    gate: Annotated[str, example("usual")]
    function: Annotated[str, example("avg(amount)", "The SQL aggregate; empty: the gate measures nothing")]
    checkpoints: Annotated[list[int], example([7])]
    outcomes: Annotated[list[str], example(["hold"])]
    groups: list[MeasuredGroup]


class TableRows(msgspec.Struct):
    """Some rows of a table as of a checkpoint. Values are texts, cut if they are long."""

    checkpoint: Annotated[int, example(7)]
    sink: Annotated[str, example("totals")]
    table: Annotated[str, example(_TABLE)]
    version: Annotated[int, example(7)]
    columns: Annotated[list[str], example(["amount"])]
    rows: list[Cells]
    may_ask_why: Annotated[bool, example(True, "Whether the user may ask why a row is there")] = False


class WhyAnswer(msgspec.Struct):
    """A question why a table has a row, and its answer."""

    sink: Annotated[str, example("totals")]
    checkpoint: Annotated[int | None, example(7, "As of this one; null: the last published when it was asked")]
    values: Annotated[Cells, example({"customer": "17"})]
    asked_by: Annotated[str, example("ann in Airflow")]
    asked_at: Annotated[str, example(_DECIDED)]
    run_id: Annotated[str, example("manual__2026-03-01T10:12:00+00:00", "The run of the DAG for backfills")]
    run_state: Annotated[str, example("success", "Of Airflow; empty if it has deleted the run")]
    answered_at: Annotated[str | None, example(_NOW)]
    answer: Annotated[
        Json | None,
        example({"sink": "totals", "since": 6, "records": []}, "As `tidegate why --json` prints it; null: none yet"),
    ]
    problem: Annotated[str, example("", "Why there is no answer")]
    help: Annotated[str, example("")]


class RowChangeAnswer(msgspec.Struct):
    """One row before and after; null: the row is new, or was removed. Values are texts, cut if they are long."""

    before: Annotated[Cells | None, example({"customer": "17", "paid": "90.00"})]
    after: Annotated[Cells | None, example({"customer": "17", "paid": "99.50"})]


class TableChanges(msgspec.Struct):
    """How a table differs between two checkpoints."""

    checkpoint: Annotated[int, example(7)]
    since: Annotated[int, example(6)]
    sink: Annotated[str, example("totals")]
    table: Annotated[str, example(_TABLE)]
    keys: Annotated[
        list[str],
        example(["customer"], "Rows are matched by these. Without any, a changed row is one removed, one added"),
    ]
    columns: Annotated[list[str], example(["customer", "paid"])]
    added: Annotated[int, example(0)]
    removed: Annotated[int, example(0)]
    changed: Annotated[int, example(1)]
    rows: list[RowChangeAnswer]
    may_ask_why: Annotated[bool, example(True, "Whether the user may ask why a row is there")] = False


class Settlement(msgspec.Struct):
    """Who settled a quarantined row, how and when."""

    checkpoint: Annotated[int, example(9, "The checkpoint that released or discarded it")]
    settled_by: Annotated[str, example("mia in Airflow")]
    request: Annotated[int | None, example(2, "Null: it was settled before tidegate 0.3")]
    requested_at: Annotated[str, example("2026-03-01T10:11:12.345+00:00")]
    note: Annotated[str, example("a typing error")]
    sql: Annotated[dict[str, str], example({"amount": "abs(amount)"}, "The SQL that corrected it, by column")]
    corrected: Annotated[dict[str, str | None], example({"amount": "2"}, "The values with which it continued")]


class QuarantinedRowStatus(QuarantinedRow):
    """A quarantined row, and what has become of it. Its values are those with which it was quarantined."""

    status: Annotated[str, example("waiting", "waiting, released or discarded")]
    settled: Annotated[Settlement | None, example(None, "Null while it waits")]


class QuarantinedRowsAt(msgspec.Struct):
    """Some of the rows that a gate has quarantined at a checkpoint."""

    gate: Annotated[str, example("checked")]
    checkpoint: Annotated[int, example(7)]
    columns: Annotated[list[str], example(["amount"])]
    rows: list[QuarantinedRowStatus]


class StreamSample(msgspec.Struct):
    """A few rows of one stream, in no particular order. Values are texts, cut if they are long."""

    stream: Annotated[str, example("paid")]
    columns: Annotated[list[str], example(["amount"])]
    rows: list[Cells]
    hidden: Annotated[list[str], example(["email"], "Columns that the setting sample_hidden keeps out of samples")]
    left_out: Annotated[int, example(0, "How many further columns it has")]
    problem: Annotated[str, example("", "Why the sample is missing; empty: it is not")]


class PartSamples(msgspec.Struct):
    """Some of the rows that a stage, a gate or an operator emitted in a checkpoint."""

    checkpoint: Annotated[int, example(7)]
    part: Annotated[str, example("paid")]
    streams: list[StreamSample]


class UndoneSwap(msgspec.Struct):
    """A swap that a rollback undoes."""

    id: int
    backfill: str | None


class RollbackPlan(msgspec.Struct):
    """The effects that a rollback would have."""

    to: Annotated[int, example(6)]
    decided: Annotated[str | None, example("2026-03-01T10:10:06.000+00:00")]
    undone: Annotated[list[int], example([7], "Checkpoints that no longer count")]
    undone_swaps: Annotated[list[UndoneSwap], example([])]
    aborted: Annotated[list[int], example([], "Open checkpoints that the rollback aborts")]
    sources: Annotated[list[str], example(["orders"])]
    tables: dict[Annotated[str, example("totals")], TargetAnswer]


class ActedAnswer(msgspec.Struct):
    """An action that a user has taken."""

    requested_at: Annotated[str, example("2026-03-01T10:15:00.000+00:00")]
    requested_by: Annotated[str, example("mia in Airflow")]
    action: Annotated[str, example("savepoint")]
    request: Annotated[Json, example({"name": "before-prices", "note": "last good one"}, "Its parameters")]
    succeeded: Annotated[bool | None, example(True, "Null: the result is unknown")]
    message: Annotated[str, example("Checkpoint 7 is savepoint before-prices.", "The outcome in a sentence")]


class Audit(msgspec.Struct):
    """Newest first."""

    actions: list[ActedAnswer]


# -- the description ------------------------------------------------------------------------------------


_REFERENCE = "#/components/schemas/{name}"


def described(answer: Any) -> Json:
    """Return the description of a route's answer, with an example."""
    (schema,), _ = msgspec.json.schema_components([answer], ref_template=_REFERENCE)
    content = {"application/json": {"schema": schema, "example": example_of(answer)}}
    return {"description": "OK", "content": content}


def schemas(answers: Iterable[Any]) -> dict[str, Json]:
    """Return the schemas of answers and of their parts, by name."""
    _, by_name = msgspec.json.schema_components(answers, ref_template=_REFERENCE)
    for schema in by_name.values():
        if MEASURES.keys() <= schema["properties"].keys():
            for name, measure in MEASURES.items():
                schema["properties"][name]["description"] = measure.help
    return by_name


def example_of(kind: Any) -> Any:
    """Return an example of a type: its own, or one of its parts."""
    for annotation in getattr(kind, "__metadata__", ()):
        if isinstance(annotation, msgspec.Meta) and annotation.examples:
            return annotation.examples[0]
    origin, members = get_origin(kind), get_args(kind)
    if origin is list:
        return [example_of(members[0])]
    if origin is dict:
        return {example_of(members[0]): example_of(members[1])}
    if origin in (Annotated, Union, types.UnionType):
        return example_of(members[0])
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        raise TypeError(f"{kind} has no example")
    fields = get_type_hints(kind, include_extras=True)
    known: Json = {}
    if issubclass(kind, ListedCheckpoint):
        known = _CHECKPOINT | {name: _MEASURED[measure.unit] for name, measure in MEASURES.items()}
    return {name: known[name] if name in known else example_of(hint) for name, hint in fields.items()}
