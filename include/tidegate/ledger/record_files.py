"""Records by path: create if absent, read back, and read and write the side files that records name."""

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
    """The record that is now at the path, and whether this call created it."""

    record: T
    sha: str
    is_new: bool


class Records:
    """Strict records and their side files on a store. Stateless: every call reads the store."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline

    # -- the two ways to touch a record --------------------------------------------------------------

    def _create_if_absent(self, path: str, record: R) -> Created[R]:
        """Create the record if absent. An unclear answer is resolved by reading back (W1)."""
        data = encode(record)
        unclear: Unavailable | None = None
        try:
            if self.store.create(path, data):
                return Created(record, sha256(data), is_new=True)
        except Unavailable as error:
            unclear = error
        existing = self.store.read(path)
        if existing is None:
            raise unclear or Unavailable(
                f"{self.store.url(path)} exists but cannot be read",
                help="it is retried; if this persists, `tidegate doctor` checks whether the storage keeps its promises",
                reason="STORAGE",
            )
        if existing == data:  # the attempt id in it is ours alone
            self.store.sync(path)  # the sync may have failed: a visible record is not yet a durable one
            return Created(record, sha256(data), is_new=True)
        return Created(decode(existing, type(record), self.store.url(path)), sha256(existing), is_new=False)

    def _read(self, path: str, kind: type[R], id: int | None = None) -> R | None:
        """Read the record at `path`, or return None. id: the checkpoint that it must be about."""
        return self._record_in(self.store.read(path), path, kind, id)

    def _record_in(self, data: bytes | None, path: str, kind: type[R], id: int | None = None) -> R | None:
        """Return the record in the bytes that were read at `path`."""
        if data is None:
            return None
        record = decode(data, kind, self.store.url(path))
        record_id = getattr(record, "id", None)
        if id is not None and record_id != id:
            raise self._misplaced(path, f"checkpoint {record_id}")
        return record

    def _read_hint(self, path: str, kind: type[R]) -> R | None:
        """Read a hint. None if it is lost or damaged, which only costs time."""
        try:
            return self._read(path, kind)
        except Corrupt:
            return None

    def _misplaced(self, path: str, subject: str) -> Corrupt:
        return Corrupt(
            f"{self.store.url(path)} is about {subject}",
            expected="each record under the path that it was written to",
            help="a file was copied or moved: restore the folder from a copy of the storage",
            reason="LEDGER_DAMAGED",
        )

    # -- payloads ------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> Blob:
        """Write an immutable side file. No other writer ever uses its name, so it can be deleted by name."""
        sha = sha256(data)
        path = f"blobs/{seams.new_id()}-{sha[:16]}.json"
        try:
            created = self.store.create(path, data)
        except Unavailable:
            if self.store.read(path) != data:
                raise
            self.store.sync(path)
            created = True
        if not created and self.store.read(path) != data:
            raise Unavailable(f"{self.store.url(path)} is taken", help="try again under another name", reason="STORAGE")
        return Blob(path=path, sha=sha, size=len(data))

    def copy_blob(self, blob: Blob, data: bytes) -> None:
        """Copy a side file of another ledger under the same name, which is unique."""
        try:
            created = self.store.create(blob.path, data)
        except Unavailable:
            if self.store.read(blob.path) is None:
                raise  # to be retried: nothing is damaged
            created = False
        if not created:
            self.get_blob(blob)
            self.store.sync(blob.path)

    def get_blob(self, blob: Blob) -> bytes:
        """Return the bytes of a side file. Raise Corrupt if it is missing or changed."""
        data = self.store.read(blob.path)
        if data is None or sha256(data) != blob.sha:
            if data is None:
                state = "is missing"
            else:
                state = "is not what was written (its hash differs)"
            raise Corrupt(
                f"{self.store.url(blob.path)} {state}",
                expected=f"{blob.size:,} bytes with sha256 {blob.sha}",
                help="restore the file from a copy of the storage",
                reason="BAD_BLOB",
            )
        return data

    def pack(self, value: Json, parts: int = 1) -> Payload:
        """Pack the JSON of a source or sink for a record: inline if short, otherwise as a side file.

        parts: how many payloads one record may hold; the more, the shorter each inline one must be.
        """
        data = encode_json(value)
        inline = len(data) <= min(INLINE_LIMIT, INLINE_ALL // max(parts, 1))
        if inline:
            return Payload(data=value)
        return Payload(blob=self.put_blob(data))

    def unpack(self, payload: Payload) -> Json:
        """Return the JSON of a payload, inline or from its side file."""
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
    """Return the fields that every record has: its writer, and the time by the writer's clock."""
    if not attempt:
        raise Invalid("a record needs the attempt id of its writer", help="pass one: seams.new_id() generates it")
    return {"attempt": attempt, "created": seams.now().isoformat(timespec="milliseconds")}


def folder(id: int) -> str:
    """Return the folder of an entry's records."""
    return f"checkpoints/{entry_name(id)}"
