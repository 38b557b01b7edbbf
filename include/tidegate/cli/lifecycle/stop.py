"""`tidegate stop` and `tidegate cancel`: end a pipeline. It can be resumed, unless it was cancelled for good."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate import seams
from tidegate.checkpoint import suspension
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.running.progress import progress_for
from tidegate.cli.running.run import refuse_submit, run_loop
from tidegate.cli.targets import Target, open_target
from tidegate.config.keys import RETENTIONS
from tidegate.coordinator import Coordinator
from tidegate.errors import Rejected
from tidegate.execution.loop import Schedule
from tidegate.execution.runs import abandoned_reason
from tidegate.history.table import remember
from tidegate.lifecycle import control, savepoint
from tidegate.protocol.view import View
from tidegate.records.records import Drain

__all__ = ["add_parser", "run"]

POLL_S = 0.5
KEEPS, _, NEVER = RETENTIONS


def add_parser(subparsers: Any) -> None:
    for name, help, description in (
        (
            "stop",
            "stop the pipeline: let open checkpoints finish, make a savepoint",
            "Stop the pipeline: runs plan no more checkpoints, and show the reason. The command waits until runs have "
            "finished the open checkpoints. Then, with --savepoint, the last checkpoint gets a name, and stays.",
        ),
        (
            "cancel",
            "stop now, and abort open checkpoints",
            "Stop the pipeline at once: runs plan no more checkpoints, and open checkpoints are aborted; none of their "
            "rows become visible. Completed checkpoints are still published, by the next command or run. With the "
            "setting retention = retain_on_failure or never_retain it is final: checkpoints and states are removed, "
            "except those of savepoints, and the pipeline cannot be resumed.",
        ),
    ):
        example = f"example:\n  tidegate {name} orders --reason 'moved to another cluster'"
        if name == "stop":
            epilog = f"{example} --savepoint last\n  tidegate stop jobs.orders:pipeline --drain"
        else:
            epilog = example
        parser = subparsers.add_parser(name, help=help, description=description, epilog=epilog)
        parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
        parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")
        if name == "stop":
            text = "read all waiting input, then end event time: windows close and timers fire (needs the code)"
            parser.add_argument("--drain", action="store_true", help=text)
            parser.add_argument(
                "--savepoint", metavar="NAME", help="make the last checkpoint a savepoint with this name"
            )
            parser.add_argument("--no-wait", action="store_true", help="do not wait for open checkpoints")
        parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    if args.command == "cancel":
        return _cancel(target, args, out)
    name = args.savepoint
    if name is not None:
        savepoint.check_free(target.ledger, name, None)
    if args.drain:
        if target.settings.retention == NEVER:
            confirm(_question(target, "Drain", ""), out, yes=args.yes)
        return _drain(target, args, out)
    id = control.stop(target.ledger, user_and_host(), args.reason)
    out.line(f"Pipeline {target.name} is stopped, by entry {id} of its log.")
    if not args.no_wait or name is not None:
        _wait(target, out)
    entry = None
    if name is not None:
        created = savepoint.create(target.ledger, name, None, user_and_host(), args.reason)
        out.line(f"Savepoint {created.name} is checkpoint {created.entry}.")
        entry = created.entry
    out.document({"pipeline": target.name, "entry": id, "stopped": True, "savepoint": name, "checkpoint": entry})
    out.line(f"To resume it after all:  {target.command('resume')}", "dim")
    return 0


def _drain(target: Target, args: argparse.Namespace, out: Output) -> int:
    """Make checkpoints in this process until no input waits; the last one finishes the pipeline."""
    coordinator = coordinator_of(target)
    refuse_submit(target.settings)
    if target.settings.retention == NEVER:
        control.refuse_backfills(target.ledger)
    drain = Drain(by=user_and_host(), reason=args.reason)
    progress = progress_for(out)
    run_loop(coordinator, [Schedule(checkpoints=1, drain=drain)], progress, target.settings, out)
    last = suspension.finished(target.ledger.view())
    if last is None and (view := target.ledger.view()) is not None and suspension.draining(view) is not None:
        raise Rejected(
            f"pipeline {target.name!r} is not finished: some input is not read yet",
            expected="all waiting input to be read",
            help="run the same command again, or let its runs continue: they finish it. "
            f"{target.command('resume')} undoes the drain",
            reason="NOT_DRAINED",
        )
    if last is None:
        raise Rejected(
            f"pipeline {target.name!r} is not finished: the checkpoint at the end of time was aborted",
            expected="that checkpoint to be completed",
            help=f"fix the cause ({target.command('list')} shows it), then drain again; its runs may also continue",
            reason="NOT_DRAINED",
        )
    _wait(target, out)
    name = args.savepoint
    if name is not None:
        savepoint.create(target.ledger, name, last.id, user_and_host(), args.reason)
        out.line(f"Savepoint {name} is checkpoint {last.id}.")
    final = target.settings.retention == NEVER
    if final:
        control.cancel(target.ledger, user_and_host(), f"it is finished, and retention is {NEVER}", final=True)
    document = {"pipeline": target.name, "entry": last.id, "stopped": True, "drained": True, "final": final}
    out.document(document | {"savepoint": name, "checkpoint": last.id if name is not None else None})
    out.line(f"Pipeline {target.name} is finished, with checkpoint {last.id}: windows and timers have fired.")
    if final:
        _remove(target, out)
    return 0


def _cancel(target: Target, args: argparse.Namespace, out: Output) -> int:
    open_ids = [entry.id for entry in target.ledger.view().still_open()]
    final = target.settings.retention != KEEPS
    if final:
        if suspension.final_cancel(target.ledger.view()) is None:
            control.refuse_backfills(target.ledger)
        confirm(_question(target, "Cancel", " for good"), out, yes=args.yes)
    elif open_ids:
        confirm(f"Abort checkpoint {', '.join(map(str, open_ids))}, which is open?", out, yes=args.yes)
    id, aborted = control.cancel(target.ledger, user_and_host(), args.reason, final=final)
    out.document({"pipeline": target.name, "entry": id, "stopped": True, "aborted": list(aborted), "final": final})
    out.line(f"Pipeline {target.name} is cancelled{' for good' if final else ''}, by entry {id} of its log.")
    if aborted:
        out.line(f"Checkpoint {', '.join(map(str, aborted))} was aborted; none of its rows become visible.")
    if final:
        _remove(target, out)
    else:
        out.line(f"To resume it after all:  {target.command('resume')}", "dim")
    return 0


def _question(target: Target, verb: str, how: str) -> str:
    """Return the question before records are removed, with what is lost."""
    names = ", ".join(item.name for item in savepoint.savepoints(target.ledger)) or "there are none"
    origin = target.settings.origins["retention"]
    return (
        f"{verb} pipeline {target.name}{how}? retention is {target.settings.retention} ({origin}): its checkpoints and "
        f"states are removed, and it cannot be resumed. Savepoints stay: {names}. Tables stay as they are."
    )


def _remove(target: Target, out: Output) -> None:
    """Remove the files of a pipeline that was cancelled for good. That needs its code, which names the tables."""
    if target.pipeline is not None:
        coordinator = coordinator_of(target)
        coordinator.publish()
        remember(coordinator.ledger, coordinator.place.options)
        removed = [str(id) for id in coordinator.retire()]
        last, named = target.ledger.view().settled, {pin.entry for pin in target.ledger.pins()}
        if last in named or target.ledger.discarded() is not None:
            removed += [] if last in named else ["the files of the last one"]
            out.line(f"Its checkpoints and states are removed: {', '.join(removed) or 'savepoints name them all'}.")
            return
    out.line(
        "Its records and states are removed as soon as everything is published and no job runs: by the next run, or "
        "by this command again, with its code (MODULE:pipeline). Savepoints stay.",
        "dim",
    )


def _finish_open(coordinator: Coordinator, view: View) -> None:
    """Complete open checkpoints with all acks, abort abandoned ones, and publish, as any process may."""
    for entry in view.still_open():
        if coordinator.complete(entry.id).state == "open" and (why := abandoned_reason(entry.plan)):
            coordinator.abort(entry.id, why)
    coordinator.publish()


def _wait(target: Target, out: Output) -> None:
    """Wait until everything is decided and published. With the pipeline's code, do as much of it as possible here."""
    coordinator = None
    if target.pipeline is not None:
        coordinator = coordinator_of(target)
    printed = ""
    while True:
        view = target.ledger.view()
        open_ones = [entry.id for entry in view.still_open()]
        last = view.last_completed
        if coordinator is not None:
            _finish_open(coordinator, view)
            view = target.ledger.view()
            open_ones = [entry.id for entry in view.still_open()]
        if not open_ones and (last is None or view.settled >= last.id):
            return
        if open_ones:
            awaited = f"checkpoint {', '.join(map(str, open_ones))}"
        else:
            awaited = "the last checkpoint to be published"
        if awaited != printed:
            out.line(f"Waiting for {awaited}; its run finishes it. After Ctrl-C the pipeline stays stopped.")
            printed = awaited
        seams.sleep(POLL_S)
