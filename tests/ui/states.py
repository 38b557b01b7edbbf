"""States in which tests begin with the pipeline, whatever others of this process have left."""

from __future__ import annotations

import msgspec

from tests.kit.aside_gate import Aside
from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control
from tidegate.proposal.kept import store_report
from tidegate.proposal.report import CodeChange, GateChange, GateFindings, Merge, ProposalReport, SinceLast
from tidegate.proposal.tables import TableDifference
from tidegate.records.records import (
    Ack,
    Amount,
    BackfillRecord,
    Hold,
    JobNote,
    JobStats,
    Json,
    Payload,
    RecordedRule,
    Verdict,
)


def running(world: ToyWorld) -> None:
    for entry in list(world.ledger.view().still_open()):
        world.coordinator().abort(entry.id, "CANCELLED", "by hand")
    control.resume(world.ledger, "somebody", "")


def hold(world: ToyWorld, limit_s: float | None = None, *, quarantines: bool = False) -> int:
    """A checkpoint whose gate waits for a person, for so long. quarantines: and has a quarantine."""
    gates = world.gates
    world.gates = {"enough": Aside(quarantines=True)} if quarantines else gates
    id = world.trigger(f"airflow:orders:held {seams.new_id()}")
    world.gates = gates
    rule = RecordedRule(rule="positive", policy="hold", severity="critical", rows=2, why="2 of 9 rows")
    verdict = Verdict(
        outcome="hold", rows=9, quarantined=2, why="2 of 9 rows", broken=[rule], policy={},
        hold=Hold(limit_s=limit_s, default="reject"), results=Payload(data={}),
    )  # fmt: skip
    nothing = Payload(data={})
    stats = JobStats(seconds={}, rows={"a": 7, "b": 1}, bytes={}, files={}, watermarks={}, idle=[], counts={})
    ack = Ack(**stamp(seams.new_id()), id=id, job="main", prev=None, sinks={"a": nothing, "b": nothing},
              gates={"enough": verdict}, stats=stats)  # fmt: skip
    world.ledger.create_ack(ack)
    return id


def break_rules(world: ToyWorld, run: str) -> int:
    """A checkpoint that a gate has aborted, with values that broke its rule."""
    id = world.trigger(run)
    rule = RecordedRule(rule="positive", policy="abort", severity="critical", rows=2, why="2 of 9 rows break it")
    found = {"expectation_config": {"id": "positive", "kwargs": {"column": "amount"}}, "success": False}
    results = {"results": [found | {"result": {"partial_unexpected_list": [-5]}}]}
    verdict = Verdict(outcome="abort", rows=9, quarantined=0, why="positive: 2 of 9 rows break it", broken=[rule],
                      policy={}, results=Payload(data=results))  # fmt: skip
    stats = JobStats(seconds={}, rows={}, bytes={}, files={}, watermarks={}, idle=[], counts={})
    world.ledger.create_ack(
        Ack(**stamp(seams.new_id()), id=id, job="main", prev=None, sinks={}, gates={"enough": verdict}, stats=stats)
    )
    world.coordinator().complete(id)
    return id


CHANGED: Json = {
    "schema": {"added": {"code": "string"}, "removed": {}, "retyped": {}},
    "keys": ["id"], "rows_before": 78, "rows_after": 79, "added": 1, "removed": 0, "changed": 40,
    "columns": {
        "amount": {
            "rows": 40, "mean_change": 1.5, "greatest_change": 70.0,
            "before": {"nulls": 0, "mean": 12.25, "least": 1.0, "greatest": 4711.0},
            "after": {"nulls": 0, "mean": 13.0, "least": 1.0, "greatest": 4711.0},
        }
    },
    "examples": [{"change": "changed", "key": {"id": 7}, "before": {"amount": 10.0}, "after": {"amount": 20.0}}],
}  # fmt: skip
"""A table in the report of a proposal."""


def propose(world: ToyWorld, name: str, key: int = 7) -> None:
    """A kept proposal, with a report such as `tidegate propose` stores. key: of the row that is its example."""
    last = world.ledger.view().last_completed
    assert last is not None
    line = BackfillRecord(
        **stamp(seams.new_id()), name=name, uid=seams.new_id(), origin=0, manifest=None, cuts="recorded",
        purpose="proposal", by="mia on build-7",
    )  # fmt: skip
    world.ledger.create_line(line)
    changed = CHANGED | {"examples": [CHANGED["examples"][0] | {"key": {"id": key}}]}
    report = ProposalReport(
        pipeline="orders", begins_after=0, replayed=[last.id], stopped="",
        code=CodeChange(before="a" * 64, after="b" * 64, parts=[], operators={"totals": ["by"]}, results=[]),
        merge=Merge(action="differs", reasons=[], backfill="tidegate backfill jobs.orders:pipeline --from beginning"),
        tables={"a": msgspec.convert(changed, TableDifference)}, unchanged_sinks=["topic"], manual_edits=[],
        gates=[GateChange(gate="enough", before=GateFindings(judged=9, quarantined=0, outcomes={"pass": 2}, broken={}),
                          after=GateFindings(judged=9, quarantined=1, outcomes={"pass": 2}, broken={"positive": 1}))],
        figures={"rows_in": [78.0, 78.0], "bytes_out": [8199.0, 3374.0], "sync_seconds": [7.72, 2.45]},
        since=SinceLast(proposal="proposal-0", created=line.created, same_code=False, same_checkpoints=True,
                        merge=["refused", "differs"], tables={"a": {"changed": [12, 40]}}, gates=["enough"]),
    )  # fmt: skip
    store_report(world.ledger, name, report)


def work(world: ToyWorld, id: int) -> None:
    """Let the job of an open checkpoint tell what it is doing."""
    note = JobNote(**stamp(seams.new_id()), id=id, job="main", started=seams.now().isoformat(), step="stage a",
                   current_step_seconds=7.0, step_seconds={"read": 0.5, "gate enough": 1.5},
                   read={"in": Amount(rows=1200, bytes=34_000)}, tasks_done=3, tasks=12, bytes_read=9_000)  # fmt: skip
    world.ledger.hint_progress(note)
