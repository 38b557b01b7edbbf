"""Take up what people ask about rows in quarantine: the plan says which requests, on which version of the table.

Requests of a gate are a log of their own, and what a checkpoint has taken up is a position in it, kept in the plan like
a source's: an aborted checkpoint's requests are in the next one, and no request is in two that are completed.
"""

from __future__ import annotations

import msgspec

from tidegate import seams
from tidegate.errors import Invalid, Rejected
from tidegate.gates.quarantine.table import QUARANTINE, QuarantineSink, quarantine_name
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.view import Entry, View
from tidegate.records.place import Place
from tidegate.records.records import Range, Request
from tidegate.sinks.base import SinkContext
from tidegate.sources.base import SourceContext

__all__ = ["KIND", "ask", "plan_requests", "taken_up"]

KIND = "requests"


def ask(ledger: Ledger, request: Request) -> Request:
    """Put a request behind all others of its gate; its number is told by what comes back."""
    _refuse_unheard(ledger, request)
    known = ledger.requests(request.gate)
    while True:
        if known:
            ledger.settle_request(known[-1])
        wanted = msgspec.structs.replace(request, **stamp(seams.new_id()), number=len(known) + 1)
        _refuse_withdrawal(ledger, wanted, known)
        created = ledger.create_request(wanted)
        if created.mine:
            return created.record
        known = ledger.requests(request.gate)


def _refuse_unheard(ledger: Ledger, request: Request) -> None:
    """No plan takes up what is asked of a gate that the code has no more, or that sets nothing aside any more."""
    if request.action == "withdraw":
        return
    entries = (entry for id in reversed(ledger.ids()) if (entry := ledger.entry(id)) is not None)
    last = next((entry for entry in entries if entry.plan.acks), None)
    if last is not None and quarantine_name(request.gate) not in last.plan.commits:
        there = sorted(name.removeprefix(QUARANTINE) for name in last.plan.commits if name.startswith(QUARANTINE))
        raise Rejected(
            f"nobody would take up what is asked of gate {request.gate!r}: by the code of checkpoint {last.id} there "
            "is no such gate, or it sets no rows aside",
            expected=f"a gate that quarantines or holds: {' or '.join(there) or 'there is none'}",
            help=f"declare {request.gate!r} with on_failure='quarantine' or 'hold' again, let a checkpoint be made, "
            f"and ask once more; until then its rows stay where they are: tidegate quarantine show {ledger.pipeline} "
            f"{request.gate}",
            reason="NO_SUCH_GATE",
        )


def _refuse_withdrawal(ledger: Ledger, request: Request, known: list[Request]) -> None:
    if request.withdraws is None:
        return
    there = [each.number for each in known if each.action != "withdraw"]
    if request.withdraws not in there:
        raise Invalid(
            f"gate {request.gate!r} has no request {request.withdraws}",
            expected=" or ".join(map(str, there)) or "a request to release or to discard",
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


def taken_up(view: View, gate: str) -> int:
    """The last request of the gate that a plan has taken up which is not aborted."""
    last = next((entry for entry in reversed(view.entries) if not entry.aborted), None)
    part = last.plan.sources.get(quarantine_name(gate)) if last is not None else None
    return part.end["request"] if part is not None and part.end is not None else 0


def plan_requests(graph: Graph, ledger: Ledger, place: Place, view: View, base: Entry | None) -> dict[str, Range]:
    """For each gate with requests, which of them this plan takes up. Interval pipelines take up none."""
    if graph.by_interval:
        return {}
    before = {name: part for name, part in (base.plan.sources if base else {}).items() if name.startswith(QUARANTINE)}
    found = {}
    for gated in graph.gates:
        for name, sink in gated.quarantine.items():
            part = _taken(gated.name, sink, before.get(name), graph, ledger, place, view)
            if part is not None:
                found[name] = part
    gone = {name: _nothing(ledger, part) for name, part in before.items() if name not in found}
    return found | gone  # a gate that comes back goes on from where it was


def _nothing(ledger: Ledger, before: Range) -> Range:
    return Range(kind=KIND, start=before.end, end=before.end, splits=ledger.pack({}), empty=True)


def _taken(
    gate: str, sink: QuarantineSink, before: Range | None, graph: Graph, ledger: Ledger, place: Place, view: View
) -> Range | None:
    """What the plan takes up for one gate; None: nobody has ever asked for anything."""
    start = before.end if before is not None else None
    new = ledger.requests(gate, after=start["request"] if start else 0)
    if not new or not _settled(gate, sink, graph, ledger, place, view):
        return _nothing(ledger, before) if before is not None else None
    for request in new:
        ledger.settle_request(request)
    withdrawn = {request.withdraws for request in new}
    kept = [request for request in new if request.action != "withdraw" and request.number not in withdrawn]
    context = SourceContext(graph.name, quarantine_name(gate), place, ledger)
    table = sink.source(ledger.home).plan(None, context).splits if kept else None
    splits = {"requests": [msgspec.to_builtins(request) for request in kept], "table": table}
    return Range(
        kind=KIND,
        start=start,
        end={"request": new[-1].number},
        splits=ledger.pack(splits),
        empty=not kept,
        summary=f"request {', '.join(str(request.number) for request in kept)} for rows in quarantine" if kept else "",
    )


def _settled(gate: str, sink: QuarantineSink, graph: Graph, ledger: Ledger, place: Place, view: View) -> bool:
    """Whether the table shows what became of all rows that were asked for before. Else a row could go on twice."""
    name = quarantine_name(gate)
    new = (e for e in view.entries if e.id > view.settled and not e.aborted)
    asked = [e.id for e in new if (part := e.plan.sources.get(name)) and not part.empty]
    uid = ledger.start().uid
    last = sink.head(SinkContext(graph.name, uid, name, place, home=ledger.home)).last
    return last is not None and all(id <= last for id in asked)
