"""What would become of rows that are released now: which ones count, and which ones an operator behind would lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantinedRows
from tidegate.gates.quarantine.returning import LateLimit, late_text, lateness_of, untold_text, without_time_text
from tidegate.records.moments import at_micros, micros_of
from tidegate.records.records import Json, Request

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True)
class Forecast:
    """What a release would do. Event time may come further until a checkpoint takes it up; then fewer rows count."""

    rows: int
    """All rows that it is about."""
    stays: Mapping[str, int] = field(default_factory=dict)
    """Those that would stay in quarantine, by the reason."""
    operators: Sequence[str] = ()
    """What each operator behind the gate does with them."""
    first: int | None = None
    """The first checkpoint that has quarantined one that would stay."""
    found_out_later: bool = False
    """Only the checkpoint that takes it up finds out whether more of them stay."""

    @property
    def may_stay(self) -> bool:
        """Whether some of them would stay, or maybe: the checkpoint finds that out."""
        return bool(self.stays) or self.found_out_later

    @property
    def counts(self) -> int:
        """The rows that would count."""
        return self.rows - sum(self.stays.values())

    def document(self) -> Json:
        """For scripts."""
        return {"counts": self.counts, "not_released": dict(self.stays), "operators": list(self.operators)}

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        yield from self.operators
        for reason, rows in self.stays.items():
            those = "1 row stays" if rows == 1 else f"{rows:,} rows stay"
            yield f"{those} in quarantine: {reason}"


def forecast(quarantine: QuarantinedRows, request: Request, takers: Sequence[LateLimit]) -> Forecast:
    """Return what a request to release would do. takers: the operators behind the gate that take no late rows."""
    types = quarantine.types
    known: list[tuple[LateLimit, str | None]] = []
    operators = []
    for taker in takers:
        behind = taker.operator
        name = next((name for name in types if name.casefold() == (behind.column or "").casefold()), None)
        name = name if name is not None and _is_time(types[name]) else None
        if behind.stages:
            stages = ", ".join(map(repr, behind.stages))
            operators.append(
                f"{behind.what} goes by {behind.column} as stage {stages} makes it: the checkpoint finds out which "
                "rows it takes, and all others stay in quarantine"
            )
        elif name is None and not behind.stream:
            operators.append(
                f"{behind.what} goes by {behind.column}, which the rows here do not have as a time: the checkpoint "
                "finds out which rows it takes, and all others stay in quarantine"
            )
        else:
            known.append((taker, name))
            operators.append(_describe_taker(taker) if name is not None else f"{behind.what} takes none of them")
    if not known:
        return Forecast(quarantine.count(request), {}, operators, found_out_later=bool(takers))
    rows, stays, first = 0, Counter[str](), None
    for batch in quarantine.chosen(request, [q.CHECKPOINT, *dict.fromkeys(name for _, name in known if name)]):
        rows += batch.num_rows
        staying = _count_reasons(batch, known, request, types, stays)
        if staying.any():
            least = int(batch.column(q.CHECKPOINT).to_numpy(zero_copy_only=False)[staying].min())
            first = least if first is None else min(first, least)
    return Forecast(rows, dict(stays), operators, first, len(known) < len(takers))


def _describe_taker(taker: LateLimit) -> str:
    behind, watermark = taker.operator, taker.watermark
    if watermark is None:
        return f"{behind.what} takes all rows that have a time in {behind.column}"
    limit = at_micros(micros_of(watermark) - behind.allowed)
    if behind.slide:
        return f"{behind.what} takes rows of windows that end after {limit:%Y-%m-%d %H:%M:%S} UTC, by {behind.column}"
    earliest = at_micros(micros_of(limit) - behind.lasts + 1)
    return f"{behind.what} takes rows from {earliest:%Y-%m-%d %H:%M:%S} UTC on, by {behind.column}"


def _count_reasons(
    batch: pa.RecordBatch,
    known: Sequence[tuple[LateLimit, str | None]],
    request: Request,
    types: Mapping[str, pa.DataType],
    stays: Counter[str],
) -> Any:
    """Return a mask of the rows that would stay; count why, each by the first operator that would lose it."""
    import numpy as np
    import pyarrow.compute as pc

    staying = np.zeros(batch.num_rows, bool)
    for taker, name in known:
        if name is None:
            stays.update({untold_text(taker.operator): int((~staying).sum())} if not staying.all() else {})
            return np.ones(batch.num_rows, bool)
        values = batch.column(name)
        if name in request.correct:
            values = _constant(request.correct[name], types[name], batch.num_rows)
        micros = _micros(values)
        timeless = ~pc.is_valid(micros).to_numpy(zero_copy_only=False) & ~staying
        times = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
        late = np.zeros(batch.num_rows, bool)
        if taker.watermark is not None:
            late = lateness_of(taker.operator).lost(times, micros_of(taker.watermark)) & ~timeless & ~staying
        staying |= timeless | late
        reasons = ((without_time_text(taker.operator), timeless), (late_text(taker.operator, taker.watermark), late))
        stays.update({reason: int(rows.sum()) for reason, rows in reasons if rows.any()})
    return staying


def _constant(text: str | None, kind: pa.DataType, rows: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    value = pa.scalar(None, kind) if text is None else pc.cast(pa.scalar(text), kind)
    return pa.repeat(value, rows)


def _micros(values: Any) -> Any:
    """Return times in microseconds since 1970. A date is its first moment, a timestamp without zone is in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    moments = pc.cast(values, pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None))
    return pc.cast(moments, pa.int64())


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
