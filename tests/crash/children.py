"""What a forked child of the zygote does: DAG runs, or a rollback, with or without a fault."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from tests.crash import diverted, intervals, overtaking
from tests.crash.at_least_once import OnceWorld
from tests.crash.diverted import DivertedWorld
from tests.crash.gated import GatedWorld
from tests.crash.stateful import FAN_IN, StatefulWorld
from tests.crash.world import CrashWorld, dag_run
from tests.kit.faults import Fault, lose_answers
from tests.kit.limits import Limits
from tidegate import seams
from tidegate.execution.runs import new_run
from tidegate.state import compaction


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """Run `runs` in turn in this process, or go back to a checkpoint; the fault is armed from the start."""
    root, limits = Path(request["root"]), Limits(num_retained=request["num_retained"])
    kinds = {"gated": GatedWorld, "stateful": StatefulWorld, "once": OnceWorld, "diverted": DivertedWorld}
    kind = next((made for name, made in kinds.items() if request[name]), CrashWorld)
    if request["stateful"]:
        compaction.FAN_IN = FAN_IN
    world = intervals.IntervalWorld(root, limits) if request["intervals"] else kind(root, limits)
    run_of: Any = intervals.dag_run if request["intervals"] else dag_run
    if request["diverted"]:
        run_of = diverted.work
    if request["four"] is not None:
        world, run_of = overtaking.FourWorld(root, overtaking.at_once(unaligned=request["four"])), overtaking.dag_run
    fault = request.get("fault")
    armed = seams.Seams()
    if fault is not None:
        point, mode, nth = fault
        if mode == "A":
            lose_answers(point)
        else:
            armed = Fault(point, mode, nth, Path(request["gate"])).installed()
    if request["back_to"] is not None:
        with seams.installed(armed):
            done = world.coordinator().roll_back(request["back_to"], run=new_run(), by="a person")
            assert done.error is None, done.error
            return {"ids": [done.id]}
    from tests.crash.spark import client

    spark = client(request["spark"])
    with seams.installed(armed):
        ids = [run_of(world, run, spark, impatient=request["impatient"]) for run in request["runs"]]
    return {"ids": ids, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
