"""After the merge, what was proposed becomes the pipeline's: by the command, a page or the hook of a deployment.

The proposal catches up with the pipeline and is compared again. If nothing differs, it ends and the pipeline continues;
otherwise it is swapped in like a backfill, unless more differs than was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.backfill.compare import tables_of
from tidegate.backfill.open_backfill import open_line
from tidegate.backfill.swap import release_pipeline, released_on_failure
from tidegate.checkpoint.compatibility import check
from tidegate.errors import Invalid, Rejected
from tidegate.proposal.expiry import BY
from tidegate.proposal.kept import list_kept_proposals
from tidegate.proposal.policy import Limit, broken_table_limits
from tidegate.proposal.report import any_differs, code_change
from tidegate.proposal.tables import TableDifference, compare_table
from tidegate.protocol.moved_sources import source_changes

if TYPE_CHECKING:
    from tidegate.backfill.open_backfill import OpenBackfill
    from tidegate.coordinator import Coordinator
    from tidegate.ledger.ledger import Ledger
    from tidegate.records.records import BackfillDiscarded, BackfillRecord

__all__ = [
    "changes_nothing",
    "choose_proposal",
    "compare_again",
    "decide",
    "find_proposals_of_this_code",
    "refuse_broken",
    "refuse_expired",
    "refuse_impossible",
]


def choose_proposal(live: Coordinator, name: str | None, command: str) -> str:
    """Return the name of the proposal to accept, which somebody has kept: the given one, the only one, or the only one
    that was made by this code."""
    proposals = list_kept_proposals(live.ledger)
    if name is not None:
        refuse_unkept(live.ledger, name, command)
    names = [line.name for line in proposals]
    if name is not None and name in names:
        return name
    candidates = proposals
    if name is None and len(proposals) > 1:
        candidates = find_proposals_of_this_code(live)
    if name is None and len(candidates) == 1:
        return candidates[0].name
    pipeline = live.ledger.pipeline
    if name is not None or not proposals:
        problem = f"has no proposal {name or 'that was kept'}"
    elif not candidates:
        problem = "has several proposals, and none was made by this code"
    else:
        problem = "has several proposals"
    raise Invalid(
        f"pipeline {pipeline!r} {problem}",
        expected=" or ".join(line.name for line in candidates or proposals) or "a proposal that was kept",
        help="name it with --name" if names else f"make one: tidegate propose {command} --keep",
        reason="NO_SUCH_PROPOSAL",
    )


def find_proposals_of_this_code(live: Coordinator) -> list[BackfillRecord]:
    """Return the kept proposals of all rows whose checkpoints were made by today's code, the oldest first."""
    whole = [line for line in list_kept_proposals(live.ledger) if line.sample is None]
    return [line for line in whole if _is_of_this_code(live, line)]


def _is_of_this_code(live: Coordinator, record: BackfillRecord) -> bool:
    line = open_line(live, record)
    return line.head() is not None and line.other_code() is None


def refuse_expired(discarded: BackfillDiscarded, command: str) -> None:
    """Raise Rejected if the proposal has expired: it would look as if it had been accepted."""
    if discarded.by == BY:
        raise Rejected(
            f"proposal {discarded.name!r} has expired: nobody had worked on it for longer than proposal_ttl, and it is "
            "removed",
            expected="a proposal that is still there",
            help=f"propose again: tidegate propose {command} --keep",
            reason="PROPOSAL_EXPIRED",
        )


def refuse_unkept(ledger: Ledger, name: str, command: str) -> None:
    """Raise Rejected if nobody has kept the proposal: its maker still works on it and removes it, or was killed."""
    record = ledger.line(name)
    if record is None or record.purpose != "proposal" or ledger.line_discarded(name) is not None:
        return
    if ledger.proposal_reported(name) is None:
        raise Rejected(
            f"proposal {name!r} was not kept: it is still being made, or its process ended before its report",
            expected="a proposal that was made with --keep, and has a report",
            help=f"make one: tidegate propose {command} --keep; if nothing works on this one any more: tidegate "
            f"propose {command} --discard {name}",
            reason="PROPOSAL_NOT_KEPT",
        )


def refuse_sample(ledger: Ledger, name: str, command: str) -> None:
    """Raise Rejected if the proposal has read only a sample."""
    record = ledger.line(name)
    if record is not None and record.sample is not None:
        raise Rejected(
            f"proposal {name!r} has read only {record.sample.share:.4g} of the keys: its tables lack the others",
            expected="a proposal of all rows",
            help=f"make one: tidegate propose {command} --keep; to end this one: tidegate propose {command} "
            f"--discard {name}",
            reason="ONLY_A_SAMPLE",
        )


def refuse_impossible(ledger: Ledger, name: str | None, limits: Sequence[Limit], command: str) -> None:
    """Refuse an acceptance, or any swap, that cannot be carried out, before anything is computed for it.

    name: None if it is not known yet, so that only the limits are checked.
    """
    refuse_unheard(limits)
    if name is not None:
        refuse_unkept(ledger, name, command)
        refuse_sample(ledger, name, command)


def compare_again(line: OpenBackfill) -> dict[str, TableDifference]:
    """Compare all tables of a proposal that has caught up with what the pipeline has made by now."""
    return {table: compare_table(line, table) for table in tables_of(line)}


def refuse_unheard(limits: Sequence[Limit]) -> None:
    """Raise Invalid for limits on which an acceptance does not decide: it only compares tables again."""
    unheard = [limit.text for limit in limits if limit.what not in ("rows", "schema")]
    if unheard:
        raise Invalid(
            f"an acceptance does not look at {', '.join(map(repr, unheard))} again: it compares tables",
            expected='limits on rows or columns, such as rows, "rows > 0.1 %" or schema',
            help="leave out these limits: they belong to the proposal's report",
            reason="BAD_LIMIT",
        )


def refuse_broken(name: str, tables: Mapping[str, TableDifference], limits: Sequence[Limit]) -> None:
    """Raise Rejected if more differs by now than is allowed."""
    broken = broken_table_limits(tables, limits)
    if broken:
        raise Rejected(
            "\n    ".join([f"proposal {name!r} has caught up, and is not swapped in:", *broken]),
            expected="no more rows that differ than its limits allow",
            help="nothing has changed, and the proposal stays: propose again for a report, or accept it without limits",
            reason="LIMIT_BROKEN",
        )


def decide(
    line: OpenBackfill, limits: Sequence[Limit], read_rest: Callable[[], None]
) -> tuple[dict[str, TableDifference], bool]:
    """Compare a proposal that has caught up. Return what differs, and whether it ends, because nothing does.

    Raise Rejected if more differs than is allowed. read_rest: pauses the pipeline, and reads the rest. It is called if
    the pipeline has moved on during the comparison and the decision depends on that. The pipeline waits until the
    proposal that ends is discarded.
    """
    with released_on_failure(line):
        tables = compare_again(line)
        # If it is swapped in, the pipeline waits for that, and no rest is missed.
        is_final = changes_nothing(line, tables) or bool(broken_table_limits(tables, limits))
        has_all = line.has_caught_up()
        if is_final and not has_all:
            read_rest()
            tables = compare_again(line)
            has_all = line.has_caught_up()
        refuse_broken(line.name, tables, limits)
        ends = has_all and changes_nothing(line, tables)
        if is_final and not ends:  # whoever is asked about the swap may take long
            release_pipeline(line, "something differs by now")
    return tables, ends


def changes_nothing(line: OpenBackfill, tables: Mapping[str, TableDifference]) -> bool:
    """Return whether the pipeline continues as it is, without a swap: no row differs, and its own state is what this
    code would have made, as far as the declaration tells."""
    return line.other_code() is None and not any_differs(tables) and _fits_present_state(line)


def _fits_present_state(line: OpenBackfill) -> bool:
    live = line.live
    last = live.ledger.view().last_completed
    if last is None or any(check(live, last, source_changes(live.ledger.view(), last))):
        return False
    change = code_change(live)
    return not (change.parts or change.operators or change.results)
