"""`tidegate new`: start a pipeline, a suite, a source or a sink in this project, with a test for it; or a workflow."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tidegate.cli.output import Output
from tidegate.cli.project.files import check_module_name, check_pipeline_name, rendered, write_new
from tidegate.cli.targets import program
from tidegate.config import load_settings
from tidegate.errors import Unavailable

__all__ = ["add_parser", "pipeline_files", "run", "write_first_input"]

_KINDS: Final = {
    "pipeline": (
        "start a pipeline: its code, DAG, suite, feed and test",
        "Write jobs/NAME.py, a pipeline that runs; dags/NAME.py, its DAG; include/expectations/NAME.yaml, its gate's "
        "expectations; jobs/NAME_feed.py, which writes its input; and tests/test_NAME.py.",
    ),
    "suite": (
        "start a suite of expectations",
        "Write include/expectations/NAME.yaml, a suite to start from. (`tidegate suite init` does the same.)",
    ),
    "source": (
        "start a custom source, with its contract test",
        "Write jobs/NAME.py, a source that reads a SQLite table, for you to change; and tests/test_NAME.py, which "
        "tests the contract of all sources. With --infer: print the declaration of a source for files like these.",
    ),
    "sink": (
        "start a custom sink, with its contract test",
        "Write jobs/NAME.py, a sink that adds rows to a SQLite table, for you to change; and tests/test_NAME.py, which "
        "tests the contract of all sinks.",
    ),
    "ci": (
        "start a workflow that proposes each change of a pipeline",
        "Write .github/workflows/propose-NAME.yml and .gitlab/propose-NAME.yml, which run `tidegate propose` for each "
        "pull request and comment it with the report; and, in .github/workflows/accept-NAME.yml and the same file of "
        "GitLab, what accepts it after the merge. Keep what you need.",
    ),
}
_SHARED = ("tests/conftest.py",)


def add_parser(subparsers: Any) -> None:
    """Declare the command and its arguments."""
    parser = subparsers.add_parser(
        "new",
        help="start a pipeline, suite, source, sink or workflow in this project",
        description="Write the first files of a new part: it runs, and has a test. Nothing is overwritten.",
        epilog="examples:\n  tidegate new pipeline orders\n  tidegate new suite orders\n  tidegate new source tickets\n"
        "  tidegate new source orders --infer landing/orders/2026-11-30.json\n"
        "  tidegate new sink warehouse\n  tidegate new ci orders",
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=type(parser))
    for kind, (summary, description) in _KINDS.items():
        each = kinds.add_parser(kind, help=summary, description=description)
        each.add_argument("name", metavar="NAME", help="its name, also of its module: lower-case letters, digits, _")
        if kind == "source":
            each.add_argument(
                "--infer",
                nargs="+",
                metavar="FILE",
                help="write nothing: print a declaration with the schema of these files of JSON, CSV or Parquet",
            )


def run(args: argparse.Namespace, out: Output) -> int:
    """Write the files into the project's folder, and print what to do next."""
    name = (check_pipeline_name if args.kind == "pipeline" else check_module_name)(args.name)
    if args.kind == "source" and args.infer:
        return _print_declaration(name, args.infer, out)
    project = load_settings(args.settings).project
    if args.kind == "suite":
        from tidegate.cli.quality import suite

        args.verb = "init"
        return suite.run(args, out)
    texts = _files(args.kind, name)
    written = write_new(project, texts, kept=_SHARED)
    out.document({"kind": args.kind, "name": name, "folder": str(project), "written": written})
    for file in written:
        out.line(f"  {file}")
    if args.kind == "pipeline":
        write_first_input(project, name)
        out.line(f'Run it:  {program()} up --beside "python -m jobs.{name}_feed"', "bold")
    elif args.kind == "ci":
        out.line(f"Try it:  {program()} propose jobs.{name}:pipeline --over 24 --into report.md", "bold")
    else:
        out.line("Test it:  pytest " + str(Path("tests", f"test_{name}.py")), "bold")
    return 0


def _print_declaration(name: str, files: list[str], out: Output) -> int:
    from tidegate.cli.project.infer import declaration, infer

    inferred = infer(files)
    text = declaration(name, inferred)
    out.document({"kind": "source", "name": name, **asdict(inferred), "declaration": text})
    out.line(text.rstrip())
    if not inferred.is_all:
        out.line(f"Only the first {inferred.records:,} records were looked at.", "yellow")
    return 0


def _files(kind: str, name: str) -> dict[str, str]:
    if kind == "pipeline":
        return pipeline_files(name)
    if kind == "ci":
        return {
            f".github/workflows/propose-{name}.yml": rendered("ci/github.yml.txt", name),
            f".github/workflows/accept-{name}.yml": rendered("ci/github-accept.yml.txt", name),
            f".gitlab/propose-{name}.yml": rendered("ci/gitlab.yml.txt", name),
        }
    return _connector_files(kind, name)


def pipeline_files(name: str) -> dict[str, str]:
    """Return the files of a pipeline, by name."""
    files = {
        f"jobs/{name}.py": "job.py.txt",
        f"jobs/{name}_feed.py": "feed.py.txt",
        f"dags/{name}.py": "dag.py.txt",
        f"include/expectations/{name}.yaml": "suite.yaml.txt",
        f"tests/test_{name}.py": "test.py.txt",
        "tests/conftest.py": "conftest.py.txt",
    }
    return {file: rendered(f"pipeline/{template}", name) for file, template in files.items()}


def write_first_input(project: Path, name: str) -> None:
    """Let the feed write the visits of the last two minutes, so that the first checkpoint has input."""
    command = [sys.executable, "-m", f"jobs.{name}_feed", "--files", "12"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Unavailable(
            f"the files are written, but the feed of the example cannot write its input: {last}",
            expected="a folder `data` that this user may write to, as tidegate.toml names it",
            help=f"correct that, then: python -m jobs.{name}_feed --files 12",
            reason="NO_INPUT",
        )


def _connector_files(kind: str, name: str) -> dict[str, str]:
    return {
        f"jobs/{name}.py": rendered(f"{kind}/{kind}.py.txt", name),
        f"tests/test_{name}.py": rendered(f"{kind}/test.py.txt", name),
        "tests/conftest.py": rendered("pipeline/conftest.py.txt", name),
    }
