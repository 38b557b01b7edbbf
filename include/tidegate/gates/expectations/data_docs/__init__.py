"""Great Expectations' Data Docs of a pipeline's checkpoints, in pages that load nothing from elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tidegate.records.names import entry_name

if TYPE_CHECKING:
    from tidegate.ledger.ledger import Ledger

__all__ = ["GATE_DOCS", "INDEX", "PAGE", "SITE", "pages_of", "read_page"]

GATE_DOCS: Final = "gate-docs"
"""The folder beside a pipeline's ledger that the pages link to. It is laid out like a file context."""
SITE: Final = "uncommitted/data_docs/local_site"
"""The folder of the pages, in such a folder."""
INDEX: Final = "pages.json"
"""Which page of the site is about which gate of which checkpoint. Without it, each question would list the folder."""
PAGE: Final = ".html"


def pages_of(ledger: Ledger, checkpoint: int) -> dict[str, str]:
    """Return by gate its page about a checkpoint, relative to the site beside the ledger. Empty: none has been
    built."""
    data = ledger.store.read(f"{GATE_DOCS}/{INDEX}")
    try:
        index = json.loads(data) if data is not None else {}
    except ValueError:  # somebody has written it, or copied a part of it
        return {}
    pages: dict[str, str] = index.get(entry_name(checkpoint), {})
    return pages


def read_page(ledger: Ledger, path: str) -> bytes | None:
    """Return a page of the site beside the ledger, or None if it has no such page."""
    is_plain = all(name not in ("", ".", "..") and "\0" not in name for name in path.split("/"))
    if not is_plain or not path.endswith(PAGE):
        return None
    return ledger.store.read(f"{GATE_DOCS}/{SITE}/{path}")
