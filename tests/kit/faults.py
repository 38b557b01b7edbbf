"""Stop a real process at a named point: for crash tests of tidegate itself and of users' own sinks.

K   the process is killed (SIGKILL)
E   the point raises Unavailable: the process continues and handles it
A   a ledger create succeeds, and its answer is lost: "applied, but an error came back"
Z   the process hangs until a file appears: meanwhile another attempt takes over, then it resumes
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate import seams
from tidegate.errors import Invalid, Unavailable
from tidegate.ledger.store import LocalStore

__all__ = ["Fault", "lose_answers"]

MODES = ("K", "E", "A", "Z")


@dataclass
class Fault:
    """One fault: its point, its mode, and the pass at which it happens (1 = the first)."""

    point: str
    mode: str
    nth: int = 1
    gate: Path | None = None
    """Z: the process writes `<gate>.reached`, then waits for `<gate>`."""
    passed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES or (self.mode != "A" and self.point not in seams.FAULT_POINTS):
            raise Invalid(f"no fault {self.point}:{self.mode}", expected=f"a fault point and one of {', '.join(MODES)}")

    def installed(self, base: seams.Seams | None = None) -> seams.Seams:
        """Return seams that inject this fault."""
        return replace(base or seams.Seams(), fault=self)

    def __call__(self, point: str) -> None:
        if point != self.point:
            return
        self.passed += 1
        if self.passed != self.nth:
            return
        if self.mode == "K":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.mode == "E":
            raise Unavailable(f"injected fault at {point}", reason="INJECTED")
        elif self.mode == "Z":
            self._hang()

    def _hang(self) -> None:
        assert self.gate is not None
        Path(f"{self.gate}.reached").touch()
        while not self.gate.exists():
            seams.sleep(0.02)


def lose_answers(path_part: str) -> Callable[[], None]:
    """Make the next create whose path holds `path_part` succeed and then raise Unavailable.

    Returns a function that undoes the patch.
    """
    real = LocalStore.create
    pending = [path_part]

    def create(self: LocalStore, path: str, data: bytes) -> bool:
        created = real(self, path, data)
        if pending and pending[0] in path:
            pending.clear()
            raise Unavailable(f"injected: the answer about {path} was lost", reason="INJECTED")
        return created

    LocalStore.create = create  # type: ignore[method-assign]

    def undo() -> None:
        LocalStore.create = real  # type: ignore[method-assign]

    return undo
