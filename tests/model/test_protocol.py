"""The protocol holds whatever the order of steps: every state of these worlds has been looked at."""

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.model.explore import explore
from tests.model.worlds import SMALL, Exploration

pytestmark = in_turn(seconds=75)

QUICK = 50_000
"""States that are looked at within a few seconds."""


def cases() -> list[object]:
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(each, id=each.name, marks=marks[each.at_least <= QUICK]) for each in turn_of(SMALL, 4)]


@pytest.mark.parametrize("exploration", cases())
def test_no_interleaving_breaks_an_invariant(exploration: Exploration) -> None:
    result = explore(exploration.world)
    print(f"{exploration.what}: {result}")
    assert result.problem is None, result
    assert result.exhausted
    assert result.states >= exploration.at_least, "the model has shrunk: what does it no longer try?"
