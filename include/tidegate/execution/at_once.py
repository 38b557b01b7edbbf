"""Work of one attempt that need not wait for each other, done at once.

What a small query costs is mostly its planning, which keeps one core busy; and a large one leaves cores idle when its
last tasks are at work. Spark runs several queries of one session at once, each asked for by a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final, TypeVar

from tidegate.pipeline.graph.graph import Node, StageNode
from tidegate.pipeline.graph.nodes import GateNode

__all__ = ["all_at_once", "stages_in_turn"]

MAX_AT_ONCE: Final = 4
"""More queries at once would only compete for the same cores, and each has rows in memory."""

Result = TypeVar("Result")


def all_at_once(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Do all of it, and return the results in order. Raise the first failure: once nothing is at work any more, so that
    nobody writes where the caller removes."""
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="at-once") as pool:
        begun = [pool.submit(copy_context().run, work) for work in works]
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        finally:
            for future in begun:
                future.cancel()
    failures = [future.exception() for future in begun if not future.cancelled()]
    for failure in failures:
        if failure is not None:
            raise failure
    return [future.result() for future in begun]


def stages_in_turn(stages: Sequence[Node], streams: Collection[str], *, one_by_one: bool) -> Iterator[Sequence[Node]]:
    """Yield the stages, each once all that it takes is among the streams, to which the caller adds what each makes: one
    stage, or several operators that need not wait for each other. What costs no query comes first, so that as many
    operators as possible come together. one_by_one: each alone, in the order of the graph."""
    left = list(stages)
    while left:
        ready = [] if one_by_one else [stage for stage in left if all(name in streams for name in stage.inputs)]
        plain = [stage for stage in ready if isinstance(stage, StageNode)]
        gates = [stage for stage in ready if isinstance(stage, GateNode)]
        turn: Sequence[Node] = plain[:1] or gates[:1] or ready or left[:1]  # the last fails for what it lacks
        left = [stage for stage in left if stage not in turn]
        yield turn
