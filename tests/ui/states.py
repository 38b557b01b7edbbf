"""States in which tests begin with the pipeline, whatever others of this process have left."""

from __future__ import annotations

from tests.kit.aside_gate import Aside
from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle import control
from tidegate.records.records import Ack, Amount, Hold, JobNote, JobStats, Payload, RecordedRule, Verdict


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


def work(world: ToyWorld, id: int) -> None:
    """Let the job of an open checkpoint tell what it is doing."""
    note = JobNote(**stamp(seams.new_id()), id=id, job="main", started=seams.now().isoformat(), step="stage a",
                   current_step_seconds=7.0, step_seconds={"read": 0.5, "gate enough": 1.5},
                   read={"in": Amount(rows=1200, bytes=34_000)}, tasks_done=3, tasks=12, bytes_read=9_000)  # fmt: skip
    world.ledger.hint_progress(note)
