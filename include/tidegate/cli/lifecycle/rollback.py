"""`tidegate rollback`: go back to a checkpoint. First it says what it will do; nothing happens before that."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.inspect.documents import clock
from tidegate.cli.inspect.show import checkpoint_id
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, who
from tidegate.cli.targets import Target, find
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.execution.runs import new_run
from tidegate.lifecycle import rollback, savepoint
from tidegate.lifecycle.rollback import RolledBack
from tidegate.lifecycle.rollback_proposal import CHOICES, Change, How, Proposal, examine

__all__ = ["add_parser", "checkpoint_or_savepoint", "coordinator_of", "run", "told"]

NO, CANNOT = 1, 3


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "rollback",
        help="go back to a checkpoint: positions, state and tables",
        description="Go back to a checkpoint. Sources are read again from where it ended, operators remember what they "
        "did then, and every table shows what it showed, by one more commit on each. It is an entry of the log like "
        "any other: whoever comes next goes on publishing it, and new checkpoints get new ids.",
        epilog="examples:\n  tidegate rollback jobs.orders:pipeline --to 41 --dry-run\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --suspend --reason 'wrong prices since 42'\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --retract revenue\n"
        "  tidegate rollback jobs.orders:pipeline --to 41 --leave archive",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code: it says where the tables are")
    parser.add_argument("--to", required=True, metavar="N", help="the checkpoint to go back to, or a savepoint's name")
    parser.add_argument("--dry-run", action="store_true", help="only look, and say what would be done; 1: it cannot be")
    for how, help in (
        ("discard", "of a table that others have written to since: go back, their commits are lost"),
        ("retract", "of such a table: put back only this pipeline's own rows, and leave what others committed"),
        ("keep", "leave a table's rows as they are; what is read again is added to them"),
        ("leave", "let go of a table that cannot be published to: it stays as it is, and what it is owed never comes"),
    ):
        parser.add_argument(f"--{how}", action="append", default=[], metavar="SINK", help=help)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever looks at it later")
    parser.add_argument("--suspend", action="store_true", help="suspend the pipeline behind it, to look first")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    choices, to = _choices(args), checkpoint_or_savepoint(args.to, target)
    proposal = examine(coordinator, to, choices)
    if args.dry_run:
        out.document(_document(target, proposal) | {"possible": not proposal.problems})
        _tell(target, proposal, out)
        return NO if proposal.problems else 0
    _tell(target, proposal, out)
    if not proposal.problems:  # else it is refused, with all of them
        count = len(proposal.undone)
        confirm(f"Go back to checkpoint {to}? {count} completed behind it will no longer count.", out, yes=args.yes)
    why = args.reason or f"rolled back to checkpoint {to}"
    done = rollback.roll_back(
        coordinator,
        to,
        run=new_run(),
        by=who(),
        choices=choices,
        reason=args.reason,
        suspend=why if args.suspend else "",
        shown={*proposal.undone, *proposal.open},
    )
    return told(target, done, out)


def coordinator_of(target: Target) -> Coordinator:
    """A coordinator for a pipeline whose code is given."""
    if target.pipeline is None:
        raise Invalid(
            f"where the tables of pipeline {target.name!r} are is told by its code",
            expected="MODULE:pipeline, such as jobs.orders:pipeline",
            help="run this in the project's folder",
            reason="NEEDS_CODE",
        )
    place = target.settings.place()
    return Coordinator(target.pipeline.graph(place, target.settings.mode), target.ledger, target.settings, place)


def checkpoint_or_savepoint(text: str, target: Target) -> int:
    """A checkpoint, by its number or a savepoint's name."""
    try:
        return checkpoint_id(text)
    except argparse.ArgumentTypeError:
        return savepoint.find(target.ledger, text).entry


def _choices(args: argparse.Namespace) -> dict[str, How]:
    found: dict[str, How] = {}
    for how in CHOICES:
        for name in getattr(args, how):
            if found.setdefault(name, how) != how:
                raise Invalid(
                    f"for table {name!r} both --{found[name]} and --{how} are given",
                    expected="one of them",
                    help="--dry-run shows what each would do to the table",
                    reason="BAD_CHOICE",
                )
    return found


# -- what is said ------------------------------------------------------------------------------------------


def _document(target: Target, proposal: Proposal) -> dict[str, Any]:
    return {
        "pipeline": target.name,
        "to": proposal.target.id,
        "undone": list(proposal.undone),
        "ended": list(proposal.open),
        "sources": sorted(proposal.target.plan.sources),
        "tables": {change.table: _table(change) for change in proposal.changes},
        "problems": list(proposal.problems),
    }


def _table(change: Change) -> dict[str, Any]:
    to = change.way.to
    return {
        "how": change.how,
        "version": change.way.version,
        "back_to": to.version if to is not None else None,
        "foreign": list(change.way.foreign),
        "written_through": change.written_through,
    }


def _tell(target: Target, proposal: Proposal, out: Output) -> None:
    to, decision = proposal.target.id, proposal.target.decision
    at = f", completed at {clock(decision.created)} UTC" if decision is not None else ""
    out.line(f"Rollback of {target.name} to checkpoint {to}{at}", "bold")
    out.line(f"  no longer count    checkpoint {_listed(proposal.undone) or 'none'}")
    if proposal.open:
        out.line(f"  ended at once      checkpoint {_listed(proposal.open)}, which is open")
    out.line(
        f"  read again         {', '.join(sorted(proposal.target.plan.sources))}, from where checkpoint {to} ended"
    )
    out.table(
        ["table", "now at version", "goes back to", "others' commits since", "how"],
        [
            [
                change.table,
                "" if change.way.version is None else change.way.version,
                _goal(change),
                len(change.way.foreign) or "",
                change.how or "nothing was ever put there",
            ]
            for change in proposal.changes
        ],
        right=["now at version"],
    )
    if proposal.lacking:
        out.line(f"Published first, for they lack something yet: {', '.join(proposal.lacking)}.")
    if stays := [change.table for change in proposal.changes if change.written_through]:
        out.line(f"What jobs have written through stays, and what is read again is added: {', '.join(stays)}.")
    out.line("Readers see each table change by one commit, one table after the other. No file is removed.", "dim")
    for problem in proposal.problems:
        out.line(f"It cannot be done: {problem}", "red")


def _goal(change: Change) -> str:
    if change.written_through:
        return "stays: it was written to at least once"
    if change.how == "leave":
        return "stays, without what it is owed"
    if change.how is None or change.how == "keep":
        return "stays"
    if change.state is not None:
        return "the state then"
    return f"version {change.way.to.version}" if change.way.to is not None else "empty: it is younger"


def told(target: Target, done: RolledBack, out: Output) -> int:
    """Tell what has come of it; the exit code."""
    stuck: dict[str, str] = {}
    if done.error is not None:
        stuck["?"] = done.error.what
    elif done.report is not None:
        stuck = {name: error.what for name, error in done.report.stuck.items()}
    tables = {
        name: table.version
        for (id, name), table in (done.report.published.items() if done.report is not None else ())
        if id == done.id
    }
    found = _document(target, done.proposal) | {"ended": list(done.ended)}
    out.document(found | {"rollback": done.id, "tables_at": tables, "not_yet": stuck})
    out.line(f"Rollback {done.id} is decided: the next checkpoint goes on from {done.proposal.target.id}.", "bold")
    if done.ended:
        out.line(f"  checkpoint {_listed(done.ended)} was open, and is ended")
    for name, version in tables.items():
        out.line(f"  {name} is put back, by version {version}")
    for name, what in stuck.items():
        out.line(f"Not put back yet{'' if name == '?' else f': {name}'}: {what}", "red")
    if stuck:
        out.line("It counts all the same. Whoever runs the pipeline next puts it back first, and waits until it can.")
        return CANNOT
    out.line(f"What it was:  {target.command('explain', done.id)}", "dim")
    return 0


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:20])) + (" …" if len(ids) > 20 else "")
