"""A name, or a rollback, and retention at the same moment: at every access of one, the other comes in between.

Whatever the moment: either the checkpoint stays, and all that it names; or whoever wanted it is told so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.simulation.day import Day
from tests.simulation.planted_bugs import name_without_looking_for_the_tombstone
from tests.simulation.preemption import at, begun, told
from tidegate.errors import Unavailable
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import savepoint


def named(day: Day, said: list[str]) -> Callable[[], object]:
    return lambda: said.append(told(lambda: savepoint.create(Ledger(day.disk, "day"), "good", 2, "x")))


def back(day: Day, said: list[str]) -> Callable[[], object]:
    return lambda: said.append(told(lambda: day.coordinator().roll_back(2, run="back", by="x")))


def stays(day: Day, said: list[str]) -> None:
    """Promised is promised."""
    for run in "de":
        day.checkpoint(run)
        day.coordinator().retire()
    entry = Ledger(day.disk, "day").entry(2)
    if said == [""]:
        assert entry is not None
        for part in entry.plan.sources.values():
            assert Ledger(day.disk, "day").unpack(part.splits)
    else:
        assert said[0] in ("RETIRED", "NO_SUCH_CHECKPOINT")
    live = day.tables["out"].live()
    assert sorted(offset for name in live for offset, _ in day.tables["out"].files[name])


@pytest.mark.parametrize("wish", [named, back])
def test_at_every_moment_of_retention(wish: Callable[[Day, list[str]], Callable[[], object]]) -> None:
    seen = set()
    for moment in range(1, 1000):
        day, said = begun(), list[str]()
        if not at(day, moment, lambda day=day: day.coordinator().retire(), wish(day, said)):  # type: ignore[misc]
            break
        seen.add(said[0])
        _keep_back(day)
        stays(day, said)
    assert "" in seen
    assert len(seen) > 1, "sometimes retention was first"


@pytest.mark.parametrize("wish", [named, back])
def test_at_every_moment_of_the_other(wish: Callable[[Day, list[str]], Callable[[], object]]) -> None:
    seen = set()
    for moment in range(1, 1000):
        day, said = begun(), list[str]()
        if not at(day, moment, wish(day, said), lambda day=day: day.coordinator().retire()):  # type: ignore[misc]
            break
        seen.add(said[0])
        _keep_back(day)
        stays(day, said)
    assert "" in seen
    assert len(seen) > 1, "sometimes retention was first"


def test_the_story_has_teeth() -> None:
    """A name is given without a look for the tombstone: on random days that is noticed on one of six hundred."""
    with contextlib.ExitStack() as planted:
        for patch in name_without_looking_for_the_tombstone():
            planted.enter_context(patch)
        with pytest.raises(AssertionError):
            test_at_every_moment_of_retention(named)


def _keep_back(day: Day) -> None:
    """What is retained by number: enough that a rollback is."""
    day.limit(num_retained=3)


# -- row V of the crash matrix: a savepoint is complete, or it is not there ----------------------------------


class Killed(BaseException):
    """The process."""


def complete_or_absent(day: Day) -> bool:
    """Whether it is there. If so, its checkpoint is, with all that it names, and retention spares it."""
    found = savepoint.savepoints(Ledger(day.disk, "day"))
    stays(day, [""] if found else ["RETIRED"])
    assert [each.is_retained for each in found] == [True] * len(found)
    return bool(found)


def test_v_killed_at_every_access_and_the_same_again() -> None:
    """K: it dies there. Whoever gives the name again gets it, for the same checkpoint."""

    def die() -> None:
        raise Killed

    seen = set()
    for moment in range(1, 1000):
        day, said = begun(), list[str]()
        try:
            if not at(day, moment, named(day, said), die):
                break
        except Killed:
            pass
        seen.add(there := complete_or_absent(day))
        named(day, said)()
        assert said[-1] == "" if there else said[-1] in ("RETIRED", "NO_SUCH_CHECKPOINT"), "the same name again"
    assert seen == {True, False}


@pytest.mark.parametrize("mishap", ["lost", "unclear", "unsynced", "repeated"])
def test_v_the_answer_is_lost_or_the_sync_fails(mishap: str) -> None:
    """E, A, P: the pin's own create fails, or landed all the same; then the power fails."""
    day = begun()
    day.weather.mishaps["create pins/savepoint-good.json"] = mishap
    try:
        savepoint.create(Ledger(day.disk, "day"), "good", 2, "x")
        promised = True
    except Unavailable:
        promised = False
    day.disk.power_loss()
    assert complete_or_absent(day) >= promised, "what was promised is there"
    assert promised == (mishap in ("unclear", "unsynced", "repeated"))


def test_v_a_zombie_names_nothing_that_is_gone() -> None:
    """Z: it hangs at any access until retention has been there; then it continues, and says what has become of it."""
    for moment in range(1, 1000):
        day, said = begun(), list[str]()

        def others(day: Day = day) -> None:
            for run in "fg":
                day.checkpoint(run)
                day.coordinator().retire()

        if not at(day, moment, named(day, said), others):
            break
        assert complete_or_absent(day) == (said == [""])
