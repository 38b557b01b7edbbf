"""A checkpoint that one operator's change by hand makes: what runs in it, and what does not.

Every source stands still, and so does event time; no timer falls due. The operator's states are changed, and what
that changes in the rows that it has given is given on, if it replaces rows: to all that lies behind it, as in any other
checkpoint. So nobody takes rows back later that were never given. What stays once it was given (the rows of
`deduplicate`, of `process` …) is not given again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.records.records import Blob
from tidegate.sources.base import Blobs, SourceContext
from tidegate.spark.empty import empty_like

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.coordinator import Coordinator
    from tidegate.execution.job.operators import OperatorRunner
    from tidegate.records.records import Plan

__all__ = ["ByHand", "no_rows_of"]


@dataclass(frozen=True)
class ByHand:
    """What is changed by hand, and who sees it."""

    graph: Graph
    stage: OperatorNode
    """The operator whose state is changed."""
    check: Callable[[OperatorRunner], None]
    """Refuses what cannot be, before anything is read."""
    work: Callable[[OperatorRunner, Mapping[str, DataFrame]], dict[str, DataFrame]]
    """Changes it, and answers with the operator's streams; the input's streams have no rows."""
    needs_input: bool
    """Whether `work` asks what columns the inputs have."""

    @property
    def gives(self) -> bool:
        """Whether anything is given on."""
        return self.stage.operator.updates

    @cached_property
    def _known(self) -> tuple[frozenset[str], frozenset[str]]:
        """The stages that run, and the streams that may have rows.

        What lies behind the operator runs. Its other inputs are made, too, without rows; if an operator has to run for
        that, so does all that takes from it, since it may have something to give.
        """
        wanted, live = {self.stage.name}, set[str]()
        makers = {stream: stage.name for stage in self.graph.stages for stream in stage.produces}
        while True:
            before = len(wanted), len(live)
            for stage in self.graph.stages:
                own = stage.name == self.stage.name
                if not live.isdisjoint(stage.inputs):
                    wanted.add(stage.name)
                if stage.name in wanted and (self.needs_input or not own):
                    wanted |= {makers[name] for name in stage.inputs if name in makers}
                gives = self.gives if own else isinstance(stage, OperatorNode)
                if stage.name in wanted and (gives or not live.isdisjoint(stage.inputs)):
                    live |= {stage.name} if own else set(stage.produces)
            if before == (len(wanted), len(live)):
                return frozenset(wanted), frozenset(live)

    @property
    def stages(self) -> frozenset[str]:
        """The stages that run."""
        return self._known[0]

    @property
    def live(self) -> frozenset[str]:
        """The streams that may have rows: gates judge these, and sinks take them."""
        return self._known[1]

    @cached_property
    def streams(self) -> frozenset[str]:
        """The streams that are made, with or without rows."""
        found: set[str] = set()
        for stage in self.graph.stages:
            own = stage.name == self.stage.name
            if stage.name in self.stages:
                found |= set(stage.produces) if self.gives or not own else set()
                found |= set(stage.inputs) if self.needs_input or not own else set()
        return frozenset(found)


def no_rows_of(coordinator: Coordinator, plan: Plan, name: str, spark: SparkSession) -> DataFrame:
    """A source's columns, as it would give them next, without rows."""
    source = coordinator.graph.sources[name].source
    context = SourceContext(coordinator.graph.name, name, coordinator.place, _ReadOnly(coordinator.ledger))
    return empty_like(source.read(spark, source.plan(plan.sources[name].end, context).splits, context))


@dataclass(frozen=True)
class _ReadOnly:
    """The ledger's side files for a plan that nobody will follow: it leaves none."""

    blobs: Blobs

    def put_blob(self, data: bytes) -> Blob:
        return Blob(path="blobs/none", sha=sha256(data).hexdigest(), size=len(data))

    def get_blob(self, blob: Blob) -> bytes:
        return self.blobs.get_blob(blob)
