"""The API's answers, from the ledger and the history. Values are plain JSON, and pages never treat them as markup."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.checkpoint.located import tables_now
from tidegate.checkpoint.publishing.table_mismatch import deleted_table_error
from tidegate.config import KEYS
from tidegate.delta import Location, open_table
from tidegate.errors import Rejected
from tidegate.gates.expectations.data_docs import pages_of
from tidegate.history import health as condition
from tidegate.history.backfill import BackfillStatus, backfill_statuses
from tidegate.history.details import CheckpointDetails
from tidegate.history.part_states import PartState, job_states, part_states
from tidegate.history.query import CheckpointHistory, HistoryFilter
from tidegate.history.row import MEASURES
from tidegate.history.selection import COUNTED, REPLACED
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.lifecycle import savepoint
from tidegate.protocol.verdicts import unanswered
from tidegate.records import typed
from tidegate.records.moments import moment_of
from tidegate.records.names import BACKFILL
from tidegate.records.place import Place, is_url
from tidegate.records.records import JobNote, Json, Verdict, sum_of
from tidegate.ui.answers import (
    BackfillAnswer,
    Checkpoint,
    CheckpointOfRun,
    CheckpointWithDetails,
    CheckpointWithProgress,
    Compared,
    ComparedBackfill,
    ComparedBackfillTable,
    Configuration,
    ContractAnswer,
    CountsAnswer,
    FindingAnswer,
    Findings,
    GraphAnswer,
    HealthAnswer,
    HeldBackfill,
    InFlightAnswer,
    LastCompleted,
    LatestAnswer,
    MeasuredByGate,
    MeasuredGroup,
    Overview,
    Pair,
    PartAnswer,
    ProgressAnswer,
    PromiseAnswer,
    RecentCheckpoints,
    RollbackPlan,
    SavepointAnswer,
    Setting,
    SuspensionAnswer,
    TargetAnswer,
    Tasks,
    UndoneSwap,
)
from tidegate.ui.pipelines import PipelineRef, dag_version, is_paused
from tidegate.ui.rows import origins, stream_samples

__all__ = [
    "age",
    "checkpoint",
    "compared",
    "configuration",
    "graph",
    "health_answer",
    "observe_pipeline",
    "overview",
    "promise_answers",
    "read_health",
    "recent_checkpoints",
    "rollback_plan",
    "row_of_run",
    "samples",
    "short",
]

SAMPLES, LETTERS = 20, 256
"""The maximum number of values to show for a broken rule, and the maximum length of each."""
_ALARMING = frozenset({"hold", "abort"})
"""Verdicts that need a person's attention."""
_DRAWN = ("open", "held", "completed", REPLACED, "aborted")
"""The graph shows the newest of these. Rollbacks and other acts have no parts."""
_RUN = re.compile(rf"airflow:(?![^:]+{BACKFILL}:)([^:]+):(.*?)(?: \(cleared [0-9]+\))?", re.DOTALL)


def overview(pipeline: PipelineRef, permissions: Mapping[str, bool]) -> Overview:
    """Return the counts and the latest checkpoints, as on Flink's overview, and the pipeline's health."""
    history = pipeline.past()
    ledger = history.ledger
    savepoints = sorted(savepoint.savepoints(ledger), key=lambda each: each.pin.created)
    backfills = backfill_statuses(ledger, pipeline.options, with_values=pipeline.may_read_rows)
    undecided = history.page(HistoryFilter(states=("open", "held"), sort="id")).rows
    observed, health = read_health(pipeline, ledger)
    view = (observed if pipeline.may_read_rows else observed.without_rows()).view
    current = suspension.suspended(view, pipeline.card.tolerable_failed_checkpoints)
    return Overview(
        dag=pipeline.dag_id,
        pipeline=pipeline.card.pipeline,
        started=ledger.identity_or_none() is not None,
        by_interval=pipeline.card.by_interval,
        gates=list(pipeline.card.gates),
        health=health,
        promises=promise_answers(observed),
        contracts=[ContractAnswer(**msgspec.to_builtins(each)) for each in pipeline.card.contracts],
        suspended=SuspensionAnswer(**msgspec.to_builtins(current)) if current is not None else None,
        counts=CountsAnswer(**history.counts()),
        latest=LatestAnswer(
            completed=_with_details(history.last_completed()),
            failed=_with_details(history.newest("aborted")),
            rollback=_with_details(history.newest("rollback")),
            swap=_with_details(history.newest("swap")),
            savepoint=_savepoint(savepoints[-1]) if savepoints else None,
        ),
        open_checkpoints=[_with_progress(history, history.find(row.id)) for row in undecided],
        savepoints=[_savepoint(each) for each in savepoints],
        backfills=[_backfill(status) for status in backfills],
        recent=recent_checkpoints(history),
        history_problem=history.problem,
        now=_now(),
        permissions=dict(permissions),
    )


def promise_answers(observed: condition.Observations) -> list[PromiseAnswer]:
    """Return how old the tables are for which the pipeline makes a promise."""
    return [PromiseAnswer(**promise.document()) for promise in observed.promises]


RECENT = 50
"""How many checkpoints the strip of a pipeline shows."""


def recent_checkpoints(history: CheckpointHistory) -> RecentCheckpoints:
    """Return what a strip of the last checkpoints shows, oldest first."""
    return RecentCheckpoints(**history.points(["state", "planned", "seconds", "reason"], RECENT))


def _now() -> str:
    return seams.now().isoformat(timespec="milliseconds")


def _backfill(status: BackfillStatus) -> BackfillAnswer:
    """Return a backfill, its progress, and what a swap would have changed as of the last comparison."""
    record, compared, held = status.record, status.last_comparison, status.held_checkpoint
    held_checkpoint = last_comparison = None
    if held is not None:
        held_checkpoint = HeldBackfill(
            checkpoint=held.checkpoint,
            gates=list(held.gates),
            why=held.why,
            can_quarantine=held.can_quarantine,
        )
    if compared is not None:
        last_comparison = ComparedBackfill(
            compared_at=compared.created,
            is_current=compared.head == status.head and not status.pending,
            tables={name: ComparedBackfillTable(**typed.document_of(table)) for name, table in compared.tables.items()},
            unchanged_sinks=compared.unchanged_sinks,
            tables_with_other_writers=compared.tables_with_other_writers,
            problems=compared.problems,
        )
    return BackfillAnswer(
        name=record.name,
        origin=record.origin,
        created_by=record.by,
        note=record.note,
        created_at=record.created,
        state=status.state,
        checkpoints=status.checkpoints,
        caught_up_to=status.caught_up_to,
        caught_up_at=status.caught_up_at,
        pending=len(status.pending),
        oldest_pending_seconds=age(status.oldest_pending),
        swap=status.swap,
        blocked_by=status.blocked_by,
        held_checkpoint=held_checkpoint,
        stop_reason=status.stop_reason,
        last_comparison=last_comparison,
    )


def checkpoint(pipeline: PipelineRef, id: int) -> Checkpoint:
    """Return everything about one checkpoint."""
    history = pipeline.past()
    view = _view(pipeline, history, id)
    document = view.document()
    document["details"]["tables"] = _tables(pipeline, history, view)
    previous, following = history.neighbours(id)
    entry = history.ledger.entry(id) if view.records_retained else None
    return Checkpoint(
        **document,
        progress=_progress(history, view),
        sampled_parts=stream_samples.sampled_parts(history.ledger, entry),
        data_docs=pages_of(history.ledger, view.id) if view.details.gates else {},
        savepoints=[each.name for each in savepoint.savepoints(history.ledger) if each.entry == id],
        run_id=_run_id(view.run),
        dag_version=_dag_version(view.run),
        previous=previous,
        next=following,
        tasks=_tasks(pipeline),
        now=_now(),
    )


def _with_details(view: CheckpointView | None) -> CheckpointWithDetails | None:
    if view is not None:
        return CheckpointWithDetails(**view.document())
    return None


def _with_progress(history: CheckpointHistory, view: CheckpointView | None) -> CheckpointWithProgress:
    assert view is not None, "it is listed"
    return CheckpointWithProgress(**view.document(), progress=_progress(history, view))


def _progress(history: CheckpointHistory, view: CheckpointView) -> dict[str, ProgressAnswer]:
    """Return the last reported progress of a checkpoint's jobs."""
    by_job: dict[str, ProgressAnswer] = {}
    undecided = view.details.missing_acks if view.decided is None else ()
    for job, note in _notes_of(history.ledger, undecided, view.id).items():
        document = typed.document_of(note)
        reported_at = document.pop("created")
        by_job[job] = ProgressAnswer(**document, reported_at=reported_at, age_seconds=age(reported_at))
    return by_job


def _view(pipeline: PipelineRef, history: CheckpointHistory, id: int) -> CheckpointView:
    """Return a checkpoint. Raise Rejected if neither the ledger nor the history has it."""
    view = history.find(id)
    if view is None:
        help = "the list shows them all"
        raise no_such_checkpoint(pipeline.card.pipeline, id, expected="one of its history", help=help)
    return view


def row_of_run(pipeline: PipelineRef, run_id: str) -> CheckpointOfRun:
    """Return the last checkpoint that a run of the DAG made."""
    rows = pipeline.past().page(HistoryFilter(text=run_id, limit=200)).rows
    ids = [row.id for row in rows if _run_id(row.run) == run_id]
    return CheckpointOfRun(checkpoint=ids[0] if ids else None, run_id=run_id)


def samples(pipeline: PipelineRef, id: int, gate: str) -> Findings:
    """Return the results of a gate's rules, with some of the values that broke them."""
    ledger = pipeline.ledger()
    entry = ledger.entry(id)
    verdicts: dict[str, Verdict] = {}
    for acked in entry.acks.values() if entry is not None else ():
        verdicts |= acked.ack.gates
    if gate not in verdicts:
        raise Rejected(
            f"checkpoint {id} has no findings of gate {gate!r} (any more)",
            expected="a checkpoint that is retained, and that the gate has judged",
            help="its history still shows which rules broke",
            reason="NO_SUCH_VERDICT",
        )
    results = ledger.unpack(verdicts[gate].results)
    findings = results.get("results", []) if isinstance(results, dict) else []
    rules = [_rule(finding) for finding in findings[:200] if isinstance(finding, dict)]
    assert entry is not None, "it has verdicts"
    files = origins.planned_files(pipeline, ledger, entry, gate)
    broken = {}
    for rule in rules:
        if not rule.success and rule.column and rule.values:
            broken[rule.rule] = (rule.column, rule.values[0])
    first_places: Mapping[str, origins.Origin] = {}
    if broken:
        first_places = origins.origins(pipeline, files, broken, (ledger.home, id, gate, entry.plan.attempt))
    for number, rule in enumerate(rules):
        if rule.rule in first_places:
            file, line = first_places[rule.rule]
            rules[number] = msgspec.structs.replace(rule, file=file, line=line)
    names: list[str] = []
    for _, source_names in files.values():
        names += source_names
    return Findings(checkpoint=id, gate=gate, rules=rules, files=names[:SAMPLES], file_count=len(names))


def measured(pipeline: PipelineRef, gate: str, limit: int) -> MeasuredByGate:
    """Return what a gate has measured in the last retained checkpoints. Other gates' findings have no such numbers."""
    ledger = pipeline.ledger()
    answer = MeasuredByGate(gate=gate, function="", checkpoints=[], outcomes=[], groups=[])
    groups: dict[str, MeasuredGroup] = {}
    for id in sorted(ledger.ids())[-limit:]:
        entry = ledger.entry(id)
        for acked in entry.acks.values() if entry is not None else ():
            verdict = acked.ack.gates.get(gate)
            results = ledger.unpack(verdict.results) if verdict is not None else None
            if verdict is None or not isinstance(results, dict) or "function" not in results:
                continue
            answer.function = str(results["function"])
            for group_result in results.get("groups", []):
                name = ", ".join("null" if part is None else str(part)[:LETTERS] for part in group_result["group"])
                group = groups.setdefault(name, MeasuredGroup(name, [], [], [], [], []))
                _fill_up(group, len(answer.checkpoints))
                group.values.append(_number(group_result.get("value")))
                group.low.append(_number(group_result.get("low")))
                group.expected.append(_number(group_result.get("expected")))
                group.high.append(_number(group_result.get("high")))
                group.unusual.append(bool(group_result.get("unusual")))
            answer.checkpoints.append(id)
            answer.outcomes.append(verdict.outcome)
    for group in groups.values():
        _fill_up(group, len(answer.checkpoints))
    answer.groups = sorted(groups.values(), key=lambda group: (not any(group.unusual), group.group))
    return answer


def _number(value: object) -> float | None:
    """Return a number of a gate's findings; NaN and infinity are texts there, and have no place in a plot."""
    if isinstance(value, int | float):
        return float(value)
    return None


def _fill_up(group: MeasuredGroup, count: int) -> None:
    """Add nothing for each checkpoint in which the group was unknown."""
    missing: list[None] = [None] * (count - len(group.values))
    for column in (group.values, group.low, group.expected, group.high):
        column += missing
    group.unusual += [False] * len(missing)


def _rule(finding: Mapping[str, Any]) -> FindingAnswer:
    """Return the answer for one expectation's result, which is in Great Expectations' form."""
    config, result = finding.get("expectation_config") or {}, finding.get("result") or {}
    values = result.get("partial_unexpected_list") or []
    observed = result.get("observed_value")
    return FindingAnswer(
        rule=str(config.get("id") or config.get("type") or ""),
        type=str(config.get("type") or ""),
        column=str((config.get("kwargs") or {}).get("column") or ""),
        success=bool(finding.get("success")),
        unexpected=result.get("unexpected_count"),
        observed=str(observed)[:LETTERS] if observed is not None else None,
        values=[str(value)[:LETTERS] for value in values[:SAMPLES]],
        file=None,
        line=None,
    )


def configuration(pipeline: PipelineRef) -> Configuration:
    """Return every setting, its origin, and its value in the last checkpoint."""
    history = pipeline.past()
    rows = history.page(HistoryFilter(limit=1)).rows
    last = history.find(rows[0].id) if rows else None
    used = last.details.config if last is not None else {}
    card = pipeline.card
    settings = []
    for key, value, origin in card.settings:
        used_value = _setting(used[key]) if key in used else None
        settings.append(Setting(key=key, value=value, origin=origin, used=used_value, help=_sentence_of(key)))
    return Configuration(pipeline=card.pipeline, root=card.root, project=card.project, settings=settings)


def _sentence_of(key: str) -> str:
    """Return the description of a setting, for an entry of a table that of the table.

    Empty for an unknown key: a card may be of another version.
    """
    names = [name for name in KEYS if key == name or key.startswith(f"{name}.")]
    if names:
        return KEYS[max(names, key=len)].description
    return ""


def graph(pipeline: PipelineRef, id: int | None = None) -> GraphAnswer:
    """Return the pipeline's graph, with the state and the figures of each part in a checkpoint: by default the
    newest."""
    history = pipeline.past()
    if id is None:
        shown = history.newest(*_DRAWN)
    else:
        shown = _view(pipeline, history, id)
    details = shown.details if shown is not None else CheckpointDetails()
    parts = []
    for part in pipeline.card.parts:
        parts.append(msgspec.to_builtins(part) | _figures(part.name, part.role, details))
    _add_event_times(parts)
    jobs: dict[str, PartState] = {}
    if shown is not None:
        notes = _notes_of(history.ledger, pipeline.card.jobs, shown.id)
        jobs = job_states(shown, pipeline.card.jobs, notes)
        states = part_states(shown, pipeline.card.parts, jobs, notes)
        for part in parts:
            part["state"] = states[part["role"], part["name"]]
    entry = None
    if shown is not None and details.config.get("sample_rows"):
        entry = history.ledger.entry(shown.id)
    in_flight = {}
    for job, amount in details.overtaken_jobs.items():
        in_flight[job] = InFlightAnswer(rows=amount.rows, bytes=amount.bytes)
    return GraphAnswer(
        checkpoint=shown.id if shown is not None else None,
        state=shown.state if shown is not None else None,
        jobs=pipeline.card.jobs,
        job_states=jobs,
        parts=[PartAnswer(**part) for part in parts],
        in_flight=in_flight,
        sampled_parts=stream_samples.sampled_parts(history.ledger, entry),
    )


def _notes_of(ledger: Ledger, jobs: Iterable[str], id: int) -> dict[str, JobNote]:
    """Return the last reported progress of jobs, if it is about this checkpoint."""
    notes = {}
    for job in jobs:
        note = ledger.progress(job)
        if note is not None and note.id == id:
            notes[job] = note
    return notes


def _add_event_times(parts: Sequence[Json]) -> None:
    """Add to each part the event time up to which its output is complete: its own watermark, or the lowest of its
    inputs'."""
    by_name = {part["name"]: part for part in parts if part["role"] != "sink"}

    def event_time(part: Json) -> str | None:
        if "event_time" not in part:
            part["event_time"] = part["watermark"] or lowest_input(part)
        watermark: str | None = part["event_time"]
        return watermark

    def lowest_input(part: Json) -> str | None:
        lowest: tuple[datetime, str] | None = None
        for name in part["inputs"]:
            watermark = event_time(by_name[name]) if name in by_name else None
            moment = moment_of(watermark)
            if watermark is not None and moment is not None and (lowest is None or (moment, watermark) < lowest):
                lowest = moment, watermark
        return lowest[1] if lowest is not None else None

    for part in parts:
        event_time(part)


def _figures(name: str, role: str, details: CheckpointDetails) -> Json:
    """Return a part's figures. Names are only unique within a role: a sink may have the same name as an operator."""
    figures: Json = dict.fromkeys(("state", "rows", "seconds", "watermark", "bytes", "late", "verdict"))
    figures |= {"rate": None, "sent": None, "state_delta": None, "state_files": None}
    figures |= dict.fromkeys(("waiting", "waiting_files", "waiting_bytes", "waiting_seconds"))
    step = {"sink": f"stage {name}", "operator": f"state {name}", "gate": f"gate {name}"}.get(role)
    for job in details.jobs.values():
        if role == "sink":
            figures["rows"] = job.rows.get(name, figures["rows"])
            figures["bytes"] = job.bytes.get(name, figures["bytes"])
        if role in ("source", "operator"):
            figures["watermark"] = job.watermarks.get(name, figures["watermark"])
            figures["late"] = job.counts.get(name, {}).get("late", figures["late"])
        if step is not None:
            figures["seconds"] = job.seconds.get(step, figures["seconds"])
    if role == "source":
        amount, source = details.amounts_read.get(name), details.sources.get(name)
        figures["rows"] = amount.rows if amount is not None else None
        figures["summary"] = source.summary if source is not None else None
        figures["rate"] = _rate(name, figures["rows"], details)
        if source is not None and source.lag is not None:
            lag = source.lag
            figures |= {"waiting": lag.rows, "waiting_files": lag.files, "waiting_bytes": lag.bytes}
            figures["waiting_seconds"] = lag.seconds
    sizes = [size for key, size in details.states.items() if key.split(".")[1:2] == [name]]
    if role == "operator" and sizes:
        figures["bytes"] = sum(size.bytes for size in sizes)
        figures["rows"] = sum(size.rows for size in sizes)
        figures["state_delta"] = sum(size.delta for size in sizes)
        figures["state_files"] = sum(size.files for size in sizes)
    sent = []
    for job in details.jobs.values():
        for stream in job.sent:
            if stream.split(".")[0] == name:
                sent.append(job.sent[stream])
    if role != "sink" and sent:
        figures["sent"] = sum_of(sent).rows
    gate = details.gates.get(name)
    if role == "gate" and gate is not None:
        figures |= {"verdict": gate.outcome, "rows": gate.rows}
        figures |= {"quarantined": gate.quarantined, "released": gate.released}
    return figures


def _rate(name: str, rows: int | None, details: CheckpointDetails) -> float | None:
    """Return the rows of a source per second of its job's work."""
    for job in details.jobs.values():
        if name in job.read:
            if rows is not None and job.sync_s:
                return round(rows / job.sync_s, 1)
            return None
    return None


def compared(pipeline: PipelineRef, before: int, after: int) -> Compared:
    """Compare two checkpoints."""
    history = pipeline.past()
    old, new = _view(pipeline, history, before), _view(pipeline, history, after)
    old_document, new_document = old.document(), new.document()
    old_details, new_details = old_document["details"], new_document["details"]
    old_details["tables"] = _tables(pipeline, history, old)
    new_details["tables"] = _tables(pipeline, history, new)
    parts = {}
    for part in ("sources", "tables", "states", "gates"):
        parts[part] = _pairs(old_details[part], new_details[part])
    return Compared(
        before=old_document | {"details": None},
        after=new_document | {"details": None},
        measures={name: Pair(before=getattr(old, name), after=getattr(new, name)) for name in MEASURES},
        **parts,
        settings=_changed(old.details.config, new.details.config),
        code_changed=old.details.code_fingerprint != new.details.code_fingerprint,
    )


def _pairs(before: Json, after: Json) -> dict[str, Pair]:
    return {name: Pair(before=before.get(name), after=after.get(name)) for name in sorted({*before, *after})}


def _setting(value: Any) -> str:
    """Return a setting's value as tidegate.toml writes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _changed(before: Json, after: Json) -> dict[str, Pair]:
    return {name: pair for name, pair in _pairs(before, after).items() if pair.before != pair.after}


def rollback_plan(pipeline: PipelineRef, to: int) -> RollbackPlan:
    """Return what a rollback would do, according to the records. The run that does it checks the tables themselves."""
    history = pipeline.past()
    target, published = history.find(to), history.ledger.published(to)
    if target is None or target.outcome not in COUNTED or not target.records_retained or published is None:
        raise Rejected(
            f"a rollback to checkpoint {to} is not possible",
            expected="one that is completed, published to all tables, and retained",
            help="the list shows which are retained",
            reason="NO_TARGET",
        )
    tables = _tables(pipeline, history, target)
    last = history.newest(*COUNTED)
    _refuse_deleted_tables(pipeline, tables, to, last)
    if last is not None:
        versions = {name: table.version for name, table in last.details.tables.items()}
    else:
        versions = {}
    targets = {}
    for name, table in sorted(tables.items()):
        targets[name] = TargetAnswer(
            version=versions.get(name),
            restored_version=table["version"],
            uri=table["uri"],
            rows_stay_because=pipeline.card.rows_stay.get(name, ""),
        )
    return RollbackPlan(
        to=to,
        decided=target.decided,
        undone=history.checkpoints_after(to, "completed"),
        undone_swaps=[UndoneSwap(id=row.id, backfill=row.backfill) for row in history.swaps_after(to)],
        aborted=history.checkpoints_after(to, "open", "held"),
        sources=sorted(target.details.sources),
        tables=targets,
    )


def _refuse_deleted_tables(pipeline: PipelineRef, tables: Json, to: int, last: CheckpointView | None) -> None:
    """Refuse a rollback of deleted tables now, instead of letting its run fail."""
    for name, table in sorted(tables.items()):
        uri = table["uri"]
        is_place = bool(table["log_hash"]) and (is_url(uri) or os.path.isabs(uri))
        if is_place and open_table(Location(uri, pipeline.options)) is None:
            last_id = last.id if last is not None else None
            error = deleted_table_error(name, table["uri"], to, table["version"], last_id)
            raise Rejected(error.what, expected=error.expected, help=error.help, reason=error.reason)


def _tables(pipeline: PipelineRef, history: CheckpointHistory, view: CheckpointView) -> Json:
    """Return a checkpoint's table versions, with the tables' current addresses, as the project may have been moved."""
    tables: Json = typed.document_of(view.details.tables)
    if not tables:
        return tables
    return tables_now(view.id, tables, history.ledger, Place(pipeline.data, pipeline.options))


# -- small parts ---------------------------------------------------------------------------------------


def read_health(pipeline: PipelineRef, ledger: Ledger) -> tuple[condition.Observations, HealthAnswer]:
    """Return the observations of the pipeline, and its health as the API returns it."""
    observed = observe_pipeline(pipeline, ledger)
    return observed, health_answer(pipeline, observed if pipeline.may_read_rows else observed.without_rows())


def observe_pipeline(pipeline: PipelineRef, ledger: Ledger) -> condition.Observations:
    """Observe the pipeline. The web server cannot check processes on other machines, so none counts as dead."""
    return condition.observe(ledger, pipeline, lambda plan: None, paused=is_paused(pipeline.dag_id))


def health_answer(pipeline: PipelineRef, observed: condition.Observations) -> HealthAnswer:
    """Return the pipeline's health as the API returns it."""
    health = condition.condition(observed, _api_remedy(pipeline.card.pipeline))
    run_id, task, gates = _find_log_of(pipeline, observed, health)
    return HealthAnswer(
        state=health.state,
        needs_nothing=health.needs_nothing,
        summary=health.summary,
        cause=health.cause,
        remedy=list(health.remedy),
        checkpoint=health.checkpoint,
        reason=health.reason,
        run_id=run_id,
        task=task,
        gates=gates,
    )


def _find_log_of(
    pipeline: PipelineRef, observed: condition.Observations, health: condition.Health
) -> tuple[str | None, str | None, list[str]]:
    """Return the Airflow run and task whose log says more, and the gates whose findings matter."""
    if health.state == "troubled" and observed.trouble is not None:
        return _run_id(observed.trouble.run), observed.trouble.step, []
    entry = None
    if health.checkpoint is not None:
        entry = observed.view.get(health.checkpoint)
    is_old = health.state == "stale" and (entry is None or not entry.open)  # its log tells nothing of what came after
    if entry is None or entry.control is not None or is_old:
        return None, None, []
    gates: list[str] = []
    for acked in entry.acks.values():
        for name, verdict in acked.ack.gates.items():
            if verdict.outcome in _ALARMING:
                gates.append(name)
    if health.state == "held":
        holding_gates = [holding.gate for holding in unanswered(entry)]
        gate_task = None
        if holding_gates:
            gate_task = _tasks(pipeline).gates.get(holding_gates[0])
        return _run_id(entry.plan.run), gate_task, gates
    if health.state in ("suspended", "stopped", "cancelled") and not health.reason:
        return None, None, gates  # a user did that, so no log explains it
    if health.reason:
        without_ack = [job for job in entry.plan.acks if job not in entry.acks]
    else:
        without_ack = []
    if without_ack:
        task = _tasks(pipeline).jobs.get(without_ack[0], "complete")
    else:
        task = "complete"
    return _run_id(entry.plan.run), None if health.needs_nothing else task, gates


def _api_remedy(pipeline: str) -> condition.Command:
    """Return a function that names, for a command, the button or page that does the same."""

    def remedy_text(verb: str, *words: object) -> str:
        text = " ".join(map(str, words))
        if "--quarantine-all" in text:
            quarantining = ", with rows that a gate would hold quarantined"
        else:
            quarantining = ""
        buttons = {
            "resume": f"the button Resume{quarantining}",
            "explain": f"the page of checkpoint {text}",
            "approve": "the button Approve",
            "reject": "the button Quarantine" if "--quarantine" in text else "the button Reject",
            "watch": "this page",
        }
        return buttons.get(verb, f"tidegate {verb} {pipeline} {text}".rstrip())

    return remedy_text


def short(view: CheckpointView) -> LastCompleted:
    """Return a checkpoint for the list of pipelines."""
    return LastCompleted(id=view.id, decided=view.decided, seconds=view.seconds, rows_out=view.rows_out, run=view.run)


def age(text: str | None) -> float | None:
    """Return the seconds since a moment."""
    moment = moment_of(text)
    if moment is None:
        return None
    return round((seams.now() - moment).total_seconds(), 1)


def _savepoint(named: savepoint.Savepoint) -> SavepointAnswer:
    pin = named.pin
    return SavepointAnswer(
        name=named.name,
        checkpoint=named.entry,
        created_by=pin.by,
        note=pin.note,
        created_at=pin.created,
        retained=named.is_retained,
    )


def _run_id(run: str) -> str | None:
    """Return Airflow's id of the run, or None if it is not an Airflow run."""
    match = _RUN.fullmatch(run)
    return match[2] if match is not None else None


def _dag_version(run: str) -> int | None:
    """Return the version of the DAG with which the run was created, if Airflow knows the run."""
    match = _RUN.fullmatch(run)
    if match is not None:
        return dag_version(match[1], match[2])
    return None


def _tasks(pipeline: PipelineRef) -> Tasks:
    """Return the DAG's task of each part, for links to logs."""
    card = pipeline.card
    return Tasks(
        jobs={name: f"job_{name}" for name in card.jobs},
        gates={name: f"gate_{name}" for name in card.gates},
        complete="complete",
    )
