"""What must hold, checked without any of the code that is under test: bytes, lists and plain Python."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.kit.fake_store import FakeStore
from tests.kit.toys import ToyCommit
from tests.simulation.world import GATE, TABLES, SimulatedWorld, Violation

IS_PLAN = re.compile(r"checkpoints/\d+/plan\.json").fullmatch
HINTS = ("latest.json", "kept.json")


@dataclass
class Checkpoint:
    """All that the records say about one entry, kept or deleted by retention."""

    id: int
    plan: dict[str, Any]
    acks: dict[str, dict[str, Any]]
    decision: dict[str, Any] | None
    manifest: dict[str, Any] | None
    published: dict[str, Any] | None
    kept: bool

    @property
    def completed(self) -> bool:
        return self.decision is not None and self.decision["outcome"] == "completed"

    @property
    def target(self) -> int | None:
        """Of a rollback: where it goes back to."""
        restart = self.plan.get("restart")
        return restart["target"] if restart else None

    @property
    def aborted(self) -> bool:
        return self.decision is not None and self.decision["outcome"] == "aborted"

    @property
    def range(self) -> tuple[int, int]:
        """Offsets (after, to]."""
        (part,) = (part for name, part in self.plan["sources"].items() if not name.startswith("quarantine."))
        return (part["start"] or {"at": 0})["at"], part["end"]["at"]


class Oracle:
    """Watches the day as it continues, and judges it at its end."""

    def __init__(self, world: SimulatedWorld, store: FakeStore | None = None, tables: Sequence[str] = TABLES) -> None:
        self.world = world
        self.store = store or world.store
        self.tables = tables
        self.first = 1
        """The first entry of the log."""
        self.reached = 0
        """Where it begins to read."""
        self.holds = world.climate.holds if store is None else 0
        self.bad = world.bad if store is None else 0
        """Of which multiples a gate sets rows aside."""
        self.store.watch = self.record_written
        others = world.tables.watch
        world.tables.watch = lambda table, commit: (self.committed if table in self.tables else others)(table, commit)

    # -- as it happens

    def record_written(self, path: str, old: bytes | None, new: bytes) -> None:
        """I3, W2: records are written once, and rest on nothing that a power loss could take back."""
        if path in HINTS:
            return
        if old is not None and old != new:
            raise Violation(f"I3: {path} was rewritten")
        folder, _, name = path.rpartition("/")
        again = path in self.store.deleted
        if name == "plan.json" and not again:
            self._planned(int(folder[-8:]), json.loads(new))
        if name == "decision.json" and json.loads(new)["outcome"] == "completed":
            if again and self._by_own_acks(folder, json.loads(new)):
                raise Violation(f"I3: {folder} was retired, its id is used and completed again")
            if not again:
                self._decided(int(folder[-8:]), json.loads(new))

    def _by_own_acks(self, folder: str, decision: dict[str, Any]) -> bool:
        """Whether the completed entry is not just the echo of one that was there before: see Entry.acks_agree."""
        there = self.store.files
        manifest = there.get(f"{folder}/manifest-{decision['manifest']}.json")
        if manifest is None or f"{folder}/plan.json" not in there:
            return False
        return all(f"{folder}/acks/{job}.json" in there for job in json.loads(manifest.data)["jobs"])

    def _planned(self, id: int, plan: dict[str, Any]) -> None:
        base = plan["base"]
        for lower in range(base or self.first, id):
            if self.store.truth(f"checkpoints/{lower:08d}/plan.json") is None:
                raise Violation(f"entry {id} is created, entry {lower} does not exist")
            self._durable(f"entry {id} is planned", lower, "plan.json")
            if lower != base and plan["kind"] != "control" and not self._control(lower):
                self._durable(f"entry {id} is planned", lower, "decision.json")

        if plan["kind"] == "restart":
            return self._rollback_planned(id)
        if plan["kind"] != "control" and self._control(id - 1) in ("suspend", "stop", "cancel"):
            raise Violation(f"checkpoint {id} is planned behind a suspension")
        if plan["kind"] != "control" and self._ended(id - 1):
            raise Violation(f"checkpoint {id} is planned behind the end of time")

    def _rollback_planned(self, id: int) -> None:
        """R2: all that is below is decided, for good."""
        for lower in range(self.first, id):
            if self.checkpoint(lower).decision is None and not self._control(lower):
                raise Violation(f"rollback {id} is created, and checkpoint {lower} is open")

    def _control(self, id: int) -> str:
        """What entry `id` does, if it is no checkpoint."""
        plan = self._json(f"checkpoints/{id:08d}/plan.json")
        if plan is not None and plan.get("restart"):
            return self._control(id - 1)  # a rollback answers no suspension
        return plan["control"]["action"] if plan is not None and plan.get("control") else ""

    def _ended(self, id: int) -> bool:
        """Whether event time came to its end up to entry `id`, or may come to it, and nobody has resumed."""
        for lower in range(id, self.first - 1, -1):
            entry = self.checkpoint(lower)
            action = entry.plan["control"]["action"] if entry.plan.get("control") else ""
            if action == "resume":
                return False
            if not action and not entry.aborted and (entry.completed or entry.plan.get("drain")):
                return entry.plan.get("drain") is not None
        return False

    def _decided(self, id: int, decision: dict[str, Any]) -> None:
        checkpoint = self.checkpoint(id)
        what = f"checkpoint {id} is completed"
        if checkpoint.plan["base"] is not None:
            base = self.checkpoint(checkpoint.plan["base"])
            if not base.completed:
                raise Violation(f"I3: {what}, its base {base.id} is not")
            self._durable(what, base.id, "decision.json")
        if checkpoint.target is not None:
            self._rollback_decided(checkpoint, decision)
        self._acked(checkpoint, decision, what)
        self._answered(checkpoint, decision)
        self._durable(what, id, f"manifest-{decision['manifest']}.json")
        index = [path for path in self.store.files if path.startswith("runs/") and path.endswith(f"/{id:08d}")]
        if not index:
            raise Violation(f"{what} before its run is indexed")
        if not self.store.durable(index[0]):
            raise Violation(f"W2: {what}, but {index[0]} is not durable")

    def _acked(self, checkpoint: Checkpoint, decision: dict[str, Any], what: str) -> None:
        """Every job has done its part, for good."""
        for job in checkpoint.plan["acks"]:
            if job not in checkpoint.acks:
                raise Violation(f"I3: {what} without the ack of job {job}")
            self._durable(what, checkpoint.id, f"acks/{job}.json")

    def _answered(self, checkpoint: Checkpoint, decision: dict[str, Any]) -> None:
        """D5: whatever holds it was approved, and that answer was about exactly these rows."""
        what = f"checkpoint {checkpoint.id} is completed"
        manifest = self._json(f"checkpoints/{checkpoint.id:08d}/manifest-{decision['manifest']}.json")
        assert manifest is not None
        for job, ack in checkpoint.acks.items():
            for gate in (name for name, verdict in ack["gates"].items() if verdict["outcome"] == "hold"):
                answer = self._json(f"checkpoints/{checkpoint.id:08d}/holds/{gate}.json")
                if answer is None or not answer["approve"]:
                    raise Violation(f"D5: {what}, and gate {gate!r} was {'rejected' if answer else 'not answered'}")
                if answer["ack"] != manifest["jobs"][job]:
                    raise Violation(f"D5: {what} by an answer to {answer['ack']}, not to {manifest['jobs'][job]}")
                self._durable(what, checkpoint.id, f"holds/{gate}.json")

    def _rollback_decided(self, checkpoint: Checkpoint, decision: dict[str, Any]) -> None:
        """R2, R4: its target is there, and what it says is what the target said."""
        assert checkpoint.target is not None
        target, what = self.checkpoint(checkpoint.target), f"rollback {checkpoint.id} to {checkpoint.target} is decided"
        if not target.kept or not target.completed:
            raise Violation(f"{what}, its target is retired, or was never completed")
        manifest = self._json(f"checkpoints/{checkpoint.id:08d}/manifest-{decision['manifest']}.json")
        assert manifest is not None
        assert target.manifest is not None
        for part in ("positions", "jobs"):
            if manifest[part] != target.manifest[part]:
                raise Violation(f"{what}, with other {part} than the target's")

    def _durable(self, what: str, id: int, name: str) -> None:
        path = f"checkpoints/{id:08d}/{name}"
        if not self.store.durable(path):
            raise Violation(f"W2: {what}, but {path} is not durable")

    def committed(self, table: str, commit: ToyCommit) -> None:
        """I4: only what is completed is ever shown, and in order."""
        assert commit.id is not None
        checkpoint = self.checkpoint(commit.id)
        if not checkpoint.completed:
            raise Violation(f"I4: table {table!r} shows checkpoint {commit.id}, which is not completed")
        self._durable(f"checkpoint {commit.id} is published", commit.id, "decision.json")
        earlier = [c.id for c in self.world.tables[table].commits[:-1] if c.id is not None]
        if earlier and earlier[-1] >= commit.id:
            raise Violation(f"I1: table {table!r} shows checkpoint {commit.id} after {earlier[-1]}")

    # -- at the end

    def judge(self) -> None:
        """Everything has been said and done: does it add up?"""
        log = self.log()
        self._ids(log)
        self._decisions(log)
        completed = [checkpoint for checkpoint in log if checkpoint.completed]
        for table in self.tables:
            self._table(table, completed)
        self._one_attempt(completed)
        for checkpoint in log:
            self._judged(checkpoint)
        for checkpoint in completed:
            self._named_files_exist(checkpoint)
            self._published_hint(checkpoint)
        self._latest(log)
        self._savepoints()

    def _judged(self, checkpoint: Checkpoint) -> None:
        """A gate has held what it should have held; and who is said to have rejected a checkpoint has."""
        for job, ack in checkpoint.acks.items() if checkpoint.target is None else ():
            bad = any(self._is_set_aside(checkpoint, offset) for offset in self._offsets(checkpoint))
            holds = any(self._is_held(offset) for offset in self._offsets(checkpoint))
            asks = holds and not checkpoint.plan.get("quarantine_held")
            wanted = "hold" if asks else "quarantine" if bad else "pass"
            if (self.holds or self.bad) and ack["gates"][GATE]["outcome"] != wanted:
                raise Violation(f"job {job} of checkpoint {checkpoint.id} says {ack['gates']}, not {wanted}")
        reason = checkpoint.decision["reason"] if checkpoint.decision and checkpoint.aborted else ""
        if reason in ("GATE_REJECTED", "GATE_QUARANTINED"):
            answer = self._json(f"checkpoints/{checkpoint.id:08d}/holds/{GATE}.json")
            if answer is None or answer["approve"]:
                raise Violation(f"D5: checkpoint {checkpoint.id} is aborted as rejected, and nobody has rejected it")
            if answer["quarantine"] != (reason == "GATE_QUARANTINED"):
                raise Violation(f"D5: checkpoint {checkpoint.id} is aborted as {reason}, and the answer is {answer}")

    def _is_bad(self, offset: int) -> bool:
        """Whether the gate quarantines it whenever it is read."""
        return bool(self.bad) and offset % self.bad == 0

    def _is_held(self, offset: int) -> bool:
        """Whether the gate asks a person about it."""
        return bool(self.holds) and offset % self.holds == 0

    def _is_set_aside(self, checkpoint: Checkpoint, offset: int) -> bool:
        """Whether this checkpoint quarantines it: as bad, or because a person has said so of what was held."""
        return self._is_bad(offset) or (bool(checkpoint.plan.get("quarantine_held")) and self._is_held(offset))

    def _is_released(self, checkpoint: Checkpoint, offset: int) -> bool:
        """Whether a checkpoint that brings it can only have it from quarantine."""
        if not self.bad:
            return False
        return offset not in self._offsets(checkpoint) or self._is_set_aside(checkpoint, offset)

    def _set_aside_by(self, checkpoints: Iterable[Checkpoint]) -> set[int]:
        """What any of these checkpoints has quarantined: it may be in tables as a released row."""
        read = [(each, offset) for each in checkpoints if each.target is None for offset in self._offsets(each)]
        return {offset for each, offset in read if self._is_set_aside(each, offset)}

    def _offsets(self, checkpoint: Checkpoint) -> Sequence[int]:
        """What this checkpoint has read."""
        return range(checkpoint.range[0] + 1, checkpoint.range[1] + 1)

    def _savepoints(self) -> None:
        """What has a name stays. That all it names is there is told with all that are kept."""
        for name, id in self.world.promised.items():
            if not self.checkpoint(id).kept:
                raise Violation(f"savepoint {name!r} was made of checkpoint {id}, which is retired")

    def log(self) -> list[Checkpoint]:
        """All entries that were ever created for good."""
        names = {path.split("/")[1] for path in self.store.every_path() if IS_PLAN(path)}
        return [self.checkpoint(int(name)) for name in sorted(names)]

    def checkpoint(self, id: int) -> Checkpoint:
        """One entry, from the bytes."""
        folder = f"checkpoints/{id:08d}"
        plan = self._json(f"{folder}/plan.json")
        if plan is None:
            raise Violation(f"entry {id} has no plan")
        acks = {job: ack for job in plan["acks"] if (ack := self._json(f"{folder}/acks/{job}.json")) is not None}
        decision = self._json(f"{folder}/decision.json")
        manifest = None
        if decision is not None and decision["outcome"] == "completed":
            manifest = self._json(f"{folder}/manifest-{decision['manifest']}.json")
            if manifest is None:
                raise Violation(f"I6: the decision of {id} names a manifest that does not exist")
        kept = f"{folder}/plan.json" in self.store.files and f"{folder}/plan.json" not in self.store.deleted
        return Checkpoint(id, plan, acks, decision, manifest, self._json(f"{folder}/published.json"), kept)

    def _ids(self, log: list[Checkpoint]) -> None:
        ids = [checkpoint.id for checkpoint in log]
        if ids != list(range(self.first, self.first + len(ids))):
            raise Violation(f"the log has a hole: {ids}")
        runs: dict[str, int] = {}
        for checkpoint in log:
            run = checkpoint.plan["run"]
            if not checkpoint.aborted and runs.setdefault(run, checkpoint.id) != checkpoint.id:
                raise Violation(f"run {run!r} has checkpoint {runs[run]} and checkpoint {checkpoint.id}")

    def _decisions(self, log: list[Checkpoint]) -> None:
        """I1, I3: completed ranges tile the input, each on the one before, or on where a rollback went back to."""
        reached, before = self.reached, None
        ends = {checkpoint.id: checkpoint.range[1] for checkpoint in log if checkpoint.plan["sources"]}
        for checkpoint in log:
            if not checkpoint.completed:
                continue
            if checkpoint.plan["base"] != before:
                raise Violation(f"I3: checkpoint {checkpoint.id} rests on {checkpoint.plan['base']}, not on {before}")
            if checkpoint.target is not None:
                reached = self._goes_back_to(checkpoint, ends, reached)
            if checkpoint.range[0] != reached:
                raise Violation(
                    f"I1: checkpoint {checkpoint.id} reads {checkpoint.range}, {reached} was reached before"
                )
            reached, before = checkpoint.range[1], checkpoint.id

    def _goes_back_to(self, rollback: Checkpoint, ends: dict[int, int], reached: int) -> int:
        """Up to where all has been read as of a rollback. ends: by checkpoint; reached: just before it."""
        assert rollback.target is not None
        return ends[rollback.target]

    def _table(self, name: str, completed: list[Checkpoint]) -> None:
        """I1, I4: exactly the rows of the completed ranges, in the order of the log, each once; none is owed."""
        table = self.world.tables[name]
        mine = [commit for commit in table.commits if commit.id is not None]
        shown = [commit.id for commit in mine]
        owed = [c for c in completed if self._brings(name, c) or (c.target is not None and shown and c.id > shown[0])]
        never = [c.id for c in owed if c.id not in shown and not _cancelled(c.id, completed)]
        if shown != [c.id for c in owed if c.id in shown] or never:
            raise Violation(f"I1: table {name!r} shows checkpoints {shown}, owed are {[c.id for c in owed]}")
        self._live(name, completed)
        by_id = {checkpoint.id: checkpoint for checkpoint in owed}
        for commit in mine:
            assert commit.id is not None
            checkpoint = by_id[commit.id]
            if checkpoint.target is not None:
                continue
            try:
                offsets = [offset for offset, _ in table.rows(commit)]
            except KeyError as gone:
                raise Violation(f"I6: file {gone} of checkpoint {checkpoint.id} on table {name!r} is gone") from None
            rows = sorted(offset for offset in offsets if not self._is_released(checkpoint, offset))
            if rows != self._wanted(name, checkpoint):
                raise Violation(f"I1: table {name!r} has rows {rows} of checkpoint {checkpoint.id}")

    def _live(self, name: str, completed: list[Checkpoint]) -> None:
        """I7: a reader sees what the checkpoints that count have brought, as if the others had never been."""
        lineage: list[int] = []
        as_of: dict[int, list[int]] = {0: []}
        for checkpoint in completed:
            if checkpoint.target is not None:
                lineage = as_of[checkpoint.target]
            lineage = [*lineage, *self._wanted(name, checkpoint)]
            as_of[checkpoint.id] = lineage
        table, aside = self.world.tables[name], self._set_aside_by(completed)
        try:
            rows = [offset for file in table.live() for offset, _ in table.files[file]]
            shown = sorted(offset for offset in rows if not self._is_bad(offset) and offset not in aside)
        except KeyError as gone:
            raise Violation(f"I6: file {gone} on table {name!r} is gone") from None
        lineage = sorted(offset for offset in lineage if offset not in aside)
        if shown != lineage:
            raise Violation(f"I7: table {name!r} shows {shown}, the checkpoints that count have {lineage}")

    def _wanted(self, table: str, checkpoint: Checkpoint) -> list[int]:
        """The reference: which offsets this checkpoint brings to the table, but for those that come from quarantine."""
        skip = self.world.climate.skip if table == TABLES[1] else 0
        good = [offset for offset in self._offsets(checkpoint) if not self._is_set_aside(checkpoint, offset)]
        return [offset for offset in good if not (skip and offset % skip == 0)]

    def _brings(self, table: str, checkpoint: Checkpoint) -> bool:
        """Whether it has rows for the table: its own, or some that are let continue."""
        if not self.bad or checkpoint.manifest is None or checkpoint.target is not None:
            return bool(self._wanted(table, checkpoint))
        return bool(checkpoint.manifest["tables"][table]["committables"])

    def _one_attempt(self, completed: list[Checkpoint]) -> None:
        """All rows of one checkpoint come from one read by one attempt, on all tables: the one that was acked."""
        for checkpoint in (each for each in completed if each.target is None):
            tags, attempts = set(), set()
            for table in map(self.world.tables.__getitem__, self.tables):
                for commit in table.commits:
                    if commit.id == checkpoint.id:
                        rows = table.rows(commit)
                        tags |= {tag for offset, tag in rows if not self._is_released(checkpoint, offset)}
                        attempts |= {name.split("/")[3] for name in commit.files}
            acked = {ack["attempt"] for ack in checkpoint.acks.values()}
            if len(tags) > 1 or (attempts and attempts != acked):
                raise Violation(f"checkpoint {checkpoint.id} mixes attempts {sorted(attempts)}, acked: {sorted(acked)}")

    def _named_files_exist(self, checkpoint: Checkpoint) -> None:
        """I6: what a kept checkpoint names is there."""
        if not checkpoint.kept:
            return
        assert checkpoint.manifest is not None
        for job in checkpoint.plan["acks"]:
            if f"checkpoints/{checkpoint.id:08d}/acks/{job}.json" not in self.store.files:
                raise Violation(f"I6: the ack of job {job} of checkpoint {checkpoint.id} is gone")
        for job, handle in checkpoint.manifest["jobs"].items():
            if f"checkpoints/{handle['entry']:08d}/acks/{job}.json" not in self.store.files:
                raise Violation(f"I6: the ack of job {job} that checkpoint {checkpoint.id} rests on is gone")
        payloads = [part["splits"] for part in checkpoint.plan["sources"].values()]
        payloads += [each for part in checkpoint.manifest["tables"].values() for each in part["committables"]]
        for payload in payloads:
            if payload["blob"] is not None and payload["blob"]["path"] not in self.store.files:
                raise Violation(f"I6: side file {payload['blob']['path']} of checkpoint {checkpoint.id} is gone")

    def _published_hint(self, checkpoint: Checkpoint) -> None:
        """published.json, if it is there, tells where the tables stood."""
        for name, told in (checkpoint.published or {"tables": {}})["tables"].items():
            commits = self.world.tables[name].commits
            upto = [c.id for c in commits[: told["version"] + 1] if c.id is not None]
            last = [c.id for c in commits if c.id is not None and c.id <= checkpoint.id]
            if commits[told["version"]].id is None or upto != last:
                raise Violation(f"published.json of {checkpoint.id} says version {told['version']} of {name!r}")

    def _latest(self, log: list[Checkpoint]) -> None:
        """The hint names something that is completed and published, with nothing open below."""
        latest = self._json("latest.json")
        if latest is None:
            return
        below = [each for each in log if each.id <= latest["id"]]
        if any(each.decision is None for each in below) or not below[-1].completed:
            raise Violation(f"latest.json says {latest['id']}, which is not settled")

    def _json(self, path: str) -> dict[str, Any] | None:
        data = self.store.truth(path)
        return _parsed(data) if data is not None else None


@functools.lru_cache(maxsize=5_000)
def _parsed(data: bytes) -> dict[str, Any]:
    """Nobody changes what it gives."""
    found: dict[str, Any] = msgspec.json.decode(data)
    return found


def _cancelled(id: int, completed: list[Checkpoint]) -> bool:
    """Whether some rollback went back behind it: then it may never have been published."""
    return any(other.target is not None and other.target < id < other.id for other in completed)
