"""Whatever a producer sends, and whoever dies meanwhile, each value is in its column or in the rescue column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.kafka import Broker
from tests.kit.postgres import MISSING, programs, server
from tests.kit.sampling import in_turn
from tests.spark.drifting_days import Days, Servers

pytestmark = in_turn(seconds=150)

SEEDS = range(int(os.environ.get("DRIFT_SEEDS", "2")))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_value_is_lost_while_columns_change(tmp_path: Path, spark: Any, seed: int) -> None:
    days = Days(tmp_path, spark, seed)
    days.limit(num_retained=100)
    days.live(30)
    assert days.kills
    assert bool(days.holds) == (days.on_new_column == "hold")
    columns = {name for row in days.table("orders") for name in row}
    assert len(columns) > 6, "the life had new columns"
    assert any(row["_rescued"] for row in days.table("orders")), "and values that fit none"


def test_two_days_with_tables_in_postgres_and_a_topic(tmp_path: Path, spark: Any, kafka_broker: Broker) -> None:
    if programs() is None:
        pytest.skip(MISSING)
    with server("fsync=off") as postgres:
        days = Days(tmp_path, spark, 2, Servers(postgres, kafka_broker))
        days.limit(num_retained=100)
        for _ in range(2):
            days.live_a_day()
    assert days.kills
    assert days.expected().of_orders.wide, "a column became wider"
