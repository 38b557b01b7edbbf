"""Ledger, input, state and tables in a bucket: one login for all, the same rows as anywhere, whatever crashes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.s3 import BUCKET, SECRET, S3Server, s3
from tests.kit.sampling import ALL, in_turn
from tidegate import Pipeline
from tidegate.connectors.delta.sink import prerewritten
from tidegate.delta import Location
from tidegate.errors import TidegateError
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files
from tidegate.spark.jars import jars_folder
from tidegate.testing import RunningPipeline, run

SPARK = {"spark.mode": "connect", "spark.idle_timeout": "3"}

pytestmark = [
    pytest.mark.skipif(
        not jars_folder().with_name("jars-s3").is_dir(), reason="there are no jars for s3://: make setup S3=1"
    ),
    in_turn(seconds=35),
]

KEYS = 7
POINTS = (
    "S1.entry.after",
    "S4.stage.after",
    "S4.state.after",
    "S6.ack.before",
    "S9.decision.after",
    "S10.publish.after",
)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's server is this test's own: a login belongs to the whole server."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as server:
        yield server


def shop() -> Pipeline:
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Files("landing/*.json", schema="id long, customer long, amount double"))
    orders.sink("rows", DeltaAppend("rows"))
    totals = orders.aggregate(by="customer", orders="count(*)", spent="sum(amount)", uid="totals")
    totals.sink("by_customer", DeltaUpsert("by_customer", keys=["customer"]))
    return pipeline


def land(server: S3Server, folder: str, number: int) -> None:
    records = [{"id": number * 100 + n, "customer": n % KEYS, "amount": 1.5} for n in range(100)]
    server.put(f"{folder}/data/landing/{number}.json", "\n".join(map(json.dumps, records)).encode())


def refuse_differences(world: RunningPipeline, landed: int) -> None:
    """Both tables have what plain Python makes of all that landed."""
    assert sorted(row["id"] for row in world.rows("rows")) == [
        number * 100 + n for number in range(1, landed + 1) for n in range(100)
    ]
    orders = Counter(n % KEYS for n in range(100))
    assert {row["customer"]: (row["orders"], row["spent"]) for row in world.rows("by_customer")} == {
        customer: (count * landed, count * landed * 1.5) for customer, count in orders.items()
    }


def test_a_pipeline_in_a_bucket_has_the_same_rows_wherever_it_crashes(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prerewritten, "MIN_BYTES", 0)
    with run(shop(), tmp_path, settings=SPARK | server.settings("crashes")) as world:
        land(server, "crashes", 1)
        world.checkpoint()
        for number, point in enumerate(POINTS, 2):
            land(server, "crashes", number)
            world.crash_at(point)
        land(server, "crashes", len(POINTS) + 2)
        world.checkpoint()
        refuse_differences(world, len(POINTS) + 2)
        assert not list(tmp_path.glob("s3:*")), "nothing is made on the local disk"
    acks = [data for key, data in server.objects("crashes/ledger/shop/checkpoints/").items() if "/acks/" in key]
    ahead = sum(b'"replacements":' in data for data in acks)
    assert ahead == len(acks) - 1 >= 2, "all jobs but the first have rewritten files of the table"
    assert not [key for key, data in server.objects("crashes/").items() if SECRET.encode() in data]


@pytest.mark.skipif(not ALL, reason="tests/contract tells the same of the ledger alone: ALL=1")
def test_a_store_that_asks_to_slow_down_is_asked_again(server: S3Server, tmp_path: Path) -> None:
    with run(shop(), tmp_path, settings=SPARK | server.settings("slow")) as world:
        land(server, "slow", 1)
        server.treat(fail_every=20)
        try:
            world.checkpoint()
        finally:
            server.treat()
        refuse_differences(world, 1)


@pytest.mark.skipif(not ALL, reason="tests/unit/checkpoint/test_in_a_bucket.py tells the same without Spark: ALL=1")
def test_a_table_that_somebody_dropped_stops_the_next_checkpoint_before_it_is_decided(
    server: S3Server, tmp_path: Path
) -> None:
    """The trigger looks at no table in a bucket when all is published; the job does."""
    with run(shop(), tmp_path, settings=SPARK | server.settings("dropped")) as world:
        for number in (1, 2):
            land(server, "dropped", number)
            world.checkpoint()
        Location(f"s3://{BUCKET}/dropped/data/rows", server.options).remove_folder("_delta_log")
        land(server, "dropped", 3)
        with pytest.raises(TidegateError, match="is missing: checkpoint 2 was published there"):
            world.checkpoint()
        records = sorted(server.objects("dropped/ledger/shop/checkpoints/").items())
        outcomes = [json.loads(data)["outcome"] for key, data in records if key.endswith("decision.json")]
        assert outcomes == ["completed", "completed", "aborted"]
