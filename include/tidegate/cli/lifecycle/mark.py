"""`tidegate mark`: restore the mark of a target that is not a Delta table, which says what was published to it."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.checkpoint.context import PipelineContext
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm
from tidegate.cli.targets import open_target
from tidegate.connectors.transactional import TransactionalSink
from tidegate.errors import Invalid
from tidegate.ledger.ledger import Ledger

__all__ = ["add_parser", "run"]

NOTHING = "none"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "mark",
        help="restore the mark that says which checkpoints a topic or database has",
        description="A Kafka topic or a database has a mark: the last checkpoint that was published to it. If the mark "
        "is lost, because its topic or table was deleted, nothing more is published, because it is unknown what is "
        "there already. Check the target, then set the mark here. Everything up to that checkpoint counts as "
        "published and is not sent again; everything later is published. Without --last, the mark is only shown.",
        epilog="examples:\n  tidegate mark jobs.orders:pipeline --sink out\n"
        "  tidegate mark jobs.orders:pipeline --sink out --last 41",
    )
    parser.add_argument(
        "pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code, which says where the target is"
    )
    parser.add_argument("--sink", required=True, metavar="SINK", help="the sink whose mark it is")
    parser.add_argument(
        "--last", type=_checkpoint, metavar="N", help=f"the last checkpoint that the target has, or {NOTHING}"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    coordinator = coordinator_of(open_target(args.pipeline, args.settings))
    sink, context = _sink(coordinator, args.sink), coordinator.context(args.sink)
    target = sink.target(context.place)
    if args.last is not None:
        last = None if args.last == NOTHING else args.last
        _refuse_future(coordinator.ledger, last)
        if last is None:
            has = "no checkpoint"
        else:
            has = f"exactly the checkpoints up to {last}"
        confirm(f"Does {target} have {has}?", out, yes=args.yes)
        sink.set_mark(last, context)
    last = sink.last(context)
    out.document({"pipeline": coordinator.graph.name, "sink": args.sink, "target": target, "last": last})
    out.line(f"{target}: {'no mark' if last is None else f'checkpoint {last} is the last one'}")
    return 0


def _checkpoint(text: str) -> int | str:
    if text == NOTHING:
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a checkpoint's number nor {NOTHING!r}")
    return int(text)


def _sink(pipeline: PipelineContext, name: str) -> TransactionalSink:
    node = pipeline.graph.sinks.get(name)
    if node is None or not isinstance(node.sink, TransactionalSink):
        marked = sorted(n for n, each in pipeline.graph.sinks.items() if isinstance(each.sink, TransactionalSink))
        raise Invalid(
            f"sink {name!r} of pipeline {pipeline.graph.name!r} keeps no mark",
            expected=f"one of {', '.join(marked)}" if marked else "a sink whose target is a topic or a database",
            help="a Delta table has its marks in its log: `tidegate doctor` checks them",
            reason="NO_MARK",
        )
    return node.sink


def _refuse_future(ledger: Ledger, last: int | None) -> None:
    completed = ledger.view().last_completed
    if last is not None and (completed is None or last > completed.id):
        raise Invalid(
            f"checkpoint {last} is not completed",
            expected=f"at most {completed.id}" if completed is not None else "a completed checkpoint",
            help="`tidegate list` shows the checkpoints",
            reason="NOT_COMPLETED",
        )
