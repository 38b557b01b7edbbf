"""Days on which a target refuses rows in publication, and people divert these: each row is in the table or in
quarantine, once, whoever was paused meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tests.kit.toy_gate import QuarantineFrame, ToyGate
from tests.kit.toys import Row, ToyFrame, ToySink, ToySource
from tests.simulation import actors
from tests.simulation.oracle import Checkpoint, Oracle
from tests.simulation.world import TABLES, SimulatedWorld, Violation
from tidegate import Pipeline
from tidegate.connectors.sink import Head, Publication, SinkContext, Staging
from tidegate.coordinator import Coordinator
from tidegate.delta.dividing import Divided, Division
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError, Unavailable
from tidegate.execution import finish, runs
from tidegate.execution.by_hand import diverting
from tidegate.execution.by_hand.diverting import RefusedRows, divert, find_refusal
from tidegate.gates.quarantine.table import quarantine_name
from tidegate.gates.target import target_gate_name
from tidegate.records.records import Divert, Json, Payload, PublishedTable

TABLE = TABLES[0]
"""The table whose target refuses rows."""
GATE = target_gate_name(TABLE)
REFUSED = 2
"""Offsets that are multiples of this are refused, while the target refuses any."""


class RefusingSink(ToySink):
    """A table whose target refuses some rows, until it is changed."""

    def __init__(self, world: RefusingWorld) -> None:
        super().__init__(TABLE, world.tables)
        self.world = world

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        files = [name for committable in publication.committables for name in committable["files"]]
        rows = [row for name in files for row in self._table.files.get(name, [])]
        refused = [offset for offset, _ in rows if self.world.refuses(offset)]
        if refused:
            self._ask(f"commit {publication.id} on", "lost")
            raise Invalid(f"row {refused[0]} is refused", reason="DATABASE_REFUSES")
        return super().publish(publication, head, context)

    def divide(self, committable: Json, division: Division, context: SinkContext, staging: Staging) -> Divided:
        """A row is a file: the others are named as they are."""
        wanted: Any = division
        taken: list[Row] = []
        rest: list[str] = []
        for name in committable["files"]:
            self._ask(f"look into {name} of", "lost")
            (row,) = self._table.files[name]
            if row[0] in wanted.offsets:
                taken.append(row)
            else:
                rest.append(name)
        frame: Any = ToyFrame(taken)
        return Divided({"files": rest}, frame, len(taken))


@dataclass(frozen=True)
class ToyDivision:
    """The offsets that a person diverts."""

    offsets: frozenset[int]


class RefusingWorld(SimulatedWorld):
    """The first table's target refuses rows, most of the day, and two people divert what it refuses."""

    lived = False

    def __post_init__(self) -> None:
        """Most of these days are not too bad for rows to be refused at all."""
        super().__post_init__()
        self.refuses_until = 1e9
        self.runs_of_diverts: set[str] = set()
        dice = self.dice
        self.climate = replace(
            self.climate,
            holds=0,
            tolerable_failed_checkpoints=1_000_000,
            max_unpublished=dice.one_of([3, 10]),
            timeout=1e9,
            ticks=800 + 400 * dice.below(3),
            runs=4 + dice.below(4),
            kills=dice.one_of([0.0, 0.0, 0.002]),
            suspicion=dice.one_of([0.0, 0.0, 0.1]),
            meddlers=dice.one_of([0, 1]),
            mishaps=dice.one_of([0.0, 0.01]),
        )
        self.graph = self._pipeline().graph()

    def refuses(self, offset: int) -> bool:
        """Whether the target refuses a row now. Now and then it takes all rows for a while."""
        return offset % REFUSED == 0 and self.tick < self.refuses_until and self.tick % 400 < 330

    def is_running(self, run: str) -> bool:
        """A divert is no run of its own: whoever makes it may be at work as long as there is anybody."""
        if run in self.runs_of_diverts:
            return any(process.name.startswith("diverter") and process.alive for process in self.processes)
        return super().is_running(run)

    def waits_rightly(self, error: TidegateError) -> bool:
        return error.reason == "DATABASE_REFUSES"

    def _pipeline(self) -> Pipeline:
        pipeline = Pipeline("day")
        rows = pipeline.source("in", ToySource(self.feed, self.climate.bound, self.climate.padding))
        nothing_is_bad = ToyGate(0, 1e9, "reject", bad=10**9, tables=self.tables)
        rows.gate(nothing_is_bad, name=GATE).sink(TABLE, RefusingSink(self))
        rows.sink(TABLES[1], ToySink(TABLES[1], self.tables, skip=self.climate.skip))
        return pipeline

    def more_people(self) -> None:
        for number in range(2):
            self.spawn("diverter", "", lambda number=number: _diverter(self, number), self.dice.below(100))

    def calm_people(self) -> None:
        """The target is changed a while later: what waits by then was diverted, or is published whole."""
        self.refuses_until = self.tick + self.dice.one_of([0, 600])
        self.more_people()

    def last_acts(self) -> list[tuple[str, Callable[[], None]]]:
        def change_target() -> None:
            self.refuses_until = 0.0
            actors.publish(self, self.coordinator())

        return [("owner", change_target)]


def _diverter(world: RefusingWorld, who: int) -> None:
    """A person who looks now and then whether a target refuses rows, and diverts some or all of these."""
    coordinator = world.coordinator()
    while world.tick < world.refuses_until:
        world.sleep(20 + world.dice.below(80))
        try:
            refusal = find_refusal(coordinator, TABLE)
            offsets = _refused_offsets(world, refusal)
            if not offsets:
                continue  # somebody else was faster
            if len(offsets) > 1 and world.dice.chance(0.3):
                offsets = offsets[:1]  # it will refuse the next one
            condition = ",".join(map(str, offsets))
            world.log(f"diverts {condition} above {refusal.last}")
            outcome, error = divert(coordinator, None, refusal, condition, by=f"diverter {who}")  # type: ignore[arg-type]
            world.log(f"diverted by {outcome.id}: {error.what if error is not None else 'published'}")
        except (Unavailable, Rejected, Fenced) as error:
            world.log(f"diverts nothing: {error.what}")


def _refused_offsets(world: RefusingWorld, refusal: RefusedRows) -> list[int]:
    """The offsets that wait for the table, and that its target refuses."""
    offsets: list[int] = []
    for id in refusal.waiting:
        plan = world.store.files.get(f"checkpoints/{id:08d}/plan.json")
        if plan is not None:
            planned = json.loads(plan.data)["sources"]["in"]
            begin = (planned["start"] or {"at": 0})["at"]
            offsets += range(begin + 1, planned["end"]["at"] + 1)
    return [offset for offset in offsets if offset % REFUSED == 0]


@contextlib.contextmanager
def diverts_in_memory(world: SimulatedWorld) -> Iterator[None]:
    """What a divert asks Spark for is answered by lists."""
    if not isinstance(world, RefusingWorld):
        yield
        return

    def new_run() -> str:
        run = runs.new_run()
        world.runs_of_diverts.add(run)
        return run

    def division(coordinator: Coordinator, spark: Any, refusal: RefusedRows, condition: str) -> Any:
        return ToyDivision(frozenset(map(int, condition.split(","))))

    def quarantined(
        coordinator: Coordinator,
        refusal: RefusedRows,
        record: Divert,
        taken: Sequence[Any],
        rows: int,
        staging: Staging,
    ) -> Payload:
        name = quarantine_name(refusal.gate)
        bad: Any = QuarantineFrame([row for frame in taken for row in frame.rows])
        sink = coordinator.graph.tables[name].sink
        apart = replace(staging, attempt=f"{staging.attempt}/diverted")
        prepared = sink.prepare(bad, coordinator.context(name), apart)
        assert prepared.committable is not None
        return coordinator.ledger.pack(prepared.committable, coordinator.graph.parts)

    with (
        mock.patch.object(diverting, "new_run", new_run),
        mock.patch.object(diverting, "_division", division),
        mock.patch.object(diverting, "_quarantined", quarantined),
        mock.patch.object(finish, "remember", lambda *args, **options: None),  # there is no Delta table
    ):
        yield


class RefusingOracle(Oracle):
    """Every row is in the table or in quarantine, once; and in quarantine are the rows of diverts that applied."""

    def judge(self) -> None:
        super().judge()
        completed = [checkpoint for checkpoint in self.log() if checkpoint.completed]
        self._every_row_once(completed)
        self._as_noted(completed)

    def _table(self, name: str, completed: list[Checkpoint]) -> None:
        if name != TABLE:
            super()._table(name, completed)

    def _one_attempt(self, completed: list[Checkpoint]) -> None:
        """A divert publishes what the attempts of others have staged, so of its table only rows are compared."""
        tables, self.tables = self.tables, [name for name in self.tables if name != TABLE]
        super()._one_attempt(completed)
        self.tables = tables

    def _published_hint(self, checkpoint: Checkpoint) -> None:
        """Of the table only the hints that are there are right: what came with a divert has none of its own."""
        told = checkpoint.published
        if told is not None:
            told = {**told, "tables": {name: at for name, at in told["tables"].items() if name != TABLE}}
        super()._published_hint(replace(checkpoint, published=told))

    def _every_row_once(self, completed: Sequence[Checkpoint]) -> None:
        wanted: list[int] = []
        as_of: dict[int, list[int]] = {0: []}
        for checkpoint in completed:
            if checkpoint.target is not None:
                wanted = as_of[checkpoint.target]
            elif not checkpoint.plan["by_hand"]:
                wanted = [*wanted, *self._offsets(checkpoint)]
            as_of[checkpoint.id] = wanted
        shown = sorted([*self._shown(TABLE), *self._shown(quarantine_name(GATE))])
        if shown != sorted(wanted):
            raise Violation(f"I1: table and quarantine show {shown}, the checkpoints that count have {sorted(wanted)}")

    def _as_noted(self, completed: Sequence[Checkpoint]) -> None:
        """V3, V4: quarantine has what diverts took that are noted to have applied, and the table has none of it."""
        by_commit = {commit.id: commit for commit in self.world.tables[quarantine_name(GATE)].commits}
        for checkpoint in completed:
            divert = checkpoint.plan.get("divert")
            if divert is None or checkpoint.id not in by_commit:
                continue
            noted = self._json(f"checkpoints/{checkpoint.id:08d}/diverted.json")
            if noted is None:
                raise Violation(f"V4: quarantine took divert {checkpoint.id}, and nothing is noted about it")
            if bool(by_commit[checkpoint.id].files) != noted["applied"]:
                raise Violation(
                    f"V4: of divert {checkpoint.id} is noted {noted}, quarantine: {by_commit[checkpoint.id]}"
                )

    def _shown(self, name: str) -> list[int]:
        table = self.world.tables[name]
        try:
            return [offset for file in table.live() for offset, _ in table.files[file]]
        except KeyError as gone:
            raise Violation(f"I6: file {gone} of {name!r} is gone") from None
