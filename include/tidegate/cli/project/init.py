"""`tidegate init`: creates a project that runs, or adds a first pipeline to an Airflow project."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.project.files import check_pipeline_name, rendered, write_new
from tidegate.cli.project.new import pipeline_files, write_first_input
from tidegate.cli.targets import program
from tidegate.config import FILE_NAME
from tidegate.errors import Invalid, Rejected

__all__ = ["add_parser", "run"]

_PIPELINE = "visits"
_REQUIREMENT = re.compile(r"^\s*tidegate\b", re.MULTILINE)
_JAVA = "default-jre-headless"
"""A package of every Debian; newer ones have no Java 17."""
_DAGS_FOLDER = "AIRFLOW__CORE__DAGS_FOLDER"
_CONFTEST = "tests/conftest.py"


def add_parser(subparsers: Any) -> None:
    """Declare the command and its arguments."""
    parser = subparsers.add_parser(
        "init",
        help="create a project that runs, in a new folder or in an existing Airflow project",
        description="Create a project in the folder NAME: a pipeline with its DAG, suite, feed and test, settings, a "
        "Dockerfile and a compose.yaml. Or, with --into, add a pipeline to an existing project in Astro's layout or "
        "Airflow's own. Nothing is overwritten.",
        epilog="examples:\n  tidegate init shop\n  tidegate init --into .\n  tidegate init --into . --pipeline orders",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the folder of the new project")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="an existing project, such as .")
    parser.add_argument(
        "--pipeline", default=_PIPELINE, metavar="NAME", help=f"the name of its first pipeline ({_PIPELINE})"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Write the files, and print how to run the project."""
    if (args.name is None) == (args.into is None):
        raise Invalid(
            "the folder of the project is missing" if args.name is None else "NAME and --into exclude each other",
            expected="the name of a new folder, or --into with an existing project",
            help=f"{program()} init shop, or in an Airflow project: {program()} init --into .",
            reason="USAGE",
        )
    pipeline = check_pipeline_name(args.pipeline)
    if args.into is None:
        return _make(Path(args.name), pipeline, out)
    return _add(args.into, pipeline, out)


def _make(folder: Path, pipeline: str, out: Output) -> int:
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise Rejected(
            f"{folder} is not empty" if folder.is_dir() else f"{folder} is a file",
            expected="a new folder, or an empty one",
            help=f"choose another name; in an existing project: {program()} init --into {folder}",
            reason="THERE",
        )
    written = write_new(folder, _project_files(pipeline, _image_name(folder)) | pipeline_files(pipeline))
    write_first_input(folder, pipeline)
    _show(folder, written, [], out)
    out.line("Run it:", "bold")
    out.line(f"  cd {folder}")
    out.line(f'  {program()} up --beside "python -m jobs.{pipeline}_feed"')
    return 0


def _add(folder: Path, pipeline: str, out: Output) -> int:
    """Add a pipeline to a project. Existing files stay as they are; print the changes that the user must make."""
    if not folder.is_dir():
        raise Invalid(
            f"{folder} is not a folder",
            expected="the folder of an Airflow project, which has dags/ or airflow.cfg",
            help=f"create a new project: {program()} init {folder.name or 'shop'}",
            reason="NO_SUCH_FOLDER",
        )
    folder = folder.resolve()
    _refuse_foreign_jobs_package(folder)
    data = "include/data" if _is_astro(folder) else "data"
    shared = {FILE_NAME: rendered(f"project/{FILE_NAME}", pipeline, data=data)}
    written = write_new(folder, shared | pipeline_files(pipeline), kept=[FILE_NAME, _CONFTEST])
    write_first_input(folder, pipeline)
    if _is_astro(folder):
        others = _of_astro(folder, data)
    else:
        others = _of_airflow(folder, pipeline, data)
    todo = [*_packages(folder), *others]
    if _text(folder / _CONFTEST) != pipeline_files(pipeline)[_CONFTEST]:
        todo.append((f"Test it by: python -m pytest tests/test_{pipeline}.py", f"your {_CONFTEST} stays as it is"))
    _show(folder, written, todo, out)
    for number, (change, why) in enumerate(todo, 1):
        out.line(f"{number}. {change}", "bold")
        out.line(f"   {why}")
    out.line(f'Try it without your Airflow:  {program()} up {pipeline} --beside "python -m jobs.{pipeline}_feed"')
    return 0


def _refuse_foreign_jobs_package(folder: Path) -> None:
    """Refuse a project in which Python would import something else as `jobs`."""
    if (folder / "jobs.py").is_file():
        raise Rejected(
            f"{folder / 'jobs.py'} would be imported instead of the folder jobs/",
            expected="a project in which `jobs` is a folder, or nothing yet",
            help="rename that file, also where it is imported",
            reason="THERE",
        )


def _is_astro(folder: Path) -> bool:
    return (folder / ".astro").is_dir() or (folder / "packages.txt").is_file()


def _packages(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the changes that the user must make in their own files, with the reasons."""
    if not _REQUIREMENT.search(_text(folder / "requirements.txt")):
        yield "Add to requirements.txt: tidegate[spark,gates]", "your version of Airflow does not change"


def _of_astro(folder: Path, data: str) -> Iterator[tuple[str, str]]:
    """Yield the changes in a project of Astro's layout. `astro dev start` builds an image of the whole folder, and
    shares four folders with its containers."""
    if not re.search(r"\b(jre|jdk)\b", _text(folder / "packages.txt")):
        yield f"Add to packages.txt: {_JAVA}", "Spark needs Java where its jobs run"
    if "tidegate spark jars" not in _text(folder / "Dockerfile"):
        yield "Add to the Dockerfile: RUN tidegate spark jars", "Airflow's tasks do not fetch jars"
    for name in (".dockerignore", ".gitignore"):
        if f"{data}/" not in _text(folder / name):
            yield f"Add to {name}: {data}/", "records and tables are there, in a folder that all containers share"
    yield (
        "After a change of jobs/ or tidegate.toml: astro dev restart",
        "only dags/, include/, plugins/ and tests/ are shared with the containers; in production, root and data "
        "should be in an object store",
    )


def _of_airflow(folder: Path, pipeline: str, data: str) -> Iterator[tuple[str, str]]:
    yield "Run once: tidegate spark jars", "Airflow's tasks do not fetch jars"
    if (folder / ".git").exists() and f"/{data}/" not in _text(folder / ".gitignore"):
        yield f"Add to .gitignore: /{data}/ and /.tidegate/", "records, tables and logs are there"
    where, dags = _dags_folder(folder)
    if dags is not None and dags.resolve() != folder / "dags":
        yield f"Run: ln -s {folder / 'dags' / pipeline}.py {dags}/", f"Airflow looks for DAGs there, by {where}"


def _dags_folder(folder: Path) -> tuple[str, Path | None]:
    """Return the name of the setting of Airflow's DAGs folder, and the folder, as far as known without Airflow."""
    if configured := os.environ.get(_DAGS_FOLDER):
        return _DAGS_FOLDER, Path(configured)
    home = Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow")
    for config in (folder / "airflow.cfg", home / "airflow.cfg"):
        if match := re.search(r"^dags_folder\s*=\s*(.+)$", _text(config), re.MULTILINE):
            return str(config), Path(os.path.expandvars(match[1].strip())).expanduser()
    return "", None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _show(folder: Path, written: list[str], todo: list[tuple[str, str]], out: Output) -> None:
    out.document({"folder": str(folder), "written": written, "by_hand": [{"what": a, "why": b} for a, b in todo]})
    out.line(f"Written in {folder}:")
    for file in written:
        out.line(f"  {file}")


def _image_name(folder: Path) -> str:
    """Return a valid name for a Docker image."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "project"


def _project_files(pipeline: str, project: str) -> dict[str, str]:
    files = {
        FILE_NAME: FILE_NAME,
        "README.md": "README.md",
        "requirements.txt": "requirements.txt",
        ".gitignore": "gitignore",
        ".dockerignore": "dockerignore",
        "Dockerfile": "Dockerfile",
        "compose.yaml": "compose.yaml",
        "tools/compose_secrets.py": "compose_secrets.py.txt",
    }
    return {file: rendered(f"project/{template}", pipeline, project) for file, template in files.items()}
