"""Take up people's requests about quarantined rows: the plan fixes the requests, and the version of the table.

The requests of a gate form a log of their own, and the plan records a position in it, like that of a source. So the
requests of an aborted checkpoint are in the next one, and no request is in two completed checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from tidegate import seams
from tidegate.connectors.sink import SinkContext
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.gates.quarantine.forecast import Forecast, forecast
from tidegate.gates.quarantine.reader import QuarantinedRows, open_quarantine
from tidegate.gates.quarantine.returning import LateLimit
from tidegate.gates.quarantine.table import IN_PLACE, QUARANTINE, REPEATED, QuarantineSink, quarantine_name
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.view import Entry, View, rolled_back_by
from tidegate.records import typed
from tidegate.records.place import Place
from tidegate.records.records import Json, Plan, Range, Request

__all__ = [
    "KIND",
    "LiveQuarantine",
    "ask",
    "checkpoint_before",
    "expected_effect",
    "last_taken_request",
    "pending_requests",
    "plan_requests",
    "refuse_unknown_gate",
    "repeat_requests",
    "requests_in_place",
]

KIND = "requests"


@dataclass(frozen=True)
class LiveQuarantine:
    """The quarantine of the pipeline whose checkpoints a line repeats."""

    home: str
    since: int
    """The line's origin: its own quarantine has nothing from before."""
    in_place: Mapping[str, Sequence[Request]] = field(default_factory=dict)
    """By gate, the requests whose rows the line lets out where they were held back."""


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
        if created.is_new:
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
            "is no such gate, or it quarantines no rows",
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
    in_place = {earlier.number for earlier in existing if earlier.in_place}
    if request.withdraws in in_place:
        _refuse_while_in_line(ledger, request)
    elif request.withdraws <= last_taken_request(ledger.view(), request.gate):
        raise Rejected(
            f"request {request.withdraws} of gate {request.gate!r} is taken up by a checkpoint",
            expected="one that waits for the next checkpoint",
            help="if that checkpoint is aborted, the request waits again",
            reason="TAKEN_UP",
        )


def _refuse_while_in_line(ledger: Ledger, request: Request) -> None:
    for line in ledger.lines():
        if request.withdraws in line.in_place.get(request.gate, ()) and ledger.line_discarded(line.name) is None:
            raise Rejected(
                f"request {request.withdraws} of gate {request.gate!r} is taken up by backfill {line.name!r}",
                expected="one that no backfill works on",
                help=f"discard that: tidegate backfill MODULE:{ledger.pipeline} --discard {line.name}",
                reason="TAKEN_UP",
            )


def requests_in_place(ledger: Ledger, gate: str) -> list[Request]:
    """Return the requests to let rows out where they were held back, without withdrawn ones: for lines. One that a line
    has fulfilled is for later lines, too."""
    requests = ledger.requests(gate)
    withdrawn = {request.withdraws for request in requests}
    return [request for request in requests if request.in_place and request.number not in withdrawn]


def pending_requests(ledger: Ledger, view: View, gate: str) -> list[Request]:
    """Return the requests that the next plan takes up, without withdrawn ones."""
    return _for_next_plan(ledger.requests(gate, after=last_taken_request(view, gate)))


def _for_next_plan(new: Sequence[Request]) -> list[Request]:
    withdrawn = {request.withdraws for request in new}
    return [each for each in new if each.action != "withdraw" and not each.in_place and each.number not in withdrawn]


def expected_effect(ledger: Ledger, quarantine: QuarantinedRows, request: Request) -> Forecast:
    """Return what a request to release would do, as far as the last checkpoint tells."""
    ids = reversed(ledger.ids())
    for entry in (entry for id in ids if (entry := ledger.entry(id)) is not None and not entry.aborted):
        acks = [acked.ack for acked in entry.acks.values()]
        verdict = next((ack.gates[request.gate] for ack in acks if request.gate in ack.gates), None)
        if verdict is None:
            continue
        marks = {name: value for ack in acks for name, value in ack.memory.items() if name.endswith(".watermark")}
        found = [(each, marks.get(f"{each.operator}.watermark")) for each in verdict.behind]
        takers = [LateLimit(each, typed.convert(mark["at"], datetime) if mark else None) for each, mark in found]
        return forecast(quarantine, request, takers)
    return Forecast(quarantine.count(request))


def checkpoint_before(ledger: Ledger, id: int) -> int:
    """Return the last completed checkpoint before another one, at which a backfill can begin; 0: the beginning."""
    rollbacks = ledger.rollbacks()
    entries = (entry for earlier in reversed(ledger.ids()) if earlier < id and (entry := ledger.entry(earlier)))
    return next(
        (
            entry.id
            for entry in entries
            if entry.completed and entry.plan.acks and rolled_back_by(entry.id, rollbacks) is None
        ),
        0,
    )


def last_taken_request(view: View, gate: str) -> int:
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
    active = _for_next_plan(new)
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
            splits: Json = {"requests": [], "table": None}
            start = before[name].end if name in before else None
            end, summary = start or {"request": 0}, []
            part = recorded.sources.get(name)
            context = SinkContext(graph.name, ledger.start().uid, name, place, home=ledger.home)
            if part is not None and not part.empty and sink.head(context).last_entry is not None:
                if not _settled(gated.name, sink, graph, ledger, place, view):
                    raise Unavailable(
                        f"quarantine {gated.name!r} of the backfill does not show yet what was let out of it before",
                        help="it is tried again",
                        reason="NOT_PUBLISHED",
                    )
                asked = ledger.unpack(part.splits)
                own = sink.source(ledger.home).plan(None, SourceContext(graph.name, name, place, ledger)).splits
                repeated = {"home": live.home, "table": asked["table"], "since": live.since}
                splits |= {"requests": asked["requests"], "table": own, REPEATED: repeated}
                end, summary = part.end or end, [part.summary]
            in_place = _in_place_requests(gated.name, recorded.id, place, live)
            if in_place:
                table = sink.source(live.home).plan(None, SourceContext(graph.name, name, place, ledger)).splits
                requests = [msgspec.to_builtins(request) for request in in_place]
                splits[IN_PLACE] = {
                    "home": live.home,
                    "table": table,
                    "checkpoint": recorded.id,
                    "requests": requests,
                }
                numbers = ", ".join(str(request.number) for request in in_place)
                summary.append(f"request {numbers} for rows that are not held back")
            if summary:
                ranges[name] = Range(
                    kind=KIND,
                    start=start,
                    end=end,
                    splits=ledger.pack(splits),
                    empty=False,
                    summary=", ".join(summary),
                )
    return ranges


def _in_place_requests(gate: str, checkpoint: int, place: Place, live: LiveQuarantine) -> list[Request]:
    """Return the requests for rows to be let out in place that a checkpoint of the pipeline has held back."""
    asked = [each for each in live.in_place.get(gate, ()) if not each.checkpoints or checkpoint in each.checkpoints]
    quarantine = open_quarantine(live.home, gate, place.options) if asked else None
    if quarantine is None:
        return []
    return [each for each in asked if _selects_any(quarantine, each, checkpoint)]


def _selects_any(quarantine: QuarantinedRows, request: Request, checkpoint: int) -> bool:
    return quarantine.count(msgspec.structs.replace(request, checkpoints=[checkpoint]), settled=True) > 0


def _settled(gate: str, sink: QuarantineSink, graph: Graph, ledger: Ledger, place: Place, view: View) -> bool:
    """Return whether the table shows the effect of all earlier requests. Otherwise a row could continue twice."""
    name = quarantine_name(gate)
    new = (e for e in view.entries if e.id > view.settled and not e.aborted)
    with_requests = [e.id for e in new if (part := e.plan.sources.get(name)) and not part.empty]
    uid = ledger.start().uid
    last = sink.head(SinkContext(graph.name, uid, name, place, home=ledger.home)).last_entry
    return last is not None and all(id <= last for id in with_requests)
