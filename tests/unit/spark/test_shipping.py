"""The zip file with the code for workers on other machines."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tidegate.spark.workers.shipping import code_archive


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with modules, and with what nobody imports."""
    folder = tmp_path / "project"
    for name, text in {
        "prices.py": "RATE = 7",
        "shop/orders.py": "from prices import RATE",
        "shop/deep/tables.py": "NAME = 'orders'",
        "shop/broken.py": "def (",
        "data/tables/part.parquet": "",
        "data/ledger/old.py": "",
        ".venv/lib/other.py": "",
        "two words/other.py": "",
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def names(archive: Path) -> list[str]:
    return [
        name for name in zipfile.ZipFile(archive).namelist() if not name.startswith("tidegate/") and name[-1] != "/"
    ]


def test_it_has_the_users_modules_and_nothing_else_of_the_project(tmp_path: Path, project: Path) -> None:
    archive = code_archive(tmp_path, [project])
    assert names(archive) == ["prices.pyc", "shop/broken.py", "shop/orders.pyc", "shop/deep/tables.pyc"]


def test_a_worker_that_has_nothing_else_imports_all_of_it(tmp_path: Path, project: Path) -> None:
    archive = code_archive(tmp_path, [project])
    asked = """
import shop.orders, tidegate.state.arrow.workers, tidegate.spark.storage.worker_writes
print(shop.orders.RATE, *{module.__file__.split('/tidegate_code.zip/')[0] for module in
    (shop.orders, tidegate.state.arrow.workers, tidegate.spark.storage.worker_writes)})
"""
    done = subprocess.run(
        [sys.executable, "-c", asked], env={"PYTHONPATH": str(archive)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split() == ["7", str(tmp_path)], done.stderr


def test_of_two_modules_of_one_name_the_first_counts(tmp_path: Path, project: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "prices.py").write_text("RATE = 8")
    archive = code_archive(tmp_path, [other, project, other])
    assert names(archive).count("prices.pyc") == 1
    asked = [sys.executable, "-c", "import prices; print(prices.RATE)"]
    env = {"PYTHONPATH": str(archive)}
    assert subprocess.run(asked, env=env, cwd=tmp_path, capture_output=True, text=True).stdout == "8\n"


def test_the_same_modules_make_the_same_file(tmp_path: Path, project: Path) -> None:
    first = code_archive(tmp_path, [project]).read_bytes()
    assert code_archive(tmp_path, [project]).read_bytes() == first
    (project / "prices.py").write_text("RATE = 70")
    assert code_archive(tmp_path, [project]).read_bytes() != first
