"""What all kinds of window share: when they are late, complete and over, and how partial results become results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidegate.operators.base import OperatorContext
from tidegate.operators.functions import Function, parse
from tidegate.operators.inputs import need_keys, recalled, refuse_own, result_types
from tidegate.records.moments import at_micros
from tidegate.records.names import quoted
from tidegate.spark.empty import empty_like, is_known_empty
from tidegate.spark.event_time import time_micros
from tidegate.state.columns import OWN
from tidegate.state.expiry import Over

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.state.keyed import KeyedState

__all__ = ["END", "START", "Windowing", "ends_after", "ends_by"]

START: Final = "window_start"
END: Final = "window_end"
TAKEN: Final = (
    "_pane",
    "_rows",
    "_start",
    "_place",
    "_time",
    "_fate",
    "_begins",
    "_island",
    "_new",
    "_begin",
    "_finish",
    *OWN,
)
"""Names that windows use beside the keys and partial results."""


@dataclass(frozen=True)
class Windowing:
    """One attempt at a window operator."""

    context: OperatorContext
    rows: DataFrame
    by: Sequence[str]
    functions: Mapping[str, str]
    on_update: bool
    side: bool
    allowed: int
    """Microseconds of `allowed_lateness`."""
    takes_end: bool = False
    """A row at a window's very end is still one with it: so the window is complete when the watermark is behind it."""

    @property
    def before(self) -> int | None:
        """The watermark of the base: it judges what is late."""
        return self._until(self.context.watermarks.before_micros)

    @property
    def now(self) -> int | None:
        """The watermark with this checkpoint's rows: it judges what is complete."""
        return self._until(self.context.watermarks.now_micros)

    def _until(self, mark: int | None) -> int | None:
        """Windows that end then or before take none of the rows that may still come."""
        return mark - 1 if mark is not None and self.takes_end else mark

    @property
    def over(self) -> int | None:
        """What ended then or before takes no more rows in this checkpoint."""
        return None if self.before is None else self.before - self.allowed

    @property
    def over_next(self) -> int | None:
        """What ends then or before will take no more rows in the next checkpoint: it need not be kept."""
        return None if self.now is None else self.now - self.allowed

    @property
    def keys(self) -> list[str]:
        """The state's keys. Time comes first: files are sorted by them, and what is wanted lies together."""
        return [START, *self.by]

    @cached_property
    def state(self) -> KeyedState:
        """The windows that are not over."""
        over = None if self.over is None else Over(END, at_micros(self.over))
        return self.context.state(self.keys, over=over)

    @cached_property
    def parsed(self) -> list[Function]:
        """The declared aggregates, for input of its types."""
        found = [told for name, text in self.functions.items() if isinstance(told := parse(name, text), Function)]
        return [each.in_windows().typed(self.types[each.name]) for each in found]

    @cached_property
    def types(self) -> dict[str, str]:
        """The types that Spark gives the results."""
        found = [told for name, text in self.functions.items() if isinstance(told := parse(name, text), Function)]
        return result_types(found, self.rows, self.context)

    def refuse_unfit(self) -> None:
        """Invalid if the input lacks a key, or has columns of names that windows use."""
        need_keys(self.rows, self.by, "by", self.context)
        refuse_own(self.rows, self.context, TAKEN)

    def held(self, like: DataFrame, where: str | None = None, *, common: str | None = None) -> DataFrame | None:
        """The windows that are not over, in the columns of `like`. None: the state has never held any.

        common: a condition on what a window has always had, so that files can be skipped by it.
        """
        rows = self.state.rows(common)
        if rows is None:
            return None
        rows = recalled(self.state, rows, like, self.context)
        return rows if where is None else rows.where(where)

    def held_of(self, keys: DataFrame) -> DataFrame | None:
        """Those of them that are among `keys`, which have all columns."""
        rows = self.state.of(keys)
        return None if rows is None else recalled(self.state, rows, keys, self.context)

    def shown(self, held: DataFrame) -> DataFrame:
        """The results of those windows that were given and may be given again, of all that are held."""
        from pyspark.sql import functions as F

        moments = (F.lit(None).cast("timestamp").alias(name) for name in (START, END))
        like = self.rows.groupBy(*map(quoted, self.by)).agg(*self.partials(self.rows, *moments))
        known = recalled(self.state, held, like, self.context).where(ends_after(self.over))
        return self.results(known if self.on_update else known.where(ends_by(self.before)))

    def micros(self, rows: DataFrame) -> Column:
        """The rows' event time; Invalid if they lack it."""
        assert self.context.event_time is not None
        return time_micros(rows, self.context.event_time, f"window {self.context.uid!r}")

    def partials(self, rows: DataFrame, *columns: Column) -> list[Column]:
        """The rows' partial results, and the other columns, for `agg`."""
        return [*columns, *(column for each in self.parsed for column in each.partials())]

    def merged(self, held: DataFrame | None, fresh: DataFrame) -> DataFrame:
        """One row per window and key: what was held and what is new."""
        both = fresh if held is None else fresh.unionByName(held)
        return self.grouped(both, [*self.keys, END])

    def grouped(self, rows: DataFrame, keys: Sequence[str], *columns: Column) -> DataFrame:
        """Partial results merged by these keys, in the types that they have: sums of sums have wider ones."""
        kinds = {field.name: field.dataType for field in rows.schema.fields}
        found = rows.groupBy(*map(quoted, keys)).agg(*columns, *(c for each in self.parsed for c in each.merges()))
        return found.select(
            *(found[quoted(name)].cast(kinds[name]).alias(name) if name in kinds else name for name in found.columns)
        )

    def results(self, windows: DataFrame) -> DataFrame:
        """What the user asked for: the window, the keys, and the results."""
        names = [quoted(name) for name in (START, END, *self.by)]
        found = windows.select(*names, *(each.result(self.types[each.name]) for each in self.parsed))
        return empty_like(found) if is_known_empty(windows) else found

    def count(self, **counted: int | None) -> None:
        """Tell of rows that no window took."""
        self.context.counts.update({name: number for name, number in counted.items() if number})


def ends_after(micros: int | None) -> str:
    """SQL for: the window ends after that. None: of no time that is known."""
    return "true" if micros is None else f"{END} > timestamp_micros({micros})"


def ends_by(micros: int | None) -> str:
    """SQL for: the window has ended by then. None: nothing has."""
    return "false" if micros is None else f"{END} <= timestamp_micros({micros})"
