"""Every choice that a simulation makes, from a seed or from a list that Hypothesis shrinks."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice(ABC):
    """0 and "no" are the calm choices: what shrinks towards them is a quiet day."""

    @abstractmethod
    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""

    @abstractmethod
    def chance(self, p: float) -> bool:
        """Yes with probability p."""

    def one_of(self, options: Sequence[T]) -> T:
        """One of these; the first is the calm one."""
        return options[self.below(len(options))]


class SeededDice(Dice):
    """The same seed, the same choices, on every machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def chance(self, p: float) -> bool:
        return p > 0.0 and self._random() < p


class ListDice(Dice):
    """Choices from a list of bytes; calm when it is used up."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = iter(choices)

    def below(self, n: int) -> int:
        return next(self._choices, 0) % n

    def chance(self, p: float) -> bool:
        return p > 0.0 and next(self._choices, 0) >= 256 * (1.0 - p)
