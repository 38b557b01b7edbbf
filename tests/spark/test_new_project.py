"""What `tidegate init` and `tidegate new` write runs: the test of the new pipeline, and a crash of its own.

All in this process, on the one local session of the tests.
"""

from __future__ import annotations

import importlib
import sys

import pytest

import tidegate.testing
from tests.kit.jvm import QUICK
from tidegate.cli.main import main
from tidegate.testing import run as run_pipeline


@pytest.fixture
def shop(spark, tmp_path, monkeypatch):
    """A new project, whose modules are the ones that are imported."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "shop"]) == 0
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.syspath_prepend(str(tmp_path / "shop"))
    for name in [name for name in sys.modules if name == "jobs" or name.startswith("jobs.")]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path / "shop"
    for name in [name for name in sys.modules if name == "jobs" or name.startswith("jobs.")]:
        del sys.modules[name]


def run(pipeline, folder, spark):
    return run_pipeline(pipeline, folder, spark=spark, settings={f"spark.conf.{k}": v for k, v in QUICK.items()})


def test_the_new_pipelines_own_test_passes(shop, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(tidegate.testing, "run", lambda pipeline, folder: run(pipeline, folder, spark))
    sys.path.insert(0, str(shop / "tests"))
    try:
        importlib.import_module("test_visits").test_a_visit_that_comes_twice_counts_once(tmp_path / "of_the_test")
    finally:
        sys.path.remove(str(shop / "tests"))
        sys.modules.pop("test_visits", None)


def test_its_feed_makes_visits_that_its_tables_count(shop, spark, tmp_path, monkeypatch):
    pipeline = importlib.import_module("jobs.visits").pipeline
    feed = importlib.import_module("jobs.visits_feed")
    with run(pipeline, tmp_path / "fed", spark) as running:
        landing = running.data / "landing/visits"
        landing.mkdir(parents=True)
        for number in (7, 8):
            feed.write(landing, number)
        running.crash_at("S9.decision.after")
        running.until_idle()
        good = 2 * (feed.VISITS - feed.VISITS // 50)
        assert sum(row["visits"] for row in running.rows("pages")) == good
        assert len(running.rows("visits")) == good
