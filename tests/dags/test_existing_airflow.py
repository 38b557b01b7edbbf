"""`tidegate init --into` an Airflow that is there: its configuration is Airflow's own, and so is what reads the DAG.

That it makes checkpoints there is seen by `make existing-airflow`, also with Celery, MySQL and Astro's layout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kit.sampling import in_turn
from tidegate.cli.main import main

INCLUDE = Path(__file__).resolve().parents[2] / "include"

MAKE_HOME = "from airflow.configuration import conf; print(conf.get('core', 'dags_folder'))"
READ = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from tidegate.ui.airflow_setup import notices
told = {}
for folder in sys.argv[1:]:
    bag = DagBag(folder)
    projects = {task.project for dag in bag.dags.values() for task in dag.tasks if hasattr(task, "project")}
    told[folder] = {"dags": sorted(bag.dags), "errors": bag.import_errors, "projects": sorted(projects)}
print(json.dumps({"told": told, "stops": [notice.problem for notice in notices() if notice.is_blocking]}))
"""


def python(home: Path, *words: str) -> str:
    """What a process of this Airflow prints; it works in a folder of its own, as Airflow's parts do."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TIDEGATE", "PYTHON"))}
    env = kept | {"AIRFLOW_HOME": str(home), "PYTHONPATH": str(INCLUDE)}
    done = subprocess.run([sys.executable, "-c", *words], cwd=home.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@in_turn(seconds=40)
def test_airflows_own_home_gets_a_dag_that_it_finds_also_by_a_link(tmp_path, monkeypatch, capsys):
    home = tmp_path / "airflow"
    assert python(home, MAKE_HOME) == str(home / "dags")
    for name in ("AIRFLOW_HOME", "AIRFLOW__CORE__DAGS_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home)
    assert main(["init", "--into", ".", "--json"]) == 0
    assert [each["what"] for each in json.loads(capsys.readouterr().out)["by_hand"]] == [
        "Add to requirements.txt: tidegate[spark,gates]",
        "Run once: tidegate spark jars",
    ]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "visits.py").symlink_to(home / "dags/visits.py")
    found = json.loads(python(home, READ, str(home / "dags"), str(elsewhere)))
    expected = {"dags": ["visits", "visits__backfill"], "errors": {}, "projects": [str(home)]}
    assert found == {"told": {str(home / "dags"): expected, str(elsewhere): expected}, "stops": []}
