"""The contract of an operator: DataFrames in, DataFrames out, and everything that it remembers is kept by tidegate.

    spec             what it promises, as data                  asked by the graph, `check`, planning, backfills …
    problems         all that is wrong with the declaration     asked when the pipeline is validated
    describe         the declaration                            for fingerprints and `explain`
    meaning          what its state means                       compared with what a state on disk was made by
    run              the rows of one checkpoint                 called by a job, once per attempt: it may read and put
                                                                state, and run Spark jobs; it writes nothing else
    current_output   the rows that hold                         asked of an operator that replaces rows

What an operator promises is in its spec (operators/spec.py) and nowhere else. The others compute something.

The rows that `run` returns depend only on the input, the state at the base and the checkpoint's own clock. So every
attempt returns the same, and it does not matter how the input was cut into checkpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from tidegate.operators.context import OperatorContext
from tidegate.operators.spec import OperatorSpec
from tidegate.records.records import Json
from tidegate.renamed_hooks import OPERATOR_HOOKS, refuse_old_hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["Operator"]


class Operator(ABC):
    """A transformation that remembers. Its state is found by its uid, by default its name."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, OPERATOR_HOOKS)

    kind: ClassVar[str]

    def spec(self) -> OperatorSpec:
        """Return all that it promises. It may be asked of a wrong declaration, too, so it must not fail."""
        return OperatorSpec()

    @abstractmethod
    def describe(self) -> Json:
        """Return the declaration for fingerprints and `explain`."""

    def meaning(self, over_updates: bool) -> Json:
        """Return the semantic identity of the state. Any key present both now and in the stored state must be equal.

        over_updates: an input replaces rows. "event_time": its own choice for each input; for None, what sources say.
        """
        return {}

    def problems(self) -> list[str]:
        """Return everything that is wrong with the declaration itself."""
        return []

    @abstractmethod
    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        """Return the operator's streams for this checkpoint: its own under "", others by their names.

        If it updates, "-" has the rows that those under "" replace, and those that hold no longer: the same columns.
        """

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        """Return the rows that it has emitted and not taken back, according to its states, exactly as emitted.

        So a state that was changed by hand can be passed downstream. None: its rows are final.
        states: all rows of its states, by name. None: that one has never held anything.
        """
        return None
