"""Bugs that only a long life shows, planted into the real code: what is deleted, and who still needs it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest import mock

from tests.simulation.planted_bugs import Plant
from tidegate.execution.job import run_job
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import ages, retention
from tidegate.protocol.view import Entry
from tidegate.state.table import StateSink
from tidegate.verify import files as verify_files

Patches = Iterator[Any]


class _NextOneAndPins(retention._Remaining):
    """The next completed entry, which may lie on the line that was left; and what is pinned."""

    def entries(self, but: int) -> Iterator[Entry]:
        ledger = self._pipeline.ledger
        for id in sorted(retention._spared(ledger, ledger.pins()) - {but}):
            if (entry := self._pipeline.real_entry(id)) is not None:
                yield entry
        for id in range(but + 1, ledger.view().settled + 1):
            if (entry := self._pipeline.real_entry(id)) is not None:
                yield entry
                if entry.completed:
                    return


def _compare_with_the_next_one_and_pins() -> Patches:
    yield mock.patch.object(retention, "_Remaining", _NextOneAndPins)


def _look_once_at_what_may_go() -> Patches:
    yield mock.patch.object(retention, "_is_removable", lambda *_: True)


def _compare_states_with_the_next_one_and_pins() -> Patches:
    real = retention._clear_states

    def clear(coordinator: Any, entry: Entry, remaining: Any) -> None:
        real(coordinator, entry, _NextOneAndPins(coordinator, remaining._low))

    yield mock.patch.object(retention, "_clear_states", clear)


def _compare_side_files_with_the_next_one_and_pins() -> Patches:
    yield from _compare_with_the_next_one_and_pins()
    for name in ("_clear_states", "_clear_quarantines"):
        yield mock.patch.object(retention, name, _by_all_that_remain(getattr(retention, name)))


def _by_all_that_remain(real: Any) -> Any:
    remain = retention._Remaining
    return lambda coordinator, entry, given: real(coordinator, entry, remain(coordinator, given._low))


def _do_not_ask_what_is_pinned() -> Patches:
    real = retention._Remaining.ids
    yield mock.patch.object(retention._Remaining, "ids", lambda self, but: [id for id in real(self, but) if id > but])


def _look_last_at_what_is_settled() -> Patches:
    real = verify_files._state

    class Late(int):
        """Compared with what is settled by then."""

        ledger: Ledger

        def __ge__(self, other: int) -> bool:
            return other <= self.ledger.view().settled

    def state(target: Any, name: str, entries: Any, upto: int, *rest: Any) -> Any:
        late = Late(upto)
        late.ledger = target.ledger
        return real(target, name, entries, late, *rest)

    yield mock.patch.object(verify_files, "_state", state)


def _repair_without_asking_who_is_at_work() -> Patches:
    real = verify_files._state
    yield mock.patch.object(
        verify_files, "_state", lambda target, name, entries, upto, *rest: real(target, name, entries, 10**9, *rest)
    )


def _believe_the_stamps() -> Patches:
    """The clock of whoever decided last says what day it is."""

    def kept(self: ages.Ages, line: ages.DatedCheckpoints, id: int) -> bool:
        day = line.days.get(id) if self.per_day else None
        newest = line.ledger.decision(line.ledger.view().settled)
        if day is None or newest is None:
            return False
        if (datetime.fromisoformat(newest.created).date() - day).days > self.days:
            return False
        return sum(found == day for other, found in line.days.items() if other > id) < self.per_day

    yield mock.patch.object(ages.Ages, "_is_last_of_its_day", kept)


def _count_what_was_rolled_back() -> Patches:
    real = retention._counts
    yield mock.patch.object(retention, "_counts", lambda ledger, id, rollbacks: real(ledger, id, []))


def _take_all_that_a_retired_state_names() -> Patches:
    real = StateSink.retire_files
    yield mock.patch.object(StateSink, "retire_files", lambda self, gone, kept, context: real(self, gone, (), context))


def _let_go_of_a_rollbacks_target() -> Patches:
    yield mock.patch.object(retention, "_is_stale", lambda ledger, pin: pin.rollback is not None)


def _take_what_lies_here_for_all() -> Patches:
    """Nobody compares how many rows there were with how many have been staged."""
    yield mock.patch.object(run_job, "refuse_unaccounted", lambda *_: None)


PLANTED_YEARS = {
    "compare with the next one and pins": Plant(_compare_with_the_next_one_and_pins, 120, (29,)),
    "compare states with the next one and pins": Plant(_compare_states_with_the_next_one_and_pins, 120, (5,)),
    "compare side files with the next one and pins": Plant(_compare_side_files_with_the_next_one_and_pins, 120, (29,)),
    "look once at what may go": Plant(_look_once_at_what_may_go, 400, (43,)),
    "do not ask what is pinned": Plant(_do_not_ask_what_is_pinned, 120, (1, 2)),
    "look last at what is settled": Plant(_look_last_at_what_is_settled, 120, (19,)),
    "repair without asking who is at work": Plant(_repair_without_asking_who_is_at_work, 120, (8, 17)),
    "believe the stamps": Plant(_believe_the_stamps, 120),
    "count what was rolled back": Plant(_count_what_was_rolled_back, 120, (5,)),
    "take all that a retired state names": Plant(_take_all_that_a_retired_state_names, 120),
    "let go of a rollback's target": Plant(_let_go_of_a_rollbacks_target, 120),
    "take what lies here for all": Plant(_take_what_lies_here_for_all, 120),
}
"""Files of quarantines that are compared with the next one and pins, and a day that keeps what is claimed already, need
more than chance: tests/unit/test_planted_defects.py."""
