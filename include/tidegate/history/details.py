"""A checkpoint's details in the history, in addition to its columns: one document per row, and a part of every view.

It is stored permanently as JSON. So each field has a default, for rows written before the field existed. Unknown fields
are ignored, for rows written by a newer version. A renamed field keeps its stored name (`msgspec.field(name=…)`).
Documents for users have the names of the attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tidegate.config.settings import masked
from tidegate.history.schemas.drift import DriftDetails, drift_of
from tidegate.protocol.progress import overtaken_jobs
from tidegate.protocol.view import Entry
from tidegate.records.moments import moment_of
from tidegate.records.records import (
    Ack,
    Amount,
    Answer,
    Control,
    Drain,
    Hold,
    JobStats,
    Json,
    Lag,
    Pace,
    Published,
    PublishedTable,
    Range,
    RecordedRule,
    Rollback,
    Verdict,
)

__all__ = [
    "CheckpointDetails",
    "GateDetails",
    "JobDetails",
    "SourceDetails",
    "StateSize",
    "details_of",
    "seconds_between",
]

POSITION = 2_000
"""Positions whose JSON is longer are omitted: they may contain many files."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the document."""


class SourceDetails(Details, frozen=True, kw_only=True):
    """The planned input from one source."""

    kind: str = ""
    summary: str = ""
    is_empty: bool = msgspec.field(default=False, name="empty")
    has_more: bool = msgspec.field(default=False, name="more")
    lag: Lag | None = None
    pace: Pace | None = None
    """Without the checkpoints that it was computed from."""
    start: Json | None = None
    """Like `end`, null also if it is too long to store."""
    end: Json | None = None
    schema: str = ""
    """The columns with which it is read, as DDL, if they may follow its input; otherwise empty."""
    drift: DriftDetails | None = None
    """What of its input does not fit the schema, if anything."""

    @property
    def text(self) -> str:
        """The input in a few words; "" if the source has no summary."""
        return self.summary or ("nothing new" if self.is_empty else "")


class JobDetails(JobStats, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One job's measurements, from its ack."""

    attempt: str = ""
    acked: str = ""
    delay: float | None = None
    """Seconds from the plan until the attempt began."""

    @property
    def busy_seconds(self) -> float:
        """The duration of all its steps together."""
        return sum(self.seconds.values())

    def seconds_of(self, *prefixes: str) -> float:
        """Return the duration of the steps whose names begin with one of these prefixes."""
        return sum(seconds for step, seconds in self.seconds.items() if step.startswith(prefixes))

    @property
    def late_rows(self) -> dict[str, int]:
        """Late rows, by operator."""
        late = {}
        for operator, counts in self.counts.items():
            late[operator] = sum(count for name, count in counts.items() if name.startswith("late"))
        return late


class OvertakenJob(Details, frozen=True, kw_only=True):
    """A job that the checkpoint overtook."""

    last_checkpoint: int | None = msgspec.field(default=None, name="at")
    """The last checkpoint that the job has acknowledged, or null."""
    in_flight: list[int] = []
    """The checkpoints whose rows it had yet to read. The amounts below are the total of these rows."""
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


class GateAnswer(Details, frozen=True, kw_only=True):
    """The answer of a person, or of the time limit, to a gate that held the checkpoint."""

    approve: bool
    quarantine: bool = False
    """For a rejection: the rows that broke the rules go to quarantine with the next checkpoint."""
    answered_by: str = msgspec.field(default="", name="by")
    note: str = ""
    answered_at: str = msgspec.field(default="", name="at")


class GateDetails(Details, frozen=True, kw_only=True):
    """A gate's verdict, without the results that it is based on."""

    outcome: str
    rows: int = 0
    quarantined: int = 0
    released: int = 0
    not_released: dict[str, int] = msgspec.field(default_factory=dict, name="stays")
    """By reason, rows that stay in quarantine despite a release."""
    hold: Hold | None = None
    why: str = ""
    broken: list[RecordedRule] = []
    policy: Json = {}
    answer: GateAnswer | None = None


class StateSize(Details, frozen=True, kw_only=True):
    """The size of a keyed state as of a checkpoint, and how much of it the checkpoint has written."""

    rows: int = 0
    bytes: int = 0
    delta: int = 0
    files: int = 0
    unmerged: int = 0
    """Rows in files that are due to be merged."""


class CheckpointDetails(Details, frozen=True, kw_only=True):
    """The document."""

    reason: str = ""
    detail: str = ""
    counts: bool = False
    """True if the abort counts as a failure."""
    control: Control | None = None
    rollback: Rollback | None = msgspec.field(default=None, name="restart")
    drain: Drain | None = None
    draining: Drain | None = None
    by_interval: bool | None = None
    """Null if the row is older than this field."""
    through: list[str] | None = None
    """At least once: the sinks to whose tables the jobs committed directly."""
    sources: dict[str, SourceDetails] = {}
    jobs: dict[str, JobDetails] = {}
    missing_acks: list[str] = msgspec.field(default_factory=list, name="missing")
    """Jobs without an ack that the checkpoint has not overtaken."""
    overtaken_jobs: dict[str, OvertakenJob] = msgspec.field(default_factory=dict, name="behind")
    gates: dict[str, GateDetails] = {}
    states: dict[str, StateSize] = {}
    tables: dict[str, PublishedTable] = {}
    commits: list[str] = []
    manifest: str | None = None
    timeout_s: float = 0.0
    quarantine_all: bool = msgspec.field(default=False, name="set_aside")
    quarantine_held: bool = False
    config: Json = {}
    """With secrets masked."""
    config_fingerprint: str = ""
    code_fingerprint: str = ""

    @property
    def staged_rows(self) -> dict[str, int]:
        """Rows by sink, of all jobs."""
        return _sum_per_sink(job.rows for job in self.jobs.values())

    @property
    def staged_bytes(self) -> dict[str, int]:
        """Bytes by sink, of all jobs."""
        return _sum_per_sink(job.bytes for job in self.jobs.values())

    @property
    def drift(self) -> dict[str, DriftDetails]:
        """By source, what of its input does not fit the schema."""
        return {name: source.drift for name, source in self.sources.items() if source.drift is not None}

    @property
    def amounts_read(self) -> dict[str, Amount]:
        """The amounts read, by source. Each source is read in one job."""
        amounts: dict[str, Amount] = {}
        for job in self.jobs.values():
            amounts |= job.read
        return amounts


def _sum_per_sink(parts: Iterator[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for sink, count in part.items():
            total[sink] = total.get(sink, 0) + count
    return total


def details_of(
    entry: Entry,
    published: Published | None,
    states: Mapping[str, StateSize],
    in_flight: Mapping[str, Amount],
) -> CheckpointDetails:
    """Return the document from the present records.

    in_flight: by overtaken job, how much it has yet to read.
    """
    plan, decision, overtaken = entry.plan, entry.decision, overtaken_jobs(entry)
    return CheckpointDetails(
        reason=decision.reason if decision is not None else "",
        detail=decision.detail if decision is not None else "",
        counts=decision.counts if decision is not None else False,
        control=entry.control,
        rollback=entry.rollback,
        drain=plan.drain,
        draining=plan.draining,
        by_interval=plan.by_interval,
        through=plan.through,
        sources={name: _source(entry, name, part) for name, part in plan.sources.items()},
        jobs={name: _job(acked.ack, plan.created) for name, acked in sorted(entry.acks.items())},
        missing_acks=[job for job in plan.acks if job not in entry.acks and job not in overtaken],
        overtaken_jobs={
            job: _overtaken_job(position, in_flight.get(job, Amount())) for job, position in overtaken.items()
        },
        gates={name: _gate(verdict, entry.answers.get(name)) for name, verdict in _verdicts(entry)},
        states=dict(sorted(states.items())),
        tables=published.tables if published is not None else {},
        commits=list(plan.commits),
        manifest=decision.manifest if decision is not None else None,
        timeout_s=plan.timeout_s,
        quarantine_all=plan.quarantine_all,
        quarantine_held=plan.quarantine_held,
        config=masked(plan.config),
        config_fingerprint=plan.config_fingerprint,
        code_fingerprint=plan.code_fingerprint,
    )


def _source(entry: Entry, name: str, part: Range) -> SourceDetails:
    drifts = [acked.ack.drift[name] for acked in entry.acks.values() if name in acked.ack.drift]
    return SourceDetails(
        kind=part.kind,
        summary=part.summary,
        is_empty=part.empty,
        has_more=part.more,
        lag=part.lag,
        pace=msgspec.structs.replace(part.pace, based_on=[]) if part.pace is not None else None,
        start=_unless_long(part.start),
        end=_unless_long(part.end),
        schema=part.schema.ddl if part.schema is not None else "",
        drift=drift_of(part.schema, drifts[0], entry.id) if part.schema is not None and drifts else None,
    )


def _unless_long(position: Json | None) -> Json | None:
    if len(msgspec.json.encode(position)) <= POSITION:
        return position
    return None


def _job(ack: Ack, planned: str) -> JobDetails:
    delay = seconds_between(planned, ack.stats.started)
    return JobDetails(
        **msgspec.structs.asdict(ack.stats),
        attempt=ack.attempt,
        acked=ack.created,
        delay=delay,
    )


def _overtaken_job(position: Json, amount: Amount) -> OvertakenJob:
    return OvertakenJob(
        last_checkpoint=position["at"],
        in_flight=position["in_flight"],
        rows=amount.rows,
        bytes=amount.bytes,
        files=amount.files,
    )


def _verdicts(entry: Entry) -> Iterator[tuple[str, Verdict]]:
    for _, acked in sorted(entry.acks.items()):
        yield from acked.ack.gates.items()


def _gate(verdict: Verdict, answer: Answer | None) -> GateDetails:
    gate_answer = None
    if answer is not None:
        gate_answer = GateAnswer(
            approve=answer.approve,
            quarantine=answer.quarantine,
            answered_by=answer.by,
            note=answer.note,
            answered_at=answer.created,
        )
    return GateDetails(
        outcome=verdict.outcome,
        rows=verdict.rows,
        quarantined=verdict.quarantined,
        released=verdict.released,
        not_released=verdict.stays,
        hold=verdict.hold,
        why=verdict.why,
        broken=verdict.broken,
        policy=verdict.policy,
        answer=gate_answer,
    )


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """Return the time between two moments, by the writers' clocks. None if one is missing, or if it is negative."""
    first, last = moment_of(earlier), moment_of(later)
    if first is None or last is None:
        return None
    seconds = (last - first).total_seconds()
    return round(seconds, 3) if seconds >= 0 else None
