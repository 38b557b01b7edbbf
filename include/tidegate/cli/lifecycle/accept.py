"""`tidegate propose accept`: after the merge, what was proposed becomes the pipeline's."""

from __future__ import annotations

import argparse

from tidegate.backfill.compare import tables_of
from tidegate.backfill.discard import discard
from tidegate.backfill.open_backfill import OpenBackfill
from tidegate.checkpoint.compatibility import check
from tidegate.cli.lifecycle import backfill
from tidegate.cli.output import Output
from tidegate.cli.prompt import user_and_host
from tidegate.cli.targets import Target
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid, Rejected
from tidegate.proposal.expiry import BY
from tidegate.proposal.policy import Limit, broken_table_limits
from tidegate.proposal.report import any_differs, code_change
from tidegate.proposal.tables import TableDifference, compare_table
from tidegate.protocol.backfill import Swapped
from tidegate.protocol.moved_sources import source_changes
from tidegate.records import typed
from tidegate.records.records import BackfillDiscarded

__all__ = ["accept"]

NO = 1


def accept(
    target: Target,
    coordinator: Coordinator,
    name: str | None,
    limits: list[Limit],
    out: Output,
    *,
    yes: bool,
) -> int:
    """Let a kept proposal catch up with the pipeline, compare again, and swap it in; or end it, if nothing differs."""
    discarded = target.ledger.line_discarded(name) if name is not None else None
    if discarded is not None:
        _refuse_expired(target, discarded)
        out.document({"pipeline": target.name, "proposal": name, "swap": None, "tables": {}})
        out.line(f"Proposal {name} is over: it was accepted, or discarded.")
        return 0
    name = _name(target, name)
    _refuse_sample(target, name)
    words = argparse.Namespace(
        name=name, origin=None, cuts=None, drop_by_hand=False, to=None, reason="", yes=yes,
        discard_commits=[], retract=[], keep=[],
    )  # fmt: skip
    line = backfill.open_requested(words, target, coordinator)
    is_swapped = isinstance(line.backfill.next_step(), Swapped)
    if is_swapped:
        return backfill.swap_in(words, target, line, [], out, is_swapped=True)
    stopped, made = backfill.replay_remaining(target, line, out)
    if stopped:
        out.line("Stopped. Run the same command to continue.", "yellow")
        return NO
    tables = {table: compare_table(line, table) for table in tables_of(line)}
    _refuse_broken(name, tables, limits)
    if not any_differs(tables) and _fits_present_state(line):
        discard(line, user_and_host())
        out.document({"pipeline": target.name, "proposal": name, "swap": None, "tables": typed.document_of(tables)})
        out.line(f"Nothing differs: the pipeline continues with this code, and proposal {name} is discarded.")
        return 0
    return backfill.swap_in(words, target, line, made, out, is_swapped=False)


def _refuse_expired(target: Target, discarded: BackfillDiscarded) -> None:
    """Raise Rejected if the proposal has expired: it would look as if it had been accepted."""
    if discarded.by == BY:
        raise Rejected(
            f"proposal {discarded.name!r} has expired: nobody had worked on it for longer than proposal_ttl, and it is "
            "removed",
            expected="a proposal that is still there",
            help=f"propose again: tidegate propose {target.text} --keep",
            reason="PROPOSAL_EXPIRED",
        )


def _name(target: Target, name: str | None) -> str:
    """Return the proposal's name: the given one, or that of the only proposal."""
    proposals = [line.name for line in target.ledger.proposals()]
    if name is None and len(proposals) == 1:
        return proposals[0]
    if name is None or name not in proposals:
        if name is None and proposals:
            problem = "has several proposals"
        else:
            problem = f"has no proposal {name or ''}".rstrip()
        raise Invalid(
            f"pipeline {target.name!r} {problem}",
            expected=" or ".join(proposals) or "a proposal that was kept",
            help="name it with --name" if proposals else f"make one: tidegate propose {target.text} --keep",
            reason="NO_SUCH_PROPOSAL",
        )
    return name


def _refuse_sample(target: Target, name: str) -> None:
    record = target.ledger.line(name)
    if record is not None and record.sample is not None:
        raise Rejected(
            f"proposal {name!r} has read only {record.sample.share:.4g} of the keys: its tables lack the others",
            expected="a proposal of all rows",
            help=f"make one: tidegate propose {target.text} --keep; to end this one: tidegate propose {target.text} "
            f"--discard {name}",
            reason="ONLY_A_SAMPLE",
        )


def _refuse_broken(name: str, tables: dict[str, TableDifference], limits: list[Limit]) -> None:
    """Raise Rejected if more differs by now than is allowed."""
    broken = broken_table_limits(tables, limits)
    if broken:
        raise Rejected(
            "\n    ".join([f"proposal {name!r} has caught up, and is not swapped in:", *broken]),
            expected="no more rows that differ than --fail-on allows",
            help="the proposal stays: propose again for a report, or leave out --fail-on",
            reason="LIMIT_BROKEN",
        )


def _fits_present_state(line: OpenBackfill) -> bool:
    """Return whether the pipeline's own state is what this code would have made, as far as the declaration tells."""
    live = line.live
    last = live.ledger.view().last_completed
    if last is None or any(check(live, last, source_changes(live.ledger.view(), last))):
        return False
    change = code_change(live)
    return not (change.parts or change.operators or change.results)
