"""Bugs typical of backfills, planted into the real code: what a line rests on, what a swap undoes and brings, what a
discard takes. The simulation must find each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest import mock

from tests.simulation.line_storage import QuarantineByHome
from tests.simulation.planted_bugs import Plant
from tidegate import seams
from tidegate.backfill import open_backfill as line_module
from tidegate.lifecycle import retention
from tidegate.protocol import backfill as backfill_rules

Patches = Iterator[Any]

discard_module, swap_module = import_module("tidegate.backfill.discard"), import_module("tidegate.backfill.swap")


def _retain_nothing_for_lines() -> Patches:
    """Its pin spares its origin, as any pin, and nothing above."""
    yield mock.patch.object(retention, "spared_for_lines", lambda pins: None)


def _swap_below_an_open_checkpoint() -> Patches:
    real = backfill_rules.on_swap

    def on_swap(view: Any, *rest: Any) -> Any:
        decided = tuple(each for each in view.entries if each.decision is not None or each.rollback is not None)
        answer = real(replace(view, entries=decided), *rest)
        return replace(answer, id=view.last_id + 1) if isinstance(answer, swap_module.rules.CreateEntry) else answer

    yield mock.patch.object(backfill_rules, "on_swap", on_swap)


def _discard_what_a_swap_has_brought() -> Patches:
    yield mock.patch.object(discard_module, "_swapped_rows", lambda line, swapped, table: [])


def _discard_copies_that_a_swap_has_brought() -> Patches:
    real = discard_module._remove_files
    yield mock.patch.object(discard_module, "_remove_files", lambda line, swapped: real(line, None))


def _leave_the_input_where_the_pipeline_is() -> Patches:
    real = swap_module._plan

    def plan(line: Any, answer: Any, head: Any, base: Any, rollback: Any, sources: Any) -> Any:
        stands = swap_module.standing_ranges(base.plan, {}) if base is not None else sources
        return real(line, answer, head, base, rollback, stands)

    yield mock.patch.object(swap_module, "_plan", plan)


def _copy_no_states() -> Patches:
    yield mock.patch.object(swap_module, "_copy_state", lambda line, name, payload: None)


def _let_continue_what_nobody_has_seen() -> Patches:
    """Rows that a swap brings have the numbers of the line's checkpoints, which older requests were about."""

    def bring_again(self: Any, context: Any, own: Any, *, since: Any, number: int) -> Any:
        return real(self, context, own, since=since, number=1)

    real = QuarantineByHome.promote_line_quarantine
    yield mock.patch.object(QuarantineByHome, "promote_line_quarantine", bring_again)


def _cut_as_it_likes() -> Patches:
    """Recorded cuts are merged, as those of any line."""
    real = line_module.on_cut

    def on_cut(plans: Any, base: Any, **options: Any) -> Any:
        return real(plans, base, **(options | {"recorded": False}))

    yield mock.patch.object(line_module, "on_cut", on_cut)


def _go_by_the_clock_of_now() -> Patches:
    yield mock.patch.object(backfill_rules, "clock_of_replay", lambda replayed, base: seams.now().isoformat())


PLANTED_LINES = {
    "retain nothing for lines": Plant(_retain_nothing_for_lines, 60),
    "swap below an open checkpoint": Plant(_swap_below_an_open_checkpoint, 120, (14,)),
    "discard what a swap has brought": Plant(_discard_what_a_swap_has_brought, 60),
    "discard copies that a swap has brought": Plant(_discard_copies_that_a_swap_has_brought, 60),
    "leave the input where the pipeline is": Plant(_leave_the_input_where_the_pipeline_is, 60, (8,)),
    "cut as it likes": Plant(_cut_as_it_likes, 60),
    "go by the clock of now": Plant(_go_by_the_clock_of_now, 60),
    "copy no states": Plant(_copy_no_states, 60),
    "let go on what nobody has seen": Plant(_let_continue_what_nobody_has_seen, 60),
}
"""To swap in twice, or what was rolled back, or is being discarded, or has not been read, is found there too rarely:
tests/model/line_mutations.py has these."""
