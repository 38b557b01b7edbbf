"""A day's chaos in short: a deployment, its input, a reader that checks all that can be seen, and faults by a seed.

When the time is over the faults stop. Then everything must continue by itself: all input is in the tables, once.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.chaos.deployment import CODE, Deployment
from tests.chaos.faults import FAULTS
from tests.chaos.reader import COLUMNS, Reader, differ, folder_of, released_in, released_of, rows_of
from tests.chaos.reference import NAME, Fed, put

__all__ = ["Chaos"]

_FEED_S = 4.0
_GAP_S = 6.0
"""Between two faults, on average."""
_TRIES = 5
"""As often a fault looks again for somebody to befall."""
_START_S = 400.0
_FINISH_S = 600.0
_STOP_S = 120.0


@dataclass(frozen=True)
class Done:
    """A fault, and when it was over."""

    kind: str
    what: str
    at: float


class Chaos:
    """One run of it."""

    def __init__(
        self, deployment: Deployment, seed: int, minutes: float, only: Sequence[str] = (), every: float = _GAP_S
    ) -> None:
        self.deployment = deployment
        self.seed = seed
        self.minutes = minutes
        self.dice = random.Random(seed)
        self.reader = Reader(deployment)
        self.fed = 0
        self.done: list[Done] = []
        self.missed: Counter[str] = Counter()
        self.spared: dict[str, float] = {}
        self.foreign: list[int] = []
        """Rows that somebody else has written for sure."""
        self.unsure: list[int] = []
        self.wrong: list[str] = []
        self.faults = list(only) or list(FAULTS)
        self.every = every
        self.backfill: str | None = None
        """The name of one that is not over."""
        self.backfills = 0
        self._feeding = threading.Event()
        self._began = time.monotonic()

    # -- all of it

    def run(self) -> list[str]:
        """What went wrong."""
        feeder = threading.Thread(target=self._feed, daemon=True)
        try:
            self.deployment.start()
            feeder.start()
            self.reader.start()
            self._until(
                f"a first checkpoint (see {self.deployment.log})", lambda: bool(self.reader.published), _START_S
            )
            self.say("the first checkpoint is on all tables; now the faults")
            self._faults()
            self.say("no more faults; all of the input must come through")
            self._finish(feeder)
        finally:
            self._feeding.set()
            self.deployment.go_on()
            self.deployment.empty_disk()
            self.reader.close()
        return self.wrong + self.reader.wrong

    def _faults(self) -> None:
        until = time.monotonic() + 60 * self.minutes
        drawn = self._draw()
        while time.monotonic() < until:
            time.sleep(self.dice.expovariate(1 / self.every))
            self.keep_up()
            name = next(drawn)
            one = random.Random(self.dice.random())  # what it draws itself changes nothing of what follows
            what = FAULTS[name][1](self, one)
            for _ in range(_TRIES):
                if what is None:
                    time.sleep(1)
                    what = FAULTS[name][1](self, one)
            if what is None:
                self.missed[name] += 1
            else:
                self.done.append(Done(name, what, time.monotonic()))
                self.say(f"{name}: {what}")

    def _draw(self) -> Iterator[str]:
        """Each fault once, in any order; then by their weights."""
        names = self.faults
        yield from self.dice.sample(names, len(names))
        while True:
            yield self.dice.choices(names, [FAULTS[name][0] for name in names])[0]

    def _finish(self, feeder: threading.Thread) -> None:
        self.deployment.go_on()
        self.deployment.empty_disk()
        self._feeding.set()
        feeder.join()
        self._until("Airflow answers, and the DAG is not paused", self.unpause, _START_S)
        self._until("it is not suspended", self.resume, _START_S)
        self._until("no backfill is left open", self.discard_backfill, _START_S)
        self._until(f"all of {self.fed} files are in all tables", self._all_there, _FINISH_S)
        self.reader.look()
        self._compare()
        code, said = self.tidegate("doctor", NAME)
        if code:
            self.wrong.append(f"`tidegate doctor` finds something:\n{said}")
        up = self.deployment.up
        assert up is not None
        began = time.monotonic()
        up.send_signal(signal.SIGINT)
        try:
            code = up.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"`up` has not ended {_STOP_S:.0f} s after Ctrl-C")
            return
        self.say(f"`up` ended {time.monotonic() - began:.0f} s after Ctrl-C")
        if code:
            self.wrong.append(f"`up` ended with {code}: {self._up_said()}")
        if left := self.deployment.project.left_running():
            self.wrong.append(f"left running: {left}")

    def _all_there(self) -> bool:
        self.keep_up()
        fed = self._wanted()
        return all(self._rows(table) == fed.table(table) for table in COLUMNS)

    def _wanted(self) -> Fed:
        """All that was fed. Which rows were released is what `once` says: it must be what quarantine says, too."""
        return Fed(self.fed, released_in(self._rows("once")))

    def _rows(self, table: str) -> Counter[object]:
        with contextlib.suppress(Exception):  # there may be none yet
            return rows_of(self.deployment.store, table)[0]
        return Counter()

    def _compare(self) -> None:
        fed = self._wanted()
        for table in COLUMNS:
            if (found := self._rows(table)) != fed.table(table):
                self.wrong.append(f"in the end, {table}: {differ(found, fed.table(table))}")
        if (marked := released_of(self.deployment.store)) != fed.released:
            self.wrong.append(f"in the end, released by quarantine: {marked}; in `once`: {set(fed.released)}")
        found, foreign = rows_of(self.deployment.store, "once")
        if Counter(foreign) - Counter(self.foreign + self.unsure) or Counter(self.foreign) - Counter(foreign):
            self.wrong.append(f"the second writer's rows: {sorted(foreign)} instead of {sorted(self.foreign)}")

    # -- what faults use

    def wait(self, seconds: float) -> None:
        """While a fault lasts."""
        time.sleep(seconds)

    def tidegate(self, *words: str) -> tuple[int, str]:
        """A command; one that breaks instead of saying what is wrong is wrong itself."""
        code, said = self.deployment.tidegate(*words)
        if "Traceback" in said or code not in (0, 1, 2, 3):
            self.wrong.append(f"`tidegate {' '.join(words)}` ended with {code}:\n{said[-1500:]}")
        if code:
            self.say(f"  tidegate {' '.join(words)}: {code}: {said.strip()[:300]}")
        return code, said

    def unpause(self) -> bool:
        path = f"/dags/{NAME}?update_mask=is_paused"
        return bool(self.deployment.airflow("PATCH", path, {"is_paused": False}))

    def discard_backfill(self) -> bool:
        if self.backfill is not None and self.tidegate("backfill", CODE, "--discard", self.backfill)[0] == 0:
            self.backfill = None
        return self.backfill is None

    def resume(self) -> bool:
        code, said = self.deployment.tidegate("resume", NAME)
        return code == 0 or (code == 1 and "suspended" in said)

    def write_foreign(self) -> str | None:
        id = -1 - len(self.foreign) - len(self.unsure)
        folder = folder_of(self.deployment.store, "once")
        try:
            schema = DeltaTable(str(folder)).schema()
            names = [field.name for field in schema.fields]
            columns = {name: pa.array([None], pa.int64()) for name in names if name != "at"}
            columns |= {name: pa.array([id], pa.int64()) for name in ("id", "k", "v")}
            if "at" in names:
                columns["at"] = pa.array([None], pa.timestamp("us", "UTC"))
            before = DeltaTable(str(folder)).version()
            write_deltalake(str(folder), pa.table({name: columns[name] for name in names}), mode="append")
        except Exception as error:
            self.unsure.append(id)
            return f"may have failed: {str(error)[:80]}" if folder.exists() else None
        self.foreign.append(id)
        return f"row {id} behind version {before}"

    def keep_up(self) -> None:
        """`up` never ends by itself; if it does, that is told, and it is started again."""
        up = self.deployment.up
        assert up is not None
        if (code := up.poll()) is not None:
            self.wrong.append(f"`up` has ended by itself with {code}: {self._up_said()}")
            self.say(self.wrong[-1])
            self.deployment.start()

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {len(self.reader.published):3} published  {what}", flush=True)

    # -- inside

    def _feed(self) -> None:
        while not self._feeding.is_set():
            self.reader.expect(self.fed + 1)
            with contextlib.suppress(OSError):  # the disk is full: the same file comes again
                put(self.deployment.landing, self.fed + 1)
                self.fed += 1
            self._feeding.wait(_FEED_S)

    def _until(self, what: str, true: object, patience: float) -> None:
        until = time.monotonic() + patience
        while not true():  # type: ignore[operator]
            if time.monotonic() > until:
                self._explain()
                raise AssertionError(f"not within {patience:.0f} s (seed {self.seed}): {what}")
            time.sleep(1)

    def _explain(self) -> None:
        for table in COLUMNS:
            if (found := self._rows(table)) != (wanted := self._wanted().table(table)):
                self.say(f"{table}: {differ(found, wanted)}")
        for words in (("explain", NAME), ("list", NAME)):
            self.say(self.deployment.tidegate(*words)[1][-3000:])
        self.say(self._up_said())

    def _up_said(self) -> str:
        return self.deployment.log.read_text(errors="replace")[-1500:]

    # -- what came of it

    def report(self) -> str:
        """Of each kind of fault, how long it took until the next checkpoint was on all tables."""
        taken: dict[str, list[float]] = defaultdict(list)
        published = sorted(self.reader.published.values())
        for each in self.done:
            if after := [at - each.at for at in published if at > each.at]:
                taken[each.kind].append(after[0])
        lines = [f"{'fault':<20} {'done':>5} {'missed':>6}   {'recovered: median':>17} {'longest':>8}"]
        for name in self.faults:
            times = taken.get(name, [])
            told = f"{statistics.median(times):>15.1f} s {max(times):>6.1f} s" if times else ""
            count = sum(each.kind == name for each in self.done)
            lines.append(f"{name:<20} {count:>5} {self.missed[name]:>6}   {told}")
        gaps = [b - a for a, b in itertools.pairwise(published)]
        lines.append(
            f"seed {self.seed}: {len(self.done)} faults, {self.fed} files, {len(published)} checkpoints published, the "
            f"longest time without one {max(gaps, default=0):.0f} s; {self.reader.looks} versions read, "
            f"{len(self.wrong + self.reader.wrong)} wrong"
        )
        return "\n".join(lines)


def tell(
    seed: int, minutes: float, folder: Path, only: Sequence[str] = (), every: float = _GAP_S, *, spare: bool = True
) -> list[str]:
    """One chaos, told on standard output. only: these faults, and no others. every: seconds between two, on average.
    spare: whether Spark's server has one."""
    with Deployment(folder, spare=spare) as deployment:
        chaos = Chaos(deployment, seed, minutes, only, every)
        try:
            return chaos.run()
        except AssertionError as error:
            chaos.wrong.append(str(error))
            return chaos.wrong + chaos.reader.wrong
        finally:
            print(chaos.report(), flush=True)
