"""Great Expectations' Data Docs of a pipeline's checkpoints, in pages that load nothing from elsewhere."""

from pathlib import Path
from typing import Final

from tidegate.records.names import entry_name

GATE_DOCS: Final = "gate-docs"
"""The folder beside a pipeline's ledger that the pages link to. It is laid out like a file context."""
SITE: Final = "uncommitted/data_docs/local_site"
"""The folder of the pages, in such a folder."""


def page_of(home: str, pipeline: str, checkpoint: int, gate: str) -> str | None:
    """Return the page about a gate's verdict, relative to the site beside a ledger. None: it has not been built."""
    site = Path(home) / GATE_DOCS / SITE
    run = f"checkpoint-{entry_name(checkpoint)}/*/{pipeline}-{gate}.html"
    for suites in ("*", "*/*", "*/*/*"):  # dots in a suite's name are folders
        for page in site.glob(f"validations/{suites}/{run}"):
            return page.relative_to(site).as_posix()
    return None
