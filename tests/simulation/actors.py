"""What simulated processes do: runs with all their tasks, meddlers, other writers, and the last one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal, TypeVar

from tests.kit.fake_store import FakeStore
from tests.kit.toys import ToyCommit
from tests.simulation.world import FORK, GATE, TABLES, SimulatedWorld, Violation
from tidegate.checkpoint import approvals, quarantine_requests
from tidegate.coordinator import AlreadyCovered, Coordinator, Outcome, Triggered
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError, Unavailable
from tidegate.gates.quarantine.table import quarantine_name
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import Plan, Request

T = TypeVar("T")
Asks = Callable[[], Triggered | AlreadyCovered | None]

TRIES = 8
"""How often a task is tried before its process gives up, as long as things go wrong."""


class GaveUp(Exception):
    """A task has failed for good."""


def run(world: SimulatedWorld, name: str) -> None:
    """One run: trigger, jobs, completion, publish, retention. After an abort it asks for another checkpoint."""
    coordinator = world.coordinator()
    try:
        for _ in range(4):
            if checkpoint(world, coordinator, name) != "aborted":
                return
    except GaveUp:
        world.log("gives up")


def checkpoint(world: SimulatedWorld, coordinator: Coordinator, run: str, asks: Asks | None = None) -> str:
    """One checkpoint from trigger to publish; answers with what became of it."""
    triggered = patiently(world, asks or world.asks(coordinator, run, suspicion(world, run)), coordinator)
    if not isinstance(triggered, Triggered):
        return "nothing new"
    plan = triggered.plan
    world.checks_plan(run, plan, world.other(FORK) if coordinator.graph.name == FORK else world.store)
    failure = jobs(world, coordinator, plan)
    outcome = patiently(world, lambda: coordinator.complete(plan.id, failure))
    for _ in range(20):
        if outcome.state != "open":
            break
        world.sleep(5)
        if world.calm:
            answer_all(world)  # also what it rests on, whose run may be gone
        elif outcome.reason == approvals.HELD:
            answer(world, coordinator, plan.id)
        elif world.calm and coordinator.graph.gates:  # what it rests on may be held
            for entry in patiently(world, coordinator.ledger.view).still_open():
                answer(world, coordinator, entry.id)
        if not world.calm and world.dice.chance(0.1):
            outcome = patiently(world, lambda: coordinator.abort(plan.id, "CANCELLED"))
        else:
            outcome = patiently(world, lambda: coordinator.complete(plan.id))
    publish(world, coordinator)
    return outcome.state


def answer(world: SimulatedWorld, coordinator: Coordinator, id: int) -> None:
    """A person looks at what is held: on a bad day not soon, and says anything."""
    if not world.calm and world.dice.chance(0.7):
        return
    quarantine = world.bad > 0 and world.dice.chance(0.3)
    approve = not quarantine and (world.calm or world.dice.chance(0.6))
    words = "yes" if approve else "quarantine" if quarantine else "no"
    try:
        said = approvals.answer(coordinator.ledger, id, None, approve=approve, by="a person", quarantine=quarantine)
        world.log(f"says {words} to checkpoint {id}: {[each.approve for each in said]} counts")
    except (Unavailable, Rejected) as error:
        world.log(f"says nothing that counts: {error.what}")


def answer_all(world: SimulatedWorld) -> None:
    """A person looks at all that is held."""
    coordinator = world.coordinator()
    for entry in coordinator.ledger.view().still_open():
        answer(world, coordinator, entry.id)


def jobs(world: SimulatedWorld, coordinator: Coordinator, plan: Plan) -> tuple[str, str] | None:
    """All jobs of a checkpoint; why they failed, if they did."""
    for job in plan.acks:
        try:
            patiently(world, lambda job=job: world.work(coordinator, plan.id, job))
        except Fenced:
            return None  # decided without us: completion finds out how
        except GaveUp as error:
            return "JOB_FAILED", str(error)
    return None


def publish(world: SimulatedWorld, coordinator: Coordinator) -> None:
    """Publish, hints, retention: what any process may do at any time."""

    def once() -> None:
        report = coordinator.publish()
        if world.calm and report.stuck:
            raise next(iter(report.stuck.values()))

    patiently(world, once)
    patiently(world, coordinator.retire)


def patiently(world: SimulatedWorld, call: Callable[[], T], whose: Coordinator | None = None) -> T:
    """Try again while storage does not answer, or while others must come first."""
    tries = 0
    while True:
        try:
            return call()
        except (Unavailable, Rejected, Invalid) as error:
            if isinstance(error, Invalid) and not world.waits_rightly(error):
                raise
            if isinstance(error, Rejected) and error.reason == "RETIRED":
                raise GaveUp(error.what) from None
            tries += 1
            if tries > TRIES and not world.calm:
                raise GaveUp(error.what) from None
            if tries > 200:
                raise Violation(f"I8: tried {tries} times, still {error}") from None
            world.log(f"waits: {error.what}")
            if world.calm and error.reason in ("SUSPENDED", "STOPPED", "FINISHED"):  # then a person looks after it
                ledger = (whose or world.coordinator()).ledger
                with contextlib.suppress(Unavailable):
                    control.resume(ledger, "operator", after_end=True)
            elif world.calm and error.reason == "CHECKPOINT_IN_PROGRESS":  # some may be held, and nobody ends these
                answer_all(world)
        world.sleep(1 + world.dice.below(20))


def suspicion(world: SimulatedWorld, me: str) -> Callable[[Plan], str | None]:
    """Whether another run is taken for dead: often wrongly on a bad day, only rightly on a calm one."""

    def give_up(plan: Plan) -> str | None:
        if world.calm:
            return None if world.is_running(plan.run) else "RUN_GONE"
        return "RUN_GONE" if world.dice.chance(world.climate.suspicion) else None

    return give_up


def meddler(world: SimulatedWorld) -> None:
    """Late tasks, cleared tasks, impatient people: any call about any checkpoint at any time."""
    coordinator = world.coordinator()
    for _ in range(6):
        world.sleep(world.dice.below(80))
        last = max((int(name) for name in world.store.listing("checkpoints")), default=0)
        id = 1 + world.dice.below(last) if last else 0
        calls: list[Callable[[], object]] = [lambda: coordinator.publish(), lambda: coordinator.retire()]
        if world.dice.chance(0.2):
            calls = [lambda: coordinator.suspend("meddler", ""), lambda: coordinator.resume("meddler")]
            calls += [lambda: control.stop(coordinator.ledger, "meddler", "")]
            calls += [lambda: control.cancel(coordinator.ledger, "meddler", "")]
        if id:
            calls += [
                lambda: coordinator.abort(id, "CANCELLED"),
                lambda: coordinator.complete(id),
                lambda: coordinator.complete(id, ("JOB_FAILED", "it seemed so")),
                lambda: world.work(coordinator, id, world.some_job()),
                lambda: answer(world, coordinator, id),
            ]
        call = world.dice.one_of(calls)
        try:
            call()
        except (Unavailable, Rejected, Fenced, Invalid) as error:
            known = error.reason == "NO_SUCH_CHECKPOINT" or world.waits_rightly(error)
            if isinstance(error, Invalid) and not known:
                raise
            world.log(f"meddled in vain: {error.what}")


def rollbacker(world: SimulatedWorld) -> None:
    """A person who goes back to some checkpoint, again and again."""
    coordinator = world.coordinator()
    for number in range(world.climate.rollbacks):
        world.sleep(world.dice.below(world.spread))
        while not (ids := completed(world)) and not world.calm:
            world.sleep(20)
        if not ids:
            return
        to = world.dice.one_of(ids) if world.dice.chance(0.9) else 1 + world.dice.below(ids[-1])
        if world.dice.chance(0.5):
            _name(world, number, to)
        foreign = {name: "discard" for name in TABLES if any(c.id is None for c in world.tables[name].commits)}
        suspends = world.dice.chance(0.3)
        if suspends:
            with contextlib.suppress(Unavailable):
                coordinator.suspend("rollbacker", "")
        for _ in range(3):
            try:
                done = coordinator.roll_back(to, run=f"rollback {number}", by="rollbacker", choices=foreign)
                world.log(f"went back to {to} by {done.id}")
                break
            except (Unavailable, Rejected) as error:
                world.log(f"did not go back to {to}: {error.what}")
            except Invalid as error:
                if error.reason != "NO_SUCH_CHECKPOINT":
                    raise
        if suspends and world.dice.chance(0.7):
            world.sleep(world.dice.below(100))
            with contextlib.suppress(Unavailable, Rejected):  # it may be finished
                coordinator.resume("rollbacker")


def _name(world: SimulatedWorld, number: int, id: int) -> None:
    """Make a savepoint, or dispose of one."""
    ledger = world.coordinator().ledger
    try:
        known = savepoint.savepoints(ledger)
        if known and world.dice.chance(0.4):
            gone = world.dice.one_of(known).name
            world.promised.pop(gone, None)
            savepoint.dispose(ledger, gone)
        made = savepoint.create(ledger, f"s{number}", id, "rollbacker")
        world.promised[made.name] = made.entry
        world.log(f"names checkpoint {id}")
    except (Unavailable, Rejected, Invalid) as error:
        world.log(f"names nothing: {error.what}")


def completed(world: SimulatedWorld, store: FakeStore | None = None) -> list[int]:
    """What is completed and there, by the bytes."""
    store = store or world.store
    names = store.listing("checkpoints")
    told = {int(name): store.files.get(f"checkpoints/{name}/decision.json") for name in names}
    return [id for id, found in told.items() if found is not None and b'"completed"' in found.data]


def releaser(world: SimulatedWorld) -> None:
    """A person who looks into the quarantine now and then, and lets rows continue, or gives them up."""
    ledger = world.coordinator().ledger
    for number in range(10):
        world.sleep(world.dice.below(60))
        seen = max((commit.id or 0 for commit in world.tables[quarantine_name(GATE)].commits), default=0)
        if not seen:
            continue
        action: Literal["release", "discard"] = "release" if world.dice.chance(0.8) else "discard"
        wanted = Request(**stamp(f"request {number}"), number=1, gate=GATE, action=action, seen=seen, by="releaser")
        try:
            world.log(f"asks to {action} what waits: request {quarantine_requests.ask(ledger, wanted).number}")
        except (Unavailable, Rejected) as error:
            world.log(f"asks in vain: {error.what}")


def operator(world: SimulatedWorld) -> None:
    """A person who ends what nobody works on any more, once all is calm."""
    coordinator = world.coordinator()
    for _ in range(100):
        world.sleep(50)
        _end_left_behind(world, coordinator, world.is_left_behind)
        if FORK in world.others and patiently(world, lambda: world.fork().ledger.identity_or_none()) is not None:
            _end_left_behind(world, world.fork(), lambda run: not world.is_at_work(run.split()[0]))


def _end_left_behind(world: SimulatedWorld, coordinator: Coordinator, is_left_behind: Callable[[str], bool]) -> None:
    for entry in patiently(world, coordinator.ledger.view).still_open():
        if is_left_behind(entry.plan.run):
            patiently(world, lambda id=entry.id: coordinator.abort(id, "CANCELLED"))


def foreign_writer(world: SimulatedWorld) -> None:
    """Somebody else commits to the same tables."""
    for number in range(world.climate.foreign_commits):
        world.sleep(20 + world.dice.below(100))
        table = world.tables[world.dice.one_of(TABLES)]
        table.commits.append(ToyCommit("somebody else", None, ()))
        world.log(f"makes foreign commit {number}")


def last_run(world: SimulatedWorld) -> None:
    """I8: when all is calm, one more run ends what is open, makes a checkpoint, and publishes all that is owed."""
    coordinator = world.coordinator()
    outcome: Outcome | str = ""
    for number in range(3):
        try:
            outcome = checkpoint(world, coordinator, f"last {number}")
        except (TidegateError, GaveUp) as error:
            raise Violation(f"I8: the last run fails: {error}") from error
        if outcome == "completed":
            return
    raise Violation(f"I8: the last run's checkpoint is {outcome}")
