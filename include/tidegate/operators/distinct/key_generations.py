"""Distinct values of totals that expire.

A key whose totals were forgotten begins a new life. Its row says in which checkpoint that was, and so does each value
with what it was last counted for: values of an earlier life do not count. So nobody has to look for them when totals
expire. Now and then the states are written anew without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.operators.distinct.kernel import GENERATION
from tidegate.operators.functions import Function, parse
from tidegate.records.names import quoted
from tidegate.spark.event_time import moment
from tidegate.spark.frame_facts import empty_if, is_known_empty, select_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import Ttl

__all__ = ["forget_values", "generation_function", "in_current_generation", "with_generation"]

FORGOTTEN: Final = "values_forgotten"
"""What the operator remembers: when it last wrote its states without what has expired, in microseconds since 1970, and
how many values were left."""
_GENERATION: Final = "_begun life"


def generation_function() -> Function:
    """Return the aggregate that keeps the beginning of a life with the totals."""
    function = parse(GENERATION, f"max({GENERATION})")
    assert isinstance(function, Function)
    return function


def with_generation(rows: DataFrame, by: Sequence[str], state: KeyedState, context: OperatorContext) -> DataFrame:
    """Return rows with the beginning of their key's life: it is this checkpoint if the key has no totals."""
    from pyspark.sql import functions as F

    now = F.expr(moment(context.checkpoint, quoted(by[0])))
    if is_known_empty(rows) or state.is_empty:
        return empty_if(rows, rows.withColumn(GENERATION, now))
    rows = context.persist(rows)  # the rows whose keys are looked up are those that are counted, whatever made them
    totals = state.lookup(rows.select(*map(quoted, by)).distinct())
    assert totals is not None
    joined = rows.join(_generations(totals, by), F.expr(_of_key(by)), "left")
    return joined.select(*map(quoted, rows.columns), F.coalesce(quoted(_GENERATION), now).alias(GENERATION))


def in_current_generation(stored: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the stored values that count for the life of their key that the rows of the batch are of.

    keys: those of the values; there is one row of each in the batch.
    """
    from pyspark.sql import functions as F

    own = (f"{quoted(key)} AS {quoted(name)}" for key, name in _stored_values(keys).items())
    lives = select_sql(rows, [*own, f"{GENERATION} AS {quoted(_GENERATION)}"])
    return stored.join(lives, F.expr(_in_generation(keys, stored)), "left_semi")


def forget_values(
    state: KeyedState, values: Sequence[KeyedState], by: Sequence[str], ttl: Ttl, context: OperatorContext
) -> None:
    """Now and then write totals anew without those that have expired, and values without those that count no more: at
    most once in each `state_ttl`, and only if there are twice as many values as were left the last time.

    What is left of the totals still has all of its values, even if `state_ttl` becomes longer.
    """
    now, before = ttl.touched, context.memory.get(FORGOTTEN)
    last, left = (before["at"], before["left"]) if isinstance(before, dict) else (now, 0)
    if last is None or (now is not None and now < last):  # the clock went back, or is another one
        last = now
    is_time = last is not None and ttl.limit is not None and last <= ttl.limit
    if is_time and _rows(values) > 2 * left:
        state.rewrite()
        for each in values:
            each.rewrite(only=lambda rows: _current_values(rows, state.rows(), by))
        last, left = now, _rows(values)
    context.remember[FORGOTTEN] = {"at": last, "left": left}


def _rows(states: Sequence[KeyedState]) -> int:
    return sum(state.rows_in_files for state in states)


def _current_values(values: DataFrame, totals: DataFrame | None, by: Sequence[str]) -> DataFrame:
    """Return the values that belong to the lives that keys have now."""
    from pyspark.sql import functions as F

    if totals is None:
        return values.where("false")
    return values.join(_generations(totals, by), F.expr(_in_generation(by, values)), "left_semi")


def _generations(totals: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return when the life of each key began, under names that no other frame has."""
    keys = (f"{quoted(key)} AS {quoted(name)}" for key, name in _stored_values(by).items())
    return select_sql(totals, [*keys, f"{_generation_of(totals)} AS {quoted(_GENERATION)}"])


def _of_key(by: Sequence[str]) -> str:
    """Return SQL for: the row has the key of the life."""
    return " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in _stored_values(by).items())


def _in_generation(by: Sequence[str], values: DataFrame) -> str:
    """Return SQL for: the value counts for this life of the key."""
    return f"{_of_key(by)} AND {_generation_of(values)} = {quoted(_GENERATION)}"


def _stored_values(by: Sequence[str]) -> dict[str, str]:
    return {key: f"_held {place}" for place, key in enumerate(by)}


def _generation_of(rows: DataFrame) -> str:
    """Return SQL for the life that a stored row belongs to."""
    return f"coalesce({GENERATION}, 0L)" if GENERATION in rows.columns else "0L"
