"""The world in which most unit tests happen."""

from pathlib import Path

import pytest

from tests.kit.toy_world import ToyWorld


@pytest.fixture
def world(tmp_path: Path) -> ToyWorld:
    return ToyWorld(tmp_path)
