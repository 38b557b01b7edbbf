"""Results that today's code computes differently from the pipeline's last checkpoint, with their types in tables.

Only Spark knows the types of expressions. So a dry run lists what to declare where a type may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidegate.checkpoint.references import acks_of, memory_of
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta import open_table
from tidegate.delta.log.schema import columns, render
from tidegate.errors import TidegateError
from tidegate.pipeline.graph.meaning import meaning_of

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["changed_results"]


def changed_results(live: PipelineContext) -> Iterator[str]:
    """Yield each result of an operator that is declared differently from the last checkpoint, by the column that holds
    it, and what to declare if its type has changed."""
    last = live.ledger.view().last_completed
    if last is None:
        return
    memory = memory_of(acks_of(live.ledger, last))
    tables = dict(_types(live)) if memory else {}
    for name, declarations in meaning_of(live.graph).items():
        earlier = memory.get(name, {})
        operator = name.rpartition(".")[0]
        for result, declared in declarations.items():
            before = earlier.get(result)
            if not isinstance(declared, str) or not isinstance(before, str) or before == declared:
                continue
            for sink, types in tables.items():
                if result in types:
                    yield (
                        f"column {result} of {sink}: operator {operator} computes {declared}; it computed {before} "
                        f"before. The table has {types[result]}: if that is not its type any more, declare "
                        f"CAST({result} AS {types[result]}) before the sink, or the run is refused"
                    )


def _types(live: PipelineContext) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the columns of each Delta table, with their types."""
    for name, sinking in live.graph.sinks.items():
        if not isinstance(sinking.sink, DeltaSink):
            continue
        try:
            table = open_table(sinking.sink.delta_table(live.context(name)))
        except TidegateError:
            continue  # other checks report its errors
        if table is not None:
            yield name, {column: render(field["type"]) for column, field in columns(table.schema).items()}
