"""An export folder: a log of what was added to it, and the moves that follow from the log.

    <folder>/_tidegate/00000001.json               the log: entry n is created once, by whoever is first
    <folder>/checkpoint=00000042/part-00000.csv    the rows of checkpoint 42
    <folder>/_manifests/00000042.json              which files these are; written once they all are there
    <folder>/_latest.json                          the last checkpoint; only a hint

Creating an entry of the log is the commit. What follows from it (copying the files, writing the manifest) gives the
same result whoever does it and however often, so anybody may finish what somebody else began.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidegate.delta import Location
from tidegate.delta.as_python import python_values
from tidegate.errors import Corrupt
from tidegate.ledger import LocalStore, Store
from tidegate.records import typed
from tidegate.records.records import Struct

__all__ = ["LINE", "ExportFolder", "ExportedFile", "LogEntry"]

LINE = "tidegate_line"
"""The column of a staged file that holds the lines of a text file."""

_LOG, _MANIFESTS, _INCOMING, _LATEST = "_tidegate", "_manifests", "_incoming", "_latest.json"


class ExportedFile(Struct, frozen=True, kw_only=True):
    """One file of an entry."""

    staged: str
    """Its path where the job staged it."""
    path: str
    """Its path in the folder of its checkpoint."""
    rows: int


class LogEntry(Struct, frozen=True, kw_only=True):
    """One entry of the log: a checkpoint's files."""

    checkpoint: int
    after: int | None
    app: str
    """Which sink of which pipeline: its permanent name."""
    format: str
    header: str = ""
    """The first line of each file; empty for none."""
    compression: str = "none"
    files: list[ExportedFile]
    suffix: str = ""
    """Set if another pipeline's checkpoint of the same number is in this export: it makes the names differ."""

    @property
    def name(self) -> str:
        """What the names of its folder and its manifest have in common."""
        return f"{self.checkpoint:08d}{self.suffix}"


class ExportManifest(Struct, frozen=True, kw_only=True):
    """What a tool needs to read exactly one checkpoint."""

    checkpoint: int
    after: int | None
    format: str
    rows: int
    number: int
    """Of the log's entry."""
    files: list[str]
    """Paths relative to the export's folder."""


@dataclass(frozen=True)
class LastEntry:
    """The last entry of the log."""

    number: int
    entry: LogEntry


class ExportFolder:
    """The folder of one export."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store = _store(location)

    def latest(self) -> LastEntry | None:
        """Return the last entry of the log. None: there is none."""
        names = self._store.names(_LOG, after=f"{self._hint():08d}") or self._store.names(_LOG)
        if not names:
            return None
        data = self._store.read(f"{_LOG}/{names[-1]}")
        number = int(names[-1].removesuffix(".json"))
        assert data is not None
        try:
            return LastEntry(number, typed.decode(data, LogEntry))
        except (msgspec.DecodeError, ValueError) as error:
            raise Corrupt(
                f"{self._store.url(f'{_LOG}/{names[-1]}')} cannot be read: {error}",
                expected="the file as tidegate wrote it",
                help="put it back from a copy",
                reason="EXPORT_DAMAGED",
            ) from None

    def _hint(self) -> int:
        """Return a number that the last entry's is above, or 0: so the log need not be listed from its beginning."""
        data = self._store.read(_LATEST)
        try:
            return max(0, typed.decode(data, ExportManifest).number - 1) if data is not None else 0
        except (msgspec.DecodeError, ValueError):
            return 0

    def is_finished(self, entry: LogEntry) -> bool:
        """Return whether all files of an entry are in place, as its manifest says."""
        return self._store.read(_manifest_path(entry)) is not None

    def is_name_taken(self, entry: LogEntry) -> bool:
        """Return whether the names of an entry that is not in the log yet belong to another one."""
        return self.is_finished(entry) or (
            self.location.is_local and self.location.local(_checkpoint_folder(entry)).exists()
        )

    def append(self, number: int, entry: LogEntry) -> bool:
        """Create entry `number` of the log: the commit. False: somebody else was faster."""
        if self.location.is_local:  # The store would make folders that nobody else may read.
            for folder in (_LOG, _MANIFESTS):
                self.location.local(folder).mkdir(parents=True, exist_ok=True)
        return self._store.create(f"{_LOG}/{number:08d}.json", msgspec.json.encode(entry))

    def finish(self, latest: LastEntry, staged: Location, attempt: str) -> None:
        """Put the files of an entry in place, then write its manifest. Any number of processes may do this at once."""
        entry = latest.entry
        folder = _checkpoint_folder(entry)
        if entry.files and self.location.is_local:
            self._place_locally(entry, staged, folder, attempt)
        else:
            for file in entry.files:
                write_file(entry, staged, file, self.location, f"{folder}/{file.path}")
        manifest = ExportManifest(
            checkpoint=entry.checkpoint,
            after=entry.after,
            format=entry.format,
            rows=sum(file.rows for file in entry.files),
            number=latest.number,
            files=[f"{folder}/{file.path}" for file in entry.files],
        )
        data = msgspec.json.encode(manifest)
        if self._store.create(_manifest_path(entry), data):
            self._store.replace(_LATEST, data)
        self._copy_mode(_manifest_path(entry), _LATEST)

    def _place_locally(self, entry: LogEntry, staged: Location, folder: str, attempt: str) -> None:
        """Write all files aside, then rename their folder: whoever lists the export sees all of a checkpoint's files or
        none."""
        if self.location.local(folder).exists():
            return
        aside = f"{_INCOMING}/{entry.name}-{attempt}"
        try:
            for file in entry.files:
                write_file(entry, staged, file, self.location, f"{aside}/{file.path}")
            self.location.sync(f"{aside}/{file.path}" for file in entry.files)
            try:
                os.rename(self.location.local(aside), self.location.local(folder))
            except OSError:
                if not self.location.local(folder).exists():
                    raise
            self.location.sync([f"{folder}/{entry.files[0].path}"])
        finally:
            self.location.remove_folder(aside)

    def _copy_mode(self, *paths: str) -> None:
        """Give the files the mode of the folder's other files: the store makes private ones."""
        if not self.location.is_local:
            return
        mode = self.location.local(_MANIFESTS).stat().st_mode & 0o666
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.location.local(path).chmod(mode)


def write_file(entry: LogEntry, staged: Location, file: ExportedFile, target: Location, path: str) -> None:
    """Write one file as the entry says, from the staged one."""
    if entry.format == "parquet":
        with staged.open(file.staged) as source, target.create(path) as sink:
            while chunk := source.read(8 << 20):
                sink.write(chunk)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    compression = None if entry.compression == "none" else entry.compression
    with (
        staged.open(file.staged) as source,
        pq.ParquetFile(source) as lines,
        target.create(path) as plain,
        pa.CompressedOutputStream(plain, compression) if compression else plain as sink,
    ):
        if entry.header:
            sink.write(f"{entry.header}\n".encode())
        for batch in lines.iter_batches(columns=[LINE]):
            sink.write("".join(f"{line}\n" for line in python_values(batch.column(0))).encode())


def _checkpoint_folder(entry: LogEntry) -> str:
    return f"checkpoint={entry.name}"


def _manifest_path(entry: LogEntry) -> str:
    return f"{_MANIFESTS}/{entry.name}.json"


def _store(location: Location) -> Store:
    if location.is_local:
        return LocalStore(Path(location.url))
    from tidegate.ledger.object_store import ObjectStore

    return ObjectStore(location.url, location.options)
