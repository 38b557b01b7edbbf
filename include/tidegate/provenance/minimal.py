"""Finds a choice of causes that is enough and has none in excess, by leaving some out and asking again.

No property of the question is assumed: leaving out one cause may make another one necessary, or needless. So the result
is only proven once each cause has been left out of exactly this choice, which the last pass does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Choice", "OutOfTries", "Tries", "minimal_choice"]

Cause = TypeVar("Cause", bound=Hashable)

ONE_BY_ONE = 16
"""So few causes are left out one by one at once; more of them first in groups."""


class OutOfTries(Exception):
    """The limit of tries is reached."""


@dataclass
class Tries(Generic[Cause]):
    """Asks whether causes are enough, each choice once, and no more often than allowed."""

    ask: Callable[[frozenset[Cause]], bool]
    limit: int
    made: int = 0
    _answers: dict[frozenset[Cause], bool] = field(default_factory=dict)

    def are_enough(self, chosen: frozenset[Cause]) -> bool:
        """Return the answer. Raise OutOfTries if it would be one too many."""
        if chosen not in self._answers:
            if self.made >= self.limit:
                raise OutOfTries
            self.made += 1
            self._answers[chosen] = self.ask(chosen)
        return self._answers[chosen]


@dataclass(frozen=True)
class Choice(Generic[Cause]):
    """A choice that is enough."""

    causes: tuple[Cause, ...]
    unproven: frozenset[Cause]
    """Those that the limit left no try for. Without each of the others, the choice is not enough."""


def minimal_choice(causes: Sequence[Cause], tries: Tries[Cause]) -> Choice[Cause]:
    """Return a minimal part of these causes, which together are enough."""
    kept, proven = list(causes), set[Cause]()
    size = max(len(kept) // 2, 1) if len(kept) > ONE_BY_ONE else 1
    try:
        while True:
            place, is_smaller = 0, False
            while place < len(kept):
                group, rest = kept[place : place + size], kept[:place] + kept[place + size :]
                if tries.are_enough(frozenset(rest)):
                    kept, is_smaller = rest, True
                    proven.clear()  # with fewer others, each may have become needless
                else:
                    place += size
                    proven.update(group if len(group) == 1 else ())
            if size == 1 and not is_smaller:
                return Choice(tuple(kept), frozenset())
            size = max(size // 2, 1)
    except OutOfTries:
        return Choice(tuple(kept), frozenset(kept) - proven)
