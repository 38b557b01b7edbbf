"""What `tidegate up` asks Airflow, over its REST API on loopback: is it up, which DAGs and runs are there."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.cli.up.home import USER, Home
from tidegate.errors import Invalid, Unavailable
from tidegate.records.names import NAME

__all__ = ["TAG", "Airflow", "Dag", "DagRun", "broken", "failure"]

TAG = "tidegate"
"""What every DAG of build_dag is tagged with."""

_TIMEOUT_S = 20.0
_HEALTH_S = 10.0
_LINE = 500
_TRACE_LINES = 12


@dataclass(frozen=True)
class Dag:
    """A DAG that is a pipeline."""

    id: str
    pipeline: str
    paused: bool
    next_run: str | None


@dataclass(frozen=True)
class DagRun:
    """A DAG run."""

    dag: str
    id: str
    state: str

    @property
    def active(self) -> bool:
        return self.state in ("queued", "running")


class Airflow:
    """The REST API of one Airflow."""

    def __init__(self, url: str, password: str) -> None:
        self.url = url
        self._password = password
        self._token = ""
        # No proxy that the environment names is asked for what is on loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def not_ready(self) -> str:
        """Which parts of it are not up yet, in words; empty when all are."""
        try:
            health = self._call("GET", "/monitor/health", token=False)
        except Unavailable:
            return "API server"
        parts = ("scheduler", "dag_processor", "triggerer")
        return ", ".join(part.replace("_", " ") for part in parts if health[part]["status"] != "healthy")

    def heartbeats(self) -> dict[str, datetime | None]:
        """When each component but the API server last said that it is at work, as far as it ever did."""
        health = self._call("GET", "/monitor/health", token=False, timeout=_HEALTH_S)
        names = {"scheduler": "scheduler", "dag_processor": "dag-processor", "triggerer": "triggerer"}
        told = {name: (health.get(key) or {}).get(f"latest_{key}_heartbeat") for key, name in names.items()}
        return {name: datetime.fromisoformat(beat) if beat else None for name, beat in told.items()}

    def waiting_tasks(self) -> tuple[dict[str, str], int]:
        """Tasks that were given to the executor and are not at work, by id; and how many are at work."""
        path = "/dags/~/dagRuns/~/taskInstances?limit=100&state="
        queued = self._call("GET", f"{path}queued")["task_instances"]
        running = self._call("GET", f"{path}running")["total_entries"]
        return {each["id"]: f"task {each['task_id']} of DAG {each['dag_id']}" for each in queued}, int(running or 0)

    def dags(self) -> list[Dag]:
        """All DAGs that are pipelines."""
        found = self._call("GET", f"/dags?tags={TAG}&limit=100&exclude_stale=true")["dags"]
        return [Dag(dag["dag_id"], _pipeline(dag), dag["is_paused"], dag.get("next_dagrun_run_after")) for dag in found]

    def unpause(self, dag: Dag) -> None:
        self._call("PATCH", f"/dags/{_quoted(dag.id)}?update_mask=is_paused", {"is_paused": False})

    def trigger(self, dag: Dag) -> str:
        """One more run, now; answers with its id."""
        made = self._call("POST", f"/dags/{_quoted(dag.id)}/dagRuns", {"logical_date": None, "conf": {}})
        return str(made["dag_run_id"])

    def details(self, dag: Dag, run: str) -> dict[str, Any]:
        """All that Airflow tells of a run."""
        return dict(self._call("GET", f"/dags/{_quoted(dag.id)}/dagRuns/{_quoted(run)}"))

    def runs(self, dag: Dag) -> list[DagRun]:
        """Its runs, the latest first."""
        found = self._call("GET", f"/dags/{_quoted(dag.id)}/dagRuns?order_by=-id&limit=50")["dag_runs"]
        return [DagRun(dag.id, run["dag_run_id"], run["state"]) for run in found]

    def import_errors(self) -> dict[str, str]:
        """DAG files that cannot be read: the file, and the end of what Python says."""
        found = self._call("GET", "/importErrors?limit=100")["import_errors"]
        return {error["filename"]: _tail(error["stack_trace"]) for error in found}

    def failed_tasks(self, run: DagRun) -> list[tuple[str, int]]:
        """Its failed tasks in the order in which they ended, each with the number of its last try."""
        path = f"/dags/{_quoted(run.dag)}/dagRuns/{_quoted(run.id)}/taskInstances?state=failed&order_by=end_date"
        return [(task["task_id"], task["try_number"]) for task in self._call("GET", path)["task_instances"]]

    def _call(
        self, method: str, path: str, body: object = None, *, token: bool = True, timeout: float = _TIMEOUT_S
    ) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {self._token or self._log_in()}"
        request = urllib.request.Request(
            f"{self.url}{'/api/v2' if not path.startswith('/auth') else ''}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 401 and token and self._token:  # it is valid for a day
                self._token = ""
                return self._call(method, path, body)
            raise Unavailable(
                f"Airflow answers {error.code} to {method} {path}: {error.read(500).decode(errors='replace')}",
                help="its log is in the folder that `tidegate up` names at its start; start `tidegate up` again",
                reason="AIRFLOW_ANSWER",
            ) from error
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"Airflow's API server does not answer: {error}",
                help="`tidegate up` starts it again if it has ended; its log is where the start said",
                reason="AIRFLOW_SILENT",
            ) from error

    def _log_in(self) -> str:
        body = {"username": USER, "password": self._password}
        self._token = self._call("POST", "/auth/token", body, token=False)["access_token"]
        return self._token


def failure(airflow: Airflow, home: Home, run: DagRun) -> str:
    """Why a run failed: its first failed task and the end of what that has said."""
    for task, attempt in airflow.failed_tasks(run)[:1]:
        log = home.task_log(run.dag, run.id, task, attempt)
        said = "\n".join(f"  {line}" for line in _said(log))
        return f"task {task} failed, try {attempt}. The end of its log ({log}):\n{said}"
    return "Airflow ended it without a failed task: it was marked as failed, or it could not be started"


def broken(errors: dict[str, str]) -> Invalid:
    """What to say of DAG files that cannot be read."""
    told = "\n".join(f"{file}:\n{trace}" for file, trace in errors.items())
    return Invalid(
        f"{'a DAG file' if len(errors) == 1 else f'{len(errors)} DAG files'} cannot be read: {told}",
        expected="files in dags/ that Python can import",
        help="correct it and start again",
        reason="BROKEN_DAG",
    )


def _pipeline(dag: dict[str, Any]) -> str:
    """The pipeline's name: the DAG's, unless it was given another id; then it is told by a tag."""
    names = [tag["name"] for tag in dag["tags"] if tag["name"] != TAG and NAME.fullmatch(tag["name"])]
    return str(dag["dag_id"] if dag["dag_id"] in names or not names else names[0])


def _said(log: Any) -> Iterator[str]:
    """A task's log, which is JSON by lines, as a person reads it: messages and errors, without their frames."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
    except OSError:
        yield "(it cannot be read)"
        return
    for line in lines[-_TRACE_LINES:]:
        try:
            record = json.loads(line)
        except ValueError:
            record = {"event": line}
        said = str(record.get("event", ""))
        # The UI folds what is between ::group:: marks. Spark's client tells each error by itself first, as JSON and
        # with its whole plan; what the task raises says the same in a line.
        if said.startswith(("::group::", "::endgroup::", "{")) or str(record.get("logger", "")).startswith("pyspark"):
            continue
        yield from map(_short, said.splitlines()[:_TRACE_LINES])
        for error in (record.get("error_detail") or [])[:1]:  # behind it are its causes
            yield from map(_short, f"{error.get('exc_type')}: {error.get('exc_value')}".splitlines()[:_TRACE_LINES])


def _short(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]} …"


def _tail(trace: str) -> str:
    return "\n".join(f"  {line}" for line in trace.strip().splitlines()[-_TRACE_LINES:])


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
