"""`tidegate recover`: what the next run will find, verified before it comes; and what it would do first."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.lifecycle.rollback import coordinator_of, told
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, who
from tidegate.cli.targets import Target, find
from tidegate.coordinator import Coordinator
from tidegate.errors import Corrupt, Rejected
from tidegate.execution.runs import abandoned_reason, new_run
from tidegate.history.table import remember
from tidegate.lifecycle import rollback
from tidegate.verify.recovery import Recovery, verify_next_run

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "recover",
        help="what the next run will find, verified; end what is dead, publish what is owed",
        description="Look at what the next run will go on from: each record, version, hash and file is verified. "
        "Then end the checkpoints that nobody works at any more, and publish what is owed: what the next run would do "
        "first. If the last checkpoint is damaged, the newest one that is whole is named, and what would be lost.",
        epilog="examples:\n  tidegate recover jobs.orders:pipeline --dry-run\n"
        "  tidegate recover jobs.orders:pipeline --fall-back",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the pipeline's code: it says where the tables are")
    parser.add_argument("--dry-run", action="store_true", help="only look; exit code 1: the next run cannot go on")
    parser.add_argument("--fall-back", action="store_true", help="if it is damaged, go back to one that is whole")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    found = verify_next_run(coordinator, abandoned_reason)
    if args.dry_run:
        out.document(_document(target, found))
        _tell(target, found, out)
        return NO if found.problems else 0
    _tell(target, found, out)
    if found.problems:
        return _fall_back(target, coordinator, found, args, out)
    for id, reason in found.dead.items():
        coordinator.abort(id, reason, "ended by `tidegate recover`")
    report = coordinator.publish()
    remember(coordinator.ledger, coordinator.place.options)
    coordinator.retire()
    published = {f"{name} {id}": table.version for (id, name), table in report.published.items()}
    out.document(_document(target, found) | {"published": published})
    for (id, name), table in report.published.items():
        out.line(f"Published: checkpoint {id} on {name}, as version {table.version}")
    out.line("The next run goes on from here.", "bold")
    return 0


def _fall_back(target: Target, coordinator: Coordinator, found: Recovery, args: Any, out: Output) -> int:
    what = "\n    ".join(
        [f"checkpoint {found.last} of pipeline {target.name!r} cannot be gone on from:", *found.problems]
    )
    if found.instead is None:
        raise Corrupt(
            what,
            expected="every record and file as it was written, or an older checkpoint that is whole",
            help="none of those that are retained is whole: restore the named files from a copy of the storage",
            reason="NOTHING_TO_RESTORE",
        )
    if not args.fall_back:
        raise Rejected(
            what,
            expected="every record and file as it was written",
            help="restore them from a copy of the storage; or add --fall-back to go back to checkpoint "
            f"{found.instead}: {_lost(found)}, and their input is read again",
            reason="DAMAGED",
        )
    confirm(f"Go back to checkpoint {found.instead}? {_lost(found)}.", out, yes=args.yes)
    done = rollback.roll_back(
        coordinator, found.instead, run=new_run(), by=who(), choices={}, reason="; ".join(found.problems)[:500]
    )
    return told(target, done, out)


def _lost(found: Recovery) -> str:
    return f"checkpoint {', '.join(map(str, found.lost)) or 'none'} will no longer count"


def _document(target: Target, found: Recovery) -> dict[str, Any]:
    return {
        "pipeline": target.name,
        "goes_on_from": found.last,
        "dead": {str(id): why for id, why in found.dead.items()},
        "alive": list(found.alive),
        "owed": {name: list(ids) for name, ids in found.owed.items()},
        "problems": list(found.problems),
        "instead": found.instead,
        "lost": list(found.lost),
    }


def _tell(target: Target, found: Recovery, out: Output) -> None:
    start = f"checkpoint {found.last}" if found.last is not None else "the beginning: none was completed"
    out.line(f"Pipeline {target.name} goes on from {start}", "bold")
    for id, why in found.dead.items():
        out.line(f"- Checkpoint {id} is open and dead ({why}): it is ended; its input is read again.")
    for id in found.alive:
        out.line(f"- Checkpoint {id} is open, and somebody may be working at it: it is left alone.")
    for name, ids in found.owed.items():
        out.line(f"- Table {name} is still owed checkpoint {', '.join(map(str, ids))}.")
    for problem in found.problems:
        out.line(f"- Damaged: {problem}", "red")
    if found.problems and found.instead is not None:
        out.line(f"The newest checkpoint that is whole is {found.instead}: {_lost(found)}.")
    elif not found.problems:
        out.line("- Everything that it rests on is there, as it was written.")
