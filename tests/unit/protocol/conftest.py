"""The world of tests/unit/checkpoint."""

from tests.unit.checkpoint.conftest import world

__all__ = ["world"]
