"""Distinct values of keys whose totals expire.

When a key's totals have expired and it reappears, it begins a new life, named by the checkpoint in which it began. Its
totals and its values carry that number, and values of earlier lives do not count. So expiry need not scan them. From
time to time, the states are rewritten without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.operators.distinct.kernel import LIFE
from tidegate.operators.functions import Function, parse
from tidegate.records.names import quoted
from tidegate.spark.event_time import moment
from tidegate.spark.frame_facts import empty_if, is_known_empty, select_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import Ttl

__all__ = ["forget_values", "in_current_life", "life_function", "with_life"]

FORGOTTEN: Final = "values_forgotten"
"""The key in the operator's memory for the time of the last rewrite, in microseconds since 1970, and the number of
values that were left."""
_LIFE: Final = "_begun life"


def life_function() -> Function:
    """Return the aggregate that stores the life with the totals."""
    function = parse(LIFE, f"max({LIFE})")
    assert isinstance(function, Function)
    return function


def with_life(rows: DataFrame, by: Sequence[str], state: KeyedState, context: OperatorContext) -> DataFrame:
    """Add the life of their key to the rows: this checkpoint for a key without totals."""
    from pyspark.sql import functions as F

    now = F.expr(moment(context.checkpoint, quoted(by[0])))
    if is_known_empty(rows) or state.is_empty:
        return empty_if(rows, rows.withColumn(LIFE, now))
    rows = context.persist(rows)  # a second computation might return other rows than those whose keys are looked up
    totals = state.lookup(rows.select(*map(quoted, by)).distinct())
    assert totals is not None
    joined = rows.join(_lives(totals, by), F.expr(_same_key(by)), "left")
    return joined.select(*map(quoted, rows.columns), F.coalesce(quoted(_LIFE), now).alias(LIFE))


def in_current_life(stored: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the stored values that count for the life of the rows.

    keys: those of the values, with one row each in the batch.
    """
    from pyspark.sql import functions as F

    columns = [f"{quoted(key)} AS {quoted(name)}" for key, name in _aliases(keys).items()]
    lives = select_sql(rows, [*columns, f"{LIFE} AS {quoted(_LIFE)}"])
    return stored.join(lives, F.expr(_in_life(keys, stored)), "left_semi")


def forget_values(
    state: KeyedState, values: Sequence[KeyedState], by: Sequence[str], ttl: Ttl, context: OperatorContext
) -> None:
    """Rewrite the totals without expired ones, and the values without those of earlier lives: at most once per
    `state_ttl`, and only if there are twice as many values as after the last time.

    Totals that have not been removed keep all of their values, even if `state_ttl` becomes longer.
    """
    now, before = ttl.touched, context.memory.get(FORGOTTEN)
    last_time, remaining = now, 0
    if isinstance(before, dict):
        last_time, remaining = before["at"], before["left"]
    if last_time is None or (now is not None and now < last_time):  # the clock went back, or another one counts now
        last_time = now
    is_due = last_time is not None and ttl.limit is not None and last_time <= ttl.limit
    if is_due and _count_rows(values) > 2 * remaining:
        state.rewrite()
        for value_state in values:
            value_state.rewrite(lambda rows: _current_values(rows, state.rows(), by))
        last_time, remaining = now, _count_rows(values)
    context.remember[FORGOTTEN] = {"at": last_time, "left": remaining}


def _count_rows(states: Sequence[KeyedState]) -> int:
    return sum(state.rows_in_files for state in states)


def _current_values(values: DataFrame, totals: DataFrame | None, by: Sequence[str]) -> DataFrame:
    """Return the values of the present lives of their keys."""
    from pyspark.sql import functions as F

    if totals is None:
        return values.where("false")
    return values.join(_lives(totals, by), F.expr(_in_life(by, values)), "left_semi")


def _lives(totals: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the life of each key, under names that no other frame has."""
    keys = (f"{quoted(key)} AS {quoted(name)}" for key, name in _aliases(by).items())
    return select_sql(totals, [*keys, f"{_life_of(totals)} AS {quoted(_LIFE)}"])


def _same_key(by: Sequence[str]) -> str:
    """Return the SQL condition that a row has the key of a life."""
    return " AND ".join(f"{quoted(key)} <=> {quoted(name)}" for key, name in _aliases(by).items())


def _in_life(by: Sequence[str], values: DataFrame) -> str:
    """Return the SQL condition that a value counts for a life of its key."""
    return f"{_same_key(by)} AND {_life_of(values)} = {quoted(_LIFE)}"


def _aliases(by: Sequence[str]) -> dict[str, str]:
    return {key: f"_held {number}" for number, key in enumerate(by)}


def _life_of(rows: DataFrame) -> str:
    """Return SQL for the life of a stored row."""
    if LIFE in rows.columns:
        return f"coalesce({LIFE}, 0L)"
    return "0L"
