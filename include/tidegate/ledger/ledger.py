"""The ledger of a pipeline: its identity, and every record that is ever created in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tidegate import seams
from tidegate.errors import Corrupt, Rejected, Unavailable
from tidegate.ledger.log import EntryLog
from tidegate.ledger.records import Created, folder, stamp
from tidegate.ledger.store import CLOCK, LocalStore
from tidegate.protocol.view import Acked
from tidegate.records.codec import encode, sha256
from tidegate.records.interval import Interval
from tidegate.records.masking import without_logins
from tidegate.records.names import check_name, entry_name, run_key
from tidegate.records.place import check_path, is_url, local_path
from tidegate.records.records import (
    Ack,
    Beginning,
    Blob,
    Claimed,
    Copy,
    Decision,
    Discarded,
    Filled,
    Kept,
    LatestHint,
    Manifest,
    Overtaken,
    Pin,
    PipelineRecord,
    Plan,
    Published,
    Retired,
    Told,
    Tried,
    Trouble,
)

__all__ = ["Created", "Ledger", "folder_ledger", "open_ledger", "stamp"]


def _unfinished(claim: PipelineRecord) -> Rejected:
    origin = claim.origin
    assert origin is not None
    return Rejected(
        f"{claim.name!r} is being forked from checkpoint {origin.entry} of {origin.pipeline!r}, by {origin.by}",
        expected="a pipeline that is whole",
        help="wait for it; if it was broken off, give the same `tidegate fork` again: it goes on where it stopped",
        reason="FORK_UNFINISHED",
    )


def open_ledger(root: str, pipeline: str, options: dict[str, str] | None = None) -> Ledger:
    """The ledger of `pipeline` below `root`: a local folder or an object store's URL."""
    check_name("pipeline", pipeline)
    above = root.rstrip("/") if is_url(check_path(root)) else local_path(root)
    return folder_ledger(f"{above}/{pipeline}", pipeline, options or {})


def folder_ledger(folder: str, pipeline: str, options: Mapping[str, str]) -> Ledger:
    """The ledger that lies in a folder: a local one or an object store's URL."""
    if is_url(check_path(folder)):
        from tidegate.ledger.object_store import ObjectStore

        return Ledger(ObjectStore(folder, options), pipeline)
    return Ledger(LocalStore(local_path(folder)), pipeline)


class Ledger(EntryLog):
    """The only truth about a pipeline's checkpoints. Holds no state: every call asks the store."""

    @property
    def home(self) -> str:
        """The pipeline's own folder: an absolute local path or a URL."""
        return self.store.url("").rstrip("/")

    # -- identity ------------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        """pipeline.json; None if this pipeline has never been started. Never mistakes loss for a fresh start."""
        record = self._read("pipeline.json", PipelineRecord)
        if record is None and (left := self._there()):
            # Or somebody else has made it in between: it is always the first to be made.
            record = self._read("pipeline.json", PipelineRecord)
        if record is None and left and (claim := self.claim()) is not None:
            raise _unfinished(claim)
        if record is None and left:
            raise Corrupt(
                f"{self.store.url('pipeline.json')} is missing, but {', '.join(left[:3])} beside it is not",
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
        """pipeline.json, made now if this is the pipeline's first start."""
        found = self.identity()
        if found is not None:
            return found
        self.store.refuse_unsafe()
        new = PipelineRecord(**stamp(seams.new_id()), uid=seams.new_id(), name=self.pipeline)
        return self._create("pipeline.json", new).record

    def _there(self) -> list[str]:
        return [name for name in self.store.names("") if name != CLOCK]

    def begun(self) -> PipelineRecord | None:
        """pipeline.json, whatever else lies there."""
        return self._read("pipeline.json", PipelineRecord)

    def claim(self) -> PipelineRecord | None:
        """What the pipeline is going to be, while it is being forked."""
        return self._read("forking.json", PipelineRecord)

    def create_claim(self, record: PipelineRecord) -> None:
        """Say what the pipeline is going to be. The first to say so counts."""
        self.store.refuse_unsafe()
        self._create("forking.json", record)

    def begin(self, record: PipelineRecord) -> None:
        """A fork is whole: from now on it is a pipeline."""
        self._create("pipeline.json", record)

    def let_go_of_claim(self) -> None:
        """It is a pipeline now, or it never will be."""
        self.store.delete("forking.json")

    # -- savepoints that are folders of their own ----------------------------------------------------

    def copy(self, path: str) -> Copy | None:
        """What the folder is, or is going to be."""
        return self._read(path, Copy)

    def create_copy(self, path: str, copy: Copy) -> Copy:
        """Say so. The first to say it counts."""
        return self._create(path, copy).record

    def claimed(self, path: str) -> Claimed | None:
        """Who owns the folder."""
        return self._read(path, Claimed)

    def create_claimed(self, path: str, claimed: Claimed) -> Claimed:
        """Own it. The first one does."""
        return self._create(path, claimed).record

    # -- creates: every claim is settled by one of these ---------------------------------------------

    def create_entry(self, plan: Plan) -> Created[Plan]:
        """Claim id `plan.id`: the position behind the last entry that the caller has seen."""
        seams.fault("S1.entry.before")
        made = self._create(f"{folder(plan.id)}/plan.json", plan)
        seams.fault("S1.entry.after")
        return made

    def index_run(self, plan: Plan) -> None:
        """Remember for ever that the run has started this entry. Exists before the entry's decision does."""
        seams.fault("S2.run.before")
        path = f"runs/{run_key(plan.run)}/{entry_name(plan.id)}"
        try:
            made = self.store.create(path, b"")
        except Unavailable:
            if self.store.read(path) is None:
                raise
            made = False
        if not made:
            self.store.settle(path)  # W2: it outlives the decision that follows
        seams.fault("S2.run.after")

    def create_ack(self, ack: Ack) -> Created[Ack]:
        """The job's one effect. The first ack counts, whole."""
        seams.fault("S6.ack.before")
        made = self._create(f"{folder(ack.id)}/acks/{ack.job}.json", ack)
        seams.fault("S6.ack.after")
        return made

    def create_overtaken(self, overtaken: Overtaken) -> None:
        """Say that the checkpoint does not wait for the job."""
        seams.fault("S6.overtaken.before")
        self._create(f"{folder(overtaken.id)}/overtaken/{overtaken.job}.json", overtaken)
        seams.fault("S6.overtaken.after")

    def create_manifest(self, manifest: Manifest) -> str:
        """Write the manifest under its own hash. It means nothing until a decision names it."""
        seams.fault("S8.manifest.before")
        path = f"{folder(manifest.id)}/manifest-{sha256(encode(manifest))}.json"
        sha = self._create(path, manifest).sha
        seams.fault("S8.manifest.after")
        return sha

    def create_decision(self, decision: Decision) -> Created[Decision]:
        """THE commit point. What comes back is what holds, whoever wrote it."""
        path = f"{folder(decision.id)}/decision.json"
        if decision.outcome == "aborted":
            seams.fault("A1.abort.before")
            told = msgspec.structs.replace(decision, detail=without_logins(decision.detail))
            made = self._create(path, told)
            seams.fault("A1.abort.after")
            return made
        seams.fault("S9.decision.before")
        made = self._create(path, decision)
        seams.fault("S9.decision.after")
        return made

    def index_interval(self, filled: Filled) -> None:
        """Remember for ever that the interval was completed, and where. Exists before the view begins above it."""
        seams.fault("S11.interval.before")
        path = f"intervals/{Interval.of_record(filled.interval).key}/{entry_name(filled.id)}.json"
        if not self._create(path, filled).mine:
            self.store.settle(path)  # W2: it outlives the hint that follows
        seams.fault("S11.interval.after")

    def create_beginning(self, beginning: Beginning) -> Beginning:
        """Say where a source begins. The first to say it counts."""
        return self._create(f"beginnings/{beginning.source}/{entry_name(beginning.id)}.json", beginning).record

    def create_published(self, published: Published) -> None:
        """A hint for readers: first one stays."""
        seams.fault("S11.published.before")
        self._create(f"{folder(published.id)}/published.json", published)
        seams.fault("S11.published.after")

    def create_pin(self, pin: Pin) -> Created[Pin]:
        """Have retention spare an entry. Whoever makes one looks for the entry's tombstone behind it: `is_kept`."""
        seams.fault("R1.pin.before")
        made = self._create(f"pins/{pin.owner}.json", pin)
        seams.fault("R1.pin.after")
        return made

    def delete_pin(self, owner: str) -> None:
        """Nobody refers to it any more."""
        self.store.delete(f"pins/{owner}.json")

    def create_retired(self, retired: Retired) -> None:
        """Claim the entry for deletion."""
        seams.fault("S12.retire.before")
        self._create(f"{folder(retired.id)}/retired.json", retired)
        seams.fault("S12.retire.after")

    def create_discarded(self, discarded: Discarded) -> None:
        """Claim all that the last checkpoint names, for deletion."""
        seams.fault("S12.retire.before")
        self._create("discarded.json", discarded)
        seams.fault("S12.retire.after")

    def delete_entry(self, id: int, blobs: Iterable[Blob]) -> None:
        """Remove a retired entry's side files, then its records: the plan first, so that nobody takes the rest
        for an open entry, and the tombstone last, so that whoever finds this broken off goes on with it."""
        seams.fault("S13.delete.before")
        for blob in blobs:
            self.store.delete(blob.path)
        self.store.delete(f"{folder(id)}/plan.json")
        for name in self.store.names(folder(id)):
            if name != "retired.json":
                self.store.delete(f"{folder(id)}/{name}")
        self.store.delete(f"{folder(id)}/retired.json")
        self.store.delete(folder(id))
        seams.fault("S13.delete.after")

    # -- W2: whoever acts on what somebody else wrote makes sure first that it survives a power loss ---

    def settle_plan(self, id: int) -> None:
        """Before planning on top of what is not decided yet."""
        self.store.settle(f"{folder(id)}/plan.json")

    def settle_decision(self, id: int) -> None:
        """Before publishing what is completed, resting on it, or removing what was aborted."""
        self.store.settle(f"{folder(id)}/decision.json")

    def settle_ack(self, acked: Acked) -> None:
        """Before completing what was acked."""
        self.store.settle(f"{folder(acked.handle.entry)}/acks/{acked.ack.job}.json")

    def settle_hint(self) -> None:
        """Before removing what lies below it: an older hint would name what is gone."""
        self.store.settle("latest.json")

    def hint(self, latest: LatestHint) -> None:
        """Let later readers begin at `latest.id`."""
        self.store.replace("latest.json", encode(latest))

    def hint_kept(self, kept: Kept) -> None:
        """Let retention count on from here."""
        self.store.replace("kept.json", encode(kept))

    def hint_trouble(self, trouble: Trouble) -> None:
        """Tell whoever looks what a run has met."""
        texts = {name: without_logins(getattr(trouble, name)) for name in ("what", "expected", "help")}
        self.store.replace("trouble.json", encode(msgspec.structs.replace(trouble, **texts)))

    def hint_tried(self, tried: Tried) -> None:
        """Have nobody try these stores out again."""
        self.store.replace("tried.json", encode(tried))

    def hint_told(self, told: Told) -> None:
        """Have nobody tell the hooks of it again."""
        self.store.replace("told.json", encode(told))

    def age_of_decision(self, id: int) -> float | None:
        """Seconds since the entry was decided, by the store's clock alone."""
        return self.store.age(f"{folder(id)}/decision.json")

    def expired(self, plan: Plan) -> bool:
        """Whether the entry is older than its timeout, by the store's clock alone."""
        age = self.store.age(f"{folder(plan.id)}/plan.json")
        return age is not None and age > plan.timeout_s

    def age(self, plan: Plan) -> float:
        """Seconds since the entry was created, by the store's clock alone; 0 if it is gone."""
        return self.store.age(f"{folder(plan.id)}/plan.json") or 0.0
