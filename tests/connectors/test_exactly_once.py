"""The proof of exactly once in a short form: `python -m tests.connectors.exactly_once` tells the long one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.exactly_once import Proof
from tests.connectors.story import Payments, differences
from tests.crash.spark import server
from tests.kit import postgres
from tests.kit.kafka import Broker, broker_jars, kafka
from tests.kit.sampling import in_turn
from tools import setup

KILLS = int(os.environ.get("ROUNDS", "3"))

pytestmark = [pytest.mark.slow, in_turn(seconds=75)]


@pytest.fixture(scope="module")
def broker() -> Any:
    try:
        broker_jars()
    except setup.Problem as problem:
        pytest.skip(f"no Kafka broker to test with: {problem}")
    with kafka() as broker:
        yield broker


@pytest.mark.skipif(postgres.programs() is None, reason=postgres.MISSING)
def test_a_pipeline_that_is_killed_at_random_loses_and_doubles_nothing(broker: Broker, tmp_path: Path) -> None:
    with server(tmp_path / "spark") as spark, postgres.server() as database:
        world = Payments(tmp_path / "world", servers=broker.servers, database=database.options)
        proof = Proof(world, broker, database, spark, seed=KILLS)
        assert proof.run(KILLS) == {}
        assert sum(proof.happened.values()) == KILLS
        broker.send("log", [("account 0", broker.read("log")[0].value)])
        found = differences(world, broker, database, proof.portions)
    assert list(found) == ["topic log"], "a record too many would be noticed"
