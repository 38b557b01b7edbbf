"""What an operator in front of a sink can find out about its input stream: the key, and the rows that hold.

A stage of Python keeps the key of a changelog if it only filters rows, and adds, drops or renames columns. To find out,
it is called with a probe, and the plan of the result is examined (`spark/plans/kept_columns.py`). A stage that reads
rows before it returns may work differently each time, so after it the stream has no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.execution.job.exchange import BaseMemory
from tidegate.execution.job.stages import call_stage, results_of
from tidegate.operators.inputs import columns_of
from tidegate.operators.retractions.key import ChangelogKey, key_renamed
from tidegate.operators.retractions.materializer import Materializer
from tidegate.pipeline.graph.graph import Graph, Job
from tidegate.pipeline.graph.meaning import unshown, ways_to_begin
from tidegate.pipeline.graph.nodes import GateNode, OperatorNode, StageNode, makers_of, replaced_rows_of
from tidegate.pipeline.graph.retractions import DeclaredKey, declared_keys
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.plans.kept_columns import find_kept_columns
from tidegate.spark.plans.probe import make_probe
from tidegate.state.table import state_sink_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import StateTable

__all__ = ["StreamKeys", "UpstreamRows", "key_to_send"]

_KEPT: Final = "_tidegate_columns_kept"


class Operating(Protocol):
    """The part of `OperatorRunner` that is needed here."""

    job: Job
    prev: BaseMemory | None
    afresh: set[str]
    received_keys: Mapping[str, ChangelogKey]

    @property
    def graph(self) -> Graph: ...
    def base(self, name: str) -> StateTable | None: ...
    def has_stored_state(self, stage: OperatorNode) -> bool: ...
    def as_of_base(self, stage: OperatorNode, part: str, context: OperatorContext) -> KeyedState | None: ...
    def context(
        self, stage: OperatorNode, streams: Mapping[str, DataFrame], spark: SparkSession, *, waits: bool
    ) -> OperatorContext: ...


class StreamKeys:
    """The keys of changelogs in one job, both declared ones and those that Spark's plans reveal."""

    def __init__(self, graph: Graph, streams: Mapping[str, DataFrame], received: Mapping[str, ChangelogKey]) -> None:
        """received: keys of streams from other jobs, which found them in their plans."""
        self.streams = streams
        self.received = received
        self.declared: dict[str, DeclaredKey] = declared_keys(graph.stages)
        self.makers = makers_of(graph.stages)

    def find_key(self, stream: str) -> ChangelogKey | None:
        """Return the key of a stream's changelog, or None if none can be found."""
        declared = self.declared.get(stream)
        if declared is None or declared.certain:
            return declared.key if declared is not None else None
        maker = self.makers[stream]
        if any(name not in self.streams for name in maker.inputs):
            return self.received.get(stream)  # another job emits it, whose plans are not available here
        inputs = [self.find_key(name) for name in maker.inputs]
        if isinstance(maker, GateNode):
            return inputs[0]
        frames = [self.streams[name] for name in maker.inputs]
        if isinstance(maker, OperatorNode):
            return maker.spec.changelog.find_key(inputs, [frame.columns for frame in frames])
        if len(frames) != 1 or inputs[0] is None:
            return key_renamed(inputs[0], {})
        return key_renamed(inputs[0], _find_kept_columns(maker, frames[0]).get(stream, {}))


def key_to_send(
    graph: Graph, stream: str, streams: Mapping[str, DataFrame], received: Mapping[str, ChangelogKey]
) -> ChangelogKey | None:
    """Return the key of a changelog for the jobs that read the stream.

    None if it has no key, if the declaration determines it, or if no operator needs it.
    """
    is_needed = any(
        isinstance(stage.operator, Materializer) and not stage.operator.certain for stage in graph.operators
    )
    if not is_needed or declared_keys(graph.stages).get(stream, _SOURCE_KEY).certain:
        return None
    return StreamKeys(graph, streams, received).find_key(stream)


_SOURCE_KEY: Final = DeclaredKey(None)
"""The declared key of a source's stream."""


class UpstreamRows:
    """The input stream of one operator, in one attempt."""

    def __init__(self, operating: Operating, stage: OperatorNode, streams: Mapping[str, DataFrame]) -> None:
        self.operating = operating
        self.stage = stage
        self.streams = streams
        self.graph = operating.graph
        self.stream = stage.inputs[0]
        self.keys = StreamKeys(self.graph, streams, operating.received_keys)

    @property
    def path_hash(self) -> str:
        """See `Upstream`."""
        return self.graph.lineage.path_hash(self.stream)

    # -- its key -------------------------------------------------------------------------------------

    def key(self) -> ChangelogKey | None:
        """See `Upstream`."""
        return self.keys.find_key(self.stream)

    # -- its rows ------------------------------------------------------------------------------------

    def state_columns(self, part: str) -> Json | None:
        """See `Upstream`."""
        base = self.operating.base(state_sink_name(self.stage.name, part))
        if base is not None and base.files:
            return base.columns
        return None

    @property
    def has_earlier_checkpoints(self) -> bool:
        """See `Upstream`."""
        return self.operating.prev is not None

    def reset_state(self) -> None:
        """See `Upstream`."""
        self.operating.afresh |= self.stage.states.keys()

    def has_emitted_rows(self) -> bool:
        """See `Upstream`."""
        return bool(self._began())

    def _began(self) -> list[str]:
        operators = {node.name: node for node in self.graph.operators}
        return [uid for uid in self.graph.replacers(self.stream) if self.operating.has_stored_state(operators[uid])]

    def current_output(self) -> DataFrame:
        """See `Upstream`."""
        shown = None
        if self.graph.can_show(self.stage):
            shown = self._remake_rows(self.stream)
        if shown is None:
            raise Invalid(
                unshown(self.graph, self.stage, self._began()),
                expected="operators that show what they emitted, all in one job with the sink; or keys of the sink "
                "that contain those of its stream",
                help=ways_to_begin(self.graph, [self.stage]),
                reason="STATE_CHANGED",
            )
        return shown.select(*columns_of(self.streams[self.stream]))

    def _remake_rows(self, stream: str) -> DataFrame | None:
        maker = self.keys.makers[stream]
        if isinstance(maker, GateNode):
            return self._remake_rows(maker.input)
        if isinstance(maker, OperatorNode):
            return self._rebuild_emitted_rows(maker)
        frames: list[DataFrame] = []
        for name in maker.inputs:
            frame = self._remake_rows(name)
            if frame is None:
                return None
            frames.append(frame)
        return results_of(maker, call_stage(maker, frames))[stream]

    def _rebuild_emitted_rows(self, node: OperatorNode) -> DataFrame | None:
        """Return the rows of an operator that hold at the base, from its states."""
        names = []
        for name in (*node.inputs, *map(replaced_rows_of, node.inputs)):
            if name in self.streams:
                names.append(name)
        inputs = {name: empty_like(self.streams[name]) for name in names}
        context = self.operating.context(node, inputs, self.streams[node.name].sparkSession, waits=True)
        states = {}
        for part in node.spec.state_names:
            state = self.operating.as_of_base(node, part, context)
            states[part] = state.rows() if state is not None else None
        shown = node.operator.current_output(states, [inputs[name] for name in node.inputs], context)
        if shown is None:
            return empty_like(self.streams[node.name])
        return shown


def _find_kept_columns(stage: StageNode, frame: DataFrame) -> dict[str, dict[str, list[str]]]:
    """Return, for each output of a stage with one input, the names that the input's columns have in it.

    An output has none unless each of its rows is a row of the input. Results are cached in the session, by stage and
    schema.
    """
    cache: dict[tuple[int, str, str], _KeptByFunction] = vars(frame.sparkSession).setdefault(_KEPT, {})
    cache_key = id(stage.function), stage.name, frame.schema.json()
    if cache_key not in cache:
        results = _call_on_probe(stage, frame)
        columns = {}
        for name, result in results.items():
            columns[name] = find_kept_columns(result, frame.columns)
        cache[cache_key] = _KeptByFunction(stage.function, columns)
    return cache[cache_key].columns


def _call_on_probe(stage: StageNode, frame: DataFrame) -> dict[str, DataFrame]:
    """Return a stage's results for a probe. Empty if it reads rows or fails; with the real rows it may succeed."""
    try:
        return results_of(stage, call_stage(stage, [make_probe(frame)]))
    except Unavailable:
        raise
    except TidegateError:
        return {}


class _KeptByFunction(NamedTuple):
    """A cached result. It keeps the function alive, so that no other function gets the same id.

    The text of a function would not do as a key: two closures with the same text may behave differently.
    """

    function: Callable[..., object]
    columns: dict[str, dict[str, list[str]]]
