"""What backfills need in the storage of a world: shadows of tables, a quarantine for each ledger, and folders for the
ledgers of lines. The real `backfill` package works on them; only what touches disks and delta-rs is replaced."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from tests.kit.fake_store import FakeStore
from tests.kit.toy_gate import ToyGate, ToyQuarantine
from tests.kit.toys import Row, ToyCommit, ToyFeed, ToyFrame, ToySink, ToyTable
from tests.simulation.long_lives import Remembering
from tests.simulation.state_storage import copy_files
from tidegate import seams
from tidegate.backfill import open_backfill as line_module
from tidegate.connectors.sink import Head, Publication, SinkContext, entry_folder
from tidegate.connectors.source import Planned, Source, SourceContext
from tidegate.execution import finish, loop
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.store import Store
from tidegate.records.records import Json, PublishedTable

if TYPE_CHECKING:
    from tests.simulation.line_days import LineWorld

swap_module = import_module("tidegate.backfill.swap")  # its name in the package is that of the function


class MendableSource(Remembering):
    """The mended code takes each offset for its negative. Where it looks, the newest may be seen later."""

    def __init__(self, world: LineWorld, bound: int, padding: int, most: int, mended: bool) -> None:
        super().__init__(world.feed, bound, padding, most)
        self.world = world
        self.mended = mended

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        late = self.mended and not self.world.calm and self.world.dice.chance(self.world.climate.behind)
        if not late or self.feed.available == 0:
            return super().plan(start, context)
        hidden = min(1 + self.world.dice.below(20), self.feed.available - (start or {"at": 0})["at"])
        seen = copy.copy(self)
        seen.feed = ToyFeed(self.feed.available - hidden, weather=self.feed.weather)
        return Remembering.plan(seen, start, context)

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        return other is None or (position is not None and position["at"] >= other["at"])

    def read(self, spark: Any, splits: Json, context: SourceContext) -> Any:
        frame: Any = super().read(spark, splits, context)
        return ToyFrame([(-offset, tag) for offset, tag in frame.rows]) if self.mended else frame


class FilesBelow(MutableMapping[str, list[Row]]):
    """The files of a folder inside a table's own."""

    def __init__(self, files: dict[str, list[Row]], folder: str) -> None:
        self.files, self.folder = files, f"{folder}/"

    def __getitem__(self, name: str) -> list[Row]:
        return self.files[self.folder + name]

    def __setitem__(self, name: str, rows: list[Row]) -> None:
        self.files[self.folder + name] = rows

    def __delitem__(self, name: str) -> None:
        del self.files[self.folder + name]

    def __iter__(self) -> Iterator[str]:
        return iter([name.removeprefix(self.folder) for name in self.files if name.startswith(self.folder)])

    def __len__(self) -> int:
        return len(list(iter(self)))


class ShadowedSink(ToySink):
    """Its shadows lie in folders inside of it, as those of Delta tables do."""

    folder = ""

    def shadow(self, folder: str) -> ShadowedSink:
        shadow = copy.copy(self)
        shadow.name, shadow.folder = f"{self.name}/{folder}", folder
        real = self.tables[self.name]
        if shadow.name not in self.tables.tables:
            files: Any = FilesBelow(real.files, folder)
            self.tables.tables[shadow.name] = ToyTable(files=files)
        return shadow

    def create_shadow(self, shadow: Any, since: PublishedTable | None, context: SinkContext, own: SinkContext) -> None:
        self._ask("seed", "lost")
        if self._table.commits and not shadow._table.commits:
            shadow._table.commits.append(ToyCommit("the beginning", None, ()))

    def promote_shadow(
        self, shadow: Any, since: PublishedTable | None, context: SinkContext, own: SinkContext
    ) -> Json | None:
        self._ask("bring to", "lost")
        names = [f"{shadow.folder}/{name}" for name in shadow._table.live()]
        return {"files": names} if names else None

    def drop_shadow(self, shadow: Any, brought: Any, context: SinkContext) -> None:
        named = {name for batch in brought for name in batch["files"]}
        for name in [f"{shadow.folder}/{name}" for name in shadow._table.files]:
            if name not in named:
                self._ask(f"remove {name} of", "lost")
                self._table.files.pop(name, None)


class LineGate(ToyGate):
    """A quarantine for each ledger, as real ones lie beside them."""

    home = ""

    def quarantine(self, name: str) -> QuarantineSink:
        return QuarantineByHome(name, self.tables, self.home)


class QuarantineByHome(ToyQuarantine):
    """Its table is told by the ledger's folder."""

    def __init__(self, gate: str, tables: Any, home: str) -> None:
        super().__init__(gate, tables)
        self.home = home

    def at(self, home: str) -> ToyQuarantine:
        """The quarantine beside a ledger."""
        found = ToyQuarantine(self.gate, self.tables)
        if home != self.home:
            found.name = f"{home}/{found.name}"
        return found

    def source(self, home: str) -> Source:
        return self.at(home).source(home)

    def delta_table(self, context: SinkContext) -> Any:
        return QuarantineFolder(self.at(context.home))

    def promote_line_quarantine(
        self, context: SinkContext, own: SinkContext, *, since: int | None, number: int
    ) -> Json | None:
        """No row is as it was: each is what the mended code makes of it."""
        source, target = self.at(own.home), self.at(context.home)
        folder = f"{entry_folder(own, number)}/{seams.new_id()}"
        names = {name: f"{folder}/{name.rpartition('/')[2]}" for name in source._table.live()}
        for there, here in names.items():
            target._ask(f"copy {there} to", "lost")
            target._table.files[here] = source._table.files[there]
        return {"files": list(names.values())} if names else None

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        return self.at(context.home).publish(publication, head, context)


def _by_home(name: str) -> Callable[..., Any]:
    def call(self: QuarantineByHome, *args: Any) -> Any:
        (context,) = (each for each in args if isinstance(each, SinkContext))
        return getattr(self.at(context.home), name)(*args)

    return call


for _name in (
    "check", "prepare", "prepare_marked", "head", "locate", "skipped", "gone", "way_back", "go_back", "attempts",
    "discard", "retire", "retire_replaced",
):  # fmt: skip
    setattr(QuarantineByHome, _name, _by_home(_name))


class QuarantineFolder:
    """In the place of a `Location`."""

    is_local: ClassVar[bool] = True

    def __init__(self, sink: ToyQuarantine) -> None:
        self.sink = sink
        self.url = f"fake://{sink.name}"

    def remove_folder(self, folder: str) -> None:
        files = self.sink._table.files
        for name in [name for name in files if name.startswith(f"{folder}/")]:
            self.sink._ask(f"remove {name} of", "lost")
            files.pop(name, None)


class StoreBelow(Store):
    """A folder of another store."""

    def __init__(self, store: FakeStore, folder: str) -> None:
        self.store, self.folder, self.root = store, f"{folder}/", f"{store.root}/{folder}"

    def create(self, path: str, data: bytes) -> bool:
        return self.store.create(self.folder + path, data)

    def read(self, path: str) -> bytes | None:
        return self.store.read(self.folder + path)

    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        return self.store.names((self.folder + folder).rstrip("/"), after, before)

    def replace(self, path: str, data: bytes) -> None:
        self.store.replace(self.folder + path, data)

    def delete(self, path: str) -> None:
        self.store.delete(self.folder + path)

    def age(self, path: str) -> float | None:
        return self.store.age(self.folder + path)

    def sync(self, path: str) -> None:
        self.store.sync(self.folder + path)


@contextlib.contextmanager
def lines_in_memory(world: LineWorld, gone: Callable[[Any], str | None]) -> Iterator[None]:
    """The folders of lines lie in the storage of this world. gone: whether the process of a plan is, and why."""

    def ledger(folder: str, pipeline: str, options: object) -> Ledger:
        return Ledger(StoreBelow(world.store, folder.removeprefix(f"{world.store.root}/")), pipeline)

    with (
        mock.patch.object(line_module, "folder_ledger", ledger),
        mock.patch.object(swap_module, "copy_files", copy_files),
        mock.patch.object(swap_module, "abandoned_reason", gone),
        mock.patch.object(loop, "abandoned_reason", gone),
        mock.patch.object(loop, "warm_gates", lambda graph: None),
        mock.patch.object(finish, "remember", lambda *_: None),
    ):
        yield
