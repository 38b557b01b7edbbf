"""Which rows a query of bad rows returns, if the query says so plainly.

Great Expectations counts what a query returns. If the query only filters the batch, its condition is true for exactly
these rows, so that they can be counted with all other conditions, and quarantined.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["row_condition_of"]

_BATCH: Final = "_tidegate_batch"
_FILTER: Final = re.compile(rf"\s*select\s+\*\s+from\s+{_BATCH}\s+where\s+(.+?)[;\s]*", re.IGNORECASE | re.DOTALL)
_MORE_THAN_A_CONDITION: Final = re.compile(
    rf"--|/\*|;|\b(?:{_BATCH}|select|from|group|having|order|sort|cluster|distribute|limit|offset|union|intersect|except"
    r"|minus|window|over|lateral|join|qualify|tablesample|pivot|unpivot)\b",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`", re.DOTALL)


def row_condition_of(query: object) -> str | None:
    """Return the condition of `select * from {batch} where condition`. None: the query is another one."""
    if not isinstance(query, str):
        return None
    try:
        text = query.format(batch=_BATCH)
    except (LookupError, ValueError):
        return None
    match = _FILTER.fullmatch(text)
    if match is None or _MORE_THAN_A_CONDITION.search(_QUOTED.sub(" ", match[1])):
        return None
    return match[1]
