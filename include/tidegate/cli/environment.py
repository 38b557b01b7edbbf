"""`tidegate doctor --environment`: checks versions, Java, jars, proxies and Airflow, and shows what to install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.spark.fetching import MIRROR_VARIABLE
from tidegate.spark.jars import jar_list, jar_paths, jars_folder
from tidegate.verify.finding import Finding, finding_of
from tidegate.versions import spark
from tidegate.versions.ranges import PYTHON, RANGES, VersionRange, installed_version

__all__ = ["environment"]

AREA = "environment"
_WANTED = frozenset({"airflow", "spark", "gates"})
"""Extras that most projects have. Packages of other extras are only reported if they are installed."""
_ASK_AIRFLOW_S = 120.0


def environment() -> Iterator[Finding]:
    """Yield a finding for each part of the environment."""
    yield _python()
    for package in RANGES:
        if (finding := _package(package)) is not None:
            yield finding
    yield _jars()
    yield _jars_of_delta()
    yield from _proxies()
    yield from _airflow()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if version in PYTHON:
        return Finding(AREA, "Python", "ok", f"{version} ({sys.executable})")
    return Finding(
        AREA, "Python", "bad", version, f"create an environment with Python {PYTHON.text}: python3.12 -m venv"
    )


def _package(package: VersionRange) -> Finding | None:
    version = installed_version(package.package)
    if version is not None and version in package:
        return Finding(AREA, package.package, "ok", version)
    if version is not None:
        return Finding(AREA, package.package, "bad", f"{version}: tidegate needs {package.text}", package.command)
    if not package.extra:
        return Finding(AREA, package.package, "bad", "is not installed", package.command)
    if package.extra in _WANTED:
        return Finding(AREA, package.package, "note", f"is not installed: no extra {package.extra}", package.command)
    return None


def _jars() -> Finding:
    try:
        paths = jar_paths()
    except TidegateError as error:
        return finding_of(AREA, "jars", error)
    return Finding(AREA, "jars", "ok", f"{len(paths)} for Spark {spark.minor()} in {paths[0].parent}")


def _jars_of_delta() -> Finding:
    """Report the version of Delta for this Spark, and whether the jars' folder can be written."""
    delta = next((jar for jar in jar_list() if jar.name.startswith("delta-spark")), None)
    if delta is None:
        help = "install a supported Spark: pip install 'tidegate[spark]'"
        return Finding(AREA, "Delta", "bad", f"there is none for Spark {spark.minor()}", help)
    folder = jars_folder(create=True)
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(place, os.W_OK):
        return Finding(
            AREA, "Delta", "note", f"{delta.version}; {folder} cannot be written", "set TIDEGATE_JARS to another folder"
        )
    return Finding(AREA, "Delta", "ok", f"{delta.version} for Spark {spark.minor()}")


def _proxies() -> Iterator[Finding]:
    """Report proxies and mirrors: downloads use them, and requests to loopback must not."""
    names = sorted(name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy"))
    if names:
        around = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
        loopback = "127.0.0.1" in around or around.strip() == "*"
        yield Finding(
            AREA,
            "proxy",
            "ok" if loopback else "note",
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} set",
            "" if loopback else "export no_proxy=127.0.0.1,localhost: Airflow and Spark are on loopback",
        )
    if os.environ.get(MIRROR_VARIABLE):
        yield Finding(AREA, "mirror", "ok", f"jars come from the mirror in {MIRROR_VARIABLE}")


def _airflow() -> Iterator[Finding]:
    """Check the Airflow of this environment, if one is set up. `tidegate up` has a separate one."""
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
    if installed_version("apache-airflow-core") is None:
        return
    if not (home / "airflow.cfg").is_file() and not any(name.startswith("AIRFLOW__") for name in os.environ):
        yield Finding(AREA, "Airflow's settings", "ok", f"none in {home}; `tidegate up` has its own")
        return
    command = [sys.executable, "-m", "tidegate.ui.airflow_setup"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_AIRFLOW_S)
        notices = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        help = f"see its output: {shutil.which('airflow') or 'airflow'} info"
        yield Finding(AREA, "Airflow's settings", "cannot tell", f"the Airflow of {home} does not start", help)
        return
    for notice in notices:
        yield Finding(
            AREA, notice["check"], "bad" if notice["is_blocking"] else "note", notice["problem"], notice["help"]
        )
    if not notices:
        yield Finding(AREA, "Airflow's settings", "ok", f"{home}: nothing is missing")
