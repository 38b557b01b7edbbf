"""One row of the history: what is to be known about a checkpoint when its records are gone. Pure, from its records.

What lists are sorted and filtered by has a column; all the rest is in `details`, one JSON document. Nothing is decided
by any of it. Times are the writers' clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import MAXYEAR

import msgspec

from tidegate.config.settings import masked
from tidegate.protocol.progress import behind
from tidegate.protocol.view import Entry
from tidegate.records.moments import moment_of
from tidegate.records.records import Ack, Amount, Answer, Json, Published, Range, Struct, Verdict, sum_of

__all__ = ["HistoryRow", "StateSize", "details_of", "row_of", "state_name", "verdicts_of"]

TEXT = 500
"""Longer reasons are cut in the column; `details` has them whole."""
POSITION = 2_000
"""Positions whose JSON is longer are left out: a source may remember many files in them."""
OUTCOMES = {"suspend": "suspended", "resume": "resumed", "stop": "stopped", "cancel": "cancelled"}
"""What an entry that is no checkpoint has done to the pipeline."""
WORST = ("pass", "warn", "quarantine", "hold", "abort")
"""Verdicts, from good to bad."""
WRITING = ("stage ", "send ")
"""How steps of a job begin that write what is to be published: the rest is reading and computing."""


class StateSize(Struct, frozen=True, kw_only=True):
    """How large a keyed state is as of a checkpoint, and how much of it the checkpoint has written."""

    rows: int
    bytes: int
    delta: int
    files: int


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns. Null: there is no such thing, or it was not measured."""

    id: int
    kind: str
    """scheduled, manual, control, restart or fork: as its plan says."""
    outcome: str
    """completed, aborted, rollback, suspended …; of one that is not decided: open or held."""
    reason: str
    why: str
    by: str
    run: str
    attempt: str
    base: int | None
    generation: int
    back_to: int | None
    interval: str | None
    planned: str
    decided: str | None
    published: str | None
    seconds: float | None
    """From the plan to the decision."""
    delay_seconds: float | None
    """From the plan until the last job began: what Flink calls start delay."""
    align_seconds: float | None
    """Between the first ack that a job takes from and the last, of the job that had to wait longest."""
    sync_seconds: float | None
    """The longest sync part of a job (records/records.py)."""
    process_seconds: float | None
    """Reading, computing, state and gates, of the slowest job."""
    stage_seconds: float | None
    """Writing what is to be published, of that job."""
    async_seconds: float | None
    """The longest async part of a job."""
    publish_seconds: float | None
    """From the decision until every table shows it."""
    jobs: int
    acked: int
    rows_in: int | None
    """Read from its sources; null, if one does not tell."""
    bytes_in: int | None
    rate: float | None
    """Of these rows, so many a second of the longest sync part."""
    rows_out: int | None
    bytes_out: int | None
    late: int | None
    judged: int | None
    """Rows that gates have seen."""
    quarantined: int | None
    released: int | None
    verdict: str | None
    """The worst of its gates'."""
    state_rows: int | None
    state_bytes: int | None
    state_delta: int | None
    processed_rows: int | None
    """Rows that were in flight and that its jobs have taken; null: none were."""
    processed_bytes: int | None
    persisted_rows: int | None
    """Rows that are in flight as of it: they are a part of it."""
    persisted_bytes: int | None
    watermark: str | None
    """The least of its sources that are not idle."""
    lag_seconds: float | None
    """How far event time was behind the clock when it was decided."""
    details: str


def row_of(
    entry: Entry, published: Published | None, states: Mapping[str, StateSize], left: Mapping[str, Amount]
) -> HistoryRow:
    """The row as far as the records tell by now; of what is settled nothing changes any more.

    left: by job, how much is in flight to it.
    """
    plan, decision = entry.plan, entry.decision
    acks = [acked.ack for _, acked in sorted(entry.acks.items())]
    decided = decision.created if decision is not None else None
    act = entry.control or entry.restart or plan.drain
    stopped = entry.aborted and entry.control is None
    detail = decision.detail if decision is not None and (stopped or act is None) else act.reason if act else ""
    watermark = _watermark(acks)
    return HistoryRow(
        id=entry.id,
        kind=plan.kind,
        outcome=state_name(entry),
        reason=decision.reason if decision is not None and entry.control is None else "",
        why=detail[:TEXT],
        by=act.by if act is not None else "",
        run=plan.run,
        attempt=plan.attempt,
        base=plan.base,
        generation=plan.generation,
        back_to=entry.restart.target if entry.restart is not None else None,
        interval=str(entry.interval) if entry.interval is not None else None,
        planned=plan.created,
        decided=decided,
        published=published.created if published is not None else None,
        seconds=_between(plan.created, decided),
        **_times(acks, plan.created),
        publish_seconds=_between(decided, published.created) if published is not None else None,
        jobs=len(plan.acks),
        acked=len(acks),
        **_read(entry, acks),
        rows_out=sum(sum(ack.stats.rows.values()) for ack in acks) if acks else None,
        bytes_out=sum(sum(ack.stats.bytes.values()) for ack in acks) if acks else None,
        late=_late(acks),
        **_judged(entry),
        state_rows=_sum(size.rows for size in states.values()),
        state_bytes=_sum(size.bytes for size in states.values()),
        state_delta=_sum(size.delta for size in states.values()),
        **_in_flight(acks, left),
        watermark=watermark,
        lag_seconds=_lag(watermark, decided),
        details=msgspec.json.encode(details_of(entry, published, states, left)).decode(),
    )


def state_name(entry: Entry) -> str:
    """What the entry is, in a word."""
    if entry.control is not None:
        return OUTCOMES[entry.control.action]
    if entry.decision is not None:
        return "rollback" if entry.restart is not None and entry.completed else entry.decision.outcome
    holds = any(said.outcome == "hold" and gate not in entry.answers for gate, said in verdicts_of(entry))
    return "held" if holds and all(job in entry.acks for job in entry.plan.acks) else "open"


def verdicts_of(entry: Entry) -> Iterator[tuple[str, Verdict]]:
    """What each gate has said."""
    return ((name, said) for _, acked in sorted(entry.acks.items()) for name, said in acked.ack.gates.items())


# -- details -------------------------------------------------------------------------------------------


def details_of(
    entry: Entry, published: Published | None, states: Mapping[str, StateSize], left: Mapping[str, Amount]
) -> Json:
    """All else that is worth keeping, as one document."""
    plan, decision, past = entry.plan, entry.decision, behind(entry)
    return {
        "reason": decision.reason if decision is not None else "",
        "detail": decision.detail if decision is not None else "",
        "counts": decision.counts if decision is not None else False,
        "control": msgspec.to_builtins(entry.control) if entry.control is not None else None,
        "restart": msgspec.to_builtins(entry.restart) if entry.restart is not None else None,
        "drain": msgspec.to_builtins(plan.drain) if plan.drain is not None else None,
        "sources": {name: _source(part) for name, part in plan.sources.items()},
        "jobs": {name: _job(acked.ack, plan.created) for name, acked in sorted(entry.acks.items())},
        "missing": [job for job in plan.acks if job not in entry.acks and job not in past],
        "behind": {job: told | msgspec.to_builtins(left.get(job, Amount())) for job, told in past.items()},
        "gates": {name: _gate(said, entry.answers.get(name)) for name, said in verdicts_of(entry)},
        "states": {name: msgspec.to_builtins(size) for name, size in sorted(states.items())},
        "tables": msgspec.to_builtins(published.tables) if published is not None else {},
        "commits": list(plan.commits),
        "manifest": decision.manifest if decision is not None else None,
        "timeout_s": plan.timeout_s,
        "set_aside": plan.set_aside,
        "config": masked(plan.config),
        "config_fingerprint": plan.config_fingerprint,
        "code_fingerprint": plan.code_fingerprint,
    }


def _source(part: Range) -> Json:
    ends = {"start": part.start, "end": part.end}
    told = {name: at if len(msgspec.json.encode(at)) <= POSITION else None for name, at in ends.items()}
    pace = _without(msgspec.to_builtins(part.pace), "seen") if part.pace is not None else None
    return {"kind": part.kind, "summary": part.summary, "empty": part.empty, "more": part.more, "pace": pace, **told}


def _job(ack: Ack, planned: str) -> Json:
    times = {"started": ack.stats.started, "acked": ack.created, "delay": _between(planned, ack.stats.started)}
    return {"attempt": ack.attempt, **times, **_without(msgspec.to_builtins(ack.stats), "started")}


def _without(document: Json, name: str) -> Json:
    return {key: value for key, value in document.items() if key != name}


def _gate(said: Verdict, answer: Answer | None) -> Json:
    told: Json = msgspec.to_builtins(said)
    by = {"approve": answer.approve, "by": answer.by, "note": answer.note, "at": answer.created} if answer else None
    return _without(told, "results") | {"answer": by}


# -- sums and times ------------------------------------------------------------------------------------


def _sum(numbers: Iterable[int]) -> int | None:
    found = list(numbers)
    return sum(found) if found else None


def _most(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _late(acks: list[Ack]) -> int | None:
    """Rows that came too late, of all operators; None: none looks at event time."""
    counted = [each for ack in acks for names in ack.stats.counts.values() for each in names.items()]
    timed = any(ack.stats.watermarks for ack in acks)
    return sum(number for what, number in counted if what.startswith("late")) if timed or counted else None


def _times(acks: list[Ack], planned: str) -> Json:
    """How long its jobs took."""
    slowest = max(acks, key=_busy, default=None)
    return {
        "delay_seconds": _most(_between(planned, ack.stats.started) for ack in acks),
        "align_seconds": _most(ack.stats.aligned_s for ack in acks),
        "sync_seconds": _most(ack.stats.sync_s for ack in acks),
        "process_seconds": round(_busy(slowest) - _writing(slowest), 3) if slowest is not None else None,
        "stage_seconds": round(_writing(slowest), 3) if slowest is not None else None,
        "async_seconds": _most(ack.stats.async_s for ack in acks),
    }


def _read(entry: Entry, acks: list[Ack]) -> Json:
    """What came from sources, of which each is read in one job. Not known before all jobs that read have acked."""
    told = {name: amount for ack in acks for name, amount in ack.stats.taken.items()}
    taken = sum_of(told.get(name, Amount()) for name in entry.plan.triggers) if entry.plan.triggers else Amount()
    sync = _most(ack.stats.sync_s for ack in acks)
    rate = round(taken.rows / sync, 1) if taken.rows is not None and sync else None
    return {"rows_in": taken.rows, "bytes_in": taken.bytes, "rate": rate}


def _judged(entry: Entry) -> Json:
    """What its gates have said."""
    said = [verdict for _, verdict in verdicts_of(entry)]
    return {
        "judged": _sum(each.rows for each in said),
        "quarantined": _sum(each.quarantined for each in said),
        "released": _sum(each.released for each in said),
        "verdict": max((each.outcome for each in said), key=WORST.index, default=None),
    }


def _in_flight(acks: list[Ack], left: Mapping[str, Amount]) -> Json:
    """What went between jobs of different checkpoints."""
    found = [ack.stats.processed for ack in acks if ack.stats.processed is not None]
    processed, persisted = sum_of(found) if found else Amount(), sum_of(left.values()) if left else Amount()
    return {
        "processed_rows": processed.rows,
        "processed_bytes": processed.bytes,
        "persisted_rows": persisted.rows,
        "persisted_bytes": persisted.bytes,
    }


def _busy(ack: Ack) -> float:
    return sum(ack.stats.seconds.values())


def _writing(ack: Ack) -> float:
    return sum(seconds for step, seconds in ack.stats.seconds.items() if step.startswith(WRITING))


def _watermark(acks: list[Ack]) -> str | None:
    """The least of all that are not idle. The end of time, which a drain brings, is none."""
    marks = [mark for ack in acks for name, mark in ack.stats.watermarks.items() if name not in ack.stats.idle]
    moments = [(moment, mark) for mark in marks if (moment := moment_of(mark)) is not None and moment.year < MAXYEAR]
    return min(moments)[1] if moments else None


def _lag(watermark: str | None, decided: str | None) -> float | None:
    mark, moment = moment_of(watermark), moment_of(decided)
    return round((moment - mark).total_seconds(), 3) if mark is not None and moment is not None else None


def _between(earlier: str | None, later: str | None) -> float | None:
    """How long, by the writers' clocks; None if they do not tell, or make no sense."""
    first, then = moment_of(earlier), moment_of(later)
    if first is None or then is None:
        return None
    seconds = (then - first).total_seconds()
    return round(seconds, 3) if seconds >= 0 else None
