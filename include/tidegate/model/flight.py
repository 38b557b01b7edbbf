"""What one ack is named by, and what is known of a job that a checkpoint goes past."""

from __future__ import annotations

from typing import ClassVar

from tidegate.model.payload import Payload
from tidegate.model.struct import Id, Record, Sha, Struct

__all__ = ["Handle", "InFlight", "Overtaken", "Overtaking"]


class Handle(Struct, frozen=True, kw_only=True):
    """Names one ack: the entry that it lies in and the hash of its bytes."""

    entry: Id
    sha: Sha


class Overtaking(Struct, frozen=True, kw_only=True):
    """Which jobs the checkpoint may go past while they are busy with an earlier one."""

    jobs: list[str]
    after_s: float
    """So long it waits for them first."""


class InFlight(Struct, frozen=True, kw_only=True):
    """What a job has sent, and another one has not taken."""

    job: str
    """Who has sent it."""
    ack: Handle
    channels: dict[str, Payload]
    """Of its channels those that the other one takes."""


class Overtaken(Record, frozen=True, kw_only=True):
    """Checkpoint `id` does not wait for `job`: its last ack stands for it, and what it has not taken is in flight."""

    title: ClassVar[str] = "overtaken"

    id: Id
    job: str
    busy_with: Id | None
    """The checkpoint that it was at work on. None: a job that it takes from was overtaken."""
