"""README shows code that exists: the first block is the file that it names, and everything else is linked."""

from __future__ import annotations

import re
from pathlib import Path

from jobs import spending

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_block_of_code_is_the_file_that_it_claims_to_be():
    code = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[0]
    file = (ROOT / "jobs" / "spending.py").read_text(encoding="utf-8")
    assert code == file.split('"""\n\n', 1)[1]


def test_the_example_is_a_pipeline():
    graph = spending.pipeline.graph()
    assert sorted(graph.sinks) == ["accepted", "spending"]
    assert [job.name for job in graph.jobs] == ["main"]


def test_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 150
    links = re.findall(r"\]\(([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_of_the_makefile_that_it_names_is_there():
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"^(?:\| `)?make ([a-z]+)", README, re.MULTILINE))
    assert named
    assert named <= targets
