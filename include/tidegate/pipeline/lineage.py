"""What a stream's rows have come through: back to the sources, and the operators, that they come from.

Stages remember nothing, so they are a part of what follows: an operator's state was made with their code of then.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.model.codec import fingerprint
from tidegate.pipeline.codes import logic_of
from tidegate.pipeline.gated import Gated
from tidegate.pipeline.nodes import Node, Operated, Staged

__all__ = ["Lineage"]


class Lineage:
    """Of one graph, the way of each stream."""

    def __init__(self, stages: Sequence[Node]) -> None:
        self._made = {name: stage for stage in stages for name in stage.produces}
        self._ways: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}

    def origins(self, stream: str) -> list[str]:
        """The nearest sources and operators whose rows these are, through stages and gates."""
        stage = self._made.get(stream)
        if stage is None or isinstance(stage, Operated):
            return [stream if stage is None else stage.name]
        return sorted({name for each in stage.inputs for name in self.origins(each)})

    def sources(self, stream: str) -> list[str]:
        """All sources that the rows come from, through whatever it is."""
        if stream not in self._sources:
            stage = self._made.get(stream)
            found = {name for each in stage.inputs for name in self.sources(each)} if stage is not None else {stream}
            self._sources[stream] = sorted(found)
        return self._sources[stream]

    def way(self, stream: str) -> str:
        """A hash of what lies between those origins and the stream: of stages what they do, not how it is written.

        Gates pass rows as they are. Of operators counts how they replace rows: what they take back must be the same.
        """
        if stream not in self._ways:
            self._ways[stream] = fingerprint({"way": self._way(stream)})
        return self._ways[stream]

    def _way(self, stream: str) -> object:
        stage = self._made.get(stream)
        if stage is None:
            return "a source"
        if isinstance(stage, Gated):
            return self.way(stage.input)
        output = stream.removeprefix(stage.name)
        if isinstance(stage, Staged):
            return [logic_of(stage.function), output, [self.way(each) for each in stage.inputs]]
        return [stage.name, output, stage.operator.replacing]
