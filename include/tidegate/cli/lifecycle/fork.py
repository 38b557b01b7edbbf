"""`tidegate fork`: start a new pipeline from a checkpoint of another one."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from tidegate.cli.lifecycle.rollback import checkpoint_or_savepoint, coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import user_and_host
from tidegate.cli.targets import Target, open_target, program
from tidegate.errors import Corrupt, Invalid
from tidegate.lifecycle.copies import Copied, open_copy, verify
from tidegate.lifecycle.fork import fork, forked_already, inherited_tables, inspect_snapshot
from tidegate.lifecycle.snapshot import CheckpointSnapshot, checkpoint_snapshot
from tidegate.state.table import STATE

__all__ = ["add_parser", "is_folder", "run"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fork",
        help="start a new pipeline from a checkpoint of another one",
        description="Start a new pipeline with the positions and the state of another one's checkpoint. The new "
        "pipeline is declared in code, with its own name and its own tables. Everything is copied: both continue "
        "independently, and the old one is not changed. If the command is interrupted, run it again.",
        epilog="examples:\n  tidegate fork orders --from 41 --as jobs.trial:pipeline --dry-run\n"
        "  tidegate fork orders --from before-prices --as jobs.trial:pipeline --note 'new prices, side by side'\n"
        "  tidegate fork ./copies/before-prices --as jobs.trial:pipeline",
    )
    parser.add_argument(
        "pipeline", metavar="PIPELINE", help="the old one: a name, MODULE:pipeline, or a savepoint's folder"
    )
    parser.add_argument("--from", dest="base", metavar="N", help="a checkpoint, or a savepoint's name")
    parser.add_argument("--as", dest="into", required=True, metavar="MODULE:PIPELINE", help="the new pipeline's code")
    parser.add_argument(
        "--claim", action="store_true", help="with a folder: the new pipeline takes it over, and the folder is removed"
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="the reason, for the record")
    parser.add_argument("--dry-run", action="store_true", help="only check whether it is possible")


def run(args: argparse.Namespace, out: Output) -> int:
    if ":" not in args.into:
        raise Invalid(
            f"{args.into!r} is a name, but only a pipeline's code says where its tables are",
            expected="MODULE:pipeline, such as jobs.trial:pipeline",
            help=f"declare it: Pipeline({args.into!r}), with sinks on its own tables; then name it here",
            reason="NEEDS_CODE",
        )
    new = open_target(args.into, args.settings, started=False)
    coordinator = coordinator_of(new)
    copied = _open_folder(args, new) if is_folder(args.pipeline) else None
    if copied is not None and forked_already(copied, coordinator, claims=args.claim and not args.dry_run):
        out.document({"pipeline": new.name, "forked": True})
        out.line(f"Pipeline {new.name} already exists: it started from this savepoint.")
        return 0
    if copied is not None:
        _refuse_changed(copied)
        id = copied.copy.origin.entry
        snapshot = checkpoint_snapshot(copied.ledger, id, copied.options, by=user_and_host(), note=args.note)
    else:
        snapshot = _snapshot_of_pipeline(args)
    snapshot = inspect_snapshot(snapshot, coordinator)
    taken = inherited_tables(snapshot, coordinator)
    if not args.dry_run:
        fork(snapshot, coordinator, copied, claims=args.claim)
    tables = {name: table.uri for name, table in taken.items()}
    out.document({"pipeline": new.name, "forked": not args.dry_run, **_document(snapshot), "continued_tables": tables})
    _print_result(new, snapshot, tables, out, forked=not args.dry_run)
    return 0


def is_folder(text: str) -> bool:
    """Return whether the text is a folder: a pipeline's name has no slash."""
    return "/" in text


def _open_folder(args: argparse.Namespace, new: Target) -> Copied:
    """Open the savepoint in a folder."""
    if args.base is not None:
        raise Invalid(
            "a savepoint's folder has only one checkpoint",
            expected="no --from",
            help="leave out --from; or name a pipeline instead of a folder",
            reason="BAD_CHOICE",
        )
    return open_copy(args.pipeline, new.settings.storage_options)


def _snapshot_of_pipeline(args: argparse.Namespace) -> CheckpointSnapshot:
    """Return the snapshot of a pipeline's checkpoint."""
    if args.base is None or args.claim:
        raise Invalid(
            "only a savepoint's folder can be claimed" if args.claim else "--from is missing",
            expected="--from with a checkpoint or a savepoint's name; or a savepoint's folder in place of the pipeline",
            help="`tidegate list` and `tidegate savepoint list` show the choices",
            reason="BAD_CHOICE",
        )
    old = open_target(args.pipeline, args.settings)
    id = checkpoint_or_savepoint(args.base, old)
    return checkpoint_snapshot(old.ledger, id, old.settings.storage_options, by=user_and_host(), note=args.note)


def _refuse_changed(copied: Copied) -> None:
    problems = verify(copied)
    if problems:
        raise Corrupt(
            "\n    ".join([f"the savepoint in {copied.ledger.home} is damaged:", *problems[:10]]),
            expected="every file as it was copied",
            help="use another copy of the folder",
            reason="CHECKPOINT_DAMAGED",
        )


def _document(snapshot: CheckpointSnapshot) -> dict[str, Any]:
    return {
        "from": {"pipeline": snapshot.origin.pipeline, "checkpoint": snapshot.entry.id},
        "sources": sorted(snapshot.entry.plan.sources),
        "states": sorted(name.removeprefix(STATE) for name in snapshot.states),
    }


def _print_result(
    new: Target, snapshot: CheckpointSnapshot, taken: Mapping[str, str], out: Output, *, forked: bool
) -> None:
    document = _document(snapshot)
    id = snapshot.entry.id
    verb = "starts from" if forked else "would start from"
    out.line(f"Pipeline {new.name} {verb} checkpoint {id} of {snapshot.origin.pipeline}.", "bold")
    out.line(f"  reads              {', '.join(document['sources'])}, from where checkpoint {id} ended")
    out.line(f"  has the state of   {', '.join(document['states']) or 'no operator'}, as a copy")
    for name, table in taken.items():
        out.line(f"  takes over         {table}, of sink {name}, with its rows")
    out.line(f"  {'its other tables' if taken else 'its tables':18} get new rows from now on")
    if forked:
        out.line(f"To run it:  {program()} run {shlex.quote(new.text)} --until-idle", "dim")
