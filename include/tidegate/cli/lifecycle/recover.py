"""`tidegate recover`: verify what the next run continues from, and do the first steps of that run."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.context import PipelineContext
from tidegate.cli.lifecycle.rollback import (
    coordinator_of,
    dropped_text,
    preview_document,
    print_preview,
    report_rollback,
)
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.targets import Target, open_target
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.execution.notifications import notify_settled
from tidegate.execution.runs import abandoned_reason, new_run
from tidegate.history.table import remember
from tidegate.lifecycle import rollback
from tidegate.lifecycle.rollback_preview import examine
from tidegate.verify.recovery import Recovery, verify_next_run

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "recover",
        help="verify what the next run continues from; abort dead checkpoints, publish pending ones",
        description="Verify what the next run will continue from: each record, version, hash and file. Then do the "
        "first steps of the next run: abort checkpoints whose run is gone, and publish pending ones. If the last "
        "checkpoint is damaged, show the newest intact one, and what would be lost.",
        epilog="examples:\n  tidegate recover jobs.orders:pipeline --dry-run\n"
        "  tidegate recover jobs.orders:pipeline --fall-back\n"
        "  tidegate recover jobs.orders:pipeline --drop-in-flight --dry-run",
    )
    parser.add_argument(
        "pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code, which says where the tables are"
    )
    parser.add_argument("--dry-run", action="store_true", help="only verify; exit code 1: the next run cannot continue")
    parser.add_argument(
        "--fall-back", action="store_true", help="if the last checkpoint is damaged, roll back to an intact one"
    )
    parser.add_argument(
        "--drop-in-flight",
        action="store_true",
        help="continue without the rows in flight between jobs, which are then never read (unaligned = true)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    findings = verify_next_run(coordinator, abandoned_reason)
    if args.drop_in_flight:
        return _drop_in_flight(target, coordinator, findings, args, out)
    if args.dry_run:
        out.document(_document(target, findings))
        _print_findings(target, findings, out)
        return NO if findings.problems else 0
    _print_findings(target, findings, out)
    if findings.problems:
        return _recover_from_damage(target, coordinator, findings, args, out)
    for id, reason in findings.aborted.items():
        coordinator.abort(id, reason, "ended by `tidegate recover`")
    report = coordinator.publish()
    remember(coordinator.ledger, coordinator.place.options)
    notify_settled(coordinator)
    coordinator.retire()
    published = {}
    for (id, name), table in report.published.items():
        published[f"{name} {id}"] = table.version
    out.document(_document(target, findings) | {"published": published})
    for (id, name), table in report.published.items():
        out.line(f"Published: checkpoint {id} on {name}{f', as version {table.version}' if table.is_delta else ''}")
    out.line("The next run continues from here.", "bold")
    return 0


def _drop_in_flight(target: Target, pipeline: PipelineContext, findings: Recovery, args: Any, out: Output) -> int:
    """Continue from the last completed checkpoint without the rows that were in flight then: a rollback to it."""
    if findings.continues_from is None:
        raise Invalid(
            f"pipeline {target.name!r} has no completed checkpoint",
            expected="a checkpoint that overtook a busy job",
            help="leave out --drop-in-flight",
            reason="NOTHING_IN_FLIGHT",
        )
    preview = examine(pipeline, findings.continues_from, {}, drop_in_flight=True)
    print_preview(target, preview, out)
    if args.dry_run:
        out.document(preview_document(target, preview) | {"possible": not preview.problems})
        return NO if preview.problems else 0
    question = (
        f"Continue from checkpoint {findings.continues_from} without them? {dropped_text(preview)} never processed."
    )
    confirm(question, out, yes=args.yes)
    rolled_back = rollback.roll_back(
        pipeline,
        findings.continues_from,
        run=new_run(),
        by=user_and_host(),
        reason="recovered without the rows in flight",
        choices={},
        shown={*preview.undone, *preview.aborted},
        drop_in_flight=True,
    )
    return report_rollback(target, rolled_back, out)


def _recover_from_damage(target: Target, pipeline: PipelineContext, findings: Recovery, args: Any, out: Output) -> int:
    damage = "\n    ".join(
        [
            f"checkpoint {findings.continues_from} of pipeline {target.name!r} cannot be continued from:",
            *findings.problems,
        ]
    )
    if findings.fallback is None:
        raise Corrupt(
            damage,
            expected="every record and file as it was written, or an older intact checkpoint",
            help="no retained checkpoint is intact: restore the named files from a backup of the storage",
            reason="NOTHING_TO_RESTORE",
        )
    if not args.fall_back:
        raise Rejected(
            damage,
            expected="every record and file as it was written",
            help="restore them from a backup of the storage; or add --fall-back to roll back to checkpoint "
            f"{findings.fallback}: {_loss_text(findings)}, and their input is read again{_stay_text(findings)}",
            reason="DAMAGED",
        )
    question = f"Roll back to checkpoint {findings.fallback}? {_loss_text(findings)}{_stay_text(findings)}."
    confirm(question, out, yes=args.yes)
    rolled_back = rollback.roll_back(
        pipeline,
        findings.fallback,
        run=new_run(),
        by=user_and_host(),
        choices=dict.fromkeys(findings.rows_stay_in, "keep"),
        reason="; ".join(findings.problems)[:500],
    )
    return report_rollback(target, rolled_back, out)


def _loss_text(findings: Recovery) -> str:
    return f"checkpoint {', '.join(map(str, findings.undone)) or 'none'} will no longer count"


def _stay_text(findings: Recovery) -> str:
    if not findings.rows_stay_in:
        return ""
    return f"; rows stay in {', '.join(findings.rows_stay_in)}, and input that is read again is written there again"


def _document(target: Target, findings: Recovery) -> dict[str, Any]:
    return {
        "pipeline": target.name,
        "continues_from": findings.continues_from,
        "aborted": {str(id): why for id, why in findings.aborted.items()},
        "running": list(findings.running),
        "unpublished": {name: list(ids) for name, ids in findings.unpublished.items()},
        "problems": list(findings.problems),
        "fallback": findings.fallback,
        "rows_stay_in": list(findings.rows_stay_in),
        "undone": list(findings.undone),
    }


def _print_findings(target: Target, findings: Recovery, out: Output) -> None:
    base = findings.continues_from
    if base is not None:
        start = f"checkpoint {base}"
    else:
        start = "the beginning: none was completed"
    out.line(f"Pipeline {target.name} continues from {start}", "bold")
    for id, why in findings.aborted.items():
        out.line(f"- Checkpoint {id} is open and dead ({why}): it is aborted; its input is read again.")
    for id in findings.running:
        out.line(f"- Checkpoint {id} is open, and its run may be in progress: it stays.")
    for name, ids in findings.unpublished.items():
        out.line(f"- Table {name} still lacks checkpoint {', '.join(map(str, ids))}.")
    for problem in findings.problems:
        out.line(f"- Damaged: {problem}", "red")
    if findings.problems and findings.fallback is not None:
        out.line(f"The newest intact checkpoint is {findings.fallback}: {_loss_text(findings)}{_stay_text(findings)}.")
    elif not findings.problems:
        out.line("- All of its records and files are intact.")
