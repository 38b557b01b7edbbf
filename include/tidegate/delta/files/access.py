"""Access to the files of a table: on local disks through the operating system, otherwise through an object-store
client.

Paths are relative to the table's root and raw (nothing is percent-encoded). For local folders, delta-rs' runtime is
never used here, because it does not survive a fork.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.errors import Invalid, Unavailable
from tidegate.records.airflow_login import StorageLogin
from tidegate.records.place import Place, is_url, store_of
from tidegate.stores import bucket_client, delete_objects, refusal_of

__all__ = ["Location", "create_path", "error_text", "file_system", "locate", "open_path", "redact_path", "unavailable"]

_SYNCS = 8
_PART_BYTES = 8 << 20
"""Larger objects are uploaded in parts of this size."""

_LOCKS = {"aws_s3_locking_provider", "s3_locking_provider"}
"""The delta-rs options that configure a lock."""


_RENAMES = {"allow_unsafe_rename", "mount_allow_unsafe_rename"}
"""The delta-rs options for commits on disks without hard links."""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAX_ERROR_CHARS = 500
_PARTITION = re.compile(r"((?:^|/)[^/=]+=)[^/]*(?=/)")


@dataclass(frozen=True)
class Location:
    """The root folder of a table, and its storage options, which are never shown because they may hold secrets."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.is_local and isinstance(self.options, StorageLogin):  # a folder needs no login, so none is looked up
            object.__setattr__(self, "options", self.options.given)

    @property
    def is_local(self) -> bool:
        return not is_url(self.url)

    @property
    def has_lock(self) -> bool:
        """Return whether delta-rs commits there under a lock, because the store has no conditional put."""
        if self.is_local:
            return False
        return self._has_option(_LOCKS) or bool(os.environ.get("AWS_S3_LOCKING_PROVIDER"))

    @property
    def can_put_new(self) -> bool:
        """Return whether `put_new` excludes all other writers of the same file."""
        if self.is_local:
            return not self._has_option(_RENAMES)
        return not self.has_lock

    def _has_option(self, names: set[str]) -> bool:
        return bool(names & {name.lower() for name in self.options})

    def local(self, path: str) -> Path:
        """Return `path` on the local disk."""
        return Path(self.url, path)

    def full(self, path: str) -> str:
        """Return `path` for Spark: an absolute local path or a URL."""
        if self.is_local:
            return str(self.local(path))
        return f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None if it does not exist."""
        try:
            if self.is_local:
                return self.local(path).read_bytes()
            return _get(self, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unavailable(self.full(path), error) from error

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and its tag, which differs for different bytes, or None if it does not exist.

        The tag is empty if the store has none.
        """
        try:
            with _in_bucket(self) as (client, prefix):
                result = client.get(prefix + path)
                return bytes(result.bytes()), result.meta["e_tag"] or ""
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unavailable(self.full(path), error) from error

    def tags(self, folder: str, after: str) -> dict[str, str]:
        """Return the tags, by name, of the objects directly in a folder whose names sort after `after`. The listing may
        lag behind writes."""
        tags = {}
        try:
            with _in_bucket(self) as (client, prefix):
                folder_prefix = f"{prefix}{folder}/"
                for batch in client.list(folder_prefix, offset=folder_prefix + after):
                    for meta in batch:
                        name = meta["path"].removeprefix(folder_prefix)
                        if "/" not in name:
                            tags[name] = meta["e_tag"] or ""
        except OSError as error:
            raise unavailable(self.full(folder), error) from error
        return tags

    def put_new(self, path: str, data: bytes) -> str | None:
        """Write a new file atomically, and return the store's tag for it ("" on disks), or None if it already exists.

        Raise OSError if the outcome is unknown. On an object store this is one conditional put. On a disk the data is
        written to a temporary file, synced, and linked to its name.
        """
        if self.is_local:
            is_new = _link_new(self.local(path), data)
            return "" if is_new else None
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _in_bucket(self) as (client, prefix):
            try:
                return str(client.put(prefix + path, data, mode="create")["e_tag"] or "")
            except (AlreadyExistsError, PreconditionError):
                return None

    def open(self, path: str) -> Any:
        """Open the file as a pyarrow input, for random access."""
        return open_path(self.full(path), self.options)

    def create(self, path: str) -> AbstractContextManager[Any]:
        """Create a new file as a pyarrow output, and its parent folders. It exists only if the block succeeds."""
        return create_path(self.full(path), self.options)

    def size(self, path: str) -> int | None:
        """Return the file's size, or None if it does not exist."""
        try:
            if self.is_local:
                return self.local(path).stat().st_size
            return _size(self, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(self.full(path), error) from error

    def walk(self, folder: str) -> list[tuple[str, int]]:
        """Return all files below `folder` with their sizes, including hidden files. A missing folder is empty."""
        try:
            paths = _walk_local(self, folder) if self.is_local else _walk_url(self, folder)
            return sorted(paths)
        except OSError as error:
            raise unavailable(self.full(folder), error) from error

    def modified(self, folder: str) -> dict[str, float]:
        """Return all files below `folder`, with the time of their last write in seconds by the store's clock."""
        try:
            if self.is_local:
                return {path: self.local(path).stat().st_mtime for path, _ in _walk_local(self, folder)}
            return {path: meta["last_modified"].timestamp() for path, meta in _listed(self, folder)}
        except FileNotFoundError:
            return {}  # another process is deleting it
        except OSError as error:
            raise unavailable(self.full(folder), error) from error

    def remove_folder(self, folder: str) -> None:
        """Delete `folder` and everything below it. Does nothing if it does not exist."""
        try:
            if self.is_local:
                shutil.rmtree(self.local(folder))
            else:
                self.remove_files(path for path, _ in _walk_url(self, folder))
        except FileNotFoundError:
            return
        except OSError as error:
            raise unavailable(self.full(folder), error) from error

    def remove_files(self, paths: Iterable[str]) -> None:
        """Delete exactly these files. Ignores those that do not exist."""
        try:
            if self.is_local:
                for path in paths:
                    self.local(path).unlink(missing_ok=True)
            else:
                _delete(self, paths)
        except OSError as error:
            raise unavailable(self.url, error) from error

    def sync(self, paths: Iterable[str]) -> None:
        """Make local files durable, with all folders from them up to the root's parent. In object stores, files already
        are."""
        if not self.is_local:
            return
        root = Path(self.url)
        files = [self.local(path) for path in paths]
        folders: set[Path] = set()
        for file in files:
            folders.update(parent for parent in file.parents if parent.is_relative_to(root.parent))
        try:
            _fsync_all(files, threads_from=2)
            _fsync_all(folders, threads_from=_SYNCS)
        except OSError as error:
            raise unavailable(self.url, error) from error


def locate(place: Place, path: str) -> Location:
    """Return the location of the table that the user calls `path`."""
    url = place.url(path)
    if not is_url(url) and any(letter in url for letter in "%\\"):
        raise Invalid(
            f"path {url!r} contains a % or a \\, which delta-rs interprets",
            expected="a folder without these characters",
            help="use another folder",
            reason="BAD_PATH",
        )
    return Location(url, place.options)


def redact_path(path: str) -> str:
    """Return a path without partition values, which are row data, for errors and logs. The file's name still identifies
    it."""
    return _PARTITION.sub(r"\1…", path)


def unavailable(location: str, error: BaseException) -> Unavailable:
    """Return the error for a failed storage operation. It contains the path and the reason, never the options."""
    location, message = redact_path(location), error_text(error)
    if refusal := refusal_of(message):
        return Unavailable(f"The store {refusal.what} for {location}: {message}", help=refusal.help, reason="STORAGE")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space"
    else:
        remedy = "check the path, permissions and network; the next attempt retries"
    return Unavailable(
        f"Storage did not answer for {location}: {message}",
        help=remedy,
        reason="STORAGE",
    )


def error_text(error: BaseException) -> str:
    """Return an engine's error as one line: delta-rs prints coloured trees and stack traces."""
    text = _COLOUR.sub("", str(error)).split("\n   0: ")[0]
    return redact_path(" ".join(text.replace("↳", ":").split()))[:_MAX_ERROR_CHARS]


def _link_new(path: Path, data: bytes) -> bool:
    """Create a file atomically. Return False if it already exists."""
    temporary = path.with_name(f"{path.name}.{seams.new_id()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _fsync_all(paths: Collection[Path], threads_from: int) -> None:
    """Sync paths concurrently, so that the disk can combine writes. For fewer than `threads_from`, threads cost more
    than that saves."""
    if len(paths) < threads_from:
        for path in paths:
            _fsync(path)
        return
    with ThreadPoolExecutor(_SYNCS) as pool:
        list(pool.map(_fsync, paths))


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _walk_local(location: Location, folder: str) -> Iterator[tuple[str, int]]:
    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for base, _, names in os.walk(location.local(folder), onerror=fail):
        for name in names:
            path = Path(base, name)
            yield path.relative_to(location.url).as_posix(), path.stat().st_size


# --- object stores -----------------------------------------------------------------------------------------


def file_system(location: Location) -> Any:
    """Return the root as a pyarrow file system, on delta-rs' store, for random access."""
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(location.url, dict(location.options)))


def open_path(path: str, options: Mapping[str, str]) -> Any:
    """Open a file by its full path as a pyarrow input: a memory map, or an object."""
    import pyarrow as pa

    if not is_url(path):
        return pa.memory_map(path)
    store, path_in_bucket = _bucket(path, options)
    return store.open_input_file(path_in_bucket)


@contextlib.contextmanager
def create_path(path: str, options: Mapping[str, str]) -> Iterator[Any]:
    """Create a file by its full path as a pyarrow output. It exists once the block ends.

    If the block fails, no file remains, and an object of that name is unchanged. Closing the output does not complete
    it, because pyarrow also closes outputs during an error or when they are freed.
    """
    import pyarrow as pa

    if is_url(path):
        with _Upload(path, options) as upload, pa.PythonFile(upload, mode="w") as file:
            yield file
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        with pa.OSFile(path, "wb") as file:
            yield file
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


class _Upload:
    """A new object, as a writable file for pyarrow. A small one is uploaded with one request at the end."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        from obstore import open_writer

        self._path, self._options, self.closed = path, options, False
        with _in_bucket(Location(store_of(path), options)) as (client, _):
            self._writer = open_writer(client, path[len(store_of(path)) + 1 :], buffer_size=_PART_BYTES)

    def __enter__(self) -> _Upload:
        return self

    def __exit__(self, *failure: Any) -> None:
        """Complete the object, or after a failure abort the upload, so that no object is created."""
        if failure[0] is None:
            with _in_bucket(Location(store_of(self._path), self._options)):
                self._writer.close()
            return
        with contextlib.suppress(Exception):  # the caller must see the original failure
            self._writer.__exit__(*failure)

    def write(self, data: Any) -> int:
        with _in_bucket(Location(store_of(self._path), self._options)):
            return int(self._writer.write(memoryview(data).cast("B")))

    def flush(self) -> None:
        """Do nothing: an object is visible only when it is complete."""

    def close(self) -> None:
        """Only record it: the end of the block completes the object."""
        self.closed = True


_buckets: dict[tuple[int, str, frozenset[tuple[str, str]]], Any] = {}
"""A client for each process, bucket and login. Creating one takes as long as many requests; none survives a fork."""


def _bucket(path: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the file system of a path's bucket, and the path in it."""
    store = store_of(path)
    key = (os.getpid(), store, frozenset(options.items()))
    if key not in _buckets:
        _buckets[key] = file_system(Location(store, options))
    return _buckets[key], path[len(store) + 1 :]


@contextlib.contextmanager
def _in_bucket(location: Location) -> Iterator[tuple[Any, str]]:
    """Yield the client and the location's prefix of paths in its bucket. Convert the client's errors to OSError."""
    from obstore.exceptions import BaseError

    client, prefix = bucket_client(location.url, location.options)
    try:
        yield client, f"{prefix}/" if prefix else ""
    except BaseError as error:
        raise OSError(error_text(error)) from error


def _get(location: Location, path: str) -> bytes:
    with _in_bucket(location) as (client, prefix):
        return bytes(client.get(prefix + path).bytes())


def _size(location: Location, path: str) -> int:
    with _in_bucket(location) as (client, prefix):
        return int(client.head(prefix + path)["size"])


def _walk_url(location: Location, folder: str) -> list[tuple[str, int]]:
    return [(path, meta["size"]) for path, meta in _listed(location, folder)]


def _listed(location: Location, folder: str) -> list[tuple[str, Any]]:
    with _in_bucket(location) as (client, prefix):
        folder_prefix = f"{prefix}{folder}/" if folder else prefix
        listed = []
        for batch in client.list(folder_prefix or None):
            for meta in batch:
                listed.append((meta["path"][len(prefix) :], meta))
        return listed


def _delete(location: Location, paths: Iterable[str]) -> None:
    names = list(paths)
    with _in_bucket(location) as (client, prefix):
        delete_objects(client, [prefix + name for name in names])
