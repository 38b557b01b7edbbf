"""The ledger of a pipeline: its identity, and every record that is ever created in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tidegate import seams
from tidegate.errors import Corrupt, Rejected, Unavailable
from tidegate.ledger.log import EntryLog
from tidegate.ledger.record_files import Created, folder, stamp
from tidegate.ledger.store import CLOCK, LocalStore, Store
from tidegate.protocol.turns import Waiter
from tidegate.protocol.view import Acked
from tidegate.records.codec import encode, sha256
from tidegate.records.interval import Interval
from tidegate.records.masking import without_logins
from tidegate.records.names import check_name, entry_name, run_key
from tidegate.records.place import check_path, is_url, local_path
from tidegate.records.records import (
    Ack,
    Announced,
    BackfillCompared,
    BackfillDiscarded,
    BackfillRecord,
    Beginning,
    Blob,
    Claimed,
    Copy,
    Decision,
    Declined,
    Discarded,
    Diverted,
    Filled,
    HookProgress,
    JobNote,
    LatestHint,
    Manifest,
    Overtaken,
    Pin,
    PipelineRecord,
    Plan,
    ProposalPushed,
    ProposalReported,
    Published,
    Rank,
    RetainedCount,
    Retired,
    RowExplained,
    Samples,
    SeenTables,
    Telling,
    Tried,
    Trouble,
    WaitingRun,
)

__all__ = ["Created", "Ledger", "folder_ledger", "open_ledger", "stamp"]

_EXPLAINED = "explained"
_PUSHES = "pushes"
_ANSWERS_KEPT = 50


def _unfinished(claim: PipelineRecord) -> Rejected:
    origin = claim.origin
    assert origin is not None
    return Rejected(
        f"{claim.name!r} is being forked from checkpoint {origin.entry} of {origin.pipeline!r}, by {origin.by}",
        expected="a complete pipeline",
        help="wait for it; if it was interrupted, run the same `tidegate fork` again: it continues where it stopped",
        reason="FORK_UNFINISHED",
    )


def _waiting_path(run: str) -> str:
    return f"waiting/{run_key(run)}.json"


def open_ledger(root: str, pipeline: str, options: Mapping[str, str] | None = None) -> Ledger:
    """Open the ledger of `pipeline` below `root`: a local folder or the URL of an object store."""
    check_name("pipeline", pipeline)
    parent = root.rstrip("/") if is_url(check_path(root)) else local_path(root)
    # Not `options or {}`: testing whether options are empty would look up a login, which a folder does not need.
    return folder_ledger(f"{parent}/{pipeline}", pipeline, {} if options is None else options)


def folder_ledger(folder: str, pipeline: str, options: Mapping[str, str]) -> Ledger:
    """Open the ledger in a folder: a local one or the URL of an object store."""
    if is_url(check_path(folder)):
        from tidegate.ledger.object_store import ObjectStore

        return Ledger(ObjectStore(folder, options), pipeline)
    return Ledger(LocalStore(local_path(folder)), pipeline)


class Ledger(EntryLog):
    """The source of truth about a pipeline's checkpoints. Every call reads the store: only records that cannot change
    are cached, and they count only while they exist."""

    def __init__(self, store: Store, pipeline: str) -> None:
        super().__init__(store, pipeline)
        self._indexed = ""
        """The last path in the index of runs that this process made durable. Such paths are never deleted."""

    @property
    def home(self) -> str:
        """The pipeline's own folder: an absolute local path or a URL."""
        return self.store.url("").rstrip("/")

    # -- identity ------------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        """Return pipeline.json. None if this pipeline was never started. Raise Corrupt if the file was lost."""
        record = self._read("pipeline.json", PipelineRecord)
        other_names = self._names() if record is None else []
        if other_names:
            # Another process may have created it in between: it is always the first record.
            record = self._read("pipeline.json", PipelineRecord)
        if record is None and other_names:
            claim = self.claim()
            if claim is not None:
                raise _unfinished(claim)
            raise Corrupt(
                f"{self.store.url('pipeline.json')} is missing, but {', '.join(other_names[:3])} next to it is not",
                expected="pipeline.json, or an empty or absent folder for a new pipeline",
                help="restore the folder from a copy; to really start afresh, move the whole folder away",
                reason="LEDGER_DAMAGED",
            )
        if record is not None and record.name != self.pipeline:
            raise Corrupt(
                f"{self.store.url('pipeline.json')} belongs to pipeline {record.name!r}",
                expected=f"pipeline {self.pipeline!r}",
                help="the folder was renamed or copied: move it back under its own name",
                reason="LEDGER_DAMAGED",
            )
        return record

    def start(self) -> PipelineRecord:
        """Return pipeline.json, created now if this is the pipeline's first start."""
        record = self.identity()
        if record is not None:
            return record
        self.store.refuse_unsafe()
        new = PipelineRecord(**stamp(seams.new_id()), uid=seams.new_id(), name=self.pipeline)
        return self._create_if_absent("pipeline.json", new).record

    def _names(self) -> list[str]:
        return [name for name in self.store.names("") if name != CLOCK]

    def identity_or_none(self) -> PipelineRecord | None:
        """Return pipeline.json, or None if it does not exist. Ignores other files."""
        return self._read("pipeline.json", PipelineRecord)

    def claim(self) -> PipelineRecord | None:
        """Return the identity of the pipeline if it is still being forked, or None."""
        return self._read("forking.json", PipelineRecord)

    def create_claim(self, record: PipelineRecord) -> None:
        """Claim the identity of a pipeline to be forked. The first claim counts."""
        self.store.refuse_unsafe()
        self._create_if_absent("forking.json", record)

    def begin(self, record: PipelineRecord) -> None:
        """Create pipeline.json: the fork is complete and is a pipeline from now on."""
        self._create_if_absent("pipeline.json", record)

    def release_claim(self) -> None:
        """Delete the claim: the fork is complete, or will never be."""
        self.store.delete("forking.json")

    # -- copies of savepoints: folders of their own --------------------------------------------------

    def copy(self, path: str) -> Copy | None:
        """Return the record that describes the copy in a folder, finished or not, or None."""
        return self._read(path, Copy)

    def create_copy(self, path: str, copy: Copy) -> Copy:
        """Create the record that describes a copy. The first one counts and is returned."""
        return self._create_if_absent(path, copy).record

    def claimed(self, path: str) -> Claimed | None:
        """Return the owner of the folder, or None."""
        return self._read(path, Claimed)

    def create_claimed(self, path: str, claimed: Claimed) -> Claimed:
        """Claim the folder. The first claim counts and is returned."""
        return self._create_if_absent(path, claimed).record

    # -- creates: every claim is settled by one of these ---------------------------------------------

    def create_entry(self, plan: Plan) -> Created[Plan]:
        """Claim id `plan.id`: the position after the last entry that the caller has seen."""
        seams.fault("S1.entry.before")
        created = self._create_if_absent(f"{folder(plan.id)}/plan.json", plan)
        seams.fault("S1.entry.after")
        return created

    def index_run(self, plan: Plan) -> None:
        """Record permanently that the run has started this entry. Call it before the entry is decided."""
        seams.fault("S2.run.before")
        path = f"runs/{run_key(plan.run)}/{entry_name(plan.id)}"
        if path == self._indexed:
            return
        try:
            created = self.store.create(path, b"")
        except Unavailable:
            if self.store.read(path) is None:
                raise
            created = False
        if not created:
            self.store.sync(path)  # W2: it outlives the decision that follows
        self._indexed = path
        seams.fault("S2.run.after")

    def create_ack(self, ack: Ack) -> Created[Ack]:
        """Create the ack, the job's only effect. The first ack counts."""
        seams.fault("S6.ack.before")
        created = self._create_if_absent(f"{folder(ack.id)}/acks/{ack.job}.json", ack)
        seams.fault("S6.ack.after")
        return created

    def create_overtaken(self, overtaken: Overtaken) -> None:
        """Record that the checkpoint does not wait for the job."""
        seams.fault("S6.overtaken.before")
        self._create_if_absent(f"{folder(overtaken.id)}/overtaken/{overtaken.job}.json", overtaken)
        seams.fault("S6.overtaken.after")

    def create_manifest(self, manifest: Manifest) -> str:
        """Write the manifest under its own hash. It has no effect until a decision names it."""
        seams.fault("S8.manifest.before")
        path = f"{folder(manifest.id)}/manifest-{sha256(encode(manifest))}.json"
        sha = self._create_if_absent(path, manifest).sha
        seams.fault("S8.manifest.after")
        return sha

    def create_decision(self, decision: Decision) -> Created[Decision]:
        """THE commit point. The returned decision holds, even if another process wrote it."""
        path = f"{folder(decision.id)}/decision.json"
        if decision.outcome == "aborted":
            seams.fault("A1.abort.before")
            masked = msgspec.structs.replace(decision, detail=without_logins(decision.detail))
            created = self._create_if_absent(path, masked)
            seams.fault("A1.abort.after")
            return created
        seams.fault("S9.decision.before")
        created = self._create_if_absent(path, decision)
        seams.fault("S9.decision.after")
        return created

    def index_interval(self, filled: Filled) -> None:
        """Record permanently which checkpoint completed the interval. Call it before the hint moves above it."""
        seams.fault("S11.interval.before")
        path = f"intervals/{Interval.of_record(filled.interval).key}/{entry_name(filled.id)}.json"
        if not self._create_if_absent(path, filled).is_new:
            self.store.sync(path)  # W2: it outlives the hint that follows
        seams.fault("S11.interval.after")

    def create_beginning(self, beginning: Beginning) -> Beginning:
        """Record where a source begins. The first record counts and is returned."""
        return self._create_if_absent(
            f"beginnings/{beginning.source}/{entry_name(beginning.id)}.json", beginning
        ).record

    def create_diverted(self, diverted: Diverted) -> None:
        """Record whether a divert applied. Every process that does so has found the same."""
        seams.fault("S10.divert.before")
        path = f"{folder(diverted.id)}/diverted.json"
        if not self._create_if_absent(path, diverted).is_new:
            self.store.sync(path)  # W2: it outlives what is published next
        seams.fault("S10.divert.after")

    def create_published(self, published: Published) -> None:
        """Create the hint for readers. The first one stays."""
        seams.fault("S11.published.before")
        self._create_if_absent(f"{folder(published.id)}/published.json", published)
        seams.fault("S11.published.after")

    def create_announced(self, announced: Announced) -> Created[Announced]:
        """Claim to tell other DAGs of an entry. The first claim counts and is returned."""
        return self._create_if_absent(f"{folder(announced.id)}/announced.json", announced)

    def delete_announced(self, id: int) -> None:
        """Give up a claim of this process: Airflow did not take the events."""
        self.store.delete(f"{folder(id)}/announced.json")

    def create_pin(self, pin: Pin) -> Created[Pin]:
        """Spare an entry from retention. The caller must check `is_retained` afterwards: the entry may be retired
        already."""
        seams.fault("R1.pin.before")
        created = self._create_if_absent(f"pins/{pin.owner}.json", pin)
        seams.fault("R1.pin.after")
        return created

    def delete_pin(self, owner: str) -> None:
        """Delete a pin whose owner no longer refers to the entry."""
        self.store.delete(f"pins/{owner}.json")

    def create_retired(self, retired: Retired) -> None:
        """Claim the entry for deletion."""
        seams.fault("S12.retire.before")
        self._create_if_absent(f"{folder(retired.id)}/retired.json", retired)
        seams.fault("S12.retire.after")

    def create_discarded(self, discarded: Discarded) -> None:
        """Claim everything that the last checkpoint names for deletion."""
        seams.fault("S12.retire.before")
        self._create_if_absent("discarded.json", discarded)
        seams.fault("S12.retire.after")

    def delete_entry(self, id: int, blobs: Iterable[Blob]) -> None:
        """Remove a retired entry's side files, then its records.

        The plan is removed first, so that the remaining records are never taken for an open entry. The tombstone is
        removed last, so that the next process continues an interrupted deletion.
        """
        seams.fault("S13.delete.before")
        self.store.delete_files([blob.path for blob in blobs])
        self.store.delete_files([f"{folder(id)}/plan.json"])
        names = [name for name in self.store.names(folder(id)) if name != "retired.json"]
        self.store.delete_files([f"{folder(id)}/{name}" for name in names if name.endswith(".json")])
        for name in names:
            if not name.endswith(".json"):
                self.store.delete(f"{folder(id)}/{name}")
        self.store.delete_files([f"{folder(id)}/retired.json"])
        self.store.delete(folder(id))
        seams.fault("S13.delete.after")

    # -- backfills (lines) -----------------------------------------------------------------------------

    def lines(self) -> list[BackfillRecord]:
        """Return all backfills and proposals that are not discarded."""
        lines = []
        for name in self.store.names("lines"):
            line = self.line(name) if self.line_discarded(name) is None else None
            if line is not None:
                lines.append(line)
        return lines

    def backfills(self) -> list[BackfillRecord]:
        """Return the lines that are to be swapped in, without proposals."""
        return [line for line in self.lines() if line.purpose == "backfill"]

    def line(self, name: str) -> BackfillRecord | None:
        """Return the backfill with this name, discarded or not, while its record exists."""
        return self._read(f"lines/{name}/line.json", BackfillRecord)

    def create_line(self, line: BackfillRecord) -> BackfillRecord:
        """Create the backfill's record. The first one of a name counts and is returned."""
        return self._create_if_absent(f"lines/{line.name}/line.json", line).record

    def line_discarded(self, name: str) -> BackfillDiscarded | None:
        """Return the backfill's tombstone, or None if it is not discarded."""
        return self._read(f"lines/{name}/discarded.json", BackfillDiscarded)

    def discard_line(self, discarded: BackfillDiscarded) -> None:
        """Create the backfill's tombstone and make it durable: from now on it may not be swapped in."""
        path = f"lines/{discarded.name}/discarded.json"
        self._create_if_absent(path, discarded)
        self.store.sync(path)

    def line_compared(self, name: str) -> BackfillCompared | None:
        """Return the last comparison of the backfill with the pipeline's tables, or None."""
        return self._read(f"lines/{name}/compared.json", BackfillCompared)

    def hint_line_compared(self, name: str, compared: BackfillCompared) -> None:
        """Write the last comparison of the backfill, as a hint."""
        self.store.replace(f"lines/{name}/compared.json", encode(compared))

    def proposals(self) -> list[BackfillRecord]:
        """Return the lines that only show what other code would make."""
        return [line for line in self.lines() if line.purpose == "proposal"]

    def proposal_reported(self, name: str) -> ProposalReported | None:
        """Return the report of a kept proposal, or None."""
        return self._read(f"lines/{name}/report.json", ProposalReported)

    def hint_proposal_reported(self, name: str, reported: ProposalReported) -> None:
        """Write the report of a kept proposal, as a hint. A proposal that is discarded meanwhile gets none."""
        self.store.replace(f"lines/{name}/report.json", encode(reported))
        if self.line_discarded(name) is not None:
            self.store.delete(f"lines/{name}/report.json")

    def proposal_pushed(self, label: str) -> ProposalPushed | None:
        """Return the newest report for a label, or None."""
        return self._read_hint(f"{_PUSHES}/{label}.json", ProposalPushed)

    def hint_proposal_pushed(self, label: str, pushed: ProposalPushed) -> None:
        """Write the newest report for a label, as a hint."""
        self.store.replace(f"{_PUSHES}/{label}.json", encode(pushed))

    def delete_old_pushes(self, older_than: float) -> None:
        """Delete the reports for labels that are older than so many seconds."""
        for name in self.store.names(_PUSHES):
            if (self.store.age(f"{_PUSHES}/{name}") or 0.0) > older_than:
                self.store.delete(f"{_PUSHES}/{name}")

    def delete_line(self, name: str) -> None:
        """Delete a discarded backfill's own ledger, states and quarantine, and its record."""
        self.store.delete(f"lines/{name}/{self.pipeline}")
        self.store.delete(f"lines/{name}/report.json")
        self.store.delete(f"lines/{name}/compared.json")
        self.store.delete(f"lines/{name}/line.json")

    def line_home(self, name: str) -> str:
        """Return the folder of the backfill's own ledger. With `root` set to its parent folder, commands show it like
        any pipeline's."""
        return f"{self.home}/lines/{name}/{self.pipeline}"

    # -- W2: before acting on a record of another writer, make sure that it survives a power loss ------

    def sync_plan(self, id: int) -> None:
        """Sync the plan. Call it before planning on top of an undecided entry."""
        self.store.sync(f"{folder(id)}/plan.json")

    def sync_decision(self, id: int) -> None:
        """Sync the decision. Call it before publishing a completed entry, resting on it, or cleaning up an aborted
        one."""
        self.store.sync(f"{folder(id)}/decision.json")

    def sync_ack(self, acked: Acked) -> None:
        """Sync the ack. Call it before completing a checkpoint with it."""
        self.store.sync(f"{folder(acked.handle.entry)}/acks/{acked.ack.job}.json")

    def sync_hint(self) -> None:
        """Sync the hint. Call it before removing entries below it: an older hint would name a removed one."""
        self.store.sync("latest.json")

    # -- hints: losing one does no harm ----------------------------------------------------------------

    def hint(self, latest: LatestHint) -> None:
        """Write the hint from which later readers start."""
        self.store.replace("latest.json", encode(latest))

    def hint_retained_count(self, counted: RetainedCount) -> None:
        """Write the count from which retention continues."""
        self.store.replace("kept.json", encode(counted))

    def hint_trouble(self, trouble: Trouble) -> None:
        """Write the last error of a run, without passwords."""
        texts = {}
        for name in ("what", "expected", "help"):
            texts[name] = without_logins(getattr(trouble, name))
        self.store.replace("trouble.json", encode(msgspec.structs.replace(trouble, **texts)))

    def hint_progress(self, note: JobNote) -> None:
        """Write the progress of an attempt at a job, for display."""
        self.store.replace(f"progress/{note.job}.json", encode(note))

    def put_samples(self, samples: Samples) -> None:
        """Write samples of a job's output next to its ack. Only the attempt whose ack counts calls this. The samples
        are deleted with the entry."""
        self.store.replace(f"{folder(samples.id)}/samples/{samples.job}.json", encode(samples))

    def delete_samples(self, id: int) -> None:
        """Delete the samples of an entry, but not the entry."""
        self.store.delete(f"{folder(id)}/samples")

    def hint_declined(self, declined: Declined) -> None:
        """Write why the code cannot make a checkpoint, without passwords. Triggers read it."""
        texts = {}
        for name in ("what", "expected", "help"):
            texts[name] = without_logins(getattr(declined, name))
        self.store.replace("declined.json", encode(msgspec.structs.replace(declined, **texts)))

    def forget_declined(self) -> None:
        """Delete that hint: the declaration is right, or is to be tried again."""
        self.store.delete_files(["declined.json"])

    def hint_tried(self, tried: Tried) -> None:
        """Write which stores were tested, so that they are not tested again."""
        self.store.replace("tried.json", encode(tried))

    def waiters(self) -> list[Waiter]:
        """Return the runs that have noted that they wait for a checkpoint."""
        waiters = []
        for name in self.store.names("waiting"):
            path = f"waiting/{name}"
            waiting = self._read_hint(path, WaitingRun)
            age = self.store.age(path) if waiting is not None else None
            if waiting is not None and age is not None:
                waiters.append(Waiter(waiting.run, waiting.rank, age))
        return waiters

    def note_waiting(self, run: str, rank: Rank) -> None:
        """Note that a run waits for a checkpoint, or still does."""
        waiting = WaitingRun(**stamp(seams.new_id()), run=run, rank=rank)
        self.store.replace(_waiting_path(run), encode(waiting))

    def forget_waiting(self, run: str) -> None:
        """Delete the note: the run has its checkpoint, or has lost its turn."""
        self.store.delete_files([_waiting_path(run)])

    def hint_seen_tables(self, seen: SeenTables) -> None:
        """Write the logs of these tables, so that later processes need not read them."""
        self.store.replace("tables.json", encode(seen))

    def explained(self, key: str) -> RowExplained | None:
        """Return the answer to the act with this key, or None. The caller must have checked the key."""
        return self._read(f"{_EXPLAINED}/{key}.json", RowExplained)

    def hint_explained(self, key: str, explained: RowExplained) -> None:
        """Write the answer to an act, and remove all but the newest answers."""
        self.store.replace(f"{_EXPLAINED}/{key}.json", encode(explained))
        old = sorted(self.store.names(_EXPLAINED))[:-_ANSWERS_KEPT]
        self.store.delete_files([f"{_EXPLAINED}/{name}" for name in old])

    def record_hook_progress(self, progress: HookProgress) -> None:
        """Write which events the hooks were notified of, so that they are not notified again."""
        self.store.replace("told.json", encode(progress))

    @contextlib.contextmanager
    def telling(self, patience_s: float) -> Iterator[bool]:
        """Yield whether it is this process's turn to tell people, which no other process has at the same time.

        patience_s: the age at which the note of another process is taken for one that has died.
        """
        age = self.store.age("telling.json")
        if age is not None and age > patience_s:
            self.store.delete("telling.json")
        own = Telling(**stamp(seams.new_id()))
        if not self._create_if_absent("telling.json", own).is_new:
            yield False
            return
        try:
            yield True
        finally:
            self.store.delete("telling.json")

    # -- ages: by the store's clock alone --------------------------------------------------------------

    def age_of_decision(self, id: int) -> float | None:
        """Return the seconds since the entry was decided, or None if it is not."""
        return self.store.age(f"{folder(id)}/decision.json")

    def expired(self, plan: Plan) -> bool:
        """Return whether the entry is older than its timeout."""
        age = self.store.age(f"{folder(plan.id)}/plan.json")
        return age is not None and age > plan.timeout_s

    def age(self, plan: Plan) -> float:
        """Return the seconds since the entry was created, or 0 if it is removed."""
        return self.store.age(f"{folder(plan.id)}/plan.json") or 0.0
