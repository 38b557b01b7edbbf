"""A random life of a pipeline on real Spark and Delta, with backfills on the way that must change nothing.

What befalls it is drawn from ACTS; its clock moves by random amounts, and backfills run a year later (oracle.py). Where
a backfill stands beside a twin, a copy of the world from before it, what comes next must be the same in both.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.replay.oracle import ReplayReport, Trial
from tests.replay.pipelines import CHANGES, CUSTOMERS, Drawn
from tests.replay.proposing import propose_and_accept
from tests.replay.reading import quarantine_rows
from tests.replay.world import Clock, Clocked
from tests.spark.random_cuts import Telling
from tidegate.backfill.choosing import outlook
from tidegate.checkpoint import approvals
from tidegate.checkpoint.quarantine_requests import ask
from tidegate.coordinator import Coordinator, Triggered
from tidegate.errors import Rejected, TidegateError
from tidegate.execution.by_hand.editing import edit_state
from tidegate.execution.input_watch import InputWatch
from tidegate.gates.quarantine import columns as q
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control, savepoint
from tidegate.records.records import Drain, Json, Request

__all__ = ["ACTS", "Life"]

FAULTS = ("", "", "", "crash", "early", "twice", "abort", "fenced")
NEVER_S = 1e9


class Attempts(Telling):
    """One checkpoint with what befalls it. Two attempts stage the same, but for ids of quarantined rows, and chance."""

    def dies(
        self, coordinator: Coordinator, id: int, job: str, point: str, how: Callable[[], object], told: type
    ) -> None:
        """Die at a point, if the attempt comes by it: one that has no rows stages nothing, and what was to happen then
        happens behind it."""
        try:
            super().dies(coordinator, id, job, point, how, told)
        except AssertionError:
            if not point.startswith("S4.stage"):
                raise
            with contextlib.suppress(told):
                how()

    def rows_of(self, files: set[Path]) -> dict[str, Counter[Any]]:
        found = super().rows_of(files)
        return {name: rows for name, rows in found.items() if "/quarantine/" not in name and "shaken" not in name}


class Life:
    """One seed's life."""

    def __init__(self, seed: int, root: Path, spark: Any, drawn: Drawn | None = None) -> None:
        self.root, self.spark, self.told, self.clock = root, spark, ReplayReport(), Clock(seed)
        self.dice = random.Random(f"life {seed}")
        self.sql = random.Random(f"sql {seed}")
        self.play = Clocked(root / "live", spark, drawn or Drawn(seed), in_jobs=self.dice.random() < 0.3)
        if self.dice.random() < 0.2:
            self.play.limit(num_retained=self.dice.choice([2, 4]))
        self.tasks = itertools.cycle([self.dice.choice([1, 2, 3, -1, -2]) for _ in range(40)])
        self.rows = 0
        self.by_event = seed % 3 == 1
        """Whether its checkpoints are made when somebody who watches its sources asks for one."""
        self.pause_is_over = False
        """Whether the longest pause between two of them is over."""
        self.edited = False
        """Whether a change by hand counts."""
        for name in ("rows", "others"):
            (self.play.root / "landing" / name).mkdir(parents=True)
        self._write_customers()

    def live(self, steps: int, acts: tuple[str, ...] = ()) -> ReplayReport:
        """Live, and compare on the way. acts: these, in place of random ones."""
        self.checkpoints()
        for name in acts or self.dice.choices(list(ACTS), list(ACTS.values()), k=steps):
            getattr(self, name)()
        return self.told

    # -- what befalls it ---------------------------------------------------------------------------------------

    def checkpoints(self) -> None:
        """Rows land, time passes, a checkpoint reads them, whatever befalls it."""
        self._land()
        self._pass_time()
        self._checkpoint(self.play, self.dice.choice(FAULTS))

    def reads_a_day(self) -> None:
        """Rows of each kind land, a day passes, nothing goes wrong, and a person approves what is held."""
        for source in ("rows", "others"):
            self.play.feed([self._row(source, k, v) for k, v in [("a", 5), ("b", 3), ("a", 1000), ("b", 60)]], source)
        self.clock.now += timedelta(days=1)
        self._checkpoint(self.play, answer="approve")

    def only_time_passes(self) -> None:
        self._pass_time()
        self._checkpoint(self.play)

    def ends_event_time(self) -> None:
        """All that waits for event time comes; then somebody lets the pipeline continue."""
        if self._checkpoint(self.play, answer="approve", drain=Drain(by="ann")):
            with self.clock.shown():
                control.resume(self.play.ledger, "ann", after_end=True)
            self.told.note("event time has ended, and goes on")

    def changes_customers(self) -> None:
        self._write_customers()
        self.told.note("the table that is looked up changes")

    def releases(self) -> None:
        """A person asks for rows of a quarantine, or wants none of them; the next checkpoint takes it up."""
        ledger = self.play.ledger
        waiting = {gated.name: quarantine_rows(ledger, gated.name) for gated in self.play.graph().gates}
        if not any(waiting.values()):
            return
        gate = self.dice.choice([name for name, rows in waiting.items() if rows])
        how: dict[str, Any] = {"action": self.dice.choice(["release", "release", "release", "discard"])}
        choice = self.dice.choice(["all", "all", "checkpoint", "row"])
        if choice == "checkpoint":
            how["checkpoints"] = [self.dice.choice(sorted({row[q.CHECKPOINT] for row in waiting[gate]}))]
        if choice == "row":
            how["ids"] = [self.dice.choice(sorted(row[q.ID] for row in waiting[gate]))]
        if how["action"] == "release" and self.dice.random() < 0.5:
            how["correct"] = {"v": self.dice.choice(["8", "9", None])}
        how |= self._by_sql(how["action"])
        number = self._ask(self.play, gate, **how)
        self.told.note(f"request {number} of {gate}: {how}")
        if self.dice.random() < 0.15:
            self._ask(self.play, gate, action="withdraw", withdraws=number)
            self.told.note("it is withdrawn")
        self.checkpoints()

    def _by_sql(self, action: str) -> dict[str, Any]:
        """Now and then rows are corrected by SQL instead, which fails for some, or judged again."""
        if action != "release" or self.sql.random() < 0.6:
            return {}
        expression = self.sql.choice(["v + 1", "v * 2", "if(v % 2 = 0, v + 1, cast(k AS long))"])
        how: dict[str, Any] = {"correct_sql": {"v": expression}}
        return {"correct": {}} | self.sql.choice([how, how, {"action": "rejudge"}])

    def goes_back(self) -> None:
        if ids := self.play.origins():
            self._back_to(self.dice.choice(ids))

    def names(self) -> None:
        """Give the last checkpoint a name; now and then the very one that a swap would choose."""
        name = self.dice.choice(["before-again", f"s{len(self.told.story)}"])
        with self.clock.shown():
            try:
                made = savepoint.create(self.play.ledger, name, None, "ann")
            except Rejected:
                return
        self.told.note(f"name {made.entry} {name}")

    def waits(self) -> None:
        """Somebody suspends the pipeline for a while; or a checkpoint is planned, and given up."""
        with self.clock.shown():
            coordinator = self.play.coordinator()
            if self.dice.random() < 0.5:
                control.suspend(self.play.ledger, "ann", "lunch")
                control.resume(self.play.ledger, "ann")
                self.told.note("suspended and resumed")
            elif coordinator.suspended() is None:
                id = coordinator.trigger(f"given up {len(self.told.story)}").plan.id  # type: ignore[union-attr]
                coordinator.abort(id, "TEST")
                self.told.note(f"checkpoint {id} is given up")

    def edits(self) -> None:
        """Somebody forgets half of an operator's keys by hand."""
        operators = [node.name for node in self.play.graph().operators if len(node.states) == 1]
        if not operators:
            return
        uid = self.dice.choice(operators)
        with self.clock.shown():
            try:
                edit_state(self.play.coordinator(), self.spark, uid, lambda rows: rows.where("hash(*) % 2 = 0"))
            except TidegateError as error:
                self.told.note(f"edit of {uid}: {error.reason}")
                return
        self.told.note(f"edit of {uid}")

    # -- backfills ---------------------------------------------------------------------------------------------

    def replays(self) -> None:
        """Compute again with the recorded cuts, swap in, and live on; or take that back first."""
        trial, origin = self._trial(self.play), self._origin()
        line = trial.line(origin, "recorded")
        if line is not None:
            trial.changes_nothing(line, takes_back=self.dice.random() < 0.5)

    def replays_all(self) -> None:
        """Compute everything again, swap in, and take that back."""
        trial = self._trial(self.play)
        line = trial.line(0, "recorded")
        if line is not None:
            trial.changes_nothing(line, takes_back=True)

    def replays_beside_a_twin(self) -> None:
        """Do that in one of two worlds that are alike: what comes next must be the same in both."""
        self._resume(self.play)
        twin = self.play.copied(self.root / f"twin{len(self.told.story)}")
        trial, origin = self._trial(self.play), self._origin()
        line = trial.line(origin, "recorded")
        if line is not None and trial.changes_nothing(line, takes_back=self.dice.random() < 0.3):
            stood = (self.play.cursor_of(self.play.last_completed()) or {"at": 0})["at"]
            self._both_continue(twin)
            goes_on = self.play.cursor_of(self.play.ledger.view().last_id)
            if goes_on != {"at": stood + 1}:
                self.told.finds(f"a hook that stood at {stood} goes on after a swap at {goes_on}")
            self._both_continue(twin)
        shutil.rmtree(twin.root)

    def replays_by_its_own_cuts(self) -> None:
        """Compute again by other cuts, in a copy of the world: only what the dry run has named may differ."""
        if not self._checkpoint(self.play, answer="approve"):
            return  # there is input that the pipeline has not read, and such a line reads it
        play = self.play.copied(self.root / f"own{len(self.told.story)}")
        trial, origin = self._trial(play), self._origin()
        line = trial.line(origin, "own")
        if line is not None:
            trial.differs_only_as_named(line)
            trial.is_swapped_in(line)
        shutil.rmtree(play.root)

    def proposes(self) -> None:
        """A change of the code is proposed and accepted, in a copy of the world."""
        self._checkpoint(self.play, answer="approve")
        play = self.play.copied(self.root / f"proposed{len(self.told.story)}")
        propose_and_accept(self._trial(play), self.dice.choice(list(CHANGES)))
        shutil.rmtree(play.root)

    def replays_after_an_edit(self) -> None:
        """What somebody has changed by hand is lost by nobody's silence. Then it is taken back."""
        before = self.play.ledger.view().last_id
        self.edits()
        edited = self.play.ledger.view().last_id
        entry = self.play.ledger.entry(edited)
        if edited == before or entry is None or not entry.completed:
            return
        self.edited = True
        self.checkpoints()
        with self._trial(self.play).later():
            for cuts in ("own", "recorded"):
                problems = outlook(self.play.coordinator(), 0, cuts)["problems"]  # type: ignore[arg-type]
                if not any(f"checkpoint {edited} " in each for each in problems):
                    self.told.finds(f"dry run, {cuts} cuts: it does not say that {edited} was made by hand: {problems}")
                self.told.refused += 1
        if before in self.play.origins():
            self._back_to(before)
            self.edited = False

    def _origin(self) -> int:
        return self.dice.choice([0, *self.play.origins()])

    def _trial(self, play: Clocked) -> Trial:
        complete = play.limits.num_retained >= 100 and not self.edited
        return Trial(play, self.clock, self.dice, self.told, complete)

    def _both_continue(self, twin: Clocked) -> None:
        """Let the same happen in both worlds, and compare them."""
        asks = self.dice.random() < 0.4
        self._pass_time()
        self.pause_is_over = True
        before = set((self.play.root / "landing").rglob("*.json"))
        self._land()
        for path in set((self.play.root / "landing").rglob("*.json")) - before:
            shutil.copyfile(path, twin.root / path.relative_to(self.play.root))
        for play in (self.play, twin):
            for gated in play.graph().gates if asks else ():
                if quarantine_rows(play.ledger, gated.name):
                    self._ask(play, gated.name, action="release")
            self._checkpoint(play, answer="approve")
        wanted, found = (self._trial(play).held() for play in (twin, self.play))
        self.told.compare("after a swap, life goes on in another way", wanted, found)

    # -- one step of it ----------------------------------------------------------------------------------------

    def _land(self) -> None:
        """Let files of both sources land, of a few rows each. Their times are about now."""
        for source in ("rows", "others"):
            for _ in range(self.dice.choice([0, 1, 1, 2])):
                self.play.feed([self._row(source) for _ in range(self.dice.randint(1, 5))], source)

    def _row(self, source: str, k: str | None = None, v: int | None = None) -> Json:
        """Draw a row; of this key and value, if they are named."""
        self.rows += 1
        dice = self.dice
        at = self.clock.now + timedelta(minutes=dice.choice([0, 0, -30, -400, -1500, 200]), seconds=self.rows)
        if k is None:
            v = dice.choice([1, 2, 3, 4, 5, 7, 10, 60, 1000 if dice.random() < 0.2 else 6, None])
            k = dice.choice(["a", "b", "c", "d", None])
        if source == "others":
            return {"oid": self.rows, "k": k, "w": v, "then": at.isoformat()}
        return {"id": self.rows if dice.random() < 0.9 else 1, "k": k, "v": v, "at": at.isoformat()}

    def _pass_time(self) -> None:
        """By some minutes or days, or none; now and then the clock goes back."""
        self.clock.now += timedelta(hours=self.dice.choice([0, 0.1, 3, 12, 24, 24, 60, 80, -5]))
        self.pause_is_over = self.by_event and self.dice.random() < 0.2

    def _checkpoint(self, play: Clocked, fault: str = "", *, answer: str = "", drain: Drain | None = None) -> bool:
        """Make one, to whatever end it comes. Return whether it was completed. answer: a person's, if a gate asks."""
        with self.clock.shown():
            self._resume(play)
            coordinator = play.coordinator()
            triggered = self._triggered(coordinator, drain)
            if triggered is None:
                return True
            id = triggered.plan.id
            self.told.checkpoints += 1
            telling = Attempts(play, self.spark, self.tasks)
            jobs = [job.name for job in coordinator.graph.jobs]
            struck = self.dice.choice(jobs)
            for job in jobs:
                if not telling.done(coordinator, id, job, fault if job == struck else ""):
                    self.told.note(f"checkpoint {id}: {fault}")
                    return False
            outcome = coordinator.complete(id)
            if outcome.state == "open":
                answer = answer or self.dice.choice(["approve", "approve", "limit", "reject", "quarantine"])
                by = approvals.TIME_LIMIT if answer == "limit" else "mia"
                approve, quarantine = answer in ("approve", "limit"), answer == "quarantine"
                approvals.answer(coordinator.ledger, id, None, approve=approve, quarantine=quarantine, by=by)
                outcome = coordinator.complete(id)
                fault = f"{fault} held: {answer}".strip()
            end = f"{outcome.state} {outcome.reason}".strip()
            self.told.note(f"checkpoint {id} on {self.clock.now:%d %H:%M} {fault}: {end}")
            coordinator.publish()
            coordinator.retire()
            return outcome.state == "completed"

    def _triggered(self, coordinator: Coordinator, drain: Drain | None) -> Triggered | None:
        """Plan a checkpoint. By event, one is planned if and only if somebody who begins to watch now asks for it."""
        run = f"run {coordinator.ledger.view().last_id + 1}"
        if not self.by_event:
            return coordinator.trigger(run, drain=drain)  # type: ignore[return-value]
        arrival = InputWatch(coordinator, 0.0 if self.pause_is_over else NEVER_S).look()
        asked = drain is not None or arrival is not None
        triggered = coordinator.trigger(run, drain=drain, only_if_new=True, is_due=lambda _: self.pause_is_over)
        if asked != (triggered is not None):
            self.told.finds(f"by event, {arrival or 'nothing'} is asked for, and the run makes {triggered}")
        return triggered  # type: ignore[return-value]

    def _resume(self, play: Clocked) -> None:
        """After a rejection; now and then so that what would be held again is set aside."""
        with self.clock.shown():
            coordinator = play.coordinator()
            suspended = coordinator.suspended()
            if suspended is not None:
                rest = suspended.rejected_checkpoint is not None and self.dice.random() < 0.5
                coordinator.resume("ann", quarantine_all=rest)
                self.told.note(f"resumed{', what is held is quarantined' if rest else ''}")

    def _write_customers(self) -> None:
        names = [f"{name} {self.dice.randrange(100)}" for name in ("Ann", "Bob", "Cy")]
        path = str(self.play.root / CUSTOMERS)
        write_deltalake(path, pa.table({"k": ["a", "b", "x"], "name": names}), mode="overwrite")

    def _ask(self, play: Clocked, gate: str, *, action: Any, **how: Any) -> int:
        last = play.ledger.view().last_id
        request = Request(**stamp("x"), number=1, gate=gate, action=action, seen=last, by="mia", **how)
        with self.clock.shown():
            return ask(play.ledger, request).number

    def _back_to(self, id: int) -> None:
        with self.clock.shown():
            self.play.goes_back(id, f"back {len(self.told.story)}")
        self.told.note(f"back to {id}")


ACTS: dict[str, int] = {
    "checkpoints": 8,
    "only_time_passes": 1,
    "ends_event_time": 1,
    "changes_customers": 1,
    "releases": 3,
    "goes_back": 1,
    "names": 1,
    "waits": 1,
    "replays": 2,
    "replays_beside_a_twin": 2,
    "replays_by_its_own_cuts": 1,
    "replays_after_an_edit": 1,
    "proposes": 2,
    "reads_a_day": 0,
    "replays_all": 0,
}
"""What may befall a life, and how often one comes compared with another; 0: only where it is asked for."""
