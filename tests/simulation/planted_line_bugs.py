"""Bugs typical of backfills, planted into the real code: what a line rests on, what a swap undoes and brings, what a
discard takes. The simulation must find each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest import mock

import msgspec

from tests.simulation.line_storage import QuarantineByHome
from tests.simulation.planted_bugs import Plant
from tidegate.backfill import line as line_module
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import retention
from tidegate.protocol import lines

Patches = Iterator[Any]

discard_module, swap_module = import_module("tidegate.backfill.discard"), import_module("tidegate.backfill.swap")


def _retain_nothing_for_lines() -> Patches:
    """Its pin spares its origin, as any pin, and nothing above."""
    yield mock.patch.object(retention, "spared_for_lines", lambda pins: None)


def _swap_below_an_open_checkpoint() -> Patches:
    real = lines.on_swap

    def on_swap(view: Any, *rest: Any) -> Any:
        decided = tuple(each for each in view.entries if each.decision is not None or each.rollback is not None)
        answer = real(replace(view, entries=decided), *rest)
        return replace(answer, id=view.last_id + 1) if isinstance(answer, swap_module.rules.CreateEntry) else answer

    yield mock.patch.object(lines, "on_swap", on_swap)


def _discard_what_a_swap_has_brought() -> Patches:
    yield mock.patch.object(discard_module, "_brought", lambda line, swapped, table: [])


def _discard_copies_that_a_swap_has_brought() -> Patches:
    real = discard_module._remove_files
    yield mock.patch.object(discard_module, "_remove_files", lambda line, swapped: real(line, None))


def _swap_in_what_is_being_discarded() -> Patches:
    """It looks for the tombstone before it creates its entry, and not after."""
    real = Ledger.line_discarded

    def discarded(self: Ledger, name: str) -> Any:
        return None if sys._getframe(1).f_code.co_name == "_create" else real(self, name)

    yield mock.patch.object(Ledger, "line_discarded", discarded)
    yield mock.patch.object(lines, "on_discard", lambda view, run: lines.RemoveLine(_decided(view, run)))


def _decided(view: Any, run: str) -> int | None:
    own = lines.own_entry(view, run)
    return own if own is not None and not lines._is_open(view, own) else None


def _swap_in_again() -> Patches:
    """Whatever has become of the first swap."""
    real = lines.on_replay
    none = replace_own(real)
    yield mock.patch.object(lines, "on_replay", none)
    yield mock.patch.object(line_module, "on_replay", none)


def replace_own(real: Any) -> Any:
    """The rule without the look for an entry of its own."""
    return lambda view, line, *rest: real(view, replace(line, run=f"not {line.run}"), *rest)


def _do_not_compare_positions() -> Patches:
    yield mock.patch.object(swap_module, "_uncovered", lambda line, proposal: iter(()))


def _swap_in_what_was_rolled_back() -> Patches:
    yield mock.patch.object(lines, "rolled_back_by", lambda id, rollbacks: None)


def _leave_the_input_where_the_pipeline_is() -> Patches:
    real = swap_module._plan

    def plan(line: Any, answer: Any, head: Any, rollback: Any, sources: Any) -> Any:
        base = line.live.ledger.plan(answer.base)
        return real(line, answer, head, rollback, swap_module.standing_ranges(base, {}) if base else sources)

    yield mock.patch.object(swap_module, "_plan", plan)


def _copy_no_states() -> Patches:
    yield mock.patch.object(swap_module, "_copy_state", lambda line, name, payload: None)


def _let_go_on_what_nobody_has_seen() -> Patches:
    """Rows that a swap brings have the numbers of the line's checkpoints, which older requests were about."""

    def bring_again(self: Any, context: Any, own: Any, *, since: Any, number: int) -> Any:
        return real(self, context, own, since=since, number=1)

    real = QuarantineByHome.bring_again
    yield mock.patch.object(QuarantineByHome, "bring_again", bring_again)


def _lift_every_suspension() -> Patches:
    real = swap_module._plan

    def plan(line: Any, answer: Any, head: Any, rollback: Any, sources: Any) -> Any:
        return real(line, answer, head, msgspec.structs.replace(rollback, suspended=None), sources)

    yield mock.patch.object(swap_module, "_plan", plan)


PLANTED_LINES = {
    "retain nothing for lines": Plant(_retain_nothing_for_lines, 120),
    "swap below an open checkpoint": Plant(_swap_below_an_open_checkpoint, 120),
    "discard what a swap has brought": Plant(_discard_what_a_swap_has_brought, 120),
    "discard copies that a swap has brought": Plant(_discard_copies_that_a_swap_has_brought, 120),
    "swap in what is being discarded": Plant(_swap_in_what_is_being_discarded, 120),
    "swap in again": Plant(_swap_in_again, 120),
    "do not compare positions": Plant(_do_not_compare_positions, 120),
    "swap in what was rolled back": Plant(_swap_in_what_was_rolled_back, 120),
    "leave the input where the pipeline is": Plant(_leave_the_input_where_the_pipeline_is, 120),
    "copy no states": Plant(_copy_no_states, 120),
    "let go on what nobody has seen": Plant(_let_go_on_what_nobody_has_seen, 120),
    "lift every suspension": Plant(_lift_every_suspension, 120),
}
