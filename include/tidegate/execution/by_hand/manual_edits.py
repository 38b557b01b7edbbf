"""A checkpoint that one operator's change by hand makes: which stages run in it, and which do not.

No source is read, event time stands still, and no timer falls due. The operator's states are changed. If it replaces
rows, the resulting changes in its output are passed to everything downstream, as in any other checkpoint: so no row is
taken back later that was never emitted. Final rows (of `deduplicate`, of `process` …) are not emitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tidegate.connectors.source import ReadOnlyBlobs, SourceContext
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.spark.frame_facts import empty_like

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.checkpoint.context import PipelineContext
    from tidegate.connectors.sink import Staging
    from tidegate.execution.job.operators import OperatorRunner
    from tidegate.records.records import DivertedRows, Plan

__all__ = ["Diverting", "ManualEdit", "no_rows_of"]


@dataclass(frozen=True)
class ManualEdit:
    """The change, and the stages and streams that it concerns."""

    graph: Graph
    stage: OperatorNode
    """The operator whose state is changed."""
    action: Literal["edit", "bootstrap"]
    check: Callable[[OperatorRunner], None]
    """Raises if the change is impossible, before anything is read."""
    work: Callable[[OperatorRunner, Mapping[str, DataFrame]], dict[str, DataFrame]]
    """Makes the change and returns the operator's streams; the input's streams have no rows."""
    needs_input: bool
    """Whether `work` needs the columns of the inputs."""

    @property
    def operator(self) -> str:
        """The operator's name."""
        return self.stage.name

    @property
    def emits_rows(self) -> bool:
        """True if the change may have rows for downstream stages."""
        return self.stage.name in self.graph.updating

    @cached_property
    def _affected(self) -> tuple[frozenset[str], frozenset[str]]:
        """The stages that run, and the streams that may have rows.

        Stages downstream of the operator run. Their other inputs are made, too, without rows; if an operator has to run
        for that, so do all stages downstream of it, since it may emit rows.
        """
        running, live = {self.stage.name}, set[str]()
        makers = {}
        for stage in self.graph.stages:
            for stream in stage.produces:
                makers[stream] = stage.name
        while True:
            before = len(running), len(live)
            for stage in self.graph.stages:
                is_changed = stage.name == self.stage.name
                if not live.isdisjoint(stage.inputs):
                    running.add(stage.name)
                if stage.name in running and (self.needs_input or not is_changed):
                    for name in stage.inputs:
                        if name in makers:
                            running.add(makers[name])
                gives = self.emits_rows if is_changed else isinstance(stage, OperatorNode)
                if stage.name in running and (gives or not live.isdisjoint(stage.inputs)):
                    live |= {stage.name} if is_changed else set(stage.produces)
            if before == (len(running), len(live)):
                return frozenset(running), frozenset(live)

    @property
    def stages(self) -> frozenset[str]:
        """The stages that run."""
        return self._affected[0]

    @property
    def live(self) -> frozenset[str]:
        """The streams that may have rows: gates judge these, and sinks take them."""
        return self._affected[1]

    @cached_property
    def streams(self) -> frozenset[str]:
        """The streams that are made, with or without rows."""
        streams: set[str] = set()
        for stage in self.graph.stages:
            is_changed = stage.name == self.stage.name
            if stage.name in self.stages:
                streams |= set(stage.produces) if self.emits_rows or not is_changed else set()
                streams |= set(stage.inputs) if self.needs_input or not is_changed else set()
        return frozenset(streams)


@dataclass(frozen=True)
class Diverting:
    """A checkpoint that diverts rows, which wait for a table: no stage runs."""

    job: str
    """The job that stages them: the one that writes to the table."""
    work: Callable[[Staging], DivertedRows]
    operator: str = ""
    emits_rows: bool = False
    stages: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    streams: frozenset[str] = frozenset()


def no_rows_of(pipeline: PipelineContext, plan: Plan, name: str, spark: SparkSession) -> DataFrame:
    """Return a source's columns as its next read would have them, without rows."""
    source = pipeline.graph.sources[name].as_planned(plan.sources[name])
    context = SourceContext(pipeline.graph.name, name, pipeline.place, ReadOnlyBlobs(pipeline.ledger))
    return empty_like(source.read(spark, source.plan(plan.sources[name].end, context).splits, context))
