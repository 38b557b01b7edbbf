"""The world in which the coordinator's stories happen."""

import pytest

from tests.unit.checkpoint.kit import World


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)
