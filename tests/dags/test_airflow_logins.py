"""Logins in Airflow's connections, in a real Airflow: everything is in a bucket, and rows go to a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags.project import HELD, Made
from tests.dags.server import Airflow
from tests.kit.postgres import PASSWORD, Server, server
from tests.kit.s3 import BUCKET, SECRET, S3Server, s3
from tests.kit.sampling import in_turn
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.records.names import check_name
from tidegate.spark.jars import jars_folder

pytestmark = [
    pytest.mark.skipif(
        not jars_folder().with_name("jars-s3").is_dir(), reason="there are no jars for s3://: make setup S3=1"
    ),
    in_turn(seconds=200),
]

BACKEND = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
SINKS = "\n".join(
    f'seen.sink("{name}", PostgresAppend("{name}", connection="airflow:{name}"))'
    for name in ("in_database", "in_variable", "in_backend")
)
SUBMITTED = 'seen.sink("submitted", PostgresAppend("submitted", connection="airflow:in_database"))'
IMPORTED = "from tidegate.sinks import PostgresAppend\n"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3() as started:
        yield started


def login(postgres: Server) -> dict[str, Any]:
    """A connection, as Airflow has it."""
    told = postgres.options
    known = {"conn_type": "postgres", "host": told["host"], "port": int(told["port"]), "schema": told["dbname"]}
    return known | {"login": told["user"], "password": told["password"]}


def lake(store: S3Server) -> dict[str, Any]:
    extra = {"endpoint_url": store.endpoint, "region_name": "us-east-1"}
    return {"conn_type": "aws", "login": "someone", "password": SECRET, "extra": json.dumps(extra)}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, postgres: Server, store: S3Server) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow")
    secrets = tmp_path_factory.mktemp("secrets") / "connections.json"
    secrets.write_text(json.dumps({"in_backend": login(postgres)}))
    settings = {
        "AIRFLOW_CONN_IN_VARIABLE": json.dumps(login(postgres)),
        "AIRFLOW__SECRETS__BACKEND": BACKEND,
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(secrets)}),
    }
    airflow = Airflow(home, **settings)
    toml = airflow.project.folder / "tidegate.toml"
    places = f'root = "s3://{BUCKET}/ledger"\ndata = "s3://{BUCKET}"\nstorage = "airflow:lake"\n'
    toml.write_text(toml.read_text().replace('root = "ledger"\ndata = "."\n', places))
    with airflow:
        airflow.call("POST", "/connections", {"connection_id": "lake", **lake(store)})
        yield airflow


def feed(store: S3Server, name: str, number: int) -> None:
    rows = [{"id": number + i, "file": number} for i in range(Made.ROWS)]
    store.put(f"{name}/in/{number:05d}.json", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def counted(postgres: Server, table: str) -> int:
    import psycopg

    with psycopg.connect(**postgres.options) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {check_name('table', table)}").fetchone()[0])  # type: ignore[index]


def ledger(store: S3Server, name: str) -> Ledger:
    return open_ledger(f"s3://{BUCKET}/ledger", name, store.options)


def refuse_secrets_on_disk(airflow: Airflow, store: S3Server, *folders: Path) -> None:
    """Neither login is in a file of Airflow, of the project or of Spark, nor on a command line, nor in the bucket.
    Airflow's own database has them, of course."""
    secrets = (SECRET.encode(), PASSWORD.encode())
    files = [path for folder in (airflow.home, *folders) for path in folder.rglob("*") if path.is_file()]
    held = [path for path in files if not path.name.startswith("airflow.db")]
    assert [path for path in held if any(secret in path.read_bytes() for secret in secrets)] == []
    assert [key for key, data in store.objects().items() if any(secret in data for secret in secrets)] == []
    lines = {path: read(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    assert [path for path, line in lines.items() if any(secret in line for secret in secrets)] == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def test_logins_are_found_wherever_airflow_keeps_them_and_are_told_nobody(
    airflow: Airflow, store: S3Server, postgres: Server
) -> None:
    airflow.project.pipeline("kept", gate=IMPORTED + SINKS, stage=HELD, interval="never")
    airflow.known("kept")
    feed(store, "kept", 1)
    failed = airflow.trigger("kept")
    assert failed.ended() == "failed"
    assert "NO_AIRFLOW_CONNECTION: Airflow has no connection 'in_database'" in failed.log("trigger")
    airflow.call("POST", "/connections", {"connection_id": "in_database", **login(postgres)}, fine=(409,))

    made = Made(airflow.project, "kept").hold()
    first, second = airflow.trigger("kept"), airflow.trigger("kept")
    made.at_work()
    waiting = first if first.tasks()["trigger"] != "success" else second
    waiting.until("trigger", "deferred")
    refuse_secrets_on_disk(airflow, store)
    made.release()
    assert (first.ended(), second.ended()) == ("success", "success")
    assert {name: counted(postgres, name) for name in ("in_database", "in_variable", "in_backend")} == dict.fromkeys(
        ("in_database", "in_variable", "in_backend"), Made.ROWS
    )
    logs = "".join(path.read_text() for path in airflow.home.rglob("*.log"))
    assert "Cannot read the ledger" not in logs, "the triggerer finds the login, too"
    shown = page(airflow, "kept")
    assert [row["id"] for row in shown["checkpoints"]][:1] == [2], "and the web server"
    assert SECRET not in json.dumps(shown)
    plan = ledger(store, "kept").plan(1)
    assert plan is not None
    assert plan.config["storage"] == "airflow:lake"
    refuse_secrets_on_disk(airflow, store)


def page(airflow: Airflow, name: str) -> Any:
    """What the page Checkpoints of a pipeline shows."""
    token = airflow.call("GET", "/auth/token")["access_token"]
    url = f"http://127.0.0.1:{airflow.port}/tidegate/api/v1/dags/{name}/checkpoints"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_submitted_job_gets_them_through_its_environment(airflow: Airflow, store: S3Server, postgres: Server) -> None:
    spark = {"mode": "submit", "master": "local[2]"}
    made = airflow.project.pipeline("sent", gate=IMPORTED + SUBMITTED, stage=HELD, interval="never", spark=spark).hold()
    airflow.known("sent")
    airflow.call("POST", "/connections", {"connection_id": "in_database", **login(postgres)}, fine=(409,))
    feed(store, "sent", 1)
    run = airflow.trigger("sent")
    made.at_work()
    refuse_secrets_on_disk(airflow, store, *Path(tempfile.gettempdir()).glob("tidegate-submit-*"))
    made.release()
    assert run.ended() == "success", run.log("job_main")
    assert counted(postgres, "submitted") == Made.ROWS


def test_a_command_takes_them_from_airflows_variables_or_says_how(
    airflow: Airflow, store: S3Server, postgres: Server
) -> None:
    airflow.project.pipeline("alone", gate=IMPORTED + SUBMITTED.replace('"submitted"', '"alone"'), interval="never")
    feed(store, "alone", 1)
    command = [sys.executable, "-m", "tidegate", "run", "dags.dag_alone:pipeline", "--checkpoints", "1"]
    folder = airflow.project.folder

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ) | variables
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)

    refused = run()
    assert refused.returncode != 0
    assert "AIRFLOW_CONN_LAKE is not set" in refused.stderr
    known = {"AIRFLOW_CONN_LAKE": json.dumps(lake(store)), "AIRFLOW_CONN_IN_DATABASE": json.dumps(login(postgres))}
    done = run(**known)
    assert done.returncode == 0, done.stdout + done.stderr
    assert counted(postgres, "alone") == Made.ROWS
    refuse_secrets_on_disk(airflow, store)
