"""A gate in memory, and its quarantine, with the contract of the real one: rows are quarantined, released, marked.

A row is a file, whose name ends with the row's fate: `…/7` waits, `…/7~released` was released.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tests.kit.toys import Row, ToyFrame, ToySink, ToyTables
from tidegate.connectors.sink import Head, Prepared, Publication, SinkContext, Staging
from tidegate.connectors.source import Planned, Source, SourceContext
from tidegate.delta import Location
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name
from tidegate.records.records import Json, PublishedTable, Request

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.gates.quarantine.returning import ReleasedRows

__all__ = ["ToyGate", "ToyQuarantine", "fate_of"]

_FATES = {"release": "released", "discard": "discarded"}


def fate_of(name: str) -> str:
    """Return the fate of the row in this file; "" while it waits."""
    return name.rpartition("/")[2].partition("~")[2]


@dataclass
class QuarantineFrame(ToyFrame):
    """New rows; and settled rows by their files, with their fate."""

    marked: dict[str, tuple[Row, str]] = field(default_factory=dict)


class ToyReleasedRows:
    """The rows that requests settle. The first request for a row counts."""

    def __init__(self, waiting: dict[str, Row], requests: list[Request]) -> None:
        self.fates: dict[str, tuple[Row, str]] = {}
        for name, row in waiting.items():
            request = next((request for request in requests if _checkpoint(name) <= request.seen), None)
            if request is not None:
                self.fates[name] = (row, _FATES[request.action])
        self.back = [row for row, fate in self.fates.values() if fate == "released"]
        self.rows = ToyFrame(self.back)
        self.persisted: tuple[Any, ...] = ()
        self.selected, self.released = len(self.fates), len(self.back)
        self.stays: dict[str, int] = {}

    def joined(self, passed: Any) -> Any:
        return ToyFrame([*passed.rows, *self.back])


def _checkpoint(name: str) -> int:
    """Return the checkpoint that has quarantined the row, from its folder's name."""
    return int(name.split("/")[2])


class ToyGate(Gate):
    """Holds every checkpoint with an offset that is a multiple of `every`, until somebody answers; and quarantines the
    multiples of `bad`. 0: none."""

    kind: ClassVar[str] = "toy"
    persists: ClassVar[bool] = True

    def __init__(
        self, every: int, hold_for: float, unanswered: Literal["approve", "reject"], bad: int = 0, tables: Any = None
    ) -> None:
        self.every = every
        self.hold_for = hold_for
        self.unanswered = unanswered
        self.bad = bad
        self.tables = tables

    def describe(self) -> Json:
        return {"every": self.every, "hold_for": self.hold_for, "unanswered": self.unanswered, "bad": self.bad}

    @property
    def quarantines(self) -> bool:
        return self.bad > 0

    def quarantine(self, name: str) -> QuarantineSink:
        return ToyQuarantine(name, self.tables)

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        toy_frame: Any = frame
        bad = [row for row in toy_frame.rows if self.bad and row[0] % self.bad == 0]
        others = [BrokenRule("not this one", "quarantine", rows=len(bad))] if bad else []
        held = [row for row in toy_frame.rows if self.every > 0 and row[0] % self.every == 0]
        broken = [BrokenRule("no multiples", "hold", rows=len(held))] if held else []
        if context.quarantine_held and held:
            broken = [replace(broken[0], policy="quarantine", was_held=True)]
            bad += [row for row in held if row not in bad]
        good: Any = ToyFrame([row for row in toy_frame.rows if row not in bad])
        quarantined: Any = ToyFrame(bad)
        split = (good, quarantined) if bad else None
        told = repr(sorted(toy_frame.rows))
        return Judgement(len(toy_frame.rows), (*broken, *others), split=split, frame=frame, rows_hash=told)


class ToyQuarantine(ToySink, QuarantineSink):
    """Versions and files are a toy table's."""

    kind: ClassVar[str] = "toy-quarantine"

    def __init__(self, gate: str, tables: ToyTables) -> None:
        ToySink.__init__(self, quarantine_name(gate), tables)
        self.gate = gate

    def delta_table(self, context: SinkContext) -> Location:
        return Location("/nowhere")  # it is none, and on no object store

    def source(self, home: str) -> Source:
        return WaitingRows(self)

    def returning(self, rows: DataFrame, requests: list[Request], checkpoint: int, *_: Any) -> ReleasedRows:
        waiting: Any = rows
        released: Any = ToyReleasedRows(waiting.by_name, requests)
        return released  # type: ignore[no-any-return]

    def select_released_again(self, rows: DataFrame, asked: ReleasedRows, since: int, *_: Any) -> ReleasedRows:
        """No row of a line is as it was."""
        released: Any = ToyReleasedRows({}, [])
        return released  # type: ignore[no-any-return]

    def rows(
        self, bad: DataFrame | None, frame: DataFrame, staging: Staging, stream: str, back: ReleasedRows | None
    ) -> DataFrame:
        new: Any = bad
        returned: Any = back
        rows: Any = QuarantineFrame(new.rows if new is not None else [], returned.fates if returned is not None else {})
        return rows  # type: ignore[no-any-return]

    def prepare_marked(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        toy_frame: Any = frame
        prepared = self.prepare(frame, context, staging)
        marks = {}
        for old, (row, fate) in toy_frame.marked.items():
            self._ask(f"stage {row[0]} on", "lost")
            marks[old] = f"{staging.folder(context)}/{old.rpartition('/')[2]}~{fate}"
            self._table.files[marks[old]] = [row]
        committable = {**(prepared.committable or {"files": []}), "marks": marks}
        return replace(prepared, committable=committable, rows=prepared.rows + len(marks))

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        marks: dict[str, str] = {}
        files: list[str] = []
        for committable in publication.committables:
            marks |= committable.get("marks", {})
            files += committable["files"]
        merged = {"files": [*files, *marks.values()], "removed": list(marks)}
        return super().publish(replace(publication, committables=(merged,)), head, context)

    def _replaced(self, publication: Publication, head: Head) -> tuple[str, ...]:
        return tuple(name for committable in publication.committables for name in committable["removed"])

    def replaces(self, committable: Json | None) -> bool:
        return bool(committable and committable.get("marks"))

    def retire_replaced(self, id: int, kept: Iterable[int], context: SinkContext) -> None:
        unused = self._files_of(id, context.app_id)
        for kept_id in kept:
            unused -= self._files_of(kept_id, context.app_id)
        for name in sorted(unused - set(self._table.live())):
            self._ask(f"remove {name} of", "lost")
            self._table.files.pop(name, None)

    def _files_of(self, id: int, app_id: str) -> set[str]:
        upto = [n for n, c in enumerate(self._table.commits) if c.app_id == app_id and c.id is not None and c.id <= id]
        return set(self._table.live(upto[-1])) if upto else set()

    def without_rows(self, committable: Json) -> Json:
        return {"files": []}

    @property
    def waiting(self) -> dict[str, Row]:
        """The waiting rows, by their files."""
        return self.waiting_at(len(self._table.commits) - 1)

    def waiting_at(self, version: int) -> dict[str, Row]:
        """Return the rows that waited as of a version, by their files."""
        return {name: self._table.files[name][0] for name in self._table.live(version) if not fate_of(name)}


@dataclass
class WaitingFrame(ToyFrame):
    """Rows, each with the name of its file."""

    by_name: dict[str, Row] = field(default_factory=dict)


class WaitingRows(Source):
    """A source of the rows that wait as of one version."""

    kind: ClassVar[str] = "toy-waiting"

    def __init__(self, sink: ToyQuarantine) -> None:
        self.sink = sink

    def describe(self) -> Json:
        return {}

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        self.sink._ask("plan", "lost")
        return Planned(end=None, splits={"version": len(self.sink._table.commits) - 1}, is_empty=False)

    def verify(self, splits: Json, context: SourceContext) -> None:
        self.sink._ask("verify", "lost")

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        self.sink._ask("read", "lost")
        frame: Any = WaitingFrame([], by_name=self.sink.waiting_at(splits["version"]))
        return frame  # type: ignore[no-any-return]
