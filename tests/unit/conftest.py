"""The world in which most unit tests happen."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.toy_world import ToyWorld


@pytest.fixture
def world(tmp_path: Path) -> ToyWorld:
    return ToyWorld(tmp_path)


@pytest.fixture(autouse=True)
def forgotten_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test imported from its own folder is not there for the next, which has the same names."""
    kept = list(sys.path), set(sys.modules)
    folders = str(tmp_path_factory.getbasetemp())  # not just any folder below /tmp: tidegate itself may be there
    yield
    sys.path[:] = kept[0]
    for name in set(sys.modules) - kept[1]:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(folders):
            del sys.modules[name]
