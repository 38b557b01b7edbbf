"""A line: a fork of the pipeline inside its own folder, whose tables are shadows of the real ones.

Its checkpoints are ordinary ones of its own log. Nothing of the pipeline is written by them, and nothing waits for
them. It reads the input by itself, with its own positions; each of its plans notes the pipeline's last checkpoint
by then, all of whose input it reads or has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from tidegate import seams
from tidegate.backfill.carried import carried_answer
from tidegate.backfill.recorded import RecordedPlans, side_files_of
from tidegate.checkpoint import approvals, control
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.quarantine_requests import LiveQuarantine, requests_in_place
from tidegate.config.keys import MODES
from tidegate.connectors.delta.sink.shadow import LINE
from tidegate.connectors.source import ReadOnlyBlobs, SourceContext
from tidegate.coordinator import Coordinator
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.history.backfill import backfill_progress, find_rollbacks, view_from
from tidegate.ledger.ledger import Ledger, folder_ledger, stamp
from tidegate.lifecycle import retention
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.rollback_proposal import TableChange, table_changes
from tidegate.lifecycle.snapshot import snapshot_at
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.protocol.backfill import (
    BackfillProgress,
    CaughtUp,
    ChangedByHand,
    Refuse,
    Replay,
    ReplayCut,
    Swapped,
    on_cut,
    on_replay,
)
from tidegate.protocol.moved_sources import source_changes
from tidegate.protocol.rules import CreateEntry, WantedInterval
from tidegate.protocol.verdicts import Undecided
from tidegate.protocol.view import Entry, View, rolled_back_by
from tidegate.records.names import check_name
from tidegate.records.records import BackfillRecord, Beginning, Blob, Payload, Pin, Plan

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.checkpoint.planning import CheckpointOptions

Cuts: TypeAlias = Literal["own", "recorded"]

__all__ = [
    "BackfillCoordinator",
    "Cuts",
    "OpenBackfill",
    "begin",
    "cannot_backfill",
    "lagging_sources",
    "list_manual_edits",
    "open_line",
    "pin_owner",
    "problems_of",
    "refuse_kind",
    "refuse_origin",
    "reporting_discarded",
    "without_shadow",
]


@dataclass(frozen=True)
class OpenBackfill:
    """A line, as a process works with it."""

    record: BackfillRecord
    live: Coordinator
    backfill: BackfillCoordinator

    @property
    def name(self) -> str:
        return self.record.name

    def head(self) -> Entry | None:
        """Return the line's last completed checkpoint."""
        return self.backfill.ledger.view().last_completed

    def progress(self) -> BackfillProgress:
        """Return how far it has come."""
        return backfill_progress(self.record, self.backfill.ledger)

    def is_stop_candidate(self, id: int) -> bool:
        """Return whether a checkpoint of the pipeline is one that the line has to read up to."""
        step = self.backfill.next_step()
        return id == self.progress().rests_on or (isinstance(step, Replay) and id in step.ids)

    def lost_manual_edits(self) -> list[str]:
        """Return what was changed by hand in checkpoints that it has replayed, if nobody has chosen to lose that."""
        head, rests_on = self.head(), self.progress().rests_on
        drops = head.plan.drops if head is not None else []
        plans = RecordedPlans(self.live.ledger, self.record.origin).manual_edits()
        return list(list_manual_edits([plan for plan in plans if plan.id <= rests_on and plan.id not in drops]))

    def sinks_without_shadow(self) -> list[str]:
        """Return the sinks that have no shadow: their targets stay as they are."""
        return without_shadow(self.live.graph)

    def has_noted_all(self) -> bool:
        """Return whether its last checkpoint was planned after all that it is to read had been completed."""
        return self.backfill.has_read_all() and self.head() is not None

    def has_caught_up(self) -> bool:
        """Return whether it has read all that the pipeline has read by now, or as of the checkpoint at which it is to
        stop: by its log, and by each source's word."""
        if not self.has_noted_all():
            return False
        base = self.backfill.until or self.live.ledger.view().last_completed
        return not any(lagging_sources(self, self.head(), base))


def begin(
    live: Coordinator,
    name: str,
    origin: int,
    *,
    by: str,
    note: str = "",
    cuts: Cuts | None = None,
    drops_by_hand: bool = False,
) -> OpenBackfill:
    """Begin a line from checkpoint `origin` of the pipeline (0: from the beginning), or continue with an existing one
    of this name that began there. L1: pin, then check, then fork.

    cuts: how it cuts its input; None: as it did, or its own. drops_by_hand: what was changed by hand since is lost.
    """
    refuse_kind(live)
    check_name("backfill", name)
    ledger = live.ledger
    live_record = ledger.start()
    control.refuse_after_final_cancel(ledger, ledger.view())
    _refuse_second_backfill(ledger, name)
    record = ledger.line(name)
    if record is None:
        refuse_origin(ledger, origin)
        _refuse_unless_repeatable(live, origin, cuts or "own", drops_by_hand=drops_by_hand)
        record = ledger.create_line(_pinned(live, name, origin, by, note, cuts or "own"))
    if record.origin != origin:
        raise Rejected(
            f"backfill {name!r} of pipeline {ledger.pipeline!r} begins at checkpoint {record.origin}, not at {origin}",
            expected="a name for each backfill",
            help="choose another name, or leave out --from to continue",
            reason="NAME_TAKEN",
        )
    if cuts is not None and record.cuts != cuts:
        raise Rejected(
            f"backfill {name!r} of pipeline {ledger.pipeline!r} was begun with --cuts {record.cuts}, not {cuts}",
            expected="the same way to cut its input for all of a backfill",
            help="leave out --cuts to continue; or discard it, and begin another one",
            reason="NAME_TAKEN",
        )
    if ledger.line_discarded(name) is not None:  # since it was looked at; then nobody else lets go of a pin made later
        ledger.delete_pin(pin_owner(name))
    refuse_discarded(ledger, name)
    line = open_line(live, record, live_record.uid)
    line.backfill.drops_by_hand = drops_by_hand
    with reporting_discarded(ledger, name):
        if record.origin:
            snapshot = snapshot_at(ledger, record.origin, live.place.options, by=by, note=f"backfill {name}")
            fork(inspect_snapshot(snapshot, line.backfill), line.backfill)
        own_uid = line.backfill.ledger.start().uid
        _seed(line, live_record.uid, own_uid)
    return line


def open_line(live: Coordinator, record: BackfillRecord, uid: str | None = None) -> OpenBackfill:
    """Open a line that exists. uid: the pipeline's, if the caller has just read it."""
    uid = uid or live.ledger.start().uid
    graph = _graph_of_shadows(live.graph, uid, record.name)
    options = live.place.options
    ledger = folder_ledger(live.ledger.line_home(record.name), live.ledger.pipeline, options)
    return OpenBackfill(record, live, BackfillCoordinator(graph, ledger, live, record))


def refuse_discarded(ledger: Ledger, name: str) -> None:
    """Raise Rejected if the line has been discarded, or is being."""
    discarded = ledger.line_discarded(name)
    if discarded is not None:
        raise Rejected(
            f"backfill {name!r} of pipeline {ledger.pipeline!r} was discarded by {discarded.by}",
            expected="a backfill that is not discarded",
            help="begin another one, under another name",
            reason="LINE_DISCARDED",
        )


@contextlib.contextmanager
def reporting_discarded(ledger: Ledger, name: str) -> Iterator[None]:
    """Raise Rejected instead of what the block raises if somebody has discarded the line meanwhile: its records go, and
    whoever works on it sees half of them."""
    try:
        yield
    except (Corrupt, Invalid):
        refuse_discarded(ledger, name)
        raise


def pin_owner(name: str) -> str:
    """Return the owner of a line's pin."""
    return f"line-{name}"


class BackfillCoordinator(Coordinator):
    """The control plane of a line. It tells nobody outside how far it has come: sources are the pipeline's."""

    larger: int = 1
    """How many times as much as the sources' bounds allow one checkpoint may read."""

    until: Entry | None = None
    """The pipeline's checkpoint at which to stop, for a look. None: read all there is."""

    drops_by_hand: bool = False
    """A person has chosen that what was changed by hand since the line's origin is lost by its swap."""

    def __init__(self, graph: Graph, ledger: Ledger, live: PipelineContext, record: BackfillRecord) -> None:
        super().__init__(graph, ledger, live.settings, live.place)
        self._live = live
        self._record = record
        self._recorded = RecordedPlans(live.ledger, record.origin)
        self._synced: set[int] = set()
        """The live checkpoints whose decisions were made durable by now."""

    @property
    def subject(self) -> str:
        """See PipelineContext."""
        return f"backfill {self._record.name!r} of pipeline {self.graph.name!r}"

    @property
    def option(self) -> str:
        """See PipelineContext."""
        return f" --backfill {self._record.name}"

    @property
    def resuming(self) -> str:
        """See PipelineContext. To run it again resumes it."""
        return f"tidegate backfill MODULE:PIPELINE --name {self._record.name}"

    @property
    def finishes(self) -> bool:
        """See PipelineContext. The pipeline does, after the swap: until then its own checkpoints are still to come."""
        return False

    @property
    def cuts_freely(self) -> bool:
        """See PipelineContext."""
        return self._record.cuts != "recorded"

    @property
    def limits_jobs(self) -> bool:
        """See PipelineContext. Nothing waits for a line, and its checkpoints may be many times as large."""
        return False

    def source_context(self, name: str) -> SourceContext:
        """See PipelineContext."""
        context, until = super().source_context(name), planned_ranges(self.until).get(name)
        return replace(
            context,
            bound_factor=self.larger,
            stop_position=until.end if until is not None else None,
            blobs=ChainedBlobs(self.ledger, self._live.ledger),
        )

    def decided_beginning(self, source: str, behind: int) -> Beginning | None:
        """See PipelineContext. What the pipeline did not read before the line's origin begins where it began there:
        else a source that begins "now" would leave out all that the pipeline has read."""
        own = super().decided_beginning(source, behind)
        if own is not None:
            return own
        decided, recorded = self._live.ledger.beginning(source, self._record.origin), self._recorded
        if decided is None or recorded.missing() is not None:
            return decided
        # Where the pipeline has begun to read: somebody may have accepted that the source leads elsewhere before.
        ranges = [plan.sources[source] for plan in recorded.counting() if source in plan.sources]
        read = next((part.start for part in ranges if not part.empty), ranges[-1].end if ranges else None)
        return decided if read is None else msgspec.structs.replace(decided, at=read)

    def next_step(self) -> Replay | CaughtUp | Refuse | Swapped:
        """L2: return what is left to replay, if anything."""
        progress = backfill_progress(self._record, self.ledger)  # first: the live log must not be the older of the two
        view = view_from(self._live.ledger, progress)
        return on_replay(view, progress, *find_rollbacks(self._live.ledger))

    def refuse(self) -> Replay | CaughtUp:
        """Return the next step, or raise Rejected if the line is discarded or rests on what no longer counts."""
        name, ledger = self._record.name, self._live.ledger
        refuse_discarded(ledger, name)
        step = self.next_step()
        if isinstance(step, Swapped):
            raise Rejected(
                f"backfill {name!r} of pipeline {ledger.pipeline!r} was swapped in by entry {step.id}",
                expected="a backfill that is not over",
                help=f"to end it: tidegate backfill MODULE:PIPELINE --discard {name}",
                reason="LINE_SWAPPED",
            )
        if isinstance(step, Refuse):
            listed = f" (checkpoint {', '.join(map(str, step.ids))})" if step.ids else ""
            raise self._continuation_error(f"{step.why}{listed}")
        return step

    def _continuation_error(self, why: str) -> Rejected:
        name = self._record.name
        return Rejected(
            f"backfill {name!r} of pipeline {self._live.ledger.pipeline!r} cannot continue: {why}",
            expected="every checkpoint that it rests on to count",
            help=f"discard it, and begin another one: tidegate backfill MODULE:PIPELINE --discard {name}",
            reason="LINE_REFUSED",
        )

    def _plan(
        self,
        answer: CreateEntry,
        view: View,
        run: str,
        kind: str,
        wanted: WantedInterval | None,
        options: CheckpointOptions,
        looked: publish.Report | None,
    ) -> Plan:
        """Note what the pipeline has completed by now: the sources are asked after that."""
        step = self.refuse()
        if self.repeats_cuts and (missing := self._recorded.missing()) is not None:
            raise self._continuation_error(missing)
        below = view.get(answer.base)
        base = below.plan if below is not None else None
        ids = [id for id in step.ids if self._should_replay(id)] if isinstance(step, Replay) else []
        rests_on = base.replays[-1:] if base is not None else ()
        reached = rests_on[0] if rests_on else self._record.origin
        plans = self._recorded.between(reached, max(ids, default=0))
        cut = self._cut(plans, base) if plans else None
        # With recorded cuts it names nothing that it does not repeat: live may have gone back behind `ids` meanwhile.
        noted = list(rests_on) if self.repeats_cuts else ids or list(rests_on)
        replays = list(cut.ids) if cut is not None else noted
        for id in {*ids, *replays} - self._synced:
            self._live.ledger.sync_decision(id)  # W2
            self._synced.add(id)
        if self.repeats_cuts:
            options = self._repeating(options, [plan for plan in plans if cut is not None and plan.id in cut.ids])
        plan = super()._plan(answer, view, run, kind, wanted, options, looked)
        if self.repeats_cuts and cut is not None:
            clock = cut.clock
        elif self.repeats_cuts and base is not None:
            clock = base.time
        else:
            until = self.until.id if self.until is not None else None
            clock = self._recorded.clock(plan, base, self.graph, self.source_context, until)
        by_hand = [plan.id for plan in plans if plan.is_by_hand and cut is not None and plan.id in cut.ids]
        drops = [*(base.drops if base is not None else ()), *by_hand]
        return msgspec.structs.replace(plan, clock=clock, replays=replays, drops=drops)

    @property
    def repeats_cuts(self) -> bool:
        """True: each of its checkpoints has the ranges that a checkpoint of the pipeline has recorded."""
        return self._record.cuts == "recorded"

    def _cut(self, plans: Sequence[Plan], base: Plan | None) -> ReplayCut:
        """L2: return which live checkpoints the next one covers. Raise Rejected at a change by hand."""
        cut = on_cut(plans, base, recorded=self.repeats_cuts, drops=self.drops_by_hand)
        if isinstance(cut, ChangedByHand):
            changes = [each for plan in plans if plan.id in cut.ids for each in list_manual_edits([plan])]
            raise Rejected(
                "\n    ".join(
                    [
                        f"backfill {self._record.name!r} of pipeline {self._live.ledger.pipeline!r} comes to what "
                        "was changed by hand, and cannot do that again:",
                        *changes,
                    ]
                ),
                expected="a choice: the swap would lose it",
                help="to lose it: --drop-by-hand. Else discard the backfill, and begin after it",
                reason="CHANGED_BY_HAND",
            )
        return cut

    def _repeating(self, options: CheckpointOptions, plans: Sequence[Plan]) -> CheckpointOptions:
        """Return the options of a checkpoint that reads what the live one has read; nothing, if there is none."""
        repeated = next((plan for plan in plans if not plan.is_by_hand), None)
        if repeated is None:
            return replace(options, standing=True)
        for blob in sorted(side_files_of(repeated), key=lambda blob: blob.path):
            self.ledger.copy_blob(blob, self._live.ledger.get_blob(blob))
        requests = {gate: self._live.ledger.requests(gate) for gate in self._record.in_place}
        in_place = {
            gate: [each for each in requests[gate] if each.number in numbers]
            for gate, numbers in self._record.in_place.items()
        }
        quarantine = LiveQuarantine(self._live.ledger.home, self._record.origin, in_place)
        return replace(options, repeats=repeated, quarantine=quarantine)

    def has_no_new_input(self, plan: Plan, view: View) -> bool:
        """See Coordinator. A live checkpoint without input is repeated as well: time has passed in it."""
        base = view.get(plan.base)
        before = base.plan.replays if base is not None else []
        return super().has_no_new_input(plan, view) and (not self.repeats_cuts or plan.replays == before)

    def _carry_approvals(self, undecided: Undecided) -> bool:
        """See Coordinator. What a person has approved in the pipeline is approved if nothing about it is different."""
        entry, name = self.ledger.entry(undecided.id), self._live.ledger.pipeline
        answered = False
        for holding in undecided.holding if entry is not None else ():
            assert entry is not None
            carried = carried_answer(self._live.ledger, entry, holding)
            if carried is not None:
                id, answer = carried
                said = f": {answer.note}" if answer.note else ""
                note = f"the same rows as in checkpoint {id} of pipeline {name}{said}"[:1000]
                approvals.carry(self.ledger, undecided.id, holding, by=answer.by, note=note)
                answered = True
        return answered

    def has_read_all(self) -> bool:
        """Return whether its checkpoints have noted all that they are to read: nothing is left, or nothing of that."""
        step = self.refuse()
        return isinstance(step, CaughtUp) or not any(map(self._should_replay, step.ids))

    def _should_replay(self, id: int) -> bool:
        return self.until is None or id <= self.until.id

    def publish(self) -> publish.Report:
        return publish.publish_pending(self)

    def retire(self) -> list[int]:
        return retention.retire_old(self)


@dataclass(frozen=True)
class ChainedBlobs:
    """Side files of a line and of its pipeline: whose a position is, it does not say. New ones are the line's."""

    backfill: Ledger
    live: Ledger

    def put_blob(self, data: bytes) -> Blob:
        return self.backfill.put_blob(data)

    def get_blob(self, blob: Blob) -> bytes:
        there = self.backfill if self.backfill.store.read(blob.path) is not None else self.live
        return there.get_blob(blob)


def lagging_sources(line: OpenBackfill, head: Entry | None, base: Entry | None) -> Iterator[str]:
    """Yield the sources of which the pipeline has read more, as of `base`, than the line as of `head`."""
    ours, theirs = planned_ranges(head), planned_ranges(base)
    sources = line.live.graph.sources
    for name, part in theirs.items():
        if name not in sources:
            continue
        context = SourceContext(
            line.live.graph.name, name, line.live.place, ChainedBlobs(line.backfill.ledger, line.live.ledger)
        )
        if not sources[name].source.covers(ours[name].end if name in ours else None, part.end, context):
            yield name


def find_missing_inputs(line_origin: Entry | None, live: Coordinator) -> Iterator[str]:
    """Yield what cannot be read again of what the pipeline has read since a checkpoint."""
    last = live.ledger.view().last_completed
    starts, ends = planned_ranges(line_origin), planned_ranges(last)
    for name, sourcing in live.graph.sources.items():
        context = SourceContext(live.graph.name, name, live.place, ReadOnlyBlobs(live.ledger))
        start = starts[name].end if name in starts else None
        end = ends[name].end if name in ends else None
        for problem in sourcing.source.missing_input(start, end, context):
            yield f"source {name!r}: {problem}"


def without_shadow(graph: Graph) -> list[str]:
    """Return the sinks whose targets a backfill leaves as they are: no table of theirs can be put beside them."""
    return [name for name, sinking in graph.sinks.items() if sinking.sink.shadow("") is None]


def changes_since(live: Coordinator, origin: int) -> tuple[Entry | None, list[TableChange]]:
    """Return the checkpoint, and the way back of every table to it; for 0, to before the pipeline's first rows."""
    view = live.ledger.view(reach=origin or None)
    target = live.real_entry(origin) if origin else None
    base = view.last_completed
    if base is None:
        return target, []
    return target, list(table_changes(live, view, target, base, dict.fromkeys(without_shadow(live.graph), "keep")))


def _graph_of_shadows(graph: Graph, uid: str, name: str) -> Graph:
    """Return the graph with the shadows of its sinks; without hooks, which belong to the pipeline."""
    sinks = {}
    for sink_name, sinking in graph.sinks.items():
        shadow = sinking.sink.shadow(f"tidegate/{uid}-{sink_name}/{LINE}{name}")
        if shadow is not None:
            sinks[sink_name] = replace(sinking, sink=shadow)
    return replace(graph, sinks=sinks, hooks=(), hooks_elsewhere=True, on_suspended=())


def refuse_origin(ledger: Ledger, origin: int) -> None:
    """Raise Rejected if no backfill can begin after this checkpoint. 0, the beginning, is always one."""
    if not origin:
        return
    decision = ledger.decision(origin)
    if decision is None or decision.manifest is None:
        raise Rejected(
            f"checkpoint {origin} of pipeline {ledger.pipeline!r} is not there, or was not completed",
            expected="a completed checkpoint that is retained, or the beginning",
            help=f"`tidegate list {ledger.pipeline}` shows the choices; to compute everything again: --from beginning",
            reason="NO_SUCH_CHECKPOINT",
        )
    undone = rolled_back_by(origin, ledger.rollbacks())
    if undone is not None:
        raise Rejected(
            f"checkpoint {origin} of pipeline {ledger.pipeline!r} does not count any more: entry {undone} has gone "
            "back behind it",
            expected="a checkpoint that counts, or the beginning",
            help=f"begin at one before it, or after entry {undone}: `tidegate list {ledger.pipeline}` shows the "
            "choices",
            reason="DOES_NOT_COUNT",
        )


def _pinned(live: Coordinator, name: str, origin: int, by: str, note: str, cuts: Cuts) -> BackfillRecord:
    """Pin the checkpoint that the line begins with, check that it is retained, and return the line's record."""
    ledger = live.ledger
    pinned = origin or _lowest_completed(ledger)
    decision = ledger.decision(pinned) if pinned else None
    refuse_origin(ledger, origin)  # again: it may have been retired or gone back behind since `begin` looked
    if decision is not None and decision.manifest is not None:
        pin = Pin(
            **stamp(seams.new_id()),
            owner=pin_owner(name),
            kind="line",
            entry=pinned,
            manifest=decision.manifest,
            by=by,
            note=note,
        )
        existing = ledger.create_pin(pin).record
        if existing.entry != pinned:
            raise Rejected(
                f"backfill {name!r} of pipeline {ledger.pipeline!r} was to begin at checkpoint {existing.entry} before",
                expected="a name for each backfill",
                help=f"choose another name; --discard {name} lets go of that one",
                reason="NAME_TAKEN",
            )
        if origin and not ledger.is_retained(origin):  # the pin stays: another process may have begun the line by it
            raise _claimed(
                ledger, origin, f"choose another one, and another name; --discard {name} lets go of this one"
            )
        if cuts == "recorded":
            _refuse_retired(ledger, origin, name)
    return BackfillRecord(
        **stamp(seams.new_id()),
        name=name,
        uid=seams.new_id(),
        origin=origin,
        manifest=decision.manifest if origin and decision is not None else None,
        cuts=cuts,
        in_place=_in_place(live) if cuts == "recorded" else {},
        by=by,
        note=note,
    )


def _refuse_retired(ledger: Ledger, origin: int, name: str) -> None:
    """Raise Rejected if not every checkpoint since the origin is retained: one may have been retired between the look
    at what they had recorded and the pin. From the pin on none is."""
    recorded = RecordedPlans(ledger, origin)
    missing = recorded.missing()
    claimed = [plan.id for plan in recorded.counting() if not ledger.is_retained(plan.id)]
    if missing is None and not claimed:
        return
    what = missing or f"checkpoint {', '.join(map(str, claimed))} is claimed by retention"
    raise Rejected(
        f"pipeline {ledger.pipeline!r} cannot be backfilled: {what}: its recorded ranges are not known any more",
        expected="every checkpoint since it begins, retained, for --cuts recorded",
        help="begin after a later one, or with --cuts own, under another name; to let go of this one: "
        f"tidegate backfill MODULE:PIPELINE --discard {name}",
        reason="RETIRED",
    )


def _in_place(live: Coordinator) -> dict[str, list[int]]:
    """Return, by gate, the requests whose rows are to be let out where they were held back."""
    gates = [gated.name for gated in live.graph.gates if gated.quarantine]
    found = {gate: [request.number for request in requests_in_place(live.ledger, gate)] for gate in gates}
    return {gate: numbers for gate, numbers in found.items() if numbers}


def _claimed(ledger: Ledger, origin: int, help: str) -> Rejected:
    return Rejected(
        f"checkpoint {origin} of pipeline {ledger.pipeline!r} is claimed by retention",
        expected="a checkpoint that is retained",
        help=help,
        reason="RETIRED",
    )


def problems_of(live: Coordinator, origin: int, cuts: Cuts, *, drops_by_hand: bool) -> list[str]:
    """Return why no line can begin at checkpoint `origin`. Empty: it can."""
    if live.ledger.view().last_completed is None:
        return [_NOTHING_COMPLETED]
    target, changes = changes_since(live, origin)
    recorded = RecordedPlans(live.ledger, origin)
    problems = list(_moved_sources(live, origin)) or list(_unfit_origin(live, origin, cuts))
    problems += find_missing_inputs(target, live)
    problems += [f"table {change.table!r}: {problem}" for change in changes for problem in change.way.problems]
    if cuts == "recorded":
        problems += recorded.problems(live.graph.sources)
        problems += _lost_inputs(live, recorded)
    if not drops_by_hand:
        problems += list_manual_edits(recorded.manual_edits())
    return problems


def _moved_sources(live: Coordinator, origin: int) -> Iterator[str]:
    """Yield the sources that checkpoint `origin` knows by names that the code no longer has, since they were moved or
    dropped after it."""
    base = live.ledger.entry(origin) if origin else None
    missing = planned_ranges(base).keys() - live.graph.sources.keys()
    for change in source_changes(live.ledger.view(), base):
        if change.name in missing and change.position is None:
            what = f"moved to {change.to!r}" if change.to is not None else "dropped"
            yield (
                f"source {change.name!r} was {what} after checkpoint {origin}, which knows it by that name; the "
                "code does not: begin at a checkpoint that was made since, or from the beginning"
            )


def _unfit_origin(live: Coordinator, origin: int, cuts: Cuts) -> Iterator[str]:
    """Yield why no line can continue from checkpoint `origin` with this code: what would refuse one that has begun."""
    if not origin:
        return
    decision = live.ledger.decision(origin)
    manifest = decision.manifest if decision is not None else None
    record = BackfillRecord(
        **stamp(seams.new_id()), name="new", uid=seams.new_id(), origin=origin, manifest=manifest, cuts=cuts, by=""
    )
    try:
        inspect_snapshot(snapshot_at(live.ledger, origin, live.place.options, by=""), open_line(live, record).backfill)
    except (Invalid, Rejected) as error:
        yield error.what


def _lost_inputs(live: Coordinator, recorded: RecordedPlans) -> Iterator[str]:
    """Yield what operators and gates have looked up beside their streams, and a repeated checkpoint could not."""
    fixed: dict[str, dict[int, Payload]] = {}
    for plan in recorded.counting():
        if not plan.is_by_hand:
            for name, payload in plan.fixed_inputs.items():
                fixed.setdefault(name, {})[plan.id] = payload
    for stage in live.graph.stages:
        if stage.name in fixed and isinstance(stage, OperatorNode | GateNode):
            unpacked = {id: live.ledger.unpack(payload) for id, payload in fixed[stage.name].items()}
            context = SourceContext(live.graph.name, stage.name, live.place, ReadOnlyBlobs(live.ledger))
            if isinstance(stage, GateNode):
                what, problems = "gate", stage.gate.lost_inputs(unpacked, context)
            else:
                what, problems = "operator", stage.spec.inputs.lost_versions(unpacked, context)
            for problem in problems:
                yield f"{what} {stage.name!r}: {problem}"


def list_manual_edits(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield, for each checkpoint in which a person has changed a state, what and who."""
    for plan in plans:
        change = plan.by_hand
        if change is None:
            yield f"checkpoint {plan.id} was made by hand, by run {plan.run}, and no replay does that again"
            continue
        what = "edited the state of" if change.action == "edit" else "given history to"
        yield f"in checkpoint {plan.id} {change.by} has {what} operator {change.operator!r}: no replay does that again"


def _refuse_unless_repeatable(live: Coordinator, origin: int, cuts: Cuts, *, drops_by_hand: bool) -> None:
    try:
        problems = problems_of(live, origin, cuts, drops_by_hand=drops_by_hand)
    except Corrupt:
        if not origin or live.ledger.is_retained(origin):
            raise
        raise _claimed(live.ledger, origin, "choose another one") from None
    if problems:
        raise cannot_backfill(live.graph.name, problems)


def cannot_backfill(pipeline: str, problems: Sequence[str]) -> Rejected:
    """Return the refusal of a backfill, with all that stands in its way."""
    nothing_yet = list(problems) == [_NOTHING_COMPLETED]
    return Rejected(
        "\n    ".join([f"pipeline {pipeline!r} cannot be backfilled:", *problems]),
        expected="a pipeline that has completed a checkpoint" if nothing_yet else _EXPECTED,
        help="let it complete one: what it has not read yet, it reads with today's code" if nothing_yet else _WAYS_OUT,
        reason="CANNOT_BACKFILL",
    )


_NOTHING_COMPLETED = "it has completed no checkpoint yet: there is nothing to compute again"
_EXPECTED = (
    "all input since then, and tables that can return to what they were; for --cuts recorded, checkpoints that are "
    "retained, and the versions of tables that they have looked up; and nothing that was changed by hand"
)
_WAYS_OUT = (
    "begin elsewhere, put the input back, or give sources that read it from where it is now; where checkpoints are not "
    "retained, or versions of a table that is looked up are gone, use --cuts own, which looks it up as it is now; to "
    "lose what was changed by hand, --drop-by-hand"
)


def _lowest_completed(ledger: Ledger) -> int:
    """Return the lowest completed entry that is left; 0: there is none."""
    decisions = ((id, ledger.decision(id)) for id in ledger.ids())
    return next((id for id, decision in decisions if decision is not None and decision.manifest is not None), 0)


def _seed(line: OpenBackfill, uid: str, own_uid: str) -> None:
    """Make the shadows of the tables that exist, before the line's first checkpoint."""
    _, changes = changes_since(line.live, line.record.origin)
    since = {change.table: change.way.target_version for change in changes}
    contexts, own = (
        line.live.contexts(line.backfill.graph.sinks, uid),
        line.backfill.contexts(line.backfill.graph.sinks, own_uid),
    )
    for name, sinking in line.backfill.graph.sinks.items():
        line.live.graph.sinks[name].sink.create_shadow(sinking.sink, since.get(name), contexts[name], own[name])


def refuse_kind(live: Coordinator) -> None:
    """Raise Invalid for a pipeline that is computed again in another way, or not at all."""
    name = live.graph.name
    if live.graph.by_interval:
        raise Invalid(
            f"pipeline {name!r} reads by data interval: each interval can be computed again by itself",
            expected="a pipeline that reads whatever is new",
            help="`airflow backfill create` with reprocessing, or `tidegate run MODULE:PIPELINE --interval … "
            "--reprocess`",
            reason="BY_INTERVAL",
        )
    if live.settings.record().get("mode", MODES[0]) != MODES[0]:
        raise Invalid(
            f"pipeline {name!r} runs at least once: which of a table's rows were there as of a checkpoint is not known",
            expected="mode exactly_once",
            help='set mode = "exactly_once", or compute into new tables with a fork',
            reason="AT_LEAST_ONCE",
        )


def _refuse_second_backfill(ledger: Ledger, name: str) -> None:
    """Refuse to begin a second backfill. If two begin at the same moment, both are there, and each can continue: a
    backfill reads past the swap of another one."""
    others = [line.name for line in ledger.lines() if line.name != name]
    if others and ledger.line(name) is None:
        raise Rejected(
            f"pipeline {ledger.pipeline!r} has a backfill already: {', '.join(others)}",
            expected="one backfill at a time",
            help=f"swap it in or discard it first: tidegate backfill MODULE:PIPELINE --discard {others[0]}",
            reason="BACKFILL_IN_PROGRESS",
        )
    if ledger.line(name) is None and ledger.line_discarded(name) is not None:
        raise Rejected(
            f"backfill {name!r} of pipeline {ledger.pipeline!r} is over",
            expected="a name that no backfill has had",
            help="choose another name",
            reason="NAME_TAKEN",
        )
