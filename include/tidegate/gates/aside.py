"""A gate's quarantine as people look at it: through delta-rs, no JVM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.errors import Invalid
from tidegate.gates import quarantine as q
from tidegate.model.records import Request
from tidegate.tables import Location, Snapshot, open_table
from tidegate.tables.dataset import dataset

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Aside", "open_quarantine"]


def open_quarantine(home: str, gate: str, options: Mapping[str, str]) -> Aside | None:
    """The quarantine of a gate in a pipeline's folder; None: it has set no rows aside."""
    snapshot = open_table(Location(q.QuarantineSink(gate).path(home), dict(options)))
    return Aside(gate, snapshot) if snapshot is not None else None


@dataclass(frozen=True)
class Aside:
    """The table at one moment."""

    gate: str
    snapshot: Snapshot

    @property
    def url(self) -> str:
        return self.snapshot.location.url

    @cached_property
    def _own(self) -> Any:
        """The columns that quarantine has added: what requests are about, without the rows themselves."""
        return self.read(q.OWN_COLUMNS)

    def read(self, columns: Sequence[str]) -> Any:
        """These columns of all rows, as an Arrow table."""
        return dataset(self.snapshot).to_table(columns=list(columns))

    @property
    def last_checkpoint(self) -> int:
        """The last checkpoint that has set rows aside here."""
        import pyarrow.compute as pc

        return int(pc.max(self._own[q.CHECKPOINT]).as_py() or 0)

    def matching(self, request: Request, *, settled: bool = False, whole: bool = False) -> Any:
        """The rows that a request is about, as an Arrow table. settled: also those that do not wait any more. whole:
        with the columns that they had when they were set aside."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = dataset(self.snapshot).to_table() if whole else self._own
        kept = pc.less_equal(table[q.CHECKPOINT], request.seen)
        if not settled:
            kept = pc.and_(kept, pc.is_null(table[q.SETTLED]))
        for column, values in ((q.ID, request.ids), (q.CHECKPOINT, request.checkpoints)):
            if values:
                kept = pc.and_(kept, pc.is_in(table[column], pa.array(values)))
        if request.rules:
            wanted = set(request.rules)
            kept = pc.and_(kept, pa.array([not wanted.isdisjoint(each or ()) for each in table[q.RULES].to_pylist()]))
        return table.filter(kept)

    def whole_ids(self, given: Iterable[str]) -> list[str]:
        """The ids that begin as given, each of just one row."""
        wanted = list(given)
        there: list[str] = self._own[q.ID].to_pylist() if wanted else []
        found = []
        for text in wanted:
            same = [id for id in there if id == text] or [id for id in there if text and id.startswith(text)]
            if len(same) != 1:
                raise Invalid(
                    f"{len(same)} rows in quarantine of gate {self.gate!r} have an id that begins with {text!r}",
                    expected="the id of one row",
                    help="`tidegate quarantine show` tells the ids",
                    reason="NO_SUCH_ROW",
                )
            found += same
        return found

    def refuse_corrections(self, correct: Mapping[str, str | None]) -> None:
        """Invalid if a column is not there, or cannot hold the value: it would fail each checkpoint that tried."""
        import pyarrow as pa

        fields = {field.name: field.type for field in dataset(self.snapshot).schema if field.name not in q.OWN_COLUMNS}
        for column, value in correct.items():
            kind = fields.get(column)
            if kind is None:
                raise Invalid(
                    f"the rows in quarantine of gate {self.gate!r} have no column {column!r}",
                    expected=", ".join(fields),
                    reason="NO_SUCH_COLUMN",
                )
            try:
                pa.scalar(value, pa.string()).cast(kind)
                why = (
                    "" if value is None or _as_spark_reads(value, kind) else "Spark, which casts it, reads it otherwise"
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                why = str(error).splitlines()[0]
            if why:
                raise Invalid(
                    f"column {column!r} cannot be {value!r}: {why}",
                    expected=f"a value of type {kind}, such as {_example(kind)}",
                    reason="BAD_VALUE",
                )


def _as_spark_reads(value: str, kind: pa.DataType) -> bool:
    """Whether a text that Arrow takes for such a value is one to Spark, too: of numbers in decimal digits, and times
    down to the second, both think the same."""
    import pyarrow.types as types

    if types.is_integer(kind):
        return re.fullmatch(r"[+-]?[0-9]+", value) is not None
    if types.is_floating(kind) or types.is_decimal(kind):
        return (
            re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)|nan", value, re.I)
            is not None
        )
    if types.is_date(kind):
        return re.fullmatch(_DATE, value) is not None
    if types.is_timestamp(kind):
        zone = r"(Z|[+-][0-9]{2}:[0-9]{2})" if kind.tz is not None else ""
        return re.fullmatch(rf"{_DATE}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?{zone}", value) is not None
    if types.is_boolean(kind):
        return value.lower() in ("true", "false")
    return True


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"


def _example(kind: pa.DataType) -> str:
    import pyarrow.types as types

    if types.is_timestamp(kind):
        return "2026-01-31T12:00:00" + ("Z" if kind.tz is not None else "")
    if types.is_date(kind):
        return "2026-01-31"
    return "true" if types.is_boolean(kind) else "12"
