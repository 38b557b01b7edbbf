"""Processes of several runs, all in one: each has its turn up to its next fault point, and one of them dies.

Every try of a task is a greenlet, as it is a process under Airflow. At each fault point it gives its turn to the next,
in a fixed order; so a story is the same each time, but for what is done to it at one point:

    retried    the task is killed there (it never has another turn), and started again
    gone       its whole run is, at once; nobody starts it again, and others continue from what they find
    failed     the point raises: the task's own error handling, then a retry
    zombie     it hangs there and is taken for dead: it is started again, and continues when all else is done
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from tests.crash.four_jobs import MODES, SeveralWorld
from tests.kit.limits import Limits
from tidegate import seams
from tidegate.coordinator import Triggered
from tidegate.errors import Fenced, Rejected, Unavailable
from tidegate.execution.finish import decide_earlier, finish
from tidegate.execution.job.run_job import run_job
from tidegate.records.records import Plan

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RUNS = 3
SLOW = {"paying": 60}
"""Jobs that take their time, in every other run, and for how many ticks."""
FATES = ("retried", "gone", "failed", "zombie")


class Passing(NamedTuple):
    """One task's try at one fault point, for the nth time."""

    task: str
    point: str
    nth: int


@dataclass
class Try:
    """One process."""

    run: str
    task: str
    body: greenlet
    wake: float = 0.0
    alive: bool = True
    hangs: bool = False

    @property
    def there(self) -> bool:
        """Whether anybody who looks at the machine sees it at work."""
        return self.alive and not self.hangs and not self.body.dead


@dataclass
class Theatre:
    """The processes of a story, and what becomes of one of them."""

    world: SeveralWorld
    fated: Passing | None = None
    fate: str = ""
    tick: float = 0.0
    tries: list[Try] = field(default_factory=list)
    passings: list[Passing] = field(default_factory=list)
    went_past: list[float] = field(default_factory=list)
    """When checkpoints went past a job."""
    met: bool = False
    """Whether it has come to that point."""
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._ids = 0
        self._hub = getcurrent()
        self._now: Try | None = None
        self._started: dict[str, Callable[[], None]] = {}

    @property
    def passed(self) -> int:
        return len(self.went_past)

    def seams(self) -> seams.Seams:
        return seams.Seams(
            now=lambda: EPOCH + timedelta(seconds=self.tick),
            monotonic=lambda: self.tick,
            sleep=self.sleep,
            new_id=self._new_id,
            fault=self._fault,
        )

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:016x}"

    # -- turns

    def _fault(self, point: str) -> None:
        me = self._now
        if me is None:
            return
        self.tick += 1
        self._counts[me.task, point] += 1
        here = Passing(me.task, point, self._counts[me.task, point])
        self.passings.append(here)
        if here == self.fated and not self.met:
            self.met = True
            self._meet(me, point)
        self._hub.switch()

    def _meet(self, me: Try, point: str) -> None:
        if self.fate == "failed":
            raise Unavailable(f"injected at {point}", reason="INJECTED")
        if self.fate == "zombie":
            me.hangs = True
        else:
            me.alive = False
        if self.fate == "gone":
            for other in self.tries:
                other.alive = other.alive and other.run != me.run
        else:
            self.start(me.run, me.task, self._started[me.task], delay=15)
        self._hub.switch()

    def sleep(self, seconds: float) -> None:
        me = self._now
        assert me is not None
        me.wake = self.tick + max(seconds, 1.0)
        self._hub.switch()

    def start(self, run: str, task: str, body: Callable[[], None], delay: float = 0.0) -> None:
        self._started[task] = body
        self.tries.append(Try(run, task, greenlet(self._guarded(body)), wake=self.tick + delay))

    def _guarded(self, body: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                body()
            except Exception as error:  # told by whoever judges
                self.errors.append(error)

        return guarded

    def play(self) -> None:
        """Until all have ended that have not hung or died."""
        turns = 0
        while ready := [each for each in self.tries if each.there]:
            turns += 1
            assert turns < 3_000, "no end in sight"
            awake = [each for each in ready if each.wake <= self.tick]
            if not awake:
                self.tick = min(each.wake for each in ready)
                continue
            for each in awake:
                if each.there:
                    self._turn(each)
            if self.errors:
                raise self.errors[0]

    def _turn(self, each: Try) -> None:
        self._now = each
        each.body.switch()
        self._now = None

    def wake_zombies(self) -> None:
        for each in self.tries:
            each.hangs = False

    # -- what tasks do

    def at_work(self, plan: Plan, job: str) -> bool:
        return any(each.there and each.task == f"{plan.run}.{job}" for each in self.tries)

    def give_up(self, plan: Plan) -> str | None:
        return None if any(each.there and each.run == plan.run for each in self.tries) else "RUN_GONE"

    def run(self, name: str, slow: bool = False, delay: float = 0.0) -> None:
        """A DAG run: its trigger, then a task per job, then `complete`."""

        def trigger() -> None:
            coordinator = self.world.coordinator()
            found = self._patiently(lambda: coordinator.trigger(name, give_up=self.give_up, only_if_new=True))
            if not isinstance(found, Triggered):
                self._patiently(coordinator.publish)
                return
            jobs = found.plan.acks
            for job in jobs:
                self.start(name, f"{name}.{job}", lambda job=job: self._job(found.plan, job, slow))  # type: ignore[misc]
            self.start(name, f"{name}.complete", lambda: self._complete(name, found.plan))

        self.start(name, f"{name}.trigger", trigger, delay)

    def _job(self, plan: Plan, job: str, slow: bool) -> None:
        coordinator = self.world.coordinator()

        def step(what: str) -> None:
            if slow and what == "acknowledging" and job in SLOW:
                self.sleep(SLOW[job])

        def work() -> None:
            try:
                run_job(coordinator, plan.id, job, None, step, self.at_work)  # type: ignore[arg-type]
            except Rejected as error:
                if error.reason == "BASE_IN_PROGRESS":
                    decide_earlier(coordinator, plan.id, self.give_up)
                raise

        try:
            self._patiently(work)
        except Fenced:
            return
        except Rejected as error:
            if error.reason != "PASSED_BY":
                raise
            self.went_past.append(self.tick)

    def _complete(self, run: str, plan: Plan) -> None:
        while any(each.there and each.run == run and not each.task.endswith(".complete") for each in self.tries):
            self.sleep(1)
        coordinator = self.world.coordinator()
        self._patiently(
            lambda: finish(coordinator, plan.id, None, give_up=self.give_up, wait=lambda why: self.sleep(3))
        )

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Airflow's retries and waits."""
        for _ in range(300):
            try:
                return call()
            except (Unavailable, Rejected) as error:
                if error.reason in ("PASSED_BY", "RETIRED"):
                    raise
                self.sleep(4)
        raise AssertionError("tried in vain")


def tell(world: SeveralWorld, fated: Passing | None = None, fate: str = "") -> Theatre:
    """The whole story: runs beside each other, something happens to one, then others come until all is read."""
    theatre = Theatre(world, fated, fate)
    files = RUNS + 1
    with seams.installed(theatre.seams()):
        world.feed(files)
        for number in range(RUNS):
            theatre.run(f"run{number}", slow=number % 2 == 0, delay=20.0 * number)
        theatre.play()
        _recover(theatre, files)
        if fate == "zombie":
            theatre.wake_zombies()
            theatre.play()
            _recover(theatre, files + 1)
    return theatre


def _recover(theatre: Theatre, files: int) -> None:
    """The next runs, as a scheduler starts them; the last one waits for every job."""
    world = theatre.world
    for number in range(files):
        theatre.run(f"next{files}-{number}")
        theatre.play()
    world.feed(files + 1)
    if world.exactly_once:
        world.limits = replace(world.limits, recorded=MODES["aligned"])
    theatre.run(f"last{files}")
    theatre.play()


def story(root: Any, mode: str, k: int, fated: Passing | None = None, fate: str = "") -> Theatre:
    """A fresh world, and the story in it."""
    return tell(
        SeveralWorld(root, Limits(timeout=1e9, max_concurrent_checkpoints=k, num_retained=2, recorded=MODES[mode])),
        fated,
        fate,
    )
