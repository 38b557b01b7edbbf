"""The answers of the protocol. Each one is a single next step, with the values that it needs."""

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
    """The run already has an entry: continue with that one and plan nothing."""

    id: int


@dataclass(frozen=True)
class Abort:
    """Create the abort of `id`, read back which decision holds, and call again."""

    id: int
    reason: str
    detail: str
    counts: bool


@dataclass(frozen=True)
class Wait:
    """Other entries are in progress: call again when one of `ids` is decided."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Covered:
    """The run's interval is already done, by checkpoint `id` (None: by one below the view): plan nothing."""

    id: int | None


@dataclass(frozen=True)
class Misfit:
    """The run's interval conflicts with `other`, which already exists."""

    other: Interval
    early: bool = False
    """True: it begins before the first interval that the pipeline was ever given."""


@dataclass(frozen=True)
class CreateEntry:
    """Plan from where `base` ends and create entry `id`. If that entry exists, call again."""

    id: int
    base: int | None
    generation: int


@dataclass(frozen=True)
class Stop:
    """This work no longer counts; write nothing more."""

    why: str


@dataclass(frozen=True)
class DoneAlready:
    """The record that the caller would create already exists."""


@dataclass(frozen=True)
class RunJob:
    """Run the job. Its own last snapshot is the ack `prev`."""

    prev: Handle | None


@dataclass(frozen=True)
class PassedBy:
    """Skip the job in checkpoint `id`, which does not wait for it.

    Record that, so that the checkpoint can complete without the job.
    """

    id: int
    busy_with: int | None
    """The checkpoint that the job is working on. None: recorded before, or a job upstream of it was overtaken."""


@dataclass(frozen=True)
class Complete:
    """Write a manifest from these acks, index the run, create the decision."""

    id: int
    base: Entry | None
    acks: Mapping[str, Handle]


@dataclass(frozen=True)
class Publish:
    """Commit `id` on the table, at exactly the version after the head that was read."""

    id: int
    after: int | None


@dataclass(frozen=True)
class Nothing:
    """The table holds every completed entry."""


@dataclass(frozen=True)
class Damaged:
    """The table and the log contradict each other. Never worked around."""

    why: str
