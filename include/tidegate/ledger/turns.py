"""Take turns: runs that wait for a checkpoint leave notes, and one that could plan now lets more urgent ones go first.

`protocol/turns.py` says who comes first, and why nobody waits for long for a run that is dead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.errors import Rejected, Unavailable
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.turns import GRACE_S, RANKS, Waiter, whose_turn
from tidegate.protocol.view import View
from tidegate.records.records import Rank

__all__ = ["Turns"]

_ASK_AGAIN_S = 2.0
_IN_WORDS = {"savepoint": "a savepoint", "manual": "a checkpoint that somebody has asked for"}


class Turns:
    """The turns of one run that asks for a checkpoint. rank: None if it takes no part in the order."""

    def __init__(self, ledger: Ledger, run: str, rank: Rank | None) -> None:
        self._ledger = ledger
        self._run = run
        self._rank = rank
        self._has_note = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Leave a note if the block is refused because others are in progress: the run will ask again.

        Nobody gives way to a periodic run, so it leaves none. If the note cannot be written, the run waits without it.
        """
        try:
            yield
        except Rejected as error:
            if error.reason == "CHECKPOINT_IN_PROGRESS" and self._rank in RANKS[:-1]:
                with contextlib.suppress(Unavailable):
                    self._ledger.note_waiting(self._run, self._rank)
            raise

    def refuse_early(self, view: View) -> None:
        """Raise Rejected if a more urgent run waits. Forgets those that did not come when it was their turn."""
        if self._rank is None:
            return
        waiters = self._ledger.waiters()
        self._has_note = any(waiter.run == self._run for waiter in waiters)
        turn = whose_turn(waiters, self._run, self._rank, _free_s(self._ledger, view) if waiters else 0.0)
        for run in turn.lapsed:
            with contextlib.suppress(Unavailable):
                self._ledger.forget_waiting(run)
        if turn.first is not None:
            raise _early(turn.first)

    def end_waiting(self) -> None:
        """Remove the run's own note, if it has left one: it has what it waited for."""
        if self._has_note:
            with contextlib.suppress(Unavailable):  # then others find that it does not come
                self._ledger.forget_waiting(self._run)


def _free_s(ledger: Ledger, view: View) -> float:
    """Return the seconds since the last entry was decided; infinite if none was."""
    decided = [entry.id for entry in view.entries if entry.decision is not None]
    age = ledger.age_of_decision(decided[-1]) if decided else None
    return age if age is not None else float("inf")


def _early(first: Waiter) -> Rejected:
    error = Rejected(
        f"the next checkpoint is that of run {first.run!r}, which waits for {_IN_WORDS[first.rank]}",
        expected="more urgent runs to come first",
        help=f"nothing to do: this run comes after it, or in {GRACE_S:g} s if it does not come",
        reason="CHECKPOINT_IN_PROGRESS",
    )
    error.wait_s = _ASK_AGAIN_S
    return error
