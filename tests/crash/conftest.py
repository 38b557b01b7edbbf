"""One crew and one begun world for all crash tests of a process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.harness import Crew
from tests.crash.spark import server
from tests.crash.world import CrashWorld


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    root = tmp_path_factory.mktemp("crew")
    with server(root / "spark") as spark:
        crew = Crew(root, spark)
        yield crew
        crew.close()


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """A world in which two checkpoints went well."""
    world = CrashWorld(tmp_path_factory.mktemp("begun"))
    world.feed(2)
    crew.run(world, "one", "two")
    return world.root


@pytest.fixture
def world(tmp_path: Path, begun: Path) -> CrashWorld:
    """Two checkpoints are done, and there is more to read."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    world = CrashWorld(tmp_path)
    world.feed(3)
    return world
