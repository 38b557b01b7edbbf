"""The folder of a file export, with a log of its checkpoints.

    <folder>/_tidegate/00000001.json               the log; each entry is created only once, by the first process
    <folder>/checkpoint=00000042/part-00000.csv    the rows of checkpoint 42
    <folder>/_manifests/00000042.json              the list of its files, written once they are complete
    <folder>/_latest.json                          a hint at the last checkpoint

Creating an entry of the log is the commit. The following steps, which copy the files and write the manifest, are
idempotent, so any process may complete what another one has started.
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
"""The column of a staged file with the lines of a text file."""

_LOG, _MANIFESTS, _INCOMING, _LATEST = "_tidegate", "_manifests", "_incoming", "_latest.json"


class ExportedFile(Struct, frozen=True, kw_only=True):
    """A file of an entry."""

    staged: str
    """The path at which the job staged it."""
    path: str
    """The path within the checkpoint's folder."""
    rows: int


class LogEntry(Struct, frozen=True, kw_only=True):
    """An entry of the log: the files of a checkpoint."""

    checkpoint: int
    after: int | None
    app: str
    """The permanent name of the sink and its pipeline."""
    format: str
    header: str = ""
    """The first line of each file, or empty."""
    compression: str = "none"
    files: list[ExportedFile]
    suffix: str = ""
    """Set if the export has another pipeline's checkpoint of the same number, so that the names differ."""

    @property
    def name(self) -> str:
        """The common part of the names of its folder and its manifest."""
        return f"{self.checkpoint:08d}{self.suffix}"


class ExportManifest(Struct, frozen=True, kw_only=True):
    """The list of a checkpoint's files, for tools that read the export."""

    checkpoint: int
    after: int | None
    format: str
    rows: int
    number: int
    """The number of the log entry."""
    files: list[str]
    """Paths relative to the folder of the export."""


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
        """Return the last entry of the log, or None."""
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
                help="restore it from a backup",
                reason="EXPORT_DAMAGED",
            ) from None

    def _hint(self) -> int:
        """Return a number below that of the last entry, so that the log need not be listed from its beginning."""
        data = self._store.read(_LATEST)
        if data is None:
            return 0
        try:
            return max(0, typed.decode(data, ExportManifest).number - 1)
        except (msgspec.DecodeError, ValueError):
            return 0

    def is_finished(self, entry: LogEntry) -> bool:
        """Return whether all files of an entry are in place, which is when its manifest exists."""
        return self._store.read(_manifest_path(entry)) is not None

    def is_name_taken(self, entry: LogEntry) -> bool:
        """Return whether another entry uses the name of this one, which is not in the log yet."""
        if self.is_finished(entry):
            return True
        return self.location.is_local and self.location.local(_checkpoint_folder(entry)).exists()

    def append(self, number: int, entry: LogEntry) -> bool:
        """Create entry `number` of the log, which is the commit. Return False if another process was faster."""
        if self.location.is_local:  # the store would create folders that other users cannot read
            for folder in (_LOG, _MANIFESTS):
                self.location.local(folder).mkdir(parents=True, exist_ok=True)
        return self._store.create(f"{_LOG}/{number:08d}.json", msgspec.json.encode(entry))

    def finish(self, latest: LastEntry, staged: Location, attempt: str) -> None:
        """Put the files of an entry in place, then write its manifest. Several processes may do this at once."""
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
        """Write all files to a temporary folder, then rename it, so that readers see all of its files or none."""
        if self.location.local(folder).exists():
            return
        incoming = f"{_INCOMING}/{entry.name}-{attempt}"
        try:
            for file in entry.files:
                write_file(entry, staged, file, self.location, f"{incoming}/{file.path}")
            self.location.sync(f"{incoming}/{file.path}" for file in entry.files)
            try:
                os.rename(self.location.local(incoming), self.location.local(folder))
            except OSError:
                if not self.location.local(folder).exists():
                    raise
            self.location.sync([f"{folder}/{entry.files[0].path}"])
        finally:
            self.location.remove_folder(incoming)

    def _copy_mode(self, *paths: str) -> None:
        """Make files as readable as the folder: the store creates them as private."""
        if not self.location.is_local:
            return
        mode = self.location.local(_MANIFESTS).stat().st_mode & 0o666
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.location.local(path).chmod(mode)


def write_file(entry: LogEntry, staged: Location, file: ExportedFile, target: Location, path: str) -> None:
    """Write a file in the format of the entry, from the staged file."""
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
        target.create(path) as raw,
        pa.CompressedOutputStream(raw, compression) if compression else raw as sink,
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
