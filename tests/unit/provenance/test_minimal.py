"""The smallest choice that is enough, against all choices that there are."""

from __future__ import annotations

import itertools
import random

import pytest

from tidegate.provenance.minimal import OutOfTries, Tries, minimal_choice


def choices(causes: list[int]) -> list[frozenset[int]]:
    """All choices of these causes."""
    found = []
    for size in range(len(causes) + 1):
        found += [frozenset(chosen) for chosen in itertools.combinations(causes, size)]
    return found


@pytest.mark.parametrize("seed", range(200))
def test_the_choice_is_enough_and_without_any_one_of_it_it_is_not_whatever_the_question(seed: int) -> None:
    dice = random.Random(seed)
    causes = list(range(dice.randint(1, 8)))
    if seed % 2:  # any answers at all: what is enough may be too much with one more
        enough = {chosen for chosen in choices(causes) if dice.random() < 0.3}
    else:  # as for most rows: more is enough, too
        cores = [frozenset(dice.sample(causes, dice.randint(0, len(causes)))) for _ in range(3)]
        enough = {chosen for chosen in choices(causes) if any(core <= chosen for core in cores)}
    enough.add(frozenset(causes))
    tries = Tries[int](lambda chosen: chosen in enough, limit=10_000)
    choice = minimal_choice(causes, tries)
    found = frozenset(choice.causes)
    assert found in enough
    assert not any(found - {cause} in enough for cause in found)
    assert choice.unproven == frozenset()


def test_few_causes_among_many_take_few_tries() -> None:
    wanted = frozenset({17, 4_400, 9_001})
    tries = Tries[int](lambda chosen: wanted <= chosen, limit=10_000)
    assert frozenset(minimal_choice(list(range(10_000)), tries).causes) == wanted
    assert tries.made < 120


def test_a_limit_leaves_a_choice_that_is_enough_and_says_what_it_has_not_tried() -> None:
    for limit in range(30):
        tries = Tries[int](lambda chosen: frozenset({3, 5}) <= chosen, limit)
        choice = minimal_choice(list(range(20)), tries)
        assert frozenset({3, 5}) <= frozenset(choice.causes)
        assert choice.unproven <= frozenset(choice.causes)
        assert tries.made <= limit
        if not choice.unproven:
            assert set(choice.causes) == {3, 5}
    assert minimal_choice(list(range(20)), Tries[int](lambda _: True, 0)).unproven == frozenset(range(20))


def test_no_choice_is_tried_twice() -> None:
    asked = []

    def ask(chosen: frozenset[int]) -> bool:
        asked.append(chosen)
        return 2 in chosen

    tries = Tries[int](ask, 100)
    minimal_choice([1, 2, 3], tries)
    minimal_choice([1, 2, 3], tries)
    assert len(asked) == len(set(asked)) == tries.made
    with pytest.raises(OutOfTries):
        Tries[int](ask, 0).are_enough(frozenset({9}))
