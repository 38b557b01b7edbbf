"""`tidegate show`: one checkpoint, record by record."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from tidegate.cli.documents import clock, size_text, summary_of
from tidegate.cli.output import Output
from tidegate.cli.targets import entry_of, find
from tidegate.gates.examples import examples_text
from tidegate.ledger.ledger import Ledger
from tidegate.model.names import entry_name
from tidegate.model.view import Entry

__all__ = ["add_parser", "checkpoint_id", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "show",
        help="one checkpoint: its plan, acks, decision and tables",
        description="Show one checkpoint: its plan, acks, decision and tables. With --json also the records as stored.",
        epilog="examples:\n  tidegate show orders 5\n  tidegate show orders 5 --json",
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
    parser.add_argument("id", type=checkpoint_id, metavar="ID", help="the checkpoint's number")


def checkpoint_id(text: str) -> int:
    """An argument that numbers a checkpoint."""
    if not text.isdecimal() or not 0 < int(text[:20]) < 10**15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a checkpoint's number")
    return int(text)


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    entry = entry_of(target.ledger, args.id)
    summary = summary_of(target.ledger, entry)
    out.document({"pipeline": target.name, **summary, "records": _records(target.ledger, entry)})
    out.line(f"Checkpoint {entry.id} of {target.name}: {summary['state']}", "bold")
    _facts(entry, summary, target.ledger, out)
    _sources(entry, out)
    _jobs(summary, out)
    _gates(summary, out)
    _event_time(summary, out)
    _tables(summary, out)
    out.line(f"In prose:  {target.command('explain', entry.id)}", "dim")
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


def _facts(entry: Entry, summary: dict[str, Any], ledger: Ledger, out: Output) -> None:
    plan, decision = entry.plan, entry.decision
    facts: list[tuple[str, object]] = [
        ("planned", f"{clock(plan.created)} UTC ({plan.kind})"),
        ("run", plan.run),
        ("base", _base(entry)),
        ("timeout", f"{plan.timeout_s:g} s"),
        ("code", plan.code_fingerprint),
        ("settings", plan.config_fingerprint),
        ("records", ledger.store.url(f"checkpoints/{entry_name(entry.id)}")),
    ]
    if entry.interval is not None:
        facts.insert(2, ("interval", f"{entry.interval} UTC"))
    if decision is not None:
        after = f", {summary['seconds']:.1f} s after the plan" if summary["seconds"] is not None else ""
        facts.insert(1, ("decided", f"{clock(decision.created)} UTC{after}"))
    if decision is not None and decision.manifest:
        facts.append(("manifest", decision.manifest))
    if decision is not None and decision.reason:
        facts.insert(0, ("reason", f"{decision.reason}: {decision.detail}" if decision.detail else decision.reason))
    for name, value in facts:
        out.line(f"  {name:<9} {value}")


def _base(entry: Entry) -> object:
    if entry.plan.by_interval:
        return "none: of an interval pipeline"
    return "none: the first" if entry.plan.base is None else entry.plan.base


def _sources(entry: Entry, out: Output) -> None:
    out.table(
        ["source", "kind", "input", "more waiting"],
        [
            [name, part.kind, part.summary or ("nothing new" if part.empty else ""), "yes" if part.more else "no"]
            for name, part in entry.plan.sources.items()
        ],
    )


def _jobs(summary: dict[str, Any], out: Output) -> None:
    rows = []
    for job, ack in summary["jobs"].items():
        total = sum(ack["seconds"].values())
        for sink in ack["rows"]:
            size = size_text(ack["bytes"].get(sink, 0))
            rows.append([job, ack["attempt"], f"{total:.1f}", sink, ack["rows"][sink], ack["files"].get(sink, 0), size])
    rows += [[job, "no ack yet", "", "", "", "", ""] for job in summary["missing_acks"]]
    columns = ["job", "attempt", "seconds", "sink", "rows", "files", "bytes"]
    if rows:
        out.table(columns, rows, right=["seconds", "rows", "files", "bytes"])


def _gates(summary: dict[str, Any], out: Output) -> None:
    """What gates found, and which rules were broken."""
    rows: list[list[object]] = []
    for name, said in summary["gates"].items():
        rows.append([name, said["outcome"], said["rows"], said["quarantined"], said["released"], said["why"]])
        rows += [
            ["", f"  {e['policy']}", e["rows"], "", "", f"{e['rule']}: {e['why']}{examples_text(e['examples'])}"]
            for e in said["broken"]
        ]
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
