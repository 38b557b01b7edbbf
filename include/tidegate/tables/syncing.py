"""Makes files durable beside other work: Spark need not wait for the disk, only the ack."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

from tidegate.tables.files import Location

__all__ = ["Syncing"]


class Syncing:
    """Files that are being made durable."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._begun: list[Future[None]] = []

    def __call__(self, paths: list[str]) -> None:
        """Begin with these."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._begun.append(pool.submit(self._location.sync, paths))
        pool.shutdown(wait=False)

    def finish(self) -> None:
        """Return once all are durable; Unavailable if some could not be made so."""
        for each in self._begun:
            each.result()

    def leave(self) -> None:
        """Return once nothing goes on any more, whatever came of it."""
        wait(self._begun)
