"""The API's answers, from the ledger and the history. Values are plain JSON; a page trusts none of them as markup."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.located import tables_now
from tidegate.checkpoint.publishing.table_mismatch import deleted_table_error
from tidegate.config import KEYS
from tidegate.delta import Location, open_table
from tidegate.errors import Rejected
from tidegate.history import health as condition
from tidegate.history.backfill import BackfillStatus, backfill_statuses
from tidegate.history.details import CheckpointDetails
from tidegate.history.query import CheckpointHistory, HistoryFilter
from tidegate.history.row import MEASURES
from tidegate.history.selection import COUNTED
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
from tidegate.ui.pipelines import PipelineRef, is_paused
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
    "read_health",
    "row_of_run",
    "samples",
    "short",
    "way_back",
]

SAMPLES, LETTERS = 20, 256
"""How many values of a broken rule are shown, and after how many letters each is cut."""
_ALARMING = frozenset({"hold", "abort"})
"""Verdicts that a person should look at."""
_RUN = re.compile(rf"airflow:(?![^:]+{BACKFILL}:)([^:]+):(.*?)(?: \(cleared [0-9]+\))?", re.DOTALL)


def overview(pipeline: PipelineRef) -> Json:
    """Return the counts and the latest checkpoints, as on Flink's overview, and the pipeline's health."""
    history = pipeline.past()
    ledger = history.ledger
    named = sorted(savepoint.savepoints(ledger), key=lambda found: found.pin.created)
    undecided = history.page(HistoryFilter(states=("open", "held"), sort="id")).rows
    observed, health = read_health(pipeline, ledger)
    view = (observed if pipeline.may_read_rows else observed.without_rows()).view
    return {
        "dag": pipeline.dag_id,
        "pipeline": pipeline.card.pipeline,
        "started": ledger.identity_or_none() is not None,
        "by_interval": pipeline.card.by_interval,
        "gates": list(pipeline.card.gates),
        "health": health,
        "suspended": msgspec.to_builtins(control.suspended(view, pipeline.card.tolerable_failed_checkpoints)),
        "counts": history.counts(),
        "latest": {
            "completed": _document(history.last_completed()),
            "failed": _document(history.newest("aborted")),
            "rollback": _document(history.newest("rollback")),
            "swap": _document(history.newest("swap")),
            "savepoint": _savepoint(named[-1]) if named else None,
        },
        "open_checkpoints": [_with_progress(history, history.find(row.id)) for row in undecided],
        "savepoints": [_savepoint(found) for found in named],
        "backfills": [
            _backfill(status)
            for status in backfill_statuses(ledger, pipeline.options, with_values=pipeline.may_read_rows)
        ],
        "history_problem": history.problem,
        "now": seams.now().isoformat(timespec="milliseconds"),
    }


def _backfill(status: BackfillStatus) -> Json:
    """Return a backfill, how far it has come, and what a swap would have changed when last compared."""
    record, compared = status.record, status.last_comparison
    return {
        "name": record.name,
        "origin": record.origin,
        "created_by": record.by,
        "note": record.note,
        "created_at": record.created,
        "state": status.state,
        "checkpoints": status.checkpoints,
        "caught_up_to": status.caught_up_to,
        "caught_up_at": status.caught_up_at,
        "pending": len(status.pending),
        "oldest_pending_seconds": age(status.oldest_pending),
        "swap": status.swap,
        "blocked_by": status.blocked_by,
        "held_checkpoint": None
        if status.held_checkpoint is None
        else {
            "checkpoint": status.held_checkpoint.checkpoint,
            "gates": list(status.held_checkpoint.gates),
            "why": status.held_checkpoint.why,
        },
        "stop_reason": status.stop_reason,
        "last_comparison": None
        if compared is None
        else {
            "compared_at": compared.created,
            "is_current": compared.head == status.head and not status.pending,
            "tables": typed.document_of(compared.tables),
            "unchanged_sinks": compared.unchanged_sinks,
            "tables_with_other_writers": compared.tables_with_other_writers,
            "problems": compared.problems,
        },
    }


def checkpoint(pipeline: PipelineRef, id: int) -> Json:
    """All that is known of one checkpoint."""
    history = pipeline.past()
    view = _view(pipeline, history, id)
    document = _with_progress(history, view)
    document["details"]["tables"] = _tables(pipeline, history, view)
    previous, following = history.neighbours(id)
    return document | {
        "sampled_parts": stream_samples.sampled_parts(
            history.ledger, history.ledger.entry(id) if view.records_retained else None
        ),
        "savepoints": [found.name for found in savepoint.savepoints(history.ledger) if found.entry == id],
        "run_id": _run_id(view.run),
        "previous": previous,
        "next": following,
        "tasks": _tasks(pipeline),
        "now": seams.now().isoformat(timespec="milliseconds"),
    }


def _with_progress(history: CheckpointHistory, view: CheckpointView | None) -> Json:
    """A checkpoint, and what its jobs were doing when they last said so."""
    assert view is not None, "it is listed"
    document: Json = view.document()
    document["progress"] = {}
    for job in view.details.missing_acks if view.decided is None else ():
        note = history.ledger.progress(job)
        if note is not None and note.id == view.id:
            document["progress"][job] = _progress(note)
    return document


def _progress(note: JobNote) -> Json:
    document: Json = typed.document_of(note)
    reported_at = document.pop("created")
    return document | {"reported_at": reported_at, "age_seconds": age(reported_at)}


def _view(pipeline: PipelineRef, history: CheckpointHistory, id: int) -> CheckpointView:
    """Rejected: there never was such a checkpoint, as far as anybody knows."""
    view = history.find(id)
    if view is None:
        name, shows = pipeline.card.pipeline, "the list shows them all"
        raise no_such_checkpoint(name, id, expected="one of its history", help=shows)
    return view


def row_of_run(pipeline: PipelineRef, run_id: str) -> Json:
    """The last checkpoint that a run of the DAG has made."""
    rows = pipeline.past().page(HistoryFilter(text=run_id, limit=200)).rows
    newest = next((row.id for row in rows if _run_id(row.run) == run_id), None)
    return {"checkpoint": newest, "run_id": run_id}


def samples(pipeline: PipelineRef, id: int, gate: str) -> Json:
    """Which rules a gate found broken, with some of the values that broke them."""
    ledger = pipeline.ledger()
    entry = ledger.entry(id)
    verdicts: dict[str, Verdict] = {}
    for acked in entry.acks.values() if entry is not None else ():
        verdicts |= acked.ack.gates
    if gate not in verdicts:
        raise Rejected(
            f"there are no findings of gate {gate!r} on checkpoint {id} (any more)",
            expected="a checkpoint that is retained, and that the gate has judged",
            help="its history still tells which rules broke",
            reason="NO_SUCH_VERDICT",
        )
    results = ledger.unpack(verdicts[gate].results)
    findings = results.get("results", []) if isinstance(results, dict) else []
    rules = [_rule(finding) for finding in findings[:200] if isinstance(finding, dict)]
    assert entry is not None, "it has verdicts"
    files = origins.planned_files(pipeline, ledger, entry, gate)
    broken = {
        rule["rule"]: (rule["column"], rule["values"][0])
        for rule in rules
        if not rule["success"] and rule["column"] and rule["values"]
    }
    found = origins.origins(pipeline, files, broken, (ledger.home, id, gate, entry.plan.attempt)) if broken else {}
    for rule in rules:
        rule["file"], rule["line"] = found.get(rule["rule"], (None, None))
    names = [name for _, each in files.values() for name in each]
    return {"checkpoint": id, "gate": gate, "rules": rules, "files": names[:SAMPLES], "file_count": len(names)}


def _rule(finding: Mapping[str, Any]) -> Json:
    """One expectation's result, in Great Expectations' form."""
    config, result = finding.get("expectation_config") or {}, finding.get("result") or {}
    values = result.get("partial_unexpected_list") or []
    return {
        "rule": str(config.get("id") or config.get("type") or ""),
        "type": str(config.get("type") or ""),
        "column": str((config.get("kwargs") or {}).get("column") or ""),
        "success": bool(finding.get("success")),
        "unexpected": result.get("unexpected_count"),
        "observed": str(result["observed_value"])[:LETTERS] if result.get("observed_value") is not None else None,
        "values": [str(value)[:LETTERS] for value in values[:SAMPLES]],
    }


def configuration(pipeline: PipelineRef) -> Json:
    """Every setting and where it came from; and what the last checkpoint was made with, where that differs."""
    history = pipeline.past()
    rows = history.page(HistoryFilter(limit=1)).rows
    last = history.find(rows[0].id) if rows else None
    used = last.details.config if last is not None else {}
    settings = [
        {
            "key": key,
            "value": value,
            "origin": origin,
            "used": _setting(used[key]) if key in used else None,
            "help": _sentence_of(key),
        }
        for key, value, origin in pipeline.card.settings
    ]
    card = pipeline.card
    return {"pipeline": card.pipeline, "root": card.root, "project": card.project, "settings": settings}


def _sentence_of(key: str) -> str:
    """What a setting does. Entries of a table have their table's sentence; a card may have keys of another version."""
    names = [name for name in KEYS if key == name or key.startswith(f"{name}.")]
    return KEYS[max(names, key=len)].description if names else ""


def graph(pipeline: PipelineRef) -> Json:
    """Return the pipeline's graph, with the figures of each part in the last completed checkpoint."""
    last = pipeline.past().last_completed()
    details = last.details if last is not None else CheckpointDetails()
    parts = [msgspec.to_builtins(part) | _figures(part.name, part.role, details) for part in pipeline.card.parts]
    _add_event_times(parts)
    asked = last is not None and details.config.get("sample_rows")
    entry = pipeline.ledger().entry(last.id) if last is not None and asked else None
    return {
        "checkpoint": last.id if last is not None else None,
        "jobs": pipeline.card.jobs,
        "parts": parts,
        "in_flight": {job: {"rows": at.rows, "bytes": at.bytes} for job, at in details.overtaken_jobs.items()},
        "sampled_parts": stream_samples.sampled_parts(pipeline.ledger(), entry),
    }


def _add_event_times(parts: Sequence[Json]) -> None:
    """Let each part say how far event time has come in what it gives: its own watermark, or the lowest of its
    inputs'."""
    by_name = {part["name"]: part for part in parts if part["role"] != "sink"}

    def event_time(part: Json) -> str | None:
        if "event_time" not in part:
            before = [event_time(by_name[name]) for name in part["inputs"] if name in by_name]
            known = [(moment, mark) for mark in before if (moment := moment_of(mark)) is not None]
            part["event_time"] = part["watermark"] or min(known, default=(None, None))[1]
        found: str | None = part["event_time"]
        return found

    for part in parts:
        event_time(part)


def _figures(name: str, role: str, details: CheckpointDetails) -> Json:
    """Return a part's measurements. Names are unique among the parts of a role only: a sink may be called as its
    operator is, and each has figures of its own."""
    figures: Json = {"rows": None, "seconds": None, "watermark": None, "bytes": None, "late": None, "verdict": None}
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
    sent = [job.sent[stream] for job in details.jobs.values() for stream in job.sent if stream.split(".")[0] == name]
    if role != "sink" and sent:
        figures["sent"] = sum_of(sent).rows
    gate = details.gates.get(name)
    if role == "gate" and gate is not None:
        figures |= {"verdict": gate.outcome, "rows": gate.rows}
        figures |= {"quarantined": gate.quarantined, "released": gate.released}
    return figures


def _rate(name: str, rows: int | None, details: CheckpointDetails) -> float | None:
    """Rows of a source per second in which its job has worked."""
    worked = next((job.sync_s for job in details.jobs.values() if name in job.read), None)
    return round(rows / worked, 1) if rows is not None and worked else None


def compared(pipeline: PipelineRef, before: int, after: int) -> Json:
    """Compare two checkpoints."""
    history = pipeline.past()
    old, new = _view(pipeline, history, before), _view(pipeline, history, after)
    old_document, new_document = old.document(), new.document()
    old_details, new_details = old_document["details"], new_document["details"]
    old_details["tables"] = _tables(pipeline, history, old)
    new_details["tables"] = _tables(pipeline, history, new)
    parts = ("sources", "tables", "states", "gates")
    return {
        "before": old_document | {"details": None},
        "after": new_document | {"details": None},
        "measures": {name: {"before": getattr(old, name), "after": getattr(new, name)} for name in MEASURES},
        **{part: _pairs(old_details[part], new_details[part]) for part in parts},
        "settings": _changed(old.details.config, new.details.config),
        "code_changed": old.details.code_fingerprint != new.details.code_fingerprint,
    }


def _pairs(before: Json, after: Json) -> Json:
    return {name: {"before": before.get(name), "after": after.get(name)} for name in sorted({*before, *after})}


def _setting(value: Any) -> str:
    """As tidegate.toml has it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changed(before: Json, after: Json) -> Json:
    return {name: pair for name, pair in _pairs(before, after).items() if pair["before"] != pair["after"]}


def way_back(pipeline: PipelineRef, to: int) -> Json:
    """Return what a rollback would do, as far as records tell: tables themselves are looked at by the run that does
    it."""
    history = pipeline.past()
    target, published = history.find(to), history.ledger.published(to)
    if target is None or target.outcome not in COUNTED or not target.records_retained or published is None:
        raise Rejected(
            f"nobody can go back to checkpoint {to}",
            expected="one that is completed, on all tables, and retained",
            help="the list shows which are kept",
            reason="NO_TARGET",
        )
    tables = _tables(pipeline, history, target)
    last = history.newest(*COUNTED)
    _refuse_deleted_tables(pipeline, tables, to, last)
    versions = {name: table.version for name, table in last.details.tables.items()} if last is not None else {}
    return {
        "to": to,
        "decided": target.decided,
        "undone": history.checkpoints_after(to, "completed"),
        "undone_swaps": [{"id": row.id, "backfill": row.backfill} for row in history.swaps_after(to)],
        "aborted": history.checkpoints_after(to, "open", "held"),
        "sources": sorted(target.details.sources),
        "tables": {
            name: {
                "version": versions.get(name),
                "restored_version": table["version"],
                "uri": table["uri"],
                "rows_stay_because": pipeline.card.rows_stay.get(name, ""),
            }
            for name, table in sorted(tables.items())
        },
    }


def _refuse_deleted_tables(pipeline: PipelineRef, tables: Json, to: int, last: CheckpointView | None) -> None:
    """Refuse a way back to tables that somebody has deleted: the run would only find that out."""
    for name, table in sorted(tables.items()):
        uri = table["uri"]
        is_place = bool(table["log_hash"]) and (is_url(uri) or os.path.isabs(uri))
        if is_place and open_table(Location(uri, pipeline.options)) is None:
            error = deleted_table_error(name, table["uri"], to, table["version"], last.id if last is not None else None)
            raise Rejected(error.what, expected=error.expected, help=error.help, reason=error.reason)


def _tables(pipeline: PipelineRef, history: CheckpointHistory, view: CheckpointView) -> Json:
    """Where a checkpoint's tables stood, at the places where they lie now: a project may have been moved since."""
    tables: Json = typed.document_of(view.details.tables)
    return tables_now(view.id, tables, history.ledger, Place(pipeline.data, pipeline.options)) if tables else tables


def _document(view: CheckpointView | None) -> Json | None:
    return view.document() if view is not None else None


# -- small parts ---------------------------------------------------------------------------------------


def read_health(pipeline: PipelineRef, ledger: Ledger) -> tuple[condition.Observations, Json]:
    """Return what is seen of the pipeline, and its health as the API tells it."""
    observed = observe_pipeline(pipeline, ledger)
    return observed, health_answer(pipeline, observed if pipeline.may_read_rows else observed.without_rows())


def observe_pipeline(pipeline: PipelineRef, ledger: Ledger) -> condition.Observations:
    """Return what is seen of the pipeline from here: the web server cannot tell whether a process elsewhere lives."""
    return condition.observe(ledger, pipeline, lambda plan: None, paused=is_paused(pipeline.dag_id))


def health_answer(pipeline: PipelineRef, observed: condition.Observations) -> Json:
    """Return the pipeline's health as the API tells it."""
    health = condition.condition(observed, _api_remedy(pipeline.card.pipeline))
    document = {
        "state": health.state,
        "needs_nothing": health.needs_nothing,
        "summary": health.summary,
        "cause": health.cause,
        "remedy": list(health.remedy),
        "checkpoint": health.checkpoint,
        "reason": health.reason,
    }
    return document | _find_log_of(pipeline, observed, health)


def _find_log_of(pipeline: PipelineRef, observed: condition.Observations, health: condition.Health) -> Json:
    """The run and task of Airflow whose log says more, and the gates whose findings matter."""
    if health.state == "troubled" and observed.trouble is not None:
        return {"run_id": _run_id(observed.trouble.run), "task": observed.trouble.step, "gates": []}
    entry = observed.view.get(health.checkpoint) if health.checkpoint is not None else None
    if entry is None or entry.control is not None:
        return {"run_id": None, "task": None, "gates": []}
    gates: list[str] = []
    for acked in entry.acks.values():
        gates += [name for name, verdict in acked.ack.gates.items() if verdict.outcome in _ALARMING]
    if health.state == "held":
        waits = next((holding.gate for holding in unanswered(entry)), "")
        return {"run_id": _run_id(entry.plan.run), "task": _tasks(pipeline)["gates"].get(waits), "gates": gates}
    if health.state in ("suspended", "stopped", "cancelled") and not health.reason:
        return {"run_id": None, "task": None, "gates": gates}  # a person has done that, and no log tells of it
    failed = next((job for job in entry.plan.acks if job not in entry.acks), None) if health.reason else None
    task = _tasks(pipeline)["jobs"].get(failed, "complete")
    return {"run_id": _run_id(entry.plan.run), "task": None if health.needs_nothing else task, "gates": gates}


def _api_remedy(pipeline: str) -> condition.Command:
    """Return the button or page that does here what a command does on the command line."""

    def say(verb: str, *words: object) -> str:
        text = " ".join(map(str, words))
        quarantining = ", with rows that a gate would hold quarantined" if "--quarantine-all" in text else ""
        buttons = {
            "resume": f"the button Resume{quarantining}",
            "explain": f"the page of checkpoint {text}",
            "approve": "the button Approve",
            "reject": "the button Reject",
            "watch": "this page",
        }
        return buttons.get(verb, f"tidegate {verb} {pipeline} {text}".rstrip())

    return say


def short(view: CheckpointView | None) -> Json | None:
    """A checkpoint in the list of pipelines."""
    names = ("id", "decided", "seconds", "rows_out", "run")
    return {name: getattr(view, name) for name in names} if view is not None else None


def age(text: str | None) -> float | None:
    """The seconds since a moment."""
    moment = moment_of(text)
    return round((seams.now() - moment).total_seconds(), 1) if moment is not None else None


def _savepoint(found: savepoint.Savepoint) -> Json:
    pin = found.pin
    return {
        "name": found.name,
        "checkpoint": found.entry,
        "created_by": pin.by,
        "note": pin.note,
        "created_at": pin.created,
        "retained": found.is_retained,
    }


def _run_id(run: str) -> str | None:
    """Airflow's name of the run, if it is one of Airflow's."""
    match = _RUN.fullmatch(run)
    return match[2] if match is not None else None


def _tasks(pipeline: PipelineRef) -> Json:
    """The DAG's task of each part, for links to logs."""
    jobs = {name: f"job_{name}" for name in pipeline.card.jobs}
    return {"jobs": jobs, "gates": {name: f"gate_{name}" for name in pipeline.card.gates}, "complete": "complete"}
