"""Which columns a stage passes on unchanged, and by which columns an operator works."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tidegate.pipeline.graph.nodes import OperatorNode, StageNode
from tidegate.pipeline.selection import selected

__all__ = ["keys_of", "matched_columns", "name_before"]

_NAME = re.compile(r"^\s*`?(\w+)`?(?:\s+as\s+`?(\w+)`?)?\s*$", re.IGNORECASE)


def keys_of(stage: OperatorNode) -> Sequence[str]:
    """Return the columns by which an operator works; none if it works over all rows, or does not say so."""
    operator: Any = stage.operator
    names = getattr(operator, "by", None) or getattr(operator, "on", None) or ()
    return [name for name in names if isinstance(name, str)] if isinstance(names, (list, tuple)) else []


def matched_columns(stage: OperatorNode) -> list[tuple[str, str]]:
    """Return the columns by which an operator matches rows of its two inputs: the name in the first and the second."""
    if len(stage.inputs) < 2:
        return []
    keys: Any = getattr(stage.operator, "keys", None)
    if keys is not None and hasattr(keys, "left") and hasattr(keys, "right"):
        return list(zip(keys.left, keys.right, strict=True))
    return [(name, name) for name in keys_of(stage)]


def name_before(stage: StageNode, column: str) -> str | None:
    """Return the name that a column has before a stage, or None if the stage computes it.

    A function of the user is taken to pass on all columns.
    """
    function: Any = stage.function
    if getattr(function, "func", None) is not selected:
        return column
    for text in function.keywords["columns"]:
        if text == "*":
            return column
        named = _NAME.match(text)
        if named is not None and (named[2] or named[1]) == column:
            return str(named[1])
    return None
