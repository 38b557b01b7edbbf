"""`tidegate up`: run this project under its own Airflow on this machine, until Ctrl-C or for N checkpoints."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from tidegate import seams
from tidegate.checkpoint.suspension import SuspensionState
from tidegate.cli.output import Output
from tidegate.cli.running.run import count
from tidegate.cli.running.spark_needs import provide_spark_needs
from tidegate.cli.targets import program
from tidegate.cli.up.airflow import Airflow, Dag, DagRun, failure_text, import_failure
from tidegate.cli.up.follow import Followed, FollowedPipelines
from tidegate.cli.up.home import USER, Home, free_port
from tidegate.cli.up.processes import Child, Processes, adopt_processes, end_leftover_processes, lock_project, log_end
from tidegate.cli.up.screen import Screen, screen_for
from tidegate.cli.up.supervise import SERVER, Supervisor
from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid, Rejected, TidegateError, Unavailable
from tidegate.spark.server import server as connect_server
from tidegate.spark.session import server_home
from tidegate.versions.python import parse_time
from tidegate.versions.ranges import RANGES_BY_PACKAGE, installed_version

__all__ = ["add_parser", "run"]

COMPONENTS = {
    "api-server": ["api-server"],
    # Their log servers would listen on all addresses. The UI reads the logs as files.
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
_START_S = 300.0
_STALLED_S = 600.0
_LET_END_S = 30.0
"""The time limit for running checkpoints to finish after Ctrl-C."""
_STOP_S = 15.0
"""The time limit for processes to end after SIGTERM, before they are killed."""
_TICK_S = 0.25
_LOOK_S = 1.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "up",
        help="run the project's DAGs in a local Airflow",
        description="Start an Airflow for the dags/ of this project, on loopback, with its database, logs and logins "
        "in .tidegate/airflow; unpause the pipelines' DAGs and show each checkpoint as it completes. Ctrl-C stops "
        "everything after the running checkpoint, a second Ctrl-C at once. The next call continues from there.",
        epilog="examples:\n  tidegate up\n  tidegate up orders --checkpoints 3\n"
        "  tidegate up --beside 'python -m jobs.orders_feed --live 12'",
    )
    parser.add_argument("dags", nargs="*", metavar="DAG", help="the DAGs to unpause and follow (all of this project)")
    parser.add_argument(
        "--checkpoints",
        type=count,
        metavar="N",
        help="stop after N newly completed checkpoints; runs are triggered back to back, and a failed one stops it",
    )
    parser.add_argument("--port", type=_port, metavar="PORT", help="the UI's port (the last one, or a free one)")
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="COMMAND",
        help="a command to run along with Airflow, such as one that feeds a landing folder; stopped with it",
    )


def run(args: argparse.Namespace, out: Output) -> int:
    settings = _settings(args)
    refuse_without_airflow()
    provide_spark_needs(settings, out)
    os.umask(0o077)
    home = Home(settings.project.absolute())
    home.make()
    with lock_project(home), StopSignals(out) as stop, screen_for(out) as screen:
        taken_over = adopt_processes(home, COMPONENTS, SERVER, args.port)
        for name in end_leftover_processes(home, taken_over):
            screen.notify(f"Ended the {name} of an earlier call that was killed.")
        for child in taken_over:
            screen.notify(f"Took over the {child.name} of an earlier call that was killed.")
        up = Up(args, settings, home, screen, stop, taken_over)
        try:
            up.run()
        except TidegateError:
            out.document(up.document())  # without the error: that is printed
            raise
    out.document(up.document())
    if args.checkpoints:
        out.line(f"{up.completed} of {args.checkpoints} checkpoints completed. To list them:  {program()} list")
    return 0 if up.completed >= (args.checkpoints or 0) else 1


def _settings(args: argparse.Namespace) -> Settings:
    if args.settings:
        raise Invalid(
            "`tidegate up` does not accept -D: Airflow's tasks would not see it",
            expected="settings in tidegate.toml, in TIDEGATE_* variables or in the pipeline's code",
            help="set them there, and leave out -D",
            reason="BAD_SETTINGS",
        )
    settings = load_settings()
    if not any((settings.project / "dags").glob("**/*.py")):
        raise Invalid(
            f"there are no DAG files in {settings.project / 'dags'}",
            expected="a file dags/NAME.py with: dag = build_dag(pipeline)",
            help=f"go to the project's folder; without Airflow: {program()} run MODULE:pipeline --until-idle",
            reason="NO_DAGS",
        )
    return settings


def refuse_without_airflow() -> None:
    """Raise Invalid without an Airflow of a supported version."""
    supported = RANGES_BY_PACKAGE["apache-airflow"]
    version = installed_version("apache-airflow-core") or installed_version("apache-airflow")
    if version is None or version not in supported:
        raise Invalid(
            f"Airflow {version} is installed" if version else "Airflow is not installed in this environment",
            expected=f"apache-airflow {supported.text}",
            help=f"{supported.command}; without Airflow: {program()} run MODULE:pipeline --until-idle",
            reason="AIRFLOW_MISSING",
        )


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 65535")
    return int(text)


class StopSignals:
    """Counts Ctrl-C and similar signals during a `with` block: one means "stop", two mean "at once"."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, out: Output) -> None:
        self._count = 0
        self._notice = None if out.terminal else out.err_fd
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._count > 0

    def at_once(self) -> bool:
        return self._count > 1

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._notice is not None and self._count == 1:
            os.write(self._notice, b"tidegate: stopping after the running checkpoint; Ctrl-C again stops at once\n")


class Up:
    """One call of `tidegate up`."""

    def __init__(
        self,
        args: argparse.Namespace,
        settings: Settings,
        home: Home,
        screen: Screen,
        stop: StopSignals,
        taken_over: Sequence[Child] = (),
    ) -> None:
        self.target_count: int | None = args.checkpoints
        self.beside: list[str] = args.beside
        self.dags: list[str] = args.dags
        self.settings = settings
        self.home = home
        self.screen = screen
        self.stop = stop
        last_port: Any = home.state().get("port")
        if taken_over:
            self.port: int = last_port
        else:
            self.port = free_port(args.port, last_port)
        self.password, self.new_password = home.password()
        self.airflow = Airflow(f"http://127.0.0.1:{self.port}", self.password)
        self.pipelines = FollowedPipelines(self.airflow, settings, args.dags)
        self.processes = Processes(home, self.port, taken_over)
        airflow = [sys.executable, "-m", "airflow"]
        commands = {name: [*airflow, *words] for name, words in COMPONENTS.items()}
        self.supervisor = Supervisor(self.processes, self.airflow, commands, home.room, self._notify_restart)
        self._notified: set[str] = set()
        self._idle: set[str] = set()
        self._advanced = seams.monotonic()

    @property
    def completed(self) -> int:
        return sum(row["state"] == "completed" for row in self.screen.checkpoints)

    def document(self) -> dict[str, Any]:
        """Return the document for --json."""
        return {"url": self.airflow.url, "user": USER, "checkpoints": self.screen.checkpoints, "stopped": self.stop()}

    def run(self) -> None:
        """Run from start to end. No process is left running, even after an error."""
        failed = True
        try:
            with self.processes:
                self._start()
                self._follow()
                failed = False
                self._finish_checkpoints()
                self.processes.stop(_STOP_S, self.stop.at_once)
        finally:
            self._stop_spark(failed)

    # -- start ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.screen.starting("Starting Airflow, which takes up to a minute")
        if not self.home.is_migrated():
            self.screen.now("preparing Airflow's database")
            migrate = self.processes.start("db-migrate", [sys.executable, "-m", "airflow", "db", "migrate"])
            self._wait(lambda: "" if migrate.ended else "the database", lambda: None)
            if migrate.exit_code:
                raise Unavailable(
                    f"Airflow's database cannot be prepared. The end of the log:\n{log_end(migrate.log)}",
                    help=f"the whole log: {migrate.log}",
                    reason="AIRFLOW_DATABASE",
                )
            if migrate.exit_code == 0:
                self.home.set_migrated()
                self.processes.end(migrate)
        if self.stop():
            return
        self.supervisor.start()
        for number, command in enumerate(self.beside, 1):
            self.processes.start(f"beside-{number}", shlex.split(command))
        self._wait(self.airflow.not_ready, self.supervisor.check_components)
        self._wait(self._no_pipeline, self.supervisor.check_components)
        place = f"in {os.path.relpath(self.home.passwords_file)}"
        if not self.stop():
            self.screen.ready(
                self.airflow.url, USER, f"{self.password} (kept {place})" if self.new_password else f"password {place}"
            )

    def _wait(self, missing: Callable[[], str], meanwhile: Callable[[], None]) -> None:
        """Wait until nothing is missing, or the user stops it."""
        until = seams.monotonic() + _START_S
        while not self.stop() and (component := missing()):
            meanwhile()
            self.screen.now(f"Airflow is starting: waiting for {component}")
            if seams.monotonic() > until:
                raise Unavailable(
                    f"Airflow was not ready within {_START_S:.0f} s: {component} is missing",
                    help=f"see the logs: {self.home.log('scheduler').parent}",
                    reason="AIRFLOW_SLOW",
                )
            seams.sleep(_TICK_S)

    def _no_pipeline(self) -> str:
        """Return "" if Airflow has a DAG that is a pipeline. Raise Invalid for DAG files that cannot be imported."""
        try:
            if errors := self.airflow.import_errors():
                raise import_failure(errors)
            present = {dag.id for dag in self.pipelines.poll()}
            if self.dags:
                return ", ".join(f"the DAG {name!r}" for name in self.dags if name not in present)
            return "" if present else "a DAG of build_dag in dags/"
        except Unavailable:
            return "API server"

    # -- follow --------------------------------------------------------------------------------------

    def _follow(self) -> None:
        self._advanced = seams.monotonic()
        last_look = 0.0
        while not self.stop() and (self.target_count is None or self.completed < self.target_count):
            self.supervisor.check_components()
            self._show_decided()
            if seams.monotonic() - last_look >= _LOOK_S:
                self._poll_airflow()
                last_look = seams.monotonic()
            if self.target_count is not None and seams.monotonic() - self._advanced > _STALLED_S:
                raise Unavailable(
                    f"no checkpoint has completed for {_STALLED_S:.0f} s; {self._situation()}",
                    help="see the runs in Airflow's UI with `tidegate up`, without --checkpoints",
                    reason="STALLED",
                )
            self.screen.now(self._situation())
            seams.sleep(_TICK_S)

    def _show_decided(self) -> None:
        for followed in self.pipelines.followed.values():
            for row in followed.decided():
                self._advanced = seams.monotonic()
                self.screen.decided(followed.dag.pipeline, row)

    def _poll_airflow(self) -> None:
        """Ask Airflow for facts that are not in the ledgers. It may be busy for a while."""
        try:
            self.pipelines.poll()
            self._check_imports(self.airflow.import_errors())
            while self.pipelines.news:
                self.screen.notify(self.pipelines.news.pop(0))
            for followed in self.pipelines.followed.values():
                self._poll_runs(followed, self.airflow.runs(followed.dag))
                if self.target_count is None and (suspension := followed.suspended()):
                    self._notify_once(_suspended(followed, suspension).what)
        except Unavailable:
            pass  # busy or ended: the supervisor handles it
        for child in self.processes.children:
            if child.name.startswith("beside") and child.exit_code:
                how = f"{child.name} has ended with exit code {child.exit_code}"
                self._notify_once(f"{how}. The end of its log:\n{log_end(child.log)}")

    def _poll_runs(self, followed: Followed, runs: list[DagRun]) -> None:
        for run in followed.failed(runs):
            why = failure_text(self.airflow, self.home, run)
            if self.target_count is not None:
                raise Rejected(
                    f"run {run.id} of DAG {run.dag} has failed: {why}",
                    help="fix that error; the next run reads the same input again",
                    reason="RUN_FAILED",
                )
            self.screen.notify(f"run {run.id} of DAG {run.dag} has failed: {why}", "red")
        idle = not any(run.active for run in runs) and not followed.open
        if self.target_count is not None and idle and followed.dag.id in self._idle:
            if suspension := followed.suspended():
                raise _suspended(followed, suspension)
            self.airflow.trigger(followed.dag)
            idle = False
        # Only after two idle polls, so that scheduled runs go first.
        if idle:
            self._idle = self._idle | {followed.dag.id}
        else:
            self._idle = self._idle - {followed.dag.id}

    def _check_imports(self, errors: dict[str, str]) -> None:
        if errors and self.target_count is not None:
            raise import_failure(errors)
        if errors:
            self._notify_once(import_failure(errors).what)

    def _notify_restart(self, text: str) -> None:
        self.screen.notify(text, "red")

    def _notify_once(self, text: str) -> None:
        if text not in self._notified:
            self._notified.add(text)
            self.screen.notify(text, "red")

    def _situation(self) -> str:
        """Describe the current activity in a few words."""
        busy = []
        for followed in self.pipelines.followed.values():
            if followed.open:
                busy.append(f"{followed.dag.pipeline}: checkpoint {followed.open[0]} is in progress")
        return "; ".join(busy) or "; ".join(_next_run(followed.dag) for followed in self.pipelines.followed.values())

    # -- end -----------------------------------------------------------------------------------------

    def _finish_checkpoints(self) -> None:
        """Wait a limited time for the runs to finish their open checkpoints, but not for those of other processes."""
        until = seams.monotonic() + _LET_END_S
        awaited = {}
        for name, followed in self.pipelines.followed.items():
            awaited[name] = set(followed.open_in_runs())
        while not self.stop.at_once() and seams.monotonic() < until:
            self._show_decided()
            if not any(awaited[name] & set(followed.open) for name, followed in self.pipelines.followed.items()):
                break
            self.screen.now(f"stopping after this: {self._situation()}; Ctrl-C again stops at once")
            seams.sleep(_TICK_S)
        self.screen.now("stopping Airflow")

    def _stop_spark(self, failed: bool) -> None:
        """Stop the embedded Spark server, which would otherwise run until its idle timeout."""
        spark = self.settings.spark
        try:
            if spark.mode == "connect" and spark.remote is None:
                connect_server.stop(server_home(self.settings.project))
        except Rejected:
            self.screen.notify("The embedded Spark server keeps running: another process uses it.")
        except TidegateError as error:
            if not failed:
                raise
            self.screen.notify(error.what)


def _suspended(followed: Followed, suspension: SuspensionState) -> Rejected:
    name = followed.dag.pipeline
    failed = ", ".join(map(str, suspension.failed_checkpoints))
    if failed:
        cause = f"checkpoint {failed} failed"
    else:
        cause = f"suspended by {suspension.cause}"
    return Rejected(
        f"pipeline {name!r} is suspended ({cause}: {suspension.why or 'no reason given'}): its runs make no checkpoint "
        f"until: {program()} resume {name}",
        expected="a pipeline that is not suspended",
        help="fix the cause and resume it; nothing is lost, its input waits",
        reason="SUSPENDED",
    )


def _next_run(dag: Dag) -> str:
    try:
        seconds = (parse_time(dag.next_run or "") - seams.now()).total_seconds()
    except ValueError:
        return f"{dag.pipeline}: waiting for a run"
    if seconds >= 1:
        return f"{dag.pipeline}: next run in {seconds:.0f} s"
    return f"{dag.pipeline}: a run is due"
