"""Overtaking holds whatever the order of steps, and each rule that is broken on purpose is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import pytest

from tests.model.overtaking import SLOW, Rules, State, explore, progress_made
from tidegate.protocol import progress
from tidegate.protocol.progress import JobProgress, job_progress
from tidegate.protocol.view import Acked, Entry
from tidegate.records.records import InFlight

WORLDS = {
    "three checkpoints, two open": (Rules(), 1_000),
    "all three open": (Rules(max_open=3), 1_000),
    "the second is to be aligned": (Rules(forced=(2,), max_open=3), 1_000),
    "the last is to be aligned": (Rules(forced=(3,), max_open=3), 1_000),
}


@pytest.mark.parametrize("world", WORLDS)
def test_no_order_of_steps_loses_or_doubles_a_row(world: str) -> None:
    rules, at_least = WORLDS[world]
    states, problem, story = explore(rules)
    print(f"{world}: {states} states")
    assert not problem, "\n".join([problem, *story])
    assert states >= at_least


def _newest(line: Sequence[Entry]) -> JobProgress:
    """The newest ack counts, wherever it continues from."""
    right = job_progress(line)
    newest = next((entry.acks[SLOW] for entry in line if SLOW in entry.acks), None)
    if newest is None or right.chosen.get(SLOW) == newest.handle:
        return right
    sent = [each for each in right.in_flight.get(SLOW, ()) if each.ack.entry > newest.handle.entry]
    return JobProgress(
        {**right.chosen, SLOW: newest.handle}, {**right.chains, SLOW: (newest,)}, {SLOW: tuple(sent)} if sent else {}
    )


def _with_what_was_aborted(state: State, id: int) -> tuple[int, ...]:
    """All entries below, whether or not the first rests on them."""
    base = state.log[id - 1].base
    return tuple(dict.fromkeys(each for each in (id, base, *range(id - 1, 0, -1)) if each))


def _whatever_it_has_taken(line: Sequence[Entry]) -> JobProgress:
    """An ack counts, whatever became of what it has taken."""

    def left(chain: Sequence[Acked], sent: Sequence[InFlight]) -> list[InFlight]:
        taken = [handle for acked in chain for handles in acked.ack.inputs.values() for handle in handles]
        return [each for each in sent if each.ack not in taken]

    with mock.patch.object(progress, "_unread_after", left):
        return job_progress(line)


MUTATIONS = {
    "newest ack": replace(Rules(), progress_of=_newest),
    "ack on aborted ids": replace(Rules(), line=_with_what_was_aborted, progress_of=_whatever_it_has_taken),
    "committables of the last ack only": replace(Rules(max_open=3), published=lambda chain: chain[-1:]),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_is_noticed(mutation: str) -> None:
    states, problem, story = explore(MUTATIONS[mutation])
    print("\n".join([f"{mutation}: {states} states: {problem}", *story]))
    assert problem
    assert len(story) <= 30


def test_a_job_that_is_always_overtaken_still_comes_forward() -> None:
    assert progress_made(Rules(max_ids=4))
    assert not progress_made(Rules(max_ids=4, keeps_late=False)), "if late acks were let go of, it never would"
