"""Finds where the same code may compute something else from the same input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.backfill.recorded import RecordedPlans
from tidegate.checkpoint.quarantine_requests import requests_in_place
from tidegate.checkpoint.references import acks_of
from tidegate.connectors.unrepeatable import unrepeatable_calls, unrepeatable_in_text
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger
from tidegate.operators.process.process import Process
from tidegate.pipeline.graph.graph import Graph, OperatorNode, StageNode
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.records import typed
from tidegate.records.records import Plan
from tidegate.state.record import StateTable

if TYPE_CHECKING:
    from tidegate.backfill.open_backfill import Cuts
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["may_differ", "unrepeatable"]


def unrepeatable(graph: Graph) -> list[str]:
    """Return the stages and operators whose code visibly reads the time or random numbers, which are different in a
    retry and in a backfill."""
    warnings = []
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
            warnings.append(
                f"{title} calls {listed}: a retry, or a backfill, makes different rows; put the time into the rows"
            )
    return warnings


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from unrepeatable_in_text(value)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts_in(inner)


def may_differ(live: PipelineContext, recorded: RecordedPlans, cuts: Cuts) -> Iterator[str]:
    """Yield where the backfill may have other rows than live, and why, apart from code that reads the time or random
    numbers."""
    plans = recorded.counting()
    if cuts == "own":
        for stage in live.graph.stages:
            dependency = _depends_on_cuts(stage)
            if dependency:
                title, reasons = dependency
                yield f"{title}: {'; '.join(reasons)}"
    else:
        overtaking = []
        for plan in plans:
            if plan.overtaking is not None and _has_rows_in_flight(live.ledger, plan):
                overtaking.append(plan.id)
        if overtaking:
            yield (
                f"checkpoint {_listed(overtaking)} overtook a busy job, which then read more rows at once; a backfill "
                "does not"
            )
    releasing = [plan.id for plan in plans if _releases_rows(plan)]
    if releasing and cuts == "own":
        yield (
            f"checkpoint {_listed(releasing)} has released rows from quarantine: they wait there again, and the first "
            "checkpoint after the swap releases them"
        )
    elif releasing and recorded.origin:
        yield (
            f"checkpoint {_listed(releasing)} has released rows from quarantine: those that were quarantined before "
            f"checkpoint {recorded.origin} or by it wait there again, and the first checkpoint after the swap releases "
            "them"
        )
    if cuts == "own":
        yield from _requests_outside_new_cuts(live, recorded)
    yield from _sums_of_floats(live)


def _releases_rows(plan: Plan) -> bool:
    return any(name.startswith(QUARANTINE) and not part.empty for name, part in plan.sources.items())


def _requests_outside_new_cuts(live: PipelineContext, recorded: RecordedPlans) -> Iterator[str]:
    for gated in live.graph.gates:
        if not gated.quarantine:
            continue
        for request in requests_in_place(live.ledger, gated.name):
            if request.seen > recorded.origin:
                yield (
                    f"request {request.number} of gate {gated.name!r} releases rows where they were held only with "
                    "--cuts recorded; otherwise they wait there"
                )


def _depends_on_cuts(stage: object) -> tuple[str, list[str]] | None:
    if isinstance(stage, OperatorNode) and stage.spec.depends_on_checkpoint_cuts:
        return stage.title, stage.spec.depends_on_checkpoint_cuts
    if isinstance(stage, GateNode) and stage.gate.depends_on_checkpoint_cuts:
        return f"gate {stage.name!r}", stage.gate.depends_on_checkpoint_cuts
    return None


def _has_rows_in_flight(ledger: Ledger, plan: Plan) -> bool:
    entry = ledger.entry(plan.id)
    return entry is not None and entry.manifest is not None and bool(entry.manifest.in_flight)


def _sums_of_floats(live: PipelineContext) -> Iterator[str]:
    """Yield the operators that add up floating-point numbers: the sums depend on the order of the rows."""
    entry = live.ledger.view().last_completed
    if entry is None:
        return
    float_states: set[str] = set()
    for ack in acks_of(live.ledger, entry):
        for name, payload in ack.states.items():
            table = typed.convert(live.ledger.unpack(payload), StateTable)
            if any(field["type"] in ("double", "float") for field in table.columns["fields"]):
                float_states.add(name)
    for stage in live.graph.operators:
        functions: dict[str, str] = getattr(stage.operator, "functions", {})
        adds = any(text.lower().startswith(("sum(", "avg(")) for text in functions.values())
        if adds and not float_states.isdisjoint(stage.states):
            yield f"{stage.title} adds up floating-point numbers: the last digits depend on the order of the rows"


def _listed(ids: list[int]) -> str:
    text = ", ".join(map(str, ids[:12]))
    if len(ids) <= 12:
        return text
    return f"{text} and {len(ids) - 12} more"
