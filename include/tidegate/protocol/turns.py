"""The order in which several runs that wait get the next checkpoint: savepoints, then manual ones, then periodic ones.

A run that has to wait writes a note, and renews it on every retry. A run that could plan first reads the notes, and
yields to runs of a higher rank. It does not yield for long: a run that could have planned for `GRACE_S` seconds, and
did not, loses its turn, and its note is removed. If it retries later, it writes another one.

Notes decide only the order. Which checkpoint is planned, and on which base, is decided by the log alone. So a note may
be lost, outdated, or about a run that died long ago.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from tidegate.records.records import Rank

__all__ = ["GRACE_S", "RANKS", "Turn", "Waiter", "decide_turn"]

RANKS: Final[tuple[Rank, ...]] = get_args(Rank)
"""The most urgent one first."""

GRACE_S = 30.0
"""How long other runs yield to a run: Airflow needs some seconds to wake up a waiting task."""


@dataclass(frozen=True)
class Waiter:
    """A run that waits for a checkpoint."""

    run: str
    rank: Rank
    age_s: float
    """Seconds since its last try, by the store's clock. Negative, and so unknown, if that clock went back."""


@dataclass(frozen=True)
class Turn:
    """The answer to a run that could plan now."""

    first: Waiter | None
    """The run that goes before it. None if it may plan."""
    lapsed: tuple[str, ...]
    """The runs that have lost their turn."""


def decide_turn(waiters: Iterable[Waiter], run: str, rank: Rank, free_s: float) -> Turn:
    """Decide whether a run may plan, or another one goes first.

    free_s: the seconds since the last entry was decided, by the store's clock. Since then any run could have planned.
    """
    eligible: list[Waiter] = []
    lapsed: list[str] = []
    for waiter in waiters:
        if waiter.run == run or RANKS.index(waiter.rank) >= RANKS.index(rank):
            continue
        if 0 <= min(waiter.age_s, free_s) < GRACE_S:
            eligible.append(waiter)
        else:
            lapsed.append(waiter.run)
    first = min(eligible, key=lambda waiter: (RANKS.index(waiter.rank), -waiter.age_s), default=None)
    return Turn(first, tuple(sorted(lapsed)))
