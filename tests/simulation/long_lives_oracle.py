"""What must hold of a long life, looked at after each write and each removal: every file and side file that anybody may
still need is there, whichever line of the log that is on. Told from bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.kit.fake_store import FakeStore
from tests.simulation.lifecycle_oracle import ForkOracle, LifeOracle
from tests.simulation.long_lives import STATE, LongWorld, examined
from tests.simulation.oracle import Checkpoint
from tests.simulation.quarantine_days import AsideOracle
from tests.simulation.world import FORK, GATE, TABLES, SimulatedWorld, Violation

BLOB = re.compile(rb'"(blobs/[^"]+)"')
STATE_SINK = f"state.{STATE}"


class LongOracle(LifeOracle, AsideOracle):
    """Judges a long life, and that of the fork."""

    def __init__(self, world: SimulatedWorld) -> None:
        assert isinstance(world, LongWorld)
        self.long = world
        super().__init__(world)
        self.fork = LongForkOracle(world, self)
        self.needs = Needs(world, self.store, (*TABLES, f"quarantine.{GATE}"))

    def begins_with(self) -> list[int]:
        """What its state has from the start."""
        return []

    def judge(self) -> None:
        super().judge()
        _states(self)
        self.needs.refuse_gone()
        late = self.needs.late_savepoints()
        bad = [found for found in examined(self.long) if found.state == "bad" and not found.detail.startswith(late)]
        if bad:
            raise Violation(f"the doctor finds {bad[0].check} bad: {bad[0].detail}")

    def _published_hint(self, checkpoint: Checkpoint) -> None:
        super()._published_hint(_without_states(checkpoint))


class LongForkOracle(ForkOracle):
    """Judges the fork, which has the state, and no gate."""

    def __init__(self, world: LongWorld, parent: LongOracle) -> None:
        super().__init__(world, parent)
        self.needs = Needs(world, self.store, (FORK,))

    def begins_with(self) -> list[int]:
        """What its state has from the start."""
        return [*range(1, self.reached + 1)]

    def judge(self) -> None:
        super().judge()
        if "pipeline.json" in self.store.files:
            _states(self)
            self.needs.refuse_gone()

    def _published_hint(self, checkpoint: Checkpoint) -> None:
        super()._published_hint(_without_states(checkpoint))


def _without_states(checkpoint: Checkpoint) -> Checkpoint:
    """Their tables are not in the world's."""
    told = (checkpoint.published or {"tables": {}})["tables"]
    plain = {name: at for name, at in told.items() if not name.startswith("state.")}
    return Checkpoint(**{**vars(checkpoint), "published": {**(checkpoint.published or {}), "tables": plain}})


def _states(oracle: Any) -> None:
    """I2: the state of a checkpoint that is there is what its line has read; and so is what its table shows."""
    held: dict[int, list[int]] = {0: []}
    line: list[int] = oracle.begins_with()
    newest: Checkpoint | None = None
    for checkpoint in (each for each in oracle.log() if each.completed):
        line = held[checkpoint.target] if checkpoint.target is not None else line
        line = sorted([*line, *oracle._offsets(checkpoint)])
        held[checkpoint.id], newest = line, checkpoint
        for ack in checkpoint.acks.values() if checkpoint.kept else ():
            payload = ack["states"].get(STATE_SINK)
            found = _read(oracle.store, _paths(oracle.store, payload)) if payload else []
            if found != line:
                raise Violation(f"I2: the state of checkpoint {checkpoint.id} has {found}, its line has read {line}")
    shelf = oracle.world.shelves.get(f"{oracle.store.root}/state/{STATE}")
    shown = _read(oracle.store, [shelf.path(name) for name in shelf.live()]) if shelf is not None else []
    if newest is not None and shown != line:
        raise Violation(f"I7: the state's table shows {shown}, the checkpoints that count have read {line}")


def _read(store: FakeStore, paths: Sequence[str]) -> list[int]:
    if gone := [path for path in paths if path not in store.files]:
        raise Violation(f"I6: {gone[0]}, with a part of a state, is gone")
    return sorted(offset for path in paths for offset in msgspec.json.decode(store.files[path].data))


def _paths(store: FakeStore, payload: dict[str, Any]) -> list[str]:
    """The files of a state, as a record says; none, if the side file that says it is gone."""
    data = payload["data"]
    if data is None:
        there = store.files.get(payload["blob"]["path"])
        data = msgspec.json.decode(there.data) if there is not None else {"files": []}
    return [f"state/{STATE}/{each['file']['path']}" for each in data["files"]]


# -- after each step ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """What the bytes of one record say."""

    record: dict[str, Any]
    blobs: tuple[str, ...]


@functools.lru_cache(maxsize=20_000)
def _named(data: bytes) -> Named:
    return Named(msgspec.json.decode(data), tuple(sorted({found.decode() for found in BLOB.findall(data)})))


class Needs:
    """What entries, pins and readers of one pipeline need, compared with what is there."""

    def __init__(self, world: LongWorld, store: FakeStore, tables: Sequence[str]) -> None:
        self.world, self.store, self.tables = world, store, tables
        self.claimed: dict[int, float] = {}
        """By entry, when retention has claimed it."""
        self.looked: dict[int, float] = {}
        """By entry, when whoever claimed it had last asked what stays."""
        self._watch = store.watch
        store.watch = self._written
        store.watch_removal = self._removed

    def _written(self, path: str, old: bytes | None, new: bytes) -> None:
        self._watch(path, old, new)
        if path.startswith("lines/"):  # a ledger of its own
            return
        if path.endswith("/retired.json"):
            id = int(path.split("/")[1])
            self.claimed.setdefault(id, self.world.tick)
            self.looked.setdefault(id, self._last_look())
        if path.startswith(("checkpoints/", "pins/")):
            self.refuse_gone()

    def _last_look(self) -> float:
        """When the process that is at work has last asked for pins, with which each look begins."""
        events = reversed(self.world.events)
        who = self.world.current.name if self.world.current is not None else ""
        return next((tick for tick, name, what in events if name == who and what.startswith("list pins/")), 0.0)

    def _removed(self, path: str) -> None:
        if path.startswith("lines/"):
            return
        if path.endswith("/plan.json"):
            self._enough_stay(int(path.split("/")[1]))
        self.refuse_gone()

    def refuse_gone(self) -> None:
        """Whatever is needed, and is not there, is told with who needs it."""
        ids = [int(name) for name in self.store.listing("checkpoints") if name.isdigit()]
        entries = {id: plan for id in ids if (plan := self._record(id, "plan.json")) is not None}
        pinned = self._pinned(entries)
        for id, plan in entries.items():
            if id in self.claimed and id not in pinned:
                continue
            if plan.record["kind"] == "control" or (decision := self._record(id, "decision.json")) is None:
                decided = None
            else:
                decided = decision.record
            open_ = decided is None and not self._rests_on_an_abort(plan)
            if plan.record["kind"] != "control" and (open_ or (decided or {}).get("outcome") == "completed"):
                self._entry(id, plan, decided)
        for name in self.tables:
            self._files(name, f"table {name!r}", self.world.tables[name].live())
        shelf = self.world.shelves.get(f"{self.store.root}/state/{STATE}")
        self._paths("the state's table", [shelf.path(name) for name in shelf.live()] if shelf is not None else [])

    def _rests_on_an_abort(self, plan: Named | None) -> bool:
        """Whether an open entry can only be aborted, because what it rests on was, or will be."""
        while plan is not None and (base := plan.record["base"]) is not None:
            decision = self._record(base, "decision.json")
            if decision is not None:
                return bool(decision.record["outcome"] == "aborted")
            plan = self._record(base, "plan.json")
        return False

    def _pinned(self, entries: dict[int, Named]) -> set[int]:
        """The entries that have a pin which retention must have seen: it was there before the claim."""
        found = set()
        for name in self.store.listing("pins"):
            file = self.store.files.get(f"pins/{name}")
            if file is None:
                continue
            pin = _named(file.data).record
            id, restart = pin["entry"], pin["restart"]
            if file.created >= self.claimed.get(id, self.world.tick + 1) or (
                restart and not self._stands(restart, pin)
            ):
                continue
            found.add(id)
            if id not in entries:
                raise Violation(f"pin {name} was made before retention claimed checkpoint {id}, which is gone")
        return found

    def late_savepoints(self) -> tuple[str, ...]:
        """What findings about savepoints begin with that came too late: their maker was told that they are none, and
        storage did not let them be taken back."""
        pins = {name: self.store.files[f"pins/{name}"] for name in self.store.listing("pins")}
        late = (
            name
            for name, file in pins.items()
            if file.created >= self.claimed.get(_named(file.data).record["entry"], self.world.tick + 1)
        )
        return tuple(f"savepoint {name.removeprefix('savepoint-').removesuffix('.json')!r} names" for name in late)

    def _stands(self, id: int, pin: dict[str, Any]) -> bool:
        """Whether a rollback is there, and counts or may come to count."""
        plan, decision = self._record(id, "plan.json"), self._record(id, "decision.json")
        mine = plan is not None and plan.record["attempt"] == pin["attempt"]
        return mine and (decision is None or decision.record["outcome"] == "completed")

    def _entry(self, id: int, plan: Named, decided: dict[str, Any] | None) -> None:
        what = f"checkpoint {id}"
        folder = f"checkpoints/{id:08d}"
        acks = [path for job in plan.record["acks"] if (path := f"{folder}/acks/{job}.json") in self.store.files]
        records = [plan, *(_named(self.store.files[path].data) for path in acks)]
        states = [record.record["states"].get(STATE_SINK) for record in records[1:]]
        manifest = self._record(id, f"manifest-{decided['manifest']}.json") if decided is not None else None
        if manifest is not None and plan.record["restart"] is not None:
            records.append(manifest)
            states += manifest.record["tables"].get(STATE_SINK, {"committables": []})["committables"]
        self._paths(what, [path for record in records for path in record.blobs])
        self._paths(what, [path for state in states if state for path in _paths(self.store, state)])
        for job, handle in manifest.record["jobs"].items() if manifest is not None else ():
            self._paths(what, [f"checkpoints/{handle['entry']:08d}/acks/{job}.json"])
        told = self._record(id, "published.json")
        for name in self.tables if told is not None else ():
            if name in told.record["tables"]:
                table = self.world.tables[name]
                self._files(name, f"{what} on table {name!r}", table.live(told.record["tables"][name]["version"]))

    def _paths(self, what: str, paths: Sequence[str]) -> None:
        gone = next((path for path in paths if path not in self.store.files), None)
        if gone is not None:
            raise Violation(f"I6: {what} needs {gone}, which is gone")

    def _files(self, name: str, what: str, files: Sequence[str]) -> None:
        gone = next((file for file in files if file not in self.world.tables[name].files), None)
        if gone is not None:
            raise Violation(f"I6: {what} needs {gone}, which is gone")

    def _enough_stay(self, id: int) -> None:
        """num_retained of those that can be gone back to lie above what goes. What is pinned goes only by itself."""
        plan = self.store.deleted.get(f"checkpoints/{id:08d}/plan.json")
        decisions = {
            other: (found.record, file.created)
            for name in self.store.listing("checkpoints")
            if (other := int(name)) > id
            and (file := self.store.files.get(f"checkpoints/{name}/decision.json")) is not None
            and f"checkpoints/{name}/plan.json" in self.store.files
            and (found := _named(file.data)).record["outcome"] == "completed"
        }
        backs = [
            (other, restart["target"])
            for other, (_, made) in decisions.items()
            if (restart := _named(self.store.files[f"checkpoints/{other:08d}/plan.json"].data).record["restart"])
            and made < self.looked.get(id, 0.0)
        ]
        counts = [other for other in decisions if not _undone(other, backs)]
        if plan is not None and len(counts) < self.world.climate.num_retained:
            raise Violation(f"checkpoint {id} is removed, of which can be gone back to above it there are {counts}")

    def _record(self, id: int, name: str) -> Named | None:
        file = self.store.files.get(f"checkpoints/{id:08d}/{name}")
        return _named(file.data) if file is not None else None


def _undone(id: int, backs: list[tuple[int, int]]) -> bool:
    """Whether a rollback that counts has gone back behind it; of rollbacks, the newest is asked first."""
    below = None
    for rollback, target in sorted(backs, reverse=True):
        if below is None or rollback < below:
            if target < id < rollback:
                return True
            below = target + 1
    return False
