"""`tidegate why`: which records, corrections and states led to a row of a table."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.running.run import count as whole_number
from tidegate.cli.running.run import refuse_submit
from tidegate.cli.targets import open_target
from tidegate.pipeline.private import private_columns
from tidegate.provenance.explanation import Explanation, explain_row, prepare
from tidegate.provenance.tables import resolve_checkpoint, table_as_of
from tidegate.provenance.words import lines
from tidegate.records import typed
from tidegate.spark.server.priority import lowest_priority
from tidegate.spark.session import reused_session

__all__ = ["add_parser", "run"]

NO = 1
REPLAYS, CANDIDATES = 100, 10_000


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "why",
        help="why a table has a row: the records, corrections and states that led to it",
        description="Name the records without which a row would be another one, by replays of recorded checkpoints "
        "with some of their records. From the named ones alone the row is the same, and none is named without cause. "
        "The pipeline is only read.",
        epilog="examples:\n  tidegate why jobs.orders:pipeline totals \"country = 'AT'\"\n"
        "  tidegate why jobs.orders:pipeline totals \"country = 'AT'\" --checkpoint 42 --over 10 --json\n\n"
        "exit codes: 1 not every named record was left out once, since --replays ended before",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code")
    parser.add_argument("sink", metavar="SINK", help="the sink whose table has the row")
    parser.add_argument("condition", metavar="CONDITION", help="SQL, as behind WHERE, that this one row fulfils")
    parser.add_argument("--checkpoint", type=checkpoint_id, metavar="N", help="as of checkpoint N (the last published)")
    parser.add_argument(
        "--over", type=whole_number, metavar="N", help="replay at most the last N checkpoints (all that are retained)"
    )
    parser.add_argument(
        "--replays", type=whole_number, default=REPLAYS, metavar="N", help=f"at most N replays ({REPLAYS})"
    )
    parser.add_argument(
        "--candidates",
        type=whole_number,
        default=CANDIDATES,
        metavar="N",
        help=f"at most N records that may have led to it ({CANDIDATES:,})",
    )
    parser.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="where replays write, which is removed at the end; needed if Spark's tasks run on other machines (a "
        "temporary folder)",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the answer."""
    target = open_target(args.pipeline, args.settings)
    live = coordinator_of(target)
    refuse_submit(target.settings)
    checkpoint = resolve_checkpoint(live, args.sink, args.checkpoint, f"{target.command('read')}  lists them")
    asked = prepare(
        live,
        args.sink,
        args.condition,
        checkpoint,
        lambda id: table_as_of(live, args.sink, id),
        over=args.over,
        replays=args.replays,
        candidates=args.candidates,
        hidden=private_columns(live.graph, target.settings.sample_hidden),
    )
    sessions = reused_session(target.settings, aside=True)
    scratch = tempfile.TemporaryDirectory(prefix="tidegate-why-", dir=args.scratch, ignore_cleanup_errors=True)
    with lowest_priority(), scratch as folder:
        try:
            answer = explain_row(asked, sessions(), Path(folder), lambda text: out.line(text, "dim"))
        finally:
            sessions.drop()
    _print(answer, out)
    return NO if answer.unproven else 0


def _print(answer: Explanation, out: Output) -> None:
    out.document(typed.document_of(answer) | {"unproven": answer.unproven})
    for text in lines(answer):
        out.line(text)
