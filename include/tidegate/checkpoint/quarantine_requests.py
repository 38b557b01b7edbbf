"""Take up people's requests about quarantined rows: the plan fixes the requests, and the version of the table.

The requests of a gate form a log of their own, and the plan records a position in it, like that of a source. So the
requests of an aborted checkpoint are in the next one, and no request is in two completed checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec

from tidegate import seams
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.gates.quarantine.forecast import Forecast, forecast
from tidegate.gates.quarantine.reader import SetAside
from tidegate.gates.quarantine.returning import TakesUntil
from tidegate.gates.quarantine.table import QUARANTINE, REPEATED, QuarantineSink, quarantine_name
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.view import Entry, View
from tidegate.records import typed
from tidegate.records.place import Place
from tidegate.records.records import Plan, Range, Request
from tidegate.sinks.base import SinkContext
from tidegate.sources.base import SourceContext

__all__ = [
    "KIND",
    "LiveQuarantine",
    "ask",
    "checkpoint_before",
    "expected_effect",
    "plan_requests",
    "refuse_unknown_gate",
    "repeat_requests",
    "taken_up",
]

KIND = "requests"


@dataclass(frozen=True)
class LiveQuarantine:
    """The quarantine of the pipeline whose checkpoints a line repeats."""

    home: str
    since: int
    """The line's origin: its own quarantine has nothing from before."""


def ask(ledger: Ledger, request: Request) -> Request:
    """Append a request to the log of its gate. Return it with its number."""
    refuse_unknown_gate(ledger, request)
    while True:
        existing = ledger.requests(request.gate)
        if existing:
            ledger.sync_request(existing[-1])
        numbered = msgspec.structs.replace(request, **stamp(seams.new_id()), number=len(existing) + 1)
        _refuse_withdrawal(ledger, numbered, existing)
        created = ledger.create_request(numbered)
        if created.mine:
            return created.record


def refuse_unknown_gate(ledger: Ledger, request: Request) -> None:
    """Refuse a request to a gate that is no longer in the code, or quarantines nothing any more: no plan takes it
    up."""
    if request.action == "withdraw":
        return
    entries = (entry for id in reversed(ledger.ids()) if (entry := ledger.entry(id)) is not None)
    last = next((entry for entry in entries if entry.plan.acks), None)
    if last is not None and quarantine_name(request.gate) not in last.plan.commits:
        gates = sorted(name.removeprefix(QUARANTINE) for name in last.plan.commits if name.startswith(QUARANTINE))
        raise Rejected(
            f"nobody would take up what is asked of gate {request.gate!r}: by the code of checkpoint {last.id} there "
            "is no such gate, or it sets no rows aside",
            expected=f"a gate that quarantines or holds: {' or '.join(gates) or 'there is none'}",
            help=f"declare {request.gate!r} with on_failure='quarantine' or 'hold' again, let a checkpoint be made, "
            f"and ask once more; until then its rows stay where they are: tidegate quarantine show {ledger.pipeline} "
            f"{request.gate}",
            reason="NO_SUCH_GATE",
        )


def _refuse_withdrawal(ledger: Ledger, request: Request, existing: list[Request]) -> None:
    if request.withdraws is None:
        return
    numbers = [earlier.number for earlier in existing if earlier.action != "withdraw"]
    if request.withdraws not in numbers:
        raise Invalid(
            f"gate {request.gate!r} has no request {request.withdraws}",
            expected=" or ".join(map(str, numbers)) or "a request to release or to discard",
            help="`tidegate quarantine list` shows those that wait",
            reason="NO_SUCH_REQUEST",
        )
    if request.withdraws <= taken_up(ledger.view(), request.gate):
        raise Rejected(
            f"request {request.withdraws} of gate {request.gate!r} is taken up by a checkpoint",
            expected="one that waits for the next checkpoint",
            help="if that checkpoint is aborted, the request waits again",
            reason="TAKEN_UP",
        )


def expected_effect(ledger: Ledger, quarantine: SetAside, request: Request) -> Forecast:
    """Return what a request to release would do, as far as the last checkpoint tells."""
    ids = reversed(ledger.ids())
    for entry in (entry for id in ids if (entry := ledger.entry(id)) is not None and not entry.aborted):
        acks = [acked.ack for acked in entry.acks.values()]
        verdict = next((ack.gates[request.gate] for ack in acks if request.gate in ack.gates), None)
        if verdict is None:
            continue
        marks = {name: value for ack in acks for name, value in ack.memory.items() if name.endswith(".watermark")}
        found = [(each, marks.get(f"{each.operator}.watermark")) for each in verdict.behind]
        takers = [TakesUntil(each, typed.convert(mark["at"], datetime) if mark else None) for each, mark in found]
        return forecast(quarantine, request, takers)
    return Forecast(quarantine.count(request))


def checkpoint_before(ledger: Ledger, id: int) -> int:
    """Return the last completed checkpoint before another one, at which a backfill can begin; 0: the beginning."""
    entries = (entry for earlier in reversed(ledger.ids()) if earlier < id and (entry := ledger.entry(earlier)))
    return next((entry.id for entry in entries if entry.completed and entry.plan.acks), 0)


def taken_up(view: View, gate: str) -> int:
    """Return the last request of the gate that a plan has taken up which is not aborted."""
    last = next((entry for entry in reversed(view.entries) if not entry.aborted), None)
    part = last.plan.sources.get(quarantine_name(gate)) if last is not None else None
    return part.end["request"] if part is not None and part.end is not None else 0


def plan_requests(graph: Graph, ledger: Ledger, place: Place, view: View, base: Entry | None) -> dict[str, Range]:
    """Return for each gate the requests that this plan takes up. Interval pipelines take up none."""
    if graph.by_interval:
        return {}
    before = {name: part for name, part in (base.plan.sources if base else {}).items() if name.startswith(QUARANTINE)}
    ranges = {}
    for gated in graph.gates:
        for name, sink in gated.quarantine.items():
            part = _plan_gate(gated.name, sink, before.get(name), graph, ledger, place, view)
            if part is not None:
                ranges[name] = part
    removed = {name: _empty_range(ledger, part) for name, part in before.items() if name not in ranges}
    return ranges | removed  # a gate that comes back continues from its old position


def _empty_range(ledger: Ledger, before: Range) -> Range:
    return Range(kind=KIND, start=before.end, end=before.end, splits=ledger.pack({}), empty=True)


def _plan_gate(
    gate: str, sink: QuarantineSink, before: Range | None, graph: Graph, ledger: Ledger, place: Place, view: View
) -> Range | None:
    """Return the requests that the plan takes up for one gate; None if there never was a request."""
    start = before.end if before is not None else None
    new = ledger.requests(gate, after=start["request"] if start else 0)
    if not new or not _settled(gate, sink, graph, ledger, place, view):
        return _empty_range(ledger, before) if before is not None else None
    for request in new:
        ledger.sync_request(request)
    withdrawn = {request.withdraws for request in new}
    active = [request for request in new if request.action != "withdraw" and request.number not in withdrawn]
    context = SourceContext(graph.name, quarantine_name(gate), place, ledger)
    table = sink.source(ledger.home).plan(None, context).splits if active else None
    numbers = ", ".join(str(request.number) for request in active)
    splits = {"requests": [msgspec.to_builtins(request) for request in active], "table": table}
    return Range(
        kind=KIND,
        start=start,
        end={"request": new[-1].number},
        splits=ledger.pack(splits),
        empty=not active,
        summary=f"request {numbers} for rows in quarantine" if active else "",
    )


def repeat_requests(
    graph: Graph, ledger: Ledger, place: Place, view: View, base: Entry | None, recorded: Plan, live: LiveQuarantine
) -> dict[str, Range]:
    """Return for each gate the requests that another plan has taken up, for a line's plan that repeats it. The rows of
    the line's own quarantine are found by what they hold: requests name those of the pipeline."""
    before = {name: part for name, part in (base.plan.sources if base else {}).items() if name.startswith(QUARANTINE)}
    ranges = {name: _empty_range(ledger, part) for name, part in before.items()}
    for gated in graph.gates:
        for name, sink in gated.quarantine.items():
            part = recorded.sources.get(name)
            context = SinkContext(graph.name, ledger.start().uid, name, place, home=ledger.home)
            if part is None or part.empty or sink.head(context).last is None:
                continue
            if not _settled(gated.name, sink, graph, ledger, place, view):
                raise Unavailable(
                    f"quarantine {gated.name!r} of the backfill does not show yet what was let out of it before",
                    help="it is tried again",
                    reason="NOT_PUBLISHED",
                )
            asked = ledger.unpack(part.splits)
            own = sink.source(ledger.home).plan(None, SourceContext(graph.name, name, place, ledger)).splits
            repeated = {"home": live.home, "table": asked["table"], "since": live.since}
            splits = {"requests": asked["requests"], "table": own, REPEATED: repeated}
            start = before[name].end if name in before else None
            ranges[name] = Range(
                kind=KIND, start=start, end=part.end, splits=ledger.pack(splits), empty=False, summary=part.summary
            )
    return ranges


def _settled(gate: str, sink: QuarantineSink, graph: Graph, ledger: Ledger, place: Place, view: View) -> bool:
    """Return whether the table shows the effect of all earlier requests. Otherwise a row could continue twice."""
    name = quarantine_name(gate)
    new = (e for e in view.entries if e.id > view.settled and not e.aborted)
    with_requests = [e.id for e in new if (part := e.plan.sources.get(name)) and not part.empty]
    uid = ledger.start().uid
    last = sink.head(SinkContext(graph.name, uid, name, place, home=ledger.home)).last
    return last is not None and all(id <= last for id in with_requests)
