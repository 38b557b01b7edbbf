"""What the protocol answers: each is one thing to do next, and says with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.protocol.view import Entry
from tidegate.records.interval import Interval
from tidegate.records.records import Handle

__all__ = [
    "Abort",
    "Adopt",
    "Complete",
    "Covered",
    "CreateEntry",
    "Damaged",
    "DoneAlready",
    "Misfit",
    "Nothing",
    "PassedBy",
    "Publish",
    "RunJob",
    "Stop",
    "Wait",
]


@dataclass(frozen=True)
class Adopt:
    """The run has an entry already: go on with that one, plan nothing."""

    id: int


@dataclass(frozen=True)
class Abort:
    """Create the abort of `id`, read back what holds, and ask again."""

    id: int
    reason: str
    detail: str
    counts: bool


@dataclass(frozen=True)
class Wait:
    """Others are at work; ask again when one of `ids` is decided."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Covered:
    """The run's interval is done already, by checkpoint `id` (None: by one below the view): plan nothing."""

    id: int | None


@dataclass(frozen=True)
class Misfit:
    """The run's interval cannot be made beside `other`, which is there already."""

    other: Interval
    early: bool = False
    """True: it begins before all that the pipeline has ever been given."""


@dataclass(frozen=True)
class CreateEntry:
    """Plan from where `base` ends, create entry `id`; if that exists, ask again."""

    id: int
    base: int | None
    generation: int


@dataclass(frozen=True)
class Stop:
    """This work no longer counts; write nothing more."""

    why: str


@dataclass(frozen=True)
class DoneAlready:
    """The record that the caller wanted to make exists."""


@dataclass(frozen=True)
class RunJob:
    """Run the job; its own last snapshot is the ack `prev`."""

    prev: Handle | None


@dataclass(frozen=True)
class PassedBy:
    """Skip the job in checkpoint `id`, which does not wait for it: say so, so that it can be completed without."""

    id: int
    busy_with: int | None
    """What it is at work on. None: it was told before, or a job that it takes from was overtaken."""


@dataclass(frozen=True)
class Complete:
    """Write a manifest from these acks, index the run, create the decision."""

    id: int
    base: Entry | None
    acks: Mapping[str, Handle]


@dataclass(frozen=True)
class Publish:
    """Commit `id` on the table, at exactly the version behind the head that was read."""

    id: int
    after: int | None


@dataclass(frozen=True)
class Nothing:
    """The table has everything that is completed."""


@dataclass(frozen=True)
class Damaged:
    """The table and the log contradict each other. Never worked around."""

    why: str
