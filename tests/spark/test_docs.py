"""Blocks of the documents that need Spark: the tutorial from end to end, and what guides show of DataFrames.

All in this process, on the one local session of the tests; `tests/test_docs.py` covers all other blocks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.documents import Block, blocks, commands, run_python, statements
from tests.kit.jvm import QUICK
from tidegate.cli.main import main

SHOWN = [block for block in blocks("python") if block.needs_spark and block.document != "docs/tutorial.md"]
WALK = [
    block
    for language in ("python", "sh", "toml", "yaml")
    for block in blocks(language)
    if block.document == "docs/tutorial.md"
]
ELSEWHERE = {
    "tidegate up": "tests/dags/test_up.py starts Airflow",
    "kill -9": "tests/crash and tests/dags kill real processes; here the same input is read without",
    "pip install": "the commands are called as functions",
}
"""Statements of the tutorial that the walk leaves out, and who sees to them."""


@pytest.fixture
def project(spark, tmp_path, monkeypatch):
    """A project's folder, in which commands of this process use the tests' Spark."""
    (tmp_path / "tidegate.toml").write_text('root = "data/ledger"\ndata = "data"\n')
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MODE": "local",
        "MASTER": "local[2]",
        "MEMORY": "2g",
        "CONF": json.dumps(QUICK),
    }.items():
        monkeypatch.setenv(f"TIDEGATE_SPARK_{name}", value)
    before = dict(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before.keys():
        if name.startswith(("block_", "jobs.")):
            del sys.modules[name]
    sys.modules.update({name: module for name, module in before.items() if name.startswith("jobs")})


def tidegate(capsys: Any, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    capsys.readouterr()
    code = main(arguments)
    printed = capsys.readouterr()
    assert code == 0, f"tidegate {' '.join(arguments)}: {printed.err}"
    return str(printed.out)


# -- guides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.where)
def test_every_block_that_needs_spark_runs(block, project, spark, capsys, monkeypatch):
    def checkpoint(name: str) -> None:
        """One checkpoint of the pipeline of a module that the block's setup has made."""
        tidegate(capsys, "run", f"{name}:pipeline", "--until-idle")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """A command that a block starts as a process, in this one."""
        return subprocess.CompletedProcess(command, 0, stdout=tidegate(capsys, *command[1:]))

    for earlier in blocks("python"):
        if earlier.document == block.document and not (earlier.needs_spark or earlier.reason_to_skip or earlier.title):
            module = run_python(earlier, project)
            sys.modules["jobs.orders"] = module
            break
    monkeypatch.setattr(subprocess, "run", run)
    shown = run_python(block, project, {"spark": spark, "checkpoint": checkpoint})
    for name, test in vars(shown).items():
        if name.startswith("test_"):
            given = {"spark": spark, "tmp_path": project}
            test(*(given[each] for each in test.__code__.co_varnames[: test.__code__.co_argcount]))


# -- the tutorial ----------------------------------------------------------------------------------


class Walk:
    """Somebody who does what the tutorial says, in its order."""

    def __init__(self, folder: Path, capsys: Any) -> None:
        self.folder, self.capsys = folder, capsys
        self.left_out: set[str] = set()

    def step(self, block: Block) -> list[str]:
        """Do what a block says; what each `tidegate read … pages` shows then."""
        if block.language == "sh":
            return [shown for statement in statements(block.code) if (shown := self.shell(statement)) is not None]
        if block.title == "fragment":
            if "once = checked" in block.code:
                code = (self.folder / "jobs/views.py").read_text()
                self.write("jobs/views.py", code.replace(f"{line_of(code, 'once = ')}\n", block.code))
        else:
            self.write(block.title, block.code)
        return []

    def write(self, name: str, code: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(code)
        if name.endswith(".py"):
            run_python(Block("docs/tutorial.md", 0, "python", name, "", code), self.folder)

    def shell(self, statement: str) -> str | None:
        if found := [part for part in ELSEWHERE if part in statement]:
            self.left_out.update(found)
            return None
        [*words] = next(commands(statement))
        if words[0] != "tidegate":
            subprocess.run(["bash", "-ec", statement], cwd=self.folder, check=True)
            if entered := re.search(r"&& cd (\w+)$", statement):
                self.folder /= entered[1]
                os.chdir(self.folder)  # the fixture takes it back
            return None
        if words[1:] != ["read", "views", "pages"]:
            tidegate(self.capsys, *words[1:])
            return None
        rows = json.loads(tidegate(self.capsys, *words[1:], "--json"))["rows"]
        return " ".join(f"{row['page']}={row['views']}" for row in sorted(rows, key=lambda row: row["page"]))


def line_of(code: str, start: str) -> str:
    return next(line for line in code.splitlines() if line.startswith(start))


def test_the_tutorial_leads_where_it_says(project, capsys):
    walk = Walk(project, capsys)
    *seen, again = [shown for block in sorted(WALK, key=lambda block: block.line) for shown in walk.step(block)]
    assert seen == [
        "/cart=1 /home=1",  # state, from the first file
        "/cart=1 /home=2",  # a duplicate and a new view
        "/cart=1 /help=1 /home=2",  # the bad view is in quarantine
        "/cart=1 /help=1 /home=3",  # corrected and released
        "/cart=1 /help=1 /home=9",  # six more files
        "/cart=1 /home=2",  # back at checkpoint 4
    ]
    assert again.startswith("/cart=1 /help=1 /home=")  # its input was read again
    assert walk.left_out == set(ELSEWHERE)
