"""plugins/tidegate_plugin.py beside the package's own entry points: each plugin is registered once."""

import importlib.metadata
import runpy
from pathlib import Path

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "tidegate_plugin.py"


def test_where_the_package_is_installed_the_file_registers_nothing():
    assert importlib.metadata.entry_points(group="airflow.plugins", name="tidegate"), "installed by `make setup`"
    assert not [name for name in runpy.run_path(str(PLUGIN)) if name.startswith("Tidegate")]


def test_where_it_is_not_the_file_registers_all_that_the_entry_points_do(monkeypatch):
    found = [
        point.value.rpartition(":")[2]
        for point in importlib.metadata.entry_points(group="airflow.plugins")
        if point.value.startswith("tidegate.")
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints(()))
    registered = {name for name in runpy.run_path(str(PLUGIN)) if name.startswith("Tidegate")}
    assert registered == set(found)
    assert len(registered) == 2
