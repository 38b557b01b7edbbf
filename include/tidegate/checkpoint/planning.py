"""Make a plan: ask every source what comes after the base, and refuse what could not be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from tidegate import seams
from tidegate.checkpoint import control
from tidegate.checkpoint.asking import requested
from tidegate.checkpoint.protocol import CreateEntry, Wanted
from tidegate.errors import Invalid
from tidegate.gates.base import GateContext
from tidegate.gates.quarantine import QUARANTINE
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.model.codec import fingerprint
from tidegate.model.interval import Interval
from tidegate.model.place import Place
from tidegate.model.records import Ack, Json, Payload, Plan, Range
from tidegate.model.view import Entry, View
from tidegate.pipeline.gated import Gated
from tidegate.pipeline.graph import Graph, Operated, Sourcing
from tidegate.pipeline.meaning import refuse_other_meanings
from tidegate.sinks.base import SinkContext
from tidegate.sources.base import SourceContext
from tidegate.state.record import DEFAULT_GROUPS
from tidegate.state.table import STATE

__all__ = ["Plans", "standing_ranges"]


class Plans:
    """Plans of one pipeline's checkpoints. Milliseconds, no JVM, nothing written but side files."""

    def __init__(self, graph: Graph, ledger: Ledger, limits: object, place: Place) -> None:
        self.graph = graph
        self.ledger = ledger
        self.limits = limits
        self.place = place

    def make(
        self, answer: CreateEntry, view: View, run: str, kind: str, wanted: Wanted | None = None, standing: bool = False
    ) -> Plan:
        """The plan for the entry that the protocol allows next. Nothing counts until it is created.

        standing: no source moves.
        """
        interval = wanted.interval if wanted is not None else None
        self._check_sinks()
        base = view.get(answer.base)
        if base is not None:
            self._refuse_lost_states(base.plan)
            self._refuse_other_groups(base.plan)
            for ack in self._acks(base):
                refuse_other_meanings(self.graph, ack.memory, base.id)
        starts = self._starts(base)
        if standing:
            declared = {name: sourcing.source.kind for name, sourcing in self.graph.sources.items()}
            sources = standing_ranges(base.plan if base else None, declared)
        else:
            sources = {name: self._range(s, starts.get(name), interval) for name, s in self.graph.sources.items()}
            sources |= requested(self.graph, self.ledger, self.place, view, base)
        config: Json = self.limits.record()  # type: ignore[attr-defined]
        return Plan(
            **stamp(seams.new_id()),
            id=answer.id,
            kind=cast(Literal["scheduled", "manual"], kind),
            run=run,
            generation=answer.generation,
            base=answer.base,
            interval=interval.record if interval is not None else None,
            by_interval=self.graph.by_interval,
            reach=None if self.graph.by_interval else _reach(base, interval),
            sources=sources,
            pins=self._pins(answer, view),
            triggers=list(self.graph.sources),
            acks=[job.name for job in self.graph.jobs],
            commits=list(self.graph.tables),
            timeout_s=self.limits.timeout,  # type: ignore[attr-defined]
            config=config,
            config_fingerprint=fingerprint(config),
            code_fingerprint=self.graph.code_fingerprint(),
        )

    def _acks(self, base: Entry) -> list[Ack]:
        """The acks that the base rests on; of a rollback those of its target."""
        if base.restart is None or base.manifest is None:
            return [acked.ack for acked in base.acks.values()]
        return [self.ledger.chosen_ack(handle, job) for job, handle in base.manifest.jobs.items()]

    def _check_sinks(self) -> None:
        """Every target can be published to, before any work is done for it."""
        uid = self.ledger.start().uid
        for name, sinking in self.graph.tables.items():
            by_interval, home = self.graph.by_interval, self.ledger.home
            sinking.sink.check(SinkContext(self.graph.name, uid, name, self.place, by_interval, home))
        for gated in self.graph.gates:
            gated.gate.check(GateContext(self.graph.name, gated.name, self.place))

    def _refuse_lost_states(self, base: Plan) -> None:
        """Every operator that remembers something is still there, under its uid."""
        lost = sorted(name for name in base.commits if name.startswith(STATE) and name not in self.graph.tables)
        if lost:
            raise Invalid(
                f"checkpoint {base.id} has state of {', '.join(name.removeprefix(STATE) for name in lost)}, which "
                f"pipeline {self.graph.name!r} no longer has",
                expected="every operator with state, under the uid that it had",
                help="put it back under its uid, or start a new pipeline under a new name",
                reason="STATE_REMOVED",
            )

    def _refuse_other_groups(self, base: Plan) -> None:
        """Keys are still hashed into as many groups as when their state began."""
        begun = base.config.get("max_parallelism", DEFAULT_GROUPS)
        now = self.limits.record().get("max_parallelism", DEFAULT_GROUPS)  # type: ignore[attr-defined]
        if begun != now and any(name.startswith(STATE) for name in base.commits):
            raise Invalid(
                f"max_parallelism is {now}, but the state of pipeline {self.graph.name!r} was begun with {begun}",
                expected=f"max_parallelism {begun}, for ever: by it each key was given its place in the files",
                help=f"put it back to {begun}: as many tasks may run as you like; or start a new pipeline",
                reason="MAX_PARALLELISM_CHANGED",
            )

    def _pins(self, answer: CreateEntry, view: View) -> dict[str, Payload]:
        """What operators and gates are to read beside their streams."""
        found = {}
        for stage in self.graph.stages:
            part = stage.operator if isinstance(stage, Operated) else stage.gate if isinstance(stage, Gated) else None
            context = SourceContext(self.graph.name, stage.name, self.place, self.ledger)
            pinned = part.pin(context) if part is not None else None
            if pinned is None:
                continue
            if isinstance(stage, Gated) and answer.base is not None and answer.base > view.settled:
                raise control.busy((answer.base,))  # what it has for the table is not there yet
            found[stage.name] = self.ledger.pack(pinned)
        return found

    def _starts(self, base: Entry | None) -> dict[str, Range]:
        """Where each source stands: where the base's plan ends (T5)."""
        if base is None:
            return {}
        declared = {name: part for name, part in base.plan.sources.items() if not name.startswith(QUARANTINE)}
        gone = sorted(set(declared) - set(self.graph.sources))
        if gone:
            raise Invalid(
                f"checkpoint {base.id} read source {', '.join(gone)}, which the pipeline no longer has",
                expected=f"sources {', '.join(sorted(declared))}",
                help="put the source back under its name, or start a new pipeline under a new name",
                reason="SOURCE_REMOVED",
            )
        for name, before in declared.items():
            kind = self.graph.sources[name].source.kind
            if kind != before.kind:
                raise Invalid(
                    f"source {name!r} was of kind {before.kind!r} in checkpoint {base.id} and is {kind!r} now",
                    expected=f"a source of kind {before.kind!r}: its position means nothing to another kind",
                    help="give the new source a name of its own",
                    reason="SOURCE_REPLACED",
                )
        return declared

    def _range(self, sourcing: Sourcing, before: Range | None, interval: Interval | None) -> Range:
        context = SourceContext(self.graph.name, sourcing.name, self.place, self.ledger, interval)
        start = before.end if before else None
        planned = sourcing.source.plan(start, context)
        return Range(
            kind=sourcing.source.kind,
            start=start,
            end=planned.end,
            splits=self.ledger.pack(planned.splits),
            empty=planned.empty,
            more=planned.more,
            summary=planned.summary,
        )


def standing_ranges(base: Plan | None, declared: Mapping[str, str]) -> dict[str, Range]:
    """Nothing is read: each source stays where it is. declared: the kinds of those that may be new."""
    before = base.sources if base is not None else {}
    kinds = {**declared, **{name: part.kind for name, part in before.items()}}
    ends = {name: before[name].end if name in before else None for name in kinds}
    return {
        name: Range(kind=kind, start=ends[name], end=ends[name], splits=Payload(data={}), empty=True, more=True)
        for name, kind in kinds.items()
    }


def _reach(base: Entry | None, interval: Interval | None) -> tuple[str, str] | None:
    """From where to where intervals reach, those of all checkpoints below and this one's."""
    before = base.plan.reach if base is not None else None
    if interval is None or before is None:
        return before if interval is None else interval.record
    known = Interval.of_record(before)
    return Interval(min(known.start, interval.start), max(known.end, interval.end)).record
