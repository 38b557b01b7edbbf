"""Checks whether this Airflow is set up for pipelines: settings that users must make, and without which it fails
silently.

The notices are in the log when the plugin loads, on the page of all pipelines, and in the output of `tidegate doctor
--environment`, which runs this module: `python -m tidegate.ui.airflow_setup` prints them as JSON. It reads Airflow's
configuration and the DAG files, and runs none of them.
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
"""Airflow components that log set-up problems. Tasks do not, because each of their processes would repeat them."""
_MAX_FILES = 500
_MAX_BYTES = 500_000
_MANY_WORKERS = 8
_KNOWN_EXECUTORS = ("LocalExecutor", "CeleryExecutor", "KubernetesExecutor")
_LOCAL_BUNDLE: Final = "LocalDagBundle"
_CACHED_S = 60.0


@dataclass(frozen=True)
class SetUpNotice:
    """A set-up problem and its remedy."""

    check: str
    problem: str
    help: str
    is_blocking: bool
    """Whether pipelines cannot run until it is fixed."""


def notices() -> list[SetUpNotice]:
    """Return all set-up problems, checked at most once a minute."""
    with _lock:
        if not _cached or seams.monotonic() - _cached[-1][0] > _CACHED_S:
            _cached[:] = [(seams.monotonic(), [*_versions(), *_plugins(), *_dag_files(), *_workers()])]
        return list(_cached[-1][1])


def log_notices() -> None:
    """Log the notices in long-lived processes of Airflow. Never raises, because then the plugin's tabs would not
    load."""
    if not _PARTS & set(sys.argv):
        return
    try:
        for notice in notices():
            log.warning("tidegate: %s. %s", notice.problem, notice.help)
    except Exception as error:
        log.warning("tidegate: could not check whether this Airflow is set up for it: %r", error)


_lock = threading.Lock()
_cached: list[tuple[float, list[SetUpNotice]]] = []
"""The time of the last check, and its notices; empty before the first."""


def _versions() -> Iterator[SetUpNotice]:
    supported, version = RANGES_BY_PACKAGE["apache-airflow"], ".".join(map(str, VERSION))
    if version not in supported:
        yield SetUpNotice(
            "Airflow's version",
            f"this is Airflow {version}, which this version of tidegate has not been tested with",
            f"use apache-airflow {supported.text}, or another version of tidegate",
            is_blocking=False,
        )


def _plugins() -> Iterator[SetUpNotice]:
    """Check that tidegate's plugins are registered, by its package or by a file in the plugins folder."""
    if importlib.metadata.entry_points(group="airflow.plugins", name="tidegate"):
        return
    folder = Path(conf.get("core", "plugins_folder", fallback=""))
    if str(folder) != "." and folder.is_dir():
        files = sorted(folder.glob("*.py"))
    else:
        files = []
    if not any("tidegate" in _read(file) for file in files):
        yield SetUpNotice(
            "plugins",
            f"nothing in {folder} registers tidegate's plugins, and it is not installed as a package",
            "pip install tidegate where all of Airflow's parts run, or let [core] plugins_folder name its plugins/",
            is_blocking=True,
        )


def _dag_folders() -> list[Path]:
    """Return this machine's folders from which Airflow reads DAG files. Only the DAG processor fetches the files of
    other bundles, such as git's."""
    dags_folder = conf.get("core", "dags_folder", fallback="")
    folders: list[Path] = []
    try:
        for bundle in json.loads(conf.get("dag_processor", "dag_bundle_config_list", fallback="") or ""):
            if str(bundle["classpath"]).endswith(_LOCAL_BUNDLE):
                folders.append(Path((bundle.get("kwargs") or {}).get("path") or dags_folder))
    except (ValueError, TypeError, KeyError, AttributeError):
        return [Path(dags_folder)]  # Airflow itself reports what is wrong with the setting
    return folders


def _dag_files() -> Iterator[SetUpNotice]:
    """Find DAG files that Airflow skips silently, and those with imports that it cannot resolve."""
    for folder in _dag_folders():
        if folder.is_dir():
            yield from _dag_files_of(folder)
        else:
            yield SetUpNotice(
                "dags_folder",
                f"Airflow looks for DAGs in {folder}, which is not a folder",
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
                f"Airflow skips {name}, because it does not contain the word airflow",
                "add it to the file, or set [core] dag_discovery_safe_mode = False "
                "(AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE=False)",
                is_blocking=True,
            )
        if missing := _find_missing_modules(text, folder):
            yield SetUpNotice(
                "PYTHONPATH",
                f"{name} imports {', '.join(missing)}, which this Airflow cannot find",
                f"put the folder of your project, such as {folder.parent}, on the PYTHONPATH of all Airflow components",
                is_blocking=True,
            )


def _find_missing_modules(text: str, folder: Path) -> list[str]:
    """Return the top-level modules that a DAG file imports and that cannot be found.

    A file that changes sys.path is skipped: its imports cannot be checked without running it.
    """
    if "sys.path" in text:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []  # Airflow itself reports that, with its line
    roots: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            roots.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            roots.add((node.module or "").partition(".")[0])
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
    places = [folder, Path(conf.get("core", "plugins_folder", fallback="") or folder), home / "config"]
    return sorted(root for root in roots if root and not _module_exists(root, places))


def _module_exists(module: str, places: list[Path]) -> bool:
    if any((place / module).is_dir() or (place / f"{module}.py").is_file() for place in places):
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True  # a module that is already imported, but has no spec


def _workers() -> Iterator[SetUpNotice]:
    executor = conf.get("core", "executor", fallback="LocalExecutor")
    parallelism = conf.getint("core", "parallelism", fallback=32)
    if "LocalExecutor" in executor and parallelism > _MANY_WORKERS:
        yield SetUpNotice(
            "parallelism",
            f"LocalExecutor starts up to {parallelism} workers of 150 MB each",
            "set [core] parallelism (AIRFLOW__CORE__PARALLELISM), for example to 4",
            is_blocking=False,
        )
    if not any(documented in executor for documented in _KNOWN_EXECUTORS):
        yield SetUpNotice(
            "executor",
            f"tasks run by {executor}, which docs/guides/deploying.md does not cover",
            f"nothing to do if it works: any task may run anywhere. Covered are: {', '.join(_KNOWN_EXECUTORS)}",
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
