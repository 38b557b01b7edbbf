"""What ends a checkpoint, under Airflow and in the loop alike: decide, publish, forget.

Each step finds what was done before, so all of it can be repeated, by anyone, at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.checkpoint.coordinator import Coordinator, GiveUp, Outcome
from tidegate.checkpoint.publish import Report
from tidegate.errors import Unavailable

__all__ = ["Finished", "end_lower", "finish"]


@dataclass(frozen=True)
class Finished:
    """How a checkpoint ended, and what is on the tables since."""

    outcome: Outcome
    report: Report


def finish(
    coordinator: Coordinator,
    id: int,
    failure: tuple[str, str] | None,
    *,
    give_up: GiveUp,
    wait: Callable[[], None],
    step: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Bring checkpoint `id` to its end. `wait` is called, again and again, while those that it rests on are open."""
    step("completing")
    while (outcome := coordinator.complete(id, failure)).state == "open":
        end_lower(coordinator, id, give_up)
        wait()
    step("publishing")
    report = coordinator.publish()
    with contextlib.suppress(Unavailable):  # next time
        coordinator.retire()
    return Finished(outcome, report)


def end_lower(coordinator: Coordinator, id: int, give_up: GiveUp) -> None:
    """Several at once are decided in their order. Whoever waits for lower ones does what can be done about them."""
    for entry in coordinator.ledger.view().still_open():
        if entry.id < id and coordinator.complete(entry.id).state == "open":
            reason = give_up(entry.plan)
            if reason:
                coordinator.abort(entry.id, reason)
