"""What happens to a job's channels, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Abort",
    "Action",
    "Barrier",
    "Block",
    "Cancel",
    "Consume",
    "Ended",
    "Event",
    "Freed",
    "Overtake",
    "Record",
    "Refuse",
    "Take",
    "TimeUp",
]


# -- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Barrier:
    """All that belongs to checkpoint `id` is in the channel now. In each channel they come in the order of ids."""

    id: int
    channel: str


@dataclass(frozen=True)
class Cancel:
    """Checkpoint `id` will never be completed."""

    id: int


@dataclass(frozen=True)
class Ended:
    """Nothing comes by this channel any more: nobody waits for it."""

    channel: str


@dataclass(frozen=True)
class TimeUp:
    """Alignment for checkpoint `id` has lasted as long as it may."""

    id: int


@dataclass(frozen=True)
class Freed:
    """The job is done with what it was at work on: acknowledged, or given up."""

    acked: bool = True


Event: TypeAlias = Barrier | Cancel | Ended | TimeUp | Freed


# -- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Consume:
    """Take all channels up to barrier `id`, whatever has not been taken yet, and acknowledge `id`."""

    id: int


@dataclass(frozen=True)
class Take:
    """At least once: take all that is in the channels now, also behind barrier `id`, and acknowledge `id`."""

    id: int


@dataclass(frozen=True)
class Block:
    """Take nothing behind barrier `id` from this channel, for others are not there yet."""

    id: int
    channel: str


@dataclass(frozen=True)
class Overtake:
    """The job's last snapshot stands for checkpoint `id`, too; its own work on `id` is skipped."""

    id: int


@dataclass(frozen=True)
class Record:
    """What is in the channel up to barrier `id`, and was not taken, is a part of checkpoint `id`: by reference."""

    id: int
    channel: str


@dataclass(frozen=True)
class Abort:
    """Let go of checkpoint `id`, and tell those behind: nobody is to wait for it."""

    id: int


@dataclass(frozen=True)
class Refuse:
    """The barrier is out of date: its checkpoint is settled here."""

    id: int
    channel: str


Action: TypeAlias = Consume | Take | Block | Overtake | Record | Abort | Refuse
