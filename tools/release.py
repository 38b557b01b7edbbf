"""Builds tidegate's sdist and wheel into dist/, and checks them where a user would have them: in an empty environment.

    make release            also asks for a section of this version in CHANGELOG.md, and for nothing unreleased in it
    make release DRAFT=1    only builds and checks

The version stands in pyproject.toml, and in the tag of the image in compose.yaml, which a test compares.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PACKAGE = ROOT / "include/tidegate"
IMPORT_S = 0.3
"""What `import tidegate` may take, of a processor: what else the machine does must not decide."""

SDIST = {"", "include", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}

# Run in the empty environment, by its Python, in a project that another environment has run.
LOOK = """
import importlib.metadata, importlib.util, json, sys
from tidegate import Pipeline, offline
table = offline.read_arrow("visits", "pages")
print(json.dumps({
    "rows": table.num_rows,
    "visits": sum(table.column("visits").to_pylist()),
    "without": [name for name in ("airflow", "pyspark", "great_expectations") if importlib.util.find_spec(name)],
    "entry_points": sorted(p.value for p in importlib.metadata.entry_points(group="airflow.plugins")),
    "extras": sorted(importlib.metadata.metadata("tidegate").get_all("Provides-Extra")),
    "version": importlib.metadata.version("tidegate"),
    "from": Pipeline.__module__ and sys.modules["tidegate"].__file__,
}))
"""
TIMED = "import time; before = time.process_time(); import tidegate; print(time.process_time() - before)"


class NotReleased(Exception):
    """What is wrong, and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the sdist and the wheel, and check them.")
    parser.add_argument("--draft", action="store_true", help="do not ask whether the changelog is ready")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        if not args.draft:
            check_changelog((ROOT / "CHANGELOG.md").read_text(), project["version"])
        wheel, sdist = build(project["version"])
        check_content(wheel, sdist)
        check_installed(wheel, project)
    except NotReleased as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for file in (sdist, wheel):
        print(f"release: {file.relative_to(ROOT)} ({file.stat().st_size / 1e6:.2f} MB)")
    print(f"release: all checked. Publish what is in dist/, then: git tag v{project['version']}")
    return 0


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def check_changelog(text: str, version: str) -> None:
    """Refuse a version without a section, and one that leaves changes unreleased."""
    sections = dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL))
    if version not in sections:
        raise NotReleased(f"CHANGELOG.md has no section [{version}].\n  Help: call [Unreleased] so, with the date")
    if sections.get("Unreleased", "").strip():
        raise NotReleased(
            f"CHANGELOG.md has unreleased changes, and pyproject.toml says {version}.\n  Help: raise the version there"
            " and in compose.yaml, and call the section so, with the date; or make release DRAFT=1"
        )


def build(version: str) -> tuple[Path, Path]:
    """Build the wheel from the sdist: what is missing in there would be missing in it."""
    say("building the sdist, and the wheel from it")
    shutil.rmtree(DIST, ignore_errors=True)
    hatchling = [sys.executable, "-m", "hatchling", "build"]
    run([*hatchling, "-t", "sdist", "-d", str(DIST)], cwd=ROOT)
    sdist = DIST / f"tidegate-{version}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        run([*hatchling, "-t", "wheel", "-d", str(DIST)], cwd=Path(folder, f"tidegate-{version}"))
    return DIST / f"tidegate-{version}-py3-none-any.whl", sdist


def check_content(wheel: Path, sdist: Path) -> None:
    """Both have each file of the package, and nothing else of the repository but what belongs to a package."""
    tracked = run(["git", "ls-files", "include/tidegate"], cwd=ROOT).split()
    wanted = {name.removeprefix("include/") for name in tracked}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    if wanted != found:
        raise NotReleased(f"the wheel lacks {sorted(wanted - found)}, and has in excess {sorted(found - wanted)}")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2].split("/")[0] for name in archive.getnames()}
    if excess := names - SDIST:
        raise NotReleased(f"the sdist has in excess {sorted(excess)}")


def check_installed(wheel: Path, project: dict[str, Any]) -> None:
    """Install the wheel without extras, and read a table in a project that this environment makes and runs."""
    with tempfile.TemporaryDirectory(prefix="tidegate-release-") as name:
        folder = Path(name)
        say("running a new project, for something to read")
        here = {**os.environ, "PYTHONPATH": str(ROOT / "include")}
        tidegate = [sys.executable, "-m", "tidegate"]
        run([*tidegate, "init", "shop"], cwd=folder, env=here)
        run([*tidegate, "run", "jobs.visits:pipeline", "--until-idle"], cwd=folder / "shop", env=here)
        run([*tidegate, "spark", "stop"], cwd=folder / "shop", env=here)
        say("installing the wheel into an empty environment")
        run([sys.executable, "-m", "venv", str(folder / "venv")])
        python = folder / "venv/bin/python"
        run([str(python), "-m", "pip", "install", "--quiet", str(wheel)])
        empty = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        found = json.loads(run([str(python), "-c", LOOK], cwd=folder / "shop", env=empty))
        checks = {
            "the version": (found["version"], project["version"]),
            "modules of extras": (found["without"], []),
            "the extras": (found["extras"], sorted(project["optional-dependencies"])),
            "the entry points": (
                found["entry_points"],
                sorted(project["entry-points"]["airflow.plugins"].values()),
            ),
            "rows and visits in a table": (found["rows"] > 0 and found["visits"] > 0, True),
        }
        for what, (is_so, should_be) in checks.items():
            if is_so != should_be:
                raise NotReleased(f"in an empty environment, {what}: {is_so}\n  Expected: {should_be}")
        for command in ("--version", "--help", "list", "read visits pages --limit 1"):
            run([str(folder / "venv/bin/tidegate"), *command.split()], cwd=folder / "shop", env=empty)
        seconds = min(float(run([str(python), "-c", TIMED], env=empty)) for _ in range(5))
        say(f"import tidegate takes {seconds:.2f} s (at most {IMPORT_S})")
        if seconds > IMPORT_S:
            raise NotReleased(f"import tidegate takes {seconds:.2f} s\n  Expected: at most {IMPORT_S} s")


def run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; show all of it if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise NotReleased(f"`{' '.join(command[:6])}` ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
