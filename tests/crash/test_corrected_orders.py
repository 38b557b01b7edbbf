"""A whole quarantine is corrected by one SQL and released, and is killed again and again meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.crash.corrected_orders import correct_and_kill
from tests.crash.harness import Crew
from tests.kit.sampling import in_turn


@in_turn(seconds=30)
def test_three_thousand_orders_are_corrected_though_killed_three_times(crew: Crew, tmp_path: Path) -> None:
    correct_and_kill(crew, tmp_path, 3000, [("S5.gate.after", 1), ("S9.decision.after", 1), ("S10.publish.before", 2)])
