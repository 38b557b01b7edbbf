"""`tidegate`: parse the command line, run one command, turn errors into messages and exit codes.

0  done, or the answer is yes
1  no: refused by a limit, a gate or a check
2  usage error: wrong command line, setting, pipeline or input
3  unavailable or damaged: storage or Spark does not answer, or data is damaged
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NoReturn

from tidegate.cli.output import Output, clean
from tidegate.cli.targets import override
from tidegate.errors import Invalid, Rejected, TidegateError

__all__ = ["main"]

NO, WRONG, CANNOT = 1, 2, 3

COMMANDS = {
    "init": "create a project that runs, in a new folder or in an existing Airflow project",
    "new": "start a pipeline, suite, source, sink or workflow in this project",
    "run": "make checkpoints in this process, with live progress",
    "trigger": "request a checkpoint now, of a pipeline that Airflow runs",
    "up": "run the project's DAGs in a local Airflow",
    "list": "the pipelines, or one pipeline's checkpoints",
    "watch": "a running pipeline: what is in flight, and its last checkpoints",
    "summary": "a pipeline's whole history in figures: counts, percentiles, reasons of failures",
    "show": "one checkpoint: its plan, acks, decision and tables",
    "explain": "a pipeline's state and what to do; or what happened in a checkpoint",
    "profile": "where the time of one checkpoint went: each step, and what Spark did in it",
    "read": "rows of a sink's table as of one checkpoint",
    "state": "rows of an operator's state as of one checkpoint",
    "diff": "what differs between two checkpoints",
    "why": "why a table has a row: the records, corrections and states that led to it",
    "schema": "how the schemas of sources have changed, or what differs between two checkpoints",
    "metrics": "the metrics for monitoring, in Prometheus' text format",
    "plan": "how a pipeline is cut into jobs, and the channels between them",
    "check": "can this code continue from the last checkpoint? every reason why not",
    "recover": "verify what the next run continues from; abort dead checkpoints, publish pending ones",
    "backfill": "recompute a pipeline's results since a checkpoint, and swap them in",
    "propose": "what changed code would do to the tables: a report for its review",
    "rollback": "return to a checkpoint: positions, state and tables",
    "disown": "give up an interval's rows that another writer has rewritten in a table",
    "divert": "send rows that a target refuses to quarantine, and publish the others",
    "mark": "restore the mark that says which checkpoints a topic or database has",
    "source": "sources that were renamed or removed, or that lead elsewhere: move, drop, accept",
    "fork": "start a new pipeline from a checkpoint of another one",
    "savepoint": "checkpoints with names: create, list, show, verify, dispose",
    "suspend": "stop planning checkpoints until `resume`",
    "resume": "let runs plan checkpoints again",
    "stop": "stop the pipeline: let open checkpoints finish, make a savepoint",
    "cancel": "stop now, and abort open checkpoints",
    "approve": "approve a checkpoint that a gate holds",
    "reject": "reject a checkpoint that a gate holds: it is aborted",
    "quarantine": "rows in quarantine: list, show, release, discard",
    "suite": "suites of expectations: check, init, profile",
    "contract": "data contracts: check, diff, export",
    "docs": "the gates' verdicts as Great Expectations' validation results and Data Docs",
    "config": "the effective settings and where each came from",
    "doctor": "check the machine, the storage, the ledger and the tables",
    "spark": "start, inspect or stop the embedded Spark server",
    "help": "a command or a topic: states, reasons, settings, records, codes, tasks",
    "completion": "shell completion for commands, pipelines and checkpoints",
}


class _UsageError(Exception):
    """The command line is invalid. Has the usage to print."""

    def __init__(self, message: str, usage: str) -> None:
        self.usage = usage
        super().__init__(message)


class _Parser(argparse.ArgumentParser):
    """Raises instead of exiting, so that --json can answer in JSON. Accepts no abbreviations."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message, self.format_usage())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    out = Output(sys.stdout, sys.stderr, json=as_json)
    debug = "--debug" in arguments or bool(os.environ.get("TIDEGATE_DEBUG"))
    try:
        with _clean_stdout(out):
            return _run(arguments, out)
    except _UsageError as wrong:
        out.document({"error": {"kind": "usage", "reason": "USAGE", "message": str(wrong), "expected": "", "help": ""}})
        print(clean(wrong.usage), end="", file=sys.stderr)
        out.problem(f"{wrong}\n  Help: `tidegate --help`, or COMMAND --help, shows examples")
        return WRONG
    except TidegateError as error:
        if debug:
            traceback.print_exc()
        out.error(error)
        return exit_code(error)
    except KeyboardInterrupt:
        out.problem("interrupted")
        return NO
    except BrokenPipeError:
        # The reader of our output has closed it. Python would report that again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _unexpected(error, out, debug)


def exit_code(error: TidegateError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Rejected):
        return NO
    return WRONG if isinstance(error, Invalid) else CANNOT


def _run(arguments: list[str], out: Output) -> int:
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command in COMMANDS:
        parser = build_parser([command])
    else:
        parser = _overview_parser()
    try:
        args = parser.parse_args(arguments)
    except SystemExit as exit:  # --help and --version have printed their text
        return int(exit.code or 0)
    args.settings = dict(args.settings or ())
    code: int = args.run(args, out)
    return code


def build_parser(commands: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Build the parser. Only the modules of `commands` are imported, so that a command starts fast."""
    parser, subparsers = _top_parser()
    for name in commands:
        module = importlib.import_module(f"tidegate.cli.{_MODULES.get(name, name)}")
        present = set(subparsers.choices)
        if name not in present:  # one module may have two commands
            module.add_parser(subparsers)
        for added in set(subparsers.choices) - present:
            _finish(subparsers.choices[added], module.run)
    return parser


def _overview_parser() -> argparse.ArgumentParser:
    """Build the parser for a line without a command: it lists all commands, and imports none."""
    parser, subparsers = _top_parser()
    for name, summary in COMMANDS.items():
        subparsers.add_parser(name, help=summary)
    return parser


def _top_parser() -> tuple[argparse.ArgumentParser, Any]:
    parser = _Parser(
        prog="tidegate",
        description="Checkpoints that commit offsets, state and sinks together, for Airflow + Spark + Delta.",
        epilog="examples:\n  tidegate run jobs.orders:pipeline --checkpoints 5\n"
        "  tidegate explain orders          # its state; if something is wrong: the cause, and what to do\n\n"
        "exit codes: 0 done, 1 no, 2 usage error, 3 unavailable or damaged",
    )
    parser.add_argument("--version", action="version", version=f"tidegate {_version()}")
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)


_MODULES: Final = {
    "approve": "lifecycle.approve",
    "cancel": "lifecycle.stop",
    "backfill": "lifecycle.backfill",
    "check": "running.check",
    "config": "settings",
    "contract": "quality.contract",
    "diff": "inspect.diff",
    "disown": "lifecycle.disown",
    "divert": "lifecycle.divert",
    "docs": "quality.docs",
    "doctor": "doctor",
    "explain": "inspect.explain",
    "fork": "lifecycle.fork",
    "init": "project.init",
    "list": "inspect.listing",
    "mark": "lifecycle.mark",
    "metrics": "inspect.metrics",
    "new": "project.new",
    "plan": "running.plan",
    "profile": "inspect.profile",
    "propose": "lifecycle.propose",
    "quarantine": "quality.quarantine",
    "read": "inspect.read",
    "recover": "lifecycle.recover",
    "reject": "lifecycle.approve",
    "resume": "lifecycle.suspend",
    "rollback": "lifecycle.rollback",
    "run": "running.run",
    "savepoint": "lifecycle.savepoint",
    "schema": "inspect.schema",
    "show": "inspect.show",
    "source": "lifecycle.source",
    "spark": "running.spark",
    "state": "inspect.state",
    "stop": "lifecycle.stop",
    "suite": "quality.suite",
    "summary": "inspect.summary",
    "suspend": "lifecycle.suspend",
    "trigger": "running.trigger",
    "up": "up.up",
    "watch": "inspect.watch",
    "why": "inspect.why",
}
"""The module of a command, below tidegate.cli, if its name differs from the command's."""


def _finish(parser: argparse.ArgumentParser, run: Any) -> None:
    """Set the function that runs the command, and add the options that all commands share."""
    parser.set_defaults(run=run)
    nested = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested.append(action)
    for action in nested:
        for subparser in action.choices.values():
            subparser.epilog = subparser.epilog or _examples_of(subparser.prog, parser.epilog or "")
            _finish(subparser, run)
    if nested:
        return
    present = set()
    for action in parser._actions:
        for option in action.option_strings:
            present.add(option)
    shared = parser.add_argument_group("for every command")
    if "--json" not in present:
        shared.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")
    if "-D" not in present:
        shared.add_argument(
            "-D",
            dest="settings",
            action="append",
            type=override,
            metavar="KEY=VALUE",
            help="set a setting, as often as needed",
        )
    if "--debug" not in present:
        shared.add_argument("--debug", action="store_true", help="show tracebacks")


def _examples_of(command: str, epilog: str) -> str:
    """Return the examples of one verb, from its command's examples."""
    lines = [line for line in epilog.splitlines() if line.strip().startswith(f"{command} ")]
    if not lines:
        return ""
    return "\n".join(["examples:" if len(lines) > 1 else "example:", *lines])


def _version() -> str:
    from tidegate import __version__

    return __version__


@contextlib.contextmanager
def _clean_stdout(out: Output) -> Iterator[None]:
    """With --json, send all other output (of a pipeline's module, of Spark) to standard error."""
    if not out.json:
        yield
        return
    stdout: IO[str] = out.out
    with contextlib.redirect_stdout(sys.stderr):
        out.out = stdout
        yield


def _unexpected(error: Exception, out: Output, debug: bool) -> int:
    """Report an unexpected error: one line, and a file with the traceback for a bug report."""
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    if debug:
        traceback.print_exc()
        advice = "the traceback is above"
    else:
        handle, path = tempfile.mkstemp(prefix="tidegate-error-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        advice = f"the traceback is in {path}; --debug shows it here"
    out.document(
        {"error": {"kind": "unexpected", "reason": "UNEXPECTED", "message": summary, "expected": "", "help": advice}}
    )
    out.problem(f"{summary}\n  Help: this should not happen; {advice}")
    return CANNOT
