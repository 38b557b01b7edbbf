"""Which changed lines of a checkout lead to which table."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import Invalid
from tidegate.proposal.code_lines import ChangedLines, changed_lines

CODE = """from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Generator

RATE = 1
pipeline = Pipeline("sales", root="ledger", data=".")
orders = pipeline.source("orders", Generator(rows=2))


@pipeline.stage(orders)
def priced(rows):
    more = rows
    return more


@pipeline.stage(orders)
def other(rows):
    return rows


kept = priced.select("id", "id * 2 AS twice", where="id > 0")
totals = kept.aggregate(by="id", total="sum(twice)", uid="totals")
totals.sink("totals", DeltaUpsert("tables/totals", keys=["id"]))
kept.sink("kept", DeltaAppend("tables/kept"))
other.sink("others", DeltaAppend("tables/others"))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "jobs"
    folder.mkdir(parents=True)
    (folder / "shop_lines.py").write_text(CODE)
    identity = ["-c", "user.name=mia", "-c", "user.email=mia@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "main"]):
        subprocess.run(["git", *words], cwd=folder.parent, check=True, capture_output=True)
    return folder


def changed(checkout: Path, *pairs: tuple[str, str]) -> list[ChangedLines]:
    text = CODE
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    (checkout / "shop_lines.py").write_text(text)
    spec = importlib.util.spec_from_file_location("shop_lines", checkout / "shop_lines.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return changed_lines(module.pipeline.graph(), checkout, "HEAD")


def lines(part: str, first: int, last: int, *tables: str) -> ChangedLines:
    return ChangedLines(part=part, file="jobs/shop_lines.py", first=first, last=last, tables=list(tables))


def test_the_lines_of_a_function_lead_to_the_tables_behind_it_and_to_no_other(checkout: Path) -> None:
    assert changed(checkout, ("    more = rows\n", "    more = rows.where('id > 1')\n    more = more\n")) == [
        lines("priced", 12, 13, "totals", "kept")
    ]
    assert changed(
        checkout, ("def other(rows):\n    return rows\n", "def other(rows):\n    return rows.limit(1)\n")
    ) == [lines("other", 18, 18, "others")]


def test_texts_of_a_select_and_of_an_aggregate_are_found_where_they_are_written(checkout: Path) -> None:
    found = changed(checkout, ("id * 2 AS twice", "id * 3 AS twice"), ("sum(twice)", "max(twice)"))
    assert [each for each in found if each.part == "totals"] == [lines("totals", 21, 22, "totals")]
    assert [each.tables for each in found if each.part != "totals"] == [["totals", "kept"]]


def test_a_text_that_several_parts_have_is_nobodys(checkout: Path) -> None:
    more = 'more = kept.aggregate(by="twice", total="sum(twice)", uid="more")\n'
    sink = 'totals.sink("totals"'
    found = changed(checkout, (sink, more + 'more.sink("more", DeltaAppend("tables/more", changelog=True))\n' + sink))
    assert [each.part for each in found] == [], "sum(twice) is a text of totals, too"


def test_lines_of_nobody_are_attributed_to_nobody(checkout: Path) -> None:
    assert changed(checkout, ("RATE = 1", "RATE = 2")) == []
    assert changed(checkout) == []


def test_a_version_that_git_does_not_have_is_refused_with_a_way_out(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="git does not tell") as refused:
        changed_lines(object(), checkout, "nowhere/main")  # type: ignore[arg-type]
    assert "fetch-depth: 0" in refused.value.help
    with pytest.raises(Invalid):
        changed_lines(object(), tmp_path, "HEAD")  # type: ignore[arg-type]


def test_neither_settings_of_git_nor_names_nor_bytes_hide_lines(checkout: Path) -> None:
    folder = checkout.rename(checkout.with_name("läden"))
    (folder / "old.py").write_bytes(b"name = 'caf\xe9'\n")
    identity = ["-c", "user.name=mia", "-c", "user.email=mia@example.org", "-c", "commit.gpgsign=false"]
    for words in (["add", "-A"], [*identity, "commit", "-q", "-m", "moved"], ["config", "diff.mnemonicPrefix", "true"]):
        subprocess.run(["git", *words], cwd=folder.parent, check=True, capture_output=True)
    (folder / "old.py").write_bytes(b"name = 'th\xe9'\n")
    found = changed(folder, ("    more = rows\n", "    more = rows.limit(1)\n"))
    assert [(each.part, each.file, each.first) for each in found] == [("priced", "läden/shop_lines.py", 12)]
