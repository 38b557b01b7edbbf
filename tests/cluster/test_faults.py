"""Tasks and executors fail while workers write: what they had written counts for nobody, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.failing import FAULTS, Failing, Fault, failing
from tests.kit.sampling import some_of
from tests.spark.cluster import can_be_blind
from tidegate.spark.jars import jars_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not jars_folder().with_name("jars-s3").is_dir() or not can_be_blind(),
        reason="needs the jars for s3:// (make setup S3=1), and a user who may hide folders from a process",
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    with failing(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS[:3] + tuple(some_of(FAULTS[3:], len(FAULTS))), ids=str)
def test_what_an_attempt_wrote_that_did_not_count_is_no_ones(cluster: Failing, fault: Fault) -> None:
    lost = cluster.checkpoint(fault)
    assert lost is not None
    assert fault.where in lost
    assert lost not in cluster.staged()
    assert not cluster.unnamed()


@pytest.mark.parametrize("point", ["S4.state.after", "S6.ack.before"])
def test_the_next_checkpoint_makes_up_for_a_driver_that_died(cluster: Failing, point: str) -> None:
    """`make matrix CLUSTER=1` lets it die at every point."""
    cluster.crash_at(point)
    assert not cluster.unnamed()
