"""Fork: a new pipeline that starts from a checkpoint of another one, and is independent from then on.

    inspect   check every reason against it; nothing is touched
    claim     forking.json in the new pipeline's folder: its uid, and its origin
    pin       the checkpoint in its own pipeline; then check whether retention was faster
    copy      side files and files of states, under their own names
    records   the new log's first entry, under the same number: a checkpoint that read nothing, and acked the copies
    publish   the tables of states
    begin     pipeline.json: THE commit point; before it the new pipeline does not exist, and the claim says why

Everything is copied, nothing is shared. So the new pipeline does not need the old one once it exists, and neither can
affect the other by what it does, loses or deletes. The cost is one copy of the state.

The new log looks like one whose older entries are retired, so the protocol needs no rule for forks. It begins with the
number of the checkpoint, because rows of states carry the number of the checkpoint that wrote them, and the highest
counts. Each step can be interrupted: a repeated fork repeats it, and uses the existing files as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from tidegate import seams
from tidegate.checkpoint.compatibility import find_unused_hooks, planned_ranges, refusals, refuse
from tidegate.checkpoint.manifests import manifest_of
from tidegate.checkpoint.planning import standing_ranges
from tidegate.checkpoint.references import memory_of
from tidegate.connectors.sink import Publication, Sink, SinkContext
from tidegate.connectors.transactional import TransactionalSink
from tidegate.delta.files.copy import copy_files
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger, folder_ledger, stamp
from tidegate.lifecycle.copies import Copied, claim, refuse_claimed, remove
from tidegate.lifecycle.snapshot import (
    DONE,
    CheckpointSnapshot,
    refuse_damage,
    refuse_retired,
    reporting_retired,
    state_location,
)
from tidegate.pipeline.graph.jobs import share_of
from tidegate.protocol import rules
from tidegate.protocol.view import Acked, Entry
from tidegate.records.codec import fingerprint
from tidegate.records.records import (
    Ack,
    Decision,
    JobStats,
    LatestHint,
    Origin,
    Pin,
    PipelineRecord,
    Plan,
    Published,
    PublishedTable,
    Restored,
)
from tidegate.state.table import STATE, state_sink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["fork", "forked_already", "inherited_tables", "inspect_snapshot"]


def inspect_snapshot(snapshot: CheckpointSnapshot, to: PipelineContext) -> CheckpointSnapshot:
    """Return the snapshot from which the new pipeline would start, or raise all reasons against it. Touches nothing."""
    _refuse_same(snapshot.parent, to)
    _refuse_finished(snapshot)
    with reporting_retired(snapshot.parent, snapshot.entry.id):
        errors = refusals(to.graph, snapshot.parent, to.settings.record(), snapshot.entry, forks=True)
        refuse(list(errors), snapshot.entry.id)
        states = {}
        for name, payload in snapshot.states.items():
            if name in to.graph.tables:
                states[name] = payload
        declared = replace(snapshot, states=states)
        refuse_damage(declared)
        _refuse_their_tables(declared, to)
    return declared


def fork(
    snapshot: CheckpointSnapshot,
    to: PipelineContext,
    copied: Copied | None = None,
    *,
    claims: bool = False,
    pins: bool = True,
) -> PipelineRecord:
    """Create the pipeline of `to` from a snapshot that `inspect_snapshot` returned. Repeated for the same
    checkpoint, it continues.

    copied: the folder with the checkpoint, if it is a copy. claims: the new pipeline owns that folder and removes it;
    otherwise it is not touched. pins: False writes nothing to the old pipeline; if retention is
    faster, the fork fails.
    """
    claimed = _claim(to.ledger, snapshot.origin)
    try:
        spared = _spare(snapshot, claimed, copied, claims=claims) if pins else None
    except Rejected:
        to.ledger.release_claim()
        raise
    if to.ledger.identity_or_none() is None:
        for blob in snapshot.blobs:
            to.ledger.copy_blob(blob, snapshot.parent.get_blob(blob))
        for name in snapshot.states:
            files = [state_file.file.path for state_file in snapshot.table(name).files]
            copy_files(snapshot.location(name), state_location(to.ledger.home, name, snapshot.options), files)
        entry = _recorded(snapshot, claimed, to, inherited_tables(snapshot, to))
        if entry is not None:
            _publish(entry, claimed, to)
        to.ledger.begin(claimed)
    with contextlib.suppress(TidegateError):
        if spared is not None:
            snapshot.parent.delete_pin(spared.owner)
        to.ledger.release_claim()
        if copied is not None and claims:
            remove(copied)
    return claimed


def forked_already(copied: Copied, to: PipelineContext, *, claims: bool) -> bool:
    """Return whether the pipeline already exists, forked from this folder. If it claims the folder, remove that.

    Raise Rejected if another pipeline has claimed the folder.
    """
    started = to.ledger.identity_or_none()
    identity = started or to.ledger.claim()
    refuse_claimed(copied, identity.uid if identity is not None else None)
    if started is None or not _is_same_origin(started.origin, copied.copy.origin):
        return False
    if claims:
        claim(copied, started.uid)
        remove(copied)
    return True


# -- refusals ----------------------------------------------------------------------------------------------


def _refuse_same(parent: Ledger, to: PipelineContext) -> None:
    if parent.home == to.ledger.home:
        raise Invalid(
            f"pipeline {parent.pipeline!r} cannot be forked into itself",
            expected="a pipeline with another name",
            help="declare another one, Pipeline('another name'), with other tables",
            reason="NAME_TAKEN",
        )


def _refuse_finished(snapshot: CheckpointSnapshot) -> None:
    """Raise Rejected if event time has ended with the checkpoint: every later row would be late."""
    if snapshot.entry.plan.drain is not None:
        raise Rejected(
            f"{snapshot.origin.pipeline!r} is finished: event time ended with checkpoint {snapshot.entry.id}",
            expected="a checkpoint before that",
            help=f"fork from checkpoint {snapshot.entry.plan.base}, if it is retained",
            reason="FINISHED",
        )


_TAKE_OVER = (
    "; or, if the old pipeline is lost, or these are copies of its tables: declare the sinks with take_over=True, "
    "which continues the tables with their rows"
)


def inherited_tables(snapshot: CheckpointSnapshot, to: PipelineContext) -> dict[str, PublishedTable]:
    """Return the tables that the new pipeline takes over with their rows, by sink: copies of the old one's tables that
    show exactly what they showed as of the checkpoint.

    Only from a savepoint's folder, and only for Delta sinks declared with take_over=True: then the old pipeline is
    lost, or it has other tables. Raise Invalid if such a table is not as of the checkpoint.
    """
    if snapshot.parent.copy(DONE) is None:
        return {}
    assert snapshot.entry.manifest is not None
    tables = {}
    for name, sinking in to.graph.sinks.items():
        context = _parent_context(snapshot, name, to)
        if not getattr(sinking.sink, "take_over", False) or sinking.sink.delta_table(context) is None:
            continue
        expected = rules.after_publish([snapshot.entry.manifest], name)
        last = sinking.sink.head(context).last_entry
        if expected is None or _is_in_use(snapshot, name, sinking.sink.target(to.place)):
            continue
        if last != expected:
            raise _not_as_of(snapshot, name, sinking.sink.target(to.place), expected, last)
        table = sinking.sink.locate(expected, context)
        if table is not None:
            tables[name] = table
    return tables


def _not_as_of(snapshot: CheckpointSnapshot, name: str, target: str, expected: int, last: int | None) -> Invalid:
    id, pipeline = snapshot.entry.id, snapshot.origin.pipeline
    if last is not None:
        holds = f"holds checkpoint {last}"
    else:
        holds = "does not exist, or holds no checkpoint"
    return Invalid(
        f"sink {name!r} is to take over {target}, which {holds} of {pipeline!r}; as of checkpoint {id}, the table held "
        f"checkpoint {expected}",
        expected=f"a copy of the table that shows what it showed as of checkpoint {id}",
        help="copy the table with the files of its _delta_log up to the version that `tidegate show` prints for that "
        "checkpoint, and no later ones; or fork from a savepoint of the checkpoint that it holds; or, to begin with an "
        "empty table, give the sink another path, or omit take_over",
        reason="TABLE_NOT_AS_OF",
    )


def _is_in_use(snapshot: CheckpointSnapshot, name: str, target: str) -> bool:
    """Return whether the table is the old pipeline's own one, and the old pipeline still exists."""
    published = snapshot.parent.published(snapshot.entry.id)
    if published is None or name not in published.tables or published.tables[name].uri != target:
        return False
    if published.home is None:
        return True
    try:
        identity = folder_ledger(published.home, snapshot.origin.pipeline, snapshot.options).identity_or_none()
    except TidegateError:
        return True  # it does not answer, which proves nothing
    return identity is not None and identity.uid == snapshot.origin.uid


def _refuse_their_tables(snapshot: CheckpointSnapshot, to: PipelineContext) -> None:
    """Raise Invalid if a sink of the new pipeline would publish to a table of the old one, unless it takes it over."""
    taken_over = inherited_tables(snapshot, to)
    last, pipeline = snapshot.parent.view().last_completed, snapshot.origin.pipeline
    commits = set(snapshot.entry.plan.commits)
    if last is not None:
        commits |= set(last.plan.commits)
    parent_sinks = sorted(name for name in commits if not name.startswith((STATE, QUARANTINE)))
    conflicts = []
    for name, sinking in to.graph.sinks.items():
        target = sinking.sink.target(to.place)
        for parent_sink in parent_sinks:
            if name in taken_over and name == parent_sink:
                continue
            if _is_parents_target(sinking.sink, parent_sink, snapshot, to):
                conflicts.append(f"sink {name!r}: {target} is a table of {pipeline!r}, of its sink {parent_sink!r}")
    if conflicts:
        help = "give its sinks other paths; where a table is to begin with rows, copy them with Spark into a new one"
        if snapshot.parent.copy(DONE) is not None:
            help += _TAKE_OVER
        raise Invalid(
            "\n    ".join([f"pipeline {to.graph.name!r} would write to tables that are not its own:", *conflicts]),
            expected="tables of its own",
            help=help,
            reason="NOT_ITS_OWN_TABLE",
        )


def _is_parents_target(sink: Sink, parent_sink: str, snapshot: CheckpointSnapshot, to: PipelineContext) -> bool:
    """Return whether a sink's target is one of the parent's. The mark of a database or a broker names no table, so
    there the parent's records decide."""
    if isinstance(sink, TransactionalSink):
        target = sink.target(to.place)
        for id in {snapshot.entry.id, snapshot.parent.settled()}:
            published = snapshot.parent.published(id)
            table = published.tables.get(parent_sink) if published is not None else None
            if table is not None and table.uri == target:
                return True
        return False
    try:
        return sink.head(_parent_context(snapshot, parent_sink, to)).last_entry is not None
    except Unavailable:
        raise
    except TidegateError:
        return False  # a problem of the table is reported when it is published to


# -- claim and pin -----------------------------------------------------------------------------------------


def _claim(ledger: Ledger, origin: Origin) -> PipelineRecord:
    """Claim the new pipeline's identity and return it. The first claim determines the origin."""
    identity = None
    while identity is None:  # repeat if another process has just released the claim
        started = ledger.identity_or_none()
        if started is None and ledger.claim() is None:
            ledger.identity()  # Corrupt if the folder contains something else
            ledger.create_claim(
                PipelineRecord(**stamp(seams.new_id()), uid=seams.new_id(), name=ledger.pipeline, origin=origin)
            )
        identity = started or ledger.claim() or ledger.identity_or_none()
    existing = identity.origin
    if not _is_same_origin(existing, origin):
        if existing is not None:
            history = f"forked from checkpoint {existing.entry} of {existing.pipeline!r}"
        else:
            history = "not forked from any other"
        help = "choose another name"
        if started is None:
            help += f"; or, if that fork was interrupted, remove {ledger.home}"
        raise Rejected(
            f"pipeline {ledger.pipeline!r} exists already, {history}",
            expected="the name of a pipeline that has never been started",
            help=help,
            reason="NAME_TAKEN",
        )
    return identity


def _is_same_origin(first: Origin | None, second: Origin) -> bool:
    if first is None:
        return False
    return (first.uid, first.entry, first.manifest) == (second.uid, second.entry, second.manifest)


def _spare(snapshot: CheckpointSnapshot, claimed: PipelineRecord, copied: Copied | None, *, claims: bool) -> Pin | None:
    """Pin the checkpoint while it is copied, or claim the folder so that no other pipeline removes it. Return the pin,
    if any."""
    if copied is not None:
        refuse_claimed(copied, claimed.uid)
        if claims:
            claim(copied, claimed.uid)
        return None
    pin = _pin(snapshot, claimed)
    try:
        refuse_retired(snapshot.parent, snapshot.entry.id)
    except Rejected:
        snapshot.parent.delete_pin(pin.owner)
        raise
    return pin


def _pin(snapshot: CheckpointSnapshot, claimed: PipelineRecord) -> Pin:
    pin = Pin(
        **stamp(seams.new_id()),
        owner=f"fork-{claimed.name}-{claimed.uid}",
        kind="fork",
        entry=snapshot.entry.id,
        manifest=snapshot.origin.manifest,
        by=snapshot.origin.by,
        note=snapshot.origin.note,
    )
    return snapshot.parent.create_pin(pin).record


# -- records -----------------------------------------------------------------------------------------------


def _recorded(
    snapshot: CheckpointSnapshot, claimed: PipelineRecord, to: PipelineContext, taken: Mapping[str, PublishedTable]
) -> Entry | None:
    """Create the first entry of the new log, with all its records. Existing ones count. taken: the tables that it takes
    over: their rows stay, and they are marked as its own.

    Return None if another process has completed the fork. Later checkpoints may even have retired this entry.
    """
    ledger = to.ledger
    plan = ledger.create_entry(_plan(snapshot, claimed, to)).record
    if ledger.identity_or_none() is not None:
        to.abort_if_id_was_used(plan)
        return None
    acks: dict[str, Acked] = {}
    for job in plan.acks:
        ledger.create_ack(_ack(snapshot, plan, job, to.graph))
        acked = ledger.ack(plan.id, job)
        if acked is None:
            _refuse_lost(ledger)
            return None
        ledger.sync_ack(acked)
        acks[job] = acked
    manifest = manifest_of(Entry(plan, acks), None)
    tables = dict(manifest.tables)
    for name, table in taken.items():
        tables[name] = msgspec.structs.replace(tables[name], restore=Restored(how="keep", to=table))
    sha = ledger.create_manifest(msgspec.structs.replace(manifest, tables=tables))
    ledger.index_run(plan)
    ledger.create_decision(Decision(**stamp(seams.new_id()), id=plan.id, outcome="completed", manifest=sha))
    entry = to.real_entry(plan.id)
    if entry is None or not entry.completed:  # a backfill is being discarded, and the decision is already deleted
        _refuse_lost(ledger)
        return None
    ledger.sync_decision(plan.id)
    return entry


def _refuse_lost(ledger: Ledger) -> None:
    """Raise Unavailable if a record that was just written is missing, unless the fork has begun and retention removed
    it."""
    if ledger.identity_or_none() is None:
        raise Unavailable(
            f"{ledger.home} does not show a record that was just written to it",
            help="fork again: it continues where this one stopped",
            reason="STORAGE",
        )


def _plan(snapshot: CheckpointSnapshot, claimed: PipelineRecord, to: PipelineContext) -> Plan:
    """Return the plan of a checkpoint that reads nothing. Requests about the parent's quarantines stay there."""
    base_plan, config = snapshot.entry.plan, to.settings.record()
    declared = [name for name in planned_ranges(snapshot.entry) if name in to.graph.sources]
    unused_hooks = find_unused_hooks(to.graph, snapshot.entry)
    return Plan(
        **stamp(seams.new_id()),
        quotes_rows=False,
        id=snapshot.entry.id,
        kind="fork",
        run=f"fork:{claimed.uid}",
        generation=base_plan.generation,
        base=None,
        clock=base_plan.time,
        reach=base_plan.reach,
        sources={name: part for name, part in standing_ranges(base_plan, {}).items() if name in declared},
        hooks={name: state for name, state in base_plan.hooks.items() if name not in unused_hooks},
        triggers=declared,
        acks=[job.name for job in to.graph.jobs],
        commits=list(to.graph.tables),
        timeout_s=to.settings.timeout,
        config=config,
        config_fingerprint=fingerprint(config),
        code_fingerprint=to.graph.code_fingerprint(),
    )


def _ack(snapshot: CheckpointSnapshot, plan: Plan, name: str, graph: Graph) -> Ack:
    """Return an ack that names the copied states, as if the job had made them."""
    job = graph.job(name)
    states = share_of(graph.jobs, job, snapshot.states)
    return Ack(
        **stamp(f"{plan.attempt}-{seams.new_id()}"),
        id=plan.id,
        job=name,
        prev=None,
        sinks=states,
        states=states,
        memory=share_of(graph.jobs, job, memory_of(snapshot.acks)),
        stats=JobStats(),
    )


def _publish(entry: Entry, claimed: PipelineRecord, to: PipelineContext) -> None:
    """Publish the states before the log begins, so that it begins like one whose older entries are retired."""
    tables = {name: _published(entry, name, claimed, to) for name in _pending(entry)}
    to.ledger.create_published(Published(**stamp(seams.new_id()), id=entry.id, tables=tables))
    to.ledger.hint(LatestHint(**stamp(seams.new_id()), id=entry.id))


def _pending(entry: Entry) -> Iterator[str]:
    assert entry.manifest is not None
    return (name for name, part in entry.manifest.tables.items() if rules.has_unpublished(part))


def _published(entry: Entry, name: str, claimed: PipelineRecord, to: PipelineContext) -> PublishedTable:
    assert entry.manifest is not None
    assert entry.decision is not None
    part, context = entry.manifest.tables[name], _fork_context(claimed, name, to)
    if name.startswith(STATE):
        sink: Sink = state_sink(name)
    else:
        sink = to.graph.sinks[name].sink
    publication = Publication(
        entry.id,
        entry.plan.generation,
        entry.decision.attempt,
        None,
        tuple(map(to.ledger.unpack, part.committables)),
        restore=part.restore,
        target=entry.id,
    )
    published = None
    head = sink.head(context)
    if head.last_entry is None:
        publish = sink.publish if part.restore is None else sink.restore
        published = publish(publication, head, context)
    published = published or sink.locate(entry.id, context)
    if published is None:
        raise Unavailable(
            f"the table of {name.removeprefix(STATE)!r} could not be created",
            help="fork again: it continues where this one stopped",
            reason="BUSY_TABLE",
        )
    return published


def _parent_context(snapshot: CheckpointSnapshot, name: str, to: PipelineContext) -> SinkContext:
    """Return the context in which the parent calls one of its tables."""
    return SinkContext(snapshot.origin.pipeline, snapshot.origin.uid, name, to.place, home=snapshot.parent.home)


def _fork_context(claimed: PipelineRecord, name: str, to: PipelineContext) -> SinkContext:
    return SinkContext(claimed.name, claimed.uid, name, to.place, home=to.ledger.home)
