"""Bugs in forks, copies, the end and what a day keeps, planted into the real code. The simulation must find each.

Forks and copies without their pins are found there on one day of two thousand: tests/unit/cli tells these stories.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec

from tests.simulation.planted_bugs import Plant
from tidegate.checkpoint import suspension
from tidegate.lifecycle import ages, copies, fork

Patches = Iterator[Any]


def _fork_what_the_parent_is_now() -> Patches:
    real = fork._plan

    def plan(held: Any, claimed: Any, to: Any) -> Any:
        head = held.parent.view().last_completed
        return real(replace(held, entry=replace(held.entry, plan=_moved(held.entry.plan, head.plan))), claimed, to)

    def _moved(then: Any, now: Any) -> Any:
        return msgspec.structs.replace(then, sources=now.sources)

    yield mock.patch.object(fork, "_plan", plan)


def _begin_before_the_records() -> Patches:
    """The log of a pipeline that is there already is not there yet."""
    real = fork._recorded

    def recorded(held: Any, claimed: Any, to: Any) -> Any:
        to.ledger.begin(claimed)
        return real(held, claimed, to)

    yield mock.patch.object(fork, "_recorded", recorded)


def _say_that_a_copy_is_whole_first() -> Patches:
    real = copies._put

    def put(target: Any, path: str, data: bytes) -> Any:
        return (len(data), copies.sha256(data)) if path.endswith("published.json") else real(target, path, data)

    yield mock.patch.object(copies, "_put", put)


def _continue_behind_the_end() -> Patches:
    real = suspension.suspended

    def suspended(view: Any, tolerable: int) -> Any:
        found = real(view, tolerable)
        return None if found is not None and found.action == "drain" else found

    yield mock.patch.object(suspension, "suspended", suspended)


def _plan_behind_what_may_be_the_end() -> Patches:
    def refuse(coordinator: Any, view: Any, kind: str) -> None:
        suspension.refuse_suspended(coordinator, view)

    yield mock.patch.object(suspension, "check_may_plan", refuse)


def _take_what_a_day_keeps() -> Patches:
    yield mock.patch.object(ages.Ages, "pin_days", lambda self, ledger, ids: set())


PLANTED_LIFE = {
    "fork what the parent is now": Plant(_fork_what_the_parent_is_now, 100, (8,)),
    "begin before the records": Plant(_begin_before_the_records, 100, (8,)),
    "say that a copy is whole before it is": Plant(_say_that_a_copy_is_whole_first, 100, (33,)),
    "go on behind the end": Plant(_continue_behind_the_end, 200, (135,)),
    "plan behind what may be the end": Plant(_plan_behind_what_may_be_the_end, 600, (70,)),
    "take what a day keeps": Plant(_take_what_a_day_keeps, 400, (44,)),
}
