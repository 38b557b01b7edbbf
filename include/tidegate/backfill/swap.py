"""Swap: one entry of the pipeline's log replaces its output with that of a backfill (L4 to L7).

    catch up   replay the checkpoints that the pipeline has completed since; for the last ones, the pipeline waits
    copy       states, quarantine and side files, under the backfill's names, which no record of the pipeline names
    pin        the backfill's origin and the pipeline's last checkpoint, which the backfill's own pin has spared so far
    entry      a rollback to the origin, created after all others are decided; then check for the backfill's tombstone
    copy       the acks of the backfill's head, into the entry's folder
    decide     THE commit point; before it nothing has changed
    publish    by any process, repeatably, like any other entry: each table by one commit

Afterwards the pipeline's former last checkpoint has a name (way_back.py), and a rollback to it works like any other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate import seams
from tidegate.backfill.open_backfill import OpenBackfill, changes_since, lagging_sources, reporting_discarded
from tidegate.backfill.way_back import create_undo_savepoint
from tidegate.checkpoint import approvals, suspension
from tidegate.checkpoint.compatibility import planned_ranges
from tidegate.checkpoint.planning import standing_ranges
from tidegate.checkpoint.publishing import publish
from tidegate.checkpoint.references import acks_of, blobs_within, memory_of
from tidegate.delta.files.copy import copy_files
from tidegate.errors import Corrupt, Rejected, TidegateError, Unavailable
from tidegate.execution.runs import abandoned_reason, new_run
from tidegate.gates.base import memory_key
from tidegate.gates.quarantine.table import QUARANTINE, QuarantineSink
from tidegate.history.backfill import find_rollbacks, view_from
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle import control
from tidegate.lifecycle.rollback import pin, unpin
from tidegate.lifecycle.rollback_preview import How, TableChange, undecided_choices
from tidegate.lifecycle.snapshot import state_location
from tidegate.protocol import backfill as backfill_rules
from tidegate.protocol import rules
from tidegate.protocol.clock import clock_of_swap
from tidegate.protocol.view import Entry, View
from tidegate.records import typed
from tidegate.records.codec import fingerprint
from tidegate.records.records import (
    Ack,
    Control,
    Decision,
    Handle,
    JobStats,
    Json,
    Manifest,
    Payload,
    Plan,
    Position,
    Range,
    Rollback,
    SwappedBackfill,
    TablePart,
)
from tidegate.state.record import StateTable
from tidegate.state.table import StateSink

__all__ = [
    "CompletedSwap",
    "SwapProposal",
    "examine_swap",
    "pause_pipeline",
    "release_pipeline",
    "released_on_failure",
    "swap",
]

_HOLDER = "backfill "
"""Prefix of the author of the suspension while a pipeline waits for a swap."""

_MAX_TRIES = 100
"""After losing this many races for the next number, the swap gives up."""


@dataclass(frozen=True)
class SwapProposal:
    """The effects of a swap, and every reason against it."""

    head: Entry | None
    """The backfill's last completed checkpoint, or None."""
    base: Entry | None
    """The pipeline's last completed checkpoint, which the swap undoes."""
    changes: tuple[TableChange, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class CompletedSwap:
    """A swap that is decided."""

    id: int
    savepoint: str | None
    """The name of the checkpoint before it. None if it could not be named, or the pipeline had none."""
    report: publish.Report | None
    """None if publishing failed in a way that needs a person, as `error` says. The swap is decided nevertheless."""
    error: TidegateError | None = None


def examine_swap(line: OpenBackfill, choices: Mapping[str, How]) -> SwapProposal:
    """Return the effects of a swap now. Touches nothing."""
    _, changes = changes_since(line.live, line.record.origin)
    chosen_changes = tuple(_chosen(change, choices) for change in changes)
    problems: list[str] = []
    for change in chosen_changes:
        problems += [*change.way.problems, *undecided_choices(change, choices)]
        if change.way.not_published_yet:
            problems.append(f"table {change.table!r} lacks checkpoint {line.record.origin}: run the pipeline first")
    if line.record.sample is not None:
        problems.append("it has read only a sample of the input: propose again without --sample")
    problems += line.lost_manual_edits()
    other_code = line.other_code()
    if other_code is not None:
        problems.append(other_code)
    head, base = line.head(), line.live.ledger.view().last_completed
    if head is None:
        problems.append("it has completed no checkpoint yet")
    elif head.manifest is not None and head.manifest.in_flight:
        problems.append(f"its checkpoint {head.id} overtook a busy job")
    elif line.backfill.ledger.published(head.id) is None:
        problems.append(f"its checkpoint {head.id} is not on all of its tables yet")
    return SwapProposal(head, base, chosen_changes, tuple(problems))


def pause_pipeline(line: OpenBackfill, wait: Callable[[str], None], run: str = "") -> None:
    """Suspend the pipeline until the swap, and wait until its planned checkpoints are decided. Repeatable.

    run: the run that swaps; by default this process. If it ends before the swap, any process may lift the suspension
        (`control.lift_abandoned`).
    """
    live = line.live
    suspended = live.suspended()
    # If another author has suspended it, nothing is planned anyway, and the backfill must not resume it later.
    if suspended is None or (suspended.cause == holder(line) and _is_of_another(live.ledger, suspended, run)):
        why = "its backfill reads the remaining input, and is then swapped in"
        control.suspend(live.ledger, holder(line), why, run or new_run())
    while True:
        view = live.ledger.view()
        still_open = list(view.still_open())
        if not still_open:
            return
        for entry in still_open:
            reason = abandoned_reason(entry.plan)
            live.complete(entry.id, (reason, "") if reason is not None else None)
        wait(_undecided_text(view, [entry.id for entry in still_open]))


def _is_of_another(ledger: Ledger, suspended: suspension.SuspensionState, run: str) -> bool:
    """Return whether an earlier attempt at the swap has suspended the pipeline, so that this one must do it itself."""
    plan = ledger.plan(suspended.entry) if suspended.entry is not None else None
    if plan is None:
        return False
    if run:
        return plan.run != run
    return abandoned_reason(plan) is not None


def release_pipeline(line: OpenBackfill, why: str) -> None:
    """Resume the pipeline, if it waits for this backfill."""
    live = line.live
    control.lift_suspension(live.ledger, live.settings.tolerable_failed_checkpoints, holder(line), why)


@contextlib.contextmanager
def released_on_failure(line: OpenBackfill) -> Iterator[None]:
    """Resume the pipeline if the block, which ends before the swap is decided, raises any error."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(TidegateError):
            release_pipeline(line, "it was not swapped in")
        raise


def holder(line: OpenBackfill) -> str:
    """Return the author of the suspension while the pipeline waits for the swap."""
    return f"{_HOLDER}{line.name}"


@dataclass(frozen=True)
class _SwapRequest:
    """The author of a swap, the reason, and the choices for tables to which other writers have committed."""

    by: str
    reason: str
    run: str
    choices: Mapping[str, How]


def swap(
    line: OpenBackfill,
    *,
    by: str,
    choices: Mapping[str, How],
    reason: str = "",
    wait: Callable[[str], None],
    run: str = "",
) -> CompletedSwap:
    """Swap the backfill in. It must have caught up. A repeated call continues; a backfill is swapped in once.

    run: the run that swaps; by default this process. If it ends before the decision, the pipeline's next run aborts the
    entry.

    Raise Rejected, with every reason, if the swap is impossible. Then nothing has changed.
    """
    request = _SwapRequest(by, reason, run or new_run(), choices)
    with reporting_discarded(line.live.ledger, line.name):
        return _swap(line, request, wait)


def _swap(line: OpenBackfill, request: _SwapRequest, wait: Callable[[str], None]) -> CompletedSwap:
    live, ledger = line.live, line.live.ledger
    for _ in range(_MAX_TRIES):
        progress = line.progress()
        view = view_from(ledger, progress)
        suspension.refuse_after_final_cancel(ledger, view)
        answer = backfill_rules.on_swap(view, progress, *find_rollbacks(ledger), _abandon_swap(view))
        if isinstance(answer, backfill_rules.Swapped):
            return _published(line, answer.id)
        line.backfill.refuse()
        if isinstance(answer, rules.Abort):
            live.abort(answer.id, answer.reason, answer.detail, counts=answer.counts)
        elif isinstance(answer, rules.Wait):
            wait(_undecided_text(view, answer.ids))
        elif isinstance(answer, backfill_rules.FillGap):
            _fill_gap(line, view)
        elif isinstance(answer, rules.CreateEntry):
            created = _create(line, answer, view, request)
            if created is not None:
                return _decide(line, created)
        else:
            raise Rejected(
                f"pipeline {ledger.pipeline!r} has completed checkpoints that backfill {line.name!r} has not read yet",
                expected="a backfill that has caught up",
                help="run the same command again: it continues reading",
                reason="NOT_CAUGHT_UP",
            )
    raise Unavailable(
        f"pipeline {ledger.pipeline!r} took every number before the swap could",
        help="swap again; `tidegate suspend` keeps new checkpoints from being planned",
        reason="CHECKPOINT_IN_PROGRESS",
    )


def _undecided_text(view: View, ids: Sequence[int]) -> str:
    """Describe which checkpoints a swap waits for, and which of them wait for a person."""
    if held := approvals.pending_approvals_text(view, ids):
        return held
    verb = "is" if len(ids) == 1 else "are"
    return f"checkpoint {', '.join(map(str, ids))} {verb} not decided yet"


def _fill_gap(line: OpenBackfill, view: View) -> None:
    """Take one number, so that the swap's is above all of the backfill's. The entry repeats the present suspension, or
    suspends for the backfill."""
    tolerable = line.live.settings.tolerable_failed_checkpoints
    current = suspension.inherited_suspension(view, tolerable)
    if current is None:
        why = "takes a number, so that the swap is above all of the backfill's"
        current = Control(action="suspend", by=holder(line), reason=why)
    control.create_entry_after(line.live.ledger, view, current)


def _abandon_swap(view: View) -> dict[int, str]:
    reasons = {}
    for entry in view.still_open():
        reason = abandoned_reason(entry.plan)
        if reason is not None:
            reasons[entry.id] = reason
    return reasons


def _chosen(change: TableChange, choices: Mapping[str, How]) -> TableChange:
    """Return the change with the choice for its table, if one was made."""
    how = choices.get(change.table)
    if how is None or change.method is None:
        return change
    return replace(change, method=how)


@dataclass(frozen=True)
class _Created:
    """The undecided entry of a swap, and its future content."""

    plan: Plan
    tables: dict[str, TablePart]
    positions: dict[str, Position]
    base: Entry | None


def _create(line: OpenBackfill, answer: rules.CreateEntry, view: View, request: _SwapRequest) -> _Created | None:
    """Copy the files that the entry will name, pin the entries that it rests on, and create it. None if another entry
    took the number."""
    live, ledger = line.live, line.live.ledger
    proposal = examine_swap(line, request.choices)
    problems = [*proposal.problems, *_uncovered(line, proposal)]
    if problems:
        raise Rejected(
            "\n    ".join([f"backfill {line.name!r} of pipeline {ledger.pipeline!r} cannot be swapped in:", *problems]),
            expected="tables that can return to where the backfill began, and a choice where others have committed",
            help="nothing has been changed; fix it, or choose per table: --discard-commits, --retract or --keep",
            reason="CANNOT_SWAP",
        )
    head = proposal.head
    assert head is not None
    assert head.manifest is not None
    assert head.decision is not None
    assert head.decision.manifest is not None
    base = view.get(answer.base)
    if base is not None and ledger.published(base.id) is None:
        publish.publish_or_wait(live)
        if ledger.published(base.id) is None:
            raise Rejected(
                f"checkpoint {base.id} of pipeline {ledger.pipeline!r} is not on all tables yet",
                expected="a pipeline whose completed checkpoints are on all tables, so that the swap can be undone",
                help="repair the table that refuses it, then swap again",
                reason="NOT_PUBLISHED",
            )
    committables = _copied(line, head, proposal.changes, answer.id)
    rollback = Rollback(
        target=line.record.origin,
        manifest=line.record.manifest,
        line=SwappedBackfill(
            name=line.name,
            uid=line.record.uid,
            head=head.id,
            manifest=head.decision.manifest,
            swapped_by=request.run,
        ),
        by=request.by,
        reason=request.reason,
        tables={change.table: change.restored for change in proposal.changes if change.restored is not None},
        suspended=suspension.inherited_suspension(view, live.settings.tolerable_failed_checkpoints, but=holder(line)),
    )
    sources = _sources(line, head)
    plan = _plan(line, answer, head, base, rollback, sources)
    pins = []
    if line.record.manifest is not None:
        pins.append(pin(ledger, plan, line.record.origin, line.record.manifest))
    if base is not None and base.decision is not None and base.decision.manifest is not None:
        pins.append(pin(ledger, plan, base.id, base.decision.manifest, "-base"))
    control.sync_below(ledger, view, 0)
    if not ledger.create_entry(plan).is_new or not live.abort_if_id_was_used(plan):
        unpin(ledger, *pins)
        return None
    # Until now the backfill's own pin has spared both. Without a tombstone, that pin still exists.
    if ledger.line_discarded(line.name) is not None:
        live.abort(plan.id, backfill_rules.LINE_DISCARDED)
        line.backfill.refuse()
    positions = {name: Position(kind=part.kind, at=part.end) for name, part in sources.items()}
    return _Created(plan, _tables(proposal, head, base, committables), positions, base)


def _decide(line: OpenBackfill, created: _Created) -> CompletedSwap:
    """Decide the swap. Its entry exists, so no lower entry changes any more. Another process may have aborted it."""
    ledger, plan = line.live.ledger, created.plan
    jobs = _acks(line, plan, created.base)
    ledger.index_run(plan)
    base = created.base
    if base is not None:
        ledger.sync_decision(base.id)
    manifest = Manifest(
        **stamp(seams.new_id()),
        id=plan.id,
        base=plan.base,
        base_manifest=base.decision.manifest if base is not None and base.decision is not None else None,
        positions=created.positions,
        jobs=jobs,
        tables=created.tables,
    )
    sha = ledger.create_manifest(manifest)
    decided = ledger.create_decision(
        Decision(**stamp(seams.new_id()), id=plan.id, outcome="completed", manifest=sha)
    ).record
    if decided.outcome != "completed":
        raise Rejected(
            f"swap {plan.id} of backfill {line.name!r} was ended before it was decided ({decided.reason})",
            help="nothing has been changed; swap again",
            reason="SWAP_ENDED",
        )
    return _published(line, plan.id)


def _published(line: OpenBackfill, id: int) -> CompletedSwap:
    """Name the checkpoint before the swap, and publish. Repeatable."""
    live, ledger = line.live, line.live.ledger
    plan = ledger.plan(id)
    name = create_undo_savepoint(ledger, plan) if plan is not None else None
    release_pipeline(line, "swapped in")
    try:
        report = publish.publish_pending(live)
    except TidegateError as error:
        return CompletedSwap(id, name, None, error)
    return CompletedSwap(id, name, report)


# -- the content of the entry ------------------------------------------------------------------------------


def _copied(line: OpenBackfill, head: Entry, changes: tuple[TableChange, ...], number: int) -> dict[str, Payload]:
    """Copy the files that swap `number` will name into the pipeline's own folders. Return the committables by table."""
    live, backfill = line.live, line.backfill
    since = {change.table: change.way.target_version for change in changes}
    unchanged_tables = {change.table for change in changes if change.method == "keep"}
    states: dict[str, Payload] = {}
    for ack in acks_of(backfill.ledger, head):
        states |= ack.states
    blobs = {payload.blob for payload in states.values() if payload.blob is not None}
    for part in planned_ranges(head).values():
        blobs.update(blobs_within(part.end))
    for blob in sorted(blobs, key=lambda blob: blob.path):
        live.ledger.copy_blob(blob, backfill.ledger.get_blob(blob))
    committables = {}
    live_contexts, backfill_contexts = live.contexts(live.graph.tables), backfill.contexts(backfill.graph.tables)
    for name, sinking in backfill.graph.tables.items():
        if name in unchanged_tables:
            continue
        real = live.graph.tables[name].sink
        if isinstance(real, StateSink):
            if name in states:
                _copy_state(line, name, states[name])
                committables[name] = states[name]
            continue
        live_context, backfill_context = live_contexts[name], backfill_contexts[name]
        if isinstance(real, QuarantineSink):
            requests_since = None
            if _has_new_requests(line, name, real.gate):
                requests_since = line.record.origin
            committable = real.promote_line_quarantine(
                live_context, backfill_context, since=requests_since, number=number
            )
        else:
            committable = real.promote_shadow(sinking.sink, since.get(name), live_context, backfill_context)
        if committable is not None:
            committables[name] = live.ledger.pack(committable, live.graph.parts)
    return committables


def _has_new_requests(line: OpenBackfill, name: str, gate: str) -> bool:
    """Return whether requests about rows of a quarantine were made since the backfill's origin."""
    origin_range = _ranges_of_origin(line).get(name)
    if origin_range is not None and origin_range.end is not None:
        after = origin_range.end["request"]
    else:
        after = 0
    return bool(line.live.ledger.requests(gate, after))


def _ranges_of_origin(line: OpenBackfill) -> dict[str, Range]:
    target = None
    if line.record.origin:
        target = line.live.ledger.plan(line.record.origin)
    if target is not None:
        return standing_ranges(target, {})
    return {}


def _copy_state(line: OpenBackfill, name: str, payload: Payload) -> None:
    table = typed.convert(line.backfill.ledger.unpack(payload), StateTable)
    options = line.live.place.options
    source = state_location(line.backfill.ledger.home, name, options)
    target = state_location(line.live.ledger.home, name, options)
    copy_files(source, target, [part.file.path for part in table.files])


def _tables(
    proposal: SwapProposal, head: Entry, base: Entry | None, committables: Mapping[str, Payload]
) -> dict[str, TablePart]:
    changes = {change.table: change for change in proposal.changes}
    before = base.manifest if base is not None else None
    assert head.manifest is not None
    names = list(before.tables) if before is not None else []
    names += head.manifest.tables
    tables = {}
    for name in dict.fromkeys(names):
        change = changes.get(name)
        restored = change.restored if change is not None else None
        after = None
        if before is not None and restored is None:
            after = rules.after_publish([before], name)
        tables[name] = TablePart(
            after=after, committables=[committables[name]] if name in committables else [], restore=restored
        )
    return tables


def _sources(line: OpenBackfill, head: Entry) -> dict[str, Range]:
    """Return the positions of the backfill's head. For requests about quarantined rows, return those of its origin, so
    that later requests are taken up again."""
    sources = {}
    for name, part in standing_ranges(head.plan, {}).items():
        if not name.startswith(QUARANTINE):
            sources[name] = part
    requests = {}
    for name, part in _ranges_of_origin(line).items():
        if name.startswith(QUARANTINE):
            requests[name] = part
    return sources | requests


def _uncovered(line: OpenBackfill, proposal: SwapProposal) -> Iterator[str]:
    """Yield the sources from which the pipeline has read more than the backfill: one listing may lag the other."""
    for name in lagging_sources(line, proposal.head, proposal.base):
        yield f"source {name!r}: the pipeline has read input that the backfill has not read yet: run it again"


def _acks(line: OpenBackfill, plan: Plan, base: Entry | None) -> dict[str, Handle]:
    """Copy the acks of the backfill's head into the entry's folder. Existing acks count. Gates keep their memory from
    the pipeline, because the next checkpoints are as large as its own."""
    head = line.head()
    assert head is not None
    assert plan.rollback is not None
    assert plan.rollback.line is not None
    if head.decision is None or head.decision.manifest != plan.rollback.line.manifest:
        raise Corrupt(
            f"backfill {line.name!r} has made checkpoints while it was swapped in",
            expected=f"checkpoint {plan.rollback.line.head} to be its last one",
            help="nothing is decided: swap again, and run only one process at a time for a backfill",
            reason="LINE_MOVED",
        )
    handles = {}
    if base is not None:
        live_memory = memory_of(acks_of(line.live.ledger, base))
    else:
        live_memory = {}
    gate_keys = {}
    for job in line.live.graph.jobs:
        gate_keys[job.name] = [memory_key(gated.name) for gated in job.gates]
    all_gate_keys = set(itertools.chain.from_iterable(gate_keys.values()))
    for ack in acks_of(line.backfill.ledger, head):
        memory = {name: value for name, value in ack.memory.items() if name not in all_gate_keys}
        for key in gate_keys.get(ack.job, ()):
            if key in live_memory:
                memory[key] = live_memory[key]
        copied = Ack(
            **stamp(f"{plan.attempt}-{seams.new_id()}"),
            id=plan.id,
            job=ack.job,
            prev=None,
            sinks={},
            states=ack.states,
            memory=memory,
            stats=JobStats(),
        )
        created = line.live.ledger.create_ack(copied)
        handles[ack.job] = Handle(entry=plan.id, sha=created.sha)
    return handles


def _plan(
    line: OpenBackfill,
    answer: rules.CreateEntry,
    head: Entry,
    base: Entry | None,
    rollback: Rollback,
    sources: dict[str, Range],
) -> Plan:
    """Return the plan of an entry that reads nothing and has no jobs: its content is that of the backfill's head."""
    live = line.live
    config: Json = live.settings.record()
    return Plan(
        **stamp(seams.new_id()),
        quotes_rows=False,
        id=answer.id,
        kind="restart",
        run=line.record.run,
        generation=answer.generation,
        base=answer.base,
        clock=clock_of_swap(head.plan, base.plan if base is not None else None),
        rollback=rollback,
        drain=head.plan.drain,
        reach=head.plan.reach,
        sources=sources,
        triggers=[],
        acks=[],
        commits=list(live.graph.tables),
        hooks=_states_of_hooks(line, base),
        timeout_s=live.settings.timeout,
        config=config,
        config_fingerprint=fingerprint(config),
        code_fingerprint=live.graph.code_fingerprint(),
    )


def _states_of_hooks(line: OpenBackfill, base: Entry | None) -> dict[str, Json]:
    """Return the states that hooks get back after the swap: those of the pipeline's last checkpoint, whose positions
    still apply, except for hooks that begin again at the backfill's origin."""
    last = base.plan.hooks if base is not None else {}
    target = None
    if line.record.origin:
        target = line.live.ledger.plan(line.record.origin)
    at_origin = target.hooks if target is not None else {}
    begin_again = {hook.name for hook in line.live.graph.hooks if hook.after_swap == "origin"}
    states = {name: state for name, state in last.items() if name not in begin_again}
    return states | {name: state for name, state in at_origin.items() if name in begin_again}
