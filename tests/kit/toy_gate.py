"""A gate in memory, and its quarantine, with the contract of the real one: rows are set aside, come back, are marked.

A row is a file. What has become of it is the end of its name: `…/7` waits, `…/7~released` was let go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tests.kit.toys import Row, ToyFrame, ToySink, ToyTables
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name
from tidegate.records.records import Json, PublishedTable, Request
from tidegate.sinks.base import Head, Prepared, Publication, SinkContext, Staging
from tidegate.sources.base import Planned, Source, SourceContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.gates.quarantine.returning import ReleasedRows

__all__ = ["ToyGate", "ToyQuarantine", "fate_of"]

_FATES = {"release": "released", "discard": "discarded"}


def fate_of(name: str) -> str:
    """What has become of the row in this file; "" while it waits."""
    return name.rpartition("/")[2].partition("~")[2]


@dataclass
class ToyAside(ToyFrame):
    """New rows; and those that come back, by their files, with what becomes of them."""

    marked: dict[str, tuple[Row, str]] = field(default_factory=dict)


class ToyReturning:
    """The rows that requests are about. The first request for a row counts."""

    def __init__(self, waiting: dict[str, Row], requests: list[Request]) -> None:
        meant = {name: next((each for each in requests if _checkpoint(name) <= each.seen), None) for name in waiting}
        self.fates = {name: (waiting[name], _FATES[each.action]) for name, each in meant.items() if each is not None}
        self.back = [row for row, fate in self.fates.values() if fate == "released"]
        self.rows = ToyFrame(self.back)
        self.settled, self.released = len(self.fates), len(self.back)

    def joined(self, passed: Any) -> Any:
        return ToyFrame([*passed.rows, *self.back])


def _checkpoint(name: str) -> int:
    """Which checkpoint has set the row aside: in its folder's name."""
    return int(name.split("/")[2])


class ToyGate(Gate):
    """Holds every checkpoint with an offset that is a multiple of `every`, until somebody answers; and sets aside the
    multiples of `bad`. 0: none."""

    kind: ClassVar[str] = "toy"
    keeps: ClassVar[bool] = True

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
        given: Any = frame
        found = sum(self.every > 0 and offset % self.every == 0 for offset, _ in given.rows)
        bad = [row for row in given.rows if self.bad and row[0] % self.bad == 0]
        broken = [BrokenRule("no multiples", "hold", rows=found)] if found else []
        broken += [BrokenRule("not this one", "quarantine", rows=len(bad))] if bad else []
        good: Any = ToyFrame([row for row in given.rows if row not in bad])
        aside: Any = ToyFrame(bad)
        return Judgement(len(given.rows), tuple(broken), split=(good, aside) if bad else None, frame=frame)


class ToyQuarantine(ToySink, QuarantineSink):
    """Versions and files are a toy table's."""

    kind: ClassVar[str] = "toy-quarantine"

    def __init__(self, gate: str, tables: ToyTables) -> None:
        ToySink.__init__(self, quarantine_name(gate), tables)
        self.gate = gate

    def source(self, home: str) -> Source:
        return ToyWaiting(self)

    def returning(self, rows: DataFrame, requests: list[Request], checkpoint: int) -> ReleasedRows:
        waiting: Any = rows
        back: Any = ToyReturning(waiting.by_name, requests)
        return back  # type: ignore[no-any-return]

    def rows(
        self, bad: DataFrame | None, frame: DataFrame, staging: Staging, stream: str, back: ReleasedRows | None
    ) -> DataFrame:
        new: Any = bad
        returned: Any = back
        rows: Any = ToyAside(new.rows if new is not None else [], returned.fates if returned is not None else {})
        return rows  # type: ignore[no-any-return]

    def prepare_marked(self, frame: DataFrame, context: SinkContext, staging: Staging) -> Prepared:
        given: Any = frame
        prepared = self.prepare(frame, context, staging)
        marks = {}
        for old, (row, fate) in given.marked.items():
            self._ask(f"stage {row[0]} on", "lost")
            marks[old] = f"{staging.folder(context)}/{old.rpartition('/')[2]}~{fate}"
            self._table.files[marks[old]] = [row]
        committable = {**(prepared.committable or {"files": []}), "marks": marks}
        return replace(prepared, committable=committable, rows=prepared.rows + len(marks))

    def publish(self, publication: Publication, head: Head, context: SinkContext) -> PublishedTable | None:
        marks = {old: new for each in publication.committables for old, new in each.get("marks", {}).items()}
        files = [*(name for each in publication.committables for name in each["files"]), *marks.values()]
        return super().publish(
            replace(publication, committables=({"files": files, "removed": list(marks)},)), head, context
        )

    def _replaced(self, publication: Publication, head: Head) -> tuple[str, ...]:
        return tuple(name for each in publication.committables for name in each["removed"])

    def replaces(self, committable: Json | None) -> bool:
        return bool(committable and committable.get("marks"))

    def retire_replaced(self, id: int, kept: Iterable[int], context: SinkContext) -> None:
        gone = self._named(id, context.app_id)
        for other in kept:
            gone -= self._named(other, context.app_id)
        for name in sorted(gone - set(self._table.live())):
            self._ask(f"remove {name} of", "lost")
            self._table.files.pop(name, None)

    def _named(self, id: int, app_id: str) -> set[str]:
        upto = [n for n, c in enumerate(self._table.commits) if c.app_id == app_id and c.id is not None and c.id <= id]
        return set(self._table.live(upto[-1])) if upto else set()

    @property
    def waiting(self) -> dict[str, Row]:
        """The rows that wait, by their files."""
        return self.waiting_at(len(self._table.commits) - 1)

    def waiting_at(self, version: int) -> dict[str, Row]:
        """The same as of a version."""
        return {name: self._table.files[name][0] for name in self._table.live(version) if not fate_of(name)}


@dataclass
class WaitingFrame(ToyFrame):
    """Rows with the names of their files."""

    by_name: dict[str, Row] = field(default_factory=dict)


class ToyWaiting(Source):
    """The rows that wait as of one version."""

    kind: ClassVar[str] = "toy-waiting"

    def __init__(self, sink: ToyQuarantine) -> None:
        self.sink = sink

    def describe(self) -> Json:
        return {}

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        self.sink._ask("plan", "lost")
        return Planned(end=None, splits={"version": len(self.sink._table.commits) - 1}, empty=False)

    def verify(self, splits: Json, context: SourceContext) -> None:
        self.sink._ask("verify", "lost")

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        self.sink._ask("read", "lost")
        frame: Any = WaitingFrame([], by_name=self.sink.waiting_at(splits["version"]))
        return frame  # type: ignore[no-any-return]
