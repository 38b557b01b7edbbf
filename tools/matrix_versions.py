"""Runs a new project at the corners of the versions that tidegate supports, each in an environment of its own.

    make matrix-versions                     all corners, one after another
    make matrix-versions CORNER=4            one of them, by number or name
    make matrix-versions CORNER=4 WRITE=1    and what it found goes into docs/reference/versions.md

At each corner the wheel is installed with the extras airflow, spark and gates; `tidegate init` makes a project; its
test runs, with real Spark and a gate of Great Expectations; `tidegate up` makes two checkpoints under a real Airflow;
they are read back, and every record and file is verified. Then every optional part is installed, and it makes two more,
with Airflow's lineage going into a file. What is installed stays in .cache/matrix (FOLDER=/elsewhere).
Where nothing has to be fetched, a corner takes about two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = Path(os.environ.get("FOLDER") or ROOT / ".cache/matrix").absolute()
PAGE = ROOT / "docs/reference/versions.md"
START, END = "<!-- corners -->", "<!-- end of corners -->"
PATIENCE_S = 900
TOLD = ("apache-airflow", "pyspark", "delta-spark", "great-expectations", "deltalake", "pyarrow", "pandas", "obstore")


@dataclass(frozen=True)
class Corner:
    """One combination of versions."""

    python: str
    airflow: str
    spark: str
    then: str
    """Packages of Airflow's surroundings are not newer than this, if given: an old Airflow breaks with the newest of
    them, which its own constraints file would leave out."""

    @property
    def optional(self) -> str:
        """All extras. Airflow 3.0 and pyiceberg's SQL catalog need different versions of SQLAlchemy."""
        return EVERYTHING.replace("iceberg,", "") if self.airflow == "3.0" else EVERYTHING

    @property
    def name(self) -> str:
        return f"python{self.python}-airflow{self.airflow}-spark{self.spark}"


EVERYTHING = "airflow,spark,gates,kafka,avro,postgres,iceberg,sql,sqs,s3,lineage"

CORNERS = (
    Corner("3.10", "3.0", "4.0", "2025-10-15"),
    Corner("3.10", "3.3", "4.2", ""),
    Corner("3.12", "3.1", "4.1", "2026-04-15"),
    Corner("3.13", "3.0", "4.0", "2025-10-15"),
    Corner("3.13", "3.2", "4.1", "2026-06-15"),
    Corner("3.13", "3.3", "4.2", ""),
)
OURS = (
    "tidegate", "deltalake", "obstore", "pyspark", "delta-spark", "great-expectations", "pyarrow", "msgspec", "pytest",
    "apache-airflow-providers-openlineage", "apache-airflow-providers-common-compat",
    "apache-airflow-providers-common-sql", "openlineage-python", "openlineage-integration-common", "openlineage-sql",
    "sqlglot", "pyiceberg", "confluent-kafka", "adbc-driver-postgresql", "adbc-driver-manager", "fastavro", "boto3",
    "botocore",
)  # fmt: skip
"""These are of today at every corner."""


@dataclass
class Result:
    """What a corner showed."""

    corner: Corner
    versions: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


class StepFailed(Exception):
    """A step of a corner, and the end of what it said."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a new project at the corners of the supported versions.")
    parser.add_argument("--corner", metavar="NUMBER|NAME", help="one of them: " + ", ".join(c.name for c in CORNERS))
    parser.add_argument("--write", action="store_true", help="write what was found into docs/reference/versions.md")
    args = parser.parse_args()
    corners = [c for n, c in enumerate(CORNERS, 1) if args.corner in (None, str(n), c.name)]
    if not corners:
        parser.error(f"there is no corner {args.corner!r}")
    wheel = build_wheel()
    results = []
    for corner in corners:
        print(f"== {corner.name}", flush=True)
        results.append(run_corner(corner, wheel))
        said = results[-1].failed or f"passed, {sum(results[-1].seconds.values()):.0f} s"
        print(f"   {said}", flush=True)
    if args.write:
        write_page(results)
    passed = sum(not result.failed for result in results)
    print(f"{passed} passed, {len(results) - passed} failed")
    return 0 if passed == len(results) else 1


def build_wheel() -> Path:
    folder = PLACE / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    return next(folder.glob("*.whl"))


def run_corner(corner: Corner, wheel: Path) -> Result:
    result = Result(corner)
    home = PLACE / corner.name
    python = home / "venv/bin/python"
    project = home / "shop"
    shutil.rmtree(project, ignore_errors=True)
    for log in home.glob("*.log"):
        log.unlink()
    tidegate = [str(home / "venv/bin/tidegate")]
    env = environment(home)
    feed = f"{python} -m jobs.visits_feed"
    steps: dict[str, list[list[str]]] = {
        "install": [],
        "init": [[*tidegate, "init", str(project)], [*tidegate, "spark", "jars"]],
        "environment": [[*tidegate, "doctor", "--environment"]],
        "test": [[str(python), "-m", "pytest", "-q"]],
        "up": [[*tidegate, "up", "--checkpoints", "2", "--beside", feed]],
        "read": [
            [*tidegate, "read", "visits", "pages"],
            [str(python), "-c", "from tidegate import offline; assert offline.read_arrow('visits', 'pages').num_rows"],
            [*tidegate, "doctor", "jobs.visits:pipeline"],
        ],
    }
    lineage = home / "lineage.json"
    lineage.unlink(missing_ok=True)
    told = {"type": "file", "log_file_path": str(lineage), "append": True}
    with_lineage = env | {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(told)}
    steps |= {
        "install all": [install_commands(corner, wheel, home, extras=corner.optional)[-1]],
        "environment with all": steps["environment"],
        "up with all": [[*tidegate, "up", "--checkpoints", "2", "--beside", feed]],
        "read with all": [*steps["read"], [str(python), "-c", f"assert 'pages' in open({str(lineage)!r}).read()"]],
    }
    for step, commands in steps.items():
        before = time.monotonic()
        try:
            for command in commands or install_commands(corner, wheel, home):
                run(
                    command,
                    cwd=project if project.is_dir() else PLACE,
                    env=with_lineage if step == "up with all" else env,
                    log=home / f"{step}.log",
                )
        except StepFailed as error:
            result.failed = f"{step}: {error}"
            break
        finally:
            result.seconds[step] = time.monotonic() - before
            if step == "install" and python.is_file():
                result.versions = versions(python, env)
    if project.is_dir():
        subprocess.run([*tidegate, "spark", "stop", "--force"], cwd=project, env=env, capture_output=True)
    return result


def install_commands(corner: Corner, wheel: Path, home: Path, extras: str = "airflow,spark,gates") -> list[list[str]]:
    """Make the environment anew: one that is there would keep what it has, whatever the corner's limit is."""
    uv = str(ROOT / ".cache/uv/bin/uv")
    wanted = [
        f"tidegate[{extras}] @ {wheel.as_uri()}",
        f"apache-airflow~={corner.airflow}.0",
        f"pyspark[connect]~={corner.spark}.0",
        "pytest",
        "setuptools",
        "wheel",
    ]
    venv = home / "venv"
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(venv / "bin/python")]
    build = [[*install, "setuptools", "wheel"]]  # pyspark has no wheel; its build needs nothing newer than this
    more = ["--no-build-isolation-package", "pyspark", "--reinstall-package", "tidegate"]
    if corner.then:
        more += ["--exclude-newer", corner.then]
        more += [word for name in OURS for word in ("--exclude-newer-package", f"{name}=2999-01-01")]
    make = [uv, "venv", "--quiet", "--clear", "--python", find_python(corner.python), str(venv)]
    return [make, *build, [*install, *more, *wanted]]


def find_python(version: str) -> str:
    """Return a Python of this version: one on the path that runs, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for program in (f"python{version}", *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))):
        with contextlib.suppress(OSError):
            ask = [program, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
            if subprocess.run(ask, capture_output=True, text=True).stdout.strip() == version:
                return program
    raise StepFailed(f"there is no Python {version}: put it on the PATH as python{version}, or install it by pyenv")


def environment(home: Path) -> dict[str, str]:
    """Nothing of this checkout, and nothing of another Airflow or project."""
    home.mkdir(parents=True, exist_ok=True)
    foreign = ("AIRFLOW", "TIDEGATE_", "PYTHON", "VIRTUAL_ENV", "SPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{home / 'venv/bin'}{os.pathsep}{kept['PATH']}"
    cache = Path(kept.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept.setdefault("UV_CACHE_DIR", str(cache / "uv"))
    return kept | {"XDG_CACHE_HOME": str(PLACE / "cache"), "PATH": path}


def run(command: list[str], *, cwd: Path, env: dict[str, str], log: Path) -> None:
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(command)}\n".encode())
        file.flush()
        try:
            code = subprocess.run(command, cwd=cwd, env=env, stdout=file, stderr=file, timeout=PATIENCE_S).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StepFailed(f"{type(error).__name__} (see {log})") from error
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise StepFailed(f"exit code {code}: {lines[-1][:200]} (see {log})")


def versions(python: Path, env: dict[str, str]) -> dict[str, str]:
    """Return what was installed."""
    ask = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {TOLD!r}}}))"
    done = subprocess.run([str(python), "-c", ask], env=env, capture_output=True, text=True)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def write_page(results: list[Result]) -> None:
    """Put the rows of these corners into the table of docs/reference/versions.md; rows of others stay."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(f"{START}(.*){END}", text, re.DOTALL)
    assert found is not None, f"{PAGE} has no table"
    rows = {corner_of(row): row for row in re.findall(r"^\| \d.*$", found[1], re.MULTILINE)}
    rows |= {result.corner.name: row_of(result) for result in results}
    head = ["| Python | Airflow | Spark | the rest | result |", "| --- | --- | --- | --- | --- |"]
    table = [*head, *(rows[corner.name] for corner in CORNERS if corner.name in rows)]
    text = text.replace(found[0], "\n".join([START, *table, END]))
    PAGE.write_text(text, encoding="utf-8")


def row_of(result: Result) -> str:
    rest = ", ".join(f"{name} {result.versions[name]}" for name in TOLD[2:] if name in result.versions)
    airflow = result.versions.get("apache-airflow", result.corner.airflow)
    spark = result.versions.get("pyspark", result.corner.spark)
    said = "passes" if not result.failed else f"fails at {result.failed.partition(':')[0]}"
    day = datetime.now(timezone.utc).date()
    return f"| {result.corner.python} | {airflow} | {spark} | {rest} | {said}, {day} |"


def corner_of(row: str) -> str:
    """Return the name of the corner that a row of the table tells of."""
    python, airflow, spark = (".".join(cell.strip().split(".")[:2]) for cell in row.split("|")[1:4])
    return Corner(python, airflow, spark, "").name


if __name__ == "__main__":
    sys.exit(main())
