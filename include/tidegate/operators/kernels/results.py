"""The results of aggregates as workers compute them of partial values: the same as Spark's SQL gives (functions.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Result", "Results"]


@dataclass(frozen=True)
class Result:
    """One column."""

    how: str
    partial_columns: Sequence[str]
    """The columns of its partial values."""

    def __call__(self, rows: pa.Table) -> Any:
        return _COMPUTED[self.how](*(rows[name] for name in self.partial_columns))


@dataclass(frozen=True)
class Results:
    """Maps rows of partial values to what an operator emits. It is sent to workers."""

    keys: Sequence[str]
    """Columns that stay as they are."""
    columns: Mapping[str, Result]

    def __call__(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        made = {name: result(rows) for name, result in self.columns.items()}
        return pa.table({**{name: rows[name] for name in self.keys}, **made})


def _same(partial: Any) -> Any:
    return partial


def _or_zero(partial: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(partial, 0)


def _unless_none(total: Any, count: Any) -> Any:
    import pyarrow.compute as pc

    return pc.if_else(_is_zero(count), None, total)


def _mean(total: Any, count: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.divide(total, pc.if_else(_is_zero(count), None, count.cast(pa.float64())))


def _is_zero(count: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.equal(count, 0), False)


_COMPUTED: Final[Mapping[str, Callable[..., Any]]] = {
    "same": _same,
    "or zero": _or_zero,
    "unless none": _unless_none,
    "mean": _mean,
}
