"""A store in memory that can fail in all the ways of real ones (docs/protocol.md, section 11).

It distinguishes visible from durable files: a file that was linked, but whose folder was not synced yet, can be read by
everybody, and is gone after `power_loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.kit.weather import Weather
from tidegate.errors import Unavailable
from tidegate.ledger.store import Store, within

__all__ = ["FakeStore"]


@dataclass
class _File:
    """A visible file. `before`: the content that a power loss would bring back (hints are replaced)."""

    data: bytes
    created: float
    synced: bool = True
    before: bytes | None = None


@dataclass
class FakeStore(Store):
    """The Store contract over a dict. `weather` decides what goes wrong."""

    root: str = "fake://ledger"
    weather: Weather = field(default_factory=Weather)

    def __post_init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.deleted: dict[str, bytes] = {}
        """Files that were deleted on purpose, with their first content, for checks of the whole story afterwards."""
        self.watch: Callable[[str, bytes | None, bytes], None] = lambda path, old, new: None
        """Called for each write just before it is visible: path, old content, new content."""
        self.watch_removal: Callable[[str], None] = lambda path: None
        """Called for each path just after its removal."""
        self._folders: dict[str, dict[str, float]] = {"": {}}
        """By folder and name, when the name was created. Empty folders stay."""

    # -- the contract

    def create(self, path: str, data: bytes) -> bool:
        """Link into place, then sync the folder: in between, the file is visible but not durable."""
        self.weather.pause(f"create {path}")
        mishap = self.weather.mishap("create", "lost unclear unsynced repeated")
        if mishap == "lost":
            raise _unavailable("create", path)
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._make_folder(folder)
            self.weather.pause(f"link {path}")
        if path in self.files:
            if mishap:
                raise _unavailable("create", path)
            return False
        self._put(path, data, synced=False)
        if mishap == "unsynced":
            raise _unavailable("sync", path)
        self.weather.pause(f"sync {path}")
        self._sync(folder)
        if mishap == "unclear":
            raise _unavailable("create", path)
        return mishap != "repeated"

    def read(self, path: str) -> bytes | None:
        """Return the bytes, durable or not."""
        self.weather.pause(f"read {path}")
        if self.weather.mishap("read", "lost"):
            raise _unavailable("read", path)
        file = self.files.get(path)
        return None if file is None else file.data

    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        """List names; recently created ones may be missing."""
        self.weather.pause(f"list {folder}/ after {after!r}")
        if self.weather.mishap("list", "lost"):
            raise _unavailable("list", folder)
        now = self.weather.clock()
        names = self._folders.get(folder, {}).items()
        visible = (name for name, created in names if not self.weather.unseen(folder, name, now - created))
        return within(visible, after, before)

    def replace(self, path: str, data: bytes) -> None:
        """Write a hint: whole, the last writer wins, and a power loss may bring an older one back."""
        self.weather.pause(f"replace {path}")
        mishap = self.weather.mishap("replace", "lost unclear")
        if mishap == "lost":
            raise _unavailable("write", path)
        self._put(path, data, synced=False)
        if mishap == "unclear":
            raise _unavailable("write", path)

    def delete(self, path: str) -> None:
        """Delete file by file: a process that dies in between leaves the other files."""
        self.weather.pause(f"delete {path}")
        if self.weather.mishap("delete", "lost"):
            raise _unavailable("delete", path)
        while self._folders.get(path):
            self.delete(f"{path}/{min(self._folders[path])}")
        self._folders.pop(path, None)
        folder, _, name = path.rpartition("/")
        self._folders.get(folder, {}).pop(name, None)
        if path in self.files:
            self.deleted.setdefault(path, self.files.pop(path).data)
            self.watch_removal(path)

    def age(self, path: str) -> float | None:
        """Return the file's age by the store's clock."""
        self.weather.pause(f"age of {path}")
        if self.weather.mishap("age", "lost"):
            raise _unavailable("look at", path)
        file = self.files.get(path)
        return None if file is None else self.weather.clock() - file.created

    def sync(self, path: str) -> None:
        """Sync the folder, and with it all files that are visible in it."""
        self.weather.pause(f"settle {path}")
        if self.weather.mishap("settle", "lost"):
            raise _unavailable("sync", path)
        self._sync(path.rpartition("/")[0])

    # -- for the test

    def power_loss(self, lost: Callable[[str], bool] = lambda path: True) -> list[str]:
        """Drop files that were not synced, or bring back an older hint; `lost` may spare some. Return lost paths."""
        lost_paths = [path for path, file in self.files.items() if not file.synced and lost(path)]
        for path in lost_paths:
            file = self.files[path]
            if file.before is not None:
                file.data, file.before = file.before, None
            else:
                del self.files[path]
                folder, _, name = path.rpartition("/")
                self._folders[folder].pop(name, None)
        for file in self.files.values():
            file.synced, file.before = True, None
        return lost_paths

    def truth(self, path: str) -> bytes | None:
        """Return a path's content, or the content that was deleted there. Nothing can go wrong here."""
        file = self.files.get(path)
        return self.deleted.get(path, None if file is None else file.data)

    def durable(self, path: str) -> bool:
        """Whether a power loss would leave the content that `truth` returns."""
        file = self.files.get(path)
        return path in self.deleted or (file is not None and file.synced)

    def listing(self, folder: str) -> list[str]:
        """Return all names in a folder, sorted. Nothing can go wrong here."""
        return sorted(self._folders.get(folder, ()))

    def every_path(self) -> list[str]:
        """Return all paths that `truth` knows, sorted."""
        return sorted(self.files.keys() | self.deleted.keys())

    # -- inside

    def _put(self, path: str, data: bytes, *, synced: bool) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._make_folder(folder)
        now = self.weather.clock()
        old = self.files.get(path)
        self.watch(path, old.data if old else None, data)
        before = None
        if old is not None:
            before = old.data if old.synced else old.before
        self.files[path] = _File(data, now, synced, before)
        self._folders[folder][name] = now

    def _make_folder(self, folder: str) -> None:
        """Make folders as LocalStore does: each new one is durable at once, and so are its parent's other names."""
        parent, _, name = folder.rpartition("/")
        if parent not in self._folders:
            self._make_folder(parent)
        self._folders.setdefault(folder, {})
        self._folders[parent][name] = self.weather.clock()
        self._sync(parent)

    def _sync(self, folder: str) -> None:
        prefix = f"{folder}/" if folder else ""
        for name in self._folders.get(folder, ()):
            file = self.files.get(prefix + name)
            if file is not None:
                file.synced, file.before = True, None


def _unavailable(action: str, path: str) -> Unavailable:
    return Unavailable(f"cannot {action} {path}: the weather", help="try again", reason="STORAGE")
