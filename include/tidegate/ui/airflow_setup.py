"""Is this Airflow set up for pipelines? What Airflow leaves to be done by hand, and fails silently without.

Told in the log when the plugin loads, on the page of all pipelines, and by `tidegate doctor --environment`, which runs
this module: `python -m tidegate.ui.airflow_setup` prints the notices as JSON. Reads Airflow's configuration and the DAG
files, and runs none of them.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidegate import seams
from tidegate.versions.airflow import VERSION, conf
from tidegate.versions.ranges import RANGES_BY_PACKAGE

__all__ = ["SetUpNotice", "log_notices", "notices"]

log = logging.getLogger(__name__)

_PARTS = frozenset({"api-server", "dag-processor", "scheduler", "standalone"})
"""Of Airflow's processes those that tell it in their logs. A task would repeat it in each of its own."""
_MAX_FILES = 500
_MAX_BYTES = 500_000
_MANY_WORKERS = 8
_KNOWN_EXECUTORS = ("LocalExecutor", "CeleryExecutor", "KubernetesExecutor")
_LOCAL_BUNDLE: Final = "LocalDagBundle"
_LOOK_EVERY_S = 60.0


@dataclass(frozen=True)
class SetUpNotice:
    """One thing that is missing: what, and the remedy."""

    check: str
    problem: str
    help: str
    is_blocking: bool
    """Whether pipelines cannot run so."""


def notices() -> list[SetUpNotice]:
    """Return everything that is missing, looked up at most once a minute."""
    with _lock:
        if not _looked or seams.monotonic() - _looked[-1][0] > _LOOK_EVERY_S:
            _looked[:] = [(seams.monotonic(), [*_versions(), *_plugins(), *_dag_files(), *_workers()])]
        return list(_looked[-1][1])


def log_notices() -> None:
    """Log them, in the parts of Airflow that live long. Never raises: a plugin that fails to load takes tabs along."""
    if not _PARTS & set(sys.argv):
        return
    try:
        for notice in notices():
            log.warning("tidegate: %s. %s", notice.problem, notice.help)
    except Exception as error:
        log.warning("tidegate: cannot tell whether this Airflow is set up for it: %r", error)


_lock = threading.Lock()
_looked: list[tuple[float, list[SetUpNotice]]] = []
"""When somebody looked last, and what was found; empty before."""


def _versions() -> Iterator[SetUpNotice]:
    known, found = RANGES_BY_PACKAGE["apache-airflow"], ".".join(map(str, VERSION))
    if found not in known:
        yield SetUpNotice(
            "Airflow's version",
            f"this is Airflow {found}, which this version of tidegate has not been tried with",
            f"use apache-airflow {known.text}, or another version of tidegate",
            is_blocking=False,
        )


def _plugins() -> Iterator[SetUpNotice]:
    """Tell if nothing registers tidegate's plugins: neither its package nor a file of the plugins folder."""
    if importlib.metadata.entry_points(group="airflow.plugins", name="tidegate"):
        return
    folder = Path(conf.get("core", "plugins_folder", fallback=""))
    files = sorted(folder.glob("*.py")) if str(folder) != "." and folder.is_dir() else []
    if not any("tidegate" in _read(file) for file in files):
        yield SetUpNotice(
            "plugins",
            f"nothing in {folder} registers tidegate's plugins, and it is not installed as a package",
            "pip install tidegate where all of Airflow's parts run, or let [core] plugins_folder name its plugins/",
            is_blocking=True,
        )


def _dag_folders() -> list[Path]:
    """Return the folders of this machine that Airflow reads DAG files from. What other bundles have, such as those of
    git, is fetched by the DAG processor alone."""
    usual = conf.get("core", "dags_folder", fallback="")
    try:
        bundles = json.loads(conf.get("dag_processor", "dag_bundle_config_list", fallback="") or "")
        local = [each for each in bundles if str(each["classpath"]).endswith(_LOCAL_BUNDLE)]
        return [Path((each.get("kwargs") or {}).get("path") or usual) for each in local]
    except (ValueError, TypeError, KeyError, AttributeError):
        return [Path(usual)]  # Airflow itself tells what is wrong with it


def _dag_files() -> Iterator[SetUpNotice]:
    """Find DAG files that Airflow skips in silence, and those that import what it does not find."""
    for folder in _dag_folders():
        if folder.is_dir():
            yield from _dag_files_of(folder)
        else:
            yield SetUpNotice(
                "dags_folder",
                f"Airflow looks for DAGs in {folder}, which is no folder",
                "let [core] dags_folder (AIRFLOW__CORE__DAGS_FOLDER) name the dags/ of your project",
                is_blocking=True,
            )


def _dag_files_of(folder: Path) -> Iterator[SetUpNotice]:
    safe_mode = conf.getboolean("core", "dag_discovery_safe_mode", fallback=True)
    for file in sorted(folder.rglob("*.py"))[:_MAX_FILES]:
        text = _read(file)
        if "build_dag" not in text:
            continue
        name = file.relative_to(folder)
        lowered = text.lower()
        if safe_mode and not ("airflow" in lowered and "dag" in lowered):
            yield SetUpNotice(
                "safe mode",
                f"Airflow skips {name}, because the word airflow is not in it",
                "write it into the file, or set [core] dag_discovery_safe_mode = False "
                "(AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE=False)",
                is_blocking=True,
            )
        if missing := _find_missing_modules(text, folder):
            yield SetUpNotice(
                "PYTHONPATH",
                f"{name} imports {', '.join(missing)}, which this Airflow does not find",
                f"let PYTHONPATH of all of Airflow's parts hold the folder of your project, such as {folder.parent}",
                is_blocking=True,
            )


def _find_missing_modules(text: str, folder: Path) -> list[str]:
    """Return the modules that a DAG file imports and that are nowhere. One that changes the path knows better."""
    if "sys.path" in text:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []  # Airflow tells that itself, with its line
    roots = {
        module.partition(".")[0]
        for node in tree.body
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
    places = [folder, Path(conf.get("core", "plugins_folder", fallback="") or folder), home / "config"]
    return sorted(root for root in roots if root and not _module_exists(root, places))


def _module_exists(module: str, places: list[Path]) -> bool:
    if any((place / module).is_dir() or (place / f"{module}.py").is_file() for place in places):
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True  # imported, and without a spec


def _workers() -> Iterator[SetUpNotice]:
    executor = conf.get("core", "executor", fallback="LocalExecutor")
    parallelism = conf.getint("core", "parallelism", fallback=32)
    if "LocalExecutor" in executor and parallelism > _MANY_WORKERS:
        yield SetUpNotice(
            "parallelism",
            f"LocalExecutor starts up to {parallelism} workers of 150 MB each",
            "set [core] parallelism (AIRFLOW__CORE__PARALLELISM), to 4 to begin with",
            is_blocking=False,
        )
    if not any(known in executor for known in _KNOWN_EXECUTORS):
        yield SetUpNotice(
            "executor",
            f"tasks run by {executor}, of which docs/guides/deploying.md says nothing",
            f"nothing if it works: any task may run anywhere. What is written of: {', '.join(_KNOWN_EXECUTORS)}",
            is_blocking=False,
        )


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps([asdict(notice) for notice in notices()]))
