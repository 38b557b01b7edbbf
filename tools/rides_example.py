"""`make run-kafka`: a Kafka broker and a PostgreSQL on loopback, and Airflow with the pipeline of jobs/rides.py, fed.

All of it is in a temporary folder, and gone after Ctrl-C: broker, database, and the ledger that belongs to them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kit.kafka import kafka
from tests.kit.postgres import MISSING, programs, server
from tools.setup import Problem

FEED = "-m jobs.rides_feed --live 600"
TABLES = "SELECT count(*) rides, count(DISTINCT ride_id) once, (SELECT sum(rides) FROM stations) counted FROM rides"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make run-kafka", description=__doc__)
    parser.add_argument("--checkpoints", type=int, help="end after so many")
    given = parser.parse_args()
    if programs() is None:
        print(f"run-kafka: {MISSING}\n  Help: Debian, Ubuntu: sudo apt-get install postgresql · macOS: brew install "
              "postgresql@16", file=sys.stderr)  # fmt: skip
        return 3
    try:
        return run(given.checkpoints)
    except Problem as problem:
        print(f"run-kafka: {problem}", file=sys.stderr)
        return 3


def run(checkpoints: int | None) -> int:
    """Start everything, wait for the end of `tidegate up`, and say what is in the database."""
    print("Starting a Kafka broker and a PostgreSQL, which takes some seconds", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-rides-") as folder, kafka() as broker, server() as database:
        connections = {"events": {"bootstrap.servers": broker.servers}, "reports": database.options}
        environment = {
            **os.environ,
            "TIDEGATE_CONNECTIONS": json.dumps(connections),
            "TIDEGATE_ROOT": str(Path(folder, "ledger")),
        }
        login = " ".join(f"{name}={text}" for name, text in database.options.items() if name != "password")
        print(f"Kafka: {broker.servers}   PostgreSQL: PGPASSWORD={database.options['password']} psql '{login}'")
        command = [sys.executable, "-m", "tidegate", "up", "rides", "--beside", f"{shlex.quote(sys.executable)} {FEED}"]
        command += ["--checkpoints", str(checkpoints)] if checkpoints else []
        ended = _until_it_ends(subprocess.Popen(command, env=environment))
        rides, once, counted = database.run(TABLES)[0]
        print(f"PostgreSQL: {rides:,} rides, {once:,} different ones; the stations count {counted:,}")
        return ended if rides == once == counted else 1


def _until_it_ends(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code. Ctrl-C reaches the process by itself, and a signal to this one is passed on."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
    return process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
