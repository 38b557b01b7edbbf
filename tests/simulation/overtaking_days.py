"""Days of a pipeline with jobs that are slow: checkpoints go past them, guesses whether they are at work are wrong, and
what they have not taken is in flight.

    main ──▶ clean ──▶ slow ──▶ scored ──▶ last
      └──▶ first        └──▶ second         └──▶ third
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

from tests.kit.toys import ToyFrame, ToySink, ToySource
from tests.simulation.fault_rates import Climate
from tests.simulation.oracle import Checkpoint, Oracle
from tests.simulation.world import TABLES, SimulatedWorld, Violation
from tidegate import Pipeline
from tidegate.checkpoint.context import AbandonCheck
from tidegate.connectors.channel import Channel, ChannelRows, Sent
from tidegate.connectors.sink import entry_folder
from tidegate.coordinator import AlreadyCovered, Coordinator, Triggered
from tidegate.delta import Location, StagedFile, Syncing
from tidegate.errors import Corrupt, Rejected, Unavailable
from tidegate.execution.job import run_job
from tidegate.execution.job.readiness import OVERTAKEN
from tidegate.records.records import Json, Plan

THIRD = "third"
TAKES = {"slow": "main", "last": "slow"}
"""Whose rows a job takes."""
MADE_BY = {TABLES[0]: "main", TABLES[1]: "slow", THIRD: "last"}


@dataclass(frozen=True)
class BusyClimate(Climate):
    """What else is different from day to day."""

    patience: float
    """How long a checkpoint waits for a job; 0: not at all."""
    wrong: float
    """How often a guess is wrong whether somebody is at work."""
    slowness: int
    """How long a job may take."""
    savepoints: float
    """How often a run's checkpoint goes past nobody."""

    def record(self) -> Json:
        return {**super().record(), "unaligned": True, "aligned_timeout": self.patience}  # type: ignore[dict-item]


class BusyWorld(SimulatedWorld):
    """The same storage and the same troubles."""

    def __post_init__(self) -> None:
        super().__post_init__()
        quiet = {"forks": 0, "copies": 0, "holds": 0, "skip": 0, "drains": 0, "tolerable_failed_checkpoints": 1_000_000}
        dice = self.dice
        milder = {  # else few checkpoints live long enough for another one to come by
            "max_concurrent_checkpoints": dice.one_of([3, 2, 3, 1]),
            "runs": 4 + dice.below(5),
            "ticks": 1200 + 400 * dice.below(3),
            "timeout": dice.one_of([1e9, 1e9, 800.0]),
            "suspicion": dice.one_of([0.0, 0.0, 0.05]),
            "kills": dice.one_of([0.0, 0.0005, 0.002]),
            "rollbacks": dice.one_of([0, 1, 4]),
            "mishaps": dice.one_of([0.0, 0.002, 0.01]),
        }
        self.climate: BusyClimate = BusyClimate(
            **{**asdict(self.climate), **quiet, **milder},
            patience=self.dice.one_of([0.0, 0.0, 60.0]),
            wrong=self.dice.one_of([0.0, 0.1, 0.5]),
            slowness=self.dice.one_of([300, 0, 600]),
            savepoints=self.dice.one_of([0.0, 0.0, 0.3]),
        )
        self.graph = self._pipeline().graph()
        self.forced: set[str] = set()
        """Plans of checkpoints that are to wait for every job."""
        self.channels: dict[str, list[Any]] = {}
        """Files of channels, and their rows."""

    def _pipeline(self) -> Pipeline:
        pipeline = Pipeline("day")
        rows = pipeline.source("in", ToySource(self.feed, self.climate.bound, self.climate.padding))
        clean = pipeline.stage(rows, name="clean")(lambda frame: frame)
        clean.sink(TABLES[0], ToySink(TABLES[0], self.tables))
        scored = pipeline.stage(clean.job("slow"), name="scored")(lambda frame: frame)
        scored.sink(TABLES[1], ToySink(TABLES[1], self.tables))
        scored.job("last").sink(THIRD, ToySink(THIRD, self.tables))
        return pipeline

    def asks(
        self, coordinator: Coordinator, run: str, give_up: AbandonCheck
    ) -> Callable[[], Triggered | AlreadyCovered | None]:
        self.feed.available += self.dice.below(4)
        aligned = run.startswith("last") or self.dice.chance(self.climate.savepoints)

        def ask() -> Triggered | AlreadyCovered | None:
            triggered = coordinator.trigger(run, give_up=give_up, aligned=aligned)
            if aligned and isinstance(triggered, Triggered) and not triggered.adopted:
                self.forced.add(triggered.plan.attempt)
            return triggered

        return ask

    def some_job(self) -> str:
        return self.dice.one_of(["main", "slow", "last"])

    def work(self, coordinator: Coordinator, id: int, job: str) -> None:
        try:
            run_job.run_job(coordinator, id, job, None, self._takes_its_time, self._at_work)  # type: ignore[arg-type]
        except Rejected as error:
            if error.reason != OVERTAKEN:
                raise
            self.log(f"{id} goes past {job}")

    def _takes_its_time(self, step: str) -> None:
        """Of two attempts at once, one may overlap the other for long."""
        if step == "acknowledging" and not self.calm and self.climate.slowness:
            self.sleep(self.dice.below(self.climate.slowness))

    def _at_work(self, plan: Plan, job: str) -> bool:
        there = self.is_running(plan.run)
        return there if self.calm or not self.dice.chance(self.climate.wrong) else not there


class BehindWorld(BusyWorld):
    """Days on which jobs are always behind, and somebody rolls back all the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.climate = replace(
            self.climate, max_concurrent_checkpoints=3, patience=0.0, wrong=0.5, slowness=600, rollbacks=6
        )


@contextlib.contextmanager
def channels_in_memory(world: SimulatedWorld) -> Iterator[None]:
    """Channels whose files lie in the world, and stages that need no Spark."""
    if not isinstance(world, BusyWorld):
        yield
        return
    there = world.channels

    def ask(what: str, possible: str = "lost") -> None:
        world.pause(what)
        if world.mishap(what.split()[0], possible) == "lost":
            raise Unavailable(f"{what}: storage does not answer")

    def send(self: Channel, frame: Any, replaced: Any, context: Any, staging: Any, syncing: Any) -> Sent:
        path = f"{staging.folder(context)}/rows"
        ask(f"stage {path}")
        there[path] = list(frame.rows)
        return Sent(rows=ChannelRows(columns={}, files=[StagedFile(path=path, size=1, rows=len(frame.rows))]))

    def read_all(self: Channel, sent: Sequence[Sent], context: Any, spark: Any) -> tuple[Any, None]:
        rows: list[Any] = []
        for file in (file for each in sent for file in each.rows.files):
            ask(f"rows of {file.path}")
            if file.path not in there:
                raise Corrupt(f"the channel has lost {file.path}", reason="CHANNEL_DAMAGED")
            rows += there[file.path]
        return ToyFrame(rows), None

    def attempts(self: Channel, id: int, context: Any) -> list[str]:
        ask(f"attempts of {id}")
        folder = f"{entry_folder(context, id)}/"
        return sorted({path[len(folder) :].split("/")[0] for path in there if path.startswith(folder)})

    def discard(self: Channel, context: Any, staging: Any) -> None:
        for path in [path for path in there if path.startswith(f"{staging.folder(context)}/")]:
            ask(f"discard {path}")
            there.pop(path, None)

    def missing_files(self: Channel, sent: Sent, context: Any) -> list[str]:
        return [file.path for file in sent.rows.files if file.path not in there]

    own = {"send": send, "read_all": read_all, "attempts": attempts, "discard": discard, "missing_files": missing_files}
    with (
        mock.patch.multiple(Channel, **own, syncing=lambda self, context: Syncing(Location("/", {}))),
        mock.patch.object(run_job, "stage_results", lambda stage, streams, _: {stage.name: streams[stage.inputs[0]]}),
    ):
        yield


# -- what must hold ----------------------------------------------------------------------------------------


class BusyOracle(Oracle):
    """Told from bytes: what a table shows is all that was read, but for what the manifest has in flight."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world, world.store, (*TABLES, THIRD))
        self._brought: dict[tuple[str, int], list[int]] = {}

    # -- as it happens

    def _by_own_acks(self, folder: str, decision: dict[str, Any]) -> bool:
        there = self.store.files
        manifest = self._json(f"{folder}/manifest-{decision['manifest']}.json")
        if manifest is None or f"{folder}/plan.json" not in there:
            return False
        own = [job for job, handle in manifest["jobs"].items() if handle["entry"] == int(folder[-8:])]
        return bool(own) and all(f"{folder}/acks/{job}.json" in there for job in own)

    def _acked(self, checkpoint: Checkpoint, decision: dict[str, Any], what: str) -> None:
        """O1 to O4, as far as one manifest tells: sources at n, m_down <= m_up, what lies between is in flight."""
        manifest = self._json(f"checkpoints/{checkpoint.id:08d}/manifest-{decision['manifest']}.json")
        assert manifest is not None
        if checkpoint.target is not None:
            return
        at = {job: handle["entry"] for job, handle in manifest["jobs"].items()}
        for job, handle in manifest["jobs"].items():
            self._durable(what, handle["entry"], f"acks/{job}.json")
        if at.get("main") != checkpoint.id:
            raise Violation(f"{what}, and the job that reads the source is at {at.get('main')}")
        assert isinstance(self.world, BusyWorld)
        forced = checkpoint.plan["attempt"] in self.world.forced
        if forced and (manifest["in_flight"] or set(at.values()) != {checkpoint.id} or len(at) < 3):
            raise Violation(f"O4: {what}, which waits for every job, with jobs at {at}")
        self._not_below_a_rollback(checkpoint.id, manifest, what)
        for job, maker in TAKES.items():
            lacks = [each["ack"]["entry"] for each in manifest["in_flight"].get(job, ())]
            if at.get(job, 0) > at.get(maker, 0):
                raise Violation(f"{what}: {job} is at {at[job]}, before {maker} at {at.get(maker)}")
            if not self._in_flight_is_told(at, job, lacks, manifest):
                raise Violation(f"O2: {what}: {job} at {at.get(job)}, {maker} at {at.get(maker)}, in flight {lacks}")

    def _in_flight_is_told(self, at: dict[str, int], job: str, lacks: list[int], manifest: dict[str, Any]) -> bool:
        return lacks == sorted(set(lacks)) and bool(lacks) == (at.get(job, 0) < at.get(TAKES[job], 0))

    def _not_below_a_rollback(self, id: int, manifest: dict[str, Any], what: str) -> None:
        """R4: behind a rollback acks of what lies below it count only if its target holds them."""
        below = (self.checkpoint(lower) for lower in range(id - 1, 0, -1))
        back = next((each for each in below if each.target is not None and each.completed), None)
        if back is None:
            return
        assert back.manifest is not None
        held = back.manifest["jobs"]
        for job, handle in manifest["jobs"].items():
            if handle["entry"] < back.id and held.get(job) != handle:
                raise Violation(f"R4: {what}, behind rollback {back.id}, with job {job} at {handle['entry']}")

    # -- at the end

    def judge(self) -> None:
        self._brought = self._brought_by([each for each in self.log() if each.completed])
        super().judge()

    def _brought_by(self, completed: list[Checkpoint]) -> dict[tuple[str, int], list[int]]:
        """By table and checkpoint, the rows that it has for the first time on its lineage."""
        found: dict[tuple[str, int], list[int]] = {}
        as_of: dict[int, dict[str, list[int]]] = {0: {name: [] for name in self.tables}}
        before = 0
        for checkpoint in completed:
            if checkpoint.target is not None:
                as_of[checkpoint.id] = as_of[checkpoint.target]
                before = checkpoint.id
                continue
            had, now = as_of[before], self._shown_as_of(checkpoint, as_of[before])
            for name in self.tables:
                if gone := set(had[name]) - set(now[name]):
                    raise Violation(f"O2: by checkpoint {checkpoint.id} table {name!r} has lost rows {sorted(gone)}")
                found[name, checkpoint.id] = sorted(set(now[name]) - set(had[name]))
            as_of[checkpoint.id], before = now, checkpoint.id
        return found

    def _shown_as_of(self, checkpoint: Checkpoint, before: dict[str, list[int]]) -> dict[str, list[int]]:
        assert checkpoint.manifest is not None
        shown = {TABLES[0]: [*before[TABLES[0]], *self._offsets(checkpoint)]}
        above = shown[TABLES[0]]
        for name, job in ((TABLES[1], "slow"), (THIRD, "last")):
            waiting = checkpoint.manifest["in_flight"].get(job, ())
            rows = {row for each in waiting for row in self._rows_of(TAKES[job], each["ack"]["entry"])}
            above = shown[name] = [row for row in above if row not in rows]
        return shown

    def _rows_of(self, job: str, id: int) -> Sequence[int]:
        """What a job has sent in an entry."""
        checkpoint = self.checkpoint(id)
        if job == "main":
            return self._offsets(checkpoint)
        taken = checkpoint.acks[job]["inputs"][TAKES[job]]
        return [row for each in taken for row in self._rows_of(TAKES[job], each["entry"])]

    def _wanted(self, table: str, checkpoint: Checkpoint) -> list[int]:
        return self._brought[table, checkpoint.id] if checkpoint.target is None else []

    def _brings(self, table: str, checkpoint: Checkpoint) -> bool:
        return bool(self._wanted(table, checkpoint)) if checkpoint.target is None else False

    def _judged(self, checkpoint: Checkpoint) -> None:
        """There are no gates."""

    def _one_attempt(self, completed: list[Checkpoint]) -> None:
        """What one table tells of a row, the others tell, too: it continued from the attempt that counts."""
        told: dict[str, dict[int, str]] = {}
        for name in self.tables:
            table = self.world.tables[name]
            told[name] = {offset: tag for file in table.live() for offset, tag in table.files[file]}
        for name in self.tables[1:]:
            mixed = [row for row, tag in told[name].items() if told[TABLES[0]][row] != tag]
            if mixed:
                raise Violation(f"table {name!r} has rows {mixed} of an attempt that does not count")

    def _named_files_exist(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.kept:
            return
        assert checkpoint.manifest is not None
        assert isinstance(self.world, BusyWorld)
        for job, handle in checkpoint.manifest["jobs"].items():
            if f"checkpoints/{handle['entry']:08d}/acks/{job}.json" not in self.store.files:
                raise Violation(f"I6: the ack of job {job} that checkpoint {checkpoint.id} rests on is gone")
        if checkpoint.target is not None:
            return
        for each in (each for left in checkpoint.manifest["in_flight"].values() for each in left):
            for payload in each["channels"].values():
                for file in (payload["data"] or {"rows": {"files": []}})["rows"]["files"]:
                    if file["path"] not in self.world.channels:
                        raise Violation(f"I6: {file['path']}, in flight as of checkpoint {checkpoint.id}, is gone")
