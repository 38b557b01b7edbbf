"""The only access to the clock, to random ids and to injected faults.

All other code in tidegate calls this module, so that tests can replace all three: the simulator has a simulated clock,
ids come from a seed, and a crash test stops a real process at a named point. Lint bans `time`, `datetime.now`, `uuid`,
`random` and `secrets` elsewhere.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tidegate.versions.python import UTC

__all__ = ["FAULT_POINTS", "Seams", "current", "fault", "installed", "monotonic", "new_id", "now", "sleep"]

FAULT_POINTS: dict[str, str] = {
    # Crash matrix of docs/reliability.md: "<step>.<what>.before" stops with nothing done, ".after" with it done
    # and the caller not yet told. A point without a crash test fails tests/test_tidy.py.
    "S1.entry.before": "the checkpoint's id is still free",
    "S1.entry.after": "plan.json exists (S2: it is the plan; never computed again)",
    "S2.run.before": "plan.json exists, runs/ index does not",
    "S2.run.after": "plan.json and runs/ index exist",
    "S3.inputs.after": "the job has read its records, nothing is written",
    "S4.stage.before": "nothing is staged",
    "S4.stage.after": "staged files exist, nobody names them",
    "S4.state.before": "what an operator changes, or runs to be merged, are not written",
    "S4.state.after": "an operator's files exist, of a merge too; nobody names them",
    "S5.gate.before": "a gate has its rows, nothing is judged or quarantined",
    "S5.gate.after": "judged and quarantined, no ack says so",
    "S5.through.before": "at least once: rows are staged, no table names them",
    "S5.through.after": "at least once: a table shows rows, no ack says so",
    "S6.ack.before": "everything is staged and durable, no ack",
    "S6.ack.after": "the ack exists",
    "S6.overtaken.before": "a job is found busy, nobody knows that the checkpoint goes past it",
    "S6.overtaken.after": "the ledger says that the checkpoint goes past the job",
    "S7.answer.before": "a checkpoint is held, nobody has answered",
    "S7.answer.after": "the answer exists, nothing follows from it yet",
    "Q1.request.before": "rows wait in quarantine, nobody has asked for them",
    "Q1.request.after": "a request exists, no plan has taken it up",
    "S8.manifest.before": "all acks are in, no manifest",
    "S8.manifest.after": "a manifest that no decision names",
    "S9.decision.before": "manifest and run index exist, no decision",
    "S9.decision.after": "the decision exists: THE commit point is passed",
    "S10.publish.before": "the table's next commit is computed, not written",
    "S10.publish.after": "the table's commit exists, the process does not know",
    "S10.divert.before": "a table shows whether a divert applied, no record says so",
    "S10.divert.after": "the record says whether the divert applied, nothing follows from it yet",
    "S11.interval.before": "all tables hold the interval, its index does not tell so",
    "S11.interval.after": "the interval is indexed, hints are old",
    "S11.published.before": "all tables are published, hints are old",
    "S11.published.after": "published.json exists, latest.json is old",
    "H1.history.before": "what is settled is in the ledger only, the history's next commit is not written",
    "H1.history.after": "the history has it, the process does not know",
    "S12.retire.before": "the entry is still restorable",
    "S12.retire.after": "the tombstone exists, nothing is deleted",
    "S13.delete.before": "the tombstone was confirmed, nothing is deleted",
    "S13.delete.after": "some or all files of the retired entry are gone",
    "R1.pin.before": "a rollback's target is verified, nothing refers to it",
    "R1.pin.after": "the target is pinned, the rollback is no entry yet",
    "A1.abort.before": "a dead entry is still pending",
    "A1.abort.after": "the dead entry's abort exists",
}


def _no_fault(point: str) -> None:
    """The product's fault hook: does nothing."""


@dataclass(frozen=True)
class Seams:
    """The seams that a test may replace. The defaults are the real things."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: secrets.token_hex(8)
    fault: Callable[[str], None] = _no_fault


_current = Seams()


def current() -> Seams:
    """Return the seams of this process, for a test that replaces only some of them."""
    return _current


@contextlib.contextmanager
def installed(seams: Seams) -> Iterator[Seams]:
    """Replace the seams of this process for the length of a `with` block. For tests only."""
    global _current
    before, _current = _current, seams
    try:
        yield seams
    finally:
        _current = before


def now() -> datetime:
    """Wall-clock time in UTC. For people and statistics; nothing is decided by it."""
    return _current.now()


def monotonic() -> float:
    """Seconds on a clock that never jumps. For durations."""
    return _current.monotonic()


def sleep(seconds: float) -> None:
    """Wait."""
    _current.sleep(seconds)


def new_id() -> str:
    """A fresh random id of 16 hex digits: an attempt, a pipeline's uid, a temporary name."""
    return _current.new_id()


def fault(point: str) -> None:
    """A place where a crash test may stop, fail or hang this process. Does nothing in production."""
    if point not in FAULT_POINTS:
        raise KeyError(f"fault point {point!r} is not in seams.FAULT_POINTS")
    _current.fault(point)
