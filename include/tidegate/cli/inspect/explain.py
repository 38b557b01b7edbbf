"""`tidegate explain`: what happened in a checkpoint and why, what it waits for, and what changed before it, in
prose."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.checkpoint import approvals
from tidegate.cli.inspect.documents import (
    Examples,
    clock,
    find_examples,
    find_view,
    lag_text,
    rows_text,
    size_text,
)
from tidegate.cli.inspect.health import health_document, health_of, print_health, print_promises
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.config import duration_text
from tidegate.errors import Rejected, TidegateError
from tidegate.execution.runs import abandoned_reason
from tidegate.gates.examples import examples_text
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.history.details import GateDetails, JobDetails, seconds_between
from tidegate.history.health import REASONS
from tidegate.history.row import MEASURES
from tidegate.history.schemas.drift import misfit_name, misfit_text
from tidegate.history.selection import COUNTED
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle.savepoint import savepoints
from tidegate.protocol.rules import BAD_DECLARATION, ENVIRONMENT_FAILED
from tidegate.protocol.view import Entry, View
from tidegate.records import typed
from tidegate.records.names import entry_name
from tidegate.records.records import Control, Json, Plan, Request, Rollback
from tidegate.state.table import STATE

__all__ = ["add_parser", "run"]

MAX_LISTED = 5
"""The maximum number of states to name, the largest first."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "explain",
        help="a pipeline's state and what to do; or what happened in a checkpoint",
        description="Without a number: the pipeline's state, its cause and what to do, then what happened in the "
        "checkpoint behind it. With a number: what happened in that checkpoint, its input, attempts and decision, what "
        "it still waits for, and how settings and code differ from the previous one.",
        epilog="examples:\n  tidegate explain orders\n  tidegate explain orders 5\n"
        "  tidegate explain jobs.orders:pipeline 5 --json",
    )
    parser.add_argument(
        "pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline (then losing attempts are listed)"
    )
    parser.add_argument("id", nargs="?", type=checkpoint_id, metavar="ID", help="the checkpoint's number")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the story of the checkpoint; or the pipeline's health, with the story of the checkpoint that caused it."""
    target = open_target(args.pipeline, args.settings)
    if args.id is not None:
        story = explain(target, args.id)
        out.document(story.document())
        _print(story, out)
        return 0
    health, promises = health_of(target)
    entry = None
    if health.checkpoint is not None:
        entry = target.ledger.entry(health.checkpoint)
    about = explain(target, entry.id) if entry is not None else None
    document = {"pipeline": target.name, **health_document(health)}
    document["promises"] = [promise.document() for promise in promises]
    out.document(document | {"checkpoint": about.document() if about is not None else None})
    print_health(health, out)
    print_promises(promises, out)
    if about is not None:
        out.line()
        _print(replace(about, next_step=""), out)
    return 0


def _print(story: Story, out: Output) -> None:
    out.line(f"Checkpoint {story.id} of {story.pipeline}: {story.described_state or story.state}", "bold")
    for text in (*story.events, *story.waits_for, *story.changes):
        out.line(f"- {text}")
    if story.next_step:
        out.line(f"Next: {story.next_step}", "bold")


@dataclass(frozen=True)
class Story:
    """The story of one checkpoint."""

    pipeline: str
    id: int
    state: str
    events: list[str]
    waits_for: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    next_step: str = ""
    drift: dict[str, Json] = field(default_factory=dict)
    """By source, what of its input does not fit the schema."""
    described_state: str = ""
    """The state as the text names it, if that differs."""

    def document(self) -> dict[str, Any]:
        """Return the document for scripts. `waits_for` is empty once nothing is open."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "described_state"}


def explain(target: Target, id: int) -> Story:
    """Return the whole story of a checkpoint of any age. Raise Rejected if it never existed."""
    view, entry = find_view(target, id)
    if view.records_retained:
        events = []
    else:
        events = ["Its records are retired: this is what the history has of it."]
    if view.details.control is not None:
        events += _act(view, view.details.control)
        return Story(target.name, id, view.displayed_state, events)
    if view.details.rollback is not None:
        events += [*_rollback_story(view, view.details.rollback), *_undone(view), *_listed_text(view)]
        events += _print_swap_undo(target, view) if view.outcome == "swap" else []
        return Story(target.name, id, view.displayed_state, events, list(_waits_of_rollback(view)))
    base = target.ledger.entry(view.base) if view.base is not None else None
    if entry is not None:
        waits = list(_waits_for(target.ledger, view, entry, base))
    else:
        waits = []
    events += _forked(target.ledger, view) if view.kind == "fork" else _planned(view)
    events += _settled_requests(target.ledger, entry) if entry is not None else []
    events += _diverted(target.ledger, entry) if entry is not None else []
    events += _acked(view, find_examples(target.ledger, entry))
    events += _drifted(target, view)
    events += _measured(view)
    events += _losers(target, entry) if entry is not None else []
    events += [*_decided(target.ledger, view), *_undone(view), *_listed_text(view)]
    return Story(
        pipeline=target.name,
        id=id,
        state=view.displayed_state,
        described_state=view.described_state,
        events=events,
        waits_for=waits,
        changes=list(_changes(target, view)),
        next_step=_next_step(target, view, entry, waits) if entry is not None else "",
        drift={name: typed.document_of(drift) for name, drift in view.details.drift.items()},
    )


def _diverted(ledger: Ledger, entry: Entry) -> Iterator[str]:
    """Yield what a divert has taken out of what waited for a table, and whether it came in time."""
    divert = entry.plan.divert
    rows = next((acked.ack.diverted for acked in entry.acks.values() if acked.ack.diverted is not None), None)
    if divert is None or rows is None:
        return
    of = ", ".join(f"{count:,} of checkpoint {id}" for id, count in rows.by_checkpoint.items())
    subject = "1 row" if rows.rows == 1 else f"{rows.rows:,} rows"
    yield (
        f"{divert.by} diverted {subject} that waited for {divert.table} to quarantine {divert.gate} ({of}): "
        f"those with {divert.condition}{_because(divert.note)}. Its target had refused them: {divert.refused}"
    )
    if not entry.completed:
        return
    applied = ledger.divert_applied(entry.id)
    if applied is None:
        yield f"They are there once {divert.table} has taken the others."
    elif not applied:
        yield f"But {divert.table} had taken the rows, or a later divert, by then: this one diverted nothing."
    else:
        yield f"{divert.table} has taken the others."


def _act(view: CheckpointView, control: Control) -> Iterator[str]:
    """Yield the story of an entry that is not a checkpoint."""
    deeds = {
        "suspend": "suspended the pipeline: no more checkpoints are planned",
        "resume": "resumed the pipeline",
        "stop": "stopped the pipeline",
        "cancel": "cancelled the pipeline, and its open checkpoints",
    }
    if (change := control.source) is not None:
        verb, to = ("moved", f" to {change.to}") if change.to is not None else ("dropped", "")
        if change.position is not None:
            verb, to = "accepted the new system of", ""
        yield f"At {clock(view.planned)} UTC {control.by} {verb} source {change.name}{to}{_because(control.reason)}."
        return
    deed = deeds[control.action]
    if control.action == "cancel" and control.final:
        deed = "cancelled the pipeline for good, and its open checkpoints"
    if control.quarantine_all:
        quarantining = "; rows that a gate would hold again will be quarantined"
    else:
        quarantining = ""
    yield f"At {clock(view.planned)} UTC {control.by} {deed}{_because(control.reason)}{quarantining}."


def _because(reason: str) -> str:
    return f", because: {reason}" if reason else ""


def _rollback_story(view: CheckpointView, rollback: Rollback) -> Iterator[str]:
    """Yield the story of a rollback or a swap."""
    reason, line = _because(rollback.reason), rollback.line
    if rollback.target:
        since = f"checkpoint {rollback.target}"
    else:
        since = "the beginning"
    if line is None:
        deed = f"rolled back to {since}"
    else:
        deed = f"swapped in backfill {line.name}, which began at {since}"
    yield f"At {clock(view.planned)} UTC {rollback.by} {deed}{reason}."
    if view.outcome == "aborted":
        yield f"It was aborted before it was decided ({view.details.reason}): nothing was changed."
    elif view.outcome in COUNTED:
        if line is None:
            read = "its input is read again"
        else:
            read = "the backfill has read its input again"
        yield f"Checkpoints completed after {since} no longer count; {read}."
        effects = {
            "discard": "later commits of other writers are lost",
            "keep": "its rows were left as they were",
            "retract": "only this pipeline's own rows were restored",
        }
        for name, table in rollback.tables.items():
            if table.how in effects:
                yield f"Table {name}: {effects[table.how]}."
        for job, ids in rollback.dropped.items():
            sent = ", ".join(map(str, ids))
            yield f"Rows in flight to job {job}, of checkpoint {sent}, were dropped: they are never read."
        for name in rollback.left:
            yield f"Table {name} was dropped: its pending rows are never published."
    if rollback.suspended is not None and view.outcome != "aborted":
        yield f"The pipeline stays suspended, by {rollback.suspended.by}: {rollback.suspended.reason}."


def _waits_of_rollback(view: CheckpointView) -> Iterator[str]:
    if view.displayed_state == "completed, unpublished":
        yield "It waits to be published to its tables. The next run does that first."
    if view.outcome == "open":
        yield "The run that began it decides it; otherwise the next run aborts it."


# -- what happened -------------------------------------------------------------------------------------


def _forked(ledger: Ledger, view: CheckpointView) -> Iterator[str]:
    """Yield the story of a forked pipeline's first entry."""
    identity = ledger.identity()
    origin = identity.origin if identity is not None else None
    if origin is not None:
        yield (
            f"At {clock(view.planned)} UTC {origin.by} forked this pipeline from checkpoint {origin.entry} of"
            f" {origin.pipeline}{_because(origin.note)}. Positions and states were copied; nothing was read."
        )


def _planned(view: CheckpointView) -> Iterator[str]:
    details = view.details
    if details.drain is not None:
        reason = _because(details.drain.reason)
        yield f"{details.drain.by} finished the pipeline with it{reason}: it ends event time."
    if details.draining is not None:
        yield (
            f"{details.draining.by} requested a drain; more input waits than it takes, so later checkpoints read the"
            " rest, and the one that leaves nothing is the last."
        )
    yield f"It was planned at {clock(view.planned)} UTC ({view.kind}){_on_base(view)}, by {_runner(view.run)}."
    if view.interval is not None:
        replaces = " Its rows replace all rows that the interval had in the tables."
        yield f"Its run's data interval is {view.interval} UTC.{replaces if details.by_interval else ''}"
    if details.through is not None:
        sinks = ", ".join(details.through) or "no table"
        yield f"At least once: jobs write to {sinks} directly, before it is decided."
    if details.quarantine_all:
        yield "Rows that a gate would hold go to quarantine: a user chose that after a rejection."
    if details.quarantine_held:
        yield (
            "Rows that break a rule for which a gate would hold go to quarantine: a user chose that when an earlier "
            "checkpoint was held."
        )
    for name, source in details.sources.items():
        if source.is_empty and source.has_more and source.summary:
            yield f"Source {name} is not read: it {source.summary}."
        elif source.is_empty and not name.startswith(QUARANTINE):
            yield f"Source {name} had nothing new."
        elif not source.is_empty and name.startswith(QUARANTINE):
            yield f"It processes {source.summary} of gate {name.removeprefix(QUARANTINE)}."
        elif not source.is_empty:
            if source.has_more:
                more = " More was waiting, because of a bound of the source or its min_age."
            else:
                more = ""
            text = source.summary or "a range"
            yield f"Source {name} reads {text}: every attempt reads exactly that.{more}"


def _on_base(view: CheckpointView) -> str:
    if view.details.by_interval:
        return ", independently, like every interval"
    if view.base is not None:
        return f", on top of checkpoint {view.base}"
    # Rows from before this field existed do not say whether it was an interval's.
    if view.details.by_interval is False:
        return ", as the pipeline's first"
    return ""


def _runner(run: str) -> str:
    parts = run.split(":")
    if parts[0] == "process" and len(parts) == 5:
        return f"process {parts[2]} on {parts[1]}"
    return f"run {run!r}"


def _acked(view: CheckpointView, examples: Examples) -> Iterator[str]:
    """Explain the jobs' acks, the gates' verdicts, and the answers to gates that held the checkpoint."""
    details = view.details
    for name, job in details.jobs.items():
        after = seconds_between(view.planned, job.acked)
        if after is not None:
            when = f"{after:.1f} s after the plan"
        else:
            when = f"at {clock(job.acked)} UTC"
        if job.delay is not None:
            delay = f" (begun {job.delay:.1f} s after it)"
        else:
            delay = ""
        staged = f"{rows_text(job.rows) or 'nothing'}{_slowest_step(job)}"
        yield f"Job {name} was acknowledged by attempt {job.attempt} {when}{delay}: it had staged {staged}."
        yield from _event_time(job)
    for name, gate in details.gates.items():
        yield from _judged(name, gate, examples.get(name, {}))
    for name, overtaken in details.overtaken_jobs.items():
        if overtaken.last_checkpoint:
            position = f"had reached checkpoint {overtaken.last_checkpoint}"
        else:
            position = "had taken nothing yet"
        ids = ", ".join(map(str, overtaken.in_flight))
        yield f"It did not wait for job {name}, which {position}: the rows of {ids} for it are in flight."
    for name, gate in details.gates.items():
        if (answer := gate.answer) is not None:
            note = f": {answer.note}" if answer.note else ""
            if answer.quarantine:
                text = f"chose quarantine at gate {name}{note}: the next checkpoint quarantines what broke its rules"
            else:
                text = f"{'approved' if answer.approve else 'rejected'} it at gate {name}{note}"
            yield f"At {clock(answer.answered_at)} UTC {answer.answered_by} {text}."


def _drifted(target: Target, view: CheckpointView) -> Iterator[str]:
    """Explain what of the input does not fit its source's schema, and what becomes of it."""
    for name, drift in view.details.drift.items():
        yield f"Source {name}: {_records_text(drift.records)} did not fit its schema."
        for misfit in drift.misfits[:MAX_LISTED]:
            values = "values of type" if misfit.kind == "type" else "of type"
            where = f"in {_records_text(misfit.records)}" + (f", first in {misfit.file}" if misfit.file else "")
            yield f"Source {name}: {misfit_name(misfit)}, {values} {misfit.type}, {where}: {misfit_text(misfit)}."
        more = len(drift.misfits[MAX_LISTED:]) + drift.more
        if more:
            show = target.command("show", view.id)
            yield f"Source {name}: {'at least ' if drift.more else ''}{more} more did not fit: {show}"


def _records_text(count: int) -> str:
    return f"{count:,} {'record' if count == 1 else 'records'}"


def _settled_requests(ledger: Ledger, entry: Entry) -> Iterator[str]:
    """Explain the requests about quarantined rows that the checkpoint has taken up."""
    for name, part in entry.plan.sources.items():
        if not name.startswith(QUARANTINE) or part.empty:
            continue
        for recorded in ledger.unpack(part.splits)["requests"]:
            request = typed.convert(recorded, Request)
            verb = "judge again" if request.action == "rejudge" else request.action
            broke = f" that broke {' or '.join(request.rules)}" if request.rules else ""
            if request.corrects:
                corrected = f", with {', '.join(request.corrections)}"
            else:
                corrected = ""
            note = f" ({request.note})" if request.note else ""
            yield (
                f"Gate {name.removeprefix(QUARANTINE)}: at {clock(request.created)} UTC {request.by} asked, by request "
                f"{request.number}, to {verb} rows{broke}{corrected}{note}."
            )


def _judged(name: str, gate: GateDetails, examples: dict[str, list[str]]) -> Iterator[str]:
    """Explain a gate's verdict."""
    if gate.quarantined and gate.outcome != "abort":
        quarantined = f", quarantined {gate.quarantined:,}"
    else:
        quarantined = ""
    if gate.released:
        released = f", released {gate.released:,} from quarantine"
    else:
        released = ""
    why = f" ({gate.why})" if gate.why else ""
    yield f"Gate {name} judged {gate.rows:,} rows{quarantined}{released}; its verdict is {gate.outcome}{why}."
    for reason, rows in gate.not_released.items():
        yield f"Gate {name}: of the rows to be released {rows:,} stay there: {reason}."
    for broken in gate.broken:
        values = examples_text(examples.get(broken.rule, []))
        yield f"Gate {name}: rule {broken.rule}: {broken.why}{values}; its policy is {broken.policy}."


def _event_time(job: JobDetails) -> Iterator[str]:
    """Explain event time, the sources that it did not wait for, and the operators' counts."""
    if job.watermarks:
        marks = ", ".join(f"{name} {clock(mark)}" for name, mark in job.watermarks.items())
        yield f"Event time had reached, in UTC: {marks}."
    if job.idle:
        yield f"Event time did not wait for {', '.join(job.idle)}: nothing new for longer than idle_timeout."
    for name, counts in job.counts.items():
        yield f"Operator {name} counted {rows_text(counts)}."


def _slowest_step(job: JobDetails) -> str:
    if not job.seconds:
        return ""
    step, seconds = max(job.seconds.items(), key=lambda pair: pair[1])
    return f"; it spent the most time on {step!r}, {seconds:.1f} s"


def _measured(view: CheckpointView) -> Iterator[str]:
    """Explain the amount of input, the waits, and the size of the state."""
    for name, source in view.details.sources.items():
        if source.pace is not None:
            yield f"How much of source {name}: {source.pace.why}."
    states = sorted(view.details.states.items(), key=lambda pair: -pair[1].bytes)
    if states:
        sizes = []
        for name, size in states[:MAX_LISTED]:
            sizes.append(f"{name.removeprefix(STATE)} {size.rows:,} rows, {size_text(size.bytes)}")
        if len(states) > MAX_LISTED:
            more = f" and {len(states) - MAX_LISTED} more"
        else:
            more = ""
        new = size_text(sum(size.delta for _, size in states))
        yield f"The state of operators is {'; '.join(sizes)}{more}. The checkpoint wrote {new} of it."
    waits = []
    for name, measure in MEASURES.items():
        seconds = getattr(view, name)
        if measure.wait and seconds is not None and seconds >= 0.1:
            waits.append(f"{seconds:.1f} s {measure.help}")
    if waits:
        yield f"It waited {', '.join(waits)}."
    if view.lag_seconds is not None:
        yield f"Event time trailed the clock by {view.lag_seconds:,.0f} s when it was decided."
    for name, source in view.details.sources.items():
        if waiting := lag_text(source.lag):
            yield f"After its range, this waited at source {name}: {waiting}."


def _losers(target: Target, entry: Entry) -> Iterator[str]:
    """Name attempts whose files do not count: they crashed, or lost to another. Needs the pipeline's code."""
    if target.pipeline is None:
        return
    from tidegate.verify.tables import sink_contexts, uncounted_attempts

    winners = {acked.ack.attempt for acked in entry.acks.values()}
    for node, context in sink_contexts(target):
        try:
            attempts = uncounted_attempts(entry, node, context, winners)
        except TidegateError:
            continue
        if attempts:
            names = ", ".join(attempts)
            yield f"Sink {node.name} also holds files of {len(attempts)} attempts that do not count: {names}."


def _decided(ledger: Ledger, view: CheckpointView) -> Iterator[str]:
    details = view.details
    if view.decided is None:
        if details.through is None:
            visible = "nothing of it is visible anywhere"
        else:
            visible = "its rows are visible as they come"
        yield f"It is not decided yet: {visible}."
    elif view.outcome == "completed":
        yield f"It was completed at {clock(view.decided)} UTC: from then on it counts, even after a crash."
    else:
        why = f", {REASONS[details.reason]}" if details.reason in REASONS else ""
        if details.counts:
            counted = "It counts as a failure."
        else:
            counted = "It does not count as a failure."
        yield f"It was aborted at {clock(view.decided)} UTC: {details.reason}{why}. {counted}"
        if details.detail:
            yield f"Details: {details.detail}"
        yield _after_abort(ledger, view)


def _after_abort(ledger: Ledger, view: CheckpointView) -> str:
    """Explain what became of its rows, and which checkpoint reads its input again."""
    if view.details.by_interval:
        return "Nothing of it became visible; the next run of that interval processes it."
    retaken_by = _next_from_positions(ledger, view)
    if retaken_by:
        taker = f"checkpoint {retaken_by} read"
    else:
        taker = "the next checkpoint reads"
    stays = "The rows that its jobs wrote to tables stay there, and are written again"
    if view.details.through is None:
        visible = "Nothing of it became visible"
    else:
        visible = stays
    return f"{visible}; {taker} the same input."


def _next_from_positions(ledger: Ledger, view: CheckpointView) -> int | None:
    """Return the next entry that starts at the same positions."""
    for id in ledger.ids(after=view.id):
        later = ledger.entry(id)
        if later is not None and later.plan.base == view.base:
            return id
    return None


def _undone(view: CheckpointView) -> Iterator[str]:
    if view.replaced_by is not None:
        yield (
            f"Its rows are replaced: backfill {view.replaced_by} recomputed them, and entry {view.undone_by} swapped "
            "them in."
        )
    elif view.undone_by is not None and view.outcome != "completed":
        yield f"It no longer counts: rollback {view.undone_by} undid it."
    elif view.undone_by is not None:
        yield f"It no longer counts: rollback {view.undone_by} undid it. Its input is read again."


def _print_swap_undo(target: Target, view: CheckpointView) -> Iterator[str]:
    """Say how to undo a swap that counts."""
    names = [named.name for named in savepoints(target.ledger) if named.entry == view.base]
    if view.undone_by is None and names:
        code = target.text if target.pipeline is not None else "MODULE:PIPELINE"
        yield f"To undo it: tidegate rollback {code} --to {names[0]}"


def _listed_text(view: CheckpointView) -> Iterator[str]:
    if view.details.tables:
        tables = ", ".join(f"{name} at {table.displayed_version}" for name, table in view.details.tables.items())
        yield f"Its tables: {tables}."


# -- what it waits for ---------------------------------------------------------------------------------


def _waits_for(ledger: Ledger, view: CheckpointView, entry: Entry, base: Entry | None) -> Iterator[str]:
    if entry.completed and view.published is None:
        yield "It waits to be published to its tables. The next run does that first."
    if not entry.open:
        return
    if base is not None and base.open:
        yield f"It waits for checkpoint {base.id}, its base, to be decided."
    missing = []
    for job in entry.plan.acks:
        if job not in entry.acks and job not in entry.overtaken:
            missing.append(job)
    if missing:
        yield f"It waits for the ack of job {', '.join(missing)}.{_remaining_time(ledger, entry.plan)}"
        if abandoned_reason(entry.plan):
            yield "Its process is gone: the next run aborts it and reads its input again."
    elif pending := approvals.pending_approvals_text(View((entry,)), [entry.id]):
        yield f"All jobs have acknowledged it, but {pending}."
    elif base is None or not base.open:
        yield "All jobs have acknowledged it: it waits for its decision, which the next run makes."


def _remaining_time(ledger: Ledger, plan: Plan) -> str:
    age = ledger.store.age(f"checkpoints/{entry_name(plan.id)}/plan.json")
    if age is None:
        return ""
    remaining_seconds = plan.timeout_s - age
    if remaining_seconds > 0:
        return f" It expires in {duration_text(round(remaining_seconds))}."
    return " Its timeout has passed: the next run aborts it."


def _next_step(target: Target, view: CheckpointView, entry: Entry, waits: list[str]) -> str:
    if approvals.pending_approvals_text(View((entry,)), [entry.id]):
        approve, reject = target.command("approve", entry.id), target.command("reject", entry.id)
        return f"{approve}  or  {reject}  or, to quarantine the rows that broke the rules,  {reject} --quarantine"
    if (
        entry.aborted
        and entry.decision is not None
        and entry.decision.reason
        in (
            "JOB_FAILED",
            BAD_DECLARATION,
            ENVIRONMENT_FAILED,
        )
    ):
        return "fix the cause in the details, then run the pipeline again: it plans the same input again"
    if entry.completed and view.published is None:
        return "run the pipeline again; `tidegate doctor` shows whether a table blocks it"
    if waits and entry.open and abandoned_reason(entry.plan):
        return "run the pipeline again"
    return ""


# -- what had changed ----------------------------------------------------------------------------------


def _changes(target: Target, view: CheckpointView) -> Iterator[str]:
    """Compare settings, code, sources and sinks with those of its base."""
    if view.base is None:
        return
    try:
        base, _ = find_view(target, view.base, sizes=False)
    except Rejected:
        return
    differences = [*_changed_settings(view, base), *_changed_parts(view, base)]
    fingerprints = base.details.code_fingerprint, view.details.code_fingerprint
    if fingerprints[0] != fingerprints[1]:
        differences.append(
            f"The pipeline's code changed since checkpoint {base.id} ({fingerprints[0]} → {fingerprints[1]})."
        )
    yield from differences or [f"Settings and code are those of checkpoint {base.id}."]


def _changed_settings(view: CheckpointView, base: CheckpointView) -> Iterator[str]:
    new, old = view.details.config, base.details.config
    for key in sorted({*new, *old}):
        if new.get(key) != old.get(key):
            yield f"Setting {key} was {old.get(key)!r} in checkpoint {base.id} and is {new.get(key)!r} here."


def _changed_parts(view: CheckpointView, base: CheckpointView) -> Iterator[str]:
    """Name added and removed sources, sinks and states."""
    new_sources, old_sources = set(view.details.sources), set(base.details.sources)
    for name in sorted(new_sources ^ old_sources):
        if not name.startswith(QUARANTINE):
            yield f"The source {name} {'is new' if name in new_sources else 'is gone'} since checkpoint {base.id}."
    new_sinks, old_sinks = set(view.details.commits), set(base.details.commits)
    for name in sorted(new_sinks ^ old_sinks):
        is_state = name.startswith(STATE)
        part = f"state {name.removeprefix(STATE)}" if is_state else f"sink {name}"
        absent = "is left unchanged" if is_state else "is gone"
        yield f"The {part} {'is new' if name in new_sinks else absent} since checkpoint {base.id}."
