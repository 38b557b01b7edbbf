"""`tidegate spark`: start, inspect, stop or prepare the embedded Spark server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.cli.output import Output
from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid
from tidegate.spark.class_archive import find_archive
from tidegate.spark.jars import fetch_jars, jars_folder
from tidegate.spark.server import serve as connect_serve
from tidegate.spark.server import server as connect_server
from tidegate.spark.server.prepare import make_archive
from tidegate.spark.server.watchdog import answers
from tidegate.spark.session import server_home, spark_settings

__all__ = ["add_parser", "run"]

_ANSWER_TIMEOUT = 3.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "spark",
        help="start, inspect or stop the embedded Spark server",
        description="The embedded Spark server runs on this machine, for this user and project. Jobs start it when "
        "they need it, and it ends when it is idle, so you need not start or stop it by hand.",
        epilog="examples:\n  tidegate spark start\n  tidegate spark status --json\n  tidegate spark stop --force",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    start = actions.add_parser(
        "start",
        help="start it, unless it is running with the same settings",
        description="Start the server and wait until it answers, so that the next job need not wait.",
        epilog="example:\n  tidegate spark start -D spark.memory=4g",
    )
    status = actions.add_parser(
        "status",
        help="show running servers; exit code 1 if there is none, 3 if one does not answer",
        description="Show the running servers, the processes that use them, and where their logs are.",
        epilog="example:\n  tidegate spark status --json",
    )
    stop = actions.add_parser(
        "stop",
        help="stop it",
        description="Stop the running servers and wait until they have ended.",
        epilog="example:\n  tidegate spark stop --force",
    )
    stop.add_argument(
        "--force", action="store_true", help="even if it is in use: the jobs in it fail as unavailable, and are retried"
    )
    prepare = actions.add_parser(
        "prepare",
        help="prepare a class archive, with which Spark starts in half the time",
        description="Write the classes that Spark loads at every start into a file of 225 MB beside the Delta jars, "
        "from which Java maps them. Once for each Java and each version of pyspark; `make setup` does it.",
        epilog="example:\n  tidegate spark prepare",
    )
    jars = actions.add_parser(
        "jars",
        help="fetch the jars that Spark needs for Delta",
        description="Fetch the jars that Spark needs for Delta and Kafka, each checked by its hash, from Maven Central "
        "or from the mirror that $MAVEN_MIRROR_URL names. Fetches only what is missing or damaged.",
        epilog="examples:\n  tidegate spark jars\n  tidegate spark jars --s3",
    )
    jars.add_argument("--s3", action="store_true", help="also those for s3:// URLs (18 MB)")
    serve = actions.add_parser(
        "serve",
        help="run a Spark server in the foreground, for a separate container",
        description="Run a Spark Connect server on loopback in this process, until it is stopped. Jobs reach it by "
        "spark.remote, sc://localhost:PORT/;token=…, from the same machine or container network.",
        epilog="example:\n  tidegate spark serve --port 15002 --token-file /run/secrets/spark_token",
    )
    serve.add_argument("--port", type=_port, default=15002, metavar="PORT", help="the port to listen on (15002)")
    serve.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE", help="contains the token that clients must send"
    )
    for action, function in (
        (start, _start),
        (status, _status),
        (stop, _stop),
        (prepare, _prepare),
        (jars, _jars),
        (serve, _serve),
    ):
        action.set_defaults(act=function)


def run(args: argparse.Namespace, out: Output) -> int:
    code: int = args.act(args, load_settings(args.settings), out)
    return code


def _start(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    _refuse_submit(settings)
    if out.terminal:
        out.line("Starting Spark …")
    before = seams.monotonic()
    server = connect_server.start(spark_settings(settings))
    seconds = seams.monotonic() - before
    out.document({"fresh": server.fresh, "seconds": round(seconds, 3), "server": server.to_json()})
    if server.fresh:
        how = f"started in {seconds:.1f} s"
    else:
        how = "is already running"
    out.line(f"Spark {how}: port {server.port} on loopback, process {server.pid}, server {server.key}.")
    out.line(f"Its log: {server.log}")
    return 0


def _prepare(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    if out.terminal:
        out.line("Preparing Spark's class archive; this takes about a minute …")
    created = make_archive()
    archive = created or find_archive()
    out.document({"file": str(archive), "made": created is not None})
    out.line(f"Created {archive}." if created is not None else f"It already exists: {archive}.")
    return 0


def _jars(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    fetched = fetch_jars(s3=args.s3, say=out.line)
    folder = jars_folder()
    out.document({"folder": str(folder), "fetched": [path.name for path in fetched]})
    out.line(f"{len(fetched)} fetched, into {folder}." if fetched else f"Nothing to fetch: {folder} has all.")
    return 0


def _status(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    servers = connect_server.status(server_home(settings.project))
    answering = [answers(server.port, _ANSWER_TIMEOUT) for server in servers]
    documents = []
    for server, ok in zip(servers, answering, strict=True):
        documents.append(server.to_json() | {"answers": ok, "state": _state(server, ok)})
    out.document({"servers": documents})
    if not servers:
        out.line("No Spark server is running. The next job, or `tidegate spark start`, starts one.")
        return 1
    columns = ["server", "state", "port", "process", "spare", "started", "used by", "log"]
    out.table(
        columns,
        [
            [s.key, _state(s, ok), s.port, s.pid, s.spare_pid, s.started, " ".join(map(str, s.used_by)), s.log]
            for s, ok in zip(servers, answering, strict=True)
        ],
        right=["port", "process", "spare"],
    )
    return 0 if all(answering) else 3


def _port(text: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1024 to 65535")
    return int(text)


def _serve(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    _refuse_submit(settings)
    connect_serve.serve(spark_settings(settings), args.port, args.token_file.absolute())


def _refuse_submit(settings: Settings) -> None:
    if settings.spark.mode == "submit":
        raise Invalid(
            "With spark.mode = submit, jobs do not use a Spark server: each is a separate application.",
            expected="spark.mode connect",
            help="no server is needed; or choose another mode: -D spark.mode=connect -D spark.master='local[*]'",
            reason="SPARK_SUBMIT_ONLY",
        )


def _state(server: connect_server.ServerInfo, answers: bool) -> str:
    if not answers:
        return "does not answer"
    return "in use" if server.used_by else "idle"


def _stop(args: argparse.Namespace, settings: Settings, out: Output) -> int:
    stopped = connect_server.stop(server_home(settings.project), force=args.force)
    out.document({"stopped": [server.to_json() for server in stopped]})
    for server in stopped:
        out.line(f"Stopped the Spark server {server.key} (process {server.pid}).")
    if not stopped:
        out.line("No Spark server is running.")
    return 0
