"""A backfill: a fork of the pipeline inside the pipeline's folder, whose tables are shadows of the real ones.

Its checkpoints are ordinary ones in its own log. They write nothing of the pipeline, and nothing waits for them. It
reads the input independently, with its own positions. Each of its plans notes the pipeline's last completed checkpoint,
all of whose input it reads or has read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from tidegate import seams
from tidegate.backfill.carried import carried_answer
from tidegate.backfill.recorded import RecordedPlans, repeating
from tidegate.backfill.sampled import with_samples
from tidegate.checkpoint import approvals, suspension
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.quarantine_requests import requests_in_place
from tidegate.config.keys import MODES
from tidegate.connectors.delta.sink.shadow import LINE
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.connectors.source import ReadOnlyBlobs, SourceContext
from tidegate.coordinator import Coordinator
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.history.backfill import backfill_progress, find_rollbacks, view_from
from tidegate.ledger.ledger import Ledger, folder_ledger, stamp
from tidegate.lifecycle import retention
from tidegate.lifecycle.fork import fork, inspect_snapshot
from tidegate.lifecycle.rollback_preview import TableChange, table_changes
from tidegate.lifecycle.snapshot import checkpoint_snapshot
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
from tidegate.protocol.view import Entry, View, rollback_of
from tidegate.records.names import check_name
from tidegate.records.records import BackfillRecord, Beginning, Blob, KeySample, Payload, Pin, Plan, SourceSchema

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
    "refuse_second_backfill",
    "reporting_discarded",
    "without_shadow",
]


@dataclass(frozen=True)
class OpenBackfill:
    """A backfill that is open in this process."""

    record: BackfillRecord
    live: Coordinator
    backfill: BackfillCoordinator

    @property
    def name(self) -> str:
        return self.record.name

    def head(self) -> Entry | None:
        """Return the backfill's last completed checkpoint."""
        return self.backfill.ledger.view().last_completed

    def progress(self) -> BackfillProgress:
        """Return how far it has replayed."""
        return backfill_progress(self.record, self.backfill.ledger)

    def is_stop_candidate(self, id: int) -> bool:
        """Return whether the backfill can stop at this checkpoint of the pipeline."""
        step = self.backfill.next_step()
        return id == self.progress().rests_on or (isinstance(step, Replay) and id in step.ids)

    def lost_manual_edits(self) -> list[str]:
        """Return the changes by hand in replayed checkpoints that no person has chosen to lose."""
        head, rests_on = self.head(), self.progress().rests_on
        drops = head.plan.drops if head is not None else []
        plans = RecordedPlans(self.live.ledger, self.record.origin).manual_edits()
        return list(list_manual_edits([plan for plan in plans if plan.id <= rests_on and plan.id not in drops]))

    def other_code(self) -> str | None:
        """Return why the present code must not continue it, or None: of a proposal, what was reviewed is swapped in."""
        if self.record.purpose != "proposal":
            return None
        head, now = self.head(), self.backfill.graph.code_fingerprint()
        if head is None or head.plan.code_fingerprint in ("", now):
            return None
        return (
            f"proposal {self.name!r} of pipeline {self.live.ledger.pipeline!r} was made by other code "
            f"({head.plan.code_fingerprint[:12]}) than this ({now[:12]})"
        )

    def sinks_without_shadow(self) -> list[str]:
        """Return the sinks that have no shadow: their targets stay as they are."""
        return without_shadow(self.live.graph)

    def has_noted_all(self) -> bool:
        """Return whether its last checkpoint was planned after all live checkpoints to be replayed had completed."""
        return self.backfill.has_read_all() and self.head() is not None

    def has_caught_up(self) -> bool:
        """Return whether it has read all input that the pipeline has read, or had read as of the checkpoint at which to
        stop: according to its log, and to each source."""
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
    purpose: Literal["backfill", "proposal"] = "backfill",
    sample: KeySample | None = None,
) -> OpenBackfill:
    """Begin a backfill from checkpoint `origin` of the pipeline (0: from the beginning), or continue an existing one
    with this name and origin. L1: pin, then check, then fork.

    cuts: how it cuts its input; None: as before, or "own". drops_by_hand: later changes by hand may be lost. purpose:
    there may be any number of proposals, and they are in nobody's way. sample: of a proposal, the rows that it reads.
    """
    refuse_kind(live)
    check_name("backfill", name)
    ledger = live.ledger
    live_record = ledger.start()
    suspension.refuse_after_final_cancel(ledger, ledger.view())
    if purpose == "backfill":
        refuse_second_backfill(ledger, name)
    record = ledger.line(name)
    if record is None:
        refuse_origin(ledger, origin)
        _refuse_unless_repeatable(live, origin, cuts or "own", drops_by_hand=drops_by_hand)
        record = ledger.create_line(_pinned(live, name, origin, by, note, cuts or "own", purpose, sample))
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
            expected="the same --cuts for all of a backfill",
            help="omit --cuts to continue; or discard it, and begin another one",
            reason="NAME_TAKEN",
        )
    if ledger.line_discarded(name) is not None:  # just now: the discard may have missed a pin that was created later
        ledger.delete_pin(pin_owner(name))
    refuse_discarded(ledger, name)
    line = open_line(live, record, live_record.uid)
    line.backfill.drops_by_hand = drops_by_hand
    with reporting_discarded(ledger, name):
        if record.origin:
            snapshot = checkpoint_snapshot(ledger, record.origin, live.place.options, by=by, note=f"backfill {name}")
            fork(inspect_snapshot(snapshot, line.backfill), line.backfill)
        backfill_uid = line.backfill.ledger.start().uid
        _seed(line, live_record.uid, backfill_uid)
    return line


def open_line(live: Coordinator, record: BackfillRecord, uid: str | None = None) -> OpenBackfill:
    """Open an existing backfill. uid: the pipeline's, if the caller has just read it."""
    uid = uid or live.ledger.start().uid
    graph = with_samples(_graph_of_shadows(live.graph, uid, record.name), live.ledger, record)
    options = live.place.options
    ledger = folder_ledger(live.ledger.line_home(record.name), live.ledger.pipeline, options)
    return OpenBackfill(record, live, BackfillCoordinator(graph, ledger, live, record))


def refuse_discarded(ledger: Ledger, name: str) -> None:
    """Raise Rejected if the backfill is discarded, or is being discarded."""
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
    """Replace an error of the block by Rejected if the backfill has been discarded, because a process that works on it
    sees only some of its records."""
    try:
        yield
    except (Corrupt, Invalid):
        refuse_discarded(ledger, name)
        raise


def pin_owner(name: str) -> str:
    """Return the owner of a backfill's pin."""
    return f"line-{name}"


class BackfillCoordinator(Coordinator):
    """The control plane of a backfill. It sends no notices to sources: these belong to the pipeline."""

    larger: int = 1
    """The factor by which one checkpoint may exceed the sources' bounds."""

    until: Entry | None = None
    """The pipeline's checkpoint at which to stop, for inspection. None: read all input."""

    drops_by_hand: bool = False
    """True if a person has chosen to lose the changes by hand since the backfill's origin."""

    def __init__(self, graph: Graph, ledger: Ledger, live: PipelineContext, record: BackfillRecord) -> None:
        super().__init__(graph, ledger, live.settings, live.place)
        self._live = live
        self._record = record
        self._recorded = RecordedPlans(live.ledger, record.origin)
        self._synced: set[int] = set()
        """The live checkpoints whose decisions are known to be durable."""

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
        """See PipelineContext. Running it again resumes it."""
        return f"tidegate backfill MODULE:PIPELINE --name {self._record.name}"

    @property
    def finishes(self) -> bool:
        """See PipelineContext. Only the pipeline itself finishes, after the swap."""
        return False

    @property
    def cuts_freely(self) -> bool:
        """See PipelineContext."""
        return self._record.cuts != "recorded"

    @property
    def limits_jobs(self) -> bool:
        """See PipelineContext. Nothing waits for a backfill, and its checkpoints may be many times as large."""
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

    def initial_schema(self, source: str) -> SourceSchema | None:
        """See PipelineContext. A backfill that cuts its input by itself knows the columns that the pipeline has by now,
        so that all rows have them. One that repeats cuts reads as the past did."""
        if self.repeats_cuts:
            return None
        newest = self.until or self._live.ledger.view().last_completed
        part = newest.plan.sources.get(source) if newest is not None else None
        return part.schema if part is not None else None

    def decided_beginning(self, source: str, behind: int) -> Beginning | None:
        """See PipelineContext. A source that the pipeline had not read before the backfill's origin begins where the
        pipeline began to read it. Otherwise a source that begins "now" would skip all input that the pipeline has
        read."""
        own_beginning = super().decided_beginning(source, behind)
        if own_beginning is not None:
            return own_beginning
        decided, recorded = self._live.ledger.beginning(source, self._record.origin), self._recorded
        if decided is None or recorded.missing() is not None:
            return decided
        # The pipeline may have begun elsewhere than decided, if a person accepted another system for the source.
        position = None
        for plan in recorded.counting():
            part = plan.sources.get(source)
            if part is None:
                continue
            if not part.empty:
                position = part.start
                break
            position = part.end
        if position is None:
            return decided
        return msgspec.structs.replace(decided, at=position)

    def next_step(self) -> Replay | CaughtUp | Refuse | Swapped:
        """L2: return the next step: the live checkpoints to replay, if any."""
        progress = backfill_progress(self._record, self.ledger)  # before the live log, which must not be the older one
        view = view_from(self._live.ledger, progress)
        return on_replay(view, progress, *find_rollbacks(self._live.ledger))

    def refuse(self) -> Replay | CaughtUp:
        """Return the next step. Raise Rejected if the backfill is discarded, or rests on a checkpoint that no longer
        counts."""
        name, ledger = self._record.name, self._live.ledger
        refuse_discarded(ledger, name)
        step = self.next_step()
        if isinstance(step, Swapped):
            raise Rejected(
                f"backfill {name!r} of pipeline {ledger.pipeline!r} was swapped in by entry {step.id}",
                expected="a backfill that has not ended",
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
        """Plan a checkpoint that notes the pipeline's completed checkpoints. The sources are asked after these are
        read."""
        step = self.refuse()
        if self.repeats_cuts and (missing := self._recorded.missing()) is not None:
            raise self._continuation_error(missing)
        below = view.get(answer.base)
        base = below.plan if below is not None else None
        pending = [id for id in step.ids if self._should_replay(id)] if isinstance(step, Replay) else []
        last_replayed = list(base.replays[-1:]) if base is not None else []
        reached = last_replayed[0] if last_replayed else self._record.origin
        plans = self._recorded.between(reached, max(pending, default=0))
        cut = self._cut(plans, base) if plans else None
        covered = [plan for plan in plans if cut is not None and plan.id in cut.ids]
        if cut is not None:
            replays = list(cut.ids)
        elif self.repeats_cuts:
            # It names nothing that it does not repeat: live may have rolled back the pending ones since.
            replays = last_replayed
        else:
            replays = pending or last_replayed
        for id in {*pending, *replays} - self._synced:
            self._live.ledger.sync_decision(id)  # W2
            self._synced.add(id)
        if self.repeats_cuts:
            options = self._repeating(options, covered)
        plan = super()._plan(answer, view, run, kind, wanted, options, looked)
        if self.repeats_cuts and cut is not None:
            clock = cut.clock
        elif self.repeats_cuts and base is not None:
            clock = base.time
        else:
            until = self.until.id if self.until is not None else None
            clock = self._recorded.clock(plan, base, self.graph, self.source_context, until)
        drops = list(base.drops) if base is not None else []
        drops += [plan.id for plan in covered if plan.is_manual_edit]
        return msgspec.structs.replace(plan, clock=clock, replays=replays, drops=drops)

    @property
    def repeats_cuts(self) -> bool:
        """True if each of its checkpoints has the recorded ranges of a checkpoint of the pipeline."""
        return self._record.cuts == "recorded"

    def _cut(self, plans: Sequence[Plan], base: Plan | None) -> ReplayCut:
        """L2: return which live checkpoints the next one covers. Raise Rejected at a change by hand."""
        cut = on_cut(plans, base, recorded=self.repeats_cuts, drops=self.drops_by_hand)
        if isinstance(cut, ChangedByHand):
            head = (
                f"backfill {self._record.name!r} of pipeline {self._live.ledger.pipeline!r} has reached changes that "
                "were made by hand, and cannot repeat them:"
            )
            changes = list_manual_edits([plan for plan in plans if plan.id in cut.ids])
            raise Rejected(
                "\n    ".join([head, *changes]),
                expected="a choice: the swap would lose them",
                help="to lose them: --drop-by-hand. Otherwise discard the backfill, and begin after them",
                reason="CHANGED_BY_HAND",
            )
        return cut

    def _repeating(self, options: CheckpointOptions, plans: Sequence[Plan]) -> CheckpointOptions:
        """Return the options of a checkpoint that reads the same input as the live one among these, or nothing."""
        repeated = next((plan for plan in plans if not plan.is_manual_edit), None)
        in_place = {}
        for gate, numbers in self._record.in_place.items():
            requests = self._live.ledger.requests(gate)
            in_place[gate] = [request for request in requests if request.number in numbers]
        return repeating(options, repeated, self.ledger, self._live.ledger, self._record.origin, in_place)

    def has_no_new_input(self, plan: Plan, view: View) -> bool:
        """See Coordinator. A live checkpoint without input is repeated as well, because time passes in it."""
        if not super().has_no_new_input(plan, view):
            return False
        base = view.get(plan.base)
        base_replays = base.plan.replays if base is not None else []
        return not self.repeats_cuts or plan.replays == base_replays

    def _carry_approvals(self, undecided: Undecided) -> bool:
        """See Coordinator. A person's approval in the pipeline carries over to identical rows and rules."""
        entry, name = self.ledger.entry(undecided.id), self._live.ledger.pipeline
        if entry is None:
            return False
        answered = False
        for holding in undecided.holding:
            carried = carried_answer(self._live.ledger, entry, holding)
            if carried is not None:
                id, answer = carried
                note = f"the same rows as in checkpoint {id} of pipeline {name}"
                if answer.note:
                    note += f": {answer.note}"
                approvals.carry(self.ledger, undecided.id, holding, by=answer.by, note=note[:1000])
                answered = True
        return answered

    def has_read_all(self) -> bool:
        """Return whether its plans have noted all live checkpoints that they are to replay."""
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
    """The side files of a backfill and of its pipeline, since positions may refer to either. New ones are the
    backfill's."""

    backfill: Ledger
    live: Ledger

    def put_blob(self, data: bytes) -> Blob:
        return self.backfill.put_blob(data)

    def get_blob(self, blob: Blob) -> bytes:
        ledger = self.backfill if self.backfill.store.read(blob.path) is not None else self.live
        return ledger.get_blob(blob)


def lagging_sources(line: OpenBackfill, head: Entry | None, base: Entry | None) -> Iterator[str]:
    """Yield the sources from which the pipeline has read more, as of `base`, than the backfill as of `head`."""
    backfill_ranges, live_ranges = planned_ranges(head), planned_ranges(base)
    sources = line.live.graph.sources
    blobs = ChainedBlobs(line.backfill.ledger, line.live.ledger)
    for name, live_range in live_ranges.items():
        if name not in sources:
            continue
        context = SourceContext(line.live.graph.name, name, line.live.place, blobs)
        backfill_end = backfill_ranges[name].end if name in backfill_ranges else None
        if not sources[name].source.covers(backfill_end, live_range.end, context):
            yield name


def find_missing_inputs(line_origin: Entry | None, live: PipelineContext) -> Iterator[str]:
    """Yield the input that the pipeline has read since a checkpoint, and that cannot be read again."""
    last = live.ledger.view().last_completed
    starts, ends = planned_ranges(line_origin), planned_ranges(last)
    for name, sourcing in live.graph.sources.items():
        context = SourceContext(live.graph.name, name, live.place, ReadOnlyBlobs(live.ledger))
        start = starts[name].end if name in starts else None
        end = ends[name].end if name in ends else None
        for problem in sourcing.source.missing_input(start, end, context):
            yield f"source {name!r}: {problem}"


def without_shadow(graph: Graph) -> list[str]:
    """Return the sinks whose targets a backfill does not change, because they cannot have a shadow table."""
    return [name for name, sinking in graph.sinks.items() if sinking.sink.shadow("") is None]


def changes_since(live: PipelineContext, origin: int) -> tuple[Entry | None, list[TableChange]]:
    """Return the checkpoint, and the change that restores each table to it; for 0, to before the pipeline's first
    rows."""
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
    return replace(graph, sinks=sinks, hooks=(), hooks_elsewhere=True, on_suspended=(), promises={})


def _shadow_folders(live: PipelineContext, name: str) -> dict[str, str]:
    """Return where the shadow of each sink is."""
    shadows = _graph_of_shadows(live.graph, live.ledger.start().uid, name).sinks
    contexts = live.contexts(shadows)
    return {
        sink: node.sink.delta_table(contexts[sink]).url
        for sink, node in shadows.items()
        if isinstance(node.sink, DeltaSink)
    }


def refuse_origin(ledger: Ledger, origin: int) -> None:
    """Raise Rejected if no backfill can begin after this checkpoint. 0, the beginning, is always possible."""
    if not origin:
        return
    decision = ledger.decision(origin)
    if decision is None or decision.manifest is None:
        raise Rejected(
            f"checkpoint {origin} of pipeline {ledger.pipeline!r} does not exist, or was not completed",
            expected="a completed checkpoint that is retained, or the beginning",
            help=f"`tidegate list {ledger.pipeline}` shows the choices; to compute everything again: --from beginning",
            reason="NO_SUCH_CHECKPOINT",
        )
    undone = rollback_of(origin, ledger.rollbacks())
    if undone is not None:
        raise Rejected(
            f"checkpoint {origin} of pipeline {ledger.pipeline!r} does not count any more: entry {undone} has undone "
            "it",
            expected="a checkpoint that counts, or the beginning",
            help=f"begin at one before it, or after entry {undone}: `tidegate list {ledger.pipeline}` shows the "
            "choices",
            reason="DOES_NOT_COUNT",
        )


def _pinned(
    live: PipelineContext,
    name: str,
    origin: int,
    by: str,
    note: str,
    cuts: Cuts,
    purpose: Literal["backfill", "proposal"],
    sample: KeySample | None,
) -> BackfillRecord:
    """Pin the checkpoint that the backfill begins with, check that it is retained, and return the backfill's record."""
    ledger = live.ledger
    pinned = origin or _lowest_completed(ledger)
    decision = ledger.decision(pinned) if pinned else None
    refuse_origin(ledger, origin)  # again: it may have been retired or undone since `begin` checked it
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
                expected="a new name for each backfill",
                help=f"choose another name; --discard {name} discards that one",
                reason="NAME_TAKEN",
            )
        if origin and not ledger.is_retained(origin):  # the pin stays: another process may have begun with it
            raise _claimed(ledger, origin, f"choose another one, and another name; --discard {name} discards this one")
        if cuts == "recorded":
            _refuse_retired(ledger, origin, name)
    return BackfillRecord(
        **stamp(seams.new_id()),
        name=name,
        uid=seams.new_id(),
        origin=origin,
        manifest=decision.manifest if origin and decision is not None else None,
        cuts=cuts,
        in_place=_in_place(live) if cuts == "recorded" and purpose == "backfill" else {},
        purpose=purpose,
        sample=sample,
        shadows=_shadow_folders(live, name) if purpose == "proposal" else {},
        by=by,
        note=note,
    )


def _refuse_retired(ledger: Ledger, origin: int, name: str) -> None:
    """Raise Rejected if not every checkpoint since the origin is retained: one may have been retired between the first
    check and the pin. The pin spares them from then on."""
    recorded = RecordedPlans(ledger, origin)
    problem = recorded.missing()
    claimed = [str(plan.id) for plan in recorded.counting() if not ledger.is_retained(plan.id)]
    if problem is None and claimed:
        problem = f"checkpoint {', '.join(claimed)} is claimed by retention"
    if problem is None:
        return
    raise Rejected(
        f"pipeline {ledger.pipeline!r} cannot be backfilled: {problem}: its recorded ranges are not known any more",
        expected="every checkpoint since its origin, retained, for --cuts recorded",
        help="begin after a later one, or with --cuts own, under another name; to discard this one: "
        f"tidegate backfill MODULE:PIPELINE --discard {name}",
        reason="RETIRED",
    )


def _in_place(live: PipelineContext) -> dict[str, list[int]]:
    """Return, by gate, the requests whose rows are to be released in place."""
    requests = {}
    for gated in live.graph.gates:
        if gated.quarantine:
            numbers = [request.number for request in requests_in_place(live.ledger, gated.name)]
            if numbers:
                requests[gated.name] = numbers
    return requests


def _claimed(ledger: Ledger, origin: int, help: str) -> Rejected:
    return Rejected(
        f"checkpoint {origin} of pipeline {ledger.pipeline!r} is claimed by retention",
        expected="a checkpoint that is retained",
        help=help,
        reason="RETIRED",
    )


def problems_of(live: Coordinator, origin: int, cuts: Cuts, *, drops_by_hand: bool) -> list[str]:
    """Return why no backfill can begin at checkpoint `origin`, or an empty list."""
    if live.ledger.view().last_completed is None:
        return [_NOTHING_COMPLETED]
    target, changes = changes_since(live, origin)
    recorded = RecordedPlans(live.ledger, origin)
    problems = list(_moved_sources(live, origin)) or list(_unfit_origin(live, origin, cuts))
    problems += find_missing_inputs(target, live)
    for change in changes:
        problems += [f"table {change.table!r}: {problem}" for problem in change.way.problems]
    if cuts == "recorded":
        problems += recorded.problems(live.graph.sources)
        problems += _lost_inputs(live, recorded)
    if not drops_by_hand:
        problems += list_manual_edits(recorded.manual_edits())
    return problems


def _moved_sources(live: PipelineContext, origin: int) -> Iterator[str]:
    """Yield the sources of checkpoint `origin` that the code no longer has under those names, because they were moved
    or dropped after it."""
    base = live.ledger.entry(origin) if origin else None
    missing = planned_ranges(base).keys() - live.graph.sources.keys()
    for change in source_changes(live.ledger.view(), base):
        if change.name in missing and change.position is None:
            action = f"moved to {change.to!r}" if change.to is not None else "dropped"
            yield (
                f"source {change.name!r} was {action} after checkpoint {origin}, which has it under that name; the "
                "code does not: begin at a later checkpoint, or from the beginning"
            )


def _unfit_origin(live: Coordinator, origin: int, cuts: Cuts) -> Iterator[str]:
    """Yield why a backfill cannot continue from checkpoint `origin` with this code."""
    if not origin:
        return
    decision = live.ledger.decision(origin)
    manifest = decision.manifest if decision is not None else None
    record = BackfillRecord(
        **stamp(seams.new_id()), name="new", uid=seams.new_id(), origin=origin, manifest=manifest, cuts=cuts, by=""
    )
    try:
        inspect_snapshot(
            checkpoint_snapshot(live.ledger, origin, live.place.options, by=""), open_line(live, record).backfill
        )
    except (Invalid, Rejected) as error:
        yield error.what


def _lost_inputs(live: PipelineContext, recorded: RecordedPlans) -> Iterator[str]:
    """Yield the additional inputs of operators and gates that a repeated checkpoint could no longer read."""
    fixed: dict[str, dict[int, Payload]] = {}
    for plan in recorded.counting():
        if not plan.is_manual_edit:
            for name, payload in plan.fixed_inputs.items():
                fixed.setdefault(name, {})[plan.id] = payload
    for stage in live.graph.stages:
        if stage.name in fixed and isinstance(stage, OperatorNode | GateNode):
            unpacked = {id: live.ledger.unpack(payload) for id, payload in fixed[stage.name].items()}
            context = SourceContext(live.graph.name, stage.name, live.place, ReadOnlyBlobs(live.ledger))
            if isinstance(stage, GateNode):
                kind, problems = "gate", stage.gate.lost_inputs(unpacked, context)
            else:
                kind, problems = "operator", stage.spec.inputs.lost_versions(unpacked, context)
            for problem in problems:
                yield f"{kind} {stage.name!r}: {problem}"


def list_manual_edits(plans: Sequence[Plan]) -> Iterator[str]:
    """Describe each checkpoint in which a person has changed a state."""
    for plan in plans:
        change = plan.by_hand
        if change is None:
            yield f"checkpoint {plan.id} was made by hand, by run {plan.run}, which no replay repeats"
            continue
        if change.action == "divert":
            yield f"in checkpoint {plan.id} {change.by} diverted rows from {change.operator!r}, which no replay repeats"
            continue
        action = "edited the state of" if change.action == "edit" else "loaded history into"
        yield f"in checkpoint {plan.id} {change.by} {action} operator {change.operator!r}, which no replay repeats"


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
    """Return the refusal of a backfill, with all reasons."""
    expected, help = _EXPECTED, _WAYS_OUT
    if list(problems) == [_NOTHING_COMPLETED]:
        expected = "a pipeline that has completed a checkpoint"
        help = "let it complete one: input that it has not read yet, it reads with today's code"
    return Rejected(
        "\n    ".join([f"pipeline {pipeline!r} cannot be backfilled:", *problems]),
        expected=expected,
        help=help,
        reason="CANNOT_BACKFILL",
    )


_NOTHING_COMPLETED = "it has completed no checkpoint yet: it has nothing to compute again"
_EXPECTED = (
    "all input since then, and tables that can return to an earlier version; for --cuts recorded, checkpoints that are "
    "retained, and the versions of tables that they have looked up; and no changes by hand"
)
_WAYS_OUT = (
    "begin elsewhere, put the input back, or use sources that read it from its present place; where checkpoints are "
    "not retained, or versions of a looked-up table are missing, use --cuts own, which looks up its present version; "
    "to lose changes by hand, use --drop-by-hand"
)


def _lowest_completed(ledger: Ledger) -> int:
    """Return the lowest completed entry that still exists, or 0."""
    for id in ledger.ids():
        decision = ledger.decision(id)
        if decision is not None and decision.manifest is not None:
            return id
    return 0


def _seed(line: OpenBackfill, uid: str, backfill_uid: str) -> None:
    """Create the shadows of the existing tables, before the backfill's first checkpoint."""
    _, changes = changes_since(line.live, line.record.origin)
    since = {change.table: change.way.target_version for change in changes}
    sinks = line.backfill.graph.sinks
    live_contexts = line.live.contexts(sinks, uid)
    backfill_contexts = line.backfill.contexts(sinks, backfill_uid)
    for name, sinking in sinks.items():
        real = line.live.graph.sinks[name].sink
        real.create_shadow(sinking.sink, since.get(name), live_contexts[name], backfill_contexts[name])


def refuse_kind(live: PipelineContext) -> None:
    """Raise Invalid for a pipeline that cannot be backfilled, because of its kind or mode."""
    name = live.graph.name
    if live.graph.by_interval:
        raise Invalid(
            f"pipeline {name!r} reads by data interval: each interval can be computed again by itself",
            expected="a pipeline that reads all new input",
            help="`airflow backfill create` with reprocessing, or `tidegate run MODULE:PIPELINE --interval … "
            "--reprocess`",
            reason="BY_INTERVAL",
        )
    if live.settings.record().get("mode", MODES[0]) != MODES[0]:
        raise Invalid(
            f"pipeline {name!r} runs at least once: the rows of its tables as of a checkpoint are not known",
            expected="mode exactly_once",
            help='set mode = "exactly_once", or compute into new tables with a fork',
            reason="AT_LEAST_ONCE",
        )


def refuse_second_backfill(ledger: Ledger, name: str | None) -> None:
    """Refuse to begin a second backfill. If two begin at the same moment, both exist, and each can continue: a backfill
    reads past the swap of another one.

    name: its name, if it has one already.
    """
    has_begun = name is not None and ledger.line(name) is not None
    existing = [line.name for line in ledger.backfills() if line.name != name]
    if existing and not has_begun:
        raise Rejected(
            f"pipeline {ledger.pipeline!r} has a backfill already: {', '.join(existing)}",
            expected="one backfill at a time",
            help=f"swap it in or discard it first, on the pipeline's page Checkpoints, or by `tidegate backfill "
            f"MODULE:PIPELINE --discard {existing[0]}`",
            reason="BACKFILL_IN_PROGRESS",
        )
    if name is not None and not has_begun and ledger.line_discarded(name) is not None:
        raise Rejected(
            f"backfill {name!r} of pipeline {ledger.pipeline!r} has ended",
            expected="a name that no backfill has had",
            help="choose another name",
            reason="NAME_TAKEN",
        )
