"""What may go wrong outside, decided in one place: the fake store and the toy tables ask here."""

from __future__ import annotations

__all__ = ["Weather"]


class Weather:
    """Calm: nothing goes wrong. Override what a test wants to see."""

    def pause(self, what: str) -> None:
        """About to touch storage. A simulator lets others run here, or ends this process."""

    def mishap(self, what: str, possible: str) -> str:
        """Which of the `possible` mishaps (words in a row) happens to this call; '' for none.

        lost      nothing is done, Unavailable is raised
        unclear   it is done, Unavailable is raised all the same
        unsynced  it is done, but not durable, and Unavailable is raised
        repeated  it is done, and a repetition by the client answers that somebody else had done it
        """
        return ""

    def unseen(self, folder: str, name: str, age: float) -> bool:
        """Whether a listing of `folder` misses a name that was made `age` seconds ago."""
        return False

    def clock(self) -> float:
        """The store's own clock, in seconds."""
        return 0.0
