"""Defects that were found by hand once, planted again: `make replay` must find each within one short life."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from tests.replay.oracle import ReplayReport
from tidegate.backfill import open_backfill
from tidegate.backfill.open_backfill import BackfillCoordinator
from tidegate.checkpoint import planning
from tidegate.records.records import Plan

__all__ = ["PLANTED", "Planted"]

Patches = Iterator[Any]

swap = import_module("tidegate.backfill.swap")
"""The module: the package has a function of this name."""


def _a_backfill_goes_by_the_clock_of_now() -> Patches:
    real = BackfillCoordinator._plan

    def plan(self: BackfillCoordinator, *given: Any) -> Plan:
        made = real(self, *given)
        return msgspec.structs.replace(made, clock=made.created)

    yield mock.patch.object(BackfillCoordinator, "_plan", plan)


def _a_swap_gives_hooks_what_they_had_at_its_origin() -> Patches:
    def states(line: Any, base: Any) -> Any:
        target = line.live.ledger.plan(line.record.origin) if line.record.origin else None
        return target.hooks if target is not None else {}

    yield mock.patch.object(swap, "_states_of_hooks", states)


def _a_swap_gives_gates_what_the_line_remembers() -> Patches:
    yield mock.patch.object(swap, "memory_key", lambda name: f"none.{name}")


def _a_person_is_asked_again_about_the_same_rows() -> Patches:
    yield mock.patch.object(open_backfill, "carried_answer", return_value=None)


def _rows_that_were_released_wait_again_in_a_backfill() -> Patches:
    yield mock.patch.object(planning, "repeat_requests", return_value={})


def _a_change_by_hand_is_lost_without_a_word() -> Patches:
    yield mock.patch.object(Plan, "is_manual_edit", property(lambda _: False))


def _a_swap_names_a_way_back_that_was_there_before() -> Patches:
    real = swap.create_undo_savepoint

    def name(ledger: Any, plan: Plan) -> str | None:
        real(ledger, plan)
        return f"before-{plan.rollback.line.name}"  # type: ignore[union-attr]

    yield mock.patch.object(swap, "create_undo_savepoint", name)


class Planted(NamedTuple):
    patches: Any
    acts: tuple[str, ...]
    """What must happen before it shows."""
    found: str
    """In what is told then."""
    seed: int = 0
    pieces: tuple[str, ...] = ("totals",)
    gates: tuple[str, ...] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield

    def is_found(self, told: ReplayReport) -> bool:
        """Return whether a life has found it."""
        return any(self.found in each for each in told.wrong)


DAYS = ("reads_a_day", "reads_a_day", "replays_all")

PLANTED = {
    "A6": Planted(_a_backfill_goes_by_the_clock_of_now, DAYS, "days differs", pieces=("days_by_the_clock",)),
    "A7": Planted(_a_swap_gives_hooks_what_they_had_at_its_origin, DAYS, "hooks get back"),
    "B4": Planted(
        _a_swap_gives_gates_what_the_line_remembers,
        ("reads_a_day", "reads_a_day", "replays_by_its_own_cuts"),
        "memory.gate.volume differs",
        gates=("volume",),
    ),
    "B5": Planted(
        _a_person_is_asked_again_about_the_same_rows, DAYS, "the line asks about its checkpoint", gates=("large",)
    ),
    "A3": Planted(
        _rows_that_were_released_wait_again_in_a_backfill,
        ("reads_a_day", "releases", "reads_a_day", "replays_all"),
        "before the swap, good differs",
        gates=("fifths",),
    ),
    "by hand": Planted(
        _a_change_by_hand_is_lost_without_a_word,
        ("reads_a_day", "replays_after_an_edit"),
        "was made by hand",
        pieces=("now_and_then",),
    ),
    "D2": Planted(
        _a_swap_names_a_way_back_that_was_there_before, ("names", "reads_a_day", "replays_all"), "the way back is"
    ),
}
"""By their numbers in the list of defects; the one by hand is of the design of backfills."""
