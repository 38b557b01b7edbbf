"""The life of a pipeline on a bad day: people who fork it, copy it, and let it come to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

from tests.simulation import actors
from tests.simulation.world import FORK, SimulatedWorld, Violation
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError, Unavailable
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import control, copies, savepoint
from tidegate.lifecycle.fork import fork, forked_already, inspect_snapshot
from tidegate.lifecycle.snapshot import CheckpointSnapshot, checkpoint_snapshot
from tidegate.records.records import Drain

FORKER, COPIER = "fork", "copy"
"""How the processes' names begin."""


def begin(world: SimulatedWorld) -> None:
    """Whoever takes part today."""
    for _ in range(world.climate.forks):  # of two, one comes too late, or both make the same one
        world.spawn(FORKER, "", lambda: _forker(world), world.dice.below(300))
    for number in range(world.climate.copies):
        world.spawn(COPIER, "", lambda number=number: _copier(world, number), world.dice.below(300))
    if world.climate.drains:
        world.spawn("drain", "", lambda: _drainer(world), world.dice.below(300))


@contextlib.contextmanager
def folders_in_memory(world: SimulatedWorld) -> Iterator[None]:
    """A folder that somebody names lies in the storage of this world."""

    def ledger(folder: str, pipeline: str, options: object) -> Ledger:
        return Ledger(world.other(folder), pipeline)

    with mock.patch.object(copies, "folder_ledger", ledger):
        yield


# -- forks -------------------------------------------------------------------------------------------------


def _forker(world: SimulatedWorld) -> None:
    """A person who forks, again and again until it is there; then works with the fork."""
    assert world.current is not None
    me = world.current.name
    for _ in range(10 if world.climate.copies and world.dice.chance(0.5) else 0):
        if not _copies(world):
            world.sleep(40)
    for _ in range(6):
        world.sleep(world.dice.below(100))
        ids = actors.completed(world)
        if ids and _told(world, lambda ids=ids: _fork(world, world.dice.one_of(ids))) == "":  # type: ignore[misc]
            break
    else:
        return
    with contextlib.suppress(actors.GaveUp):
        for number in range(1 + world.dice.below(3)):
            actors.checkpoint(world, world.fork(), f"{me} {number}")
            if world.dice.chance(0.3):
                _told(world, lambda number=number: _back(world, f"{me} back {number}"))  # type: ignore[misc]


def _fork(world: SimulatedWorld, id: int) -> None:
    """From the pipeline, or from a copy that somebody has made."""
    made = _copies(world)
    if made and world.dice.chance(0.9):
        _from_copy(world, world.dice.one_of(made))
        return
    to = world.fork()
    held = inspect_snapshot(checkpoint_snapshot(world.coordinator().ledger, id, {}, by="forker"), to)
    fork(held, to)
    world.log(f"has forked checkpoint {id}")


def _copies(world: SimulatedWorld) -> list[str]:
    """The folders that hold a whole one."""
    return [folder for folder, store in world.others.items() if "savepoint.json" in store.files]


def _from_copy(world: SimulatedWorld, folder: str) -> None:
    to, copied = world.fork(), copies.open_copy(folder, {})
    if forked_already(copied, to, claims=False):
        return
    held: CheckpointSnapshot = checkpoint_snapshot(copied.ledger, copied.copy.origin.entry, {}, by="forker")
    fork(inspect_snapshot(held, to), to, copied)
    world.log(f"has forked {folder}, checkpoint {copied.copy.origin.entry}")


def _back(world: SimulatedWorld, run: str) -> None:
    ids = actors.completed(world, world.other(FORK))
    if ids:
        to = world.dice.one_of(ids)
        done = world.fork().roll_back(to, run=run, by="forker")
        world.log(f"the fork went back to {to} by {done.id}")


def _told(world: SimulatedWorld, call: Callable[[], object]) -> str:
    """ "" if it was done, or why not."""
    try:
        call()
    except (Unavailable, Rejected, Fenced) as error:
        world.log(f"did not: {error.what}")
        return error.reason or "NOT_DONE"
    except Invalid as error:
        if error.reason != "NO_SUCH_CHECKPOINT":
            raise
        return error.reason
    return ""


def last_fork(world: SimulatedWorld) -> None:
    """A fork that was begun is brought to its end, if what it was begun from is there; and then it works."""
    to = world.fork()
    known = to.ledger.identity_or_none() or to.ledger.claim()
    if known is None or known.origin is None:
        return
    if to.ledger.identity_or_none() is None:
        try:
            _fork_again(world, known.origin.entry)
        except (Rejected, Invalid) as error:
            world.log(f"the fork comes to nothing: {error.what}")
            return
    try:
        outcomes = [actors.checkpoint(world, world.fork(), f"last fork {number}") for number in range(2)]
    except (TidegateError, actors.GaveUp) as error:
        raise Violation(f"I8: the fork does not work: {error}") from error
    if outcomes[-1] != "completed":
        raise Violation(f"I8: the last checkpoints of the fork are {outcomes}")


def _fork_again(world: SimulatedWorld, id: int) -> None:
    made = _copies(world)
    of = [folder for folder in made if copies.open_copy(folder, {}).copy.origin.entry == id]
    if of:
        _from_copy(world, of[0])
        return
    fork(
        inspect_snapshot(checkpoint_snapshot(world.coordinator().ledger, id, {}, by="forker"), world.fork()),
        world.fork(),
    )


# -- copies ------------------------------------------------------------------------------------------------


def _copier(world: SimulatedWorld, number: int) -> None:
    """A person who wants a checkpoint as a folder, and asks for it until it is there."""
    folder, id = f"{COPIER}{number}", 0
    for _ in range(8):
        world.sleep(world.dice.below(80))
        ids = actors.completed(world)
        id = id or (world.dice.one_of(ids) if ids else 0)
        if id:
            why = _told(world, lambda id=id: _copy(world, folder, id))  # type: ignore[misc]
            if not why:
                return
            if why in ("RETIRED", "NO_SUCH_CHECKPOINT"):
                id = 0


def _copy(world: SimulatedWorld, folder: str, id: int) -> None:
    ledger = world.coordinator().ledger
    savepoint.nameable(ledger, "copied", id)
    copies.copy_out(checkpoint_snapshot(ledger, id, {}, by="copier"), folder, "copied")
    world.log(f"has copied checkpoint {id} to {folder}")


# -- the end -----------------------------------------------------------------------------------------------


def _drainer(world: SimulatedWorld) -> None:
    """A person who lets event time come to its end; and sometimes goes on behind it, on purpose."""
    coordinator = world.coordinator()

    def asks() -> object:
        gone = actors.suspicion(world, "end")
        return coordinator.trigger("end", give_up=gone, drain=Drain(by="drainer"))

    try:
        ended = actors.checkpoint(world, coordinator, "end", asks)  # type: ignore[arg-type]
    except actors.GaveUp:
        return
    world.log(f"the end is {ended}")
    if world.dice.chance(0.5):
        world.sleep(world.dice.below(200))
        _told(world, lambda: control.resume(coordinator.ledger, "drainer", after_end=True))
