"""Make a plan: ask every source what comes after the base, and refuse what could not be resumed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.compatibility import check_targets, declared_sources, left_behind, refusals, refuse
from tidegate.checkpoint.pacing import pace_of
from tidegate.checkpoint.quarantine_requests import plan_requests
from tidegate.config.keys import KEYS, MODES
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.pipeline.graph.gated import GateNode
from tidegate.pipeline.graph.graph import Graph, OperatorNode, SourceNode
from tidegate.pipeline.hooks import Triggering
from tidegate.protocol.rules import CreateEntry, WantedInterval
from tidegate.protocol.view import Entry, View
from tidegate.records.codec import fingerprint
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Beginning, Drain, Json, Overtaking, Pace, Payload, Plan, Range
from tidegate.sources.base import SourceContext

__all__ = ["CheckpointOptions", "Plans", "standing_ranges"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointOptions:
    """What a checkpoint is that is not just the next one."""

    standing: bool = False
    """It reads nothing; the sources stay where they are. For what changes state by hand."""
    drain: Drain | None = None
    """Event time comes to its end: with this checkpoint, or, if more input waits than it takes, with one behind it."""
    aligned: bool = False
    """It goes past no job, whatever the settings say: for what is to be copied (O4)."""

    @property
    def waits_for_all(self) -> bool:
        return self.standing or self.aligned or self.drain is not None


_ORDINARY = CheckpointOptions()


class Plans:
    """Plans of one pipeline's checkpoints. Milliseconds, no JVM, nothing written but side files."""

    def __init__(self, graph: Graph, ledger: Ledger, limits: object, place: Place) -> None:
        self.graph = graph
        self.ledger = ledger
        self.limits = limits
        self.place = place

    def make(
        self,
        answer: CreateEntry,
        view: View,
        run: str,
        kind: str,
        wanted: WantedInterval | None = None,
        special: CheckpointOptions = _ORDINARY,
    ) -> Plan:
        """The plan for the entry that the protocol allows next. Nothing counts until it is created."""
        interval = wanted.interval if wanted is not None else None
        drain = special.drain or control.draining(view)
        if drain is not None:
            self._refuse_end()
        check_targets(self.graph, self.ledger, self.place)
        base = view.get(answer.base)
        config: Json = self.limits.record()  # type: ignore[attr-defined]
        if base is not None:
            self._refuse(config, base, view)
        sources = self._sources(answer.id, view, base, interval, standing=special.standing)
        more = any(part.more for part in sources.values())  # then the end is not reached with this one
        hooks = self._hooks(Triggering(self.graph.name, answer.id, answer.base, run), base)
        return Plan(
            **stamp(seams.new_id()),
            id=answer.id,
            kind=cast(Literal["scheduled", "manual"], kind),
            run=run,
            generation=answer.generation,
            base=answer.base,
            drain=None if more else drain,
            draining=drain if more else None,
            interval=interval.record if interval is not None else None,
            by_interval=self.graph.by_interval,
            set_aside=control.sets_aside(view),
            reach=None if self.graph.by_interval else _reach(base, interval),
            sources=sources,
            pins=self._pins(answer, view),
            hooks=hooks,
            triggers=list(self.graph.sources),
            acks=[job.name for job in self.graph.jobs],
            takes=dict(self.graph.takes),
            overtaking=None if special.waits_for_all or drain is not None else _overtaking(self.graph, config),
            commits=list(self.graph.tables),
            through=_through(self.graph, config),
            timeout_s=self.limits.timeout,  # type: ignore[attr-defined]
            config=config,
            config_fingerprint=fingerprint(config),
            code_fingerprint=self.graph.code_fingerprint(),
        )

    def _refuse(self, config: Json, base: Entry, view: View) -> None:
        if base.id > view.settled and _mode(config) != _mode(base.plan.config) and base.restart is None:
            raise control.busy((base.id,))  # what is owed comes first: else older rows would come over newer ones
        if base.open and base.overtakable and base.plan.code_fingerprint != self.graph.code_fingerprint():
            raise control.busy((base.id,))  # what will be in flight then, this code must know
        for name in left_behind(self.graph, base):
            log.warning("State %s is left behind with checkpoint %s: its operator is gone", name, base.id)
        try:
            refuse(list(refusals(self.graph, self.ledger, config, base)), base.id)
        except Corrupt:
            if self.ledger.is_kept(base.id):
                raise
            raise Unavailable(
                f"checkpoint {base.id}, which the next one was to rest on, was retired meanwhile",
                help="nothing is wrong: others went on; it is tried again by itself",
                reason="OVERTAKEN",
            ) from None

    def _refuse_end(self) -> None:
        if self.graph.by_interval:
            raise Invalid(
                f"pipeline {self.graph.name!r} reads by data interval: event time has no end there",
                expected="a pipeline that reads whatever is new",
                help=f"to end it: tidegate stop {self.graph.name}",
                reason="BY_INTERVAL",
            )

    def _sources(
        self, id: int, view: View, base: Entry | None, interval: Interval | None, *, standing: bool
    ) -> dict[str, Range]:
        if standing:
            declared = {name: sourcing.source.kind for name, sourcing in self.graph.sources.items()}
            there = standing_ranges(base.plan if base else None, declared)
            return {name: part for name, part in there.items() if name in declared or name.startswith(QUARANTINE)}
        starts = declared_sources(base)
        paces = {name: self._pace(s, view, base) for name, s in self.graph.sources.items()}
        sources = {}
        for name, sourcing in self.graph.sources.items():
            before = starts.get(name)
            start = before.end if before is not None else None
            if start is None and not self.graph.by_interval:
                start = self._beginning(sourcing, id, base)
            sources[name] = self._range(sourcing, start, interval, paces[name])
        return sources | plan_requests(self.graph, self.ledger, self.place, view, base)

    def _beginning(self, sourcing: SourceNode, id: int, base: Entry | None) -> Json | None:
        """Where a source begins that nothing was read of yet, as it was decided when it was looked at first.

        What counts is decided behind the base: a rollback to before the source was there finds what was decided then,
        and a source that was taken out and put back begins anew.
        """
        context = SourceContext(self.graph.name, sourcing.name, self.place, self.ledger)
        behind = 0
        if base is not None:
            behind = base.restart.target if base.restart is not None else base.id
        if (known := self.ledger.beginning(sourcing.name, behind)) is not None:
            return known.at
        at = sourcing.source.beginning(context)
        if at is None:
            return None
        said = Beginning(**stamp(seams.new_id()), id=id, source=sourcing.name, at=at)
        return self.ledger.create_beginning(said).at

    def _pins(self, answer: CreateEntry, view: View) -> dict[str, Payload]:
        """What operators and gates are to read beside their streams."""
        found = {}
        for stage in self.graph.stages:
            part = (
                stage.operator
                if isinstance(stage, OperatorNode)
                else stage.gate
                if isinstance(stage, GateNode)
                else None
            )
            waits = isinstance(stage, GateNode) and stage.gate.pins_tables
            if waits and answer.base is not None and answer.base > view.settled:
                raise control.busy((answer.base,))  # what it has for the table is not there yet
            context = SourceContext(self.graph.name, stage.name, self.place, self.ledger)
            pinned = part.pin(context) if part is not None else None
            if pinned is None:
                continue
            found[stage.name] = self.ledger.pack(pinned, self.graph.parts)
        return found

    def _hooks(self, triggering: Triggering, base: Entry | None) -> dict[str, Json]:
        """What the pipeline's hooks want to be kept. Behind a rollback or a fork they go back first, too."""
        if base is not None and (base.restart is not None or base.plan.kind == "fork"):
            if not base.completed:
                raise control.busy((base.id,))
            for hook in self.graph.hooks:
                hook.restore(base.plan.hooks.get(hook.name))
        return {hook.name: hook.trigger(triggering) for hook in self.graph.hooks if hook.on_trigger is not None}

    def _pace(self, sourcing: SourceNode, view: View, base: Entry | None) -> Pace | None:
        """What it may give, if that follows from how long checkpoints take."""
        if sourcing.pace is None or sourcing.source.unit is None:
            return None
        config, timeout_s = self.limits.record(), self.limits.timeout  # type: ignore[attr-defined]
        return pace_of(sourcing.pace, sourcing.name, sourcing.source.unit, view, base, config, timeout_s)

    def _range(self, sourcing: SourceNode, start: Json | None, interval: Interval | None, pace: Pace | None) -> Range:
        at_most = pace.at_most if pace is not None else None
        context = SourceContext(self.graph.name, sourcing.name, self.place, self.ledger, interval, at_most)
        planned = sourcing.source.plan(start, context)
        return Range(
            kind=sourcing.source.kind,
            start=start,
            end=planned.end,
            splits=self.ledger.pack(planned.splits, self.graph.parts),
            empty=planned.empty,
            more=planned.more,
            summary=planned.summary,
            unread=planned.unread,
            pace=msgspec.structs.replace(pace, taken=planned.amount) if pace is not None else None,
        )


def _overtaking(graph: Graph, config: Json) -> Overtaking | None:
    """Which jobs the checkpoint may go past, if the settings allow it at all."""
    if not config.get("unaligned", False) or not graph.overtakable or _mode(config) != MODES[0]:
        return None
    after_s = KEYS["aligned_timeout"].parse(config.get("aligned_timeout", 0))
    return Overtaking(jobs=list(graph.overtakable), after_s=after_s)


def _mode(config: Json) -> str:
    return str(config.get("mode", MODES[0]))


def _through(graph: Graph, config: Json) -> list[str] | None:
    """The sinks whose rows jobs commit themselves, if the mode is at least once."""
    if _mode(config) == MODES[0]:
        return None
    return [name for name, sinking in graph.sinks.items() if sinking.sink.writes_through]


def standing_ranges(base: Plan | None, declared: Mapping[str, str]) -> dict[str, Range]:
    """Nothing is read: each source stays where it is. declared: the kinds of those that may be new."""
    before = base.sources if base is not None else {}
    kinds = {**declared, **{name: part.kind for name, part in before.items()}}
    return {name: _standing(kind, before.get(name)) for name, kind in kinds.items()}


def _standing(kind: str, before: Range | None) -> Range:
    """It reads nothing; but what its pace goes by is not forgotten."""
    if before is None:
        return Range(kind=kind, start=None, end=None, splits=Payload(data={}), empty=True, more=True)
    at, pace = before.end, before.pace
    kept = msgspec.structs.replace(pace, taken=0) if pace is not None else None
    nothing = Payload(data={})
    return Range(kind=kind, start=at, end=at, splits=nothing, empty=True, more=True, unread=before.unread, pace=kept)


def _reach(base: Entry | None, interval: Interval | None) -> tuple[str, str] | None:
    """From where to where intervals reach, those of all checkpoints below and this one's."""
    before = base.plan.reach if base is not None else None
    if interval is None or before is None:
        return before if interval is None else interval.record
    known = Interval.of_record(before)
    return Interval(min(known.start, interval.start), max(known.end, interval.end)).record
