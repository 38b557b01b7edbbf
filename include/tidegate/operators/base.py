"""The contract of an operator: DataFrames in, DataFrames out, with all of its state kept by tidegate.

    spec             its properties, as data              for the graph, `check`, planning, backfills …
    problems         what is wrong with the declaration   called when the pipeline is validated
    describe         the declaration                      for fingerprints and `explain`
    meaning          what its state means                 compared with the meaning of the state on disk
    run              the rows of one checkpoint           called by a job, once per attempt: it may read and write
                                                          state, and run Spark jobs, but write nothing else
    current_output   the rows that are current            called for an operator that emits retractions

All properties of an operator are in its spec (operators/spec.py). The other methods compute something.

The rows that `run` returns depend only on the input, the state at the base and the checkpoint's clock. So every attempt
returns the same rows, and it does not matter how the input was cut into checkpoints.
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
    """A transformation with state. Its uid, by default its name, identifies the state."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, OPERATOR_HOOKS)

    kind: ClassVar[str]

    def spec(self) -> OperatorSpec:
        """Return its properties. It must not fail for a wrong declaration either."""
        return OperatorSpec()

    @abstractmethod
    def describe(self) -> Json:
        """Return the declaration for fingerprints and `explain`."""

    def meaning(self, over_updates: bool) -> Json:
        """Return the semantic identity of the state. An entry that the stored state also has must be equal.

        over_updates: an input emits retractions. The entry "event_time" is the operator's choice for each input, or
        None for the column that the sources declare.
        """
        return {}

    def problems(self) -> list[str]:
        """Return everything that is wrong with the declaration itself."""
        return []

    @abstractmethod
    def run(self, inputs: Sequence[DataFrame], context: OperatorContext) -> Mapping[str, DataFrame]:
        """Return the operator's streams for this checkpoint: its main output under "", side outputs by their names.

        If it emits retractions, they are under "-", with the same columns as the main output.
        """

    def current_output(
        self, states: Mapping[str, DataFrame | None], inputs: Sequence[DataFrame], context: OperatorContext
    ) -> DataFrame | None:
        """Return the rows that it has emitted and not retracted, exactly as emitted. None: its rows are final.

        They are computed from its states, so that a manual edit of a state can be passed downstream.
        states: all rows of each state by name, or None if it has never held any.
        """
        return None
