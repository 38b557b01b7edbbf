"""Plain access to the files of a table: on local disks by the operating system, otherwise by the client of the
object store.

Paths are relative to the table's root and raw (nothing is percent-encoded). Local folders never
touch delta-rs' runtime here: it does not survive a fork.
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
"""Options that give delta-rs a lock, as it spells them."""


_RENAMES = {"allow_unsafe_rename", "mount_allow_unsafe_rename"}
"""Options by which delta-rs commits on disks without hard links, as it spells them."""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TOLD = 500
_PARTITION = re.compile(r"((?:^|/)[^/=]+=)[^/]*(?=/)")


@dataclass(frozen=True)
class Location:
    """The root folder of a table, and its storage options (never shown: they may hold secrets)."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.is_local and isinstance(self.options, StorageLogin):  # a folder needs no login: none is looked up
            object.__setattr__(self, "options", self.options.given)

    @property
    def is_local(self) -> bool:
        return not is_url(self.url)

    @property
    def has_lock(self) -> bool:
        """Return whether delta-rs commits there under a lock of its own, since the store has no conditional put."""
        return not self.is_local and bool(self._asks_for(_LOCKS) or os.environ.get("AWS_S3_LOCKING_PROVIDER"))

    @property
    def can_put_new(self) -> bool:
        """Return whether `put_new` is the way to put a file that nobody else puts."""
        return not self._asks_for(_RENAMES) if self.is_local else not self.has_lock

    def _asks_for(self, names: set[str]) -> bool:
        return bool(names & {name.lower() for name in self.options})

    def local(self, path: str) -> Path:
        """Return `path` on the local disk."""
        return Path(self.url, path)

    def full(self, path: str) -> str:
        """Return `path` for Spark: an absolute local path or a URL."""
        return str(self.local(path)) if self.is_local else f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None if there is no such file."""
        try:
            return self.local(path).read_bytes() if self.is_local else _get(self, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unavailable(self.full(path), error) from error

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and its tag, another one for other bytes; an empty tag: the store has none."""
        try:
            with _in_bucket(self) as (client, prefix):
                found = client.get(prefix + path)
                return bytes(found.bytes()), found.meta["e_tag"] or ""
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unavailable(self.full(path), error) from error

    def tags(self, folder: str, after: str) -> dict[str, str]:
        """Return the tags of the objects directly in a folder whose names come after `after`, by name. A listing may
        lag."""
        try:
            with _in_bucket(self) as (client, prefix):
                below = f"{prefix}{folder}/"
                found = [meta for batch in client.list(below, offset=below + after) for meta in batch]
        except OSError as error:
            raise unavailable(self.full(folder), error) from error
        names = {meta["path"].removeprefix(below): meta["e_tag"] or "" for meta in found}
        return {name: tag for name, tag in names.items() if "/" not in name}

    def put_new(self, path: str, data: bytes) -> str | None:
        """Put a whole file, and return the store's tag of it; "" on disks. None: there is one already. Raise OSError if
        that is not known.

        On an object store it is one conditional request. On a disk the file is written beside, synced, and linked: so
        it is there whole or not at all, and only once.
        """
        if self.is_local:
            return "" if _link_new(self.local(path), data) else None
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _in_bucket(self) as (client, prefix):
            try:
                return str(client.put(prefix + path, data, mode="create")["e_tag"] or "")
            except (AlreadyExistsError, PreconditionError):
                return None

    def open(self, path: str) -> Any:
        """Open the file as a pyarrow input, for readers that need parts of it."""
        return open_path(self.full(path), self.options)

    def create(self, path: str) -> AbstractContextManager[Any]:
        """Create a new file as a pyarrow output, with the folders above it: whole at the end of the block, or not at
        all."""
        return create_path(self.full(path), self.options)

    def size(self, path: str) -> int | None:
        """Return the file's size, or None if there is no such file."""
        try:
            return self.local(path).stat().st_size if self.is_local else _size(self, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(self.full(path), error) from error

    def walk(self, folder: str) -> list[tuple[str, int]]:
        """Yield all files below `folder`, each with its size; hidden ones included. A missing folder is empty."""
        try:
            paths = _walk_local(self, folder) if self.is_local else _walk_url(self, folder)
            return sorted(paths)
        except OSError as error:
            raise unavailable(self.full(folder), error) from error

    def modified(self, folder: str) -> dict[str, float]:
        """Yield all files below `folder`, with the time of their last write, in seconds by the store's own clock."""
        try:
            if self.is_local:
                return {path: self.local(path).stat().st_mtime for path, _ in _walk_local(self, folder)}
            return {path: meta["last_modified"].timestamp() for path, meta in _listed(self, folder)}
        except FileNotFoundError:
            return {}  # others are at it
        except OSError as error:
            raise unavailable(self.full(folder), error) from error

    def remove_folder(self, folder: str) -> None:
        """Delete `folder` and everything below it. Repeatable."""
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
        """Delete exactly these files. Repeatable."""
        try:
            if self.is_local:
                for path in paths:
                    self.local(path).unlink(missing_ok=True)
            else:
                _delete(self, paths)
        except OSError as error:
            raise unavailable(self.url, error) from error

    def sync(self, paths: Iterable[str]) -> None:
        """Make local files durable, and the folders from each of them up to the root. Files in other stores already
        are."""
        if not self.is_local:
            return
        root = Path(self.url)
        files = [self.local(path) for path in paths]
        folders = {parent for file in files for parent in file.parents if parent.is_relative_to(root.parent)}
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
            f"path {url!r} has a % or a \\ in it, which delta-rs takes for something else",
            expected="a table in a folder without them",
            help="use another folder",
            reason="BAD_PATH",
        )
    return Location(url, place.options)


def redact_path(path: str) -> str:
    """Return a path as everybody may read it: partition columns without their values, which are values of rows. The
    file's own name tells which one it is."""
    return _PARTITION.sub(r"\1…", path)


def unavailable(location: str, error: BaseException) -> Unavailable:
    """Return the error for a failed storage operation: it names the path and the reason, never the options used."""
    location, why = redact_path(location), error_text(error)
    if refusal := refusal_of(why):
        return Unavailable(f"The store {refusal.what} for {location}: {why}", help=refusal.help, reason="STORAGE")
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return Unavailable(
        f"Storage did not answer for {location}: {why}",
        help="free some space" if full else "check the path, permissions and network; the next attempt tries again",
        reason="STORAGE",
    )


def error_text(error: BaseException) -> str:
    """Return an engine's error in one line: delta-rs draws trees in colour, and shows stack traces."""
    text = _COLOUR.sub("", str(error)).split("\n   0: ")[0]
    return redact_path(" ".join(text.replace("↳", ":").split()))[:_TOLD]


def _link_new(path: Path, data: bytes) -> bool:
    """Return False if there is such a file already."""
    aside = path.with_name(f"{path.name}.{seams.new_id()}.tmp")
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _fsync_all(paths: Collection[Path], threads_from: int) -> None:
    """Sync all at once, so that the disk writes all at once. For a few folders, threads cost more than that saves."""
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
    """Return the root as a pyarrow file system: delta-rs' own store, for readers that need parts of a file."""
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(location.url, dict(location.options)))


def open_path(path: str, options: Mapping[str, str]) -> Any:
    """Open a file by its full path as a pyarrow input: a memory map, or a file of an object store."""
    import pyarrow as pa

    if not is_url(path):
        return pa.memory_map(path)
    store, rest = _bucket(path, options)
    return store.open_input_file(rest)


@contextlib.contextmanager
def create_path(path: str, options: Mapping[str, str]) -> Iterator[Any]:
    """Create a file by its full path as a pyarrow output. It counts once the block ends; a block that fails leaves
    none, and an object that was there before stays as it was.

    Closing the output does not complete it: pyarrow closes an output in the midst of an error, and when it is freed.
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
    """A new object, as a file that pyarrow writes. A small one is put with one request, once it is complete."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        from obstore import open_writer

        self._path, self._options, self.closed = path, options, False
        with _in_bucket(Location(store_of(path), options)) as (client, _):
            self._writer = open_writer(client, path[len(store_of(path)) + 1 :], buffer_size=_PART_BYTES)

    def __enter__(self) -> _Upload:
        return self

    def __exit__(self, *failure: Any) -> None:
        """Complete the object. After a failure, take back the parts that are uploaded; there is no object."""
        if failure[0] is None:
            with _in_bucket(Location(store_of(self._path), self._options)):
                self._writer.close()
            return
        with contextlib.suppress(Exception):  # the failure itself is what the caller has to know
            self._writer.__exit__(*failure)

    def write(self, data: Any) -> int:
        with _in_bucket(Location(store_of(self._path), self._options)):
            return int(self._writer.write(memoryview(data).cast("B")))

    def flush(self) -> None:
        """Do nothing: an object is there as a whole, or not at all."""

    def close(self) -> None:
        """Do nothing but remember it: the end of the block completes the object."""
        self.closed = True


_buckets: dict[tuple[int, str, frozenset[tuple[str, str]]], Any] = {}
"""One client for each bucket and login: making one costs as much as many requests. None survives a fork."""


def _bucket(path: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the file system of a path's bucket, and the path in it."""
    store = store_of(path)
    key = (os.getpid(), store, frozenset(options.items()))
    if key not in _buckets:
        _buckets[key] = file_system(Location(store, options))
    return _buckets[key], path[len(store) + 1 :]


@contextlib.contextmanager
def _in_bucket(location: Location) -> Iterator[tuple[Any, str]]:
    """Give the client, and what stands before every path in it. Its errors become OSErrors."""
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
        below = f"{prefix}{folder}/" if folder else prefix
        found = [meta for batch in client.list(below or None) for meta in batch]
        return [(meta["path"][len(prefix) :], meta) for meta in found]


def _delete(location: Location, paths: Iterable[str]) -> None:
    names = list(paths)
    with _in_bucket(location) as (client, prefix):
        delete_objects(client, [prefix + name for name in names])
