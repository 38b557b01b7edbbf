"""Fork: a new pipeline that begins with what another one held at a checkpoint, and goes on by itself.

    look      every reason why not; nothing is touched
    claim     forking.json in the new pipeline's folder: its uid, and what it is forked from
    pin       the checkpoint in its own pipeline; then it is looked whether retention was faster
    copy      side files and files of states, under their own names
    records   the new log's first entry, under the same number: a checkpoint that read nothing, and acked what is copied
    publish   the tables of states
    begin     pipeline.json: THE commit point; before it there is no new pipeline, and the claim says why

Everything is copied, nothing is shared: so the new pipeline needs nothing of the old one as soon as it is there, and
whatever either does, loses or deletes does not concern the other. What is copied follows the state's size, once.

The new log looks like one whose older entries are retired. So no rule of the protocol knows of forks. It begins with
the number of the checkpoint because rows of states carry the number of the checkpoint that wrote them, and the highest
counts. Each step can be broken off: whoever forks again does it again, and takes what is there already as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.compatibility import declared_sources, refusals, refuse
from tidegate.checkpoint.manifests import manifest_of
from tidegate.checkpoint.planning import standing_ranges
from tidegate.delta.files.copy import copy_files
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.lifecycle.copies import Copied, claim, refuse_claimed, remove
from tidegate.lifecycle.snapshot import (
    CheckpointSnapshot,
    refuse_damage,
    refuse_retired,
    state_location,
    told_if_retired,
)
from tidegate.pipeline.graph.jobs import share_of
from tidegate.protocol.view import Acked, Entry
from tidegate.records.codec import fingerprint
from tidegate.records.records import (
    Ack,
    Decision,
    JobStats,
    Json,
    LatestHint,
    Origin,
    Pin,
    PipelineRecord,
    Plan,
    Published,
    PublishedTable,
)
from tidegate.sinks.base import Publication, SinkContext
from tidegate.state.table import STATE, state_sink

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["fork", "forked_already", "look"]


def look(held: CheckpointSnapshot, to: PipelineContext) -> CheckpointSnapshot:
    """What the new pipeline would begin with; or every reason why it cannot be. Nothing is touched."""
    _refuse_same(held.parent, to)
    _refuse_finished(held)
    with told_if_retired(held.parent, held.entry.id):
        refuse(list(refusals(to.graph, held.parent, to.limits.record(), held.entry)), held.entry.id)
        taken = replace(held, states={name: told for name, told in held.states.items() if name in to.graph.tables})
        refuse_damage(taken)
        _refuse_their_tables(taken, to)
    return taken


def fork(
    held: CheckpointSnapshot, to: PipelineContext, copied: Copied | None = None, *, claims: bool = False
) -> PipelineRecord:
    """Make the pipeline of `to` from what was looked at. Again, for the same checkpoint: it goes on, or is done.

    copied: the folder that the checkpoint lies in, if it is a copy. claims: the folder is the new pipeline's, to be
    removed; else it is left alone.
    """
    claimed = _claim(to.ledger, held.origin)
    try:
        spared = _spare(held, claimed, copied, claims=claims)
    except Rejected:
        to.ledger.let_go_of_claim()
        raise
    if to.ledger.begun() is None:
        for blob in held.blobs:
            to.ledger.copy_blob(blob, held.parent.get_blob(blob))
        for name in held.states:
            files = [each.file.path for each in held.table(name).files]
            copy_files(held.location(name), state_location(to.ledger.home, name, held.options), files)
        if (entry := _recorded(held, claimed, to)) is not None:
            _publish(entry, claimed, to)
        to.ledger.begin(claimed)
    with contextlib.suppress(TidegateError):
        if spared is not None:
            held.parent.delete_pin(spared.owner)
        to.ledger.let_go_of_claim()
        if copied is not None and claims:
            remove(copied)
    return claimed


def forked_already(copied: Copied, to: PipelineContext, *, claims: bool) -> bool:
    """Whether the pipeline is there, made from this folder: what is left to do is to remove it, if it was claimed.

    Rejected: another pipeline has claimed the folder.
    """
    begun = to.ledger.begun()
    known = begun or to.ledger.claim()
    refuse_claimed(copied, known.uid if known is not None else None)
    if begun is None or not _same(begun.origin, copied.copy.origin):
        return False
    if claims:
        claim(copied, begun.uid)
        remove(copied)
    return True


# -- what may not be ---------------------------------------------------------------------------------------


def _refuse_same(parent: Ledger, to: PipelineContext) -> None:
    if parent.home == to.ledger.home:
        raise Invalid(
            f"pipeline {parent.pipeline!r} cannot be forked into itself",
            expected="a pipeline with a name of its own",
            help="declare another one, Pipeline('another name'), with tables of its own",
            reason="NAME_TAKEN",
        )


def _refuse_finished(held: CheckpointSnapshot) -> None:
    """Behind the end of time every row is late."""
    if held.entry.plan.drain is not None:
        raise Rejected(
            f"with checkpoint {held.entry.id} of {held.origin.pipeline!r} event time came to its end: it is finished",
            expected="a checkpoint before that",
            help=f"fork from checkpoint {held.entry.plan.base}, if it is retained",
            reason="FINISHED",
        )


def _refuse_their_tables(held: CheckpointSnapshot, to: PipelineContext) -> None:
    """No sink of the new pipeline publishes to a table that the old one has published to."""
    last, pipeline = held.parent.view().last_completed, held.origin.pipeline
    commits = {*held.entry.plan.commits, *(last.plan.commits if last is not None else ())}
    names = sorted(name for name in commits if not name.startswith((STATE, QUARANTINE)))
    taken = [
        f"sink {name!r}: {sinking.sink.target(to.place)} is a table of {pipeline!r}, of its sink {theirs!r}"
        for name, sinking in to.graph.sinks.items()
        for theirs in names
        if _has_commits(sinking.sink, _theirs(held, theirs, to))
    ]
    if taken:
        raise Invalid(
            "\n    ".join([f"pipeline {to.graph.name!r} would write to tables that are not its own:", *taken]),
            expected="tables of its own",
            help="give its sinks other paths; where a table is to begin with rows, copy them with Spark into a new one",
            reason="NOT_ITS_OWN_TABLE",
        )


def _has_commits(sink: object, context: SinkContext) -> bool:
    try:
        return sink.head(context).last is not None  # type: ignore[attr-defined]
    except Unavailable:
        raise
    except TidegateError:
        return False  # what is wrong with the table is told when it is published to


# -- claim and pin -----------------------------------------------------------------------------------------


def _claim(ledger: Ledger, origin: Origin) -> PipelineRecord:
    """The new pipeline's identity, which is nobody's yet. Whoever comes first says what it is forked from."""
    begun = ledger.begun()
    if begun is None and ledger.claim() is None:
        ledger.identity()  # Corrupt, if something else lies there
        ledger.create_claim(
            PipelineRecord(**stamp(seams.new_id()), uid=seams.new_id(), name=ledger.pipeline, origin=origin)
        )
    found = begun or ledger.claim() or ledger.begun()
    assert found is not None
    there = found.origin
    if not _same(there, origin):
        what = f"checkpoint {there.entry} of {there.pipeline!r}" if there is not None else "nothing: it began afresh"
        raise Rejected(
            f"pipeline {ledger.pipeline!r} is there already, forked from {what}",
            expected="the name of a pipeline that has never been started",
            help="choose another name"
            if begun is not None
            else f"choose another name; or, if that fork was broken off, remove {ledger.home}",
            reason="NAME_TAKEN",
        )
    return found


def _same(one: Origin | None, other: Origin) -> bool:
    return one is not None and (one.uid, one.entry, one.manifest) == (other.uid, other.entry, other.manifest)


def _spare(held: CheckpointSnapshot, claimed: PipelineRecord, copied: Copied | None, *, claims: bool) -> Pin | None:
    """The checkpoint is not retired while it is copied; a folder is not removed by somebody else."""
    if copied is not None:
        refuse_claimed(copied, claimed.uid)
        if claims:
            claim(copied, claimed.uid)
        return None
    pin = _pin(held, claimed)
    try:
        refuse_retired(held.parent, held.entry.id)
    except Rejected:
        held.parent.delete_pin(pin.owner)
        raise
    return pin


def _pin(held: CheckpointSnapshot, claimed: PipelineRecord) -> Pin:
    pin = Pin(
        **stamp(seams.new_id()),
        owner=f"fork-{claimed.name}-{claimed.uid}",
        kind="fork",
        entry=held.entry.id,
        manifest=held.origin.manifest,
        by=held.origin.by,
        note=held.origin.note,
    )
    return held.parent.create_pin(pin).record


# -- records -----------------------------------------------------------------------------------------------


def _recorded(held: CheckpointSnapshot, claimed: PipelineRecord, to: PipelineContext) -> Entry | None:
    """The first entry of the new log, with all its records: those that are there already count.

    None: somebody else has made the fork meanwhile. It may have gone on so far that this entry is retired.
    """
    ledger = to.ledger
    plan = ledger.create_entry(_plan(held, claimed, to)).record
    if ledger.begun() is not None:
        to.counts(plan)  # if its id was free again, nothing comes of it
        return None
    acks: dict[str, Acked] = {}
    for job in plan.acks:
        ledger.create_ack(_ack(held, plan, job, to.graph))
        found = ledger.ack(plan.id, job)
        if found is None:
            _refuse_lost(ledger)
            return None
        ledger.settle_ack(found)
        acks[job] = found
    sha = ledger.create_manifest(manifest_of(Entry(plan, acks), None))
    ledger.index_run(plan)
    ledger.create_decision(Decision(**stamp(seams.new_id()), id=plan.id, outcome="completed", manifest=sha))
    entry = to.real_entry(plan.id)
    if entry is None:
        _refuse_lost(ledger)
    else:
        ledger.settle_decision(plan.id)
    return entry


def _refuse_lost(ledger: Ledger) -> None:
    """A record that was just written is gone: retention took it, if the fork has gone on. Else that is no good."""
    if ledger.begun() is None:
        raise Unavailable(
            f"{ledger.home} does not show what was just written to it",
            help="fork once more: it goes on where this one stopped",
            reason="STORAGE",
        )


def _plan(held: CheckpointSnapshot, claimed: PipelineRecord, to: PipelineContext) -> Plan:
    """A checkpoint that reads nothing. What was asked of the parent's quarantines stays there."""
    then, config = held.entry.plan, to.limits.record()
    declared = [name for name in declared_sources(held.entry) if name in to.graph.sources]
    return Plan(
        **stamp(seams.new_id()),
        id=held.entry.id,
        kind="fork",
        run=f"fork:{claimed.uid}",
        generation=then.generation,
        base=None,
        reach=then.reach,
        sources={name: part for name, part in standing_ranges(then, {}).items() if name in declared},
        hooks=then.hooks,
        triggers=declared,
        acks=[job.name for job in to.graph.jobs],
        commits=list(to.graph.tables),
        timeout_s=to.limits.timeout,
        config=config,
        config_fingerprint=fingerprint(config),
        code_fingerprint=to.graph.code_fingerprint(),
    )


def _ack(held: CheckpointSnapshot, plan: Plan, name: str, graph: Graph) -> Ack:
    """What was copied, as if the job had made it."""
    memory: dict[str, Json] = {}
    for ack in held.acks:
        memory |= ack.memory
    job = graph.job(name)
    states = share_of(graph.jobs, job, held.states)
    return Ack(
        **stamp(f"{plan.attempt}-{seams.new_id()}"),
        id=plan.id,
        job=name,
        prev=None,
        sinks=states,
        states=states,
        memory=share_of(graph.jobs, job, memory),
        stats=JobStats(),
    )


def _publish(entry: Entry, claimed: PipelineRecord, to: PipelineContext) -> None:
    """Its states are on their tables before the log begins: so it begins like one whose older entries are retired."""
    tables = {name: _published(entry, name, claimed, to) for name in _owed(entry)}
    to.ledger.create_published(Published(**stamp(seams.new_id()), id=entry.id, tables=tables))
    to.ledger.hint(LatestHint(**stamp(seams.new_id()), id=entry.id))


def _owed(entry: Entry) -> Iterator[str]:
    assert entry.manifest is not None
    return (name for name, part in entry.manifest.tables.items() if part.committables)


def _published(entry: Entry, name: str, claimed: PipelineRecord, to: PipelineContext) -> PublishedTable:
    assert entry.manifest is not None
    assert entry.decision is not None
    sink, context = state_sink(name), _ours(claimed, name, to)
    records = tuple(map(to.ledger.unpack, entry.manifest.tables[name].committables))
    attempt, generation = entry.decision.attempt, entry.plan.generation
    publication = Publication(entry.id, generation, attempt, None, records)
    done = None
    if (head := sink.head(context)).last is None:
        done = sink.publish(publication, head, context)
    found = done or sink.locate(entry.id, context)
    if found is None:
        raise Unavailable(
            f"the table of state {name.removeprefix(STATE)!r} could not be made",
            help="fork once more: it goes on where this one stopped",
            reason="BUSY_TABLE",
        )
    return found


def _theirs(held: CheckpointSnapshot, name: str, to: PipelineContext) -> SinkContext:
    """Who the parent is to one of its tables."""
    return SinkContext(held.origin.pipeline, held.origin.uid, name, to.place, home=held.parent.home)


def _ours(claimed: PipelineRecord, name: str, to: PipelineContext) -> SinkContext:
    return SinkContext(claimed.name, claimed.uid, name, to.place, home=to.ledger.home)
