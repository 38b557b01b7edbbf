"""A ledger's files on a real disk, whose ages are told by the clock that a test has installed."""

from __future__ import annotations

from typing import ClassVar

from tidegate import seams
from tidegate.ledger import LocalStore

__all__ = ["TickingStore"]


class TickingStore(LocalStore):
    """Real files; only what time it is, is not."""

    made: ClassVar[dict[str, float]] = {}
    """By file, when it was created: told to every process of a test."""

    def create(self, path: str, data: bytes) -> bool:
        created = super().create(path, data)
        if created:
            self.made[f"{self.root}/{path}"] = seams.monotonic()
        return created

    def age(self, path: str) -> float | None:
        made = self.made.get(f"{self.root}/{path}") if self.read(path) is not None else None
        return None if made is None else seams.monotonic() - made
