"""Make a plan: ask every source for the input after the base, and refuse code that cannot continue from the base."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, cast

import msgspec

from tidegate import seams
from tidegate.checkpoint import skipping, suspension
from tidegate.checkpoint.compatibility import (
    check_gates,
    check_targets,
    declined_error,
    find_unused_hooks,
    find_unused_states,
    planned_ranges,
    refusals,
    refuse,
)
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.pacing import pace_of
from tidegate.checkpoint.publishing.publish import Report
from tidegate.checkpoint.quarantine_requests import (
    LiveQuarantine,
    pending_requests,
    plan_requests,
    repeat_requests,
)
from tidegate.config.keys import KEYS, MODES
from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.connectors.schema.drift import evolved_schema
from tidegate.connectors.schema.widening import is_wider
from tidegate.connectors.source import ReadOnlyBlobs, SourceContext
from tidegate.errors import Corrupt, Invalid, Rejected, Unavailable
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.event_time import sources_to_pause
from tidegate.pipeline.graph.graph import Graph, OperatorNode, SourceNode
from tidegate.pipeline.graph.meaning import sources_under_new_names
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.pipeline.hooks import Triggering
from tidegate.pipeline.promises import recorded_promises
from tidegate.protocol.clock import clock_of_plan
from tidegate.protocol.moved_sources import ranges_after, source_changes
from tidegate.protocol.rules import CreateEntry, WantedInterval
from tidegate.protocol.view import Entry, View
from tidegate.records.codec import fingerprint
from tidegate.records.interval import Interval
from tidegate.records.records import (
    Beginning,
    ChangeByHand,
    Divert,
    Drain,
    Drift,
    Json,
    Overtaking,
    Pace,
    Payload,
    Plan,
    Range,
    SourceChange,
    SourceSchema,
)
from tidegate.records.source_time import partition_of

__all__ = ["CheckpointOptions", "Plans", "empty_range", "next_schema", "standing_ranges"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of a special checkpoint."""

    standing: bool = False
    """It reads nothing, and the sources keep their positions: for changes of state by hand."""
    drain: Drain | None = None
    """Event time ends with this checkpoint, or with a later one if more input waits than this one reads."""
    aligned: bool = False
    """It overtakes no job, even if the settings allow it: for a savepoint that is to be copied (O4)."""
    by_hand: ChangeByHand | None = None
    """The change that a person makes with it."""
    divert: Divert | None = None
    """The rows that it diverts, for a change of that kind."""
    repeats: Plan | None = None
    """It reads the ranges that this plan has recorded, instead of asking sources: for a backfill. The plan's side files
    exist in this ledger."""
    quarantine: LiveQuarantine | None = None
    """With `repeats`: the quarantine from which that plan released rows."""

    @property
    def waits_for_all(self) -> bool:
        return self.standing or self.aligned or self.drain is not None


_ORDINARY = CheckpointOptions()


class Plans:
    """Makes the plans of one pipeline's checkpoints, in milliseconds and without a JVM. It writes only side files."""

    def __init__(self, pipeline: PipelineContext, *, preview: bool = False) -> None:
        """preview: write no side files either, since nobody will follow the plan."""
        self.pipeline = pipeline
        self.preview = preview
        self.graph = pipeline.graph
        self.ledger = pipeline.ledger
        self.settings = pipeline.settings
        self.place = pipeline.place

    def make(
        self,
        answer: CreateEntry,
        view: View,
        run: str,
        kind: str,
        wanted: WantedInterval | None = None,
        special: CheckpointOptions = _ORDINARY,
        looked: Report | None = None,
    ) -> Plan:
        """Return the plan for the entry that the protocol allows next. It has no effect until it is created.

        looked: the publishing pass over the tables that was just made.
        """
        interval = wanted.interval if wanted is not None else None
        repeats = special.repeats
        drain = special.drain or suspension.draining(view)
        quarantine_all = suspension.is_quarantining_all(view)
        quarantine_held = suspension.quarantines_pending_verdict(view)
        if repeats is not None:
            drain = drain or repeats.drain
            quarantine_all = quarantine_all or repeats.quarantine_all
            quarantine_held = quarantine_held or repeats.quarantine_held
        if drain is not None:
            self._refuse_end()
        if looked is None:
            check_targets(self.graph, self.ledger, self.place)
        elif not looked.needless:
            check_targets(self.graph, self.ledger, self.place, looked.heads, looked.uid)
        check_gates(self.graph, self.place)
        declined = declined_error(self.pipeline, view)
        if declined is not None:
            raise declined
        base = view.get(answer.base)
        changes = source_changes(view, base)
        if special.divert is not None and base is not None and base.open:
            raise suspension.in_progress((base.id,), "rows are diverted when it is decided what waits for the table")
        config: Json = self.settings.record()
        if base is not None:
            self._refuse(config, base, view, changes)
        sources = self._sources(answer.id, view, base, interval, changes, special)
        has_more = any(part.more for part in sources.values())  # if so, a drain ends with a later checkpoint
        if drain is None and self.pipeline.finishes and not has_more:
            drain = Drain(by="tidegate", reason="all of its sources have been read to their end")
        hooks = self._hooks(Triggering(self.graph.name, answer.id, answer.base, run), base)
        waits_for_all = special.waits_for_all or drain is not None or bool(changes)
        stamped = stamp(seams.new_id())
        return Plan(
            **stamped,
            quotes_rows=False,
            id=answer.id,
            clock=clock_of_plan(stamped["created"], base.plan if base is not None else None, by_hand=special.standing),
            kind=cast(Literal["scheduled", "manual"], kind),
            run=run,
            generation=answer.generation,
            base=answer.base,
            drain=None if has_more else drain,
            draining=drain if has_more else None,
            interval=interval.record if interval is not None else None,
            by_interval=self.graph.by_interval,
            by_hand=special.by_hand,
            divert=special.divert,
            quarantine_all=quarantine_all,
            quarantine_held=quarantine_held,
            reach=None if self.graph.by_interval else _reach(base, interval),
            sources=sources,
            source_changes=list(changes),
            fixed_inputs=self._fixed_inputs(answer, view, repeats),
            hooks=hooks,
            triggers=list(self.graph.sources),
            acks=[job.name for job in self.graph.jobs],
            takes=dict(self.graph.channels_of_jobs),
            overtaking=None if waits_for_all else _overtaking(self.graph, config),
            commits=list(self.graph.tables),
            notifies=[hook.name for hook in self.graph.hooks if hook.is_notified],
            through=_direct_sinks(self.graph, config),
            promises=recorded_promises(self.graph),
            timeout_s=self.settings.timeout,
            config=config,
            config_fingerprint=fingerprint(config),
            code_fingerprint=self.graph.code_fingerprint(),
        )

    def find_reason(self, answer: CreateEntry, view: View) -> str:
        """Return what a checkpoint would have to read or to record now; nothing: "". Writes nothing.

        A run that was asked for because of that, with `only_if_new`, finds the same.
        """
        if any(entry.plan.drain is not None for entry in view.still_open()):
            return ""
        base = view.get(answer.base)
        preview = Plans(self.pipeline, preview=True)
        ranges = preview._new_input(answer.id, view, base, None, source_changes(view, base))
        names = [name for name, part in ranges.items() if not part.empty]
        gates = (gated.name for gated in self.graph.gates if gated.quarantine)
        names += [gate for gate in gates if pending_requests(self.ledger, view, gate)]
        if names:
            return f"there is new input for {', '.join(names)}"
        ends = self.pipeline.finishes or suspension.draining(view) is not None
        if ends and not any(part.more for part in ranges.values()):
            return "all input is read, and event time is to end"
        if not skipping.is_news(ranges, view):
            return ""
        return "input was skipped for good, which is to be recorded"

    def _refuse(self, config: Json, base: Entry, view: View, changes: Sequence[SourceChange]) -> None:
        if base.open and changes:
            raise suspension.in_progress((base.id,), "a source was moved, dropped or accepted since it was planned")
        if base.id > view.settled and _mode(config) != _mode(base.plan.config) and base.rollback is None:
            # Otherwise its rows could be published over newer ones, which jobs commit directly.
            raise suspension.in_progress((base.id,), "it must be published before the commit mode changes")
        if base.open and base.overtakable and base.plan.code_fingerprint != self.graph.code_fingerprint():
            raise suspension.in_progress(
                (base.id,), "the code has changed, and its rows between jobs are not all read yet"
            )
        for name in find_unused_states(self.graph, base):
            log.warning("State %s is left behind with checkpoint %s: its operator is removed", name, base.id)
        for name in find_unused_hooks(self.graph, base):
            log.warning("The state of hook %s is left behind with checkpoint %s", name, base.id)
        try:
            refuse(list(refusals(self.graph, self.ledger, config, base, changes)), base.id)
        except Corrupt:
            if self.ledger.is_retained(base.id):
                raise
            raise Unavailable(
                f"checkpoint {base.id}, which the next one was to rest on, has just been retired",
                help="nothing is wrong: other runs were faster; it is retried automatically",
                reason="OVERTAKEN",
            ) from None

    def _refuse_end(self) -> None:
        if self.graph.by_interval:
            raise Invalid(
                f"pipeline {self.graph.name!r} reads by data interval: event time ends with each interval",
                expected="a pipeline that reads all new input",
                help=f"to end it: tidegate stop {self.graph.name}",
                reason="BY_INTERVAL",
            )

    def _sources(
        self,
        id: int,
        view: View,
        base: Entry | None,
        interval: Interval | None,
        changes: Sequence[SourceChange],
        special: CheckpointOptions,
    ) -> dict[str, Range]:
        if special.repeats is not None:
            ranges = self._repeated(special.repeats, view, base, changes)
            if special.quarantine is None:
                return ranges
            return ranges | repeat_requests(
                self.graph, self.ledger, self.place, view, base, special.repeats, special.quarantine
            )
        if special.standing:
            declared = {name: sourcing.source.kind for name, sourcing in self.graph.sources.items()}
            ranges = standing_ranges(base.plan if base else None, declared, changes)
            for name, kind in declared.items():
                at = self.pipeline.beginning(view, base, name) if ranges[name].end is None else None
                if at is not None:
                    ranges[name] = empty_range(kind, at)
            return {name: part for name, part in ranges.items() if name in declared or name.startswith(QUARANTINE)}
        ranges = self._new_input(id, view, base, interval, changes)
        return ranges | plan_requests(self.graph, self.ledger, self.place, view, base)

    def _new_input(
        self, id: int, view: View, base: Entry | None, interval: Interval | None, changes: Sequence[SourceChange]
    ) -> dict[str, Range]:
        """Return what comes next at each source."""
        starts = planned_ranges(base, changes)
        paces = {name: self._pace(sourcing, view, base) for name, sourcing in self.graph.sources.items()}
        sources = {}
        for name, sourcing in self.graph.sources.items():
            before = starts.get(name)
            start = before.end if before is not None else None
            if start is None and not self.graph.by_interval:
                start = self._beginning(sourcing, id, view, base)
            newest = view.last_completed if self.graph.by_interval else base
            last_range = newest.plan.sources.get(name) if self.graph.by_interval and newest is not None else before
            schema = next_schema(sourcing, last_range, newest, lambda entry: self._entry_below(view, entry))
            schema = _add_columns_of_first_read(sourcing, schema, self.pipeline.initial_schema(name))
            sources[name] = self._range(sourcing, start, interval, paces[name], schema)
            if sourcing.bounded and not sources[name].empty:
                ended = _last_exhausting_checkpoint(view, base, name)
                if ended is not None:
                    raise _bounded_source_grew(name, sources[name], ended)
        with_input = [name for name, part in sources.items() if not part.empty]
        reached = _event_times(view, base, self.graph.sources, changes)
        for name, slowest in sources_to_pause(self.graph.sources, reached, with_input).items():
            summary = f"waits for {slowest!r}, which is at {reached[slowest]:%Y-%m-%d %H:%M:%S} UTC"
            sources[name] = msgspec.structs.replace(_standing(sources[name].kind, starts.get(name)), summary=summary)
        return sources

    def _entry_below(self, view: View, entry: Entry) -> Entry | None:
        """Return the entry that another one continues from. The view has no acks of a rollback's target."""
        if entry.rollback is not None and entry.rollback.target:
            return self.ledger.entry(entry.rollback.target)
        if self.graph.by_interval:
            return self._interval_below(view, entry)
        return _below(view, entry)

    def _interval_below(self, view: View, entry: Entry) -> Entry | None:
        """Return the next lower entry that counts. The plan of an interval names no base, as it rests on none, but what
        those found that were planned beside it is to be known, too. They may be settled, and below the view."""
        for id in range(entry.id - 1, 0, -1):
            lower = view.get(id) or self.ledger.entry(id)
            if lower is None or not lower.aborted:
                return lower
        return None

    def _repeated(
        self, recorded: Plan, view: View, base: Entry | None, changes: Sequence[SourceChange]
    ) -> dict[str, Range]:
        """Return the ranges of another plan. A source that it does not have keeps its position."""
        before = planned_ranges(base, changes)
        sources = {}
        for name, sourcing in self.graph.sources.items():
            part, start = recorded.sources.get(name), before.get(name)
            if part is not None and start is not None and part.start != start.end:
                raise Rejected(
                    f"checkpoint {recorded.id} begins source {name!r} elsewhere than where the backfill has reached",
                    expected="checkpoints that each begin where the one before ends",
                    help="between them a source was moved, or another backfill was swapped in: discard this one, and "
                    "begin another one with --cuts own",
                    reason="CUTS_DO_NOT_FIT",
                )
            if part is None:
                sources[name] = _standing(sourcing.source.kind, start)
                continue
            own = next_schema(sourcing, start, base, lambda entry: self._entry_below(view, entry))
            schema = _add_columns_of_first_read(sourcing, own, part.schema)
            sources[name] = msgspec.structs.replace(part, schema=schema)
        return sources

    def _beginning(self, sourcing: SourceNode, id: int, view: View, base: Entry | None) -> Json | None:
        """Return where an unread source begins, and decide that if it is not decided yet."""
        decided = self.pipeline.beginning(view, base, sourcing.name)
        if decided is not None:
            return decided
        position = sourcing.source.beginning(self._context(sourcing.name))
        if position is None or self.preview:
            return position
        beginning = Beginning(**stamp(seams.new_id()), id=id, source=sourcing.name, at=position)
        return self.ledger.create_beginning(beginning).at

    def _fixed_inputs(self, answer: CreateEntry, view: View, repeats: Plan | None = None) -> dict[str, Payload]:
        """Fix the inputs that operators and gates read in addition to their streams. repeats: the plan whose fixed
        inputs to use again."""
        inputs = {}
        for stage in self.graph.stages:
            context = self.pipeline.source_context(stage.name)
            recorded = repeats.fixed_inputs.get(stage.name) if repeats is not None else None
            if recorded is not None and isinstance(stage, OperatorNode):
                inputs[stage.name] = recorded
                continue
            if isinstance(stage, OperatorNode):
                fixed = stage.spec.inputs.fix_table(context)
            elif recorded is not None and isinstance(stage, GateNode):
                fixed = stage.gate.fix_inputs_again(self.ledger.unpack(recorded), context)
            elif isinstance(stage, GateNode):
                if stage.gate.reads_tables and answer.base is not None and answer.base > view.settled:
                    raise suspension.in_progress((answer.base,), f"gate {stage.name!r} reads its rows in the table")
                fixed = stage.gate.fix_inputs(context)
            else:
                continue
            if fixed is not None:
                inputs[stage.name] = self.ledger.pack(fixed, self.graph.parts)
        return inputs

    def _hooks(self, triggering: Triggering, base: Entry | None) -> dict[str, Json]:
        """Return the data that the pipeline's hooks store. After a rollback or a fork they are restored first."""
        if base is not None and (base.rollback is not None or base.plan.kind == "fork"):
            if not base.completed:
                raise suspension.in_progress((base.id,), "the pipeline's hooks are restored when it is completed")
            for hook in self.graph.hooks:
                hook.restore(base.plan.hooks.get(hook.name))
        return {hook.name: hook.trigger(triggering) for hook in self.graph.hooks if hook.on_trigger is not None}

    def _pace(self, sourcing: SourceNode, view: View, base: Entry | None) -> Pace | None:
        """Return the source's pace, if its bound follows from the duration of checkpoints."""
        if sourcing.pace is None or sourcing.source.unit is None:
            return None
        config, timeout_s = self.settings.record(), self.settings.timeout
        return pace_of(sourcing.pace, sourcing.name, sourcing.source.unit, view, base, config, timeout_s)

    def _range(
        self,
        sourcing: SourceNode,
        start: Json | None,
        interval: Interval | None,
        pace: Pace | None,
        schema: SourceSchema | None,
    ) -> Range:
        at_most = pace.at_most if pace is not None else None
        context = replace(self._context(sourcing.name), interval=interval, at_most=at_most)
        planned = sourcing.source.plan(start, context)
        return Range(
            kind=sourcing.source.kind,
            start=start,
            end=planned.end,
            splits=Payload(data={}) if self.preview else self.ledger.pack(planned.splits, self.graph.parts),
            empty=planned.is_empty,
            # Whether input waits after a stop position is unknown, since the source is not asked for it.
            more=planned.has_more or context.stop_position is not None,
            summary=planned.summary,
            unread=planned.unread,
            lag=planned.lag,
            pace=msgspec.structs.replace(pace, planned=planned.amount) if pace is not None else None,
            schema=schema,
        )

    def _context(self, source: str) -> SourceContext:
        context = self.pipeline.source_context(source)
        if not self.preview:
            return context
        return replace(context, blobs=ReadOnlyBlobs(context.blobs))


def next_schema(
    sourcing: SourceNode, before: Range | None, base: Entry | None, below: Callable[[Entry], Entry | None]
) -> SourceSchema | None:
    """Return the schema with which the next range of a source is read, or None if its schema does not follow its input.

    It is the declared one, with what the checkpoints below have found.

    before: its range in the base, or None if it has none. base: the entry on which the next plan rests; in an interval
    pipeline, the last completed one. below: returns the entry from which another one continues, or the next lower one.
    """
    policy = sourcing.source.schema_policy
    if not policy.rescues:
        return None
    recorded = before.schema if before is not None else None
    through = recorded.through if recorded is not None else 0
    drifts: list[tuple[int, Drift | None]] = []
    entry = base
    while entry is not None and entry.id > through:
        part = entry.plan.sources.get(sourcing.name)
        if entry.plan.by_interval and (part is None or part.schema is None):
            break  # the schema did not follow its input then, so there is nothing to find from here on
        if len(entry.acks) < len(entry.plan.acks):
            drifts.clear()  # it may still find something: a later plan looks at it, and at what is above it, again
        else:
            drifts.append((entry.id, _drift_in(entry, sourcing.name)))
        entry = below(entry)
    return evolved_schema(parse_ddl(sourcing.source.declared_schema), policy, recorded, reversed(drifts))


def _drift_in(entry: Entry, source: str) -> Drift | None:
    """Return what the checkpoint has found in a source, or None if it has found nothing."""
    for acked in entry.acks.values():
        drift = acked.ack.drift.get(source)
        if drift is not None:
            return drift
    return None


def _add_columns_of_first_read(
    sourcing: SourceNode, own: SourceSchema | None, recorded: SourceSchema | None
) -> SourceSchema | None:
    """Return the schema of a range that is read again: with the columns that were known when it was read first.

    own: the schema that follows from the declaration as it is now, and what the checkpoints of the backfill have found.
    """
    if own is None or recorded is None:
        return own
    known = dict(recorded.known)
    for path, column in own.known.items():
        known.setdefault(path, column)
    widened = dict(recorded.widened)
    for name, column in own.widened.items():
        if name not in widened or is_wider(widened[name].type, column.type):
            widened[name] = column
    schema = msgspec.structs.replace(
        own, ddl=recorded.ddl, known=known, widened=widened, more=max(own.more, recorded.more)
    )
    return evolved_schema(parse_ddl(sourcing.source.declared_schema), sourcing.source.schema_policy, schema, ())


def _last_exhausting_checkpoint(view: View, base: Entry | None, name: str) -> int | None:
    """Return the last checkpoint that asked the source for input, if the source was at its end then. Otherwise None."""
    while base is not None:
        part = base.plan.sources.get(name)
        if part is None:
            return None
        if part.is_exhausted:
            return base.id
        if not part.empty:
            return None
        base = _below(view, base)  # this one did not ask
    return None


def _below(view: View, entry: Entry) -> Entry | None:
    """Return the entry that a checkpoint or a rollback continues from, if it is in the view."""
    return view.get(entry.rollback.target if entry.rollback is not None else entry.plan.base)


def _event_times(
    view: View, base: Entry | None, sources: Mapping[str, SourceNode], changes: Sequence[SourceChange]
) -> dict[str, datetime]:
    """Return the sources' watermarks as of the last checkpoint with acks. Empty if no source has max_ahead."""
    if all(sourcing.max_ahead is None for sourcing in sources.values()):
        return {}
    while base is not None and not base.acks:
        base = _below(view, base)
    memory: dict[str, Json] = {}
    if base is not None:
        for acked in base.acks.values():
            memory |= acked.ack.memory
    memory = sources_under_new_names(memory, changes)
    watermarks = {}
    for name in sources:
        watermark = partition_of(memory[name]).watermark if name in memory else None
        if watermark is not None:
            watermarks[name] = watermark
    return watermarks


def _bounded_source_grew(name: str, part: Range, ended: int) -> Invalid:
    return Invalid(
        f"source {name!r} is bounded, was at its end in checkpoint {ended}, and has new input: {part.summary}",
        expected="no more input: operators have treated event time as complete without it",
        help=f"let another source read it; or roll back to before checkpoint {ended}, and remove bounded=True",
        reason="BOUNDED_SOURCE_GREW",
    )


def _overtaking(graph: Graph, config: Json) -> Overtaking | None:
    """Return the jobs that the checkpoint may overtake, if the settings allow that."""
    if not config.get("unaligned", False) or not graph.overtakable or _mode(config) != MODES[0]:
        return None
    after_s = KEYS["aligned_timeout"].parse(config.get("aligned_timeout", 0))
    return Overtaking(jobs=list(graph.overtakable), after_s=after_s)


def _mode(config: Json) -> str:
    return str(config.get("mode", MODES[0]))


def _direct_sinks(graph: Graph, config: Json) -> list[str] | None:
    """Return the sinks to which jobs commit directly, if the mode is at least once."""
    if _mode(config) == MODES[0]:
        return None
    return [name for name, sinking in graph.sinks.items() if sinking.sink.can_publish_directly]


def standing_ranges(
    base: Plan | None, declared: Mapping[str, str], changes: Sequence[SourceChange] = ()
) -> dict[str, Range]:
    """Return ranges that read nothing, so that each source keeps its position. declared: the kinds of all sources, new
    ones included."""
    before = ranges_after(base.sources if base is not None else {}, changes)
    kinds = {**declared, **{name: part.kind for name, part in before.items()}}
    return {name: _standing(kind, before.get(name)) for name, kind in kinds.items()}


def empty_range(kind: str, at: Json | None) -> Range:
    """Return a range at this position that reads nothing."""
    return Range(kind=kind, start=at, end=at, splits=Payload(data={}), empty=True, more=True)


def _standing(kind: str, before: Range | None) -> Range:
    """Return a range that reads nothing, and keeps the observations of its pace."""
    if before is None:
        return empty_range(kind, None)
    return Range(
        kind=kind,
        start=before.end,
        end=before.end,
        splits=Payload(data={}),
        empty=True,
        more=True,
        unread=before.unread,
        pace=msgspec.structs.replace(before.pace, planned=0) if before.pace is not None else None,
        schema=before.schema,
    )


def _reach(base: Entry | None, interval: Interval | None) -> tuple[str, str] | None:
    """Return the span of the intervals of this checkpoint and all below it."""
    before = base.plan.reach if base is not None else None
    if interval is None:
        return before
    if before is None:
        return interval.record
    span = Interval.of_record(before)
    return Interval(min(span.start, interval.start), max(span.end, interval.end)).record
