"""Makes files durable in parallel with other work. Only the ack has to wait for the disk, not Spark."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tidegate import seams
from tidegate.delta.files.access import Location

__all__ = ["Syncing", "overlapping_seconds"]


class Syncing:
    """Makes files of one location durable in the background."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._futures: list[Future[float]] = []
        self.waited = 0.0
        """The seconds for which `finish` had to wait."""
        self.span: tuple[float, float] | None = None
        """Start and end, once it is finished. None without files."""
        self._started: float | None = None

    def __call__(self, paths: list[str]) -> None:
        """Start to make these files durable."""
        if self._started is None:
            self._started = seams.monotonic()
        pool = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._futures.append(pool.submit(self._sync, paths))
        pool.shutdown(wait=False)

    def _sync(self, paths: list[str]) -> float:
        self._location.sync(paths)
        return seams.monotonic()

    def finish(self) -> None:
        """Wait until all files are durable. Raise Unavailable if that fails for any."""
        wait_start = seams.monotonic()
        ends = [future.result() for future in self._futures]
        self.waited += seams.monotonic() - wait_start
        if self._started is not None:
            self.span = self._started, max(ends)

    def wait(self) -> None:
        """Wait until nothing runs any more, even if it failed."""
        wait(self._futures)


def overlapping_seconds(several: Sequence[Syncing]) -> float:
    """Return the time from the start of the first to the end of the last of them."""
    spans = [sync.span for sync in several if sync.span is not None]
    if not spans:
        return 0.0
    return max(end for _, end in spans) - min(start for start, _ in spans)
