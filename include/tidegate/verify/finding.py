"""Findings of a check, and the pipeline that it examines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tidegate.errors import TidegateError, Unavailable

if TYPE_CHECKING:
    from tidegate.config import Settings
    from tidegate.ledger.ledger import Ledger
    from tidegate.pipeline import Pipeline
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["Finding", "State", "Subject", "finding_of"]


State = Literal["ok", "note", "bad", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: where, what, how bad, and what to do about it."""

    area: str
    check: str
    state: State
    detail: str
    help: str = ""


class Subject(Protocol):
    """The pipeline that is verified: its records, and its code if that is at hand."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def settings(self) -> Settings:
        """Where its ledger and its tables are."""

    @property
    def ledger(self) -> Ledger:
        """Its records."""

    @property
    def pipeline(self) -> Pipeline | None:
        """Its code; None if only its name is known."""

    def graph(self) -> Graph | None:
        """Return what the code declares; None if only its name is known."""


def finding_of(area: str, check: str, error: TidegateError) -> Finding:
    """Return the finding for a check that an error has ended: storage that does not answer proves nothing."""
    state: State = "cannot tell" if isinstance(error, Unavailable) else "bad"
    return Finding(area, check, state, error.what, error.help)
