"""A small real world with a gate for crash tests: of each file one row is bad, and every row is in one place.

The stage is nondeterministic, so rows of two attempts cannot be mixed unnoticed, neither within a table nor between
the table of the good rows and the quarantine. What follows a bad row is said by its rule's severity, in the suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.crash.world import NAME, World, check_ledger, rows_of
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.gates.quarantine import quarantine_name
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

SUITE = """
expectations:
  - {type: expect_column_values_to_not_be_in_set, kwargs: {column: key, value_set: [2]}, severity: SEVERITY, id: key}
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}, severity: critical}
"""


@dataclass
class GatedWorld(World):
    """The same files, and a gate before the table."""

    def judge_by(self, severity: str) -> None:
        """From now on a bad row aborts ("critical") or goes to quarantine ("warning")."""
        folder = self.root / "include" / "expectations"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.yaml").write_text(SUITE.replace("SEVERITY", severity))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        schema = "id long, key long, at long, amount decimal(10,2)"
        events = pipeline.source("events", Files("landing/*.json", schema=schema, max_files=1))

        @pipeline.stage(events)
        def marked(events: Any) -> Any:
            from pyspark.sql import functions as f

            return events.crossJoin(events.sparkSession.range(1).select(f.rand().alias("mark")))

        gate = Expectations("events", on_failure={"critical": "abort", "warning": "quarantine"})
        marked.gate(gate, name="checked").sink("log", DeltaAppend("tables/log"))
        return pipeline

    def quarantine(self) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        path = self.root / "ledger" / NAME / "quarantine" / "checked"
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist() if (path / "_delta_log").exists() else []


def check(world: GatedWorld, files: int) -> None:
    """Each row is in exactly one place, the right one, and those of one file come from one attempt."""
    good, bad = world.table("log"), world.quarantine()
    expected = [row for number in range(files) for row in rows_of(number)]
    assert sorted(row["id"] for row in good) == [row["id"] for row in expected if row["key"] != 2]
    assert sorted(row["id"] for row in bad) == [row["id"] for row in expected if row["key"] == 2]
    assert {tuple(row["_tidegate_rules"]) for row in bad} == {("key",)}
    marks = {row["id"]: row["mark"] for row in [*good, *bad]}
    for number in range(files):
        assert len({marks[row["id"]] for row in rows_of(number)}) == 1, "a file's rows come from one attempt"
    check_ledger(world)
    ledger = world.coordinator().ledger
    for id in ledger.ids():
        entry = ledger.entry(id)
        assert entry is not None
        for acked in entry.acks.values():
            verdict = acked.ack.gates["checked"]
            assert verdict.outcome != "abort" or entry.aborted, "a verdict says so"
            assert (quarantine_name("checked") in acked.ack.sinks) == bool(verdict.quarantined and not entry.aborted)
