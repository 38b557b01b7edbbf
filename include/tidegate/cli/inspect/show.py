"""`tidegate show`: one checkpoint of any age in figures: times, sources, jobs, states, gates, tables."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from tidegate.checkpoint.located import tables_now
from tidegate.cli.inspect.documents import (
    Examples,
    act_text,
    checkpoint_document,
    clock,
    find_examples,
    find_view,
    lag_text,
    measure_text,
    size_text,
)
from tidegate.cli.inspect.spark_cells import COLUMNS, columns_with_figures, spark_cells
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_target
from tidegate.gates.examples import examples_text
from tidegate.history.details import CheckpointDetails, seconds_between
from tidegate.history.row import MEASURES
from tidegate.history.schemas.drift import misfit_name, misfit_text
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records.names import entry_name
from tidegate.records.records import Amount, Json
from tidegate.state.table import STATE

__all__ = ["add_parser", "checkpoint_id", "run"]

MAX_LENGTH = 60
"""The maximum length of a position that is shown."""


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "show",
        help="one checkpoint: its plan, acks, decision and tables",
        description="Show one checkpoint in figures: when it was planned, acked, decided and published; ranges of its "
        "sources; per job start delay, ack and duration; per step what Spark did; size of each state, full and "
        "changed; gates with broken rules and values that broke them; watermarks, late rows; versions of its tables. "
        "If its records are retired, from the history. With --json, also the records as stored.",
        epilog="examples:\n  tidegate show orders 5\n  tidegate show orders 5 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("id", type=checkpoint_id, metavar="ID", help="the checkpoint's number")


def checkpoint_id(text: str) -> int:
    """Parse a checkpoint's number."""
    if not text.isdecimal() or not 0 < int(text[:20]) < 10**15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a checkpoint's number")
    return int(text)


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the checkpoint."""
    target = open_target(args.pipeline, args.settings)
    view, entry = find_view(target, args.id)
    examples = find_examples(target.ledger, entry)
    document = checkpoint_document(view, examples)
    place, graph = target.settings.place(), target.sound_graph()
    document["tables"] = tables_now(args.id, document["tables"], target.ledger, place, graph)
    figures = view.document()
    details = figures.pop("details")
    out.document(
        {
            "pipeline": target.name,
            **document,
            "figures": figures,
            "states": details["states"],
            "ranges": details["sources"],
            "retired": entry is None,
            "records": _records(target.ledger, entry) if entry is not None else None,
        }
    )
    if out.json:
        return 0
    out.line(f"Checkpoint {args.id} of {target.name}: {view.described_state}", "bold")
    _print_facts(target, view, entry is not None, out)
    _print_times(view, out)
    _print_sources(view.details, out)
    _print_drift(view.details, out)
    _print_jobs(view, out)
    _print_steps(view.details, out)
    _print_states(view.details, out)
    _print_gates(view.details, examples, out)
    _print_event_time(view.details, out)
    _print_tables(document["tables"], out)
    if entry is None:
        out.line("Its records are retired: this is what the history has of it.", "yellow")
    out.line(f"In prose:  {target.command('explain', args.id)}", "dim")
    return 0


def _records(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    published = ledger.published(entry.id)
    return {
        "plan": msgspec.to_builtins(entry.plan),
        "acks": {job: msgspec.to_builtins(acked.ack) for job, acked in entry.acks.items()},
        "decision": msgspec.to_builtins(entry.decision),
        "manifest": msgspec.to_builtins(entry.manifest),
        "published": msgspec.to_builtins(published),
    }


def _print_facts(target: Target, view: CheckpointView, with_records: bool, out: Output) -> None:
    details = view.details
    if view.seconds is not None:
        after = f", {view.seconds:.1f} s after the plan"
    else:
        after = ""
    facts: dict[str, object] = {
        "reason": ": ".join(filter(None, (view.cause, act_text(view)))),
        "planned": f"{clock(view.planned)} UTC ({view.kind})",
        "decided": f"{clock(view.decided)} UTC{after}" if view.decided else "",
        "interval": f"{view.interval} UTC" if view.interval else "",
        "run": view.run,
        "base": _base(view),
        "timeout": f"{details.timeout_s:g} s",
        "code": details.code_fingerprint,
        "settings": details.config_fingerprint,
        "records": target.ledger.store.url(f"checkpoints/{entry_name(view.id)}") if with_records else "",
        "manifest": details.manifest or "",
    }
    for name, value in facts.items():
        if value != "":
            out.line(f"  {name:<9} {value}")


def _base(view: CheckpointView) -> object:
    if view.details.by_interval:
        return "none: the pipeline is an interval pipeline"
    if view.base is None:
        return "none: the first"
    return view.base


def _print_times(view: CheckpointView, out: Output) -> None:
    """Print all durations except the total, which is printed with the decision."""
    texts = []
    for name, measure in MEASURES.items():
        value = getattr(view, name)
        if measure.unit == "s" and name != "seconds" and value is not None:
            texts.append(f"{measure.label} {measure_text(measure, value)}")
    if texts:
        out.line(f"  {'times':<9} {', '.join(texts)}")


def _print_sources(details: CheckpointDetails, out: Output) -> None:
    rows = []
    for name, source in details.sources.items():
        more = "yes" if source.has_more else "no"
        more = lag_text(source.lag) or more
        positions = _short(source.start), _short(source.end)
        rows.append([name, source.kind, source.text, *amount_cells(details.amounts_read.get(name)), *positions, more])
    columns = ["source", "kind", "input", "rows", "bytes", "from (exclusive)", "to", "more waiting"]
    out.table(columns, rows, right=["rows", "bytes"])
    for name, source in details.sources.items():
        if source.pace is not None:
            out.line(f"  how much of {name}: {source.pace.why}", "dim")


def _print_drift(details: CheckpointDetails, out: Output) -> None:
    """Print what of the input does not fit the sources' schemas."""
    rows: list[list[object]] = []
    for name, drift in details.drift.items():
        for misfit in drift.misfits:
            what = [misfit_name(misfit), misfit.type, f"{misfit.records:,}", misfit.file]
            rows.append([name, *what, misfit_text(misfit)])
        if drift.more:
            rows.append([name, f"at least {drift.more} more", "", "", "", ""])
    if rows:
        out.table(["source", "does not fit", "type", "records", "first in", "so"], rows, right=["records"])


def amount_cells(amount: Amount | None) -> list[str]:
    """Return rows and bytes as two cells."""
    amount = amount or Amount()
    rows = "" if amount.rows is None else f"{amount.rows:,}"
    return [rows, "" if amount.bytes is None else size_text(amount.bytes)]


def _short(position: object) -> str:
    if position is None:
        return ""
    text = json.dumps(position, default=str)
    if len(text) <= MAX_LENGTH:
        return text
    return f"{text[: MAX_LENGTH - 1]}…"


def _print_jobs(view: CheckpointView, out: Output) -> None:
    details = view.details
    jobs: list[list[object]] = []
    sinks: list[list[object]] = []
    for name, job in details.jobs.items():
        longest, seconds = max(job.seconds.items(), key=lambda step: step[1], default=("", 0.0))
        after = seconds_between(view.planned, job.acked)
        times = []
        for value in (job.delay, after, job.aligned_s, job.sync_s, job.async_s):
            times.append(_seconds(value))
        jobs.append([name, job.attempt, *times, f"{longest} {seconds:.1f} s"])
        for sink, rows in job.rows.items():
            sinks.append([sink, name, f"{rows:,}", job.files.get(sink, 0), size_text(job.bytes.get(sink, 0))])
    for name in details.missing_acks:
        jobs.append([name, "no ack yet", "", "", "", "", "", ""])
    for name, overtaken in details.overtaken_jobs.items():
        jobs.append([name, f"overtaken, at checkpoint {overtaken.last_checkpoint}", "", "", "", "", "", ""])
    columns = ["begun after", "acked after", "aligned", "sync", "async"]
    if jobs:
        out.table(["job", "attempt", *columns, "longest step"], jobs, right=columns)
    _print_between_jobs(details, out)
    if sinks:
        out.table(["sink", "job", "rows", "files", "bytes"], sinks, right=["rows", "files", "bytes"])


def _print_steps(details: CheckpointDetails, out: Output) -> None:
    """Print each step's duration and Spark's work, if the records have them."""
    steps = []
    for name, job in details.jobs.items():
        for step in job.steps:
            steps.append((name, step))
    if steps:
        places = columns_with_figures([step.spark for _, step in steps])
        columns = ["took", *(COLUMNS[place] for place in places)]
        rows = []
        for name, step in steps:
            cells = spark_cells(step.spark)
            computed = step.computed.text if step.computed is not None else ""
            rows.append([name, step.name, f"{step.seconds:.2f} s", *(cells[place] for place in places), computed])
        out.table(["job", "step", *columns, "computed by"], rows, right=columns)


def _print_between_jobs(details: CheckpointDetails, out: Output) -> None:
    """Print the rows that jobs took from each other, and those in flight."""
    rows: list[list[object]] = []
    for name, job in details.jobs.items():
        rows += [[name, f"took {stream}", *amount_cells(amount)] for stream, amount in job.received.items()]
        if job.processed is not None:
            rows.append([name, "  of it in flight before", *amount_cells(job.processed)])
        rows += [[name, f"sent {stream}", *amount_cells(amount)] for stream, amount in job.sent.items()]
    for name, overtaken in details.overtaken_jobs.items():
        ids = ", ".join(map(str, overtaken.in_flight))
        amount = Amount(rows=overtaken.rows, bytes=overtaken.bytes)
        rows.append([name, f"in flight to it, of {ids}", *amount_cells(amount)])
    if rows:
        out.table(["job", "between jobs", "rows", "bytes"], rows, right=["rows", "bytes"])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _print_states(details: CheckpointDetails, out: Output) -> None:
    """Print the operators' states, and how much of them this checkpoint wrote."""
    rows = []
    for name, size in details.states.items():
        rows.append(
            [name.removeprefix(STATE), f"{size.rows:,}", size_text(size.bytes), size_text(size.delta), size.files]
        )
    if rows:
        columns = ["state", "rows", "in full", "changed", "files"]
        out.table(columns, rows, right=columns[1:])


def _print_gates(details: CheckpointDetails, examples: Examples, out: Output) -> None:
    """Print the gates' verdicts and the broken rules."""
    rows: list[list[object]] = []
    for name, gate in details.gates.items():
        rows.append([name, gate.outcome, gate.rows, gate.quarantined, gate.released, gate.why])
        for broken in gate.broken:
            values = examples.get(name, {}).get(broken.rule, [])
            why = f"{broken.rule}: {broken.why}{examples_text(values)}"
            rows.append(["", f"  {broken.policy}", broken.rows, "", "", why])
    columns = ["gate", "verdict", "rows", "quarantined", "released", "broken rules"]
    if rows:
        out.table(columns, rows, right=["rows", "quarantined", "released"])


def _print_event_time(details: CheckpointDetails, out: Output) -> None:
    """Print the event time, and the operators' counts, such as late rows."""
    rows = []
    for job in details.jobs.values():
        for name in sorted({*job.watermarks, *job.counts, *job.idle}):
            counts = ", ".join(f"{counter} {count:,}" for counter, count in job.counts.get(name, {}).items())
            mark = clock(job.watermarks.get(name)) or "not known"
            rows.append([name, f"{mark}, idle" if name in job.idle else mark, counts])
    if rows:
        out.table(["source or operator", "watermark (UTC)", "counted"], rows)


def _print_tables(tables: Json, out: Output) -> None:
    if tables:
        rows = []
        for name, table in tables.items():
            rows.append([name, table["version"] if table["log_hash"] else "none", table["uri"]])
        out.table(["sink", "version", "table"], rows, right=["version"])
