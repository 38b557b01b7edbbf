"""`tidegate propose accept`: after the merge, what was proposed becomes the pipeline's."""

from __future__ import annotations

import argparse

from tidegate.backfill.discard import discard
from tidegate.cli.lifecycle import backfill
from tidegate.cli.output import Output
from tidegate.cli.prompt import user_and_host
from tidegate.cli.targets import Target
from tidegate.coordinator import Coordinator
from tidegate.proposal.acceptance import (
    choose_proposal,
    compare_again,
    decide,
    find_proposals_of_this_code,
    refuse_broken,
    refuse_expired,
    refuse_impossible,
)
from tidegate.proposal.expiry import BY
from tidegate.proposal.policy import Limit
from tidegate.protocol.backfill import Swapped
from tidegate.records import typed

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
    if_proposed: bool = False,
) -> int:
    """Let a kept proposal catch up with the pipeline, compare again, and swap it in; or end it, if nothing differs.

    if_proposed: for the hook of a deployment, which does nothing unless this very code was proposed. Of several such
    proposals it accepts the newest.
    """
    refuse_impossible(target.ledger, None, limits, target.text)
    discarded = target.ledger.line_discarded(name) if name is not None else None
    if if_proposed and (discarded is None or discarded.by == BY):
        ours = [line.name for line in find_proposals_of_this_code(coordinator) if name in (None, line.name)]
        if not ours:
            out.document({"pipeline": target.name, "proposal": None, "swap": None, "tables": {}})
            named = f" {name}" if name is not None else ""
            out.line(f"{target.name} has no proposal{named} that this code has made and kept: nothing to accept.")
            return 0
        name = ours[-1]
    elif discarded is not None:
        refuse_expired(discarded, target.text)
        out.document({"pipeline": target.name, "proposal": name, "swap": None, "tables": {}})
        out.line(f"Proposal {name} is over: it was accepted, or discarded.")
        return 0
    name = choose_proposal(coordinator, name, target.text)
    refuse_impossible(target.ledger, name, limits, target.text)
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

    def read_rest() -> None:
        stopped, more = backfill.replay_remaining(target, line, out, hold=True)
        made.extend(more)
        if stopped:
            raise backfill.stopped_by_hand()

    tables, ends = decide(line, limits, read_rest)
    if ends:
        discard(line, user_and_host())
        out.document({"pipeline": target.name, "proposal": name, "swap": None, "tables": typed.document_of(tables)})
        out.line(f"Nothing differs: the pipeline continues with this code, and proposal {name} is discarded.")
        return 0

    def compare_the_rest() -> None:
        """While the pipeline waits, for it may have made a checkpoint since the comparison."""
        if limits:
            refuse_broken(name, compare_again(line), limits)

    return backfill.swap_in(words, target, line, made, out, is_swapped=False, last_look=compare_the_rest)
