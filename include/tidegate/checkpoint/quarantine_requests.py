"""Plan people's requests about quarantined rows: the plan fixes the requests, and the version of the table.

The requests of each gate form a log, and the plan records a position in it, like that of a source. So the requests of
an aborted checkpoint are in the next one, and no request is in two completed checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from tidegate import seams
from tidegate.checkpoint.references import memory_of
from tidegate.connectors.sink import SinkContext
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.gates.quarantine.forecast import Forecast, forecast
from tidegate.gates.quarantine.reader import QuarantinedRows, open_quarantine
from tidegate.gates.quarantine.returning import LateLimit
from tidegate.gates.quarantine.table import IN_PLACE, QUARANTINE, REPEATED, QuarantineSink, quarantine_name
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.view import Entry, View, rollback_of
from tidegate.records import typed
from tidegate.records.place import Place
from tidegate.records.records import Ack, Json, Plan, Range, Request, Verdict

__all__ = [
    "KIND",
    "LiveQuarantine",
    "ask",
    "checkpoint_before",
    "expected_effect",
    "last_planned_request",
    "late_limits",
    "pending_requests",
    "plan_requests",
    "refuse_unknown_gate",
    "repeat_requests",
    "requests_in_place",
    "verdict_of_gate",
]

KIND = "requests"


@dataclass(frozen=True)
class LiveQuarantine:
    """The quarantine of the pipeline whose checkpoints a backfill repeats."""

    home: str
    since: int
    """The backfill's origin: its own quarantine has no rows from before."""
    in_place: Mapping[str, Sequence[Request]] = field(default_factory=dict)
    """By gate, the requests whose rows the backfill releases in the checkpoints that quarantined them."""


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
    """Refuse a request to a gate that is no longer in the code, or no longer quarantines rows: no plan would take it
    up."""
    if request.action == "withdraw":
        return
    last = _last_with_jobs(ledger)
    if last is not None and quarantine_name(request.gate) not in last.plan.commits:
        gates = sorted(name.removeprefix(QUARANTINE) for name in last.plan.commits if name.startswith(QUARANTINE))
        raise Rejected(
            f"no checkpoint would take up a request to gate {request.gate!r}: the code of checkpoint {last.id} has no "
            "such gate, or it quarantines no rows",
            expected=f"a gate that quarantines or holds: {' or '.join(gates) or 'none is declared'}",
            help=f"declare {request.gate!r} with on_failure='quarantine' or 'hold' again, let a checkpoint complete, "
            f"and repeat the request; until then its rows stay where they are: tidegate quarantine show "
            f"{ledger.pipeline} {request.gate}",
            reason="NO_SUCH_GATE",
        )


def _last_with_jobs(ledger: Ledger) -> Entry | None:
    for id in reversed(ledger.ids()):
        entry = ledger.entry(id)
        if entry is not None and entry.plan.acks:
            return entry
    return None


def _refuse_withdrawal(ledger: Ledger, request: Request, existing: list[Request]) -> None:
    if request.withdraws is None:
        return
    numbers = [earlier.number for earlier in existing if earlier.action != "withdraw"]
    if request.withdraws not in numbers:
        raise Invalid(
            f"gate {request.gate!r} has no request {request.withdraws}",
            expected=" or ".join(map(str, numbers)) or "a request to release or to discard",
            help="`tidegate quarantine list` shows the pending ones",
            reason="NO_SUCH_REQUEST",
        )
    in_place = {earlier.number for earlier in existing if earlier.in_place}
    if request.withdraws in in_place:
        _refuse_while_in_line(ledger, request)
    elif request.withdraws <= last_planned_request(ledger.view(), request.gate):
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
    """Return the requests to release rows in the checkpoints that quarantined them, without withdrawn ones: for
    backfills. A request that one backfill has fulfilled applies to later ones too."""
    requests = ledger.requests(gate)
    withdrawn = {request.withdraws for request in requests}
    return [request for request in requests if request.in_place and request.number not in withdrawn]


def pending_requests(ledger: Ledger, view: View, gate: str) -> list[Request]:
    """Return the requests that the next plan takes up, without withdrawn ones."""
    return _for_next_plan(ledger.requests(gate, after=last_planned_request(view, gate)))


def _for_next_plan(new: Sequence[Request]) -> list[Request]:
    withdrawn = {request.withdraws for request in new}
    active = []
    for request in new:
        if request.action != "withdraw" and not request.in_place:
            active.append(request)
    return [request for request in active if request.number not in withdrawn]


def expected_effect(ledger: Ledger, quarantine: QuarantinedRows, request: Request) -> Forecast:
    """Return the expected effect of a request to release, judging by the last checkpoint."""
    return forecast(quarantine, request, late_limits(ledger, request.gate))


def late_limits(ledger: Ledger, gate: str) -> list[LateLimit]:
    """Return the operators downstream of a gate that drop late rows, with their watermarks, as of the last
    checkpoint."""
    last_judgement = _last_judgement(ledger, gate)
    if last_judgement is None:
        return []
    verdict, acks = last_judgement
    memory = memory_of(acks)
    limits = []
    for late in verdict.behind:
        mark = memory.get(f"{late.operator}.watermark")
        limits.append(LateLimit(late, typed.convert(mark["at"], datetime) if mark else None))
    return limits


def verdict_of_gate(ledger: Ledger, gate: str) -> Verdict | None:
    """Return the verdict of a gate on the last checkpoint that it has judged, or None."""
    last_judgement = _last_judgement(ledger, gate)
    return last_judgement[0] if last_judgement is not None else None


def _last_judgement(ledger: Ledger, gate: str) -> tuple[Verdict, list[Ack]] | None:
    for id in reversed(ledger.ids()):
        entry = ledger.entry(id)
        if entry is None or entry.aborted:
            continue
        acks = [acked.ack for acked in entry.acks.values()]
        for ack in acks:
            if gate in ack.gates:
                return ack.gates[gate], acks
    return None


def checkpoint_before(ledger: Ledger, id: int) -> int:
    """Return the last completed checkpoint before another one, at which a backfill can begin, or 0: the beginning."""
    rollbacks = ledger.rollbacks()
    for earlier in reversed(ledger.ids()):
        entry = ledger.entry(earlier) if earlier < id else None
        if entry is None or not entry.completed or not entry.plan.acks:
            continue
        if rollback_of(entry.id, rollbacks) is None:
            return entry.id
    return 0


def last_planned_request(view: View, gate: str) -> int:
    """Return the last request of the gate that a plan has taken up, aborted plans excluded, or 0."""
    last = next((entry for entry in reversed(view.entries) if not entry.aborted), None)
    part = last.plan.sources.get(quarantine_name(gate)) if last is not None else None
    return part.end["request"] if part is not None and part.end is not None else 0


def plan_requests(graph: Graph, ledger: Ledger, place: Place, view: View, base: Entry | None) -> dict[str, Range]:
    """Return for each gate the requests that this plan takes up. Interval pipelines take up none."""
    if graph.by_interval:
        return {}
    before = _quarantine_ranges(base)
    ranges = {}
    for gated in graph.gates:
        for name, sink in gated.quarantine.items():
            part = _plan_gate(gated.name, sink, before.get(name), graph, ledger, place, view)
            if part is not None:
                ranges[name] = part
    removed = {name: _empty_range(ledger, part) for name, part in before.items() if name not in ranges}
    return ranges | removed  # a gate that is added again continues from its old position


def _quarantine_ranges(base: Entry | None) -> dict[str, Range]:
    if base is None:
        return {}
    return {name: part for name, part in base.plan.sources.items() if name.startswith(QUARANTINE)}


def _empty_range(ledger: Ledger, before: Range) -> Range:
    return Range(kind=KIND, start=before.end, end=before.end, splits=ledger.pack({}), empty=True)


def _plan_gate(
    gate: str, sink: QuarantineSink, before: Range | None, graph: Graph, ledger: Ledger, place: Place, view: View
) -> Range | None:
    """Return the requests that the plan takes up for one gate, or None if it never had a request."""
    start = before.end if before is not None else None
    new = ledger.requests(gate, after=start["request"] if start else 0)
    if not new or not _settled(gate, sink, graph, ledger, place, view):
        if before is not None:
            return _empty_range(ledger, before)
        return None
    for request in new:
        ledger.sync_request(request)
    active = _for_next_plan(new)
    context = SourceContext(graph.name, quarantine_name(gate), place, ledger)
    table = None
    if active:
        table = sink.source(ledger.home).plan(None, context).splits
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
    """Return for each gate the requests that another plan has taken up, for a backfill's plan that repeats it. Requests
    name rows of the pipeline's quarantine; those of the backfill's are found by their values."""
    before = _quarantine_ranges(base)
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
                        f"quarantine {gated.name!r} of the backfill does not show earlier releases yet",
                        help="it is retried automatically",
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
    """Return the requests to release rows in place that a checkpoint of the pipeline has quarantined."""
    requests = []
    for request in live.in_place.get(gate, ()):
        if not request.checkpoints or checkpoint in request.checkpoints:
            requests.append(request)
    quarantine = None
    if requests:
        quarantine = open_quarantine(live.home, gate, place.options)
    if quarantine is None:
        return []
    return [request for request in requests if _selects_any(quarantine, request, checkpoint)]


def _selects_any(quarantine: QuarantinedRows, request: Request, checkpoint: int) -> bool:
    return quarantine.count(msgspec.structs.replace(request, checkpoints=[checkpoint]), settled=True) > 0


def _settled(gate: str, sink: QuarantineSink, graph: Graph, ledger: Ledger, place: Place, view: View) -> bool:
    """Return whether the table shows the effect of all earlier requests. Otherwise a row could continue twice."""
    name = quarantine_name(gate)
    with_requests = []
    for entry in view.entries:
        part = entry.plan.sources.get(name)
        if entry.id > view.settled and not entry.aborted and part is not None and not part.empty:
            with_requests.append(entry.id)
    uid = ledger.start().uid
    last = sink.head(SinkContext(graph.name, uid, name, place, home=ledger.home)).last_entry
    return last is not None and all(id <= last for id in with_requests)
