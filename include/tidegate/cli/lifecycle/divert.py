"""`tidegate divert`: rows that a target refuses go to quarantine, and the others are published."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.inspect.read import format_value
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.targets import Target, open_target
from tidegate.delta.as_python import json_value
from tidegate.errors import Rejected, TidegateError
from tidegate.execution.by_hand.diverting import Diversion, divert, find_refusal, preview_divert, refuse_undivertible
from tidegate.records.records import Json
from tidegate.spark.session import control_settings, session

__all__ = ["add_parser", "run"]

NOTHING, STILL_REFUSED = 1, 3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "divert",
        help="send rows that a target refuses to quarantine, and publish the others",
        description="A completed checkpoint waits if its target refuses one of its rows in publication: a key that is "
        "taken, say. This sends the rows that you choose to the sink's quarantine, with the target's message and your "
        "name, and publishes the others. It is a checkpoint of its own, which reads nothing; open ones are waited for. "
        'The sink has to be declared with refused="quarantine".',
        epilog='examples:\n  tidegate divert jobs.orders:pipeline orders --where "order_id = 7" --dry-run\n'
        '  tidegate divert jobs.orders:pipeline orders --where "order_id IN (7, 9)" --note "sent twice"\n'
        "  tidegate quarantine show orders orders-refused --rule diverted",
    )
    parser.add_argument(
        "pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code, which says where the tables are"
    )
    parser.add_argument("sink", metavar="SINK", help="the sink whose target refuses rows")
    parser.add_argument("--where", required=True, metavar="SQL", help="which rows: Spark SQL over the sink's columns")
    parser.add_argument("--dry-run", action="store_true", help="only show the rows; exit code 1: none match")
    parser.add_argument("--limit", type=checkpoint_id, default=20, metavar="K", help="show at most K rows (20)")
    parser.add_argument("--note", default="", metavar="TEXT", help="the reason, for the record")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    refuse_undivertible(coordinator, args.sink)
    with session(control_settings(target.settings)) as spark:
        coordinator.spark = lambda: spark
        refusal = find_refusal(coordinator, args.sink)  # some tables are published through Spark
        diversion = preview_divert(coordinator, spark, refusal, args.where)
        if args.dry_run or not diversion.rows:
            out.document(_document(target, diversion, args.limit) | {"possible": bool(diversion.rows)})
            _print(target, diversion, args.limit, out)
            return 0 if diversion.rows else NOTHING
        _print(target, diversion, args.limit, out)
        question = f"Send {_rows(diversion.rows)} to quarantine {refusal.gate}, and publish the others?"
        confirm(question, out, yes=args.yes)
        outcome, error = divert(
            coordinator,
            spark,
            refusal,
            args.where,
            by=user_and_host(),
            note=args.note,
            expected_rows=diversion.rows,
        )
    applied = coordinator.ledger.divert_applied(outcome.id)
    out.document(
        _document(target, diversion, args.limit)
        | {"checkpoint": outcome.id, "applied": applied, "error": error.what if error is not None else None}
    )
    return _report(target, diversion, outcome.id, applied, error, out)


def _report(
    target: Target, diversion: Diversion, id: int, applied: bool | None, error: TidegateError | None, out: Output
) -> int:
    sink, gate = diversion.refusal.sinking.name, diversion.refusal.gate
    if applied is False:
        raise Rejected(
            f"checkpoint {id} diverts nothing: {sink!r} has taken the rows meanwhile",
            help="nothing is in two places: the rows are in the table, and not in quarantine",
            reason="CHANGED_MEANWHILE",
        )
    if error is not None:
        if applied:
            what = "the others are published, and it refuses later rows"
        else:
            what = "it still refuses the others"
        out.line(f"Checkpoint {id} diverts {_rows(diversion.rows)} from {sink}, but {what}:", "yellow")
        out.line(f"  {error.what}")
        again = target.command_on_code("divert", sink)
        out.line(f"  to divert further rows, with those of checkpoint {id}:  {again} --where SQL")
        return STILL_REFUSED
    out.line(f"Checkpoint {id} has sent {_rows(diversion.rows)} to quarantine; {sink} has the others.", "green")
    out.line(f"  {target.command('quarantine show', gate)} --rule diverted", "dim")
    return 0


def _print(target: Target, diversion: Diversion, limit: int, out: Output) -> None:
    refusal = diversion.refusal
    sink, waiting = refusal.sinking.name, ", ".join(map(str, refusal.waiting))
    out.line(f"{sink} of {target.name} refuses checkpoint {waiting}:", "bold")
    out.line(f"  {refusal.error.what}")
    if refusal.error.quoted:
        out.line(f"  {refusal.error.quoted}", "dim")
    if diversion.rows_before:
        out.line(f"  {_rows(diversion.rows_before)} that an earlier divert takes go to quarantine with these")
    for id, rows in diversion.by_checkpoint.items():
        out.line(f"  {_rows(rows)} of checkpoint {id} would go to quarantine {refusal.gate}")
    if not diversion.rows:
        out.line(f"  no waiting row matches {diversion.condition!r}")
    shown = diversion.shown[:limit]
    if shown:
        out.table(diversion.columns, [[format_value(row[name]) for name in diversion.columns] for row in shown])
    if len(shown) < diversion.rows:
        out.line(f"  … and {diversion.rows - len(shown):,} more", "dim")


def _document(target: Target, diversion: Diversion, limit: int) -> Json:
    refusal = diversion.refusal
    return {
        "pipeline": target.name,
        "sink": refusal.sinking.name,
        "gate": refusal.gate,
        "waiting": list(refusal.waiting),
        "refused": refusal.error.what,
        "rows": diversion.rows,
        "rows_of_earlier_divert": diversion.rows_before,
        "by_checkpoint": {str(id): rows for id, rows in diversion.by_checkpoint.items()},
        "shown": [{name: json_value(row[name]) for name in diversion.columns} for row in diversion.shown[:limit]],
    }


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"
