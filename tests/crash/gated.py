"""A small real world with a gate for crash tests: of each file one row is bad, and every row is in one place.

The stage is nondeterministic, so rows of two attempts cannot be mixed unnoticed, neither within a table nor between
the table of the good rows and the quarantine. What follows a bad row is said by its rule's severity, in the suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.crash.world import NAME, CrashWorld, check_ledger, rows_of
from tidegate import Pipeline
from tidegate.checkpoint import quarantine_requests
from tidegate.gates import Expectations, Unique
from tidegate.gates.quarantine.table import quarantine_name
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Plan, Request
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

SUITE = """
expectations:
  - {type: expect_column_values_to_not_be_in_set, kwargs: {column: key, value_set: [2]}, severity: SEVERITY, id: key}
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}, severity: critical}
"""


TABLE = {"id": "long", "key": "long", "at": "long", "amount": "decimal(10,2)", "mark": "double"}


class AfterTheGate(DeltaAppend):
    """A table that is given rows once they are judged, as most are that are no plain append on this machine."""

    def prestage(self, *_: Any, **__: Any) -> None:
        return None


@dataclass
class GatedWorld(CrashWorld):
    """The same files, and a gate before the table."""

    def judge_by(self, severity: str) -> None:
        """From now on a bad row aborts ("critical"), goes to quarantine ("warning") or waits for a person ("info")."""
        folder = self.root / "include" / "expectations"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.yaml").write_text(SUITE.replace("SEVERITY", severity))

    def only_warn(self) -> None:
        """From now on a bad row is told of, and continues."""
        (self.root / "warns").touch()

    def keep_rows(self) -> None:
        """From now on the table's sink stages no rows before they are judged."""
        (self.root / "keeps").touch()

    def deduplicate(self) -> None:
        """An operator takes the rows that pass: they are staged in a folder of their own, judged, and read from it."""
        (self.root / "deduplicates").touch()

    def be_unique(self) -> None:
        """From the beginning, a second gate has state: no id may have passed it before, which none has."""
        (self.root / "unique").touch()

    def refuse_by_table(self) -> None:
        """From the beginning, no gate is declared: the table itself refuses bad rows, by a column that is NOT NULL."""
        from deltalake import DeltaTable, Field, Schema

        fields = [Field(name, kind) for name, kind in TABLE.items()]
        DeltaTable.create(str(self.root / "tables" / "log"), Schema([*fields, Field("code", "string", nullable=False)]))

    @property
    def is_refused_by_table(self) -> bool:
        return (self.root / "tables" / "log" / "_delta_log" / f"{0:020d}.json").exists() and not (
            self.root / "include"
        ).exists()

    @property
    def gate(self) -> str:
        """The gate that judges."""
        return "log-refused" if self.is_refused_by_table else "checked"

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(NAME)
        if (self.root / "orders").exists():
            orders = pipeline.source(
                "events", Files("landing/*.json", schema="id long, raw string, amount decimal(12,2)")
            )
            gate = Expectations("events", on_failure="quarantine")
            orders.gate(gate, name="checked").sink("log", AfterTheGate("tables/log"))
            return pipeline
        is_unique = (self.root / "unique").exists()
        schema = f"id long, key long, at {'timestamp' if is_unique else 'long'}, amount decimal(10,2)"
        files = Files("landing/*.json", schema=schema, max_files=1)
        events = pipeline.source("events", files, event_time="at" if is_unique else None)

        @pipeline.stage(events)
        def marked(events: Any) -> Any:
            from pyspark.sql import functions as f

            return events.crossJoin(events.sparkSession.range(1).select(f.rand().alias("mark")))

        kind = AfterTheGate if (self.root / "keeps").exists() else DeltaAppend
        if self.is_refused_by_table:
            coded = marked.select("*", "CASE WHEN key <> 2 THEN 'good' END AS code", name="coded")
            coded.sink("log", kind("tables/log"), refused="quarantine")
            return pipeline
        warns = (self.root / "warns").exists()
        by_severity: Any = {"critical": "abort", "warning": "quarantine", "info": "hold"}
        gate = Expectations("events", on_failure="warn" if warns else by_severity)
        passed = marked.gate(gate, name="checked")
        if is_unique:
            passed = passed.gate(Unique("id", over="1 hour", on_failure="quarantine"), name="once")
        if (self.root / "deduplicates").exists():
            passed = passed.deduplicate(by=["id"], uid="once")
        passed.sink("log", kind("tables/log"))
        return pipeline

    def quarantine(self) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        path = self.root / "ledger" / NAME / "quarantine" / self.gate
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist() if (path / "_delta_log").exists() else []


def ask(world: GatedWorld, action: str = "release", **about: Any) -> None:
    """What `tidegate quarantine release` does, of all rows that wait."""
    ledger = world.coordinator().ledger
    request = Request(**stamp("by hand"), number=1, gate="checked", action=action, seen=1_000, by="a person", **about)
    quarantine_requests.ask(ledger, request)


def check(world: GatedWorld, files: int, released: int = 0, approved: tuple[int, ...] = ()) -> None:
    """Each row is in exactly one place, the right one, and those of one file come from one attempt.

    released: so many of the first files' bad rows are let continue. approved: of these files all rows continue.
    """
    good, aside = world.table("log"), world.quarantine()
    bad = [row for row in aside if row["_tidegate_settled"] is None]
    expected = [{**row, "file": number} for number in range(files) for row in rows_of(number)]
    free = {row["id"] for row in expected if row["key"] != 2 or row["file"] < released or row["file"] in approved}
    assert sorted(row["id"] for row in good) == sorted(free), "each exactly once"
    assert sorted(row["id"] for row in bad) == [row["id"] for row in expected if row["id"] not in free]
    settled = sorted(row["id"] for row in aside if row["_tidegate_settled"] is not None)
    assert settled == [row["id"] for row in expected if row["key"] == 2 and row["file"] < released], "marked"
    assert {row["_tidegate_settled"] for row in aside} <= {None, "released"}
    rule = "code not null" if world.is_refused_by_table else "key"
    assert {tuple(row["_tidegate_rules"]) for row in aside} == {(rule,)}
    marks = {row["id"]: row["mark"] for row in [*good, *bad]}
    for number in range(files):
        assert len({marks[row["id"]] for row in rows_of(number)}) == 1, "a file's rows come from one attempt"
    check_ledger(world)
    ledger = world.coordinator().ledger
    for id in ledger.ids():
        entry = ledger.entry(id)
        assert entry is not None
        for acked in entry.acks.values():
            verdict = acked.ack.gates[world.gate]
            assert verdict.outcome != "abort" or entry.aborted, "a verdict says so"
            takes = not quarantine_is_empty(entry.plan, world.gate)
            staged = bool((verdict.quarantined or takes) and verdict.outcome != "abort")
            assert (quarantine_name(world.gate) in acked.ack.sinks) == staged


def quarantine_is_empty(plan: Plan, gate: str = "checked") -> bool:
    """Whether the plan takes up no request."""
    part = plan.sources.get(quarantine_name(gate))
    return part is None or part.empty
