"""The ledger's storage: the interface, and its implementation on a local folder.

Every guarantee rests on one call, `create`: it creates a file only if it does not exist, atomically, and makes it
durable before it returns. Listings only propose; a create settles (docs/protocol.md, W1 to W3).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Unavailable

__all__ = ["CLOCK", "LocalStore", "Store", "within"]

_PROBE = "clock.probe"

CLOCK = "clock"
"""The folder of an object store for short-lived probes. Files that a crash leaves there are ignored."""


class Store(ABC):
    """A folder of small files. Paths are relative, with '/', and consist of names that tidegate chose."""

    root: str
    """Absolute path or URL of the folder, for messages and for Spark."""

    at_once: int = 1
    """How many calls to make concurrently: more than one where each is a request over the network."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create the file, durably. Return False if it already exists. If this raises Unavailable, the outcome is
        unknown and the caller must read back."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return the file's bytes, or None if it does not exist. Raise Unavailable or Corrupt if it cannot be read."""

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """Read several files, in any order."""
        return [self.read(path) for path in paths]

    @abstractmethod
    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        """Return the sorted names in the folder that sort after `after` and before `before`. A missing folder has
        none."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a hint atomically, with no guarantee about which of several writers wins."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. It may be missing."""

    def delete_files(self, paths: Sequence[str]) -> None:
        """Remove several files, in any order. Each may be missing; none is a folder."""
        for path in paths:
            self.delete(path)

    @abstractmethod
    def age(self, path: str) -> float | None:
        """Return the seconds since the file was created, by the store's own clock, or None if it does not exist."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make sure that a file that was just read survives a power loss (W2)."""

    def refuse_unsafe(self) -> None:  # noqa: B027 - the `create` of a local folder checks it itself
        """Raise Invalid if two clients could both create the same file. Tested once, at a pipeline's first start."""

    def url(self, path: str) -> str:
        """Return the URL or path under which Spark finds `path`."""
        return f"{self.root}/{path}"


def within(names: Iterable[str], after: str, before: str | None) -> list[str]:
    """Return the names between the two, sorted."""
    return sorted(name for name in names if name > after and (before is None or name < before))


def parts(path: str) -> list[str]:
    """Split a path into names. Raise Invalid for the store's own folder, and for a path that could lead out of it."""
    names = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in names):
        raise Invalid(
            f"ledger path {path!r} is not allowed",
            expected="plain names joined by '/'",
            help="the ledger builds its paths itself: check the caller",
            reason="BAD_PATH",
        )
    return names


class LocalStore(Store):
    """A local folder, by plain system calls: they work in a forked child, and fsync is real.

    Records are private (0600 in folders of 0700). Symlinks below the root are not followed.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()
        self.root = str(self._root)

    def create(self, path: str, data: bytes) -> bool:
        """Write a temporary file, fsync it, link it into place (fails if the name exists), fsync the folder."""
        with self._failures("create", path):
            target = self._path(path)
            temporary = self._write_temporary(target, data)
            try:
                self._link(temporary, target)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        with self._failures("sync", path, landed=True):
            _sync_folder(target.parent)
        return True

    def read(self, path: str) -> bytes | None:
        with self._failures("read", path):
            try:
                fd = os.open(self._path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            with os.fdopen(fd, "rb") as file:
                return file.read()

    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        with self._failures("list", folder):
            try:
                names = os.listdir(self._path(folder) if folder else self._root)
            except FileNotFoundError:
                return []
        return within((name for name in names if not name.startswith(".")), after, before)

    def replace(self, path: str, data: bytes) -> None:
        with self._failures("write", path):
            target = self._path(path)
            temporary = self._write_temporary(target, data)
            try:
                os.replace(temporary, target)
            except OSError:
                os.unlink(temporary)
                raise

    def delete(self, path: str) -> None:
        """Remove a file or a folder. Several processes may delete the same one at once."""
        with self._failures("delete", path):
            target = self._path(path)
            if target.is_dir():
                shutil.rmtree(target, onerror=_unless_missing)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
            with contextlib.suppress(FileNotFoundError):
                _sync_folder(target.parent)

    def age(self, path: str) -> float | None:
        """Return the age. Both times come from the file system that holds the ledger, so no machine's clock matters."""
        with self._failures("look at", path):
            try:
                created = os.stat(self._path(path), follow_symlinks=False).st_mtime
            except FileNotFoundError:
                return None
            probe = self._write_temporary(self._root / _PROBE, b"", durable=False)
            try:
                return os.stat(probe).st_mtime - created
            finally:
                os.unlink(probe)

    def sync(self, path: str) -> None:
        with self._failures("sync", path):
            target = self._path(path)
            fd = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync_folder(target.parent)

    def _path(self, path: str) -> Path:
        """Return the absolute path. Raise if it leaves the root or passes through a symlink below it."""
        target = self.root
        for part in parts(path):
            target = f"{target}/{part}"
            if _is_link(target):
                raise Corrupt(
                    f"{target} is a symbolic link",
                    expected="tidegate's own files and folders only",
                    help="put the real file back; tidegate follows no links below its root",
                    reason="SYMLINK",
                )
        return Path(target)

    def _link(self, temporary: Path, target: Path) -> None:
        """Claim the name, in one step."""
        try:
            os.link(temporary, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise Invalid(
                f"the file system of {self.root} has no hard links: {error.strerror}",
                expected="a file system where a file can be given a second name, such as ext4, xfs, btrfs or apfs",
                help="choose another folder with the setting 'root'",
                reason="NO_HARD_LINKS",
            ) from error

    def _make_folders(self, folder: Path) -> None:
        """Create missing folders and make each new name durable in its parent."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(new, 0o700)
            _sync_folder(new.parent)

    def _write_temporary(self, target: Path, data: bytes, durable: bool = True) -> Path:
        """Write a hidden temporary file in the target's folder. It is durable unless it is only a probe."""
        self._make_folders(target.parent)
        temporary = target.parent / f".{target.name}.{seams.new_id()}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    @contextlib.contextmanager
    def _failures(self, action: str, path: str, landed: bool = False) -> Iterator[None]:
        """Turn an operating system error into one that says how to resolve it.

        landed: the file exists, so the error must leave open whether the call succeeded.
        """
        try:
            yield
        except OSError as error:
            explained = _explained(error, action, f"{self.root}/{path}")
            if landed and not isinstance(explained, Unavailable):
                explained = Unavailable(explained.what, help=explained.help, reason=explained.reason)
            raise explained from error


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unless_missing(_: object, path: str, info: tuple[Any, BaseException, Any]) -> None:
    """Ignore files that are already gone, in rmtree."""
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


def _explained(error: OSError, action: str, url: str) -> Corrupt | Invalid | Unavailable:
    message = f"cannot {action} {url}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Invalid(
            message,
            expected="a folder that this user may read and write",
            help="change its owner or mode, or choose another folder with the setting 'root'",
            reason="NO_ACCESS",
        )
    if error.errno == errno.ENAMETOOLONG:
        return Invalid(
            message,
            expected="a path that the operating system accepts",
            help="choose a shorter folder with the setting 'root'",
            reason="BAD_PATH",
        )
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        return Corrupt(
            message,
            expected="tidegate's own folders and files",
            help="something else is in its place: move it away, or restore the folder from a copy",
            reason="NOT_OURS",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(message, help="free some space on that disk, then try again", reason="DISK_FULL")
    return Unavailable(message, help="try again; if it stays, check the disk or mount", reason="STORAGE")
