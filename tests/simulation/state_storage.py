"""States in the storage of a world: their files lie in the same store as the ledger, their tables' logs beside it.

The real `StateSink`, `fork`, `copies` and `doctor` work on them; only what touches disks and delta-rs is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from tests.kit.fake_store import FakeStore
from tests.kit.weather import Weather
from tidegate import seams
from tidegate.delta import CommitStamp, Committed, StagedFile
from tidegate.errors import Corrupt, Unavailable
from tidegate.execution.job import operators
from tidegate.lifecycle import copies, fork, snapshot
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext
from tidegate.state import table
from tidegate.state.record import StateFile, StateTable
from tidegate.verify import files as verify_files

COLUMNS: dict[str, Any] = {"type": "struct", "fields": []}


@dataclass
class Shelf:
    """A folder of a store that is a table, in the place of a `Location`."""

    store: FakeStore
    url: str
    folder: str
    log: list[ShelfCommit] = field(default_factory=list)
    is_local: ClassVar[bool] = True

    def path(self, name: str) -> str:
        """Where a file lies in the store."""
        return f"{self.folder}/{name}"

    def put(self, name: str, data: bytes) -> StagedFile:
        """Write a file, durable when it is there."""
        if not self.store.create(self.path(name), data):
            there = self.store.read(self.path(name))
            if there != data:
                raise Corrupt(f"{self.path(name)} is another file", reason="STATE_TAKEN")
            self.store.sync(self.path(name))
        return StagedFile(path=name, size=len(data), rows=len(data))

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        """As of one moment."""
        self._ask(f"walk {folder} in")
        prefix = self.path(folder).rstrip("/") + "/"
        there = {path: len(file.data) for path, file in self.store.files.items() if path.startswith(prefix)}
        return iter([(path.removeprefix(f"{self.folder}/"), size) for path, size in sorted(there.items())])

    def remove_files(self, names: Iterable[str]) -> None:
        """One by one."""
        for name in names:
            self.store.delete(self.path(name))

    def remove_folder(self, folder: str) -> None:
        """With all that lies in it."""
        self.remove_files([name for name, _ in self.walk(folder)])

    def lost(self, files: Iterable[StagedFile]) -> list[str]:
        """Those that are not there, or others."""
        self._ask("look at files of")
        there = ((file, self.store.files.get(self.path(file.path))) for file in files)
        return [file.path for file, found in there if found is None or len(found.data) != file.size]

    def live(self, upto: int | None = None) -> dict[str, StagedFile]:
        """What a reader of a version sees."""
        found: dict[str, StagedFile] = {}
        for commit in self.log if upto is None else self.log[: upto + 1]:
            for name in commit.removed:
                found.pop(name, None)
            found |= {file.path: file for file in commit.added}
        return found

    def commit(
        self, version: int | None, added: Sequence[StagedFile], removed: Sequence[str], stamp: CommitStamp
    ) -> Any:
        """By compare-and-swap. None: others were faster."""
        seams.fault("S10.publish.before")
        mishap = self._ask(f"commit {stamp.id} on", "lost unclear")
        if (len(self.log) - 1 if self.log else None) != version:
            return None
        self.log.append(ShelfCommit(stamp.app_id if stamp.publishes else "", stamp.id, tuple(added), tuple(removed)))
        if mishap:
            raise Unavailable(f"the answer of {self.url} was lost")
        seams.fault("S10.publish.after")
        return Committed(len(self.log) - 1, f"{len(self.log) - 1}")

    def _ask(self, what: str, possible: str = "lost") -> str:
        weather: Weather = self.store.weather
        weather.pause(f"{what} {self.url}")
        mishap = weather.mishap(what.split()[0], possible)
        if mishap == "lost":
            raise Unavailable(f"{self.url} does not answer")
        return mishap


@dataclass(frozen=True)
class ShelfCommit:
    """One version of a table."""

    app_id: str
    id: int
    added: tuple[StagedFile, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """A table as of one version, in the place of a `Snapshot`."""

    location: Shelf
    version: int
    schema: dict[str, Any] = field(default_factory=lambda: COLUMNS)

    def txn(self, app_id: str) -> int | None:
        """What was published last."""
        own = (each.id for each in reversed(self.location.log[: self.version + 1]) if each.app_id == app_id)
        return next(own, None)


@dataclass(frozen=True)
class Live:
    """In the place of a `DataFile` and a `LiveFile`."""

    file: StagedFile

    @property
    def path(self) -> str:
        return self.file.path

    def staged(self) -> StagedFile:
        return self.file


def open_table(shelf: Shelf, version: int | None = None) -> Seen | None:
    shelf._ask("open")
    return Seen(shelf, len(shelf.log) - 1 if version is None else version) if shelf.log else None


def live_files(seen: Seen) -> list[Live]:
    return [Live(file) for file in seen.location.live(seen.version).values()]


def data_files(seen: Seen) -> dict[str, Live]:
    return {file.path: file for file in live_files(seen)}


def create(shelf: Shelf, columns: Any, files: Sequence[StagedFile], stamp: CommitStamp) -> Committed | None:
    found: Committed | None = shelf.commit(None, files, (), stamp)
    return found


def replace(seen: Seen, added: Sequence[StagedFile], removed: Sequence[Live], stamp: CommitStamp) -> Committed | None:
    found: Committed | None = seen.location.commit(seen.version, added, [each.path for each in removed], stamp)
    return found


def overwrite(seen: Seen, columns: Any, added: Sequence[StagedFile], stamp: CommitStamp) -> Committed | None:
    return replace(seen, added, live_files(seen), stamp)


def find_commit(seen: Seen, app_id: str, id: int) -> Committed | None:
    versions = range(seen.version, -1, -1)
    found = (n for n in versions if (seen.location.log[n].app_id, seen.location.log[n].id) == (app_id, id))
    return next((Committed(n, f"{n}") for n in found), None)


def missing_files(shelf: Shelf, files: Iterable[StagedFile]) -> list[str]:
    return shelf.lost(files)


def copy_files(source: Shelf, target: Shelf, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    return {name: _copied(source, target, name) for name in names}


def _copied(source: Shelf, target: Shelf, name: str) -> tuple[int, str]:
    data = source.store.read(source.path(name))
    if data is None:
        raise Unavailable(f"cannot read {source.url}/{name}", reason="STORAGE")
    target.put(name, data)
    return len(data), hashlib.sha256(data).hexdigest()


# -- the operator ------------------------------------------------------------------------------------------


class Totals(Operator):
    """Remembers every offset that it was given, and gives it on."""

    kind = "totals"

    def describe(self) -> dict[str, Any]:
        return {}

    def run(self, inputs: Sequence[Any], context: OperatorContext) -> dict[str, Any]:
        state: Any = context.state(["offset"])
        state.put([offset for offset, _ in inputs[0].rows])
        return {"": inputs[0]}


class Remembered:
    """In the place of `KeyedState`: a file for what is new; or one for all of it, if there are too many."""

    most: int = 3
    """So many files a state has before they are merged. Each world has its own."""
    syncing = SimpleNamespace(waited=0.0, span=None)

    def __init__(self, spark: Any, what: str, base: StateTable | None, to: Any, *rest: Any) -> None:
        self.base = base
        self.shelf: Shelf = to.location
        self.folder: str = to.folder
        self.checkpoint: int = to.checkpoint
        self.new: list[int] = []
        self.files: list[StateFile] = list(base.files) if base is not None else []

    @property
    def changed(self) -> bool:
        return bool(self.new)

    def put(self, offsets: list[int]) -> None:
        """Written at once, as Spark does it."""
        self.new += offsets
        if offsets:
            self.files.append(self._file("new", offsets))

    def finish(self) -> StateTable:
        if len(self.files) > self.most:
            merged = sorted(offset for each in self.files for offset in self._read(each))
            self.files = [self._file("merged", merged)]
        return StateTable(columns=COLUMNS, keys=["offset"], groups=1, files=self.files)

    def release(self) -> None:
        """Nothing is kept."""

    def _file(self, name: str, offsets: list[int]) -> StateFile:
        file = self.shelf.put(f"{self.folder}/{name}", json.dumps(offsets).encode())
        return StateFile(file=file, checkpoint=self.checkpoint, oldest=1, groups=(0, 0))

    def _read(self, each: StateFile) -> list[int]:
        data = self.shelf.store.read(self.shelf.path(each.file.path))
        if data is None:
            raise Corrupt(f"the state has lost {each.file.path}", reason="STATE_FILES_GONE")
        found: list[int] = json.loads(data)
        return found


@contextlib.contextmanager
def states_in_memory(stores: Callable[[], Iterable[FakeStore]], most: int) -> Iterator[dict[str, Shelf]]:
    """All of it is in place, for the length of a `with` block. stores: where they may lie. Gives them by their URLs."""
    shelves: dict[str, Shelf] = {}

    def shelf(url: str, options: Any = None) -> Shelf:
        if url not in shelves:
            holding = [each for each in stores() if f"{url}/".startswith(f"{each.root}/")]
            store = max(holding, key=lambda each: len(each.root))
            shelves[url] = Shelf(store, url, url.removeprefix(store.root).strip("/"))
        return shelves[url]

    remembered = dataclasses.make_dataclass("Here", [], bases=(Remembered,), namespace={"most": most}, init=False)
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    own = {"open_table": open_table, "reopen": open_table, "data_files": data_files, "replace": replace}
    own |= {"overwrite": overwrite, "find_commit": find_commit}
    own |= {"forget_log": nothing, "refuse_owner": nothing, "verify": nothing, "missing_files": missing_files}
    with (
        mock.patch.multiple(table, Location=shelf, **own),
        mock.patch.object(table, "create", create),
        mock.patch.multiple(verify_files, Location=shelf, open_table=open_table, live_files=live_files),
        mock.patch.multiple(snapshot, Location=shelf, missing_files=missing_files),
        mock.patch.multiple(copies, copy_files=copy_files, as_one_file=lambda *_: None),
        mock.patch.object(fork, "copy_files", copy_files),
        mock.patch.object(operators, "KeyedState", remembered),
        mock.patch.object(operators, "analysed", lambda plan, frame, context: plan()),
    ):
        yield shelves
