"""`tidegate help`: a command's own help, or a topic: tasks, states, reasons, settings, records, codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.checkpoint.suspension import STATE_AFTER
from tidegate.cli.output import Output
from tidegate.config import KEYS
from tidegate.errors import Invalid
from tidegate.history.health import REASONS, STATES
from tidegate.records import records

__all__ = ["TOPICS", "add_parser", "run"]

TASKS = """
Something is wrong
    tidegate explain orders              its state, the cause, what to do
    tidegate watch orders                its checkpoints, live
    tidegate doctor orders               verify that every recorded file exists and is intact

What happened?
    tidegate list orders                 its checkpoints; --state aborted, --sort seconds, --match TEXT
    tidegate explain orders 17           one of them in words; tidegate show orders 17: in figures
    tidegate diff orders 17 18           the differences between two, down to the key
    tidegate summary orders              durations and sizes: percentiles
    tidegate profile orders              why it takes so long: each step of the last one, and what Spark did in it

Stop, resume, roll back
    tidegate suspend orders              no run plans a checkpoint until `tidegate resume orders`
    tidegate rollback jobs.orders:pipeline --to 17 --dry-run
    tidegate stop orders --savepoint v1  stop the pipeline, and name its last checkpoint

Run it, look at its rows
    tidegate up                          Airflow for the DAGs of this folder, until Ctrl-C
    tidegate run jobs.orders:pipeline    without Airflow; --until-idle, --checkpoints N or --forever
    tidegate read orders totals          a table, as last published; --checkpoint 17: as of then
    tidegate state orders                what its operators remember

A gate waits for approval, or has quarantined rows
    tidegate approve orders 18           or: tidegate reject orders 18
    tidegate quarantine list orders      then show, release, rejudge, discard

Deploying a code change
    tidegate check jobs.orders:pipeline  can it continue from the last checkpoint? every reason why not
    tidegate plan jobs.orders:pipeline   how it is cut into jobs
    tidegate fork orders --from 17 --as jobs.orders:trial            new code beside the old
    tidegate backfill jobs.orders:pipeline --from 17 --dry-run       compute again what was wrong
"""

EXIT_CODES = """
0  done, or the answer is yes
1  no: refused by a limit, a gate, a check or a user
2  usage error: wrong command line, setting, pipeline or input
3  unavailable or damaged: storage or Spark does not answer, or data is damaged

With --json, an error is a document, too: {"error": {"kind", "reason", "message", "expected", "help"}}; `kind` and
`reason` are stable, the texts are not.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "help",
        help="a command or a topic: states, reasons, settings, records, codes, tasks",
        description="Help with a command (the same as COMMAND --help), or with a topic: which command "
        "for which task, the states of pipelines and checkpoints, why checkpoints are aborted, the settings, the "
        "records of the ledger, exit codes.",
        epilog="examples:\n  tidegate help tasks\n  tidegate help reasons\n  tidegate help explain",
    )
    parser.add_argument("topic", nargs="?", default="tasks", metavar="TOPIC", help="a topic or a command (tasks)")


def run(args: argparse.Namespace, out: Output) -> int:
    from tidegate.cli.main import COMMANDS, build_parser

    if args.topic in COMMANDS:
        actions = build_parser([args.topic])._actions
        subparsers = next(action for action in actions if isinstance(action, argparse._SubParsersAction))
        text = subparsers.choices[args.topic].format_help()
    elif args.topic in TOPICS:
        text = "\n".join(TOPICS[args.topic]())
    else:
        raise Invalid(
            f"there is no help topic {args.topic!r}",
            expected=f"a command, or {', '.join(TOPICS)}",
            help="`tidegate --help` lists the commands",
            reason="NO_SUCH_TOPIC",
        )
    out.document({"topic": args.topic, "text": text})
    out.line(text.strip("\n"))
    return 0


def _states() -> Iterator[str]:
    yield "A pipeline is"
    yield from _list_meanings(STATES)
    yield "A checkpoint is"
    yield from _list_meanings(
        {
            "open": "planned and not decided: its jobs are running, or its run is gone (`explain` shows which)",
            "held": "a gate waits for a user to approve or reject",
            "completed": "all of it counts, even after a crash",
            "completed, unpublished": "the same, but not every table shows it yet: the next run publishes it first",
            "aborted": "none of it counts; its input is in the next one",
            "rolled back": "completed, and then undone by a rollback",
            "rollback": "an entry that returns to an earlier checkpoint",
            "replaced": "completed, and then replaced by the result of a backfill",
            "swap": "an entry that swaps in the result of a backfill",
            " ".join(STATE_AFTER.values()): "entries that record these actions",
        }
    )


def _reasons() -> Iterator[str]:
    yield "Why a checkpoint is aborted:"
    yield from _list_meanings(REASONS)
    yield "Error reasons, such as NO_FOLDER or STATE_CHANGED, are shown with their remedy where they occur."


def _settings() -> Iterator[str]:
    yield "From tidegate.toml, then TIDEGATE_… variables, then Pipeline(…), then -D key=value; later wins."
    yield "`tidegate config` shows the effective values, and where each comes from."
    for key in KEYS.values():
        yield f"  {key.name}"
        yield f"      {key.description}"
        yield f"      {key.expected}; by default {key.default!r}; {key.variable}"


def _records() -> Iterator[str]:
    """Quote the docstring of records/records.py, the only list of the records."""
    listing = (records.__doc__ or "").partition("\n\n")[2]
    yield "The files in <root>/<pipeline>/. Each is written once and never changed, except hints:"
    yield listing.partition("\n\n`format`")[0]


def _list_meanings(meanings: dict[str, str]) -> Iterator[str]:
    for name, meaning in meanings.items():
        yield f"  {name:<24} {meaning}"
    yield ""


TOPICS: dict[str, Callable[[], Iterator[str]]] = {
    "tasks": lambda: iter(TASKS.splitlines()),
    "states": _states,
    "reasons": _reasons,
    "settings": _settings,
    "records": _records,
    "codes": lambda: iter(EXIT_CODES.splitlines()),
}
