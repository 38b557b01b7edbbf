"""Days on which the code's only source is called now this, now that: old and new code are deployed side by side, and
people move the source's position to whatever name the code has that they look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.toys import ToySink, ToySource
from tests.simulation.world import TABLES, SimulatedWorld
from tidegate import Pipeline
from tidegate.checkpoint.context import AbandonCheck
from tidegate.coordinator import AlreadyCovered, Coordinator, Triggered
from tidegate.errors import Invalid, Rejected
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle.source_acts import move_source
from tidegate.records.place import Place

NAMES = ("in", "entry")
OTHER_CODE = ("SOURCE_REMOVED", "SOURCE_STILL_THERE", "CODE_CHANGED", "NO_SUCH_SOURCE", "NO_POSITION")
"""What whoever has other code than others is refused for."""


class RenamingWorld(SimulatedWorld):
    """Each process has the code of one of two days."""

    lived = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._graphs = {name: self._called(name).graph() for name in NAMES}

    def _called(self, source: str) -> Pipeline:
        pipeline = Pipeline("day")
        feed = ToySource(self.feed, self.climate.bound, self.climate.padding)
        rows = self._gated(pipeline.source(source, feed))
        for table, skip in zip(TABLES, (0, self.climate.skip), strict=True):
            rows.sink(table, ToySink(table, self.tables, skip=skip))
        return pipeline

    def coordinator(self) -> Coordinator:
        graph = self._graphs[self.dice.one_of(NAMES)]
        return Coordinator(graph, Ledger(self.store, "day"), self.climate, Place("/"))

    def asks(
        self, coordinator: Coordinator, run: str, give_up: AbandonCheck
    ) -> Callable[[], Triggered | AlreadyCovered | None]:
        ask = super().asks(coordinator, run, give_up)

        def asks() -> Triggered | AlreadyCovered | None:
            try:
                return ask()
            except Invalid as error:
                self._move(coordinator, error)
                raise Rejected("the source has another name", reason="OTHER_CODE") from error

        return asks

    def _move(self, coordinator: Coordinator, refused: Invalid) -> None:
        """Somebody takes the refusal's advice: soon, later, or not at all."""
        if refused.reason not in OTHER_CODE:
            raise refused
        if not self.calm and self.dice.chance(0.5):
            return
        (own,) = coordinator.graph.sources
        (other,) = set(NAMES) - {own}
        try:
            entry = move_source(coordinator, other, own, "renamer")
            self.log(f"moves {other} to {own} by {entry}")
        except Invalid as error:
            if error.reason not in OTHER_CODE:
                raise
            self.log(f"moves nothing: {error.what}")

    def work(self, coordinator: Coordinator, id: int, job: str) -> None:
        try:
            super().work(coordinator, id, job)
        except Invalid as error:
            if error.reason not in OTHER_CODE:
                raise
            raise Rejected(error.what, reason="RETIRED") from error  # no other try of this process does better


def keep_the_old_position(patch: Callable[..., Any]) -> None:
    """A bug: the source begins anew under its new name."""
    from tidegate.checkpoint import compatibility

    patch(compatibility, "ranges_after", lambda ranges, changes: dict(ranges) if not changes else {})


def forget_what_old_code_would_do(patch: Callable[..., Any]) -> None:
    """A bug: code from before the move reads everything once more."""
    from tidegate.checkpoint import compatibility

    patch(compatibility, "_refuse_lost_source", lambda graph, base, changes, declared: iter(()))
    patch(compatibility, "may_lose", lambda config: True)
