"""A whole quarantine is corrected by one SQL and released, and is killed again and again meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import Crew
from tests.crash.orders import OrdersWorld, check_orders
from tests.kit.sampling import in_turn, only_with_all
from tidegate import seams

BEFORE_THE_DECISION = [
    ("S1.entry.after", 1),
    ("S5.gate.before", 1),
    ("S4.stage.before", 1),
    ("S5.gate.after", 1),
    ("S4.stage.after", 2),
    ("S6.ack.before", 1),
]
AFTER_IT = [("S9.decision.after", 1), ("S10.publish.before", 1), ("S10.publish.before", 2)]


def corrected(crew: Crew, root: Path, orders: int, kills: list[tuple[str, int]]) -> None:
    world = OrdersWorld(root)
    world.feed_orders(orders)
    crew.run(world, "one")
    world.correct()
    begun = seams.monotonic()
    for number, (point, nth) in enumerate(kills):
        child = crew.start(world, f"killed-{number}", fault=(point, "K", nth), impatient=True)
        assert child.ended() == -9, f"{point} {nth}: {child.log()}"
    child = crew.start(world, "recovered", "again", impatient=True)
    assert child.ended() == 0, child.log()
    seconds = seams.monotonic() - begun
    check_orders(world, orders)
    print(f"{orders:,} orders, {len(kills)} kills: {seconds:.0f} s, and {child.peak_mb():,} MB of Python")


@in_turn(seconds=30)
def test_three_thousand_orders_are_corrected_though_killed_three_times(crew: Crew, tmp_path: Path) -> None:
    corrected(crew, tmp_path, 3000, [("S5.gate.after", 1), ("S9.decision.after", 1), ("S10.publish.before", 2)])


@only_with_all
@pytest.mark.slow
def test_half_a_million_orders_are_corrected_though_killed_twenty_times(crew: Crew, tmp_path: Path) -> None:
    kills = [*BEFORE_THE_DECISION * 3, *AFTER_IT][:-1]
    assert len(kills) == 20
    corrected(crew, tmp_path, 500_000, kills)
