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
    changes_nothing,
    choose_proposal,
    compare_again,
    made_by_this_code,
    refuse_broken,
    refuse_expired,
    refuse_sample,
    refuse_unheard,
)
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

    if_proposed: for the hook of a deployment, which does nothing unless this very code was proposed.
    """
    refuse_unheard(limits)
    if if_proposed and name is None and not made_by_this_code(coordinator):
        out.document({"pipeline": target.name, "proposal": None, "swap": None, "tables": {}})
        out.line(f"{target.name} has no proposal that this code has made: nothing to accept.")
        return 0
    discarded = target.ledger.line_discarded(name) if name is not None else None
    if discarded is not None:
        refuse_expired(discarded, target.text)
        out.document({"pipeline": target.name, "proposal": name, "swap": None, "tables": {}})
        out.line(f"Proposal {name} is over: it was accepted, or discarded.")
        return 0
    name = choose_proposal(coordinator, name, target.text)
    refuse_sample(target.ledger, name, target.text)
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
    tables = compare_again(line)
    refuse_broken(name, tables, limits)
    if changes_nothing(line, tables):
        discard(line, user_and_host())
        out.document({"pipeline": target.name, "proposal": name, "swap": None, "tables": typed.document_of(tables)})
        out.line(f"Nothing differs: the pipeline continues with this code, and proposal {name} is discarded.")
        return 0

    def compare_the_rest() -> None:
        """While the pipeline waits, for it may have made a checkpoint since the comparison."""
        if limits:
            refuse_broken(name, compare_again(line), limits)

    return backfill.swap_in(words, target, line, made, out, is_swapped=False, last_look=compare_the_rest)
