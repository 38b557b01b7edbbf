"""A landing folder and a context to plan in, without a ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.records.place import Place
from tidegate.sources import SourceContext
from tidegate.testing.source_contract import MemoryBlobs


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def context(tmp_path: Path, blobs: MemoryBlobs) -> SourceContext:
    return SourceContext("shop", "orders", Place(str(tmp_path)), blobs)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder
