"""The pages below docs/reference say what the code says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["settings.md", "reasons.md", "metrics.md", "cli.md", "http-api.md"])
def test_each_page_of_the_reference_is_current(monkeypatch, name):
    tool = runpy.run_path(str(ROOT / "tools/reference.py"))
    monkeypatch.setenv("COLUMNS", tool["WIDTH"])
    written = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert written == tool["pages"]()[name], "run: .venv/bin/python tools/reference.py"
