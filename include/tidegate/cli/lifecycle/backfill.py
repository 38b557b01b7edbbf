"""`tidegate backfill`: recompute a pipeline's results while it runs, and swap them in."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, get_args

from tidegate import seams
from tidegate.backfill.choosing import (
    BEGINNING,
    approvals_text,
    choose_stop,
    existing_line,
    free_name,
    no_backfill,
    origin_of,
    outlook,
)
from tidegate.backfill.compare import compare, differing_rows, tables_of
from tidegate.backfill.discard import discard, discard_named
from tidegate.backfill.open_backfill import Cuts, OpenBackfill, begin
from tidegate.backfill.replay import replay
from tidegate.backfill.swap import CompletedSwap, examine_swap, pause_pipeline, released_on_failure, swap
from tidegate.checkpoint.publishing.publish import refuse_damaged
from tidegate.cli.inspect.read import format_rows, row_limit
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import confirm, user_and_host
from tidegate.cli.running.interrupts import Interrupts
from tidegate.cli.running.progress import progress_for
from tidegate.cli.running.run import count as whole_number
from tidegate.cli.running.run import refuse_submit
from tidegate.cli.targets import Target, open_target
from tidegate.coordinator import Coordinator
from tidegate.delta.as_python import json_value
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.execution.loop import POLL_S, Schedule
from tidegate.lifecycle.rollback_preview import How
from tidegate.protocol.backfill import Swapped
from tidegate.records import typed
from tidegate.records.records import ComparedTable
from tidegate.spark.session import reused_session

__all__ = ["add_parser", "run"]

NO, CANNOT = 1, 3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "backfill",
        help="recompute a pipeline's results since a checkpoint, and swap them in",
        description="Recompute a pipeline's results since a checkpoint, with today's code. The backfill reads the same "
        "input again, into hidden tables, while the pipeline runs. With --swap, every table gets the result in one "
        "commit, together with positions and state; until then nothing changes. If the command is interrupted, run it "
        "again: it continues.",
        epilog="examples:\n  tidegate backfill jobs.orders:pipeline --from 41 --dry-run\n"
        "  tidegate backfill jobs.orders:pipeline --from 2026-03-01 --name new-prices --cuts recorded\n"
        "  tidegate backfill jobs.orders:pipeline --diff revenue\n"
        "  tidegate backfill jobs.orders:pipeline --swap\n"
        "  tidegate backfill jobs.orders:pipeline --discard new-prices",
    )
    parser.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the pipeline's new code")
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="WHEN",
        help="begin after this checkpoint: a number, a savepoint's name, or a time (UTC) such as 2026-03-01 for the "
        f"last checkpoint before it; or {BEGINNING!r}",
    )
    parser.add_argument(
        "--to",
        metavar="WHEN",
        help="stop after this checkpoint, and compare with the tables as of it, to inspect a partial result; without "
        "--to, the same command reads the rest",
    )
    parser.add_argument(
        "--larger",
        type=whole_number,
        default=1,
        metavar="N",
        help="read N times the sources' bounds in each checkpoint: fewer, larger checkpoints (1)",
    )
    parser.add_argument(
        "--cuts",
        choices=get_args(Cuts),
        help="own: read as much at once as the sources' bounds allow; recorded: one checkpoint for each of the "
        "pipeline's, with exactly its input, so that the same code returns the same rows (own)",
    )
    parser.add_argument(
        "--drop-by-hand",
        action="store_true",
        help="discard manual changes of state since then (edit_state, bootstrap), which are otherwise refused",
    )
    parser.add_argument("--name", metavar="NAME", help="the backfill's name; by default backfill-1, backfill-2, …")
    act = parser.add_mutually_exclusive_group()
    act.add_argument(
        "--dry-run", action="store_true", help="only show what it would read and change, and which input is gone"
    )
    act.add_argument("--swap", action="store_true", help="swap it in once it has caught up")
    act.add_argument("--discard", metavar="NAME", help="end it, and remove its files")
    act.add_argument("--diff", metavar="SINK", help="show rows of a table that a swap would change")
    parser.add_argument("--limit", type=row_limit, default=20, metavar="K", help="with --diff: at most K rows (20)")
    for how, help in (
        ("discard-commits", "with --swap, for a table that other writers have changed since: their commits are lost"),
        ("retract", "for such a table: replace only this pipeline's own rows, and keep the other writers'"),
        ("keep", "leave a table's rows as they are"),
    ):
        parser.add_argument(f"--{how}", action="append", default=[], metavar="SINK", help=help)
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings)
    coordinator = coordinator_of(target)
    if args.discard is not None:
        return _discard(target, coordinator, args.discard, out)
    if args.swap and args.to is not None:
        raise Invalid(
            "--swap cannot be combined with --to: a swap needs a backfill that has caught up with the pipeline",
            expected="a backfill that has read all that the pipeline has read",
            help="leave out --to; it reads the rest before the swap",
            reason="NOT_CAUGHT_UP",
        )
    if args.dry_run:
        return _dry_run(args, target, coordinator, _origin(args, target), out)
    line = open_requested(args, target, coordinator)
    line.backfill.larger = args.larger
    line.backfill.until = None
    if args.to is not None:
        line.backfill.until = choose_stop(line, args.to)
    if args.diff is not None:
        return _diff(line, args.diff, args.limit, out)
    refuse_submit(target.settings)
    _print_unchanged_sinks(line.sinks_without_shadow(), out)
    for gate, numbers in line.record.in_place.items():
        listed = ", ".join(map(str, numbers))
        out.line(f"Releases rows in place from the quarantine of gate {gate}: request {listed}.")
    is_swapped = isinstance(line.backfill.next_step(), Swapped)  # an earlier command was interrupted after the swap
    stopped, made = (False, []) if is_swapped and args.swap else replay_remaining(target, line, out)
    if args.swap and not stopped:
        return swap_in(args, target, line, made, out, is_swapped=is_swapped)
    differences: dict[str, ComparedTable] = {} if stopped else compare(line)
    in_the_way = [] if stopped else _swap_obstacle(line)
    out.document(
        _document(target, line)
        | {
            "checkpoints": made,
            "stopped": stopped,
            "tables": typed.document_of(differences),
            "problems": in_the_way,
        }
    )
    if stopped:
        out.line("Stopped. Run the same command to continue.", "yellow")
        return NO
    _print_differences(target, line, differences, out)
    for each in in_the_way:
        out.line(f"Blocks its swap: {each}", "yellow")
    _print_offers(target, line, out, can_swap=not in_the_way)
    return 0


# -- which one ---------------------------------------------------------------------------------------------


def open_requested(args: argparse.Namespace, target: Target, coordinator: Coordinator) -> OpenBackfill:
    """Begin the requested backfill, or continue the existing one."""
    existing = existing_line(target.ledger, args.name)
    if existing is not None and args.origin is None:
        name, origin = existing.name, existing.origin
        return begin(coordinator, name, origin, by=existing.by, cuts=args.cuts, drops_by_hand=args.drop_by_hand)
    origin = _origin(args, target)
    name = args.name or (existing.name if existing is not None else free_name(target.ledger))
    return begin(
        coordinator,
        name,
        origin,
        by=user_and_host(),
        note=args.reason,
        cuts=args.cuts,
        drops_by_hand=args.drop_by_hand,
    )


def _origin(args: argparse.Namespace, target: Target) -> int:
    """Return the checkpoint to begin after, or 0 for the beginning."""
    if args.origin is None:
        raise no_backfill(target.ledger, args.name)
    return origin_of(target.ledger, args.origin)


# -- what it does ------------------------------------------------------------------------------------------


def replay_remaining(
    target: Target, line: OpenBackfill, out: Output, *, hold: bool = False
) -> tuple[bool, list[dict[str, Any]]]:
    """Read until the backfill has caught up. Return whether the user stopped it, and its checkpoints.

    hold: pause the pipeline while it reads.
    """
    progress, sessions = progress_for(out), reused_session(target.settings)
    notice = None if out.terminal else out.err_fd
    schedule = Schedule(tolerable_failures=target.settings.tolerable_failed_checkpoints)

    def wait(why: str) -> None:
        if schedule.stop():
            raise stopped_by_hand()
        progress.waiting(why)
        seams.sleep(POLL_S)

    with Interrupts(progress.stopping, sessions.cancel, notice) as interrupts, progress, sessions:
        sessions.opened = interrupts.install
        schedule.stop = interrupts
        if hold:
            pause_pipeline(line, wait)
        replay(line, sessions, schedule, progress)
        return interrupts(), progress.checkpoints


def swap_in(
    args: argparse.Namespace,
    target: Target,
    line: OpenBackfill,
    made: list[dict[str, Any]],
    out: Output,
    *,
    is_swapped: bool,
    last_look: Callable[[], None] = lambda: None,
) -> int:
    """Show what the swap changes, ask for confirmation, pause the pipeline while the rest is read, and swap.

    last_look: is called in front of the swap, while the pipeline waits, and may refuse it.
    """
    choices = _choices(args)
    differences: dict[str, ComparedTable] = {}
    with released_on_failure(line):
        if not is_swapped:
            proposal = examine_swap(line, choices)
            differences = compare(line)
            _print_differences(target, line, differences, out)
            if not proposal.problems:  # otherwise `swap` below refuses it, and lists them
                confirm(f"Swap backfill {line.name} in?", out, yes=args.yes)
                stopped, more = replay_remaining(target, line, out, hold=True)
                made = [*made, *more]
                if stopped:
                    raise stopped_by_hand()
                last_look()
        swapped = swap(
            line, by=user_and_host(), choices=choices, reason=args.reason, wait=lambda _: seams.sleep(POLL_S)
        )
    is_published = swapped.report is not None and not swapped.report.stuck
    if is_published:
        discard(line, user_and_host())
    out.document(
        _document(target, line)
        | {
            "checkpoints": made,
            "swap": swapped.id,
            "savepoint": swapped.savepoint,
            "tables": typed.document_of(differences),
        }
    )
    return _print_swapped(target, line, swapped, out)


def stopped_by_hand() -> Rejected:
    """Return the error of a user who has stopped it before the swap."""
    return Rejected(
        "stopped before the swap: nothing was changed",
        expected="the rest of the input to be read",
        help="run the same command again: it continues",
        reason="STOPPED_BY_HAND",
    )


def _choices(args: argparse.Namespace) -> dict[str, How]:
    choices: dict[str, How] = {}
    given: tuple[tuple[How, list[str]], ...] = (
        ("discard", args.discard_commits),
        ("retract", args.retract),
        ("keep", args.keep),
    )
    for how, names in given:
        for name in names:
            if choices.setdefault(name, how) != how:
                raise Invalid(
                    f"table {name!r} has two choices",
                    expected="one of --discard-commits, --retract and --keep",
                    help="leave one out; `--diff` shows what a swap would change",
                    reason="BAD_CHOICE",
                )
    return choices


def _discard(target: Target, coordinator: Coordinator, name: str, out: Output) -> int:
    was_there = target.ledger.line(name) is not None
    swapped = discard_named(coordinator, name, user_and_host())
    if not was_there:
        out.line(f"Backfill {name} is over.")
        out.document({"pipeline": target.name, "backfill": name, "discarded": True})
        return 0
    out.document({"pipeline": target.name, "backfill": name, "discarded": True, "swap": swapped})
    out.line(f"Backfill {name} is discarded" + (f"; entry {swapped} had swapped it in before." if swapped else "."))
    return 0


def _diff(line: OpenBackfill, table: str, limit: int, out: Output) -> int:
    if table not in tables_of(line):
        raise Invalid(
            f"the backfill has no table {table!r}",
            expected=" or ".join(tables_of(line)),
            help="name one of these; other sinks stay as they are",
            reason="NO_SUCH_SINK",
        )
    rows = differing_rows(line, table, limit)
    out.document({"backfill": line.name, "table": table, "rows": json_value(rows)})
    if rows:
        out.table(list(rows[0]), format_rows(rows, list(rows[0])))
    else:
        out.line(f"A swap would leave {table} as it is.")
    return 0


def _dry_run(args: argparse.Namespace, target: Target, coordinator: Coordinator, origin: int, out: Output) -> int:
    forecast = outlook(coordinator, origin, args.cuts or "own", drops_by_hand=args.drop_by_hand)
    problems, kept = forecast["problems"], forecast["unchanged_sinks"]
    out.document(forecast)
    since = f"checkpoint {origin}" if origin else "the beginning"
    out.line(f"A backfill of {target.name} from {since}", "bold")
    out.line(
        f"  reads again        {', '.join(coordinator.graph.sources)}, from where {since} ended"
        if origin
        else f"  reads again        {', '.join(coordinator.graph.sources)}, all of it"
    )
    changed = [name for name in coordinator.graph.sinks if name not in kept]
    out.line(f"  replaces, later    {', '.join(changed) or 'no table'}, in one commit each")
    _print_unchanged_sinks(kept, out)
    for text in approvals_text(forecast["approvals"]):
        out.line(f"  approvals          {text}")
    for text in forecast["released_in_place"]:
        out.line(f"  quarantine         {text}")
    for text in forecast["may_differ"]:
        out.line(f"May differ even with the same code: {text}", "yellow")
    for text in forecast["changed_results"]:
        out.line(f"Is computed differently: {text}", "yellow")
    if args.drop_by_hand:
        for change in forecast["manual_edits"]:
            out.line(
                f"Is lost: manual changes by {change['changed_by']} in checkpoint {change['checkpoint']}",
                "yellow",
            )
    for problem in problems:
        out.line(f"Not possible: {problem}", "red")
    return NO if problems else 0


# -- output ------------------------------------------------------------------------------------------------


def _document(target: Target, line: OpenBackfill) -> dict[str, Any]:
    return {
        "pipeline": target.name,
        "backfill": line.name,
        "from": line.record.origin,
        "unchanged_sinks": line.sinks_without_shadow(),
    }


def _print_unchanged_sinks(sinks: list[str], out: Output) -> None:
    """Show in advance which sinks are not recomputed."""
    for name in sinks:
        out.line(
            f"{name} stays as it is: its rows cannot be removed, and none are written again. After the swap it only "
            "gets new rows.",
            "yellow",
        )


def _swap_obstacle(line: OpenBackfill) -> list[str]:
    """Return the reasons that block its swap now, with remedies."""
    try:
        refuse_damaged(line.live, line.live.graph.tables)
        return list(examine_swap(line, {}).problems)
    except TidegateError as error:
        return ["; ".join(filter(None, (error.what, error.help)))]


def _print_differences(
    target: Target, line: OpenBackfill, differences: Mapping[str, ComparedTable], out: Output
) -> None:
    until = line.backfill.until
    if until is None:
        read = "caught up"
    else:
        read = f"read what checkpoint {until.id} had read"
    out.line(f"Backfill {line.name} of {target.name} has {read}.", "bold")
    before, after = ("rows now", "rows after the swap") if until is None else ("rows then", "rows computed again")
    out.table(
        ["table", before, after, "taken away", "brought"],
        [
            [table, each.rows_now, each.rows_after, each.rows_removed, each.rows_added]
            for table, each in differences.items()
        ],
        right=[before, after, "taken away", "brought"],
    )
    _print_unchanged_sinks(line.sinks_without_shadow(), out)


def _print_offers(target: Target, line: OpenBackfill, out: Output, *, can_swap: bool) -> None:
    offers = [("--diff SINK", "rows that differ")]
    if can_swap:
        offers.append(("--swap", "swap it in"))
    offers.append((f"--discard {line.name}", "or not"))
    for flag, purpose in offers:
        out.line(f"  tidegate backfill {target.text} {flag}  # {purpose}", "dim")


def _print_swapped(target: Target, line: OpenBackfill, swapped: CompletedSwap, out: Output) -> int:
    if swapped.error is not None:
        raise swapped.error
    out.line(f"Backfill {line.name} is swapped in, by entry {swapped.id}.", "green")
    for table, error in (swapped.report.stuck if swapped.report is not None else {}).items():
        out.line(f"Not published to table {table} yet: {error.what}", "yellow")
    if swapped.savepoint is not None:
        out.line(f"To undo it:  tidegate rollback {target.text} --to {swapped.savepoint}", "dim")
    return 0
