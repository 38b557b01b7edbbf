"""`tidegate run`: make checkpoints in this process, without Airflow."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import datetime
from typing import Any

from tidegate.cli.inspect.read import as_of, print_sinks, sink_document
from tidegate.cli.output import Output, error_document
from tidegate.cli.running.interrupts import Interrupts
from tidegate.cli.running.progress import ProgressPrinter, progress_for
from tidegate.cli.running.spark_needs import provide_spark_needs
from tidegate.cli.targets import Target, open_target, refuse_unknown_jobs
from tidegate.config import Settings
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.execution.loop import Schedule, run_checkpoints
from tidegate.execution.opening import refuse_interval_pipeline
from tidegate.proposal.expiry import discard_expired
from tidegate.records.records import Published
from tidegate.spark.session import reused_session
from tidegate.state.table import STATE
from tidegate.versions.python import UTC, parse_time

__all__ = ["add_parser", "count", "data_interval", "refuse_submit", "run", "run_loop"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="make checkpoints in this process, with live progress",
        description="Make checkpoints in this process, one after the other. Ctrl-C stops after the running checkpoint; "
        "a second Ctrl-C aborts it. Completed checkpoints are not affected.",
        epilog="examples:\n  tidegate run jobs.orders:pipeline --checkpoints 5\n"
        "  tidegate run jobs.orders:pipeline --until-idle\n"
        "  tidegate run jobs.orders:pipeline --forever -D interval='30 s'\n"
        "  tidegate run jobs.daily:pipeline --interval 2026-01-01/2026-01-02 --reprocess",
    )
    parser.add_argument("pipeline", metavar="MODULE:pipeline", help="the pipeline's code, such as jobs.orders:pipeline")
    how_long = parser.add_mutually_exclusive_group(required=True)
    how_long.add_argument("--checkpoints", type=count, metavar="N", help="make N checkpoints, back to back")
    how_long.add_argument("--until-idle", action="store_true", help="until no source has anything new")
    how_long.add_argument(
        "--forever", action="store_true", help="one checkpoint every `interval`, or when input arrives"
    )
    how_long.add_argument(
        "--interval",
        type=data_interval,
        action="append",
        metavar="FROM/TO",
        help="process one data interval (UTC), such as 2026-01-01T00:00/2026-01-02T00:00; may be repeated",
    )
    parser.add_argument(
        "--reprocess", action="store_true", help="with --interval: process it again, replacing its rows"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    if ":" not in args.pipeline:
        raise Invalid(
            f"{args.pipeline!r} is not a pipeline's code",
            expected="MODULE:pipeline, such as jobs.orders:pipeline",
            help="name the Python module that declares the pipeline, and its variable",
            reason="BAD_PIPELINE_ARGUMENT",
        )
    target = open_target(args.pipeline, args.settings, started=False)
    assert target.pipeline is not None
    refuse_submit(target.settings)
    provide_spark_needs(target.settings, out)
    place = target.settings.place()
    coordinator = Coordinator(target.pipeline.graph(place, target.settings.mode), target.ledger, target.settings, place)
    refuse_unknown_jobs(coordinator.graph, target.settings)
    schedule = _schedule(args, target.settings)
    discard_expired(coordinator, target.settings.proposal_ttl)
    if schedule.by_event:
        refuse_interval_pipeline(coordinator.graph)
    progress = progress_for(out)
    stopped = False
    try:
        stopped = run_loop(coordinator, _schedules(schedule, args.interval), progress, target.settings, out)
        if not stopped:
            _refuse_unpublished(progress)
    except KeyboardInterrupt:
        out.document(_document(target, progress, stopped=True))
        out.line("Stopped; the running checkpoint was aborted. The next run reads its input again.", "yellow")
        return 1
    except TidegateError as error:
        out.document(_document(target, progress, stopped=False) | {"error": error_document(error)})
        raise
    out.document(_document(target, progress, stopped=stopped))
    _print_closing(target, progress, stopped, out)
    return _exit_code(args, progress, stopped)


def _refuse_unpublished(progress: ProgressPrinter) -> None:
    """Raise Unavailable if a table lacks rows of completed checkpoints, so that later steps do not run without them."""
    if not progress.unpublished:
        return
    error, tables = next(iter(progress.unpublished.values())), ", ".join(map(repr, progress.unpublished))
    raise Unavailable(
        f"rows of completed checkpoints could not be published to {tables}: {error.what}",
        expected=error.expected,
        help=f"{error.help}; nothing is lost: each later run tries again" if error.help else "run it again later",
        reason=error.reason,
        quoted=error.quoted,
    )


def _exit_code(args: argparse.Namespace, progress: ProgressPrinter, stopped: bool) -> int:
    """Return 0 if the last checkpoint is completed, or all requested intervals are.

    A later checkpoint takes the input of an aborted one; another interval does not.
    """
    if args.interval:
        checkpoints = progress.checkpoints
    else:
        checkpoints = progress.checkpoints[-1:]
    unmade = bool(args.interval) and stopped
    if not unmade and all(checkpoint["state"] == "completed" for checkpoint in checkpoints):
        return 0
    return 1


def refuse_submit(settings: Settings) -> None:
    """Raise Invalid for spark.mode = submit: such jobs cannot run in this process."""
    if settings.spark.mode == "submit":
        raise Invalid(
            "`tidegate run` makes checkpoints in this process, and spark.mode = submit"
            f" ({settings.origins['spark.mode']}) hands jobs to spark-submit",
            expected="spark.mode connect or local",
            help="run the pipeline under Airflow, or here on this machine:"
            " -D spark.mode=connect -D spark.master='local[*]'",
            reason="SPARK_SUBMIT_ONLY",
        )


def data_interval(text: str) -> tuple[datetime, datetime]:
    """Parse a data interval, FROM/TO."""
    parts = text.split("/")
    try:
        start, end = (parse_time(part.strip()) for part in parts)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an interval: write FROM/TO, such as 2026-01-01T00:00/2026-01-02T00:00"
        ) from None
    start, end = (moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in (start, end))
    if start >= end:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return start, end


def count(text: str) -> int:
    """Parse a number of checkpoints."""
    if not text.isdecimal() or not 1 <= int(text[:12]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000000")
    return int(text)


def _schedule(args: argparse.Namespace, settings: Settings) -> Schedule:
    if args.reprocess and not args.interval:
        raise Invalid(
            "--reprocess needs an --interval to process again",
            help="name the interval: --interval 2026-01-01/2026-01-02",
            reason="NO_INTERVAL",
        )
    if args.forever and settings.interval is None and not settings.by_event:
        raise Invalid(
            "--forever needs an interval, and interval is 'never'",
            expected="an interval of at least 1 s",
            help="set one: -D interval='5 min'; or use --until-idle",
            reason="NO_INTERVAL",
        )
    return Schedule(
        checkpoints=1 if args.interval else args.checkpoints,
        reprocess=args.reprocess,
        until_idle=args.until_idle,
        interval_s=(settings.interval or 0.0) if args.forever else 0.0,
        by_event=args.forever and settings.by_event,
        max_pause_s=settings.max_pause,
        initial_delay_s=settings.initial_delay if args.forever else 0.0,
        min_pause_s=settings.min_pause,
        tolerable_failures=settings.tolerable_failed_checkpoints,
    )


def _schedules(schedule: Schedule, intervals: list[tuple[datetime, datetime]] | None) -> list[Schedule]:
    """Return one schedule, or one for each interval."""
    if intervals:
        return [replace(schedule, interval=interval) for interval in intervals]
    return [schedule]


def run_loop(
    coordinator: Coordinator, schedules: list[Schedule], progress: ProgressPrinter, settings: Settings, out: Output
) -> bool:
    """Run the loop with signal handlers and Spark sessions around it. Return True if the user stopped it."""
    sessions = reused_session(settings)
    notice = None if out.terminal else out.err_fd
    with Interrupts(progress.stopping, sessions.cancel, notice) as interrupts, progress, sessions:
        sessions.opened = interrupts.install  # Spark replaces the signal handlers when it starts
        for schedule in schedules:
            schedule.stop = interrupts
            run_checkpoints(coordinator, sessions, schedule, progress)
        return interrupts()


# -- closing report ------------------------------------------------------------------------------------


def _document(target: Target, progress: ProgressPrinter, *, stopped: bool) -> dict[str, Any]:
    return {
        "pipeline": target.name,
        "checkpoints": progress.checkpoints,
        "covered": progress.covered_intervals,
        "stopped": stopped,
        "tables": _tables(target),
    }


def _tables(target: Target) -> dict[str, dict[str, Any]]:
    """Return the size of each sink's table as of the last published checkpoint. States are left out."""
    published = _last_published(target)
    tables: dict[str, dict[str, Any]] = {}
    for name, table in (published.tables if published else {}).items():
        if name.startswith(STATE):
            continue
        try:
            tables[name] = sink_document(target, table)
        except TidegateError:  # the run itself succeeded; `tidegate doctor` checks tables
            tables[name] = {"table": table.uri, "version": table.version, "rows": None}
    return tables


def _last_published(target: Target) -> Published | None:
    for id in reversed(target.ledger.ids()):
        if target.ledger.published(id) is not None:
            return as_of(target, id)
    return None


def _print_closing(target: Target, progress: ProgressPrinter, stopped: bool, out: Output) -> None:
    if out.json:
        return
    if not progress.checkpoints and not progress.covered_intervals:
        out.line("Stopped before any checkpoint was made." if stopped else "Nothing new: no checkpoint was needed.")
    tables = _tables(target)
    if tables:
        out.line()
        print_sinks(f"Sinks of {target.name}", tables, out)
    readable = [name for name, table in tables.items() if table["version"] is not None]
    commands: list[tuple[str, str]] = []
    for name in readable:
        commands.append((target.command("read", name, "--limit", 5), "rows"))
    published = _last_published(target)
    if published is not None and any(name.startswith(STATE) for name in published.tables):
        commands.append((target.command("state"), "the operators' state"))
    commands.append((target.command("list"), "its checkpoints"))
    if progress.checkpoints:
        last = progress.checkpoints[-1]["id"]
        commands.append((target.command("explain", last), "what happened, in words"))
    out.line()
    out.line("Look at it:")
    width = max(len(command) for command, _ in commands)
    for command, purpose in commands:
        out.line(f"  {command:<{width}}  # {purpose}")
