"""Links in README and the documents lead somewhere: each file is there, and each anchor is a heading of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(document: Path) -> str:
    """Without blocks of code."""
    return FENCED.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(document):
    dead = []
    for link in LINK.findall(prose(document)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []
