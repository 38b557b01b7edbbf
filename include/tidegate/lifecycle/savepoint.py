"""Savepoints: checkpoints that somebody has given a name. A pin spares one from retention until it is disposed of.

A savepoint is a reference: it holds nothing itself. What it names (records, side files, files of states) is spared;
tables keep their older versions until somebody else's VACUUM takes files of them, which `verify` notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.errors import Invalid, Rejected
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.records.names import check_name
from tidegate.records.records import Decision, Pin

if TYPE_CHECKING:
    pass

__all__ = ["Savepoint", "behind", "check_free", "create", "dispose", "find", "nameable", "savepoints"]

_OWNER = "savepoint-"


@dataclass(frozen=True)
class Savepoint:
    """A named checkpoint."""

    name: str
    pin: Pin
    there: bool = True
    """False: its checkpoint is retired, or gone. Whoever named it died before noticing; or somebody has deleted it."""

    @property
    def entry(self) -> int:
        """The checkpoint."""
        return self.pin.entry


def create(ledger: Ledger, name: str, id: int | None, by: str, note: str = "") -> Savepoint:
    """Give checkpoint `id` (by default the last one that is on all tables) a name. The same again: nothing happens."""
    decision = nameable(ledger, name, id)
    id = decision.id
    assert decision.manifest is not None
    wanted = Pin(
        **stamp(seams.new_id()),
        owner=f"{_OWNER}{name}",
        kind="savepoint",
        entry=id,
        manifest=decision.manifest,
        by=by,
        note=note,
    )
    made = ledger.create_pin(wanted)
    if made.record.entry != id:
        raise _taken(ledger, name, made.record.entry)
    if not ledger.is_kept(id):  # own mark first, then the other's: retention does it the other way round
        if made.mine:
            ledger.delete_pin(wanted.owner)
        raise Rejected(
            f"checkpoint {id} of pipeline {ledger.pipeline!r} is claimed by retention",
            expected="a checkpoint that is retained",
            help="choose a newer one; num_retained says how many are kept",
            reason="RETIRED",
        )
    return Savepoint(name, made.record)


def nameable(ledger: Ledger, name: str, id: int | None) -> Decision:
    """The checkpoint that is to have a name, by default the last one that is on all tables."""
    _check(name)
    id = id if id is not None else _last(ledger)
    decision = ledger.decision(id)
    if decision is None or decision.manifest is None or ledger.published(id) is None:
        problem = "is not completed, or not on all tables yet"
        raise no_such_checkpoint(ledger.pipeline, id, problem=problem, expected="one that a rollback can go back to")
    return decision


def behind(ledger: Ledger, id: int) -> list[str]:
    """The jobs that had yet to take rows in a checkpoint. What is in flight is never copied."""
    entry = ledger.entry(id)
    return sorted(entry.manifest.in_flight) if entry is not None and entry.manifest is not None else []


def check_free(ledger: Ledger, name: str, id: int | None) -> None:
    """Refuse a name that another checkpoint than `id` has, before anything is done for it."""
    _check(name)
    taken = next((each for each in savepoints(ledger) if each.name == name), None)
    if taken is not None and taken.entry != id:
        raise _taken(ledger, name, taken.entry)


def _check(name: str) -> None:
    if check_name("savepoint", name).isdecimal():
        raise Invalid(
            f"savepoint name {name!r} is a number",
            expected="a name that cannot be taken for a checkpoint's number",
            help="put a word before it",
            reason="BAD_NAME",
        )


def _taken(ledger: Ledger, name: str, entry: int) -> Rejected:
    return Rejected(
        f"savepoint {name!r} of pipeline {ledger.pipeline!r} is there already: checkpoint {entry}",
        expected="a new name",
        help="choose another one, or dispose of that one first",
        reason="NAME_TAKEN",
    )


def savepoints(ledger: Ledger) -> list[Savepoint]:
    """All of them, the newest checkpoint first."""
    pins = [pin for pin in ledger.pins() if pin.kind == "savepoint"]
    found = [Savepoint(pin.owner.removeprefix(_OWNER), pin, ledger.has_plan(pin.entry)) for pin in pins]
    return sorted(found, key=lambda each: (-each.entry, each.name))


def find(ledger: Ledger, name: str) -> Savepoint:
    """The savepoint of this name; Invalid says which there are."""
    known = {each.name: each for each in savepoints(ledger)}
    if name not in known:
        raise Invalid(
            f"pipeline {ledger.pipeline!r} has no savepoint {name!r}",
            expected=" or ".join(sorted(known)) or "a savepoint",
            help=f"`tidegate savepoint create {ledger.pipeline} {name}` makes one",
            reason="NO_SUCH_SAVEPOINT",
        )
    return known[name]


def dispose(ledger: Ledger, name: str) -> Savepoint:
    """Forget the name. The checkpoint goes with the next clean-up, unless it is retained for its own sake."""
    found = find(ledger, name)
    ledger.delete_pin(found.pin.owner)
    return found


def _last(ledger: Ledger) -> int:
    settled = ledger.view().settled
    if settled:
        return settled
    raise Rejected(
        f"pipeline {ledger.pipeline!r} has no checkpoint that is on all tables",
        expected="one, to be given a name",
        help=f"run it: tidegate run {ledger.pipeline}",
        reason="NO_SUCH_CHECKPOINT",
    )
