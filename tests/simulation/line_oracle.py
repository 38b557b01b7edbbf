"""What must hold of backfills beside a long life: a swap brings what the mended code makes of the same input, all that
counts from its origin on; and whatever it rests on, or somebody may go back to, is there. Told from bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tests.kit.fake_store import FakeStore
from tests.kit.toy_gate import fate_of
from tests.kit.toys import ToyCommit
from tests.simulation.line_days import LineWorld
from tests.simulation.long_lives_oracle import LongForkOracle, LongOracle, Needs
from tests.simulation.oracle import Checkpoint
from tests.simulation.world import GATE, TABLES, SimulatedWorld, Violation

QUARANTINE = f"quarantine.{GATE}"


class LineOracle(LongOracle):
    """Judges the pipeline, and what its backfills do to it."""

    def __init__(self, world: SimulatedWorld) -> None:
        assert isinstance(world, LineWorld)
        super().__init__(world)
        self.store.watch = self.record_written
        self.fork = LineForkOracle(world, self)
        self.needs = LineNeeds(world, self.store, (*TABLES, QUARANTINE), self)
        self.came: dict[int, int] = {}
        """By row in quarantine, the checkpoint with which somebody could first see it there."""
        others = world.tables.watch

        def watch(name: str, commit: ToyCommit) -> None:
            if name == QUARANTINE:
                table = world.tables[name]
                for offset, _ in (row for file in commit.files for row in table.files[file]):
                    self.came.setdefault(offset, commit.id or 0)
            others(name, commit)

        world.tables.watch = watch

    def record_written(self, path: str, old: bytes | None, new: bytes) -> None:
        if path.startswith("lines/"):
            self._line_written(path, old, new)
            return
        super().record_written(path, old, new)

    def _line_written(self, path: str, old: bytes | None, new: bytes) -> None:
        """A line's own records are written once, as any."""
        name = path.split("/")[-1]
        hints = ("latest.json", "kept.json", "trouble.json", "declined.json", "told.json", "tables.json", "tried.json")
        if old is not None and old != new and name not in hints and "/waiting/" not in path:
            raise Violation(f"I3: {path} was rewritten")
        if name == "plan.json":
            self._line_planned(path, json.loads(new))

    def _line_planned(self, path: str, plan: dict[str, Any]) -> None:
        """I9: its clock does not go back, and with recorded cuts it is the one of what it repeats, to the offset."""
        below = self._json(f"{path.rsplit('/', 2)[0]}/{plan['base'] or 0:08d}/plan.json")
        before = below["clock"] if below is not None else None
        if plan["clock"] is None or plan["kind"] == "fork":
            return
        if before is not None and datetime.fromisoformat(plan["clock"]) < datetime.fromisoformat(before):
            raise Violation(f"I9: {path} is of {plan['clock']}, and its base of {before}")
        record = self._json(f"lines/{path.split('/')[1]}/line.json")
        if record is None or record["cuts"] == "own" or (below is not None and plan["replays"] == below["replays"]):
            return
        (id,) = plan["replays"]
        live = self._json(f"checkpoints/{id:08d}/plan.json")
        assert live is not None
        found, due = ((each["sources"]["in"]["start"], each["sources"]["in"]["end"]) for each in (plan, live))
        if found != due:
            raise Violation(f"I9: {path} reads {found}, checkpoint {id}, which it repeats, has read {due}")
        if plan["clock"] != live["clock"]:
            raise Violation(f"I9: {path} is of {plan['clock']}, checkpoint {id}, which it repeats, of {live['clock']}")

    def _control(self, id: int) -> str:
        """As for any rollback; but a swap lifts what its own backfill has asked for."""
        plan = self._json(f"checkpoints/{id:08d}/plan.json")
        line = plan["restart"]["line"] if plan is not None and plan.get("restart") else None
        if line is None:
            return super()._control(id)
        while plan is not None and plan.get("restart"):
            id -= 1
            plan = self._json(f"checkpoints/{id:08d}/plan.json")
        own = plan is not None and plan.get("control") and plan["control"]["by"] == f"backfill {line['name']}"
        return "" if own else super()._control(id)

    def _rollback_decided(self, checkpoint: Checkpoint, decision: dict[str, Any]) -> None:
        """L4: a swap rests on the last checkpoint, has all input that counts, and happens once."""
        line = checkpoint.plan["restart"]["line"]
        if line is None:
            super()._rollback_decided(checkpoint, decision)
            return
        assert checkpoint.target is not None
        what = f"swap {checkpoint.id} to {checkpoint.target} is decided"
        origin = self.checkpoint(checkpoint.target) if checkpoint.target else None
        if origin is not None and (not origin.kept or not origin.completed):
            raise Violation(f"{what}, its origin is retired, or was never completed")
        if origin is not None and _undone(origin.id, self.log(), but=checkpoint.id):
            raise Violation(f"{what}, and its origin does not count any more")
        completed = [each for each in self.log() if each.completed and each.id < checkpoint.id]
        last = completed[-1] if completed else None
        if last is None or checkpoint.plan["base"] != last.id or not last.kept or last.published is None:
            raise Violation(f"{what}, and its base is not the last checkpoint, or is not on all tables")
        if checkpoint.range[1] < last.range[1]:
            raise Violation(f"I1: {what} with all up to {checkpoint.range[1]}, {last.range[1]} was reached before")
        if any(other.plan["run"] == checkpoint.plan["run"] for other in completed):
            raise Violation(f"{what}, and its backfill was swapped in before")
        above = [path.split("/")[4] for path in self.store.files if path.startswith(f"lines/{line['name']}/day/check")]
        if any(int(name) >= checkpoint.id for name in above):
            raise Violation(f"{what}, and its backfill has higher numbers than that")

    def _goes_back_to(self, rollback: Checkpoint, ends: dict[int, int], reached: int) -> int:
        if rollback.plan["restart"]["line"] is None:
            return super()._goes_back_to(rollback, ends, reached)
        return rollback.range[1]  # what it has read was compared when it was decided

    def _offsets(self, checkpoint: Checkpoint) -> Sequence[int]:
        """A swap brings what the mended code made of all input since its origin."""
        if not _is_swap(checkpoint):
            return super()._offsets(checkpoint)
        origin = self.checkpoint(checkpoint.target).range[1] if checkpoint.target else 0
        return [-offset for offset in range(origin + 1, checkpoint.range[1] + 1)]

    def committed(self, table: str, commit: ToyCommit) -> None:
        super().committed(table, commit)
        uid = json.loads(self.store.files["pipeline.json"].data)["uid"]
        if f"/{uid}/" not in commit.app_id:
            raise Violation(f"table {table!r} has a commit of {commit.app_id}, which is not the pipeline")
        assert commit.id is not None
        if _is_swap(self.checkpoint(commit.id)) and table in TABLES:
            self._live(table, [each for each in self.log() if each.completed and each.id <= commit.id])

    def judge(self) -> None:
        super().judge()
        self._only_what_was_seen_is_let_continue()

    def _only_what_was_seen_is_let_continue(self) -> None:
        """A person lets rows continue that were there to be looked at: a swap brings others in their place."""
        table = self.world.tables[QUARANTINE]
        asked = [file.data for path, file in self.store.files.items() if path.startswith(f"asked/{GATE}/")]
        seen = [request["seen"] for request in map(json.loads, asked) if request["action"] == "release"]
        for name in table.live():
            offset = table.files[name][0][0]
            if fate_of(name) == "released" and not any(self.came[offset] <= upto for upto in seen):
                raise Violation(f"row {offset} was let go on, and nobody had seen it: it came with {self.came[offset]}")

    def lineages(self) -> dict[int, list[int]]:
        """By checkpoint, all that had been read as of it, by whom."""
        held: dict[int, list[int]] = {0: []}
        line: list[int] = []
        for checkpoint in (each for each in self.log() if each.completed):
            line = held[checkpoint.target] if checkpoint.target is not None else line
            held[checkpoint.id] = line = sorted([*line, *self._offsets(checkpoint)])
        return held


class LineForkOracle(LongForkOracle):
    """Judges a fork, which may begin with what a swap has brought."""

    parent: LineOracle

    def begins_with(self) -> list[int]:
        return self.parent.lineages()[self.first]


class LineNeeds(Needs):
    """A line needs all from its origin on; and what a swap names is needed as long as the swap is there."""

    def __init__(self, world: LineWorld, store: FakeStore, tables: Sequence[str], oracle: LineOracle) -> None:
        super().__init__(world, store, tables)
        self.oracle = oracle

    def _removed(self, path: str) -> None:
        super()._removed(path)
        if not path.startswith("lines/") and path.endswith("/plan.json"):
            self._nothing_of_a_line(int(path.split("/")[1]))

    def _nothing_of_a_line(self, id: int) -> None:
        """L1: as long as a line's pin stands, nothing from its origin on is claimed and removed."""
        for name in self.store.listing("pins"):
            file = self.store.files.get(f"pins/{name}")
            pin = json.loads(file.data) if file is not None else None
            if file is None or pin is None or pin["kind"] != "line":
                continue
            if id >= pin["entry"] and file.created < self.claimed.get(id, self.world.tick):
                raise Violation(f"L1: checkpoint {id} is removed, and {name} spares all from {pin['entry']} on")

    def refuse_gone(self) -> None:
        super().refuse_gone()
        for name in self.store.listing("checkpoints"):
            if int(name) in self.claimed:
                continue
            plan, decision = self._record(int(name), "plan.json"), self._record(int(name), "decision.json")
            restart = plan.record["restart"] if plan is not None else None
            if restart is None or restart["line"] is None or decision is None:
                continue
            if decision.record["outcome"] == "completed":
                self._brought(int(name), decision.record["manifest"])

    def _brought(self, id: int, sha: str) -> None:
        manifest = self._record(id, f"manifest-{sha}.json")
        if manifest is None:
            raise Violation(f"I6: swap {id} is decided, and its manifest is gone")
        for table in self.tables:
            for payload in manifest.record["tables"].get(table, {"committables": []})["committables"]:
                files = payload["data"] or json.loads(self.store.files[payload["blob"]["path"]].data)
                self._files(table, f"swap {id} on table {table!r}", files["files"])


def _is_swap(checkpoint: Checkpoint) -> bool:
    restart = checkpoint.plan.get("restart")
    return restart is not None and restart["line"] is not None


def _undone(id: int, log: Sequence[Checkpoint], but: int) -> bool:
    """Whether a rollback that counts has gone back behind it, as far as anybody can know: what was retired before the
    line began is forgotten, as for somebody who goes back to a savepoint."""
    backs = [(c.id, c.target) for c in log if c.completed and c.kept and c.target is not None and c.id != but]
    below = None
    for rollback, target in sorted(backs, reverse=True):
        if below is None or rollback < below:
            if target < id < rollback:
                return True
            below = target + 1
    return False
