"""The columns whose values nobody is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["private_columns"]


def private_columns(graph: Graph, sample_hidden: str) -> frozenset[str]:
    """Return, in lower case, the columns of the setting `sample_hidden`, and those that gates keep private."""
    names = sample_hidden.split(",")
    for gated in graph.gates:
        names += list(getattr(gated.gate, "private", ()))
    return frozenset(name.strip().lower() for name in names if name.strip())
