"""The content of a checkpoint from which a fork or a copy can continue: positions, side files, states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.references import acks_of, blobs_within
from tidegate.delta import Location, missing_files
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.lifecycle.rollback_preview import unreadable
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.records.records import Ack, Blob, Origin, Payload
from tidegate.state.record import StateTable
from tidegate.state.table import STATE, state_sink

__all__ = [
    "DONE",
    "CheckpointSnapshot",
    "checkpoint_snapshot",
    "refuse_damage",
    "refuse_retired",
    "reporting_retired",
    "state_location",
]


DONE = "savepoint.json"
"""The record that marks a folder as a complete copy of a savepoint (lifecycle/copies.py)."""


@dataclass(frozen=True)
class CheckpointSnapshot:
    """A completed checkpoint, with everything needed to continue from it."""

    parent: Ledger
    origin: Origin
    entry: Entry
    acks: tuple[Ack, ...]
    states: dict[str, Payload]
    options: Mapping[str, str]

    @property
    def blobs(self) -> list[Blob]:
        """The side files of positions and states."""
        blobs = {payload.blob for payload in self.states.values() if payload.blob is not None}
        for part in planned_ranges(self.entry).values():
            blobs.update(blobs_within(part.end))
        return sorted(blobs, key=lambda blob: blob.path)

    def table(self, name: str) -> StateTable:
        """Return the record of a state."""
        return typed.convert(self.parent.unpack(self.states[name]), StateTable)

    def location(self, name: str) -> Location:
        """Return the location of a state's files."""
        return state_location(self.parent.home, name, self.options)


def state_location(home: str, name: str, options: Mapping[str, str]) -> Location:
    """Return the location of a state's files, next to a ledger."""
    return Location(f"{home}/{state_sink(name).folder}", options)


def checkpoint_snapshot(
    parent: Ledger, id: int, options: Mapping[str, str], *, by: str, note: str = ""
) -> CheckpointSnapshot:
    """Return the content of checkpoint `id`, not yet verified."""
    identity = parent.identity()
    entry = parent.entry(id) if identity is not None else None
    if identity is None or entry is None or entry.decision is None or entry.decision.manifest is None:
        raise no_such_checkpoint(parent.pipeline, id, problem="does not exist, or is not completed")
    if entry.plan.by_interval:
        raise Invalid(
            f"pipeline {parent.pipeline!r} reads by data interval: its checkpoints hold nothing to continue from",
            expected="a pipeline that reads all new input",
            help="a new pipeline makes all its intervals, in any order",
            reason="BY_INTERVAL",
        )
    if entry.manifest is not None and entry.manifest.in_flight:
        raise Rejected(
            f"in checkpoint {id} of {parent.pipeline!r}, job {', '.join(sorted(entry.manifest.in_flight))} lagged: its "
            "unread rows are in channels, which are not copied",
            expected="a checkpoint in which every job has read all rows",
            help="choose another one, or make one that waits for all jobs: `tidegate savepoint create MODULE:PIPELINE "
            "NAME --new`, or a run with a savepoint in Airflow. To retain this one where it is, name it without --copy",
            reason="IN_FLIGHT",
        )
    origin = Origin(
        pipeline=identity.name, uid=identity.uid, entry=id, manifest=entry.decision.manifest, by=by, note=note
    )
    with reporting_retired(parent, id):
        acks = tuple(acks_of(parent, entry))
    states: dict[str, Payload] = {}
    for ack in acks:
        states |= ack.states
    copy = parent.copy(DONE)
    if copy is not None:
        states |= copy.states
    return CheckpointSnapshot(parent, origin, entry, acks, states, options)


def refuse_damage(snapshot: CheckpointSnapshot) -> None:
    """Raise Corrupt unless every record and file of the snapshot exists, as it was written."""
    problems = list(unreadable(snapshot.parent, snapshot.entry)) or list(_missing_state_files(snapshot))
    if problems:
        refuse_retired(snapshot.parent, snapshot.entry.id)
        raise Corrupt(
            "\n    ".join(
                [f"checkpoint {snapshot.entry.id} of pipeline {snapshot.origin.pipeline!r} is damaged:", *problems]
            ),
            expected="records and files as of that checkpoint",
            help="put them back from a copy, or take another checkpoint",
            reason="CHECKPOINT_DAMAGED",
        )


def _missing_state_files(snapshot: CheckpointSnapshot) -> Iterator[str]:
    for name in snapshot.states:
        missing = missing_files(snapshot.location(name), [state_file.file for state_file in snapshot.table(name).files])
        if missing:
            yield f"state {name.removeprefix(STATE)}: {len(missing)} of its files are gone, first {missing[0]!r}"


def refuse_retired(parent: Ledger, id: int) -> None:
    """Raise Rejected if the checkpoint is retired. Pin it first, then call this: retention does it the other way
    round."""
    if not parent.is_retained(id):
        raise Rejected(
            f"checkpoint {id} of pipeline {parent.pipeline!r} is claimed by retention",
            expected="a checkpoint that is retained",
            help="choose another one; num_retained says how many are kept",
            reason="RETIRED",
        )


@contextlib.contextmanager
def reporting_retired(parent: Ledger, id: int) -> Iterator[None]:
    """Replace Corrupt in the block by Rejected if retention has removed the checkpoint."""
    try:
        yield
    except Corrupt:
        refuse_retired(parent, id)
        raise
