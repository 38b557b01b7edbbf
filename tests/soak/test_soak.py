"""What many checkpoints leave behind: what the retention formula says, and nothing else."""

from __future__ import annotations

from tests.soak.soak import LOSES, RETAINED, Soak


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


def test_storage_follows_the_retention_formula(tmp_path):
    soak = Soak(tmp_path)
    soak.run(3 * RETAINED)
    early = soak.size()
    judged(soak)
    assert early < soak.costs["completed"] * 3 * RETAINED / 2, "most of what was made is gone"
