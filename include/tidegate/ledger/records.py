"""Records under their paths: create-if-absent, read back, and the side files that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.ledger.store import Store
from tidegate.records.codec import INLINE_ALL, INLINE_LIMIT, decode, decode_json, encode, encode_json, sha256
from tidegate.records.names import entry_name
from tidegate.records.records import Blob, Json, Payload, Record

__all__ = ["Created", "Records", "folder", "stamp"]

R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True)
class Created(Generic[T]):
    """What now lies under the path, and whether this call put it there."""

    record: T
    sha: str
    mine: bool


class Records:
    """Strict records and their side files on a store. Holds no state: every call asks the store."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline

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
            raise unclear or Unavailable(
                f"{self.store.url(path)} exists but cannot be read",
                help="it is tried again; if it goes on, `tidegate doctor` tells whether the storage keeps its promises",
                reason="STORAGE",
            )
        if found == data:  # the attempt id in it is ours alone
            self.store.settle(path)  # what failed may have been the sync: seen is not yet durable
            return Created(record, sha256(data), mine=True)
        return Created(decode(found, type(record), self.store.url(path)), sha256(found), mine=False)

    def _read(self, path: str, kind: type[R], id: int | None = None) -> R | None:
        """The record under `path`, if there is one; `id`: the checkpoint that it must be about."""
        data = self.store.read(path)
        if data is None:
            return None
        record = decode(data, kind, self.store.url(path))
        if id is not None and (found := getattr(record, "id", None)) != id:
            raise self._misplaced(path, f"checkpoint {found}")
        return record

    def _read_hint(self, path: str, kind: type[R]) -> R | None:
        """A hint is allowed to be lost or damaged: that only costs time."""
        try:
            return self._read(path, kind)
        except Corrupt:
            return None

    def _misplaced(self, path: str, whose: str) -> Corrupt:
        return Corrupt(
            f"{self.store.url(path)} is about {whose}",
            expected="each record under the path that it was written to",
            help="a file was copied or moved: restore the folder from a copy of the storage",
            reason="LEDGER_DAMAGED",
        )

    # -- payloads ------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> Blob:
        """An immutable side file. Its name is never shared with another writer's, so it can be deleted by name."""
        sha = sha256(data)
        path = f"blobs/{seams.new_id()}-{sha[:16]}.json"
        try:
            made = self.store.create(path, data)
        except Unavailable:
            if self.store.read(path) != data:
                raise
            self.store.settle(path)
            made = True
        if not made and self.store.read(path) != data:
            raise Unavailable(f"{self.store.url(path)} is taken", help="try again under another name", reason="STORAGE")
        return Blob(path=path, sha=sha, size=len(data))

    def copy_blob(self, blob: Blob, data: bytes) -> None:
        """A side file of another ledger, under its own name: nobody else has one of that name."""
        try:
            made = self.store.create(blob.path, data)
        except Unavailable:
            if self.store.read(blob.path) is None:
                raise  # to be tried again: nothing is damaged
            made = False
        if not made:
            self.get_blob(blob)
            self.store.settle(blob.path)

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

    def pack(self, value: Json, parts: int = 1) -> Payload:
        """A source's or sink's JSON for a record: inline if short, else as a side file.

        parts: how many there may be beside each other in one record; the more, the shorter each must be.
        """
        data = encode_json(value)
        inline = len(data) <= min(INLINE_LIMIT, INLINE_ALL // max(parts, 1))
        return Payload(data=value) if inline else Payload(blob=self.put_blob(data))

    def unpack(self, payload: Payload) -> Json:
        """The JSON of a payload, wherever it lies."""
        if payload.blob is None:
            if payload.data is None:
                raise Corrupt("a payload names neither data nor a file", help="restore the record from a copy")
            return payload.data
        return decode_json(self.get_blob(payload.blob), payload.blob.path)


class RecordStamp(TypedDict):
    """The fields that every record has."""

    attempt: str
    created: str


def stamp(attempt: str) -> RecordStamp:
    """The fields that every record has: who wrote it, and when by the writer's clock."""
    if not attempt:
        raise Invalid("a record needs the attempt id of its writer", help="give it: seams.new_id() makes one")
    return {"attempt": attempt, "created": seams.now().isoformat(timespec="milliseconds")}


def folder(id: int) -> str:
    """Where the records of an entry lie."""
    return f"checkpoints/{entry_name(id)}"
