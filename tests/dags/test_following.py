"""Airflow's own backfill of a pipeline that reads whatever is new: what its runs are told that cannot begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.toy_world import ToyWorld
from tidegate.backfill.by_airflow import refuse_impossible_start
from tidegate.backfill.choosing import checkpoint_of, nearest_start, origin_of
from tidegate.errors import Rejected


@pytest.fixture
def world(tmp_path) -> ToyWorld:
    return ToyWorld(tmp_path)


def test_a_first_date_before_all_that_is_retained_is_refused_with_the_nearest_possible_one(world: ToyWorld):
    """Twenty-five minutes back, of a pipeline that keeps ten checkpoints of a minute each."""
    world.limit(num_retained=2)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=1)
        world.coordinator().retire()
    assert world.ledger.ids() == [3, 4]
    since = (datetime.now(UTC) - timedelta(minutes=25)).isoformat()
    with pytest.raises(Rejected) as refused:
        refuse_impossible_start(world.ledger, since, "orders__backfill")
    nearest = nearest_start(world.ledger)
    assert nearest is not None
    assert f"begin Airflow's backfill at {nearest:%Y-%m-%d %H:%M:%S} UTC or later" in refused.value.help
    assert "trigger DAG orders__backfill with Begin after `beginning`" in refused.value.help
    assert "tidegate list" not in refused.value.help, "whoever asks has Airflow's form before them"
    refuse_impossible_start(world.ledger, nearest.isoformat(), "orders__backfill")
    assert checkpoint_of(world.ledger, nearest.isoformat()) >= 3


def test_without_any_checkpoint_there_is_no_date_to_name(world: ToyWorld):
    world.ledger.start()
    with pytest.raises(Rejected) as refused:
        refuse_impossible_start(world.ledger, "2026-01-01", "orders__backfill")
    assert "Airflow's backfill at" not in refused.value.help


def test_a_first_date_before_the_first_checkpoint_is_the_beginning_as_long_as_that_is_retained(world: ToyWorld):
    world.checkpoint("first", rows=1)
    world.checkpoint("second", rows=1)
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    assert origin_of(world.ledger, since) == 0
    refuse_impossible_start(world.ledger, since, "orders__backfill")
    world.limit(num_retained=1)
    world.coordinator().retire()
    assert world.ledger.ids() == [2]
    with pytest.raises(Rejected, match="has no checkpoint from before"):
        refuse_impossible_start(world.ledger, since, "orders__backfill")
    refuse_impossible_start(world.ledger, "beginning", "orders__backfill")
