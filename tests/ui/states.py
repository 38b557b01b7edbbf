"""States in which tests begin with the pipeline, whatever others of this process have left."""

from __future__ import annotations

from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.checkpoint import control
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Ack, Hold, JobStats, Payload, RecordedRule, Verdict


def running(world: ToyWorld) -> None:
    for entry in list(world.ledger.view().still_open()):
        world.coordinator().abort(entry.id, "CANCELLED", "by hand")
    control.resume(world.ledger, "somebody", "")


def hold(world: ToyWorld) -> int:
    """A checkpoint whose gate waits for a person."""
    id = world.trigger(f"airflow:orders:held {seams.new_id()}")
    rule = RecordedRule(rule="positive", policy="hold", severity="critical", rows=2, why="2 of 9 rows")
    verdict = Verdict(
        outcome="hold", rows=9, quarantined=2, why="2 of 9 rows", broken=[rule], policy={},
        hold=Hold(limit_s=None, default="reject"), results=Payload(data={}),
    )  # fmt: skip
    nothing = Payload(data={})
    stats = JobStats(seconds={}, rows={"a": 7, "b": 1}, bytes={}, files={}, watermarks={}, idle=[], counts={})
    ack = Ack(**stamp(seams.new_id()), id=id, job="main", prev=None, sinks={"a": nothing, "b": nothing},
              gates={"enough": verdict}, stats=stats)  # fmt: skip
    world.ledger.create_ack(ack)
    return id
