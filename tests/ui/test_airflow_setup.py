"""What an Airflow of one's own lacks is told: in the log of its parts, on the page, and by doctor."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli import environment
from tidegate.cli.environment import environment as look
from tidegate.ui import airflow_setup
from tidegate.versions.ranges import installed_version

DAG = "from jobs_of_mine.orders import pipeline\nfrom tidegate.dag import build_dag\ndag = build_dag(pipeline)\n"


@pytest.fixture
def dags(tmp_path, monkeypatch) -> Path:
    """A folder of DAGs, in an Airflow that is set up for it but for what a test changes."""
    folder = tmp_path / "dags"
    folder.mkdir()
    for name, value in {"DAGS_FOLDER": str(folder), "PARALLELISM": "4", "DAG_DISCOVERY_SAFE_MODE": "False"}.items():
        monkeypatch.setenv(f"AIRFLOW__CORE__{name}", value)
    monkeypatch.setattr(airflow_setup, "_cached", [])
    return folder


def checks() -> dict[str, airflow_setup.SetUpNotice]:
    airflow_setup._cached.clear()
    return {notice.check: notice for notice in airflow_setup.notices()}


def test_nothing_is_told_where_nothing_is_missing(dags, monkeypatch):
    (dags / "other.py").write_text("import nothing_of_tidegate\n")
    (dags / "orders.py").write_text(DAG)
    (dags / "jobs_of_mine").mkdir()
    assert checks() == {}


def test_a_dag_file_that_airflow_skips_in_silence_is_named(dags, monkeypatch):
    (dags / "jobs_of_mine").mkdir()
    (dags / "orders.py").write_text(DAG)
    monkeypatch.setenv("AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE", "True")
    notice = checks()["safe mode"]
    assert notice.is_blocking
    assert "skips orders.py" in notice.problem
    assert "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE=False" in notice.help
    (dags / "orders.py").write_text(f'"""For Airflow."""\n{DAG}')
    assert checks() == {}


def test_a_module_that_is_not_on_the_path_is_named_with_the_folder_to_add(dags):
    (dags / "orders.py").write_text(DAG)
    notice = checks()["PYTHONPATH"]
    assert "orders.py imports jobs_of_mine" in notice.problem
    assert str(dags.parent) in notice.help
    (dags / "orders.py").write_text(f"import sys\nsys.path.insert(0, 'somewhere')\n{DAG}")
    assert checks() == {}


def test_a_folder_that_is_none_and_too_many_workers_are_told(dags, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(dags / "nowhere"))
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "32")
    found = checks()
    assert found["dags_folder"].is_blocking
    assert not found["parallelism"].is_blocking
    assert "32 workers" in found["parallelism"].problem


def test_folders_of_bundles_are_looked_into_and_bundles_that_are_fetched_are_not(dags, tmp_path, monkeypatch):
    """An Airflow whose DAGs come from git needs no dags_folder."""
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "nowhere"))
    git = {"name": "git", "classpath": "airflow.providers.git.bundles.git.GitDagBundle", "kwargs": {}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([git]))
    assert checks() == {}
    here = {"name": "here", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle"}
    monkeypatch.setenv(
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([git, here | {"kwargs": {"path": str(dags)}}])
    )
    (dags / "orders.py").write_text(DAG)
    assert "jobs_of_mine" in checks()["PYTHONPATH"].problem


def test_plugins_that_nothing_registers_are_told(dags, tmp_path, monkeypatch):
    monkeypatch.setattr(airflow_setup.importlib.metadata, "entry_points", lambda **_: ())
    monkeypatch.setenv("AIRFLOW__CORE__PLUGINS_FOLDER", str(tmp_path / "plugins"))
    assert checks()["plugins"].is_blocking
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/mine.py").write_text("mine = 1\n")
    assert checks()["plugins"].is_blocking
    (tmp_path / "plugins/theirs.py").write_text("from tidegate.dag.plugin import TidegatePlugin\n")
    assert checks() == {}


def test_an_airflow_that_was_never_tried_is_told(dags, monkeypatch):
    monkeypatch.setattr(airflow_setup, "VERSION", (3, 9, 0))
    assert "Airflow 3.9.0" in checks()["Airflow's version"].problem


@pytest.mark.parametrize(("command", "lines"), [("dag-processor", 1), ("worker", 0)])
def test_only_parts_that_live_long_log_it(dags, monkeypatch, caplog, command, lines):
    (dags / "orders.py").write_text(DAG)
    monkeypatch.setattr(sys, "argv", ["airflow", command])
    with caplog.at_level(logging.WARNING, airflow_setup.__name__):
        airflow_setup.log_notices()
    assert len([record for record in caplog.records if "jobs_of_mine" in record.getMessage()]) == lines


def test_a_failure_of_the_look_itself_stops_no_plugin(dags, monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    monkeypatch.setattr(airflow_setup, "notices", lambda: 1 / 0)
    airflow_setup.log_notices()
    assert "ZeroDivisionError" in caplog.text


# -- doctor --environment --------------------------------------------------------------------------


def findings() -> dict[str, tuple[str, str, str]]:
    return {each.check: (each.state, each.detail, each.help) for each in look()}


@pytest.fixture
def no_airflow_here(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "none"))
    for name in list(environment.os.environ):
        if name.startswith("AIRFLOW__"):
            monkeypatch.delenv(name)


def test_doctor_tells_what_is_out_of_range_and_missing_with_the_command(no_airflow_here, monkeypatch):
    versions = {"apache-airflow": "2.11.0", "pyspark": "4.1.4", "great-expectations": None, "obstore": None}
    monkeypatch.setattr(environment, "installed_version", lambda name: versions.get(name, installed_version(name)))
    found = findings()
    assert found["apache-airflow"][0] == "bad"
    assert found["apache-airflow"][2] == "pip install 'tidegate[airflow]'"
    assert found["pyspark"][:2] == ("ok", "4.1.4")
    assert found["great-expectations"][0] == "note"
    assert found["obstore"][::2] == ("bad", "pip install 'obstore>=0.11,<0.13'")


def test_doctor_tells_of_a_proxy_that_takes_loopback_along(no_airflow_here, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert findings()["proxy"][0] == "note"
    assert "no_proxy=127.0.0.1" in findings()["proxy"][2]
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    assert findings()["proxy"][0] == "ok"


def test_doctor_asks_the_airflow_that_is_configured(dags, monkeypatch):
    said = [{"check": "safe mode", "problem": "Airflow skips it", "help": "do this", "is_blocking": True}]

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-m", "tidegate.ui.airflow_setup"]
        return subprocess.CompletedProcess(command, 0, stdout=f"a line of Airflow's\n{json.dumps(said)}\n")

    monkeypatch.setattr(environment.subprocess, "run", run)
    assert findings()["safe mode"] == ("bad", "Airflow skips it", "do this")
