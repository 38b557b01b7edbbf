"""`tidegate init`: an empty folder becomes a project that runs, or an Airflow project gets its first pipeline."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.project.files import check_module_name, rendered, write_new
from tidegate.cli.project.new import pipeline_files, write_first_input
from tidegate.cli.targets import program
from tidegate.config import FILE_NAME
from tidegate.errors import Invalid, Rejected

__all__ = ["add_parser", "run"]

_PIPELINE = "visits"
_REQUIREMENT = re.compile(r"^\s*tidegate\b", re.MULTILINE)
_JAVA = "openjdk-17-jre-headless"


def add_parser(subparsers: Any) -> None:
    """Declare the command and its arguments."""
    parser = subparsers.add_parser(
        "init",
        help="make a project that runs, in a new folder or in an Airflow project that is there",
        description="Make the folder NAME a project: a pipeline with its DAG, suite, feed and test, settings, a "
        "Dockerfile and a compose.yaml. Or, with --into, add a pipeline to a project that is there, of Astro's layout "
        "or of Airflow's own. Overwrites nothing.",
        epilog="examples:\n  tidegate init shop\n  tidegate init --into .\n  tidegate init --into . --pipeline orders",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the new folder, which becomes the project")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="a project that is there, such as .")
    parser.add_argument(
        "--pipeline", default=_PIPELINE, metavar="NAME", help=f"the name of its first pipeline ({_PIPELINE})"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Write the files, and say how to run the project."""
    if (args.name is None) == (args.into is None):
        raise Invalid(
            "say which folder becomes a project" if args.name is None else "NAME and --into exclude each other",
            expected="the name of a new folder, or --into with one that is there",
            help=f"{program()} init shop, or in an Airflow project: {program()} init --into .",
            reason="USAGE",
        )
    pipeline = check_module_name(args.pipeline)
    if args.into is None:
        return _make(Path(args.name), pipeline, out)
    return _add(args.into, pipeline, out)


def _make(folder: Path, pipeline: str, out: Output) -> int:
    if folder.is_dir() and any(folder.iterdir()):
        raise Rejected(
            f"{folder} is not empty",
            expected="a new folder, or an empty one",
            help=f"choose another name; in a project that is there: {program()} init --into {folder}",
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
    """Add to a project: what is there stays as it is, and what has to be changed by hand is told."""
    if not folder.is_dir():
        raise Invalid(
            f"{folder} is not a folder",
            expected="the folder of an Airflow project, which has dags/ or airflow.cfg",
            help=f"make a new project: {program()} init {folder.name or 'shop'}",
            reason="NO_SUCH_FOLDER",
        )
    folder = folder.resolve()
    shared = {FILE_NAME: rendered(f"project/{FILE_NAME}", pipeline)}
    written = write_new(folder, shared | pipeline_files(pipeline), kept=[FILE_NAME, "tests/conftest.py"])
    write_first_input(folder, pipeline)
    todo = list(_by_hand(folder))
    _show(folder, written, todo, out)
    for number, (what, why) in enumerate(todo, 1):
        out.line(f"{number}. {what}", "bold")
        out.line(f"   {why}")
    out.line(f'Try it without your Airflow:  {program()} up {pipeline} --beside "python -m jobs.{pipeline}_feed"')
    return 0


def _by_hand(folder: Path) -> list[tuple[str, str]]:
    """Return what is left to do in files of yours: what, and why."""
    todo = []
    extras = "tidegate[spark,gates]"
    requirements = folder / "requirements.txt"
    if not requirements.is_file() or not _REQUIREMENT.search(requirements.read_text(encoding="utf-8")):
        todo.append((f"Add to requirements.txt: {extras}", "your Airflow stays of the version that you have"))
    packages = folder / "packages.txt"
    if packages.is_file():  # Astro's layout
        if "jre" not in packages.read_text(encoding="utf-8") and "jdk" not in packages.read_text(encoding="utf-8"):
            todo.append((f"Add to packages.txt: {_JAVA}", "Spark needs Java where its jobs run"))
        todo.append(("Add to the Dockerfile: RUN tidegate spark jars", "tasks of Airflow fetch no jars themselves"))
    else:
        todo.append(("Run once: tidegate spark jars", "tasks of Airflow fetch no jars themselves"))
    ignore = folder / ".gitignore"
    if (folder / ".git").exists() and (not ignore.is_file() or "/data/" not in ignore.read_text(encoding="utf-8")):
        todo.append(("Add to .gitignore: /data/ and /.tidegate/", "records, tables and logs are there"))
    config = folder / "airflow.cfg"
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    dags = re.search(r"^dags_folder\s*=\s*(.+)$", text, re.MULTILINE)
    if dags is not None and Path(dags[1].strip()) != folder / "dags":
        todo.append((f"Let dags_folder of airflow.cfg be {folder / 'dags'}", f"it is {dags[1].strip()} now"))
    return todo


def _show(folder: Path, written: list[str], todo: list[tuple[str, str]], out: Output) -> None:
    out.document({"folder": str(folder), "written": written, "by_hand": [{"what": a, "why": b} for a, b in todo]})
    out.line(f"Written in {folder}:")
    for file in written:
        out.line(f"  {file}")


def _image_name(folder: Path) -> str:
    """Return a name that Docker takes."""
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
