"""Tasks and executors fail while workers write: what they had written counts for nobody, and nothing is lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.failing import FAULTS, Failing, Fault, failing
from tests.cluster.needs import NEEDS
from tests.kit.s3 import BUCKET
from tests.kit.sampling import only_with_all, some_of
from tidegate.delta import Location, sync_and_list
from tidegate.spark.storage import writing
from tidegate.spark.storage.worker_writes import work_on_store
from tidegate.spark.storage.writing import write_files

pytestmark = [*NEEDS, only_with_all]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    with failing(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS[:1] + tuple(some_of(FAULTS[1:], len(FAULTS))), ids=str)
def test_what_an_attempt_wrote_that_did_not_count_is_no_ones(cluster: Failing, fault: Fault) -> None:
    lost = cluster.checkpoint(fault)
    assert lost is not None
    assert fault.where in lost
    assert lost not in cluster.staged(), "it was removed before the ack"
    assert not cluster.missing()


def test_workers_name_partitions_as_spark_does(cluster: Failing) -> None:
    """Whatever is in a value: characters with a meaning in paths, nothing, days, moments, amounts."""
    spark: Any = cluster.world._sessions()
    texts = ["plain", "a/b=c%", "é ü", "", "{['\"#:?*^\\\\]}", None]
    quoted = ", ".join("NULL" if text is None else f"'{text.replace(chr(39), chr(92) + chr(39))}'" for text in texts)
    rows = spark.range(60).selectExpr(
        "id",
        f"element_at(array({quoted}), CAST(id % 6 AS int) + 1) AS `a text`",
        "if(id % 4 = 0, NULL, date_add(date'2026-01-01', CAST(id % 3 AS int))) AS day",
        "timestamp_micros(1700000000000000 + (id % 2) * 500000) AS at",
        "CAST(id % 5 / 4 AS decimal(9,2)) AS amount",
        "named_struct('x', array(id), 'y', id % 2 = 0) AS nested",
    )
    schema, by = json.loads(rows.schema.json()), ("a text", "day", "at", "amount")
    store = Location(f"s3://{BUCKET}/written", cluster.server.options)
    assert work_on_store(spark, store)
    told = {
        "workers": write_files(rows, schema, store, "workers", by),
        "spark": writing._write_with_spark(rows, schema, store.full("spark"), by, None),
    }
    assert isinstance(told["workers"], dict)
    found: dict[str, Counter[Any]] = {}
    for folder, written in told.items():
        found[folder] = Counter()
        for file in sync_and_list(store, folder, schema, by, written=written):
            found[folder][tuple(file.partition[name] for name in by)] += file.rows
    assert found["workers"] == found["spark"]
    assert sum(found["spark"].values()) == 60


@pytest.mark.parametrize("point", some_of(["S4.state.after", "S6.ack.before"], 2))
def test_the_next_checkpoint_makes_up_for_a_driver_that_died(cluster: Failing, point: str) -> None:
    """`make matrix CLUSTER=1` lets it die at every point."""
    cluster.crash_at(point)
    assert not cluster.missing()
