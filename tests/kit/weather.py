"""External faults, decided in one place: the fake store and the toy tables ask here."""

from __future__ import annotations

__all__ = ["Weather"]


class Weather:
    """Calm weather: nothing goes wrong. Override the methods whose faults a test needs."""

    def pause(self, what: str) -> None:
        """Called before each access to storage. A simulator switches processes here, or kills this one."""

    def mishap(self, what: str, possible: str) -> str:
        """Return the mishap that happens to this call, of the `possible` ones (separated by spaces); '' for none.

        lost      nothing is done, Unavailable is raised
        unclear   it is done, Unavailable is raised all the same
        unsynced  it is done, but not durable, and Unavailable is raised
        repeated  it is done, and the client's own retry reports that somebody else has done it
        """
        return ""

    def unseen(self, folder: str, name: str, age: float) -> bool:
        """Whether a listing of `folder` misses a name that was created `age` seconds ago."""
        return False

    def clock(self) -> float:
        """Return the store's own time, in seconds."""
        return 0.0
