"""What an operator in front of a sink learns of the stream that it takes: its key, and the rows that hold in it.

The key of a changelog goes through a stage of Python if the stage only filters rows, and adds, drops or renames
columns: it is called with a probe, and the plan of what it returns tells (`spark/kept_columns.py`). A stage that looks
at rows before it returns may do something else each time, so behind it the stream has no key.
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
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, StageNode, replaced_rows_of
from tidegate.pipeline.graph.retractions import DeclaredKey, declared_keys
from tidegate.records.records import Json
from tidegate.spark.frame_facts import empty_like
from tidegate.spark.kept_columns import find_kept_columns, make_probe
from tidegate.state.table import state_sink_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.operators.context import OperatorContext
    from tidegate.state.keyed import KeyedState
    from tidegate.state.record import StateTable

__all__ = ["StreamKeys", "UpstreamRows", "key_to_send"]

_KEPT: Final = "_tidegate_columns_kept"


class Operating(Protocol):
    """The stateful side of the attempt, as far as it is needed here (`OperatorRunner`)."""

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
    """The keys of changelogs, with what plans show, as far as one job sees them."""

    def __init__(self, graph: Graph, streams: Mapping[str, DataFrame], received: Mapping[str, ChangelogKey]) -> None:
        """received: by stream of another job, the key that only its plan shows there."""
        self.streams = streams
        self.received = received
        self.declared: dict[str, DeclaredKey] = declared_keys(graph.stages)
        self.makers: dict[str, Node] = {name: node for node in graph.stages for name in node.produces}

    def find_key(self, stream: str) -> ChangelogKey | None:
        """Return the key of a stream's changelog. None: it has none, as far as anybody knows."""
        declared = self.declared.get(stream)
        if declared is None or declared.certain:
            return declared.key if declared is not None else None
        maker = self.makers[stream]
        if any(name not in self.streams for name in maker.inputs):
            return self.received.get(stream)  # another job makes it, and its plans are not seen here
        inputs = [self.find_key(name) for name in maker.inputs]
        if isinstance(maker, GateNode):
            return inputs[0]
        frames = [self.streams[name] for name in maker.inputs]
        if isinstance(maker, OperatorNode):
            return maker.spec.changelog.find_key(inputs, [frame.columns for frame in frames])
        kept = _find_kept_columns(maker, frames[0]) if len(frames) == 1 and inputs[0] is not None else {}
        return key_renamed(inputs[0], kept.get(stream, {}))


def key_to_send(
    graph: Graph, stream: str, streams: Mapping[str, DataFrame], received: Mapping[str, ChangelogKey]
) -> ChangelogKey | None:
    """Return the key of the changelog of a stream that other jobs take. None: it has none, or the declaration tells, or
    nobody asks for it."""
    asked = any(isinstance(stage.operator, Materializer) and not stage.operator.certain for stage in graph.operators)
    if not asked or declared_keys(graph.stages).get(stream, _NOTHING_TO_SHOW).certain:
        return None
    return StreamKeys(graph, streams, received).find_key(stream)


_NOTHING_TO_SHOW: Final = DeclaredKey(None)
"""Of a source's stream."""


class UpstreamRows:
    """The stream in front of one operator, in one attempt."""

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
        return base.columns if base is not None and base.files else None

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
        shown = self._remake_rows(self.stream) if self.graph.can_show(self.stage) else None
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
            return self._remake_rows_emitted_by(maker)
        frames = [self._remake_rows(name) for name in maker.inputs]
        found = [frame for frame in frames if frame is not None]
        return results_of(maker, call_stage(maker, found))[stream] if len(found) == len(frames) else None

    def _remake_rows_emitted_by(self, node: OperatorNode) -> DataFrame | None:
        """Return what an operator has emitted as of the base."""
        names = [name for name in (*node.inputs, *map(replaced_rows_of, node.inputs)) if name in self.streams]
        inputs = {name: empty_like(self.streams[name]) for name in names}
        context = self.operating.context(node, inputs, self.streams[node.name].sparkSession, waits=True)
        states = {}
        for part in node.spec.state_names:
            state = self.operating.as_of_base(node, part, context)
            states[part] = state.rows() if state is not None else None
        shown = node.operator.current_output(states, [inputs[name] for name in node.inputs], context)
        return empty_like(self.streams[node.name]) if shown is None else shown


def _find_kept_columns(stage: StageNode, frame: DataFrame) -> dict[str, dict[str, list[str]]]:
    """Return, by stream of a stage of one input, under which names columns of the input are still there, if each of its
    rows is a row of the input. A session is asked once for each stage and schema."""
    known: dict[tuple[int, str, str], _KeptByFunction] = vars(frame.sparkSession).setdefault(_KEPT, {})
    shape = id(stage.function), stage.name, frame.schema.json()
    if shape not in known:
        results = _call_on_probe(stage, frame)
        answer = {name: find_kept_columns(result, frame.columns) for name, result in results.items()}
        known[shape] = _KeptByFunction(stage.function, answer)
    return known[shape].kept


def _call_on_probe(stage: StageNode, frame: DataFrame) -> dict[str, DataFrame]:
    """Return what a stage makes of a probe. Empty: it looks at rows, or fails; with the rows themselves it may not."""
    try:
        return results_of(stage, call_stage(stage, [make_probe(frame)]))
    except Unavailable:
        raise
    except TidegateError:
        return {}


class _KeptByFunction(NamedTuple):
    """An answer, and the function that it is about: as long as it lives no other one has its id. Functions of the same
    text may still do something else, with what they enclose."""

    function: Callable[..., object]
    kept: dict[str, dict[str, list[str]]]
