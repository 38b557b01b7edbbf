"""At least once holds whatever the order of steps and crashes, and each rule that is broken on purpose is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.model.at_least_once import Rules, explore
from tidegate.protocol import early_input


def test_no_order_of_steps_loses_a_row_and_some_come_twice() -> None:
    found = explore(Rules())
    print(f"{found.states} states, in {found.doubled} of them something is there twice, in {found.ahead} taken ahead")
    assert not found.problem, "\n".join([found.problem, *found.story])
    assert found.states > 10_000
    assert found.doubled > found.states / 4
    assert found.ahead > 100


def _told_only(*given: Any) -> early_input.InputSelection:
    """What is there is noted as taken when the job begins, and left where it is."""
    right, entry = early_input.select_input(*given), given[0]
    return replace(right, now=tuple(each for each in right.now if each.ack.entry == entry.id))


MUTATIONS = {
    "ack what is not written": Rules(acks_unwritten=True),
    "go on behind what was aborted": Rules(rests_on_aborted=True),
    "what was taken ahead by an attempt that lost": Rules(remembers_what_lost=True),
    "what is noted as taken is not": Rules(taking=_told_only),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_is_noticed(mutation: str) -> None:
    found = explore(MUTATIONS[mutation])
    print("\n".join([f"{mutation}: {found.states} states: {found.problem}", *found.story]))
    assert found.problem
    assert len(found.story) <= 20
