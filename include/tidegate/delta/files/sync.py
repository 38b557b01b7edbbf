"""Makes files durable in parallel with other work: Spark need not wait for the disk, only the ack."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tidegate import seams
from tidegate.delta.files.access import Location

__all__ = ["Syncing", "overlapping_seconds"]


class Syncing:
    """Files that are being made durable."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._begun: list[Future[float]] = []
        self.waited = 0.0
        """Seconds that callers waited without other work."""
        self.span: tuple[float, float] | None = None
        """From when to when it took, once it is finished. None: there was nothing to do."""
        self._since: float | None = None

    def __call__(self, paths: list[str]) -> None:
        """Start with these files."""
        if self._since is None:
            self._since = seams.monotonic()
        pool = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._begun.append(pool.submit(self._sync, paths))
        pool.shutdown(wait=False)

    def _sync(self, paths: list[str]) -> float:
        self._location.sync(paths)
        return seams.monotonic()

    def finish(self) -> None:
        """Return once all are durable; raise Unavailable if some could not be made so."""
        began = seams.monotonic()
        ends = [future.result() for future in self._begun]
        self.waited += seams.monotonic() - began
        if self._since is not None:
            self.span = self._since, max(ends)

    def wait(self) -> None:
        """Return once nothing runs any more, whatever the result."""
        wait(self._begun)


def overlapping_seconds(several: Sequence[Syncing]) -> float:
    """Return the time from the start of the first to the end of the last of them."""
    spans = [sync.span for sync in several if sync.span is not None]
    return max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 0.0
