"""Computes the results of aggregates from partial values in workers, as the SQL in `functions.py` does in Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Result", "Results"]


@dataclass(frozen=True)
class Result:
    """One column of the result."""

    how: str
    """The key of a function in `_COMPUTED`."""
    partial_columns: Sequence[str]
    """The columns of its partial values."""

    def __call__(self, rows: pa.Table) -> Any:
        return _COMPUTED[self.how](*(rows[name] for name in self.partial_columns))


@dataclass(frozen=True)
class Results:
    """Maps rows of partial values to what an operator emits. It is sent to workers."""

    keys: Sequence[str]
    """Columns that are passed through."""
    columns: Mapping[str, Result]

    def __call__(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        columns = {name: rows[name] for name in self.keys}
        for name, result in self.columns.items():
            columns[name] = result(rows)
        return pa.table(columns)


def _unchanged(partial: Any) -> Any:
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
    "same": _unchanged,
    "or zero": _or_zero,
    "unless none": _unless_none,
    "mean": _mean,
}
