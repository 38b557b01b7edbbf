"""What is wrong with what many checkpoints have left on disk."""

from __future__ import annotations

from tests.soak.soak import LOSES, Soak


def judged(soak: Soak) -> str:
    """A line for people; and what must hold."""
    ledger = soak.world.ledger
    assert set(ledger.ids()) == soak.retained()
    plans = sum(soak.kinds[id] != "restart" for id in soak.retained())
    assert soak.side_files() == plans, "a side file each, and none of what is gone"
    assert soak.orphans() <= 2 * 3 * (len(soak.retained()) // LOSES + 1), "of attempts that lost, not yet retired"
    size, formula = soak.size(), soak.formula()
    assert abs(size - formula) <= 0.05 * formula, f"{size:,} bytes, the formula says {formula:,}"
    return f"{len(soak.kinds):,} entries made, {len(soak.retained())} there: {size:,} bytes, by formula {formula:,}"
