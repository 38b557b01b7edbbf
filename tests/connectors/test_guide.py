"""The connectors of docs/guides/writing-a-source-or-sink.md pass the contract tests, by the guide's own test module."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.documents import blocks, run_python
from tests.kit.sampling import in_turn

pytestmark = in_turn(seconds=55)

GUIDE = "docs/guides/writing-a-source-or-sink.md"

before = dict(sys.modules)
shown = {
    block.title: run_python(block, Path("the guide"))
    for block in blocks("python")
    if block.document == GUIDE and block.title.startswith(("jobs/", "tests/test_"))
}
for name in sys.modules.keys() - before.keys():
    if name.startswith(("jobs.", "tests.test_")):
        del sys.modules[name]  # `jobs` is this repository's own for all other tests

TestSqliteRows = shown["tests/test_sqlite.py"].TestSqliteRows
TestSqliteTable = shown["tests/test_sqlite.py"].TestSqliteTable


def test_source_and_sink_together_are_less_than_a_hundred_lines() -> None:
    lines = [
        len(block.code.splitlines())
        for block in blocks("python")
        if block.document == GUIDE and block.title.startswith("jobs/")
    ]
    assert len(lines) == 2
    assert sum(lines) < 100
