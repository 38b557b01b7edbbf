"""A job as a separate Spark application: the command line of spark-submit, and the result.

The driver (execution/submitted.py) runs in client mode, on the machine of the task that started it: it sees the same
ledger, and ends with the task. Executors run where the master has workers. They get tidegate and the user's modules
from the driver (shipping.py), and must see the pipeline's data under the same paths, or reach its object store.

    request.json        the job, its checkpoint, and where its pipeline is declared
    spark.properties    Spark's configuration, because `ps` would show it on the command line
    run_job.py          the submitted script, unless the project has jobs/run_job.py
    error.json          written by the driver if the job fails
    scratch/            Spark's temporary files
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, TidegateError, Unavailable, name_of, quoted_text
from tidegate.records import typed
from tidegate.spark.conf import SparkSettings, properties, server_conf
from tidegate.spark.installation import spark_home
from tidegate.spark.server.server import environment

__all__ = ["ERROR_FILE", "REQUEST_FILE", "DriverFailure", "DriverRequest", "Submission", "prepared"]

REQUEST_FILE = "request.json"
ERROR_FILE = "error.json"
_APPLICATION = Path("jobs") / "run_job.py"
_SCRIPT = """from tidegate.execution.submitted import main

main()
"""
_KINDS = {kind.kind: kind for kind in (Corrupt, Fenced, Invalid, Rejected, Unavailable)}


class DriverRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The driver's instructions."""

    pipeline: str
    declared_in: list[tuple[str, str]]
    """Pairs of module and file, the most likely one first."""
    project: str
    checkpoint: int
    job: str
    python_path: list[str] = []
    """The folders with the user's modules."""
    task: dict[str, str | int] | None = None
    """The process (spark/server/processes.py) with which the driver ends."""


class DriverFailure(msgspec.Struct, forbid_unknown_fields=True):
    """Why the driver failed. An empty kind is an unexpected error."""

    kind: str
    what: str
    expected: str = ""
    help: str = ""
    reason: str = ""
    quoted: str = ""

    @classmethod
    def from_error(cls, error: Exception) -> DriverFailure:
        """Return the record of an error, from which the task can raise it again."""
        if isinstance(error, TidegateError):
            return cls(error.kind, error.what, error.expected, error.help, error.reason, error.quoted)
        return cls("", name_of(error), quoted=quoted_text(error))

    def error(self) -> Exception:
        """Return the recorded error."""
        if self.kind not in _KINDS:
            return Unavailable(
                f"the submitted job failed: {self.what}",
                help="the task's log shows where. It is retried according to `restart`",
                reason="UNFORESEEN",
                quoted=self.quoted,
            )
        kind = _KINDS[self.kind]
        return kind(self.what, expected=self.expected, help=self.help, reason=self.reason, quoted=self.quoted)


@dataclass(frozen=True)
class Submission:
    """The command line and environment; afterwards, the driver's answer."""

    folder: Path
    master: str
    application: Path
    name: str
    environment: dict[str, str]

    @property
    def properties_file(self) -> Path:
        return self.folder / "spark.properties"

    def error(self, output: str) -> Exception:
        """Return the error for a missing ack. output: the end of spark-submit's output, used if the driver wrote no
        error."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return typed.decode((self.folder / ERROR_FILE).read_bytes(), DriverFailure).error()
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        for line in lines:
            if line.startswith("Error: "):
                return Invalid(
                    f"spark-submit refuses: {line[7:]}", help="correct the Spark settings", reason="SPARK_SUBMIT"
                )
        exceptions = [line for line in lines if "Exception" in line]
        messages = exceptions or lines[-1:] or ["nothing"]
        return Unavailable(
            f"spark-submit ended before the job did. It printed: {messages[0][:300]}",
            help=f"see that the master {self.master} runs, and try again; the task's log has the whole output",
            reason="SPARK_SUBMIT",
        )


@contextlib.contextmanager
def prepared(settings: SparkSettings, request: DriverRequest) -> Iterator[Submission]:
    """Yield everything that spark-submit needs, in a folder that only this user can read."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-submit-"))
    try:
        name = f"tidegate {request.pipeline} {request.checkpoint} {request.job}"
        settings = _with_modules(settings, request)
        request = msgspec.structs.replace(request, python_path=list(map(str, settings.python_path)))
        variables = _variables(replace(settings, login={}))  # the driver looks it up by itself
        submission = Submission(folder, settings.master, _application(request, folder), name, variables)
        (folder / REQUEST_FILE).write_bytes(msgspec.json.encode(request))
        conf = _conf(settings, folder / "scratch", variables["PYTHONPATH"]) | {"spark.app.name": name}
        submission.properties_file.write_text(properties(conf), encoding="utf-8")
        yield submission
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _application(request: DriverRequest, folder: Path) -> Path:
    """Return the project's jobs/run_job.py, where users may set up their own things, or a minimal script."""
    project_file = Path(request.project) / _APPLICATION
    if project_file.is_file():
        return project_file
    script = folder / _APPLICATION.name
    script.write_text(_SCRIPT, encoding="utf-8")
    return script


def _conf(settings: SparkSettings, scratch: Path, python_path: str) -> dict[str, str]:
    """Return the settings of server and session together, because the application has only one session."""
    conf = {}
    for key, value in server_conf(settings, scratch).items():
        if ".connect." not in key:
            conf[key] = value
    workers = {"spark.executorEnv.PYTHONPATH": python_path, "spark.executorEnv.TZ": "UTC"}
    # server_conf has merged the user's values of these lists.
    merged = ("spark.jars", "spark.sql.extensions")
    user_conf = {key: value for key, value in settings.conf.items() if key not in merged}
    return conf | workers | user_conf | {"spark.submit.deployMode": "client"}


def _variables(settings: SparkSettings) -> dict[str, str]:
    variables = {"SPARK_ROWS_LOG_LEVEL": "off"} | environment(settings)  # Airflow logs the driver's output
    # The hook calls spark-submit by its name.
    return variables | {"PATH": os.pathsep.join([str(spark_home() / "bin"), variables.get("PATH", os.defpath)])}


def _with_modules(settings: SparkSettings, request: DriverRequest) -> SparkSettings:
    """Return the settings with an import path on which driver and workers find the same modules as this process."""
    python_path = dict.fromkeys(settings.python_path)
    for module, file in request.declared_in:
        root = _root(module, file)
        if root is not None:
            python_path[root] = None
    return replace(settings, python_path=tuple(python_path))


def _root(module: str, file: str) -> Path | None:
    """Return the folder on the import path from which `file` is `module`."""
    parts = module.split(".")
    path = Path(file).with_suffix("")
    if path.name == "__init__":
        path = path.parent
    if path.parts[-len(parts) :] != tuple(parts):
        return None
    return path.parents[len(parts) - 1]
