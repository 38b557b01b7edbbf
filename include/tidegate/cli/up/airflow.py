"""Airflow's REST API, as `tidegate up` and `tidegate trigger` use it: health, DAGs, runs and tasks."""

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
from tidegate.errors import Invalid, Rejected, Unavailable
from tidegate.records.names import NAME
from tidegate.versions.python import parse_time

__all__ = ["TAG", "Airflow", "Dag", "DagRun", "failure_text", "import_failure"]

TAG = "tidegate"
"""The tag of every DAG of build_dag."""

_TIMEOUT_S = 20.0
_HEALTH_S = 10.0
_LINE = 500
_TRACE_LINES = 12
_PAGES = "/tidegate/api/v1"
"""The API of the Checkpoints pages, below Airflow's address."""


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

    def __init__(self, url: str, password: str, token: str = "") -> None:
        """password: of the user that `tidegate up` creates; or a token that was issued elsewhere."""
        self.url = url
        self._password = password
        self._token = token
        # Loopback is never reached through a proxy from the environment.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def not_ready(self) -> str:
        """Name the components that are not up yet; empty when all are."""
        try:
            health = self._call("GET", "/monitor/health", token=False)
        except Unavailable:
            return "API server"
        parts = ("scheduler", "dag_processor", "triggerer")
        return ", ".join(part.replace("_", " ") for part in parts if health[part]["status"] != "healthy")

    def heartbeats(self) -> dict[str, datetime | None]:
        """Return the last heartbeat of each component except the API server; None if it had none."""
        health = self._call("GET", "/monitor/health", token=False, timeout=_HEALTH_S)
        names = {"scheduler": "scheduler", "dag_processor": "dag-processor", "triggerer": "triggerer"}
        latest = {}
        for key, name in names.items():
            latest[name] = (health.get(key) or {}).get(f"latest_{key}_heartbeat")
        return {name: parse_time(beat) if beat else None for name, beat in latest.items()}

    def waiting_tasks(self) -> tuple[dict[str, str], int]:
        """Return the tasks that the executor has queued, by id; and how many are running."""
        path = "/dags/~/dagRuns/~/taskInstances?limit=100&state="
        queued = self._call("GET", f"{path}queued")["task_instances"]
        running = self._call("GET", f"{path}running")["total_entries"]
        return {task["id"]: f"task {task['task_id']} of DAG {task['dag_id']}" for task in queued}, int(running or 0)

    def dags(self) -> list[Dag]:
        """List the DAGs that are pipelines."""
        dags = self._call("GET", f"/dags?tags={TAG}&limit=100&exclude_stale=true")["dags"]
        return [Dag(dag["dag_id"], _pipeline(dag), dag["is_paused"], dag.get("next_dagrun_run_after")) for dag in dags]

    def unpause(self, dag: Dag) -> None:
        self._call("PATCH", f"/dags/{_quoted(dag.id)}?update_mask=is_paused", {"is_paused": False})

    def trigger(self, dag: Dag) -> str:
        """Trigger a run now; return its id."""
        created = self._call("POST", f"/dags/{_quoted(dag.id)}/dagRuns", {"logical_date": None, "conf": {}})
        return str(created["dag_run_id"])

    def dags_of(self, pipeline: str) -> list[Dag]:
        """List the DAGs that run this pipeline."""
        query = f"tags={TAG}&tags={_quoted(pipeline)}&tags_match_mode=all&limit=100&exclude_stale=true"
        dags = self._call("GET", f"/dags?{query}")["dags"]
        return [Dag(dag["dag_id"], pipeline, dag["is_paused"], dag.get("next_dagrun_run_after")) for dag in dags]

    def checkpoint_now(self, dag: Dag, note: str, savepoint: str | None) -> str:
        """Trigger a run as the button on the Checkpoints page does, which is audited; return the run's id."""
        body = {"note": note} | ({"savepoint": savepoint} if savepoint is not None else {})
        return str(self._call("POST", f"{_PAGES}/dags/{_quoted(dag.id)}/actions/trigger", body)["run_id"])

    def details(self, dag: Dag, run: str) -> dict[str, Any]:
        """Return everything that Airflow knows about a run."""
        return dict(self._call("GET", f"/dags/{_quoted(dag.id)}/dagRuns/{_quoted(run)}"))

    def runs(self, dag: Dag) -> list[DagRun]:
        """Return the DAG's runs, the latest first."""
        runs = self._call("GET", f"/dags/{_quoted(dag.id)}/dagRuns?order_by=-id&limit=50")["dag_runs"]
        return [DagRun(dag.id, run["dag_run_id"], run["state"]) for run in runs]

    def import_errors(self) -> dict[str, str]:
        """Return the DAG files that cannot be imported, each with the end of Python's traceback."""
        errors = self._call("GET", "/importErrors?limit=100")["import_errors"]
        return {error["filename"]: _tail(error["stack_trace"]) for error in errors}

    def failed_tasks(self, run: DagRun) -> list[tuple[str, int]]:
        """Return a run's failed tasks in the order in which they ended, each with the number of its last try."""
        path = f"/dags/{_quoted(run.dag)}/dagRuns/{_quoted(run.id)}/taskInstances?state=failed&order_by=end_date"
        return [(task["task_id"], task["try_number"]) for task in self._call("GET", path)["task_instances"]]

    def _call(
        self, method: str, path: str, body: object = None, *, token: bool = True, timeout: float = _TIMEOUT_S
    ) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {self._token or self._log_in()}"
        request = urllib.request.Request(
            f"{self.url}{'' if path.startswith(('/auth', _PAGES)) else '/api/v2'}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 401 and token and self._token and self._password:  # it is valid for a day
                self._token = ""
                return self._call(method, path, body)
            answer = error.read(5000).decode(errors="replace")
            if (refused := _refusal(answer)) is not None:
                raise refused from error
            raise Unavailable(
                f"Airflow answers {error.code} to {method} {path}: {answer[:500]}",
                help="see its log in .tidegate/airflow/logs/up; start `tidegate up` again",
                reason="AIRFLOW_ANSWER",
            ) from error
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"Airflow's API server does not answer: {error}",
                help="`tidegate up` restarts it if it has ended; see its log in .tidegate/airflow/logs/up",
                reason="AIRFLOW_SILENT",
            ) from error

    def _log_in(self) -> str:
        body = {"username": USER, "password": self._password}
        self._token = self._call("POST", "/auth/token", body, token=False)["access_token"]
        return self._token


def failure_text(airflow: Airflow, home: Home, run: DagRun) -> str:
    """Explain why a run failed: its first failed task and the end of that task's log."""
    for task, attempt in airflow.failed_tasks(run)[:1]:
        log = home.task_log(run.dag, run.id, task, attempt)
        text = "\n".join(f"  {line}" for line in _readable_log(log))
        return f"task {task} failed, try {attempt}. The end of its log ({log}):\n{text}"
    return "Airflow ended it without a failed task: it was marked as failed, or it could not be started"


def import_failure(errors: dict[str, str]) -> Invalid:
    """Return the error for DAG files that cannot be imported."""
    traces = "\n".join(f"{file}:\n{trace}" for file, trace in errors.items())
    return Invalid(
        f"{'a DAG file' if len(errors) == 1 else f'{len(errors)} DAG files'} cannot be read: {traces}",
        expected="files in dags/ that Python can import",
        help="correct it and start again",
        reason="BROKEN_DAG",
    )


def _pipeline(dag: dict[str, Any]) -> str:
    """Return the pipeline's name: the DAG's id, or the tag that names it if the DAG has another id."""
    names = []
    for tag in dag["tags"]:
        if tag["name"] != TAG and NAME.fullmatch(tag["name"]):
            names.append(tag["name"])
    return str(dag["dag_id"] if dag["dag_id"] in names or not names else names[0])


def _refusal(answer: str) -> Rejected | None:
    """Return the error that a page of tidegate answers with; None: the answer is Airflow's own."""
    try:
        error = json.loads(answer)["error"]
        return Rejected(error["what"], expected=error["expected"], help=error["help"], reason=error["reason"])
    except (ValueError, KeyError, TypeError):
        return None


def _readable_log(log: Any) -> Iterator[str]:
    """Turn a task's log, which has a JSON record per line, into messages and errors, without their frames."""
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
        message = str(record.get("event", ""))
        # The UI folds lines between ::group:: marks. Spark's client logs each error first, as JSON and with its whole
        # plan; the exception that the task raises says the same in a line.
        if message.startswith(("::group::", "::endgroup::", "{")) or str(record.get("logger", "")).startswith(
            "pyspark"
        ):
            continue
        yield from map(_short, message.splitlines()[:_TRACE_LINES])
        for error in (record.get("error_detail") or [])[:1]:  # the following ones are its causes
            yield from map(_short, f"{error.get('exc_type')}: {error.get('exc_value')}".splitlines()[:_TRACE_LINES])


def _short(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[:_LINE]} …"


def _tail(trace: str) -> str:
    return "\n".join(f"  {line}" for line in trace.strip().splitlines()[-_TRACE_LINES:])


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
