"""`make corrections`: half a million quarantined rows are corrected by one SQL and released, and killed 20 times.

tests/crash/test_corrected_orders.py is the short form.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from tests.crash.harness import Crew
from tests.crash.orders import OrdersWorld, check_orders
from tests.crash.spark import COMPILED, server
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


def correct_and_kill(crew: Crew, root: Path, orders: int, kills: Sequence[tuple[str, int]]) -> None:
    """Correct so many orders, and kill the process at each of these points; then everything must hold."""
    world = OrdersWorld(root)
    world.feed_orders(orders)
    crew.run(world, "one")
    world.correct()
    begun = seams.monotonic()
    for number, (point, nth) in enumerate(kills):
        child = crew.start(world, f"killed-{number}", fault=(point, "K", nth), impatient=True)
        assert child.ended() == -9, f"{point} {nth}: {child.log()}"
        print(f"killed at {point}, {seams.monotonic() - begun:.0f} s", flush=True)
    child = crew.start(world, "recovered", "again", impatient=True)
    assert child.ended() == 0, child.log()
    print(f"{orders:,} orders, {len(kills)} kills: {seams.monotonic() - begun:.0f} s", flush=True)
    check_orders(world, orders)


def peak_mb(pid: int) -> int:
    """The most memory that a running process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=500_000)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    os.environ[COMPILED] = "yes"
    after = AFTER_IT[: options.kills]
    kills = [*islice(cycle(BEFORE_THE_DECISION), options.kills - len(after)), *after]
    with tempfile.TemporaryDirectory(prefix="tidegate-corrections-") as folder:
        root = Path(folder)
        with server(root / "spark") as spark:
            crew = Crew(root, spark)
            correct_and_kill(crew, root / "world", options.orders, kills)
            undisturbed(crew, root / "undisturbed", options.orders)
            print(f"Spark had at most {peak_mb(spark['pid']):,} MB")
            crew.close()
    print("each order is in the table once, corrected, or waits with the reason")


def undisturbed(crew: Crew, root: Path, orders: int) -> None:
    """The same without a kill, for its seconds and its memory."""
    world = OrdersWorld(root)
    world.feed_orders(orders)
    before = crew.start(world, "one")
    assert before.ended() == 0, before.log()
    world.correct()
    begun = seams.monotonic()
    child = crew.start(world, "two")
    assert child.ended() == 0, child.log()
    print(
        f"without a kill: {seams.monotonic() - begun:.0f} s; Python had {child.peak_mb():,} MB, "
        f"and {before.peak_mb():,} MB to quarantine them"
    )
    check_orders(world, orders)


if __name__ == "__main__":
    main()
