"""Rules for changes of a state from one version of the code to the next.

new column          null in the rows that are there
column is gone      forgotten: all rows are rewritten once, so that it cannot come back with old values
wider type          the same: int to long, float to double, more digits in front of the point of a decimal
anything else       refused
"""

from __future__ import annotations

import re
from typing import Any

from tidegate.delta.log.schema import columns, differences, render
from tidegate.records.records import Json
from tidegate.state.columns import OWN

__all__ = ["RECOMPUTE", "needs_rewrite", "refusals"]

RECOMPUTE = (
    "or compute again, with this code, all that was made, and swap it in: tidegate backfill MODULE:PIPELINE --from "
    "beginning"
)
"""The way out for a state that cannot continue, where its input can be read again."""

_WHOLE = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\((\d+),\s?(-?\d+)\)")


def refusals(before: Json, now: Json, keys: list[str]) -> list[str]:
    """Return why a state that holds `before` cannot continue with `now`; empty: it can."""
    types = {name: field["type"] for name, field in columns(before).items()}
    new = {name: field["type"] for name, field in columns(now).items()}
    problems = []
    for difference in differences(now, before):
        if difference.kind == "type":
            if difference.column in keys:
                problems.append(f"key {difference.text.replace('the table', 'the state')}: keys keep their type")
            elif not _wider(types[difference.column], new[difference.column]):
                problems.append(
                    f"{difference.text.replace('the table', 'the state')}: {_no_way(types[difference.column])}"
                )
        elif difference.kind == "case":
            problems.append(difference.text.replace("the table", "the state"))
    return problems


def needs_rewrite(before: Json, now: Json) -> bool:
    """Return whether files of `before` cannot be read together with those of `now`."""
    return any(
        difference.kind in ("type", "missing") and difference.column not in OWN
        for difference in differences(now, before)
    )


def _wider(before: Any, now: Any) -> bool:
    if before in _WHOLE and now in _WHOLE:
        return _WHOLE.index(before) < _WHOLE.index(now)
    if (before, now) == ("float", "double"):
        return True
    old, new = (_DECIMAL.fullmatch(kind) if isinstance(kind, str) else None for kind in (before, now))
    if old is None or new is None:
        return False
    return old[2] == new[2] and int(old[1]) < int(new[1])


def _no_way(before: Any) -> str:
    wider = {name: " or ".join(render(kind) for kind in _WHOLE[place + 1 :]) for place, name in enumerate(_WHOLE)}
    wider |= {"float": "double"}
    if isinstance(before, str) and (decimal := _DECIMAL.fullmatch(before)):
        return f"it can become a decimal with more than {decimal[1]} digits and {decimal[2]} of them behind the point"
    return f"it can become {wider[before]}" if wider.get(str(before)) else f"{render(before)} stays what it is"
