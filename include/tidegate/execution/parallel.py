"""Runs independent work of one attempt in parallel.

A small query mostly costs planning, which keeps one core busy, and a large one leaves cores idle while its last tasks
run. Spark runs several queries of one session in parallel if each is requested by a separate thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final, TypeVar

from tidegate.pipeline.graph.graph import Node, StageNode
from tidegate.pipeline.graph.nodes import GateNode

__all__ = ["call_in_parallel", "order_stages"]

MAX_AT_ONCE: Final = 4
"""More queries at once would only compete for the same cores, and each has rows in memory."""

Result = TypeVar("Result")


def call_in_parallel(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Call all functions in parallel, and return their results in order.

    If one fails, wait for those that run before raising its error, since the caller may delete files that they write.
    """
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="at-once") as pool:
        futures = [pool.submit(copy_context().run, work) for work in works]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
    for future in futures:
        failure = None if future.cancelled() else future.exception()
        if failure is not None:
            raise failure
    return [future.result() for future in futures]


def order_stages(stages: Sequence[Node], streams: Collection[str], *, one_by_one: bool) -> Iterator[Sequence[Node]]:
    """Yield the stages in an order in which their inputs are available: one stage, or several independent operators.

    Stages that need no query come first, so that as many operators as possible are yielded together.

    streams: the available streams, to which the caller adds the outputs of each stage.
    one_by_one: yield each stage alone, in the order of the graph.
    """
    remaining = list(stages)
    while remaining:
        ready: list[Node] = []
        if not one_by_one:
            for stage in remaining:
                if all(name in streams for name in stage.inputs):
                    ready.append(stage)
        plain = [stage for stage in ready if isinstance(stage, StageNode)]
        gates = [stage for stage in ready if isinstance(stage, GateNode)]
        # If none is ready, the first one fails, and its error names the missing stream.
        turn: Sequence[Node] = plain[:1] or gates[:1] or ready or remaining[:1]
        remaining = [stage for stage in remaining if stage not in turn]
        yield turn
