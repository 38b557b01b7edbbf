"""What many checkpoints leave behind: what the retention formula says, and nothing else."""

from __future__ import annotations

from tests.soak.judge import judged
from tests.soak.soak import RETAINED, Soak


def test_storage_follows_the_retention_formula(tmp_path):
    soak = Soak(tmp_path)
    soak.run(3 * RETAINED)
    early = soak.size()
    judged(soak)
    assert early < soak.costs["completed"] * 3 * RETAINED / 2, "most of what was made is gone"
