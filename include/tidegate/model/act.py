"""What people have done from the pages: who, what, with which words. Written before it is done, and never changed."""

from __future__ import annotations

from typing import ClassVar

from tidegate.model.struct import Json, Record

__all__ = ["REQUEST", "Act", "Acted"]

REQUEST = "request"
"""What a run's conf holds if it is to do what was asked for: the act's key."""


class Act(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.json: somebody who may has asked for this."""

    title: ClassVar[str] = "act"

    action: str
    by: str
    asked: Json
    """What it was asked with."""
    run: str = ""
    """The ledger's name of the run of the DAG that is to do it, and no other; empty: it is done at once."""

    @property
    def key(self) -> str:
        """Its name in the ledger, by which a run is told what to do."""
        return f"{self.created[:23].replace(':', '').replace('.', '')}-{self.attempt}"


class Acted(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.done.json: what came of it. Missing: nobody came to write it down."""

    title: ClassVar[str] = "acted"

    done: bool
    told: str
