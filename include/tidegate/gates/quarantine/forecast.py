"""Predicts a release from quarantine: which rows would count, and which ones a downstream operator would drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.reader import QuarantinedRows
from tidegate.gates.quarantine.returning import LateLimit, late_text, lateness_of, unknown_text, without_time_text
from tidegate.records.moments import from_micros, micros_of
from tidegate.records.records import Json, Request

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Forecast", "forecast", "predictable_takers"]


@dataclass(frozen=True)
class Forecast:
    """What a release would do now. By the time a checkpoint carries it out, more rows may be late."""

    rows: int
    """Number of rows that the request is about."""
    stays: Mapping[str, int] = field(default_factory=dict)
    """Number of rows that would stay in quarantine, by reason."""
    operators: Sequence[str] = ()
    """For each downstream operator that drops late rows, a sentence about the rows that it takes."""
    first: int | None = None
    """The first checkpoint with a row that would stay."""
    found_out_later: bool = False
    """Whether only the checkpoint can find out if more rows stay."""

    @property
    def may_stay(self) -> bool:
        """Whether some rows would, or may, stay in quarantine."""
        return bool(self.stays) or self.found_out_later

    @property
    def counts(self) -> int:
        """Number of rows that would count."""
        return self.rows - sum(self.stays.values())

    def document(self) -> Json:
        """Return the forecast for scripts."""
        return {"counts": self.counts, "not_released": dict(self.stays), "operators": list(self.operators)}

    def lines(self) -> Iterator[str]:
        """Yield the forecast as lines of text."""
        yield from self.operators
        for reason, rows in self.stays.items():
            subject = "1 row stays" if rows == 1 else f"{rows:,} rows stay"
            yield f"{subject} in quarantine: {reason}"


def predictable_takers(
    types: Mapping[str, pa.DataType], takers: Sequence[LateLimit]
) -> tuple[list[tuple[LateLimit, str | None]], list[str]]:
    """Return the operators of which it is known now which rows they drop, each with the column of its times, and for
    each operator a sentence about the rows that it takes.

    types: the types of the rows' columns. takers: the downstream operators that drop late rows.
    """
    predictable: list[tuple[LateLimit, str | None]] = []
    sentences = []
    for taker in takers:
        operator = taker.operator
        name = _time_column(types, operator.column)
        if operator.stages:
            stages = ", ".join(map(repr, operator.stages))
            sentences.append(
                f"{operator.what} uses {operator.column} as stage {stages} computes it: the checkpoint finds out which "
                "rows it takes, and all others stay in quarantine"
            )
        elif name is None and not operator.stream:
            sentences.append(
                f"{operator.what} uses {operator.column}, which the rows here do not have as a time: the checkpoint "
                "finds out which rows it takes, and all others stay in quarantine"
            )
        else:
            predictable.append((taker, name))
            sentences.append(_describe_taker(taker) if name is not None else f"{operator.what} takes none of them")
    return predictable, sentences


def forecast(quarantine: QuarantinedRows, request: Request, takers: Sequence[LateLimit]) -> Forecast:
    """Return what a request to release would do. takers: the downstream operators that drop late rows."""
    types = quarantine.types
    predictable, sentences = predictable_takers(types, takers)
    if not predictable:
        return Forecast(quarantine.count(request), {}, sentences, found_out_later=bool(takers))
    time_columns = dict.fromkeys(name for _, name in predictable if name)
    rows, stays, first = 0, Counter[str](), None
    for batch in quarantine.chosen(request, [q.CHECKPOINT, *time_columns]):
        rows += batch.num_rows
        staying = _count_reasons(batch, predictable, request, types, stays)
        if staying.any():
            least = int(batch.column(q.CHECKPOINT).to_numpy(zero_copy_only=False)[staying].min())
            first = least if first is None else min(first, least)
    return Forecast(rows, dict(stays), sentences, first, len(predictable) < len(takers))


def _time_column(types: Mapping[str, pa.DataType], column: str | None) -> str | None:
    """Return the quarantine's column of this name, if it holds times."""
    for name, kind in types.items():
        if name.casefold() == (column or "").casefold():
            return name if _is_time(kind) else None
    return None


def _describe_taker(taker: LateLimit) -> str:
    operator, watermark = taker.operator, taker.watermark
    if watermark is None:
        return f"{operator.what} takes all rows that have a time in {operator.column}"
    limit = from_micros(micros_of(watermark) - operator.allowed)
    if operator.slide:
        return (
            f"{operator.what} takes rows of windows that end after {limit:%Y-%m-%d %H:%M:%S} UTC, by {operator.column}"
        )
    earliest = from_micros(micros_of(limit) - operator.lasts + 1)
    return f"{operator.what} takes rows from {earliest:%Y-%m-%d %H:%M:%S} UTC on, by {operator.column}"


def _count_reasons(
    batch: pa.RecordBatch,
    takers: Sequence[tuple[LateLimit, str | None]],
    request: Request,
    types: Mapping[str, pa.DataType],
    stays: Counter[str],
) -> Any:
    """Return a mask of the rows that would stay, and add the reasons to `stays`.

    A row counts for the first operator that would drop it. takers: the operators, each with the column of its times.
    """
    import numpy as np
    import pyarrow.compute as pc

    staying = np.zeros(batch.num_rows, bool)
    for taker, name in takers:
        if name is None:
            if not staying.all():
                stays[unknown_text(taker.operator)] += int((~staying).sum())
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
    """Return times in microseconds since 1970. Dates are midnight, and timestamps without a zone are in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    moments = pc.cast(values, pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None))
    return pc.cast(moments, pa.int64())


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
