"""Savepoints: checkpoints with a name. A pin spares one from retention until it is disposed of.

A savepoint is only a reference. Retention spares the files that it names (records, side files, states). Tables retain
their older versions until a VACUUM removes files of them, which `verify` notices.

With the settings savepoint_interval and savepoints_retained, the last checkpoint is named periodically, and the last
few of these stay. Only their names show that they are disposed of automatically.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.checkpoint.manifests import dependencies
from tidegate.config.keys import KEYS
from tidegate.errors import Invalid, Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.refusals import how_to_make_one, no_such_checkpoint
from tidegate.records.names import check_name
from tidegate.records.records import Decision, Json, Pin

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "PERIODIC",
    "Savepoint",
    "check_free",
    "check_retained",
    "create",
    "create_periodic_savepoint",
    "dispose",
    "find",
    "jobs_with_input_in_flight",
    "nameable",
    "savepoints",
]

_OWNER = "savepoint-"
PERIODIC = "periodic-"
"""The prefix of the names of periodic savepoints."""


@dataclass(frozen=True)
class Savepoint:
    """A named checkpoint."""

    name: str
    pin: Pin
    is_retained: bool = True
    """False if its checkpoint no longer exists: its creator died before noticing, or it was deleted by hand."""

    @property
    def entry(self) -> int:
        """The checkpoint's number."""
        return self.pin.entry


def create(ledger: Ledger, name: str, id: int | None, by: str, note: str = "") -> Savepoint:
    """Name checkpoint `id` (default: the last published one). Idempotent."""
    decision = nameable(ledger, name, id)
    id = decision.id
    assert decision.manifest is not None
    pin = Pin(
        **stamp(seams.new_id()),
        owner=f"{_OWNER}{name}",
        kind="savepoint",
        entry=id,
        manifest=decision.manifest,
        by=by,
        note=note,
    )
    created = ledger.create_pin(pin)
    if created.record.entry != id:
        raise _duplicate_name_error(ledger, name, created.record.entry)
    # Pin first, then check for tombstones: retention does it the other way round.
    try:
        check_retained(ledger, id)
    except Rejected:
        if created.is_new:
            ledger.delete_pin(pin.owner)
        raise
    return Savepoint(name, created.record)


def check_retained(ledger: Ledger, id: int) -> None:
    """Raise Rejected if retention has claimed the checkpoint, or one that it rests on."""
    entry = ledger.entry(id) if ledger.is_retained(id) else None
    if entry is None or not all(map(ledger.is_retained, dependencies(entry))):
        raise Rejected(
            f"checkpoint {id} of pipeline {ledger.pipeline!r} is claimed by retention",
            expected="a checkpoint that is retained",
            help="choose a newer one; num_retained says how many are kept",
            reason="RETIRED",
        )


def nameable(ledger: Ledger, name: str, id: int | None) -> Decision:
    """Return the decision of the checkpoint to be named (default: the last published one), or raise Rejected."""
    _check(name)
    id = id if id is not None else _last(ledger)
    decision = ledger.decision(id)
    if decision is None or decision.manifest is None or ledger.published(id) is None:
        problem = "is not completed, or not on all tables yet"
        raise no_such_checkpoint(ledger.pipeline, id, problem=problem, expected="one that a rollback can return to")
    return decision


def jobs_with_input_in_flight(ledger: Ledger, id: int) -> list[str]:
    """Return the jobs that had input in flight in a checkpoint. Rows in flight are never copied."""
    entry = ledger.entry(id)
    if entry is not None and entry.manifest is not None:
        return sorted(entry.manifest.in_flight)
    return []


def check_free(ledger: Ledger, name: str, id: int | None) -> None:
    """Raise Rejected if another checkpoint than `id` has the name, before any work is done for it."""
    _check(name)
    existing = next((savepoint for savepoint in savepoints(ledger) if savepoint.name == name), None)
    if existing is not None and existing.entry != id:
        raise _duplicate_name_error(ledger, name, existing.entry)


def _check(name: str) -> None:
    if check_name("savepoint", name).isdecimal():
        raise Invalid(
            f"savepoint name {name!r} is a number",
            expected="a name that cannot be taken for a checkpoint's number",
            help="put a word before it",
            reason="BAD_NAME",
        )


def _duplicate_name_error(ledger: Ledger, name: str, entry: int) -> Rejected:
    return Rejected(
        f"savepoint {name!r} of pipeline {ledger.pipeline!r} exists already: checkpoint {entry}",
        expected="a new name",
        help="choose another one, or dispose of that one first",
        reason="NAME_TAKEN",
    )


def savepoints(ledger: Ledger) -> list[Savepoint]:
    """Return all savepoints, the newest checkpoint first."""
    pins = [pin for pin in ledger.pins() if pin.kind == "savepoint"]
    unsorted = []
    for pin in pins:
        unsorted.append(Savepoint(pin.owner.removeprefix(_OWNER), pin, ledger.has_plan(pin.entry)))
    return sorted(unsorted, key=lambda savepoint: (-savepoint.entry, savepoint.name))


def find(ledger: Ledger, name: str) -> Savepoint:
    """Return the savepoint with this name. Raise Invalid, with a list of the existing ones, if it does not exist."""
    by_name = {savepoint.name: savepoint for savepoint in savepoints(ledger)}
    if name not in by_name:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no savepoint {name!r}",
            expected=" or ".join(sorted(by_name)) or "a savepoint",
            help=f"`tidegate savepoint create {ledger.pipeline} {name}` makes one",
            reason="NO_SUCH_SAVEPOINT",
        )
    return by_name[name]


def dispose(ledger: Ledger, name: str) -> Savepoint:
    """Remove the name. The next clean-up removes the checkpoint, unless it is retained anyway."""
    savepoint = find(ledger, name)
    ledger.delete_pin(savepoint.pin.owner)
    return savepoint


def _last(ledger: Ledger) -> int:
    settled = ledger.view().settled
    if settled:
        return settled
    raise Rejected(
        f"pipeline {ledger.pipeline!r} has no checkpoint that is on all tables",
        expected="one to name",
        help=how_to_make_one(ledger),
        reason="NO_SUCH_CHECKPOINT",
    )


# -- periodic savepoints ---------------------------------------------------------------------------------


def create_periodic_savepoint(pipeline: PipelineContext) -> str | None:
    """Create a periodic savepoint of the last published checkpoint, if one is due. Return its name.

    Any process may call this at any time: two concurrent calls create the same savepoint, because its name contains the
    checkpoint's number. A surplus one is disposed of by the next call. Without the setting nothing happens.
    """
    settings = pipeline.settings.record()
    interval_s = _parsed(settings, "savepoint_interval")
    num_retained = _parsed(settings, "savepoints_retained")
    ledger = pipeline.ledger
    newest = ledger.view().settled if interval_s is not None else 0
    if not newest:
        return None
    periodic = []
    for savepoint in savepoints(ledger):
        if savepoint.name.startswith(PERIODIC):
            periodic.append(savepoint)
    created = None
    last = periodic[0].entry if periodic else None
    if last is None or (last < newest and _seconds_between(ledger, last, newest) >= interval_s):
        with contextlib.suppress(Rejected):  # newer checkpoints completed in the meantime, and retention removed it
            created = create(ledger, f"{PERIODIC}{newest}", newest, "tidegate")
            periodic.insert(0, created)
    for savepoint in periodic[num_retained:]:
        with contextlib.suppress(Invalid):  # another process has disposed of it
            dispose(ledger, savepoint.name)
    return created.name if created is not None else None


def _parsed(settings: Json, name: str) -> Any:
    return KEYS[name].parse(settings.get(name, KEYS[name].default))


def _seconds_between(ledger: Ledger, before: int, now: int) -> float:
    """Return the seconds between two checkpoints, by the store's clock, or infinity if one of them is removed."""
    older, newer = ledger.age_of_decision(before), ledger.age_of_decision(now)
    if older is None or newer is None:
        return float("inf")
    return older - newer
