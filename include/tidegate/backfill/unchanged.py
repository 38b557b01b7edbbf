"""What may differ between what a pipeline has made and what the same code makes of the same input again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.backfill.recorded import RecordedPlans
from tidegate.checkpoint.quarantine_requests import requests_in_place
from tidegate.checkpoint.references import acks_of
from tidegate.connectors.unrepeatable import unrepeatable_calls, unrepeatable_in_text
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.operators.process.process import Process
from tidegate.pipeline.graph.graph import Graph, OperatorNode, StageNode
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.records import typed
from tidegate.records.records import Plan
from tidegate.state.record import StateTable

if TYPE_CHECKING:
    from tidegate.backfill.open_backfill import Cuts
    from tidegate.coordinator import Coordinator

__all__ = ["may_differ", "unrepeatable"]


def unrepeatable(graph: Graph) -> list[str]:
    """Return the stages and operators whose code reads the time, or chance, as far as that can be seen: a retry and a
    backfill get something else."""
    found = []
    for stage in graph.stages:
        if isinstance(stage, StageNode):
            names, title = unrepeatable_calls(stage.function), f"stage {stage.name!r}"
        elif isinstance(stage, OperatorNode):
            names, title = list(_texts_in(stage.operator.describe())), stage.title
            if isinstance(stage.operator, Process):
                names = [*names, *unrepeatable_calls(stage.operator.function)]
        else:
            continue
        if names:
            listed = ", ".join(dict.fromkeys(f"{name}()" for name in names))
            found.append(
                f"{title} calls {listed}: a retry, or a backfill, gives other rows; let the rows have the time"
            )
    return found


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from unrepeatable_in_text(value)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts_in(inner)


def may_differ(live: Coordinator, recorded: RecordedPlans, cuts: Cuts) -> Iterator[str]:
    """Yield what may have other rows than live, and why, beside what reads the time or chance."""
    plans = recorded.counting()
    if cuts == "own":
        for stage in live.graph.stages:
            by_cuts = _depends_on_cuts(stage)
            if by_cuts:
                yield f"{by_cuts[0]}: {'; '.join(by_cuts[1])}"
    else:
        passed = [plan.id for plan in plans if plan.overtaking is not None and _has_rows_in_flight(live, plan)]
        if passed:
            yield f"checkpoint {_listed(passed)} went past a busy job, which then took more at once; no backfill does"
    asked = [
        plan.id
        for plan in plans
        if any(name.startswith(QUARANTINE) and not part.empty for name, part in plan.sources.items())
    ]
    if asked and cuts == "own":
        yield (
            f"checkpoint {_listed(asked)} has let rows out of quarantine: they wait there again, and the first "
            "checkpoint after the swap lets them out"
        )
    elif asked and recorded.origin:
        yield (
            f"checkpoint {_listed(asked)} has let rows out of quarantine: those that were quarantined before "
            f"checkpoint {recorded.origin} or by it wait there again, and the first checkpoint after the swap lets "
            "them out"
        )
    yield from _requests_that_own_cuts_leave(live, recorded) if cuts == "own" else ()
    yield from _sums_of_floats(live, recorded)


def _requests_that_own_cuts_leave(live: Coordinator, recorded: RecordedPlans) -> Iterator[str]:
    for gated in live.graph.gates:
        for request in requests_in_place(live.ledger, gated.name) if gated.quarantine else ():
            if request.seen > recorded.origin:
                yield (
                    f"request {request.number} of gate {gated.name!r} lets rows out where they were held back: only "
                    "with --cuts recorded; else they wait there"
                )


def _depends_on_cuts(stage: object) -> tuple[str, list[str]] | None:
    if isinstance(stage, OperatorNode) and stage.spec.depends_on_checkpoint_cuts:
        return stage.title, stage.spec.depends_on_checkpoint_cuts
    if isinstance(stage, GateNode) and stage.gate.depends_on_checkpoint_cuts:
        return f"gate {stage.name!r}", stage.gate.depends_on_checkpoint_cuts
    return None


def _has_rows_in_flight(live: Coordinator, plan: Plan) -> bool:
    entry = live.ledger.entry(plan.id)
    return entry is not None and entry.manifest is not None and bool(entry.manifest.in_flight)


def _sums_of_floats(live: Coordinator, recorded: RecordedPlans) -> Iterator[str]:
    """Yield the operators whose states have columns of doubles: what they add up depends on the order of the rows."""
    entry = live.ledger.view().last_completed
    if entry is None:
        return
    found: dict[str, None] = {}
    for ack in acks_of(live.ledger, entry):
        for payload_name, payload in ack.states.items():
            table = typed.convert(live.ledger.unpack(payload), StateTable)
            if any(field["type"] in ("double", "float") for field in table.columns["fields"]):
                found[payload_name] = None
    for stage in live.graph.operators:
        functions: dict[str, str] = getattr(stage.operator, "functions", {})
        adds = any(text.lower().startswith(("sum(", "avg(")) for text in functions.values())
        if adds and any(name in found for name in stage.states):
            yield f"{stage.title} adds up floating-point numbers: the last digits depend on the order of the rows"


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids)) if len(ids) <= 12 else f"{', '.join(map(str, ids[:12]))} and {len(ids) - 12} more"
