"""How bad a day it is: what may happen in one simulation, and how often. Each seed has its own mix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from tests.kit.limits import RESTARTS
from tests.simulation.choices import Dice
from tidegate.config.settings import RestartSettings
from tidegate.records.records import Json


@dataclass(frozen=True)
class Climate:
    """Probabilities are per access to storage, times in ticks (one access takes one tick)."""

    # the pipeline; the names that `checkpoint.coordinator.Limits` asks for
    max_concurrent_checkpoints: int
    num_retained: int
    tolerable_failed_checkpoints: int
    min_pause: float
    max_unpublished: int
    timeout: float
    bound: int
    skip: int
    padding: int
    # who takes part
    runs: int
    doubled: float
    meddlers: int
    foreign_commits: int
    # what goes wrong
    ticks: int
    sticky: float
    kills: float
    stalls: float
    mishaps: float
    lag: int
    power_losses: int
    suspicion: float
    clock_jumps: float
    rollbacks: int
    # what a gate does
    holds: int
    hold_for: float
    unanswered: Literal["approve", "reject"]
    # the life of a pipeline
    forks: int
    copies: int
    drains: int

    @property
    def restart(self) -> RestartSettings:
        """How often something is tried again."""
        return RESTARTS

    def record(self) -> Json:
        """What a plan keeps of the settings."""
        by_day = (self.runs + self.ticks // 200) % 3  # the clock may jump to other days
        named = {"savepoint_interval": [200.0, "never"][self.runs % 2], "savepoints_retained": 1 + self.meddlers % 2}
        return {"timeout": self.timeout, "num_retained": self.num_retained, "retain_per_day": by_day} | named


def climate_of(dice: Dice) -> Climate:
    """A day. Each kind of trouble is absent on many days, so that others are seen clearly."""
    return Climate(
        max_concurrent_checkpoints=dice.one_of([1, 2, 1, 3]),
        num_retained=dice.one_of([3, 1, 2]),
        tolerable_failed_checkpoints=dice.one_of([1_000_000, 1_000_000, 3]),
        min_pause=0.0,
        max_unpublished=dice.one_of([10, 1, 3]),
        timeout=dice.one_of([1e9, 60.0, 400.0]),
        bound=dice.one_of([3, 1]),
        skip=dice.one_of([0, 2]),
        padding=dice.one_of([0] * 15 + [40_000]),
        runs=2 + dice.below(4),
        doubled=dice.one_of([0.5, 0.0, 0.9]),
        meddlers=dice.below(3),
        foreign_commits=dice.one_of([0, 3]),
        ticks=400 + 200 * dice.below(4),
        sticky=dice.one_of([0.8, 0.0, 0.5, 0.95]),
        kills=dice.one_of([0.0, 0.002, 0.01]),
        stalls=dice.one_of([0.0, 0.005, 0.02]),
        mishaps=dice.one_of([0.0, 0.01, 0.05]),
        lag=dice.one_of([0, 0, 10, 300]),
        power_losses=dice.one_of([0, 0, 1, 2]),
        suspicion=dice.one_of([0.0, 0.1, 0.5]),
        clock_jumps=dice.one_of([0.0, 0.01]),
        rollbacks=dice.one_of([0, 0, 1, 4]),
        holds=dice.one_of([0, 0, 2, 4]),
        hold_for=dice.one_of([1e9, 30.0]),
        unanswered=cast(Literal["approve", "reject"], dice.one_of(["reject", "approve"])),
        forks=dice.one_of([0, 0, 1, 2]),
        copies=dice.one_of([0, 0, 1, 2]),
        drains=dice.one_of([0, 0, 1]),
    )
