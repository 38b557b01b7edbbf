"""Installs each optional part of tidegate alone, in an environment of its own, and uses it. Without it, connectors must
say which part is missing.

    make matrix-parts               all parts, one after another
    make matrix-parts PARTS="sql sqs"

A part is used by Python code that goes as far as a server that is not there. The lock file's Python is used, and
today's packages: the oldest and newest ones are what `make matrix-versions` is for.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.matrix_versions import PLACE, ROOT, build_wheel, environment

__all__ = ["PARTS", "main"]

PATIENCE_S = 600
FAILED_AS_IT_MUST = "Unavailable"
"""The error of a part that is there, about a server that is not."""

CONTEXT = """
from tidegate.records.place import Place
from tidegate.sources import *
options = {"db.host": "127.0.0.1", "db.port": "1", "db.dbname": "shop", "db.user": "ann"}
context = SourceContext("shop", "rows", Place(".", connections=options), None)
"""


@dataclass(frozen=True)
class Part:
    """An optional part, and code that needs it."""

    code: str
    reaches_out: bool = False
    """Whether the code ends at a server that is not there."""
    tells: bool = True
    """Whether the error without the part names it. Parts that whole programs are built on are left to `tidegate doctor
    --environment`."""


PARTS: Mapping[str, Part] = {
    "airflow": Part("from tidegate.dag import build_dag", tells=False),
    "spark": Part("import tidegate.spark.session, pyspark.sql.connect.session, delta", tells=False),
    "gates": Part("from tidegate.gates.expectations.library import warm; warm()", tells=False),
    "kafka": Part(CONTEXT + 'Kafka("orders", servers="127.0.0.1:1", schema="id long").plan(None, context)', True),
    "avro": Part("from tidegate.connectors.kafka.avro import import_fastavro; import_fastavro()"),
    "postgres": Part(CONTEXT + 'PostgresTable("orders", connection="db", xid_column="xid").plan(None, context)', True),
    "iceberg": Part(
        CONTEXT + "from tidegate.sinks import IcebergAppend, SinkContext\n"
        'here = Place(".", connections={"lake.type": "sql", "lake.uri": "sqlite://", "lake.warehouse": "."})\n'
        'IcebergAppend("shop.orders", connection="lake")._catalog(SinkContext("shop", "uid", "orders", here))'
    ),
    "sql": Part('from tidegate.pipeline.sql.reading import parse_query; parse_query("SELECT id FROM orders")'),
    "sqs": Part(
        "from tidegate.connectors.files.notifications import SqsQueue\n"
        'login = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "eu-west-1"}\n'
        'SqsQueue("http://127.0.0.1:1/123456789012/orders", login).wait(0)',
        True,
    ),
    "s3": Part("from obstore.store import S3Store", tells=False),
    "lineage": Part("import airflow.providers.openlineage", tells=False),
}


def main() -> int:
    wheel = build_wheel()
    bare = install("none", "", wheel)
    wrong = problems_without(bare)
    for name in sys.argv[1:] or PARTS:
        part = PARTS[name]
        python = install(name, f"[{name}]", wheel)
        found = problems_with(name, part, python)
        print(f"{name}: {'; '.join(found) or 'passes'}", flush=True)
        wrong += found
        shutil.rmtree(python.parents[1])
    print("\n".join(wrong) or "each part passes, alone and missing")
    return 1 if wrong else 0


def install(name: str, extra: str, wheel: Path) -> Path:
    """Return the Python of a new environment with the wheel and one extra."""
    uv, venv = str(ROOT / ".cache/uv/bin/uv"), PLACE / "parts" / name / "venv"
    python = venv / "bin/python"
    command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    for words in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)],
        [*command, "setuptools", "wheel"],  # pyspark has no wheel, and does not say what its build needs
        [*command, "--no-build-isolation-package", "pyspark", f"tidegate{extra} @ {wheel.as_uri()}"],
    ):
        subprocess.run(words, env=environment(venv.parent), check=True, timeout=PATIENCE_S)
    return python


def problems_without(python: Path) -> list[str]:
    """Whether tidegate starts without any part, and connectors name the one that is missing."""
    found = []
    for line in ("import tidegate.sinks, tidegate.sources", "from tidegate.cli.main import main; main(['config'])"):
        code, said = told(python, line)
        if code:
            found.append(f"without any part, `{line}` fails: {said}")
    for name, part in PARTS.items():
        code, said = told(python, part.code)
        if part.tells and (code == 0 or f"tidegate[{name}]" not in said):
            found.append(f"{name}: without it the error does not name it: {said}")
    return found


def problems_with(name: str, part: Part, python: Path) -> list[str]:
    """Whether a part works alone."""
    code, said = told(python, part.code)
    if part.reaches_out and FAILED_AS_IT_MUST in said:
        return []
    return [f"{name}: alone it does not work: {said or 'it has reached a server'}"] if code or part.reaches_out else []


def told(python: Path, code: str) -> tuple[int, str]:
    """Run code in an environment; return the exit code and the end of what it printed."""
    home = python.parents[2]
    done = subprocess.run(
        [str(python), "-c", code], cwd=home, env=environment(home), capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.returncode, " ".join(done.stderr.split())[-600:]


if __name__ == "__main__":
    sys.exit(main())
