"""`tidegate help`: a command's own help, or what commands have in common: states, reasons, settings, records, codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.cli.inspect.documents import ACTS
from tidegate.cli.output import Output
from tidegate.config import KEYS
from tidegate.errors import Invalid
from tidegate.history.health import REASONS, STATES
from tidegate.records import records

__all__ = ["TOPICS", "add_parser", "run"]

TASKS = """
Something is wrong, and I want to know what
    tidegate explain orders              its state, the cause, what to do
    tidegate watch orders                what is in flight, as it goes on
    tidegate doctor orders               is everything that is named there, and unchanged?

What happened then?
    tidegate list orders                 its checkpoints; --state aborted, --sort seconds, --match TEXT
    tidegate explain orders 17           one of them as prose; tidegate show orders 17: in figures
    tidegate diff orders 17 18           what differs between two, to the key
    tidegate summary orders              how long they take, how large they are: percentiles

It is to stop, to go on, to go back
    tidegate suspend orders              no run plans a checkpoint until: tidegate resume orders
    tidegate rollback jobs.orders:pipeline --to 17 --dry-run
    tidegate stop orders --savepoint v1  the pipeline is over, and its end has a name

A gate waits for me, or has set rows aside
    tidegate approve orders 18           or: tidegate reject orders 18
    tidegate quarantine list orders      then show, release, discard

The code is to change
    tidegate check jobs.orders:pipeline  will it go on from the last checkpoint? every reason why not
    tidegate plan jobs.orders:pipeline   how it is cut into jobs
"""

EXIT_CODES = """
0  it is done, the answer is yes
1  no: a limit, a gate, a check or a person says so
2  what was given is wrong: the command line, a setting, the pipeline, its input
3  cannot: storage or Spark does not answer, or something is damaged

With --json an error is a document, too: {"error": {"kind", "reason", "what", "expected", "help"}}; `kind` and `reason`
are stable, the texts are not.
"""


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "help",
        help="a command or a topic: states, reasons, settings, records, codes, tasks",
        description="Help with a command (the same as COMMAND --help), or with what commands have in common: which "
        "command for which task, the states of pipelines and checkpoints, why checkpoints are aborted, the settings, "
        "the records of the ledger, exit codes.",
        epilog="examples:\n  tidegate help tasks\n  tidegate help reasons\n  tidegate help explain",
    )
    parser.add_argument("topic", nargs="?", default="tasks", metavar="TOPIC", help="a topic or a command (tasks)")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    from tidegate.cli.main import COMMANDS, build_parser

    if args.topic in COMMANDS:
        below = next(a for a in build_parser([args.topic])._actions if isinstance(a, argparse._SubParsersAction))
        text = below.choices[args.topic].format_help()
    elif args.topic in TOPICS:
        text = "\n".join(TOPICS[args.topic]())
    else:
        raise Invalid(
            f"there is no help with {args.topic!r}",
            expected=f"a command, or {', '.join(TOPICS)}",
            help="`tidegate --help` lists the commands",
            reason="NO_SUCH_TOPIC",
        )
    out.document({"topic": args.topic, "text": text})
    out.line(text.strip("\n"))
    return 0


def _states() -> Iterator[str]:
    yield "A pipeline is"
    yield from _listed(STATES)
    yield "A checkpoint is"
    yield from _listed(
        {
            "open": "planned, and not decided: its jobs are at work, or nobody is (`explain` tells)",
            "held": "a gate waits for a person: approve or reject",
            "completed": "all of it counts, whatever crashes",
            "completed, unpublished": "the same, but not every table shows it yet: the next run does that first",
            "aborted": "none of it counts; its input is in the next one",
            "rolled back": "it was completed, and a rollback went back behind it",
            "rollback": "an entry that goes back to an earlier checkpoint",
            " ".join(ACTS.values()): "entries by which somebody has done that",
        }
    )


def _reasons() -> Iterator[str]:
    yield "Why a checkpoint is aborted:"
    yield from _listed(REASONS)
    yield "Those of errors, such as NO_FOLDER or STATE_CHANGED, are told with their remedy where they occur."


def _settings() -> Iterator[str]:
    yield "From tidegate.toml, then TIDEGATE_… variables, then Pipeline(…), then -D key=value; later wins."
    yield "`tidegate config` shows the values that count here, and where each comes from."
    for key in KEYS.values():
        yield f"  {key.name}"
        yield f"      {key.description}"
        yield f"      {key.expected}; by default {key.default!r}; {key.variable}"


def _records() -> Iterator[str]:
    """The head of records/records.py is the one place that lists them."""
    told = (records.__doc__ or "").partition("\n\n")[2]
    yield "What lies in <root>/<pipeline>/, each written once and never changed, but for hints:"
    yield told.partition("\n\n`format`")[0]


def _listed(told: dict[str, str]) -> Iterator[str]:
    for name, what in told.items():
        yield f"  {name:<24} {what}"
    yield ""


TOPICS: dict[str, Callable[[], Iterator[str]]] = {
    "tasks": lambda: iter(TASKS.splitlines()),
    "states": _states,
    "reasons": _reasons,
    "settings": _settings,
    "records": _records,
    "codes": lambda: iter(EXIT_CODES.splitlines()),
}
