"""The example pipeline on a cluster whose workers see no file of the driver's: its tables are as anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.needs import NEEDS
from tests.cluster.world import Example, Place, place
from tests.kit.sampling import in_turn, some_of

pytestmark = [*NEEDS, in_turn(seconds=30)]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.parametrize("mode", some_of(["connect", "submit"], 2))
def test_the_example_has_the_same_rows_on_workers_that_share_no_disk(where: Place, mode: str) -> None:
    executors = where.cluster.executors
    example = Example(where, mode, mode)
    example.feed(4)
    told = example.checkpoints(2, mode)
    try:
        example.check(4)
    finally:
        if mode == "connect":
            example.stop()
    assert where.cluster.executors >= executors + 2, "both workers have worked"
    assert "do not work on s3" not in told, "the workers wrote the files themselves"
    objects = where.server.objects(f"{mode}/")
    staged = [key for key in objects if key.endswith(".parquet") and "/tidegate/" in key]
    assert staged
    assert not [key for key in staged if "snappy" in key], "none was written by Spark's own writer"
