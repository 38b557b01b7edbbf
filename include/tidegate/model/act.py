"""What people have done from the pages: who, what, with which words. Written before it is done, and never changed."""

from __future__ import annotations

from typing import ClassVar

from tidegate.model.struct import Json, Record

__all__ = ["Act", "Acted"]


class Act(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.json: somebody who may has asked for this."""

    title: ClassVar[str] = "act"

    action: str
    by: str
    asked: Json
    """What it was asked with."""


class Acted(Record, frozen=True, kw_only=True):
    """audit/<time>-<attempt>.done.json: what came of it. Missing: nobody came to write it down."""

    title: ClassVar[str] = "acted"

    done: bool
    told: str
