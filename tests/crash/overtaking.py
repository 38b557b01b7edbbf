"""The pipeline of `four_jobs.py` on real Spark: four jobs, a join with state, checkpoints that overtake busy jobs.

Of each file's orders every other one is paid, half of them with the next file: so the join finds them in its state.
"""

from __future__ import annotations

import json
from typing import Any

from tests.crash.four_jobs import JOBS, ROWS_PER_FILE, TABLES, check_manifest, ids_of, is_paid
from tests.crash.world import CrashWorld, check_history
from tests.kit.limits import Limits
from tidegate import Pipeline
from tidegate.coordinator import Triggered
from tidegate.errors import Rejected
from tidegate.execution.finish import finish
from tidegate.execution.job.run_job import run_job
from tidegate.records.records import Plan
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

NAME = "crash"
PATIENCE = 40


def at_once(*, unaligned: bool = True) -> Limits:
    """Three checkpoints at once, which go past a job that is busy; or wait for it."""
    return Limits(max_concurrent_checkpoints=3, recorded={"unaligned": unaligned})


def paid_by(number: int) -> list[int]:
    """Whose payments a file has."""
    own = [id for id in ids_of(number) if is_paid(id) and id % 4 == 1]
    return own + [id for id in (ids_of(number - 1) if number else ()) if is_paid(id) and id % 4 == 3]


class FourWorld(CrashWorld):
    """Its files, ledger and tables."""

    def feed(self, files: int) -> None:
        for source in ("orders", "payments"):
            landing = self.root / "landing" / source
            landing.mkdir(parents=True, exist_ok=True)
            for number in range(files):
                ids = list(ids_of(number)) if source == "orders" else paid_by(number)
                path = landing / f"{number:04d}.json"
                if not path.exists():
                    path.write_text("".join(json.dumps({"id": id, "at": "2026-01-01T00:00:00Z"}) + "\n" for id in ids))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        orders, payments = (
            pipeline.source(
                name,
                Files(f"landing/{name}/*.json", schema="id long, at timestamp", max_files=1),
                event_time="at",
                watermark="1 day",
            )
            for name in ("orders", "payments")
        )

        def mark(frame: Any, name: str) -> Any:
            from pyspark.sql import functions as f

            return frame.crossJoin(frame.sparkSession.range(1).select(f.rand().alias(name)))

        marked = pipeline.stage(orders, name="marked")(lambda orders: mark(orders, "mark"))
        paidfor = pipeline.stage(payments.job("pay"), name="paidfor")(lambda payments: payments)
        paid = marked.job("paying").join(paidfor.job("paying"), on="id", within="1 h", prefix="paid_", uid="paid")

        @pipeline.stage(marked.job("report"), paid.job("report"))
        def report(marked: Any, paid: Any) -> Any:
            return marked.selectExpr("id", "'order' AS of", "mark").union(
                paid.selectExpr("id", "'payment' AS of", "mark")
            )

        for name, stream in (("orders", marked), ("paid", paid), ("report", report)):
            stream.sink(name, DeltaAppend(f"tables/{name}"))
        return pipeline


def dag_run(world: CrashWorld, run: str, spark: Any, *, impatient: bool = False) -> int | None:
    """What the tasks of one DAG run do. A job that the checkpoint goes past is skipped."""
    coordinator = world.coordinator()

    def give_up(plan: Plan) -> str | None:
        return "RUN_GONE" if impatient else None

    triggered = coordinator.trigger(run, give_up=give_up, only_if_new=True)
    if not isinstance(triggered, Triggered):
        coordinator.publish()
        return None
    id = triggered.plan.id
    for job in triggered.plan.acks:
        try:
            run_job(coordinator, id, job, spark, at_work=lambda plan, job: not impatient)
        except Rejected as error:
            if error.reason != "PASSED_BY":
                raise
    tried: list[str] = []

    def wait(why: str) -> None:
        tried.append(why)
        assert len(tried) < PATIENCE, why

    finish(coordinator, id, None, give_up=give_up, wait=wait)
    return id


def check(world: CrashWorld, files: int) -> None:
    """The tables are what they would have been, and so is every manifest that is kept."""
    shown = {name: world.table(name) for name in TABLES}
    ids = sorted(range(files * ROWS_PER_FILE))
    paid = sorted(id for number in range(files) for id in paid_by(number))
    assert sorted(row["id"] for row in shown["orders"]) == ids
    assert sorted(row["id"] for row in shown["paid"]) == paid
    told = sorted((row["of"], row["id"]) for row in shown["report"])
    assert told == [("order", id) for id in ids] + [("payment", id) for id in paid]
    mark = {row["id"]: row["mark"] for row in shown["orders"]}
    assert all(row["mark"] == mark[row["id"]] for row in [*shown["paid"], *shown["report"]]), "of one attempt"
    for number in range(files):
        assert len({mark[id] for id in ids_of(number)}) == 1
    ledger = world.coordinator().ledger
    for id in ledger.ids():
        entry = ledger.entry(id)
        assert entry is not None
        assert entry.decision is not None
        assert set(entry.plan.acks) == set(JOBS)
        if entry.completed:
            check_manifest(world.root / "ledger" / NAME / "checkpoints" / f"{id:08d}", id)
    for name in TABLES:
        check_history(world, name)
