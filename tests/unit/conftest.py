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
    """A module that a test imported from its own folder is not there for the next, which has the same names. Nor is one
    that the same worker imported before, for a test elsewhere."""
    path, folders = list(sys.path), str(tmp_path_factory.getbasetemp())  # tidegate itself may lie below /tmp
    _forget(folders)
    yield
    sys.path[:] = path
    _forget(folders)


def _forget(folders: str) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(folders):
            del sys.modules[name]
