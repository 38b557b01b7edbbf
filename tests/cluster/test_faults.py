"""Tasks and executors fail while workers write: what they had written counts for nobody, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.world import Place, place
from tests.kit.s3 import BUCKET
from tests.spark.cluster import can_be_blind
from tests.spark.test_object_storage import land, refuse_differences, shop
from tidegate.spark.jars import jars_folder
from tidegate.spark.server import server as connect_server
from tidegate.testing import RunningPipeline, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not jars_folder().with_name("jars-s3").is_dir() or not can_be_blind(),
        reason="needs the jars for s3:// (make setup S3=1), and a user who may hide folders from a process",
    ),
]

ROWS, STATE = "/data/rows/", "/state/totals/"
"""Which files: the appended rows, and what the aggregate remembers."""
SPECULATION = {
    "speculation": "true",
    "speculation_interval": "100ms",
    "speculation_minTaskRuntime": "200ms",
    "speculation_task_duration_threshold": "1s",
}


class Fault(NamedTuple):
    """What happens to one upload of a worker."""

    what: str
    when: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} {self.when} {self.where.strip('/').split('/')[-1]}"


FAULTS = (
    Fault("kill", "before", ROWS),
    Fault("kill", "after", ROWS),
    Fault("fail", "after", ROWS),
    Fault("slow", "after", ROWS),
    Fault("kill", "after", STATE),
    Fault("fail", "before", STATE),
    Fault("slow", "before", STATE),
)


class Failing:
    """A pipeline on the cluster, whose workers fail when they are told to."""

    def __init__(self, where: Place, world: RunningPipeline, hook: Path) -> None:
        self.where, self.world, self.hook = where, world, hook
        self.landed = 0

    def checkpoint(self, fault: Fault | None = None) -> None:
        """Make a checkpoint, during which it happens."""
        self.landed += 1
        land(self.where.server, "faults", self.landed)
        if fault is not None:
            told = {"what": fault.what, "when": fault.when, "where": fault.where, "seconds": 120}
            (self.hook / "fault.new").write_text(json.dumps(told))
            (self.hook / "fault.new").rename(self.hook / "fault.json")
        self.world.checkpoint()
        assert not (self.hook / "fault.json").exists(), "it has happened"
        refuse_differences(self.world, self.landed)

    @property
    def met(self) -> list[str]:
        """The files during whose upload something happened."""
        return [line.split(" ", 1)[1] for line in (self.hook / "met.txt").read_text().splitlines()]

    def staged(self, where: str) -> set[str]:
        """The objects below a folder that hold rows."""
        found = self.where.server.objects(f"faults{where}")
        return {f"s3://{BUCKET}/{key}" for key in found if key.endswith(".parquet")}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    home = tmp_path_factory.mktemp("cluster")
    with place(home) as where, pytest.MonkeyPatch.context() as patch:
        hook = home / "workers" / "hook"
        shutil.copytree(Path(__file__).with_name("in_workers"), hook)
        patch.chdir(where.driver)
        for name, value in where.environment(where.driver).items():
            patch.setenv(name, value)
        settings = where.spark("connect", executorEnv_PYTHONPATH=str(hook), **SPECULATION)
        with run(shop(), where.driver, settings=settings | where.server.settings("faults")) as world:
            found = Failing(where, world, hook)
            found.checkpoint()
            yield found
        connect_server.stop(where.driver / ".tidegate" / "spark", force=True)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_what_an_attempt_wrote_that_did_not_count_is_no_ones(failing: Failing, fault: Fault) -> None:
    before = failing.landed
    failing.checkpoint(fault)
    assert failing.landed == before + 1
    lost = failing.met[-1]
    assert fault.where in lost
    assert lost not in failing.staged("/")
    assert failing.staged(ROWS) == _named(failing)


def _named(failing: Failing) -> set[str]:
    """The files of the table of rows."""
    from deltalake import DeltaTable

    table: Any = DeltaTable(f"s3://{BUCKET}/faults/data/rows", storage_options=failing.where.server.options)
    return set(table.file_uris())
