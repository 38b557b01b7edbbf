"""The folder in which results and Data Docs are made: Great Expectations writes to a disk only.

For a ledger in an object store it is a temporary one. It begins with what was written before, and what is new in it
goes into the store. Pages that were built before are not downloaded: an empty file stands for each, so that none is
built again.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidegate.delta import Location
from tidegate.gates.expectations.data_docs import GATE_DOCS, SITE

__all__ = ["docs_folder"]

_AT_ONCE = 16


@contextlib.contextmanager
def docs_folder(ledger: Location) -> Iterator[Path]:
    """Yield the folder for documents beside a ledger. What the block writes there is in the store afterwards."""
    if ledger.is_local:
        yield ledger.local(GATE_DOCS)
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-docs-") as temporary, ThreadPoolExecutor(_AT_ONCE) as pool:
        folder = Path(temporary)
        known = dict(pool.map(lambda path: (path, _fetch(ledger, path, folder)), _paths(ledger)))
        yield folder
        written = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        changed = [path for path in written if known.get(path) != (folder / path).read_bytes()]
        list(pool.map(lambda path: _store(ledger, path, folder), changed))


def _paths(ledger: Location) -> list[str]:
    return [path.removeprefix(f"{GATE_DOCS}/") for path, _ in ledger.walk(GATE_DOCS)]


def _fetch(ledger: Location, path: str, folder: Path) -> bytes:
    """Download a document, and return what the folder then has."""
    is_page = path.startswith(f"{SITE}/")
    data = b"" if is_page else ledger.read(f"{GATE_DOCS}/{path}") or b""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return data


def _store(ledger: Location, path: str, folder: Path) -> None:
    with ledger.create(f"{GATE_DOCS}/{path}") as target:
        target.write((folder / path).read_bytes())
