"""`tidegate show`: one checkpoint in figures: times, sources, jobs, states, gates, tables. However old it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.checkpoint.located import tables_now
from tidegate.cli.inspect.documents import clock, seconds_between, size_text, summary_of, summary_of_row
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, entry_of, find
from tidegate.gates.examples import examples_text
from tidegate.history.table import live_row
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records.names import entry_name
from tidegate.state.table import STATE

__all__ = ["add_parser", "checkpoint_id", "past_row", "row_of_entry", "run"]

LONGEST = 60
"""Characters of a position that are shown."""
TIMES = {
    "delay_seconds": "start delay",
    "align_seconds": "alignment",
    "sync_seconds": "sync",
    "process_seconds": "of that read, compute, state",
    "stage_seconds": "write",
    "async_seconds": "async (files made durable)",
    "publish_seconds": "publish",
}


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "show",
        help="one checkpoint: its plan, acks, decision and tables",
        description="Show one checkpoint in figures: when it was planned, acked, decided and published; ranges of its "
        "sources; per job start delay, ack and duration; size of each state, full and changed; gates with broken rules "
        "and values that broke them; watermarks, late rows; versions of its tables. Also of one whose records are "
        "retired: from the history. With --json also the records as stored.",
        epilog="examples:\n  tidegate show orders 5\n  tidegate show orders 5 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("id", type=checkpoint_id, metavar="ID", help="the checkpoint's number")


def checkpoint_id(text: str) -> int:
    """An argument that numbers a checkpoint."""
    if not text.isdecimal() or not 0 < int(text[:20]) < 10**15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a checkpoint's number")
    return int(text)


def past_row(target: Target, id: int) -> dict[str, Any]:
    """What the history has of a checkpoint whose records are gone; Rejected: it never was."""
    from tidegate.history.query import CheckpointHistory

    found = CheckpointHistory(target.ledger, dict(target.settings.storage_options)).one(id)
    if found is None:
        entry_of(target.ledger, id)  # says what there is
    assert found is not None
    return found


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    entry = target.ledger.entry(args.id)
    if entry is None:
        row = past_row(target, args.id)
        summary, records = summary_of_row(row), None
    else:
        row = row_of_entry(target.ledger, entry)
        summary, records = summary_of(target.ledger, entry), _records(target.ledger, entry)
    place, graph = target.settings.place(), target.sound_graph()
    summary["tables"] = tables_now(args.id, summary["tables"], target.ledger, place, graph)
    details = row.pop("details")
    known = {"figures": row, "states": details["states"], "ranges": details["sources"], "retired": entry is None}
    out.document({"pipeline": target.name, **summary, **known, "records": records})
    if out.json:
        return 0
    out.line(f"Checkpoint {args.id} of {target.name}: {summary['state']}", "bold")
    _facts(target, entry, summary, details, out)
    _times(row, out)
    _sources(details, out)
    _jobs(summary, details, out)
    _states(details, out)
    _gates(summary, out)
    _event_time(summary, out)
    _tables(summary, out)
    if entry is None:
        out.line("Its records are retired: this is what the history has of it.", "yellow")
    out.line(f"In prose:  {target.command('explain', args.id)}", "dim")
    return 0


def row_of_entry(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """The row that the history has, or will have, of it."""
    row = msgspec.structs.asdict(live_row(ledger, entry))
    return row | {"details": json.loads(row["details"])}


def _records(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    published = ledger.published(entry.id)
    return {
        "plan": msgspec.to_builtins(entry.plan),
        "acks": {job: msgspec.to_builtins(acked.ack) for job, acked in entry.acks.items()},
        "decision": msgspec.to_builtins(entry.decision),
        "manifest": msgspec.to_builtins(entry.manifest),
        "published": msgspec.to_builtins(published),
    }


def _facts(target: Target, entry: Entry | None, summary: dict[str, Any], details: dict[str, Any], out: Output) -> None:
    reason, detail = summary["reason"], summary["detail"]
    after = f", {summary['seconds']:.1f} s after the plan" if summary["seconds"] is not None else ""
    where = target.ledger.store.url(f"checkpoints/{entry_name(summary['id'])}") if entry is not None else ""
    facts: dict[str, object] = {
        "reason": f"{reason}: {detail}" if reason and detail else reason or detail,
        "planned": f"{clock(summary['planned'])} UTC ({summary['kind']})",
        "decided": f"{clock(summary['decided'])} UTC{after}" if summary["decided"] else "",
        "interval": f"{summary['interval']} UTC" if summary["interval"] else "",
        "run": summary["run"],
        "base": _base(entry, summary),
        "timeout": f"{details['timeout_s']:g} s",
        "code": details["code_fingerprint"],
        "settings": details["config_fingerprint"],
        "records": where,
        "manifest": details["manifest"] or "",
    }
    for name, value in facts.items():
        if value != "":
            out.line(f"  {name:<9} {value}")


def _base(entry: Entry | None, summary: dict[str, Any]) -> object:
    if entry is not None and entry.plan.by_interval:
        return "none: of an interval pipeline"
    return "none: the first" if summary["base"] is None else summary["base"]


def _times(row: dict[str, Any], out: Output) -> None:
    told = [f"{said} {row[name]:.2f} s" for name, said in TIMES.items() if row[name] is not None]
    if row["lag_seconds"] is not None:
        told.append(f"watermark lag {row['lag_seconds']:,.0f} s")
    if told:
        out.line(f"  {'times':<9} {', '.join(told)}")


def _sources(details: dict[str, Any], out: Output) -> None:
    rows = []
    taken = {name: told for job in details["jobs"].values() for name, told in job.get("taken", {}).items()}
    for name, part in details["sources"].items():
        read = rows_and_size(taken.get(name))
        summary, more = part["summary"] or ("nothing new" if part["empty"] else ""), "yes" if part["more"] else "no"
        rows.append([name, part["kind"], summary, *read, _short(part["start"]), _short(part["end"]), more])
    columns = ["source", "kind", "input", "rows", "bytes", "from (exclusive)", "to", "more waiting"]
    out.table(columns, rows, right=["rows", "bytes"])
    for name, part in details["sources"].items():
        if part.get("pace"):
            out.line(f"  how much of {name}: {part['pace']['why']}", "dim")


def rows_and_size(told: Mapping[str, Any] | None) -> list[str]:
    """An amount, as two cells."""
    rows, size = (told or {}).get("rows"), (told or {}).get("bytes")
    return ["" if rows is None else f"{rows:,}", "" if size is None else size_text(size)]


def _short(position: object) -> str:
    if position is None:
        return ""
    text = json.dumps(position, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _jobs(summary: dict[str, Any], details: dict[str, Any], out: Output) -> None:
    jobs, sinks = [], []
    for job, ack in summary["jobs"].items():
        after = seconds_between(summary["planned"], ack["acked"])
        begun = seconds_between(summary["planned"], ack["started"]) if ack.get("started") else None
        longest = max(ack["seconds"].items(), key=lambda step: step[1], default=("", 0.0))
        parts = [_seconds(ack.get(name)) for name in ("aligned_s", "sync_s", "async_s")]
        jobs.append([job, ack["attempt"], _seconds(begun), _seconds(after), *parts, f"{longest[0]} {longest[1]:.1f} s"])
        for sink in ack["rows"]:
            size = size_text(ack["bytes"].get(sink, 0))
            sinks.append([sink, job, f"{ack['rows'][sink]:,}", ack["files"].get(sink, 0), size])
    jobs += [[job, "no ack yet", "", "", "", "", "", ""] for job in summary["missing_acks"]]
    jobs += [[job, f"not waited for, at checkpoint {past['at']}"] + [""] * 6 for job, past in summary["behind"].items()]
    times = ["begun after", "acked after", "aligned", "sync", "async"]
    if jobs:
        out.table(["job", "attempt", *times, "longest step"], jobs, right=times)
    _between_jobs(details, out)
    if sinks:
        out.table(["sink", "job", "rows", "files", "bytes"], sinks, right=["rows", "files", "bytes"])


def _between_jobs(details: dict[str, Any], out: Output) -> None:
    """What jobs have taken from others, and what is in flight."""
    rows: list[list[object]] = []
    for job, told in details["jobs"].items():
        rows += [[job, f"took {name}", *rows_and_size(each)] for name, each in told.get("received", {}).items()]
        if told.get("processed"):
            rows.append([job, "  of it in flight before", *rows_and_size(told["processed"])])
        rows += [[job, f"sent {name}", *rows_and_size(each)] for name, each in told.get("sent", {}).items()]
    for job, past in details.get("behind", {}).items():
        ids = ", ".join(map(str, past["in_flight"]))
        rows.append([job, f"has yet to take what is in flight of {ids}", *rows_and_size(past)])
    if rows:
        out.table(["job", "between jobs", "rows", "bytes"], rows, right=["rows", "bytes"])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _states(details: dict[str, Any], out: Output) -> None:
    """What operators remember, and how much of it this checkpoint has written."""
    rows = [
        [name.removeprefix(STATE), f"{s['rows']:,}", size_text(s["bytes"]), size_text(s["delta"]), s["files"]]
        for name, s in details["states"].items()
    ]
    if rows:
        columns = ["state", "rows", "in full", "changed", "files"]
        out.table(columns, rows, right=columns[1:])


def _gates(summary: dict[str, Any], out: Output) -> None:
    """What gates found, and which rules were broken."""
    rows: list[list[object]] = []
    for name, said in summary["gates"].items():
        rows.append([name, said["outcome"], said["rows"], said["quarantined"], said["released"], said["why"]])
        for each in said["broken"]:
            why = f"{each['rule']}: {each['why']}{examples_text(each.get('examples', []))}"
            rows.append(["", f"  {each['policy']}", each["rows"], "", "", why])
    columns = ["gate", "verdict", "rows", "quarantined", "released", "broken rules"]
    if rows:
        out.table(columns, rows, right=["rows", "quarantined", "released"])


def _event_time(summary: dict[str, Any], out: Output) -> None:
    """How far it has come, and what operators counted, such as late rows."""
    rows = []
    for job in summary["jobs"].values():
        for name in sorted(job["watermarks"].keys() | job["counts"] | set(job["idle"])):
            counted = ", ".join(f"{what} {count:,}" for what, count in job["counts"].get(name, {}).items())
            mark = clock(job["watermarks"].get(name)) or "not known"
            rows.append([name, f"{mark}, idle" if name in job["idle"] else mark, counted])
    if rows:
        out.table(["source or operator", "watermark (UTC)", "counted"], rows)


def _tables(summary: dict[str, Any], out: Output) -> None:
    if summary["tables"]:
        out.table(
            ["sink", "version", "table"],
            [[name, table["version"], table["uri"]] for name, table in summary["tables"].items()],
            right=["version"],
        )
