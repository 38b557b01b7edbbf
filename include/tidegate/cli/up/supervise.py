"""Keeps Airflow's components running: one that has ended, hangs, or starts no more tasks is restarted.

It checks whether the process lives, Airflow's health page, and how long a task has been queued while the executor has
room. The last shows a LocalExecutor with a killed idle worker: the worker held the lock of the queue, the kernel keeps
a lock of that kind, and all other workers wait for it forever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidegate import seams
from tidegate.cli.targets import program
from tidegate.cli.up.airflow import Airflow
from tidegate.cli.up.processes import Child, Processes, last_error
from tidegate.errors import Unavailable
from tidegate.spark.server.processes import signal_name

__all__ = ["SCHEDULER", "SERVER", "Supervisor"]

SERVER = "api-server"
SCHEDULER = "scheduler"

_LOOK_S = 5.0
_START_S = 300.0
"""How long a component may take to start."""
_SILENT_S = 60.0
"""How long a healthy API server may be silent, or another healthy component give no heartbeat."""
_QUEUED_S = 60.0
"""How long a task may be queued while there is room for it. Usually it takes a second, on a busy machine several."""
_MAX_QUEUED_S = 600.0
_STEADY_S = 60.0
"""A component that was healthy and lived this long does not count as one that keeps ending."""
_ENDS = 5
"""How many times in a row a component may end before we give up."""
_MAX_WAIT_S = 15.0


@dataclass
class Component:
    """A component and its current condition."""

    name: str
    command: Sequence[str]
    child: Child | None = None
    began: float = 0.0
    since: datetime = field(default_factory=seams.now)
    """When it was started, by the clock of its heartbeats."""
    beat: datetime | None = None
    """Its last heartbeat."""
    well_at: float | None = None
    """When it last proved healthy since its start."""
    ends: int = 0
    """How many times in a row it has ended."""
    due: float | None = None
    """When it is to be restarted."""


class Supervisor:
    """Starts Airflow's components and restarts them when needed. `check_components` is called again and again."""

    def __init__(
        self,
        processes: Processes,
        airflow: Airflow,
        commands: Mapping[str, Sequence[str]],
        room: int,
        notify: Callable[[str], None],
    ) -> None:
        """room: how many tasks may run at the same time."""
        self.parts = {name: Component(name, command) for name, command in commands.items()}
        self._processes = processes
        self._airflow = airflow
        self._room = room
        self._notify = notify
        self._queued: dict[str, float] = {}
        """Queued tasks, each with the time when it was first found queued."""
        self._patience = _QUEUED_S
        self._looked = 0.0

    def start(self) -> None:
        """Start all components but those that were taken over."""
        running = {child.name: child for child in self._processes.children}
        for part in self.parts.values():
            if (child := running.get(part.name)) is not None:
                part.child, part.began, part.since = child, seams.monotonic(), seams.now()
            else:
                self._start(part)

    def check_components(self) -> None:
        """Restart components that have ended, and check the others now and then. Unavailable if one keeps ending."""
        for part in self.parts.values():
            if part.due is not None:
                if seams.monotonic() >= part.due:
                    self._start(part)
            elif part.child is not None and part.child.ended:
                code = part.child.exit_code
                # A killed process had no chance to log an error.
                error = last_error(part.child.log) if code is not None and code > 0 else ""
                self._note_end(part, f"has ended{_exit_text(code)}", error)
        if seams.monotonic() - self._looked >= _LOOK_S:
            self._check_health()
            self._looked = seams.monotonic()

    # -- health --------------------------------------------------------------------------------------

    def _check_health(self) -> None:
        try:
            beats = self._airflow.heartbeats()
            self._mark_healthy(SERVER)
        except Unavailable:
            beats = {}
        for name, beat in beats.items():
            part = self.parts.get(name)
            if part is not None and beat is not None and beat >= part.since and beat != part.beat:
                part.beat = beat
                self._mark_healthy(name)
        for part in self.parts.values():
            # While the server does not answer, the health of the others is unknown.
            if part.child is not None and part.due is None and (beats or part.name == SERVER):
                self._end_if_it_hangs(part)
        if beats:
            self._end_if_it_starts_no_task()

    def _mark_healthy(self, name: str) -> None:
        part = self.parts[name]
        if part.child is not None:
            part.well_at = seams.monotonic()

    def _end_if_it_hangs(self, part: Component) -> None:
        allowed = _START_S if part.well_at is None else _SILENT_S
        if (silent := seams.monotonic() - (part.well_at or part.began)) > allowed:
            self._note_end(part, f"has given no sign of life for {silent:.0f} s")

    def _end_if_it_starts_no_task(self) -> None:
        """Restart the scheduler if a task stays queued although the executor has room."""
        part = self.parts[SCHEDULER]
        if part.child is None or part.due is not None or part.well_at is None:
            self._queued.clear()
            return
        try:
            queued, running = self._airflow.waiting_tasks()
        except Unavailable:
            return
        now = seams.monotonic()
        if running:
            self._patience = _QUEUED_S
        # Tasks that the previous scheduler had queued are taken over some time after the new one's start.
        self._queued = {id: max(self._queued.get(id, now), part.began) for id in queued}
        for id, since in self._queued.items():
            if now - since > self._patience and running < self._room:
                why = f"has not started {queued[id]} for {now - since:.0f} s, though it has room for it"
                # If the restart does not help, the machine is only slow, and frequent restarts would make it worse.
                self._patience = min(2 * self._patience, _MAX_QUEUED_S)
                self._note_end(part, why)
                return

    # -- restarts ------------------------------------------------------------------------------------

    def _start(self, part: Component) -> None:
        part.began, part.since, part.due, part.well_at = seams.monotonic(), seams.now(), None, None
        try:
            part.child = self._processes.start(part.name, part.command)
        except OSError as error:  # its log cannot be written, or no more processes are allowed
            self._note_end(part, "cannot be started", error.strerror or str(error))

    def _note_end(self, part: Component, how: str, error: str = "") -> None:
        """End its remaining processes, and schedule the restart, a little later each time."""
        now = seams.monotonic()
        steady = part.well_at is not None and now - part.began >= _STEADY_S
        part.ends = 1 if steady else part.ends + 1
        if part.child is not None:
            self._processes.end(part.child)
            part.child = None
        if part.name == SCHEDULER:
            self._queued.clear()
        cause = f": {error}" if error else ""
        if part.ends >= _ENDS:
            raise Unavailable(
                f"Airflow's {part.name} does not stay up: {part.ends} times in a row it ended soon after it was "
                f"started; now it {how}{cause}",
                expected="components of Airflow that stay up",
                help=f"fix that error, then start again: {program()} up. The whole log: "
                f"{self._processes.home.log(part.name)}",
                reason="AIRFLOW_ENDED",
            )
        wait = min(2.0 ** (part.ends - 1), _MAX_WAIT_S)
        part.due = now + wait
        self._notify(f"Airflow's {part.name} {how}{cause}. It will be restarted in {wait:.0f} s.")


def _exit_text(code: int | None) -> str:
    """Explain an exit code. None: nobody knows it."""
    if code is None:
        return ""
    if code < 0:
        return f", killed by {signal_name(-code)}"
    return f" with exit code {code}"
