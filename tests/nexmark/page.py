"""python -m tests.nexmark.page: write the queries, as they are, into the guide that shows them."""

from __future__ import annotations

from pathlib import Path

from tests.nexmark.playing import MODULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "nexmark.md"
BEGIN, END = "<!-- queries: python -m tests.nexmark.page -->\n", "<!-- end of queries -->\n"

__all__ = ["PAGE", "page"]


def page() -> str:
    """Return the page with the queries as they are now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = []
    for module in MODULES:
        docstring, _, code = Path(module.__file__ or "").read_text().partition('"""\n')
        said = docstring.removeprefix('"""').removeprefix("Queries of Nexmark ")
        name = module.__name__.rpartition(".")[2]
        shown.append(f"## {name.capitalize()}\n\nQueries {said}\n\n```python\n{code.strip()}\n```\n")
    return before + BEGIN + "\n" + "\n".join(shown) + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(page())
