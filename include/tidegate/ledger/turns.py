"""Runs that wait for a checkpoint write notes, and a run that could plan yields to more urgent ones.

`protocol/turns.py` defines the order, and how long a run yields to one that may be dead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.errors import Rejected, Unavailable
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.turns import GRACE_S, RANKS, Waiter, decide_turn
from tidegate.protocol.view import View
from tidegate.records.records import Rank

__all__ = ["Turns"]

_RETRY_S = 2.0
_RANK_TEXTS = {"savepoint": "a savepoint", "manual": "a checkpoint requested by hand"}


class Turns:
    """Takes turns on behalf of one run that wants a checkpoint. rank: None if it takes no part in the order."""

    def __init__(self, ledger: Ledger, run: str, rank: Rank | None) -> None:
        self._ledger = ledger
        self._run = run
        self._rank = rank
        self._has_note = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Write a note if the block is refused because other checkpoints are in progress: the run will retry.

        No run yields to a periodic one, so that writes no note. If the note cannot be written, the run waits without
        it.
        """
        try:
            yield
        except Rejected as error:
            if error.reason == "CHECKPOINT_IN_PROGRESS" and self._rank in RANKS[:-1]:
                with contextlib.suppress(Unavailable):
                    self._ledger.note_waiting(self._run, self._rank)
            raise

    def refuse_early(self, view: View) -> None:
        """Raise Rejected if a more urgent run waits. Deletes the notes of runs that have lost their turn."""
        if self._rank is None:
            return
        waiters = self._ledger.waiters()
        self._has_note = any(waiter.run == self._run for waiter in waiters)
        free_s = _free_s(self._ledger, view) if waiters else 0.0
        turn = decide_turn(waiters, self._run, self._rank, free_s)
        for run in turn.lapsed:
            with contextlib.suppress(Unavailable):
                self._ledger.forget_waiting(run)
        if turn.first is not None:
            raise _early(turn.first)

    def end_waiting(self) -> None:
        """Delete the run's own note, if it has written one: it has its checkpoint."""
        if self._has_note:
            with contextlib.suppress(Unavailable):  # then the note lapses
                self._ledger.forget_waiting(self._run)


def _free_s(ledger: Ledger, view: View) -> float:
    """Return the seconds since the last entry was decided, or infinity if none was."""
    decided = [entry.id for entry in view.entries if entry.decision is not None]
    age = ledger.age_of_decision(decided[-1]) if decided else None
    return age if age is not None else float("inf")


def _early(first: Waiter) -> Rejected:
    error = Rejected(
        f"the next checkpoint belongs to run {first.run!r}, which waits for {_RANK_TEXTS[first.rank]}",
        expected="more urgent runs to go first",
        help=f"nothing to do: this run follows it, or plans in {GRACE_S:g} s if that run does not",
        reason="CHECKPOINT_IN_PROGRESS",
    )
    error.wait_s = _RETRY_S
    return error
