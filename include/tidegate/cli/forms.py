"""The forms of the documents that read-only commands print with --json. Scripts may rely on these fields; later
versions may add some.

Documents are not built from these, because importing them would slow down every command. docs/reference/documents.md is
generated from them, and `make views` compares every document with its form, in all states of a pipeline.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.history.details import GateAnswer, JobDetails, OvertakenJob, SourceDetails, StateSize
from tidegate.history.schemas.drift import DriftDetails
from tidegate.history.schemas.timeline import ComparedSchema, SourceTimeline
from tidegate.history.spans import Span
from tidegate.history.view import ListedCheckpoint
from tidegate.records import typed
from tidegate.records.records import Amount, Hold, Json, Pace, PublishedTable, RecordedRule, SparkWork, Timed
from tidegate.verify.finding import Finding

__all__ = ["FORMS", "Form", "RefusedForm", "form_of"]


class Form(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A document, or a part of one."""


# Fields that are renamed in the history's files. Documents use the names of the attributes.


class JobForm(JobDetails, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job's measurements, from its ack."""

    read: dict[str, Amount] = msgspec.field(name="read")
    between_steps: SparkWork | None = msgspec.field(name="between_steps")


class PaceForm(Pace, frozen=True, kw_only=True):
    """One source's pace in one plan."""

    planned: int = msgspec.field(name="planned")
    based_on: list[Timed] = msgspec.field(name="based_on")


class SourceForm(SourceDetails, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The planned input from one source."""

    is_empty: bool = msgspec.field(name="is_empty")
    has_more: bool = msgspec.field(name="has_more")
    pace: PaceForm | None


class OvertakenJobForm(OvertakenJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that the checkpoint did not wait for."""

    last_checkpoint: int | None = msgspec.field(name="last_checkpoint")


class AnswerForm(GateAnswer, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of a person, or of the time limit, to a gate that held the checkpoint."""

    answered_by: str = msgspec.field(name="answered_by")
    answered_at: str = msgspec.field(name="answered_at")


class ErrorForm(Form):
    kind: str
    reason: str
    message: str
    expected: str
    help: str


class RefusedForm(Form):
    """The document of a command that is refused."""

    error: ErrorForm


class ListedPipelineForm(Form):
    name: str
    last_checkpoint: int | None
    state: str
    planned: str | None
    last_completed: int | None


class PipelinesForm(Form):
    root: str
    pipelines: list[ListedPipelineForm]


class RuleForm(RecordedRule, frozen=True, kw_only=True):
    examples: list[str]


class GateForm(Form):
    outcome: str
    rows: int
    quarantined: int
    released: int
    not_released: dict[str, int]
    hold: Hold | None
    why: str
    broken: list[RuleForm]
    policy: Json
    answer: AnswerForm | None


class CheckpointForm(Form):
    id: int
    state: str
    reason: str
    detail: str
    undone_by: int | None
    replaced_by: str | None
    back_to: int | None
    backfill: str | None
    kind: str
    interval: str | None
    base: int | None
    run: str
    planned: str
    decided: str | None
    seconds: float | None
    sources: dict[str, str]
    jobs: dict[str, JobForm]
    gates: dict[str, GateForm]
    missing_acks: list[str]
    overtaken_jobs: dict[str, OvertakenJobForm]
    rows: dict[str, int]
    tables: dict[str, PublishedTable]


class NewestForm(Form):
    pipeline: str
    root: str
    checkpoints: list[CheckpointForm]
    has_more: bool


class PastForm(Form):
    pipeline: str
    root: str
    checkpoints: list[ListedCheckpoint]
    total: int
    has_more: bool
    history: str


class RecordsForm(Form):
    plan: Json
    acks: dict[str, Json]
    decision: Json | None
    manifest: Json | None
    published: Json | None


class ShownForm(CheckpointForm):
    pipeline: str
    figures: Json
    states: dict[str, StateSize]
    ranges: dict[str, SourceForm]
    retired: bool
    records: RecordsForm | None


class CheckpointStoryForm(Form):
    pipeline: str
    id: int
    state: str
    events: list[str]
    waits_for: list[str]
    changes: list[str]
    next_step: str
    drift: dict[str, DriftDetails]


class HealthForm(Form):
    pipeline: str
    state: str
    summary: str
    cause: str
    remedy: list[str]
    reason: str


class PromiseForm(Form):
    sink: str
    fresh_seconds: float
    kept: bool
    breaks_at: str
    input_until: str | None
    checkpoint: int | None


class PipelineHealthForm(HealthForm):
    promises: list[PromiseForm]
    checkpoint: CheckpointStoryForm | None


class OpenJobForm(Form):
    acked: str
    after_s: float | None
    delay_s: float | None
    seconds: float
    rows: dict[str, int]
    bytes: int


class OpenCheckpointForm(Form):
    id: int
    kind: str
    run: str
    planned: str
    age_s: float
    timeout_s: float
    orphaned: bool
    sources: dict[str, str]
    jobs: dict[str, OpenJobForm | None]
    overtaken: list[str]
    held_by: list[str]


class WatchedForm(HealthForm):
    promises: list[PromiseForm]
    counts: dict[str, int]
    in_flight: list[OpenCheckpointForm]
    latest: list[ListedCheckpoint]
    durations: list[float]
    history: str


class SpreadForm(Form):
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float
    avg: float
    count: int


class FailureForm(Form):
    reason: str
    count: int
    last_checkpoint: int


class SummaryForm(Form):
    pipeline: str
    since: str | None
    until: str | None
    counts: dict[str, int]
    summary: dict[str, SpreadForm | None]
    failures: list[FailureForm]
    history: str


class ProfileForm(Form):
    pipeline: str
    id: int
    state: str
    span: Span


class OneMetricForm(Form):
    name: str
    labels: dict[str, str]
    value: float
    help: str


class MetricsForm(Form):
    pipelines: dict[str, list[OneMetricForm]]
    failed: dict[str, ErrorForm]


class SinkTableForm(Form):
    table: str
    version: int | None
    rows: int | None


class TablesForm(Form):
    pipeline: str
    checkpoint: int
    tables: dict[str, SinkTableForm]


class RowsForm(Form):
    pipeline: str
    sink: str
    checkpoint: int
    table: str
    version: int
    total: int
    columns: list[str]
    rows: list[Json]


class StateOfForm(Form):
    operator: str
    keys: list[str]
    rows: int
    files: int
    bytes: int
    changed: int | None
    expires: bool
    table: str
    version: int


class StatesForm(Form):
    pipeline: str
    checkpoint: int
    states: list[StateOfForm]


class StateRowsForm(Form):
    pipeline: str
    operator: str
    checkpoint: int
    table: str
    version: int
    keys: list[str]
    total: int
    columns: list[str]
    rows: list[Json]


class ChangedPositionForm(Form):
    before: Any
    after: Any
    changed: bool


class VersionsForm(Form):
    versions: list[int | None]
    rows: list[int | None]


class ChangedKeysForm(Form):
    added: int
    changed: int
    removed: int


class DifferenceForm(Form):
    pipeline: str
    before: int
    after: int
    figures: dict[str, list[Any]]
    sources: dict[str, ChangedPositionForm]
    tables: dict[str, VersionsForm]
    states: dict[str, ChangedKeysForm]
    settings: dict[str, list[Any]]
    code_changed: bool


class RequestForm(Form):
    number: int
    action: str
    rows: int
    requested_by: str
    in_place: bool


class WaitingForm(Form):
    waiting: int
    released: int
    discarded: int
    rules: dict[str, int]
    requests: list[RequestForm]
    table: str


class QuarantinesForm(Form):
    pipeline: str
    gates: dict[str, WaitingForm]


class SettlingRequestForm(Form):
    number: int
    action: str
    requested_by: str
    requested_at: str
    correct: dict[str, str | None]
    correct_sql: dict[str, str]
    note: str


class QuarantinedRowsForm(Form):
    pipeline: str
    gate: str
    total: int
    rows: list[Json]
    requests: list[SettlingRequestForm]


class SavepointForm(Form):
    name: str
    checkpoint: int
    created_by: str
    created_at: str
    note: str
    retained: bool


class SavepointsForm(Form):
    pipeline: str
    savepoints: list[SavepointForm]


class ShownSavepointForm(SavepointForm):
    pipeline: str
    manifest: str


class VerifiedForm(Form):
    pipeline: str
    name: str
    complete: bool
    problems: list[str]


class FindingsForm(Form):
    ok: bool
    findings: list[Finding]


class SchemasForm(Form):
    pipeline: str
    sources: dict[str, SourceTimeline]
    history: str


class SchemaDifferencesForm(Form):
    pipeline: str
    before: int
    after: int
    sources: dict[str, ComparedSchema]


class SettingForm(Form):
    value: str
    origin: str


class SettingsForm(Form):
    project: str
    settings: dict[str, SettingForm]


class TopicForm(Form):
    topic: str
    text: str


class CheckedForm(Form):
    pipeline: str
    from_: int | None = msgspec.field(name="from")
    can_continue: bool
    reasons: list[ErrorForm]
    new_parts: list[str]
    warnings: list[str]


class PlannedJobForm(Form):
    job: str
    after: list[str]
    reads: list[str]
    receives: list[str]
    parts: list[str]
    states: list[str]
    sends: list[str]
    writes: list[str]
    settings: dict[str, str]


class PlannedForm(Form):
    pipeline: str
    code: str
    mode: str
    jobs: list[PlannedJobForm]
    reasons: list[ErrorForm]


class RecoveryForm(Form):
    pipeline: str
    continues_from: int | None
    aborted: dict[str, str]
    running: list[int]
    unpublished: dict[str, list[int]]
    problems: list[str]
    fallback: int | None
    rows_stay_in: list[str]
    undone: list[int]


class UndoneSwapForm(Form):
    id: int
    backfill: str


class RestoredTableForm(Form):
    method: str | None
    version: int | None
    restored_version: int | None
    foreign_commits: list[int]
    rows_stay_because: str
    written_directly: bool


class RollbackForm(Form):
    pipeline: str
    to: int
    undone: list[int]
    undone_swaps: list[UndoneSwapForm]
    aborted: list[int]
    sources: list[str]
    tables: dict[str, RestoredTableForm]
    in_flight: list[Json]
    drops_in_flight: bool
    problems: list[str]
    possible: bool


class ApprovalsForm(Form):
    carried_over: int
    to_repeat: int


class BackfillPlanForm(Form):
    pipeline: str
    from_: int = msgspec.field(name="from")
    to: int | None
    tables: list[str]
    unchanged_sinks: list[str]
    cuts: str
    manual_edits: list[Json]
    approvals: ApprovalsForm
    released_in_place: list[str]
    may_differ: list[str]
    changed_results: list[str]
    problems: list[str]
    possible: bool


class OriginForm(Form):
    pipeline: str
    checkpoint: int


class ForkedForm(Form):
    pipeline: str
    forked: bool
    from_: OriginForm = msgspec.field(name="from")
    sources: list[str]
    states: list[str]
    continued_tables: dict[str, str]


FORMS: dict[str, dict[str, type[Form]]] = {
    "list": {
        "": PipelinesForm,
        "PIPELINE": NewestForm,
        "PIPELINE --all": PastForm,
    },
    "show": {"": ShownForm},
    "explain": {"PIPELINE": PipelineHealthForm, "PIPELINE ID": CheckpointStoryForm},
    "watch": {"--once": WatchedForm},
    "summary": {"": SummaryForm},
    "profile": {"": ProfileForm},
    "metrics": {"": MetricsForm},
    "read": {"PIPELINE": TablesForm, "PIPELINE SINK": RowsForm},
    "state": {"PIPELINE": StatesForm, "PIPELINE OPERATOR": StateRowsForm},
    "diff": {"PIPELINE N M": DifferenceForm},
    "schema": {"PIPELINE": SchemasForm, "PIPELINE --from N --to M": SchemaDifferencesForm},
    "quarantine list": {"": QuarantinesForm},
    "quarantine show": {"": QuarantinedRowsForm},
    "savepoint list": {"": SavepointsForm},
    "savepoint show": {"": ShownSavepointForm},
    "savepoint verify": {"": VerifiedForm},
    "doctor": {"": FindingsForm},
    "config": {"": SettingsForm},
    "help": {"": TopicForm},
    "check": {"": CheckedForm},
    "plan": {"": PlannedForm},
    "recover": {"--dry-run": RecoveryForm},
    "rollback": {"--dry-run": RollbackForm},
    "backfill": {"--dry-run": BackfillPlanForm},
    "fork": {"": ForkedForm},
}
"""The form of a command's document, by command and arguments. `--all` represents all options that filter or sort."""


def form_of(command: str, document: Json) -> str:
    """Return why a command's document matches none of the command's forms, or an empty text if it matches one."""
    forms = (RefusedForm,) if "error" in document else tuple(FORMS[command].values())
    problems = []
    for form in forms:
        try:
            typed.convert(document, form)
        except msgspec.ValidationError as error:
            problems.append(f"{form.__name__}: {error}")
        else:
            return ""
    return "; ".join(problems)
