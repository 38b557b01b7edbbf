"""Rules for changes of a state's columns from one version of the code to the next.

new column        null in stored rows
missing column    dropped: all rows are rewritten once, so that it cannot reappear with old values
wider type        all rows are rewritten once: see connectors/schema/widening.py; if rows have an id, it must stay the
                  same (see spark/row_id.py), or be computed again
other changes     refused
"""

from __future__ import annotations

import re
from typing import Any

from tidegate.connectors.schema.widening import is_wider
from tidegate.delta.log.schema import columns, differences, render
from tidegate.records.records import Json
from tidegate.state.columns import OWN

__all__ = ["RECOMPUTE", "changes_row_ids", "needs_rewrite", "refusals"]

RECOMPUTE = "or recompute everything with this code, and swap it in: tidegate backfill MODULE:PIPELINE --from beginning"
"""The remedy for a state that cannot continue, if its input can be read again."""

_CANDIDATES = ("smallint", "int", "bigint", "double", "timestamp_ntz")
_DECIMAL = re.compile(r"decimal\((\d+),\s?(-?\d+)\)")
_WHOLE = ("byte", "short", "integer", "long")
_ROW_ID = "_row"


def refusals(before: Json, now: Json, keys: list[str], *, can_compute_ids: bool = False) -> list[str]:
    """Return why a state with the columns `before` cannot continue with `now`. Empty: it can.

    can_compute_ids: the ids of rows can be computed again from their other columns.
    """
    old_types = {name: field["type"] for name, field in columns(before).items()}
    new_types = {name: field["type"] for name, field in columns(now).items()}
    has_row_ids = _ROW_ID in {*old_types, *new_types, *keys}
    # Rows that differ in nothing but a column that is dropped would get the same id.
    drops_columns = any(each.kind == "missing" and each.column not in OWN for each in differences(now, before))
    must_keep_ids = has_row_ids and (drops_columns or not can_compute_ids)
    problems = []
    for difference in differences(now, before):
        text = difference.text.replace("the table", "the state")
        if difference.kind == "type":
            old_type, new_type = old_types[difference.column], new_types[difference.column]
            if difference.column in keys:
                problems.append(f"key {text}: keys keep their type")
            elif not _is_wider(old_type, new_type):
                problems.append(f"{text}: {_allowed_changes(old_type)}")
            elif must_keep_ids and not _preserves_row_ids(old_type, new_type):
                problems.append(f"{text}: rows with this type have other ids than the stored ones")
        elif difference.kind == "case":
            problems.append(text)
    return problems


def changes_row_ids(before: Json, now: Json) -> bool:
    """Return whether rows with ids have other ones with the columns `now`."""
    old_types = {name: field["type"] for name, field in columns(before).items()}
    new_types = {name: field["type"] for name, field in columns(now).items()}
    for difference in differences(now, before):
        old_type, new_type = old_types.get(difference.column), new_types.get(difference.column)
        if difference.kind == "type" and not _preserves_row_ids(old_type, new_type):
            return True
    return False


def needs_rewrite(before: Json, now: Json) -> bool:
    """Return whether files with the columns `before` cannot be read together with those of `now`."""
    for difference in differences(now, before):
        if difference.kind in ("type", "missing") and difference.column not in OWN:
            return True
    return False


def _is_wider(before: Any, now: Any) -> bool:
    """Return whether the type `now` can hold all values of `before`."""
    return isinstance(before, str) and isinstance(now, str) and is_wider(render(before), render(now))


def _preserves_row_ids(before: Any, now: Any) -> bool:
    """Return whether the id of a row stays the same when a column becomes wider: see spark/row_id.py."""
    if before in _WHOLE and now in _WHOLE:
        return True
    if (before, now) == ("float", "double"):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
    return old is not None and new is not None and old[2] == new[2]


def _allowed_changes(before: Any) -> str:
    """Return which types a column of this type may change to, for an error."""
    if isinstance(before, str) and _DECIMAL.fullmatch(before):
        return "it can become a decimal with no fewer digits before the point and after it"
    wider = [kind for kind in _CANDIDATES if isinstance(before, str) and is_wider(render(before), kind)]
    if wider:
        return f"it can become {' or '.join(wider)}"
    return f"the type {render(before)} cannot change"
