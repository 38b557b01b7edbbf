"""Chaos in its short form, so that it cannot rot: `make chaos` is the long one. CHAOS_SEED draws other faults."""

from __future__ import annotations

import os

from tests.chaos.chaos import tell
from tests.chaos.reference import Fed, file_ids, value
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=250)


SEED = int(os.environ.get("CHAOS_SEED", "7"))
MINUTES = float(os.environ.get("CHAOS_MINUTES", "0.6"))


def test_what_is_fed_has_all_that_the_pipeline_is_about():
    fed = Fed(40)
    assert fed.aside
    assert fed.tens
    ids = [id for number in range(1, 41) for id in file_ids(number)]
    assert len(ids) > len(set(ids))
    assert set(fed.once) == {(id, id % 7, value(id)) for id in ids if value(id) >= 0}


def test_after_chaos_every_table_is_exactly_what_was_fed(tmp_path):
    assert tell(SEED, MINUTES, tmp_path / "chaos") == []
