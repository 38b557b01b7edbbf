"""What a user writes: Pipeline, its sources, stages and hooks. Nothing here runs or reads anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tidegate.errors import Invalid
from tidegate.model.place import Place
from tidegate.model.records import Json
from tidegate.pipeline.gated import Gated
from tidegate.pipeline.graph import Graph, Node, Sinking, Sourcing, Staged, build_graph
from tidegate.pipeline.hooks import Hook, OnSuspended, Preparing, Triggering, make_hook, once_each
from tidegate.pipeline.stream import Stream, job_of
from tidegate.sources.adaptive import Adaptive
from tidegate.sources.base import Source

__all__ = ["Pipeline"]


class Pipeline:
    """A graph of sources, stages and sinks that counts together, checkpoint by checkpoint.

        pipeline = Pipeline("orders", interval="1 min")
        orders = pipeline.source("orders", Files("landing/*.json", schema="id long, amount double"))

        @pipeline.stage(orders)
        def clean(orders):
            return orders.where("amount is not null")

        clean.sink("orders", DeltaAppend("tables/orders"))

    Settings given here override tidegate.toml and the environment; `-D key=value` overrides these.
    """

    def __init__(self, name: str, **settings: object) -> None:
        self.name = name
        self.settings = settings
        caller = sys._getframe(1).f_globals
        self.declared_in = str(caller.get("__name__", "")), str(caller.get("__file__") or "")
        """The module and the file that declare it: where another process finds it again."""
        self._sources: list[Sourcing] = []
        self._stages: list[Node] = []
        self._sinks: list[Sinking] = []
        self._on_suspended: list[OnSuspended] = []
        self._hooks: list[Hook] = []
        self._aligned: set[str] = set()

    def source(
        self,
        name: str,
        source: Source,
        *,
        event_time: str | None = None,
        watermark: float | str | None = None,
        max_per_checkpoint: Adaptive | None = None,
    ) -> Stream:
        """Read from `source` under this name. The name is its identity: positions are kept by it.

        event_time: the column that says when a row happened, for what goes by event time.
        watermark: how much later than the newest row a row may come, such as "10 min"; else the setting `watermark`.
        max_per_checkpoint: Adaptive() takes as much as fits into the interval, within the source's own bounds.
        """
        self._sources.append(Sourcing(name, source, event_time, watermark, max_per_checkpoint))
        return Stream(self, name)

    def stage(
        self, *inputs: Stream | str, outputs: Sequence[str] = (), name: str | None = None
    ) -> Callable[[Callable[..., Any]], Stream]:
        """Decorate a pure function: DataFrames in (one per input, in order), a DataFrame out.

        With `outputs`, it returns a dict or tuple of DataFrames, and the streams are `stage["output"]`.
        It may run more than once for one checkpoint; only one run's result counts.
        """
        names = tuple(self._stream_name(given) for given in inputs)
        job = job_of(inputs)
        if isinstance(outputs, str):
            raise Invalid(
                f"a stage's outputs are the text {outputs!r}",
                expected="a list of names",
                help=f"write outputs=[{outputs!r}]",
                reason="BAD_PIPELINE",
            )

        def declare(function: Callable[..., Any]) -> Stream:
            stage_name = name or getattr(function, "__name__", "stage").replace("<lambda>", "")
            self._stages.append(Staged(stage_name, function, names, tuple(outputs), job))
            return Stream(self, stage_name, tuple(outputs))

        return declare

    def on_suspended(self, hook: OnSuspended) -> OnSuspended:
        """Have `hook` called, with a Suspension, when failures or damage have suspended the pipeline: to page somebody.
        Also when it is not suspended, but more runs in a row than are tolerated could not plan a checkpoint.

        At least once, in the process that found it; so it may be called again. What it raises is logged, no more.
        Returns the hook, so that it can be used as a decorator.
        """
        if not callable(hook):
            raise Invalid(
                f"on_suspended was given a {type(hook).__name__}",
                expected="a function of one argument, the Suspension",
                help="pass the function itself, without calling it",
                reason="BAD_PIPELINE",
            )
        self._on_suspended.append(hook)
        return hook

    def hook(
        self,
        name: str,
        *,
        on_trigger: Callable[[Triggering], Json | None] | None = None,
        on_prepare: Callable[[Preparing], object] | None = None,
        on_restore: Callable[[Json], object] | None = None,
        on_reset: Callable[[], object] | None = None,
        timeout: str = "30 s",
    ) -> None:
        """Let code of your own take part in checkpoints, under a name by which its state is found.

        on_trigger: called when a checkpoint is planned; the dict that it returns is kept with it. If it fails, or does
            not answer within `timeout`, nothing is planned. It may be called again, also for one that comes to nothing.
        on_prepare: called in each job when its rows are computed and staged, before its ack makes them count: to flush
            what stages have left elsewhere. If it fails, or does not answer in time, the checkpoint is declined.
            Each attempt calls it, so it must bear being called again.
        on_restore: called with that dict before anything is planned behind a rollback to that checkpoint.
        on_reset: called instead if the checkpoint has none of this hook. Both may be called more than once.
        """
        self._hooks.append(make_hook(name, on_trigger, on_prepare, on_restore, on_reset, timeout))

    def graph(self, place: Place | None = None, mode: str | None = None) -> Graph:
        """The checked graph; Invalid lists every problem at once. mode: the setting's value, as all layers have it."""
        graph = build_graph(self.name, self._sources, self._stages, self._sinks, self.settings, place, mode)
        hooks, aligned = once_each(self._hooks), frozenset(self._aligned)
        return replace(graph, on_suspended=tuple(self._on_suspended), hooks=hooks, aligned=aligned)

    def _ungated(self, stream: str) -> str:
        """The stream in front of all gates that it has passed."""
        passed = {each.name: each.input for each in reversed(self._stages) if isinstance(each, Gated)}
        while stream in passed:
            stream = passed.pop(stream)
        return stream

    def _stream_name(self, given: Stream | str) -> str:
        if isinstance(given, str):
            return given
        if not isinstance(given, Stream):
            raise Invalid(
                f"a stage's input is a {type(given).__name__}",
                expected="a stream (what pipeline.source or another stage returned) or its name",
                help="pass the stream, not the source or the function",
                reason="BAD_PIPELINE",
            )
        if given.pipeline is not self:
            raise Invalid(
                f"stream {given.name!r} belongs to pipeline {given.pipeline.name!r}, not to {self.name!r}",
                expected=f"a stream of pipeline {self.name!r}",
                help="write it to a table there and read that table here",
                reason="BAD_PIPELINE",
            )
        return given.name

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"
