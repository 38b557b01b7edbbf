"""The guide's SQLite source and sink in a project of their own, by commands alone, on real Spark."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.documents import code_of
from tests.kit.jvm import INTERPRETED
from tidegate.cli.main import main

CODE = """
from sqlite_rows import SqliteRows
from sqlite_table import SqliteTable
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend

pipeline = Pipeline("copy")
rows = pipeline.source("rows", SqliteRows("in.db", "orders", "id long, amount double", ["id", "amount"], max_rows=2))
rows.sink("kept", DeltaAppend("tables/kept"))
fresh = rows.deduplicate(by="id", uid="once")
fresh.sink("copied", SqliteTable("out.db", "orders", ["id", "amount"]))
"""


@pytest.fixture
def project(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    for name in ("sqlite_rows", "sqlite_table"):
        (tmp_path / f"{name}.py").write_text(code_of(f"jobs/{name}.py"))
    (tmp_path / "copying.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    settings = {"MODE": "local", "MASTER": "local[2]", "MEMORY": "2g", "CONF": json.dumps(INTERPRETED)}
    for name, value in settings.items():
        monkeypatch.setenv(f"TIDEGATE_SPARK_{name}", value)
    kept = set(sys.modules)
    yield tmp_path
    for name in {"sqlite_rows", "sqlite_table", "copying"} & (set(sys.modules) - kept):
        del sys.modules[name]


def execute(path: Path, statement: str, rows: Any = ()) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        if rows:
            database.executemany(statement, rows)
            return []
        return database.execute(statement).fetchall()


def test_a_copy_is_run_looked_at_rolled_back_and_continued(project, capsys):
    def tidegate(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == code
        printed = capsys.readouterr()
        return str(printed.out + printed.err)

    def copied() -> list[int]:
        return [id for (id,) in execute(project / "out.db", "SELECT id FROM orders ORDER BY id")]

    execute(project / "in.db", "CREATE TABLE orders (id INTEGER, amount REAL)")
    execute(project / "in.db", "INSERT INTO orders VALUES (?, ?)", [(1, 1.0), (2, 2.0), (2, 2.0), (3, 3.0), (4, 4.0)])
    told = tidegate("run", "copying:pipeline", "--until-idle")
    line = next(line for line in told.splitlines() if "sqlite:" in line)
    assert line.split()[:3] == ["copied", "?", "none"]
    assert "tidegate read copy kept --limit 5" in told
    assert "read copy copied" not in told, "what cannot be done is not suggested"
    assert copied() == [1, 2, 3, 4]
    assert json.loads(tidegate("read", "copy", "--json"))["tables"]["kept"]["rows"] == 5

    assert "bad" not in {
        found["state"] for found in json.loads(tidegate("doctor", "copying:pipeline", "--json"))["findings"]
    }
    assert "keeps no versions" in tidegate("read", "copy", "copied", code=2)
    assert "Choose --keep copied" in " ".join(
        tidegate("rollback", "copying:pipeline", "--to", "2", "--yes", code=1).split()
    )
    tidegate("rollback", "copying:pipeline", "--to", "2", "--keep", "copied", "--yes")
    assert copied() == [1, 2, 3, 4]
    tidegate("run", "copying:pipeline", "--until-idle")
    assert copied() == [1, 2, 3, 4, 4], "what was read again was written once more, as the rollback had said"
    assert json.loads(tidegate("read", "copy", "kept", "--json"))["total"] == 5
    tidegate("savepoint", "create", "copy", "end")
    assert "intact" in tidegate("savepoint", "verify", "copying:pipeline", "end")
