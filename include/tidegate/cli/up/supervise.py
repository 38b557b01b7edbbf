"""Keeps Airflow's components running: restarts one that has ended, hangs, or starts no more tasks.

It checks whether the process lives, Airflow's health page, and how long tasks are queued while the executor has free
slots. The last check detects a LocalExecutor with a killed idle worker: that worker held the lock of the queue, the
kernel does not release such a lock, and all other workers wait for it forever.
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

_CHECK_S = 5.0
_START_S = 300.0
"""The time limit for a component to start."""
_SILENT_S = 60.0
"""The time for which a healthy API server may not answer, or another healthy component may send no heartbeat."""
_QUEUED_S = 60.0
"""The time for which a task may be queued while a slot is free. Usually a second, on a busy machine several."""
_MAX_QUEUED_S = 600.0
_STEADY_S = 60.0
"""A component that was healthy and has run this long does not count as one that keeps ending."""
_ENDS = 5
"""The number of times in a row that a component may end before we give up."""
_MAX_WAIT_S = 15.0


@dataclass
class Component:
    """A component and its current condition."""

    name: str
    command: Sequence[str]
    child: Child | None = None
    began: float = 0.0
    since: datetime = field(default_factory=seams.now)
    """Its start time, by the clock of its heartbeats."""
    beat: datetime | None = None
    """Its last heartbeat."""
    well_at: float | None = None
    """When it was last healthy since its start."""
    ends: int = 0
    """The number of times in a row that it has ended."""
    due: float | None = None
    """When to restart it."""


class Supervisor:
    """Starts Airflow's components, and restarts them when needed. The caller must call `check_components` regularly."""

    def __init__(
        self,
        processes: Processes,
        airflow: Airflow,
        commands: Mapping[str, Sequence[str]],
        room: int,
        notify: Callable[[str], None],
    ) -> None:
        """room: the number of tasks that may run at the same time."""
        self.parts = {name: Component(name, command) for name, command in commands.items()}
        self._processes = processes
        self._airflow = airflow
        self._room = room
        self._notify = notify
        self._queued: dict[str, float] = {}
        """Queued tasks, each with the time when it was first found queued."""
        self._patience = _QUEUED_S
        self._checked_at = 0.0

    def start(self) -> None:
        """Start all components except those that were taken over."""
        running = {child.name: child for child in self._processes.children}
        for part in self.parts.values():
            if (child := running.get(part.name)) is not None:
                part.child, part.began, part.since = child, seams.monotonic(), seams.now()
            else:
                self._start(part)

    def check_components(self) -> None:
        """Restart ended components, and regularly check the rest. Raise Unavailable if one keeps ending."""
        for part in self.parts.values():
            if part.due is not None:
                if seams.monotonic() >= part.due:
                    self._start(part)
            elif part.child is not None and part.child.ended:
                code = part.child.exit_code
                # A killed process had no chance to log an error.
                error = last_error(part.child.log) if code is not None and code > 0 else ""
                self._note_end(part, f"has ended{_exit_text(code)}", error)
        if seams.monotonic() - self._checked_at >= _CHECK_S:
            self._check_health()
            self._checked_at = seams.monotonic()

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
            # While the server does not answer, the health of the other components is unknown.
            if part.child is not None and part.due is None and (beats or part.name == SERVER):
                self._end_if_hanging(part)
        if beats:
            self._end_if_tasks_stay_queued()

    def _mark_healthy(self, name: str) -> None:
        part = self.parts[name]
        if part.child is not None:
            part.well_at = seams.monotonic()

    def _end_if_hanging(self, part: Component) -> None:
        allowed = _START_S if part.well_at is None else _SILENT_S
        if (silent := seams.monotonic() - (part.well_at or part.began)) > allowed:
            self._note_end(part, f"has not responded for {silent:.0f} s")

    def _end_if_tasks_stay_queued(self) -> None:
        """Restart the scheduler if a task stays queued although the executor has free slots."""
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
        # A new scheduler adopts the tasks that the previous one had queued only some time after its start.
        self._queued = {id: max(self._queued.get(id, now), part.began) for id in queued}
        for id, since in self._queued.items():
            if now - since > self._patience and running < self._room:
                why = f"has not started {queued[id]} for {now - since:.0f} s, although it has a free slot"
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
        """End the remaining processes of a component, and schedule its restart, a little later each time."""
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
                f"Airflow's {part.name} keeps ending: {part.ends} times in a row it ended soon after its start; now it "
                f"{how}{cause}",
                expected="components of Airflow that keep running",
                help=f"fix that error, then start again: {program()} up. The whole log: "
                f"{self._processes.home.log(part.name)}",
                reason="AIRFLOW_ENDED",
            )
        wait = min(2.0 ** (part.ends - 1), _MAX_WAIT_S)
        part.due = now + wait
        self._notify(f"Airflow's {part.name} {how}{cause}. It will be restarted in {wait:.0f} s.")


def _exit_text(code: int | None) -> str:
    """Return an explanation of an exit code; empty for None, an unknown one."""
    if code is None:
        return ""
    if code < 0:
        return f", killed by {signal_name(-code)}"
    return f" with exit code {code}"
