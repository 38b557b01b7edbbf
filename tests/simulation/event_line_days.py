"""A long life by event, with backfills: the watch asks for runs while somebody replays, swaps in, goes back and
suspends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.event_days import EventOracle, EventWorld, Standing
from tests.simulation.line_days import LineWorld
from tests.simulation.line_oracle import LineOracle
from tests.simulation.world import SimulatedWorld

__all__ = ["EventLineOracle", "EventLineWorld"]


class EventLineWorld(EventWorld, LineWorld):
    """Nobody makes checkpoints by the clock, but for a run or two by hand."""

    quiet_s = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        self.climate = replace(self.climate, ticks=3_000, timeout=1e9)
        self.graph = self._pipeline().graph()
        self._mended = self._pipeline(mended=True).graph()

    def go(self, run: str, does: Callable[[str], None]) -> None:
        SimulatedWorld.go(self, run, does)

    def more_people(self) -> None:
        EventWorld.more_people(self)
        LineWorld.more_people(self)


class EventLineOracle(EventOracle, LineOracle):
    """All that holds of a watched pipeline, and of one with backfills."""

    def _standing(self) -> Standing:
        log = self.log()
        completed = [checkpoint for checkpoint in log if checkpoint.completed]
        last = completed[-1] if completed else None
        return Standing(
            log[-1].id if log else 0,
            last.range[1] if last is not None else 0,
            last is None or last.published is not None,
        )
