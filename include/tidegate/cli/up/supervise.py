"""Keeps Airflow's components at work: one that has ended, hangs, or starts no task any more is started again.

What it knows of them: whether the process lives, what Airflow's health page says of it, and for how long a task has
been queued while the executor has room. That last is how a LocalExecutor looks of which an idle worker was killed:
the worker held the lock of the queue, the kernel keeps a lock of that kind, and all other workers wait for it for ever.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidegate import seams
from tidegate.cli.targets import program
from tidegate.cli.up.airflow import Airflow
from tidegate.cli.up.processes import Child, Processes, last_error
from tidegate.errors import Unavailable

__all__ = ["SCHEDULER", "SERVER", "Supervisor"]

SERVER = "api-server"
SCHEDULER = "scheduler"

_LOOK_S = 5.0
_START_S = 300.0
"""For how long a component may be busy starting."""
_SILENT_S = 60.0
"""For how long the API server may not answer, or another one not be well, once it has been."""
_QUEUED_S = 60.0
"""For how long a task may be queued while there is room for it. It takes a second, on a busy machine some."""
_LONGEST_QUEUED_S = 600.0
_STEADY_S = 60.0
"""A component that has been well and lived for so long is no longer one that keeps ending."""
_ENDS = 5
"""So many times in a row a component may end before it is given up."""
_LONGEST_WAIT_S = 15.0


@dataclass
class Component:
    """A component, and what has become of it."""

    name: str
    command: Sequence[str]
    child: Child | None = None
    began: float = 0.0
    since: datetime = field(default_factory=seams.now)
    """When it was started, by the clock by which it writes down its heartbeats."""
    beat: datetime | None = None
    """Its last heartbeat."""
    well_at: float | None = None
    """When it was last seen to be well since it was started."""
    ends: int = 0
    """How many times in a row it has ended."""
    due: float | None = None
    """When it is started again."""


class Supervisor:
    """Airflow's components. Asked to look again and again, it tells what it does about them."""

    def __init__(
        self,
        processes: Processes,
        airflow: Airflow,
        commands: Mapping[str, Sequence[str]],
        room: int,
        tell: Callable[[str], None],
    ) -> None:
        """room: how many tasks may run at the same time."""
        self.parts = {name: Component(name, command) for name, command in commands.items()}
        self._processes = processes
        self._airflow = airflow
        self._room = room
        self._tell = tell
        self._queued: dict[str, float] = {}
        """Tasks that are queued, and when each was first seen so."""
        self._patience = _QUEUED_S
        self._looked = 0.0

    def start(self) -> None:
        """Start all."""
        for part in self.parts.values():
            self._start(part)

    def look(self) -> None:
        """Start again what has ended; now and then, ask Airflow how the others are. Unavailable if one keeps ending."""
        for part in self.parts.values():
            if part.due is not None:
                if seams.monotonic() >= part.due:
                    self._start(part)
            elif part.child is not None and (code := part.child.ended) is not None:
                # Who was killed had no chance to say why.
                self._has_ended(part, f"has ended{_how(code)}", last_error(part.child.log) if code > 0 else "")
        if seams.monotonic() - self._looked >= _LOOK_S:
            self._ask()
            self._looked = seams.monotonic()

    # -- how they are --------------------------------------------------------------------------------

    def _ask(self) -> None:
        try:
            beats = self._airflow.heartbeats()
            self._well(SERVER)
        except Unavailable:
            beats = {}
        for name, beat in beats.items():
            part = self.parts.get(name)
            if part is not None and beat is not None and beat >= part.since and beat != part.beat:
                part.beat = beat
                self._well(name)
        for part in self.parts.values():
            # Nobody tells how the others are while the server does not.
            if part.child is not None and part.due is None and (beats or part.name == SERVER):
                self._end_if_it_hangs(part)
        if beats:
            self._end_if_it_starts_no_task()

    def _well(self, name: str) -> None:
        part = self.parts[name]
        if part.child is not None:
            part.well_at = seams.monotonic()

    def _end_if_it_hangs(self, part: Component) -> None:
        allowed = _START_S if part.well_at is None else _SILENT_S
        if (silent := seams.monotonic() - (part.well_at or part.began)) > allowed:
            self._has_ended(part, f"has given no sign of life for {silent:.0f} s")

    def _end_if_it_starts_no_task(self) -> None:
        """A task waits for the executor, which has room and does not take it."""
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
        # Those that the scheduler before had queued are taken over a while after it was started.
        self._queued = {id: max(self._queued.get(id, now), part.began) for id in queued}
        for id, since in self._queued.items():
            if now - since > self._patience and running < self._room:
                why = f"has not started {queued[id]} for {now - since:.0f} s, though it has room for it"
                # If that does not help, the machine is only slow: all the less is it to begin anew all the time.
                self._patience = min(2 * self._patience, _LONGEST_QUEUED_S)
                self._has_ended(part, why)
                return

    # -- what follows --------------------------------------------------------------------------------

    def _start(self, part: Component) -> None:
        part.began, part.since, part.due, part.well_at = seams.monotonic(), seams.now(), None, None
        try:
            part.child = self._processes.start(part.name, part.command)
        except OSError as error:  # its log cannot be written, or there is no room for one more process
            self._has_ended(part, "cannot be started", error.strerror or str(error))

    def _has_ended(self, part: Component, how: str, error: str = "") -> None:
        """End what is left of it, and let it be started again a little later each time."""
        now = seams.monotonic()
        steady = part.well_at is not None and now - part.began >= _STEADY_S
        part.ends = 1 if steady else part.ends + 1
        if part.child is not None:
            self._processes.end(part.child)
            part.child = None
        if part.name == SCHEDULER:
            self._queued.clear()
        said = f": {error}" if error else ""
        if part.ends >= _ENDS:
            raise Unavailable(
                f"Airflow's {part.name} does not stay up: {part.ends} times in a row it ended soon after it was "
                f"started; now it {how}{said}",
                expected="components of Airflow that stay up",
                help=f"correct what it says, then start again: {program()} up. Its whole log: "
                f"{self._processes.home.log(part.name)}",
                reason="AIRFLOW_ENDED",
            )
        wait = min(2.0 ** (part.ends - 1), _LONGEST_WAIT_S)
        part.due = now + wait
        self._tell(f"Airflow's {part.name} {how}{said}. It is started again in {wait:.0f} s.")


def _how(code: int) -> str:
    """What an exit code says."""
    if code < 0:
        names: Iterable[signal.Signals] = signal.Signals
        return f", killed by {next((each.name for each in names if each == -code), f'signal {-code}')}"
    return f" with exit code {code}"
