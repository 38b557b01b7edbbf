"""`tidegate doctor`: check the machine, the storage, the ledger and the tables. Reads only, unless --repair."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.cli.inspect.documents import size_text
from tidegate.cli.output import Output
from tidegate.cli.targets import Target, open_data, open_root, open_target, pipeline_names
from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid, TidegateError, reported_error
from tidegate.history.health import SPARE_BYTES, free_bytes, local_folders
from tidegate.records.place import is_url
from tidegate.verify.finding import Finding, State, finding_of
from tidegate.verify.verifier import verify_pipeline
from tidegate.versions.ranges import JAVA, PYTHON

__all__ = ["add_parser", "run"]


_ANSWER_S = 3.0
_PROVIDER = "apache-airflow-providers-apache-spark"


def add_parser(subparsers: Any) -> None:
    """Declare the command and its arguments."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the machine, the storage, the ledger and the tables",
        description="Check that this machine can run pipelines, that the storage is reliable, and that every record "
        "and table is intact. With MODULE:pipeline, also check staged and left-over files in its targets. Exit code "
        "1: something is bad.",
        epilog="examples:\n  tidegate doctor\n  tidegate doctor --environment\n  tidegate doctor orders\n"
        "  tidegate doctor jobs.orders:pipeline --repair",
    )
    parser.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="a name, or MODULE:pipeline; by default all")
    parser.add_argument(
        "--environment",
        action="store_true",
        help="instead, check versions, Java, jars, proxies and Airflow's settings, and show what to install",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="remove files of aborted checkpoints and unreferenced files; nothing that counts is changed",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Run all checks and show the findings. Exit code 1: something is bad."""
    if args.repair and ":" not in (args.pipeline or ""):
        raise Invalid(
            "--repair needs the pipeline's code to find the left-over files of its sinks",
            expected="MODULE:pipeline, such as jobs.orders:pipeline",
            help="`tidegate doctor` without --repair also takes a name",
            reason="BAD_PIPELINE_ARGUMENT",
        )
    if args.environment:
        from tidegate.cli.environment import environment

        settings = load_settings(args.settings)
        java = [] if settings.spark.remote else [_java()]
        return _show([*environment(), *java, *_storage(settings)], out)
    target = None
    if args.pipeline:
        target = open_target(args.pipeline, args.settings, started=False)
    settings = target.settings if target else load_settings(args.settings)
    findings = [*_machine(settings), *_storage(settings)]
    if target is not None and args.pipeline and target.pipeline is None:
        target = open_target(args.pipeline, args.settings)
    for verified in [target] if target else _all(settings, args, findings):
        findings += _verified(verified, args.repair)
    return _show(findings, out)


def _all(settings: Settings, args: argparse.Namespace, findings: list[Finding]) -> Iterator[Target]:
    try:
        names = pipeline_names(settings)
    except TidegateError as error:
        findings.append(finding_of("storage", "pipelines", error))
        return
    for name in names:
        try:
            yield open_target(name, args.settings)
        except TidegateError as error:
            findings.append(finding_of(name, "identity", error))


def _verified(target: Target, repair: bool) -> Iterator[Finding]:
    """Yield the findings about one pipeline. An error of any kind must not hide other pipelines."""
    try:
        yield from verify_pipeline(target, repair)
    except Exception as error:
        advice = f"`tidegate explain {target.name} --debug` may show the whole traceback; please report it"
        yield finding_of(target.name, "doctor", reported_error(error, advice))


def _show(findings: list[Finding], out: Output) -> int:
    bad = [finding for finding in findings if finding.state == "bad"]
    out.document({"ok": not bad, "findings": [asdict(finding) for finding in findings]})
    out.table(["", "area", "check", "found"], [[f.state, f.area, f.check, f.detail] for f in findings])
    for finding in findings:
        if finding.help and finding.state != "ok":
            out.line(f"{finding.area}, {finding.check}: {finding.help}", "yellow")
    out.line("Nothing is wrong." if not bad else f"{len(bad)} checks found something bad.", "bold")
    return 1 if bad else 0


# -- the machine ---------------------------------------------------------------------------------------


def _machine(settings: Settings) -> Iterator[Finding]:
    """Check what Spark jobs need on this machine. A remote Spark needs nothing here."""
    version = ".".join(map(str, sys.version_info[:3]))
    if version in PYTHON:
        yield Finding("machine", "Python", "ok", version)
    else:
        yield Finding("machine", "Python", "bad", version, f"create an environment with Python {PYTHON.text}")
    if settings.spark.mode == "connect" and settings.spark.remote:
        yield Finding("machine", "Java and jars", "ok", "not needed: Spark is remote")
        return
    yield _java()
    jars = _guarded("machine", "Delta jars", _jars)
    yield jars
    if jars.state == "ok" and any(
        url.lower().startswith(("s3://", "s3a://")) for url in (settings.root, settings.data)
    ):
        yield _s3_jars(settings)
    if settings.spark.mode == "connect":
        yield _server(settings)
    if settings.spark.mode == "submit":
        yield _guarded("machine", "Spark provider", _provider)


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"install Java {JAVA} or 21 (Debian: sudo apt-get install openjdk-17-jre-headless), or set JAVA_HOME to it"
    if program is None:
        return Finding("machine", "Java", "bad", "there is no java on the PATH", advice)
    try:
        version = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("machine", "Java", "bad", f"{program} does not run: {error}", advice)
    match = re.search(r'version "([0-9]+)', version.stderr)
    number = int(match[1]) if match else 0
    state: State = "ok" if number >= JAVA else "bad"
    return Finding(
        "machine", "Java", state, f"{program}, version {number or 'unknown'}", "" if number >= JAVA else advice
    )


def _jars() -> str:
    from tidegate.spark.jars import jar_paths

    paths = jar_paths()
    return f"{len(paths)} jars in {paths[0].parent}"


def _s3_jars(settings: Settings) -> Finding:
    """Check that Spark can read and write s3:// URLs. `spark.conf` may name jars in another place."""
    from tidegate.spark.jars import jar_paths, s3_jar_list

    if {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"} & set(settings.spark.conf):
        return Finding("machine", "S3 jars", "ok", "as spark.conf says")
    present = {path.name for path in jar_paths()}
    missing = [jar.file_name for jar in s3_jar_list() if jar.file_name not in present]
    if missing:
        return Finding("machine", "S3 jars", "bad", f"{len(missing)} are missing", "run `tidegate spark jars --s3`")
    return Finding("machine", "S3 jars", "ok", f"{len(s3_jar_list())} jars")


def _provider() -> str:
    """Return the version of Airflow's Spark provider. Only tasks use it, but users would look for it here."""
    try:
        return f"version {importlib.metadata.version(_PROVIDER)}"
    except importlib.metadata.PackageNotFoundError:
        raise Invalid(f"{_PROVIDER} is not installed", help="install it: spark.mode = submit needs it") from None


def _server(settings: Settings) -> Finding:
    """Check the embedded Spark server, if one is running. The next job would start one."""
    from tidegate.spark.server import server as connect_server
    from tidegate.spark.server.watchdog import answers
    from tidegate.spark.session import server_home

    try:
        servers = connect_server.status(server_home(settings.project))
    except TidegateError as error:
        return finding_of("machine", "Spark server", error)
    silent = [str(server.pid) for server in servers if not answers(server.port, _ANSWER_S)]
    if silent:
        detail = f"process {', '.join(silent)} does not answer"
        return Finding(
            "machine", "Spark server", "note", detail, "the next job replaces it; or: tidegate spark stop --force"
        )
    running = ", ".join(f"process {server.pid} answers" for server in servers)
    return Finding("machine", "Spark server", "ok", running or "none is running; the next job starts one")


def _guarded(area: str, check: str, check_detail: Callable[[], str]) -> Finding:
    try:
        return Finding(area, check, "ok", check_detail())
    except TidegateError as error:
        return finding_of(area, check, error)


# -- the storage ---------------------------------------------------------------------------------------


def _storage(settings: Settings) -> Iterator[Finding]:
    yield _guarded("storage", "root", lambda: _create_twice(settings))
    for folder in local_folders(settings):
        yield _guarded("storage", "space", functools.partial(_space, folder))
    if is_url(settings.data):
        yield _guarded("storage", "data", lambda: _check_listing(settings))
    else:
        exists = Path(settings.data).is_dir()
        detail = settings.data if exists else f"{settings.data} does not exist yet"
        yield Finding("storage", "data", "ok" if exists else "note", detail)


def _create_twice(settings: Settings) -> str:
    """Check the storage guarantee that everything depends on: creating a file that exists fails."""
    if not is_url(settings.root) and not Path(settings.root).is_dir():
        return _check_creation(Path(settings.root))
    store = open_root(settings)
    name = f"doctor-{seams.new_id()}.probe"
    try:
        if not store.create(name, b"1") or store.create(name, b"2") or store.read(name) != b"1":
            raise Invalid(
                f"{settings.root} lets a second file replace the first one of the same name",
                expected="a storage on which creating a file fails if it already exists",
                help="use another file system or object store for the setting root",
                reason="NO_CREATE_IF_ABSENT",
            )
    finally:
        with contextlib.suppress(TidegateError):  # an earlier failure is reported
            store.delete(name)
    return f"{settings.root}: writable, creates each file once"


def _check_listing(settings: Settings) -> str:
    """Check that the bucket of sources and sinks exists, and that this process may list it. It may be read-only."""
    open_data(settings).names("", after="~", before="~")
    return f"{settings.data}: can be listed"


def _space(folder: str) -> str:
    """Check that the folder's disk has enough space for a checkpoint."""
    free = free_bytes(folder)
    if free is None:
        return f"{folder}: unknown"
    if free < SPARE_BYTES:
        raise Invalid(
            f"the disk that holds {folder} has {size_text(free)} left",
            expected=f"at least {size_text(SPARE_BYTES)}",
            help="make room; nothing is lost, the next run continues on its own",
            reason="DISK_FULL",
        )
    return f"{folder}: {size_text(free)} free"


def _check_creation(root: Path) -> str:
    parent = next(folder for folder in root.parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise Invalid(
            f"{root} does not exist and cannot be created in {parent}",
            expected="a folder that this user may write to",
            help="change the setting root, or the folder's owner",
            reason="NO_ACCESS",
        )
    return f"{root} does not exist yet; the first run creates it"
