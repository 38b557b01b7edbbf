"""A store in memory that can do what real ones do at their worst (docs/protocol.md, section 11).

It keeps apart what can be seen from what is durable: a file that was linked but whose folder was not
synced yet is read by everybody, and is gone after `power_loss`.
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
    """A file as everybody sees it. `before`: what a power loss would bring back (hints are replaced)."""

    data: bytes
    made: float
    synced: bool = True
    before: bytes | None = None


@dataclass
class FakeStore(Store):
    """The Store contract over a dict. All that may go wrong is up to `weather`."""

    root: str = "fake://ledger"
    weather: Weather = field(default_factory=Weather)

    def __post_init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.deleted: dict[str, bytes] = {}
        """What was removed on purpose, as it was the first time: for whoever checks the whole story afterwards."""
        self.watch: Callable[[str, bytes | None, bytes], None] = lambda path, old, new: None
        """Told of each write just before it can be seen: path, what was there, what will be."""
        self.watch_removal: Callable[[str], None] = lambda path: None
        """Told of each path that was removed, just after."""
        self._folders: dict[str, dict[str, float]] = {"": {}}
        """Folder to names in it to when each was made. Folders stay when they are empty."""

    # -- the contract

    def create(self, path: str, data: bytes) -> bool:
        """Link into place, then sync the folder: in between it is seen but not durable."""
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
        """The bytes, durable or not."""
        self.weather.pause(f"read {path}")
        if self.weather.mishap("read", "lost"):
            raise _unavailable("read", path)
        found = self.files.get(path)
        return None if found is None else found.data

    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        """A listing, which may miss what was made a moment ago."""
        self.weather.pause(f"list {folder}/ after {after!r}")
        if self.weather.mishap("list", "lost"):
            raise _unavailable("list", folder)
        now = self.weather.clock()
        there = self._folders.get(folder, {}).items()
        return within(
            (name for name, made in there if not self.weather.unseen(folder, name, now - made)), after, before
        )

    def replace(self, path: str, data: bytes) -> None:
        """A hint: whole, the last writer wins, and a power loss may bring an older one back."""
        self.weather.pause(f"replace {path}")
        mishap = self.weather.mishap("replace", "lost unclear")
        if mishap == "lost":
            raise _unavailable("write", path)
        self._put(path, data, synced=False)
        if mishap == "unclear":
            raise _unavailable("write", path)

    def delete(self, path: str) -> None:
        """File by file: whoever dies in between leaves the rest."""
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
        """By the store's clock."""
        self.weather.pause(f"age of {path}")
        if self.weather.mishap("age", "lost"):
            raise _unavailable("look at", path)
        found = self.files.get(path)
        return None if found is None else self.weather.clock() - found.made

    def settle(self, path: str) -> None:
        """Sync the folder, and with it all that is seen in it."""
        self.weather.pause(f"settle {path}")
        if self.weather.mishap("settle", "lost"):
            raise _unavailable("sync", path)
        self._sync(path.rpartition("/")[0])

    # -- for the test

    def power_loss(self, lost: Callable[[str], bool] = lambda path: True) -> list[str]:
        """What was not synced is gone, or of a hint the older one is back; `lost` may spare some."""
        gone = [path for path, file in self.files.items() if not file.synced and lost(path)]
        for path in gone:
            file = self.files[path]
            if file.before is not None:
                file.data, file.before = file.before, None
            else:
                del self.files[path]
                folder, _, name = path.rpartition("/")
                self._folders[folder].pop(name, None)
        for file in self.files.values():
            file.synced, file.before = True, None
        return gone

    def truth(self, path: str) -> bytes | None:
        """What is under a path; if something was deleted there, what that was. Asks no weather."""
        found = self.files.get(path)
        return self.deleted.get(path, None if found is None else found.data)

    def durable(self, path: str) -> bool:
        """Whether a power loss would leave what `truth` tells."""
        found = self.files.get(path)
        return path in self.deleted or (found is not None and found.synced)

    def listing(self, folder: str) -> list[str]:
        """All names in a folder, sorted. Asks no weather."""
        return sorted(self._folders.get(folder, ()))

    def every_path(self) -> list[str]:
        """All paths that `truth` knows, sorted."""
        return sorted(self.files.keys() | self.deleted.keys())

    # -- inside

    def _put(self, path: str, data: bytes, *, synced: bool) -> None:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._make_folder(folder)
        now = self.weather.clock()
        old = self.files.get(path)
        self.watch(path, old.data if old else None, data)
        before = None if old is None else (old.data if old.synced else old.before)
        self.files[path] = _File(data, now, synced, before)
        self._folders[folder][name] = now

    def _make_folder(self, folder: str) -> None:
        """As LocalStore does it: each new folder is made durable, and with it its parent's other names."""
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
