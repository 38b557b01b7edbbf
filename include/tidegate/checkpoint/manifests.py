"""Compute the manifest, the record of everything that a completed decision makes true, from the acks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate import seams
from tidegate.checkpoint import approvals
from tidegate.errors import Corrupt
from tidegate.gates.quarantine.table import quarantine_name
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol import rules
from tidegate.protocol.progress import allows_overtaking, job_progress, missing
from tidegate.protocol.view import Entry, View
from tidegate.records.records import Ack, DivertedPart, Handle, InFlight, Manifest, Position, PublishedTable, TablePart

__all__ = [
    "ancestors",
    "dependencies",
    "has_later_ack",
    "jobs_without_ack",
    "lowest_ack",
    "manifest_flaws",
    "manifest_of",
    "overtaken_jobs",
    "sync_acks",
]


def manifest_of(entry: Entry, base: Entry | None, below: Sequence[Entry] = ()) -> Manifest:
    """Return the manifest of `entry`. It retains the base's state of sources and sinks that were removed since.

    below: the entries that the base rests on, where jobs may lag.
    """
    before = base.manifest if base else None
    jobs, acks, in_flight = _counted(_lineage(entry, base, below))
    positions = dict(before.positions) if before else {}
    for name, part in entry.plan.sources.items():
        positions[name] = Position(kind=part.kind, at=part.end)
    tables = {}
    for name in [*(before.tables if before else ()), *entry.plan.commits]:
        staged = [ack.sinks[name] for ack in acks if name in ack.sinks]
        after = rules.after_publish([before], name) if before else None
        tables[name] = TablePart(
            after=after,
            committables=staged,
            diverted=_diverted(name, entry, acks),
            through=_direct_state(name, entry, acks, before),
        )
    manifest = Manifest(
        **stamp(seams.new_id()),
        id=entry.id,
        base=base.id if base else None,
        base_manifest=base.decision.manifest if base and base.decision else None,
        positions=positions,
        jobs=jobs,
        tables=tables,
        in_flight=in_flight,
        let_go=_without_passed_jobs(before, jobs),
    )
    if flaw := next(manifest_flaws(manifest, entry), None):
        raise Corrupt(
            f"checkpoint {entry.id} would not be consistent: {flaw}",
            expected="each job at the checkpoint, or behind it with all of its unread rows in flight",
            help="nothing was decided; this is a bug in tidegate: report it, with the ledger's folder",
            reason="BAD_MANIFEST",
        )
    return manifest


def _diverted(name: str, entry: Entry, acks: Sequence[Ack]) -> DivertedPart | None:
    """Return what a table gets if the entry's divert applies."""
    divert = entry.plan.divert
    rows = next((ack.diverted for ack in acks if ack.diverted is not None), None)
    if divert is None or rows is None:
        return None
    parts = {divert.table: rows.rest, quarantine_name(divert.gate): rows.quarantined}
    if name not in parts:
        return None
    return DivertedPart(table=divert.table, after=divert.after, committables=parts[name])


def _lineage(entry: Entry, base: Entry | None, below: Sequence[Entry]) -> list[Entry]:
    if base is None:
        return [entry, *below]
    return [entry, base, *below]


def _without_passed_jobs(before: Manifest | None, jobs: Mapping[str, Handle]) -> dict[str, int]:
    """Return the base's `let_go`, without the jobs that have passed their entry since."""
    if before is None:
        return {}
    return {job: upto for job, upto in before.let_go.items() if job in jobs and jobs[job].entry < upto}


def _direct_state(name: str, entry: Entry, acks: Sequence[Ack], base: Manifest | None) -> PublishedTable | None:
    """Return the state of a table after the last job that wrote to it directly, or its state in the base."""
    if name not in (entry.plan.through or ()):
        return None
    for ack in reversed(acks):
        if name in ack.through:
            return ack.through[name]
    part = base.tables.get(name) if base is not None else None
    return part.through if part is not None else None


def _counted(lineage: Sequence[Entry]) -> tuple[dict[str, Handle], list[Ack], dict[str, list[InFlight]]]:
    """Return each job's counting ack, all acks that count since the base, and the input that is in flight."""
    entry = lineage[0]
    if not allows_overtaking(lineage):
        acks = [entry.acks[job].ack for job in entry.plan.acks]
        return {job: acked.handle for job, acked in entry.acks.items()}, acks, {}
    progress = job_progress(lineage)
    acks = []
    for job in entry.plan.acks:
        for acked in progress.chains[job]:
            acks.append(acked.ack)
    return dict(progress.chosen), acks, {job: list(unread) for job, unread in progress.in_flight.items()}


def manifest_flaws(manifest: Manifest, entry: Entry) -> Iterator[str]:
    """Yield the contradictions in a manifest.

    Sources must be at the checkpoint, no job may be ahead of its upstream jobs, and all rows between two jobs must be
    in flight.
    """
    entry_of = {job: handle.entry for job, handle in manifest.jobs.items()}
    for name, part in entry.plan.sources.items():
        if manifest.positions.get(name) != Position(kind=part.kind, at=part.end):
            yield f"source {name!r} is not where its plan ends"
    for job in entry.plan.acks:
        reached = entry_of.get(job, 0)
        if reached != entry.id and job not in entry.overtakable:
            yield f"job {job!r} is at {reached or 'nothing'}, and may not lag"
        for upstream in dict.fromkeys(entry.plan.takes.get(job, {}).values()):
            sent = entry_of.get(upstream, 0)
            waiting = [part.ack.entry for part in manifest.in_flight.get(job, ()) if part.job == upstream]
            if reached > sent:
                yield f"job {job!r} is at {reached}, ahead of its upstream job {upstream!r} at {sent}"
            if waiting != sorted(set(waiting)):
                yield f"job {job!r} has yet to read {waiting} from {upstream!r}, which is not in ascending order"
            if waiting and waiting[-1] != entry_of.get(upstream):
                yield f"job {job!r} has yet to read {waiting} from {upstream!r}, which is at {entry_of.get(upstream)}"
            if not waiting and max(reached, manifest.let_go.get(job, 0)) < sent:
                yield f"job {job!r} is at {reached}, {upstream!r} at {sent}, and nothing is in flight between them"


def ancestors(ledger: Ledger, entry: Entry | None, base: Entry | None) -> list[Entry]:
    """Return the entries that the base rests on, down to the last ack of the job that lags most. Empty if all jobs are
    at the base."""
    ancestors: list[Entry] = []
    if entry is None or base is None or not allows_overtaking([entry, base]):
        return ancestors
    ancestor: Entry | None = base
    low: int | None = None
    while ancestor is not None:
        if ancestor.manifest is not None and low is None:
            low = lowest_ack(ancestor)
        if ancestor.rollback is not None or ancestor.plan.base is None or (low is not None and ancestor.id <= low):
            break
        ancestor = ledger.entry(ancestor.plan.base)
        if ancestor is not None:
            ancestors.append(ancestor)
    return ancestors


def lowest_ack(entry: Entry) -> int:
    """Return the lowest entry whose acks a completed entry rests on: itself, unless jobs lag."""
    if entry.manifest is None:
        return entry.id
    waiting = _entries_in_flight(entry.manifest)
    if any(job not in entry.manifest.jobs for job in entry.manifest.in_flight):
        # A job without an ack continues from below all of its unread rows.
        return max(min(waiting) - 1, 0)
    return min([entry.id, *waiting, *(handle.entry for handle in entry.manifest.jobs.values())])


def dependencies(entry: Entry) -> set[int]:
    """Return the completed entry, and the lower ones whose acks or rows in flight it rests on."""
    if entry.manifest is None or entry.rollback is not None:
        return {entry.id}
    acked = [handle.entry for handle in entry.manifest.jobs.values()]
    return {entry.id, *_entries_in_flight(entry.manifest), *acked}


def _entries_in_flight(manifest: Manifest) -> set[int]:
    """Return the entries in which the rows in flight were sent."""
    entries = set()
    for unread in manifest.in_flight.values():
        for part in unread:
            entries.add(part.ack.entry)
    return entries


def overtaken_jobs(ledger: Ledger, entry: Entry | None) -> frozenset[str]:
    """Return the jobs that entries above have found busy."""
    if entry is None or not entry.open or not entry.overtakable:
        return frozenset()
    jobs: set[str] = set()
    for above in ledger.view().entries:
        if above.id > entry.id:
            jobs |= above.overtaken
    return frozenset(jobs)


def jobs_without_ack(ledger: Ledger, entry: Entry) -> list[str]:
    """Return the jobs whose acks the entry waits for."""
    return missing(entry, overtaken_jobs(ledger, entry))


def has_later_ack(view: View, entry: Entry, job: str) -> bool:
    """Return whether a completed entry above holds a later ack of the job."""
    handles = []
    for above in view.entries:
        if above.manifest is not None:
            handles.append(above.manifest.jobs.get(job))
    return any(handle is not None and handle.entry > entry.id for handle in handles)


def sync_acks(ledger: Ledger, entry: Entry, base: Entry | None, below: Sequence[Entry]) -> None:
    """W2: sync every record that the decision rests on, before the decision is created."""
    entries = _lineage(entry, base, below)
    if not allows_overtaking(entries):
        entries = [entry]
    for acked_entry in entries:
        for acked in acked_entry.acks.values():
            ledger.sync_ack(acked)
    approvals.sync_answers(ledger, entry)
    if base is not None:
        ledger.sync_decision(base.id)
