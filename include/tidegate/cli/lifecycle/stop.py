"""`tidegate stop` and `tidegate cancel`: the pipeline is over, until somebody resumes it after all."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, who
from tidegate.cli.running.progress import progress_for
from tidegate.cli.running.run import refuse_submit, run_loop
from tidegate.cli.targets import Target, find
from tidegate.config.keys import RETENTIONS
from tidegate.coordinator import Coordinator
from tidegate.errors import Rejected
from tidegate.execution.loop import Schedule
from tidegate.execution.runs import abandoned_reason
from tidegate.history.table import remember
from tidegate.lifecycle import savepoint
from tidegate.protocol.view import View
from tidegate.records.records import Drain

__all__ = ["add_parser", "run"]

POLL_S = 0.5
KEEPS, _, NEVER = RETENTIONS


def add_parser(subparsers: Any) -> None:
    """Declare both commands."""
    for name, help, description in (
        (
            "stop",
            "the pipeline is over: bring what is open to its end, make a savepoint",
            "Stop the pipeline: no run plans a checkpoint any more, with the reason. What is open is waited for: "
            "whoever runs it brings it to its end. Then, if you like, the last checkpoint gets a name, and stays.",
        ),
        (
            "cancel",
            "the pipeline is over at once: end what is open",
            "Stop the pipeline at once: no run plans a checkpoint any more, and what is open is aborted; nothing of it "
            "becomes visible. What is completed is published all the same, by the next who comes. With the setting "
            "retention = retain_on_failure or never_retain it is for good: checkpoints and states are removed, but for "
            "what savepoints name. Nobody can resume it then.",
        ),
    ):
        example = f"example:\n  tidegate {name} orders --reason 'moved to another cluster'"
        epilog = (
            f"{example} --savepoint last\n  tidegate stop jobs.orders:pipeline --drain" if name == "stop" else example
        )
        parser = subparsers.add_parser(name, help=help, description=description, epilog=epilog)
        parser.add_argument("pipeline", metavar="PIPELINE", help="a name, or MODULE:pipeline")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever looks at it later")
        if name == "stop":
            text = "read all that waits, then let event time come to its end: windows and timers fire (needs the code)"
            parser.add_argument("--drain", action="store_true", help=text)
            parser.add_argument("--savepoint", metavar="NAME", help="give the last checkpoint this name")
            parser.add_argument("--no-wait", action="store_true", help="do not wait for what is open")
        parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    """Carry it out."""
    target = find(args.pipeline, args.settings)
    if args.command == "cancel":
        return _cancel(target, args, out)
    name = args.savepoint
    if name is not None:
        savepoint.check_free(target.ledger, name, None)
    if args.drain:
        if target.settings.retention == NEVER:
            confirm(_question(target, "Bring", " to its end"), out, yes=args.yes)
        return _drain(target, args, out)
    id = control.stop(target.ledger, who(), args.reason)
    out.line(f"Pipeline {target.name} is stopped, by entry {id} of its log.")
    if not args.no_wait or name is not None:
        _wait(target, out)
    made = savepoint.create(target.ledger, name, None, who(), args.reason) if name is not None else None
    if made is not None:
        out.line(f"Savepoint {made.name} is checkpoint {made.entry}.")
    entry = made.entry if made is not None else None
    out.document({"pipeline": target.name, "entry": id, "stopped": True, "savepoint": name, "checkpoint": entry})
    out.line(f"To let it go on after all:  {target.command('resume')}", "dim")
    return 0


def _drain(target: Target, args: argparse.Namespace, out: Output) -> int:
    """As many checkpoints as it takes to read all that waits, in this process; with the last one it is finished."""
    coordinator = coordinator_of(target)
    refuse_submit(target.settings)
    drain = Drain(by=who(), reason=args.reason)
    progress = progress_for(out)
    run_loop(coordinator, [Schedule(checkpoints=1, drain=drain)], progress, target.settings, out)
    last = control.finished(target.ledger.view())
    if last is None and (view := target.ledger.view()) is not None and control.draining(view) is not None:
        raise Rejected(
            f"pipeline {target.name!r} is not finished: input still waits that is read before the end",
            expected="to read on until nothing is left",
            help="give the same command again, or let its runs go on: they bring it to its end. "
            f"{target.command('resume')} takes that back",
            reason="NOT_DRAINED",
        )
    if last is None:
        raise Rejected(
            f"pipeline {target.name!r} is not finished: the checkpoint at the end of time was aborted",
            expected="it to be completed",
            help=f"mend the cause ({target.command('list')} tells it), then drain once more; it can also just go on",
            reason="NOT_DRAINED",
        )
    _wait(target, out)
    name = args.savepoint
    if name is not None:
        savepoint.create(target.ledger, name, last.id, who(), args.reason)
        out.line(f"Savepoint {name} is checkpoint {last.id}.")
    final = target.settings.retention == NEVER
    if final:
        control.cancel(target.ledger, who(), f"it is finished, and retention is {NEVER}", final=True)
    told = {"pipeline": target.name, "entry": last.id, "stopped": True, "drained": True, "final": final}
    out.document(told | {"savepoint": name, "checkpoint": last.id if name is not None else None})
    out.line(f"Pipeline {target.name} is finished, with checkpoint {last.id}: windows and timers have fired.")
    if final:
        _remove(target, out)
    return 0


def _cancel(target: Target, args: argparse.Namespace, out: Output) -> int:
    found = [entry.id for entry in target.ledger.view().still_open()]
    final = target.settings.retention != KEEPS
    if final:
        confirm(_question(target, "Cancel", " for good"), out, yes=args.yes)
    elif found:
        confirm(f"End checkpoint {', '.join(map(str, found))}, which is open?", out, yes=args.yes)
    id, ended = control.cancel(target.ledger, who(), args.reason, final=final)
    told = {"pipeline": target.name, "entry": id, "stopped": True, "ended": list(ended), "final": final}
    out.document(told)
    out.line(f"Pipeline {target.name} is cancelled{' for good' if final else ''}, by entry {id} of its log.")
    if ended:
        out.line(f"Checkpoint {', '.join(map(str, ended))} was ended; nothing of it becomes visible.")
    if final:
        _remove(target, out)
    else:
        out.line(f"To let it go on after all:  {target.command('resume')}", "dim")
    return 0


def _question(target: Target, verb: str, how: str) -> str:
    """What is lost, before it is."""
    stay = ", ".join(each.name for each in savepoint.savepoints(target.ledger)) or "there are none"
    origin = target.settings.origins["retention"]
    return (
        f"{verb} pipeline {target.name}{how}? retention is {target.settings.retention} ({origin}): its checkpoints and "
        f"states are removed, and it cannot be resumed. Savepoints stay: {stay}. Tables stay as they are."
    )


def _remove(target: Target, out: Output) -> None:
    """What a pipeline leaves that was cancelled for good. Its tables are told by its code, so it takes that."""
    if target.pipeline is not None:
        coordinator = coordinator_of(target)
        coordinator.publish()
        remember(coordinator.ledger, coordinator.place.options)
        removed = [str(id) for id in coordinator.retire()]
        last, named = target.ledger.view().settled, {pin.entry for pin in target.ledger.pins()}
        if last in named or target.ledger.discarded() is not None:
            removed += [] if last in named else ["what the last one named"]
            out.line(f"Its checkpoints and states are removed: {', '.join(removed) or 'savepoints name them all'}.")
            return
    out.line(
        "What it leaves is removed as soon as all is published and nothing is at work: by the next run, or by this "
        "command, again, with its code (MODULE:pipeline). What savepoints name stays.",
        "dim",
    )


def _help(coordinator: Coordinator, view: View) -> None:
    """What anybody may do for what is open: decide it if all is there, end it if nobody works at it; and publish."""
    for entry in view.still_open():
        if coordinator.complete(entry.id).state == "open" and (why := abandoned_reason(entry.plan)):
            coordinator.abort(entry.id, why)
    coordinator.publish()


def _wait(target: Target, out: Output) -> None:
    """Until all is decided, and on all tables. With the pipeline's code at hand, that is done here if it can be."""
    coordinator = coordinator_of(target) if target.pipeline is not None else None
    told = ""
    while True:
        view = target.ledger.view()
        open_ones = [entry.id for entry in view.still_open()]
        last = view.last_completed
        if coordinator is not None:
            _help(coordinator, view)
            view = target.ledger.view()
            open_ones = [entry.id for entry in view.still_open()]
        if not open_ones and (last is None or view.settled >= last.id):
            return
        what = f"checkpoint {', '.join(map(str, open_ones))}" if open_ones else "the last checkpoint to be published"
        if what != told:
            out.line(f"Waiting for {what}; whoever runs the pipeline brings it to its end. Ctrl-C: it stays stopped.")
            told = what
        seams.sleep(POLL_S)
