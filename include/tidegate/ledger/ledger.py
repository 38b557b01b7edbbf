"""Records under their paths: create, read back, and the view of the log that the protocol decides on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.ledger.store import LocalStore, Store
from tidegate.model.codec import INLINE_LIMIT, decode, decode_json, encode, encode_json, sha256
from tidegate.model.names import check_name, entry_id, entry_name, run_key
from tidegate.model.place import is_url
from tidegate.model.records import (
    Ack,
    Blob,
    Decision,
    Handle,
    Json,
    Latest,
    Manifest,
    Payload,
    PipelineRecord,
    Plan,
    Published,
    Record,
    Retired,
)
from tidegate.model.view import Acked, Entry, View

__all__ = ["Created", "Ledger", "open_ledger"]

R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True)
class Created(Generic[T]):
    """What now lies under the path, and whether this call put it there."""

    record: T
    sha: str
    mine: bool


def open_ledger(root: str, pipeline: str, options: dict[str, str] | None = None) -> Ledger:
    """The ledger of `pipeline` below `root`: a local folder or an object store's URL."""
    check_name("pipeline", pipeline)
    if is_url(root):
        from tidegate.ledger.object_store import ObjectStore

        return Ledger(ObjectStore(f"{root.rstrip('/')}/{pipeline}", options or {}), pipeline)
    return Ledger(LocalStore(f"{root.removeprefix('file://')}/{pipeline}"), pipeline)


class Ledger:
    """The only truth about a pipeline's checkpoints. Holds no state: every call asks the store."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline

    # -- identity ------------------------------------------------------------------------------------

    def identity(self) -> PipelineRecord | None:
        """pipeline.json; None if this pipeline has never been started. Never mistakes loss for a fresh start."""
        record = self._read("pipeline.json", PipelineRecord)
        if record is None and (left := self.store.names("")):
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
        new = PipelineRecord(**stamp(seams.new_id()), uid=seams.new_id(), name=self.pipeline)
        return self._create("pipeline.json", new).record

    # -- the log -------------------------------------------------------------------------------------

    def view(self, run: str | None = None) -> View:
        """The log from its last settled entry on, and all that `run` has started. One consistent proposal."""
        hint = self._hint()
        ids = self._ids_from(hint)
        entries = tuple(self._entry(id) for id in ids)
        seen = {entry.id for entry in entries}
        own: list[Entry | int] = []
        for id in self.run_ids(run) if run is not None else ():
            if id not in seen:
                own.append(self.entry(id) or id)
        return View(entries=entries, settled=hint, own_elsewhere=tuple(own))

    def entry(self, id: int) -> Entry | None:
        """One entry with all its records, or None if it does not exist or was retired."""
        plan = self._read(f"{_folder(id)}/plan.json", Plan)
        return self._filled(plan) if plan is not None else None

    def ids(self, after: int = 0) -> list[int]:
        """All entry ids above `after` that have a folder, ascending: a proposal, like every listing."""
        names = self.store.names("checkpoints", after=entry_name(after) if after > 0 else "")
        return [id for name in names if (id := entry_id(name)) is not None]

    def run_ids(self, run: str) -> list[int]:
        """The entries that `run` has started, by the index that is never deleted."""
        names = self.store.names(f"runs/{run_key(run)}")
        return [id for name in names if (id := entry_id(name)) is not None]

    def _hint(self) -> int:
        """An entry that is completed and published, with nothing open below it; 0: begin at the beginning.

        A lost or damaged hint only costs time.
        """
        try:
            latest = self._read("latest.json", Latest)
        except Corrupt:
            return 0
        return latest.id if latest is not None else 0

    def _ids_from(self, hint: int) -> list[int]:
        """The entries from the hint on, checked to have no holes: a missing record is never 'nothing yet'."""
        ids = self.ids(after=max(hint - 1, 0))
        if ids and self.store.read(f"{_folder(ids[-1])}/plan.json") is None:
            ids.pop()  # its creator stopped between making the folder and making the plan
        while not hint and ids and self._going(ids[0]):
            ids.pop(0)
        if hint and (not ids or ids[0] != hint):
            raise self._hole(hint)
        for before, after in itertools.pairwise(ids):
            if after != before + 1:
                raise self._hole(before + 1)
        return ids

    def _going(self, id: int) -> bool:
        """Whether retention is at this entry, or was: its tombstone, or nothing at all, is left."""
        return self.retired(id) or not self.store.names(_folder(id))

    def _entry(self, id: int) -> Entry:
        entry = self.entry(id)
        if entry is None:
            raise self._hole(id)
        return entry

    def _filled(self, plan: Plan) -> Entry:
        decision = self.decision(plan.id)
        manifest = None
        if decision is not None and decision.manifest is not None:
            manifest = self.manifest(plan.id, decision.manifest)
        acks = {job: acked for job in plan.acks if (acked := self.ack(plan.id, job)) is not None}
        return Entry(plan=plan, acks=acks, decision=decision, manifest=manifest)

    def decision(self, id: int) -> Decision | None:
        """What was decided about `id`, if anything."""
        return self._read(f"{_folder(id)}/decision.json", Decision)

    def ack(self, id: int, job: str) -> Acked | None:
        """The job's ack for `id`, with the hash that names it."""
        path = f"{_folder(id)}/acks/{job}.json"
        data = self.store.read(path)
        if data is None:
            return None
        return Acked(ack=decode(data, Ack, path), handle=Handle(entry=id, sha=sha256(data)))

    def manifest(self, id: int, sha: str) -> Manifest:
        """The manifest that a decision names, checked against the hash in its name."""
        path = f"{_folder(id)}/manifest-{sha}.json"
        data = self.store.read(path)
        if data is None or sha256(data) != sha:
            state = "is missing" if data is None else "is not what was written (its hash differs)"
            raise Corrupt(
                f"{self.store.url(path)} {state}, but checkpoint {id} is completed by it",
                expected=f"a manifest with sha256 {sha}",
                help="restore the file from a copy of the storage; nothing has been changed",
                reason="BAD_MANIFEST",
            )
        return decode(data, Manifest, path)

    def published(self, id: int) -> Published | None:
        """Where the tables stood after `id`: for readers."""
        return self._read(f"{_folder(id)}/published.json", Published)

    def retired(self, id: int) -> bool:
        """Whether retention has claimed the entry."""
        return self._read(f"{_folder(id)}/retired.json", Retired) is not None

    def _hole(self, id: int) -> Corrupt:
        return Corrupt(
            f"{self.store.url(_folder(id))}/plan.json is missing, but the log refers to checkpoint {id}",
            expected="every entry from the last settled one on",
            help="restore the folder from a copy of the storage; never delete entries by hand",
            reason="LEDGER_DAMAGED",
        )

    # -- creates: every claim is settled by one of these ---------------------------------------------

    def create_entry(self, plan: Plan) -> Created[Plan]:
        """Claim id `plan.id`: the position behind the last entry that the caller has seen."""
        seams.fault("S1.entry.before")
        made = self._create(f"{_folder(plan.id)}/plan.json", plan)
        seams.fault("S1.entry.after")
        return made

    def index_run(self, plan: Plan) -> None:
        """Remember for ever that the run has started this entry. Exists before the entry's decision does."""
        seams.fault("S2.run.before")
        path = f"runs/{run_key(plan.run)}/{entry_name(plan.id)}"
        try:
            self.store.create(path, b"")
        except Unavailable:
            if self.store.read(path) is None:
                raise
        seams.fault("S2.run.after")

    def create_ack(self, ack: Ack) -> Created[Ack]:
        """The job's one effect. The first ack counts, whole."""
        seams.fault("S6.ack.before")
        made = self._create(f"{_folder(ack.id)}/acks/{ack.job}.json", ack)
        seams.fault("S6.ack.after")
        return made

    def create_manifest(self, manifest: Manifest) -> str:
        """Write the manifest under its own hash. It means nothing until a decision names it."""
        seams.fault("S8.manifest.before")
        path = f"{_folder(manifest.id)}/manifest-{sha256(encode(manifest))}.json"
        sha = self._create(path, manifest).sha
        seams.fault("S8.manifest.after")
        return sha

    def create_decision(self, decision: Decision) -> Created[Decision]:
        """THE commit point. What comes back is what holds, whoever wrote it."""
        path = f"{_folder(decision.id)}/decision.json"
        if decision.outcome == "aborted":
            seams.fault("A1.abort.before")
            made = self._create(path, decision)
            seams.fault("A1.abort.after")
            return made
        seams.fault("S9.decision.before")
        made = self._create(path, decision)
        seams.fault("S9.decision.after")
        return made

    def create_published(self, published: Published) -> None:
        """A hint for readers: first one stays."""
        seams.fault("S11.published.before")
        self._create(f"{_folder(published.id)}/published.json", published)
        seams.fault("S11.published.after")

    def create_retired(self, retired: Retired) -> None:
        """Claim the entry for deletion."""
        seams.fault("S12.retire.before")
        self._create(f"{_folder(retired.id)}/retired.json", retired)
        seams.fault("S12.retire.after")

    def delete_entry(self, id: int, blobs: Iterable[Blob]) -> None:
        """Remove a retired entry's records and side files. The plan and the tombstone go last: until then
        whoever finds the rest broken off goes on with it."""
        seams.fault("S13.delete.before")
        for blob in blobs:
            self.store.delete(blob.path)
        for name in self.store.names(_folder(id)):
            if name not in ("plan.json", "retired.json"):
                self.store.delete(f"{_folder(id)}/{name}")
        for name in ("plan.json", "retired.json", ""):
            self.store.delete(f"{_folder(id)}/{name}".rstrip("/"))
        seams.fault("S13.delete.after")

    def settle_decision(self, id: int) -> None:
        """W2: whoever acts on a decision makes sure first that it survives a power loss."""
        self.store.settle(f"{_folder(id)}/decision.json")

    def hint(self, latest: Latest) -> None:
        """Let later readers begin at `latest.id`."""
        self.store.replace("latest.json", encode(latest))

    def expired(self, plan: Plan) -> bool:
        """Whether the entry is older than its timeout, by the store's clock alone."""
        age = self.store.age(f"{_folder(plan.id)}/plan.json")
        return age is not None and age > plan.timeout_s

    # -- payloads ------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> Blob:
        """An immutable side file. Its name is never shared with another writer's, so it can be deleted by name."""
        sha = sha256(data)
        path = f"blobs/{seams.new_id()}-{sha[:16]}.json"
        try:
            self.store.create(path, data)
        except Unavailable:
            if self.store.read(path) != data:
                raise
        return Blob(path=path, sha=sha, size=len(data))

    def get_blob(self, blob: Blob) -> bytes:
        """The bytes of a side file, checked."""
        data = self.store.read(blob.path)
        if data is None or sha256(data) != blob.sha:
            state = "is missing" if data is None else "is not what was written (its hash differs)"
            raise Corrupt(
                f"{self.store.url(blob.path)} {state}",
                expected=f"{blob.size:,} bytes with sha256 {blob.sha}",
                help="restore the file from a copy of the storage",
                reason="BAD_BLOB",
            )
        return data

    def pack(self, value: Json) -> Payload:
        """A source's or sink's JSON for a record: inline if short, else as a side file."""
        data = encode_json(value)
        return Payload(data=value) if len(data) <= INLINE_LIMIT else Payload(blob=self.put_blob(data))

    def unpack(self, payload: Payload) -> Json:
        """The JSON of a payload, wherever it lies."""
        if payload.blob is None:
            return payload.data or {}
        return decode_json(self.get_blob(payload.blob), payload.blob.path)

    # -- the two ways to touch a record --------------------------------------------------------------

    def _create(self, path: str, record: R) -> Created[R]:
        """Create-if-absent; an unclear answer is resolved by reading back (W1)."""
        data = encode(record)
        unclear: Unavailable | None = None
        try:
            if self.store.create(path, data):
                return Created(record, sha256(data), mine=True)
        except Unavailable as error:
            unclear = error
        found = self.store.read(path)
        if found is None:
            raise unclear or Unavailable(f"{self.store.url(path)} exists but cannot be read", reason="STORAGE")
        if found == data:  # the attempt id in it is ours alone
            return Created(record, sha256(data), mine=True)
        return Created(decode(found, type(record), path), sha256(found), mine=False)

    def _read(self, path: str, kind: type[R]) -> R | None:
        data = self.store.read(path)
        return None if data is None else decode(data, kind, self.store.url(path))


class Stamp(TypedDict):
    """The fields that every record has."""

    attempt: str
    created: str


def stamp(attempt: str) -> Stamp:
    """The fields that every record has: who wrote it, and when by the writer's clock."""
    if not attempt:
        raise Invalid("a record needs the attempt id of its writer")
    return {"attempt": attempt, "created": seams.now().isoformat(timespec="milliseconds")}


def _folder(id: int) -> str:
    return f"checkpoints/{entry_name(id)}"
