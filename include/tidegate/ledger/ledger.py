"""The ledger of a pipeline: its identity, and every record that is ever created in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    Filled,
    HookProgress,
    JobNote,
    LatestHint,
    Manifest,
    Overtaken,
    Pin,
    PipelineRecord,
    Plan,
    Published,
    Rank,
    RetainedCount,
    Retired,
    Samples,
    SeenTables,
    Tried,
    Trouble,
    WaitingRun,
)

__all__ = ["Created", "Ledger", "folder_ledger", "open_ledger", "stamp"]


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
    # Not `options or {}`: to be told whether there are any, a login would be looked up, which a folder needs none of.
    return folder_ledger(f"{parent}/{pipeline}", pipeline, {} if options is None else options)


def folder_ledger(folder: str, pipeline: str, options: Mapping[str, str]) -> Ledger:
    """Open the ledger in a folder: a local one or the URL of an object store."""
    if is_url(check_path(folder)):
        from tidegate.ledger.object_store import ObjectStore

        return Ledger(ObjectStore(folder, options), pipeline)
    return Ledger(LocalStore(local_path(folder)), pipeline)


class Ledger(EntryLog):
    """The source of truth about a pipeline's checkpoints. Every call reads the store: nothing is remembered but what
    cannot change, and even that counts only while it is there."""

    def __init__(self, store: Store, pipeline: str) -> None:
        super().__init__(store, pipeline)
        self._indexed = ""
        """The last path of the index of runs that was made durable here: nobody ever deletes it."""

    @property
    def home(self) -> str:
        """The pipeline's own folder: an absolute local path or a URL."""
        return self.store.url("").rstrip("/")

    # -- identity ------------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        """Return pipeline.json; None if this pipeline was never started. Never takes a loss for a fresh start."""
        record = self._read("pipeline.json", PipelineRecord)
        other_names = self._names() if record is None else []
        if other_names:
            # Somebody else may have created it in between: it is always the first record.
            record = self._read("pipeline.json", PipelineRecord)
        if record is None and other_names:
            claim = self.claim()
            if claim is not None:
                raise _unfinished(claim)
            raise Corrupt(
                f"{self.store.url('pipeline.json')} is missing, but {', '.join(other_names[:3])} beside it is not",
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
        """Return pipeline.json, whatever other files exist; None if it does not exist."""
        return self._read("pipeline.json", PipelineRecord)

    def claim(self) -> PipelineRecord | None:
        """Return the identity of a pipeline that is still being forked; None if there is none."""
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
        """Return the record that describes the copy in a folder, finished or not; None if there is none."""
        return self._read(path, Copy)

    def create_copy(self, path: str, copy: Copy) -> Copy:
        """Create the record that describes a copy. The first one counts and is returned."""
        return self._create_if_absent(path, copy).record

    def claimed(self, path: str) -> Claimed | None:
        """Return the owner of the folder; None if it has none."""
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
        """Record permanently that the run has started this entry. To be called before the entry is decided."""
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
        """Create the ack, the job's only effect. The first ack counts, whole."""
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
        """Write the manifest under its own hash. It means nothing until a decision names it."""
        seams.fault("S8.manifest.before")
        path = f"{folder(manifest.id)}/manifest-{sha256(encode(manifest))}.json"
        sha = self._create_if_absent(path, manifest).sha
        seams.fault("S8.manifest.after")
        return sha

    def create_decision(self, decision: Decision) -> Created[Decision]:
        """THE commit point. The decision that is returned holds, whoever wrote it."""
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
        """Record permanently which checkpoint completed the interval. To be called before the hint moves above it."""
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

    def create_published(self, published: Published) -> None:
        """Create the hint for readers. The first one stays."""
        seams.fault("S11.published.before")
        self._create_if_absent(f"{folder(published.id)}/published.json", published)
        seams.fault("S11.published.after")

    def create_pin(self, pin: Pin) -> Created[Pin]:
        """Spare an entry from retention. The caller must check `is_retained` afterwards: the entry may be retired
        already."""
        seams.fault("R1.pin.before")
        created = self._create_if_absent(f"pins/{pin.owner}.json", pin)
        seams.fault("R1.pin.after")
        return created

    def delete_pin(self, owner: str) -> None:
        """Delete a pin: nobody refers to the entry any more."""
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

        The plan goes first, so that nobody takes the remaining records for an open entry, and the tombstone last, so
        that the next process continues an interrupted deletion.
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

    # -- lines -----------------------------------------------------------------------------------------

    def lines(self) -> list[BackfillRecord]:
        """Return all lines that are not discarded."""
        names = self.store.names("lines")
        found = (
            self._read(f"lines/{name}/line.json", BackfillRecord) for name in names if self.line_discarded(name) is None
        )
        return [line for line in found if line is not None]

    def line(self, name: str) -> BackfillRecord | None:
        """Return the line with this name, discarded or not, as long as its record is there."""
        return self._read(f"lines/{name}/line.json", BackfillRecord)

    def create_line(self, line: BackfillRecord) -> BackfillRecord:
        """Create the line. The first one of a name counts and is returned."""
        return self._create_if_absent(f"lines/{line.name}/line.json", line).record

    def line_discarded(self, name: str) -> BackfillDiscarded | None:
        """Return the line's tombstone; None if it is not discarded."""
        return self._read(f"lines/{name}/discarded.json", BackfillDiscarded)

    def discard_line(self, discarded: BackfillDiscarded) -> None:
        """Create the line's tombstone, and make it durable: from now on nobody may swap the line in."""
        path = f"lines/{discarded.name}/discarded.json"
        self._create_if_absent(path, discarded)
        self.store.sync(path)

    def line_compared(self, name: str) -> BackfillCompared | None:
        """Return what a swap of the line would have changed when somebody last looked."""
        return self._read(f"lines/{name}/compared.json", BackfillCompared)

    def hint_line_compared(self, name: str, compared: BackfillCompared) -> None:
        """Leave a hint of what a swap of the line would change."""
        self.store.replace(f"lines/{name}/compared.json", encode(compared))

    def delete_line(self, name: str) -> None:
        """Delete a discarded line's own ledger, states and quarantine, and its record."""
        self.store.delete(f"lines/{name}/{self.pipeline}")
        self.store.delete(f"lines/{name}/compared.json")
        self.store.delete(f"lines/{name}/line.json")

    def line_home(self, name: str) -> str:
        """Return the folder of the line's own ledger. With `root` set to the folder above, commands show it like that
        of any pipeline."""
        return f"{self.home}/lines/{name}/{self.pipeline}"

    # -- W2: before acting on a record of another writer, make sure that it survives a power loss ------

    def sync_plan(self, id: int) -> None:
        """Sync the plan. To be called before planning on top of an undecided entry."""
        self.store.sync(f"{folder(id)}/plan.json")

    def sync_decision(self, id: int) -> None:
        """Sync the decision. To be called before publishing a completed entry, resting on it, or cleaning up an aborted
        one."""
        self.store.sync(f"{folder(id)}/decision.json")

    def sync_ack(self, acked: Acked) -> None:
        """Sync the ack. To be called before completing a checkpoint with it."""
        self.store.sync(f"{folder(acked.handle.entry)}/acks/{acked.ack.job}.json")

    def sync_hint(self) -> None:
        """Sync the hint. To be called before removing entries below it: an older hint would name a removed one."""
        self.store.sync("latest.json")

    def hint(self, latest: LatestHint) -> None:
        """Let later readers start at `latest.id`."""
        self.store.replace("latest.json", encode(latest))

    def hint_retained_count(self, counted: RetainedCount) -> None:
        """Let retention continue counting from here."""
        self.store.replace("kept.json", encode(counted))

    def hint_trouble(self, trouble: Trouble) -> None:
        """Leave a hint of the last error that a run met."""
        texts = {name: without_logins(getattr(trouble, name)) for name in ("what", "expected", "help")}
        self.store.replace("trouble.json", encode(msgspec.structs.replace(trouble, **texts)))

    def hint_progress(self, note: JobNote) -> None:
        """Tell whoever watches what an attempt at a job is doing."""
        self.store.replace(f"progress/{note.job}.json", encode(note))

    def put_samples(self, samples: Samples) -> None:
        """Keep samples of what a job has let through, beside its ack: for the attempt whose ack counts. They go with
        the entry, and nothing else depends on them."""
        self.store.replace(f"{folder(samples.id)}/samples/{samples.job}.json", encode(samples))

    def delete_samples(self, id: int) -> None:
        """Remove the samples of an entry that itself stays."""
        self.store.delete(f"{folder(id)}/samples")

    def hint_declined(self, declined: Declined) -> None:
        """Let triggers know that the code cannot make a checkpoint, and why, without passwords."""
        texts = {name: without_logins(getattr(declined, name)) for name in ("what", "expected", "help")}
        self.store.replace("declined.json", encode(msgspec.structs.replace(declined, **texts)))

    def forget_declined(self) -> None:
        """Remove that hint: the declaration is right, or is to be tried again."""
        self.store.delete_files(["declined.json"])

    def hint_tried(self, tried: Tried) -> None:
        """Remember that these stores were tested, so that nobody tests them again."""
        self.store.replace("tried.json", encode(tried))

    def waiters(self) -> list[Waiter]:
        """Return the runs that wait for a checkpoint, as far as they have said so."""
        paths = [f"waiting/{name}" for name in self.store.names("waiting")]
        found = ((path, self._read_hint(path, WaitingRun)) for path in paths)
        ages = ((waiting, self.store.age(path)) for path, waiting in found if waiting is not None)
        return [Waiter(waiting.run, waiting.rank, age) for waiting, age in ages if age is not None]

    def note_waiting(self, run: str, rank: Rank) -> None:
        """Note that a run waits for a checkpoint, or still does."""
        waiting = WaitingRun(**stamp(seams.new_id()), run=run, rank=rank)
        self.store.replace(_waiting_path(run), encode(waiting))

    def forget_waiting(self, run: str) -> None:
        """Remove the note: the run has its checkpoint, or did not come when it was its turn."""
        self.store.delete_files([_waiting_path(run)])

    def hint_seen_tables(self, seen: SeenTables) -> None:
        """Save later processes from reading the logs of these tables."""
        self.store.replace("tables.json", encode(seen))

    def record_hook_progress(self, told: HookProgress) -> None:
        """Remember that the hooks were notified, so that nobody notifies them again."""
        self.store.replace("told.json", encode(told))

    def age_of_decision(self, id: int) -> float | None:
        """Return the seconds since the entry was decided, by the store's clock alone; None if it is not."""
        return self.store.age(f"{folder(id)}/decision.json")

    def expired(self, plan: Plan) -> bool:
        """Return whether the entry is older than its timeout, by the store's clock alone."""
        age = self.store.age(f"{folder(plan.id)}/plan.json")
        return age is not None and age > plan.timeout_s

    def age(self, plan: Plan) -> float:
        """Return the seconds since the entry was created, by the store's clock alone; 0 if it is gone."""
        return self.store.age(f"{folder(plan.id)}/plan.json") or 0.0
