"""A small real world for crash tests: files land, a pipeline runs on real Spark and Delta, an oracle checks.

The pipeline is made to show mistakes. Each checkpoint reads one file, so checkpoints are many. Its stage is
nondeterministic: every attempt gives its rows a mark of their own, so rows of two attempts cannot be mixed
unnoticed, neither within a table nor between the two tables.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.kit.world import World
from tidegate import Pipeline
from tidegate.execution.job.run_job import run_job
from tidegate.history.table import journal_of, remember
from tidegate.pipeline import Stream
from tidegate.records.records import Plan
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

NAME = "crash"
ROWS_PER_FILE = 6
KEYS = 4


@dataclass
class CrashWorld(World):
    """One pipeline's files, ledger and tables below one folder."""

    name: str = field(default=NAME, init=False)

    def feed(self, files: int) -> None:
        """Let so many files have landed in all. Every key is updated again and again."""
        landing = self.root / "landing"
        landing.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            path = landing / f"events-{number:04d}.json"
            if not path.exists():
                path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(number)))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        marked = self.marked(pipeline)
        marked.sink("log", DeltaAppend("tables/log"))
        marked.sink("latest", DeltaUpsert("tables/latest", keys=["key"], order_by="at"))
        return pipeline

    def marked(self, pipeline: Pipeline) -> Stream:
        """The rows, each with a mark that differs from attempt to attempt."""
        schema = "id long, key long, at long, amount decimal(10,2)"
        events = pipeline.source("events", Files("landing/*.json", schema=schema, max_files=1))

        @pipeline.stage(events)
        def marked(events: Any) -> Any:
            from pyspark.sql import functions as f

            return events.crossJoin(events.sparkSession.range(1).select(f.rand().alias("mark")))

        return marked


def rows_of(number: int) -> list[dict[str, Any]]:
    """The rows of one landed file."""
    first = number * ROWS_PER_FILE
    return [{"id": id, "key": id % KEYS, "at": id, "amount": f"{id}.25"} for id in range(first, first + ROWS_PER_FILE)]


def dag_run(world: CrashWorld, run: str, spark: Any, *, impatient: bool = False) -> int | None:
    """What the tasks of one DAG run do: trigger, jobs, complete, publish, retire. None: nothing new.

    impatient: whoever else has a checkpoint open is taken for dead. (A zombie that is not dead must be harmless.)
    """
    coordinator = world.coordinator()

    def give_up(plan: Plan) -> str | None:
        return "RUN_GONE" if impatient else None

    triggered = coordinator.trigger(run, give_up=give_up, only_if_new=True)
    if triggered is None:
        coordinator.publish()
        return None
    for job in triggered.plan.acks:
        run_job(coordinator, triggered.plan.id, job, spark)
    coordinator.complete(triggered.plan.id)
    coordinator.publish()
    remember(coordinator.ledger, {})
    coordinator.retire()
    return triggered.plan.id


# -- the oracle ----------------------------------------------------------------------------------------


def check(world: CrashWorld, files: int) -> None:
    """Everything that must hold once the world is quiet and `files` files have been read."""
    expected = [row for number in range(files) for row in rows_of(number)]
    log = world.table("log")
    assert Counter(row["id"] for row in log) == Counter(row["id"] for row in expected), "I1: exactly once in the log"
    assert sorted((r["id"], r["key"], r["at"], str(r["amount"])) for r in log) == sorted(
        (r["id"], r["key"], r["at"], r["amount"]) for r in expected
    )
    newest = {row["key"]: row for row in sorted(expected, key=lambda row: row["at"])}
    latest = {row["key"]: row for row in world.table("latest")}
    assert {k: r["id"] for k, r in latest.items()} == {k: r["id"] for k, r in newest.items()}, "I1: newest row per key"
    marks = {row["id"]: row["mark"] for row in log}
    assert all(marks[row["id"]] == row["mark"] for row in latest.values()), "both tables come from one attempt"
    for number in range(files):
        assert len({marks[row["id"]] for row in rows_of(number)}) == 1, "one checkpoint's rows come from one attempt"
    check_ledger(world)
    check_told(world)
    for name in ("log", "latest"):
        check_history(world, name)


def check_told(world: CrashWorld) -> None:
    """The history has each settled checkpoint once, in order."""
    ledger = world.coordinator().ledger
    remember(ledger, {})
    told = journal_of(ledger, {}).read(["id"])["id"].to_pylist()
    assert told == list(range(1, len(told) + 1))
    assert len(told) >= ledger.settled(), "a hint: who wakes up late may put it back"


def check_ledger(world: CrashWorld) -> None:
    """I3, I6: one log without holes (but behind what is pinned), every entry decided, all that is named is there."""
    ledger = world.coordinator().ledger
    ids = ledger.ids()
    pinned = {pin.entry for pin in ledger.pins()}
    position = None
    for before, id in zip([ids[0] - 1, *ids], ids, strict=False):
        if id != before + 1:
            assert before in pinned, f"behind {before} there is a hole"
            position = None
        entry = ledger.entry(id)
        assert entry is not None
        assert entry.decision is not None, f"checkpoint {id} is still open"
        if entry.completed:
            assert id in ledger.run_ids(entry.plan.run), "a run that is cleared finds what it completed"
            assert entry.manifest is not None
            if position is not None and entry.rollback is None:
                assert entry.plan.sources["events"].start == position, "ranges join without gap or overlap"
            position = entry.plan.sources["events"].end
            assert ledger.published(id) is not None or id > ledger.view().settled


def check_history(world: CrashWorld, name: str) -> None:
    """I4: the table took the completed checkpoints in order, each once."""
    from deltalake import DeltaTable

    history = DeltaTable(str(world.root / "tables" / name)).history()
    ids = [int(commit["tidegate.checkpoint"]) for commit in reversed(history) if "tidegate.checkpoint" in commit]
    assert ids == sorted(set(ids)), "ascending, none twice"
    ledger = world.coordinator().ledger
    for id in ids:
        decision = ledger.decision(id)
        assert decision is None or decision.outcome == "completed", f"aborted checkpoint {id} is visible"
