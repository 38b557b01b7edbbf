"""Bytes under names: what the ledger asks of storage, and how a local folder gives it.

Everything that counts rests on one call, `create`: it makes a file only if there is none, whole or not
at all, and durable before it answers. Listings only propose; a create settles (docs/protocol.md, W1 to W3).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.errors import Corrupt, Invalid, Unavailable

__all__ = ["CLOCK", "LocalStore", "Store", "within"]

_PROBE = "clock.probe"

CLOCK = "clock"
"""An object store's folder for what is written to be looked at and removed. What a crash leaves there means nothing."""


class Store(ABC):
    """A folder of small files. Paths are relative, with '/', made of names that tidegate chose."""

    root: str
    """Absolute path or URL of the folder, for messages and for Spark."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Make the file, durably. False: there is one already. Unavailable: unknown, the caller reads back."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The file's bytes; None if there is no such file. Unavailable or Corrupt if it cannot be read."""

    @abstractmethod
    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        """Names in the folder that sort behind `after`, and below `before`, sorted. A missing folder has none."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a hint: whole, but with no promise about which of several writers wins."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. Missing is fine."""

    @abstractmethod
    def age(self, path: str) -> float | None:
        """Seconds since the file was created, by the store's own clock. None if there is no such file."""

    @abstractmethod
    def settle(self, path: str) -> None:
        """Make sure that a file which was just read survives a power loss (W2)."""

    def refuse_unsafe(self) -> None:  # noqa: B027 - a local folder's `create` says it itself
        """Invalid if this store could let two make the same file: tried out, once, before anything rests on it."""

    def url(self, path: str) -> str:
        """Where Spark finds `path`."""
        return f"{self.root}/{path}"


def within(names: Iterable[str], after: str, before: str | None) -> list[str]:
    """Those between the two, sorted."""
    return sorted(name for name in names if name > after and (before is None or name < before))


def parts(path: str) -> list[str]:
    """The names in a path. Refuses the store's own folder, and whatever could lead out of it."""
    found = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in found):
        raise Invalid(
            f"ledger path {path!r} is not allowed",
            expected="plain names joined by '/'",
            help="the ledger makes its paths itself: check who calls it",
            reason="BAD_PATH",
        )
    return found


class LocalStore(Store):
    """A local folder, with plain system calls: no runtime to break in a forked child, and real fsync.

    Records are private (0600 in folders of 0700). No symlink below the root is followed.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()
        self.root = str(self._root)

    def create(self, path: str, data: bytes) -> bool:
        """Write aside, fsync, link into place (fails if taken), fsync the folder."""
        with self._failures("create", path):
            target = self._path(path)
            aside = self._write_aside(target, data)
            try:
                self._link(aside, target)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
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
                found = os.listdir(self._path(folder) if folder else self._root)
            except FileNotFoundError:
                return []
        return within((name for name in found if not name.startswith(".")), after, before)

    def replace(self, path: str, data: bytes) -> None:
        with self._failures("write", path):
            target = self._path(path)
            aside = self._write_aside(target, data)
            try:
                os.replace(aside, target)
            except OSError:
                os.unlink(aside)
                raise

    def delete(self, path: str) -> None:
        """Several may delete the same at once: what another was faster with is fine."""
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
        """Both times come from the file system that holds the ledger, so no machine's clock matters."""
        with self._failures("look at", path):
            try:
                made = os.stat(self._path(path), follow_symlinks=False).st_mtime
            except FileNotFoundError:
                return None
            probe = self._write_aside(self._root / _PROBE, b"", durable=False)
            try:
                return os.stat(probe).st_mtime - made
            finally:
                os.unlink(probe)

    def settle(self, path: str) -> None:
        with self._failures("sync", path):
            target = self._path(path)
            fd = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync_folder(target.parent)

    def _path(self, path: str) -> Path:
        """The absolute path, refusing to leave the root or to pass through a symlink below it."""
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

    def _link(self, aside: Path, target: Path) -> None:
        """The one step that claims the name."""
        try:
            os.link(aside, target, follow_symlinks=False)
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
        """Create what is missing and make each new name durable in its parent."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(new, 0o700)
            _sync_folder(new.parent)

    def _write_aside(self, target: Path, data: bytes, durable: bool = True) -> Path:
        """The bytes, durable but for a mere probe, under a hidden temporary name in the target's folder."""
        self._make_folders(target.parent)
        aside = target.parent / f".{target.name}.{seams.new_id()}.tmp"
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
        return aside

    @contextlib.contextmanager
    def _failures(self, action: str, path: str, landed: bool = False) -> Iterator[None]:
        """An operating system error as one that says what to do. What has landed is never said to have failed."""
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
    """For rmtree: a file that is gone is what was wanted."""
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


def _explained(error: OSError, action: str, where: str) -> Corrupt | Invalid | Unavailable:
    what = f"cannot {action} {where}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Invalid(
            what,
            expected="a folder that this user may read and write",
            help="change its owner or mode, or choose another folder with the setting 'root'",
            reason="NO_ACCESS",
        )
    if error.errno == errno.ENAMETOOLONG:
        return Invalid(
            what,
            expected="a path that the operating system accepts",
            help="choose a shorter folder with the setting 'root'",
            reason="BAD_PATH",
        )
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        return Corrupt(
            what,
            expected="tidegate's own folders and files",
            help="something else lies there: move it away, or restore the folder from a copy",
            reason="NOT_OURS",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(what, help="free some space on that disk, then try again", reason="DISK_FULL")
    return Unavailable(what, help="try again; if it stays, check the disk or mount", reason="STORAGE")
