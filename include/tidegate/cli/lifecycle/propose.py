"""`tidegate propose`: what changed code would make of recorded input, compared with the tables, before it is merged."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tidegate.backfill.discard import discard_named
from tidegate.cli.inspect.read import row_limit
from tidegate.cli.lifecycle.accept import accept
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.prompt import user_and_host
from tidegate.cli.running.interrupts import Interrupts
from tidegate.cli.running.progress import progress_for
from tidegate.cli.running.run import count as whole_number
from tidegate.cli.running.run import refuse_submit
from tidegate.cli.targets import Target, open_target
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected
from tidegate.execution.loop import Schedule
from tidegate.history.promises import age_text
from tidegate.pipeline.private import private_columns
from tidegate.proposal.code_lines import changed_lines
from tidegate.proposal.expiry import discard_expired, idle_seconds, lifetime
from tidegate.proposal.kept import LAST, find_report, since, store_report
from tidegate.proposal.markdown import to_markdown
from tidegate.proposal.policy import FORMS, Limit, broken_limits, parse_limit
from tidegate.proposal.pushes import (
    LastPush,
    carry_over,
    choose_sinks,
    find_last_push,
    hash_paths,
    only_sinks,
    repeat_report,
    store_push,
)
from tidegate.proposal.replay import ReplayRange, choose_range, impossible, opened, whole_history
from tidegate.proposal.replay import run as replay
from tidegate.proposal.report import ProposalReport, make_report, refused_report
from tidegate.proposal.sampling import choose_sample
from tidegate.records import typed
from tidegate.records.records import KeySample
from tidegate.spark.server.priority import lowest_priority
from tidegate.spark.session import reused_session

__all__ = ["add_parser", "run"]

NO = 1
OVER = 5


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "propose",
        help="what changed code would do to the tables: a report for its review",
        description="Replay the input of the last checkpoints with today's code, from their recorded state, into "
        "hidden tables, and compare the result with what the pipeline has made: code, schemas, rows by key and "
        "column, gates, quarantine, late rows, state and cost, and what the pipeline does if the code is merged. The "
        "pipeline is not touched, and everything hidden is removed at the end. `accept`: after the merge, let a "
        "proposal that was kept catch up, compare again, and swap it in, or end it if nothing differs. `list`: those "
        "that are there, the longest unused first, and when each expires.",
        epilog="examples:\n  tidegate propose jobs.orders:pipeline\n"
        "  tidegate propose jobs.orders:pipeline --over 24 --into report.md --fail-on 'rows > 0.1 %' --fail-on gate\n"
        "  tidegate propose jobs.orders:pipeline --from 2026-03-01 --examples 20 --json\n"
        "  tidegate propose jobs.orders:pipeline --from beginning --sample 0.1 by key\n"
        "  tidegate propose accept jobs.orders:pipeline --yes\n"
        "  tidegate propose list jobs.orders:pipeline",
    )
    parser.add_argument(
        "words",
        metavar="[accept | list] MODULE:PIPELINE",
        nargs="+",
        help="the pipeline's changed code; with `accept`, the code that was merged; with `list`, any",
    )
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument(
        "--over", type=whole_number, metavar="N", help=f"replay the last N checkpoints that are retained ({OVER})"
    )
    begins.add_argument(
        "--from",
        dest="origin",
        metavar="WHEN",
        help="or those after this checkpoint: a number, a savepoint's name, a time (UTC), or 'beginning'",
    )
    parser.add_argument("--to", metavar="WHEN", help="and up to this checkpoint (the last one)")
    parser.add_argument(
        "--sample",
        nargs=3,
        metavar=("SHARE", "by", "COLUMN"),
        help="replay and compare only the rows of a share of the values of a column, such as 0.1 by country; `by key` "
        "chooses the column. Refused where rows of other values have an effect on them",
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the report to this file, as Markdown")
    parser.add_argument(
        "--examples",
        type=row_limit,
        default=0,
        metavar="K",
        help="show at most K rows of each table that differ (0: no row is in the report)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help=f"exit with 1 if this is exceeded: {FORMS.replace('%', '%%')}; as often as needed. Code with which the "
        "pipeline does not continue always exits with 1",
    )
    parser.add_argument(
        "--label",
        metavar="LABEL",
        help="remember the report for the next push of, for instance, a pull request (pr-12): that replays the same "
        "checkpoints, tells what has changed since, and leaves out the tables on whose path nothing has changed. With "
        "--keep or a limit on cost, none is left out",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="with accept: the proposal; without it the only one, or that of this very code"
    )
    parser.add_argument("--yes", action="store_true", help="with accept: do not ask")
    parser.add_argument(
        "--if-proposed",
        action="store_true",
        help="with accept, for a deployment: do nothing unless a proposal was made by this very code",
    )
    parser.add_argument("--keep", action="store_true", help="keep the hidden tables, to swap them in after the merge")
    parser.add_argument(
        "--compare-with",
        metavar="NAME",
        help=f"also tell what has changed since this kept proposal, such as that of the last push ({LAST}: the newest)",
    )
    parser.add_argument(
        "--against",
        metavar="VERSION",
        help="also name the lines of the pipeline's parts that differ from this version of the code in git, such as "
        "origin/main, and the tables that they lead to",
    )
    parser.add_argument("--discard", metavar="NAME", help="remove a proposal that was kept, or left by a crash")


def run(args: argparse.Namespace, out: Output) -> int:
    *act, text = args.words
    if act not in ([], ["accept"], ["list"]):
        raise Invalid(
            f"{' '.join(args.words)!r} is not what `tidegate propose` takes",
            expected="MODULE:PIPELINE, accept MODULE:PIPELINE, or list MODULE:PIPELINE",
            help="`tidegate propose --help` shows examples",
            reason="USAGE",
        )
    target = open_target(text, args.settings)
    coordinator = coordinator_of(target)
    if args.discard is not None:
        return _discard(target, coordinator, args.discard, out)
    if act == ["list"]:
        return _list(target, coordinator, out)
    limits = [parse_limit(text) for text in args.fail_on]
    if act:  # first, so that the proposal that is accepted does not expire
        refuse_submit(target.settings)
        return accept(target, coordinator, args.name, limits, out, yes=args.yes, if_proposed=args.if_proposed)
    if target.settings.proposal_ttl is not None:
        target.ledger.delete_old_pushes(lifetime(target.settings.proposal_ttl))
    for name in discard_expired(coordinator, target.settings.proposal_ttl):
        out.line(f"Proposal {name} has expired, and is removed.", "dim")
    _refuse_into(args.into)
    refuse_submit(target.settings)
    over = args.over or (None if args.origin is not None else OVER)
    earlier = find_report(target.ledger, args.compare_with) if args.compare_with is not None else None
    sample = _sample(args.sample, limits, coordinator)
    lines = changed_lines(coordinator.graph, Path.cwd(), args.against) if args.against is not None else []
    request = (args.over, args.origin, args.to, " ".join(args.sample or ()) or None)
    hashes, push = {}, None
    if args.label is not None:
        hidden = private_columns(coordinator.graph, target.settings.sample_hidden)
        hashes = hash_paths(coordinator, hidden, args.examples)
        push = find_last_push(target.ledger, args.label, request, hashes)
    if push is not None and push.replayed is not None and not impossible(coordinator, push.replayed, keep=args.keep):
        chosen = push.replayed
    else:
        chosen = choose_range(target.ledger, over=over, origin=args.origin, end=args.to)
    if push is not None:
        earlier = earlier or (push.label, push.created, push.report)
        if args.keep or any(limit.what == "cost" for limit in limits):  # that needs everything
            push = replace(push, unchanged=())
    _print_open_proposals(target, out)
    with lowest_priority():
        report, kept = _report(args, target, coordinator, chosen, sample, out, push)
    report = msgspec.structs.replace(
        report,
        code=msgspec.structs.replace(report.code, lines=lines),
        broken_limits=broken_limits(report, limits),
        since=since(earlier, report) if earlier is not None else None,
    )
    if kept is not None:
        store_report(target.ledger, kept, report)
    if args.label is not None:
        store_push(target.ledger, args.label, request, report, hashes)
    text = to_markdown(report)
    if args.into is not None:
        args.into.write_text(text, encoding="utf-8")
        out.line(f"The report is in {args.into}.", "dim")
    out.document(typed.document_of(report))
    if not out.json and args.into is None:
        out.line(text)
    is_refused = report.merge.action == "refused" or bool(report.stopped)
    return NO if is_refused or report.broken_limits else 0


def _report(
    args: argparse.Namespace,
    target: Target,
    coordinator: Coordinator,
    chosen: ReplayRange,
    sample: KeySample | None,
    out: Output,
    push: LastPush | None,
) -> tuple[ProposalReport, str | None]:
    """Return the report, and the proposal's name if it is kept."""
    problems = impossible(coordinator, chosen, keep=args.keep)
    everything = whole_history(target.ledger) if problems and args.origin is None and args.to is None else None
    if everything is not None and not impossible(coordinator, everything, keep=args.keep):
        # State that this code cannot continue is computed again, too.
        out.line("The recorded state does not fit this code: everything is replayed, from the beginning.", "dim")
        chosen, problems = everything, []
    if problems:
        return refused_report(coordinator, chosen, problems, command=target.text), None
    played = coordinator
    if push is not None and (not push.unchanged or push.replayed != chosen):
        push = None  # nothing of it can be carried over
    if push is not None:
        sinks = choose_sinks(coordinator.graph, push.unchanged)
        if not sinks:
            return repeat_report(coordinator, push, command=target.text), None
        played = only_sinks(coordinator, replace(target.settings, allow_non_restored_state=True), sinks)
    progress, sessions = progress_for(out), reused_session(target.settings, aside=True)
    notice = None if out.terminal else out.err_fd
    schedule = Schedule(tolerable_failures=0)
    by, note = user_and_host(), "tidegate propose"
    with opened(played, chosen, by=by, note=note, keep=args.keep, sample=sample) as line:
        with Interrupts(progress.stopping, sessions.cancel, notice) as interrupts, progress, sessions:
            sessions.opened = interrupts.install
            schedule.stop = interrupts
            made = replay(line, sessions, schedule, progress)
            if interrupts():
                raise Rejected(
                    "stopped before the report: nothing was changed",
                    expected="all checkpoints to be replayed",
                    help="run it again, with a smaller --over if it takes too long",
                    reason="STOPPED_BY_HAND",
                )
        if args.keep:
            out.line(f"Kept as {line.name}. To remove it: tidegate propose {target.text} --discard {line.name}", "dim")
        if args.keep and made.stopped is None and sample is None:
            out.line(f"After the merge:  tidegate propose accept {target.text} --name {line.name}", "dim")
        report = make_report(
            line,
            chosen,
            made,
            live=coordinator,
            command=target.text,
            examples=args.examples,
            hidden=private_columns(coordinator.graph, target.settings.sample_hidden),
        )
        if push is not None:
            report = carry_over(coordinator, report, push, played, command=target.text)
        return report, line.name if args.keep else None


def _sample(words: list[str] | None, limits: list[Limit], coordinator: Coordinator) -> KeySample | None:
    """Return the requested sample. Raise Invalid for limits about which a sample tells nothing."""
    if words is None:
        return None
    share, by, column = words
    if by != "by":
        raise Invalid(
            f"--sample {' '.join(words)} is not a sample",
            expected="a share and a column, such as --sample 0.1 by country, or --sample 0.1 by key",
            help="`tidegate propose --help` shows examples",
            reason="BAD_SAMPLE",
        )
    untold = [limit.text for limit in limits if limit.what in ("gate", "cost") or (limit.most and limit.unit == "")]
    if untold:
        raise Invalid(
            f"a sample does not tell whether a limit is kept: --fail-on {', '.join(map(repr, untold))}",
            expected='with --sample, limits such as rows, "rows > 0.1 %" or schema',
            help="leave out these limits, or --sample",
            reason="BAD_LIMIT",
        )
    return choose_sample(coordinator, share, column)


def _print_open_proposals(target: Target, out: Output) -> None:
    for line in target.ledger.proposals():
        out.line(
            f"Proposal {line.name} of {line.created} by {line.by} is open. If nothing works on it any more: "
            f"tidegate propose {target.text} --discard {line.name}",
            "dim",
        )


def _list(target: Target, coordinator: Coordinator, out: Output) -> int:
    """List the proposals, the longest unused first."""
    ttl = target.settings.proposal_ttl
    proposals: list[dict[str, Any]] = []
    for line in target.ledger.proposals():
        reported = target.ledger.proposal_reported(line.name)
        idle = idle_seconds(coordinator, line.name)
        proposals.append(
            {
                "name": line.name,
                "by": line.by,
                "created": line.created,
                "begins_after": line.origin,
                "merge": reported.report["merge"]["action"] if reported is not None else None,
                "unused_seconds": round(idle),
                "expires_in_seconds": round(max(lifetime(ttl) - idle, 0.0)) if ttl is not None else None,
            }
        )
    proposals.sort(key=lambda each: (-each["unused_seconds"], each["name"]))
    out.document({"pipeline": target.name, "proposals": proposals})
    heads = ["proposal", "by", "begun", "begins after", "if merged", "unused for", "expires in"]
    out.table(heads, [_listed(each) for each in proposals], right=["begins after", "unused for", "expires in"])
    if not proposals:
        out.line(f"{target.name} has no proposal.")
    return 0


def _listed(proposal: dict[str, Any]) -> list[Any]:
    left = proposal["expires_in_seconds"]
    return [
        proposal["name"],
        proposal["by"],
        proposal["created"],
        proposal["begins_after"] or "the beginning",
        proposal["merge"] or "no report",
        age_text(proposal["unused_seconds"]),
        "never" if left is None else age_text(left),
    ]


def _discard(target: Target, coordinator: Coordinator, name: str, out: Output) -> int:
    record = target.ledger.line(name)
    if record is not None and record.purpose != "proposal":
        raise Rejected(
            f"{name!r} of pipeline {target.name!r} is a backfill, not a proposal",
            expected="the name of a proposal",
            help=f"to end the backfill: tidegate backfill {target.text} --discard {name}",
            reason="NOT_A_PROPOSAL",
        )
    discard_named(coordinator, name, user_and_host())
    out.document({"pipeline": target.name, "proposal": name, "discarded": True})
    out.line(f"Proposal {name} is discarded.")
    return 0


def _refuse_into(path: Path | None) -> None:
    """Raise Invalid now, not after the replay, if the report cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise Invalid(
            f"--into {path}: no file can be written there",
            expected="a file in a folder that exists and is writable",
            help="name another file",
            reason="BAD_FILE",
        )
