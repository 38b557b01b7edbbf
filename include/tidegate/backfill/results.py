"""Results that today's code computes in another way than the pipeline's last checkpoint, and what tables say of them.

Only Spark knows the types that expressions have, so a dry run tells what to declare where one may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidegate.checkpoint.references import acks_of
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta import open_table
from tidegate.delta.log.schema import columns, render
from tidegate.errors import TidegateError
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.records.records import Json

if TYPE_CHECKING:
    from tidegate.coordinator import Coordinator

__all__ = ["changed_results"]


def changed_results(live: Coordinator) -> Iterator[str]:
    """Yield each result of an operator that is declared in another way than in the last checkpoint, by the column that
    has it, and what to declare if its type is another one now."""
    last = live.ledger.view().last_completed
    before: dict[str, Json] = {}
    for ack in acks_of(live.ledger, last) if last is not None else ():
        before |= ack.memory
    tables = dict(_types(live)) if before else {}
    for name, now in meaning_of(live.graph).items():
        was = before.get(name, {})
        operator = name.rpartition(".")[0]
        for result, declared in now.items():
            if not isinstance(declared, str) or not isinstance(was.get(result), str) or was[result] == declared:
                continue
            for sink, types in tables.items():
                if result in types:
                    yield (
                        f"column {result} of {sink}: operator {operator} gives {declared}, and gave {was[result]}; the "
                        f"table has {types[result]}: if that is not its type any more, declare "
                        f"CAST({result} AS {types[result]}) before the sink, or the run is refused"
                    )


def _types(live: Coordinator) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the columns of each Delta table, with their types."""
    for name, sinking in live.graph.sinks.items():
        if not isinstance(sinking.sink, DeltaSink):
            continue
        try:
            table = open_table(sinking.sink.delta_table(live.context(name)))
        except TidegateError:
            continue  # what is wrong with it is told elsewhere
        if table is not None:
            yield name, {column: render(field["type"]) for column, field in columns(table.schema).items()}
