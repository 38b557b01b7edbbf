"""A landing folder and a context to plan in, without a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate import seams
from tidegate.records.place import Place
from tidegate.sources import SourceContext
from tidegate.testing.source_contract import MemoryBlobs


@pytest.fixture(autouse=True)
def the_clock_stands_still() -> Iterator[None]:
    """Two plans of the same differ in nothing: not in how long rows have waited, either."""
    began = seams.now()
    with seams.installed(seams.Seams(now=lambda: began)):
        yield


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
