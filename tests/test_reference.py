"""The pages below docs/reference say what the code says."""

import argparse
import runpy
from pathlib import Path

import pytest

from tidegate.cli.forms import FORMS
from tidegate.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["settings.md", "reasons.md", "metrics.md", "cli.md", "documents.md", "http-api.md"])
def test_each_page_of_the_reference_is_current(monkeypatch, name):
    tool = runpy.run_path(str(ROOT / "tools/reference.py"))
    monkeypatch.setenv("COLUMNS", tool["WIDTH"])
    written = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert written == tool["pages"]()[name], "run: .venv/bin/python tools/reference.py"


def test_each_form_is_that_of_a_command():
    known = set()

    def walk(parser, words):
        nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        for action in nested:
            for name, below in action.choices.items():
                walk(below, [*words, name])
        if not nested:
            known.add(" ".join(words))

    walk(build_parser(), [])
    assert set(FORMS) <= known
