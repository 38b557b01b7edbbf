"""The lowest priority: for work beside production that must not slow it down.

On Linux a nice value counts among the processes of one session. Sessions share the processors equally, whatever the
nice values inside them, as long as the kernel groups by session (`sched_autogroup_enabled`).
So a session that this process leads, and that nobody else uses, gets the lowest priority as well. That of a worker, a
scheduler or a terminal is not ours. The priority of reads and writes follows the nice value.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tidegate import seams

__all__ = ["lower_session_priority", "lowest_priority"]

LOWEST = 19
_PROCESSES = Path("/proc")
_SESSION = _PROCESSES / "self/autogroup"
_FIRST_TO_END = _PROCESSES / "self/oom_score_adj"
DISPENSABLE = 900
"""So large is this where memory runs out: such a process is ended before those of production."""
_NEXT_CHANGE = 0.15
"""Sooner, the kernel may refuse to change the priority of a session again."""


@contextlib.contextmanager
def lowest_priority() -> Iterator[None]:
    """Give this process, and what it starts in the block, processors and disks only when nobody else needs them."""
    before, session_before = os.getpriority(os.PRIO_PROCESS, 0), _session_priority()
    is_ours = _leads_session_alone()
    _set_priority(LOWEST)
    if is_ours:
        _set_session_priority(LOWEST)
    try:
        yield
    finally:
        _set_priority(before)  # without effect if the user may not raise it; the process ends soon, anyway
        if is_ours and session_before is not None:
            _set_session_priority(session_before, tries_again=True)


def lower_session_priority() -> None:
    """Call it in a new session: it gets the lowest priority if this process has it, and is the first to end where
    memory runs out."""
    if os.getpriority(os.PRIO_PROCESS, 0) >= LOWEST and _leads_session():
        _set_session_priority(LOWEST)
        with contextlib.suppress(OSError):
            _FIRST_TO_END.write_text(str(DISPENSABLE))


def _set_priority(priority: int) -> None:
    """Set the priority of all threads of this process. New threads and processes inherit it."""
    threads = _PROCESSES / "self/task"
    ids = [int(name) for name in os.listdir(threads)] if threads.is_dir() else [0]
    for id in ids:
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, id, priority)


def _session_priority() -> int | None:
    """Return the priority of our session, or None if the kernel does not group by session."""
    try:
        return int(_SESSION.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def _set_session_priority(priority: int, *, tries_again: bool = False) -> None:
    with contextlib.suppress(OSError):
        try:
            _SESSION.write_text(str(priority))
        except BlockingIOError:
            if not tries_again:
                raise
            seams.sleep(_NEXT_CHANGE)
            _SESSION.write_text(str(priority))


def _leads_session() -> bool:
    return os.getsid(0) == os.getpid()


def _leads_session_alone() -> bool:
    """Return whether this process leads its session, and the session has only us and what we have started."""
    if sys.platform != "linux" or not _leads_session():
        return False
    parents, own = {}, os.getpid()
    for name in os.listdir(_PROCESSES):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):  # it has ended
                # "pid (name) state parent group session …"; a name may have spaces and brackets.
                words = (_PROCESSES / name / "stat").read_text().rpartition(")")[2].split()
                if int(words[3]) == os.getsid(0) and words[0] != "Z":
                    parents[int(name)] = int(words[1])
    return all(own in _line_of(id, parents) for id in parents)


def _line_of(id: int, parents: dict[int, int]) -> list[int]:
    """Return a process and its ancestors in the session."""
    line = []
    while id in parents and id not in line:
        line.append(id)
        id = parents[id]
    return line
