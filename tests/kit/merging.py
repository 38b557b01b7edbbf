"""Sums and extremes merged into a state, as an aggregate does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.operators.kernels.merged import MergeAggregates
from tidegate.spark.frame_facts import is_known_empty
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.kernel_driver import StateLookup, run_kernel
from tidegate.state.keyed import KeyedState

__all__ = ["merged"]


def merged(state: KeyedState, rows: Any, ops: Mapping[str, str]) -> Any:
    """Merge rows with the stored ones of their keys, and return each key's row."""
    rows = rows.select(*(f"`{name}`" for name in (*state.keys, *ops)))
    fields = list(rows.schema.fields)
    work = MergeAggregates(state.keys, ops)
    is_empty = is_known_empty(rows)
    stored = [StateLookup(state, fields)]
    return run_kernel(
        rows, fields, state.keys, stored, work, fields, is_empty=is_empty, is_current_column=IS_CURRENT
    ).rows
