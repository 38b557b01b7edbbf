"""Whose turn it is, when several runs wait for the next checkpoint: a savepoint, then a checkpoint that somebody has
asked for, then a periodic one.

A run that has to wait leaves a note, and renews it whenever it asks again. A run that could plan looks at the notes of
others first, and lets those of a higher rank go before it. Nobody waits for long for somebody who does not come: if a
run was given way to for `GRACE_S` seconds in which nothing else was in the way, it has lost its turn, and its note is
removed. If it comes after all, it leaves another one.

Only the order rests on this: which checkpoint is planned, and on what, is decided by the log alone. So a note may be
lost, too old, or about a run that is long dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from tidegate.records.records import Rank

__all__ = ["GRACE_S", "RANKS", "Turn", "Waiter", "whose_turn"]

RANKS: Final[tuple[Rank, ...]] = get_args(Rank)
"""Who comes first comes first."""

GRACE_S = 30.0
"""How long a run is given way to: Airflow needs some seconds to wake up a task that waits."""


@dataclass(frozen=True)
class Waiter:
    """A run that waits for a checkpoint."""

    run: str
    rank: Rank
    age_s: float
    """Since it has last asked, by the store's clock. Negative: that clock went back, so nobody can tell."""


@dataclass(frozen=True)
class Turn:
    """The answer to a run that could plan now."""

    first: Waiter | None
    """Who comes before it. None: it is its turn."""
    lapsed: tuple[str, ...]
    """The runs that have not come when it was their turn."""


def whose_turn(waiters: Iterable[Waiter], run: str, rank: Rank, free_s: float) -> Turn:
    """Decide whether a run may plan, or another one comes first.

    free_s: the seconds since the last entry was decided, by the store's clock: since then nothing was in the way.
    """
    before = [other for other in waiters if other.run != run and RANKS.index(other.rank) < RANKS.index(rank)]
    coming = [other for other in before if 0 <= min(other.age_s, free_s) < GRACE_S]
    lapsed = tuple(sorted(other.run for other in before if other not in coming))
    return Turn(min(coming, key=lambda other: (RANKS.index(other.rank), -other.age_s), default=None), lapsed)
