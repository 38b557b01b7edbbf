"""The deadline of a job: its checkpoint's timeout, under Airflow and in `tidegate run`.

All attempts of a job share it. After it, Spark's work is cancelled and the attempt ends, unless the checkpoint need not
wait for the job (unaligned checkpoints).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.context import PipelineContext
from tidegate.checkpoint.manifests import jobs_without_ack
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.records import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DeadlinePassed",
    "NoTimeLeft",
    "SparkNeverReady",
    "cancel_in_time",
    "deadline",
    "job_deadline",
    "job_is_late",
    "more_time",
    "opened",
    "remaining_seconds",
]

CANCEL_S = 3.0
"""How long Spark may take to cancel its work. Airflow sends SIGKILL 5 s after SIGTERM."""

LOOK_AGAIN_S = 30.0
"""The interval at which a job past its checkpoint's timeout checks whether it may continue."""

END_S = 30.0
"""The interval at which an attempt that has not ended after the deadline is interrupted again."""


class DeadlinePassed(KeyboardInterrupt):
    """The checkpoint's timeout is over."""


class NoTimeLeft(DeadlinePassed):
    """The timeout was over before the attempt began."""


class SparkNeverReady(DeadlinePassed):
    """The timeout was over before Spark was ready."""


@contextlib.contextmanager
def job_deadline(context: PipelineContext, plan: Plan, job: str, cancel: Callable[[], None]) -> Iterator[None]:
    """Raise DeadlinePassed in the block when the checkpoint's timeout is over, or before it begins if it is already.

    cancel: cancels Spark's work.
    """
    remaining = remaining_seconds(context, plan, job)
    if remaining is None:
        yield
        return
    if remaining <= 0:
        raise NoTimeLeft
    with deadline(remaining, cancel, lambda: more_time(context, plan, job)):
        yield


def remaining_seconds(context: PipelineContext, plan: Plan, job: str) -> float | None:
    """Return how long a job may work until its deadline is checked again, or 0 or less if it must end.

    None: it has no deadline, since users choose how large backfills and manual edits are.
    """
    if plan.by_hand is not None or not context.limits_jobs:
        return None
    remaining = plan.timeout_s - context.ledger.age(plan)
    if remaining > 0:
        return remaining
    return more_time(context, plan, job)


def more_time(context: PipelineContext, plan: Plan, job: str) -> float:
    """Return how long a job may continue after its checkpoint's timeout: 0 unless the checkpoint can overtake it."""
    entry = context.ledger.entry(plan.id)
    if entry is None or entry.aborted or job not in entry.overtakable:
        return 0.0
    if entry.completed or job not in jobs_without_ack(context.ledger, entry):
        return LOOK_AGAIN_S
    return 0.0


def opened(sessions: Callable[[str | None], SparkSession], job: str) -> SparkSession:
    """Return the job's Spark session. Raise SparkNeverReady if the deadline passes before there is one."""
    try:
        return sessions(job)
    except DeadlinePassed:
        raise SparkNeverReady from None


def job_is_late(job: str, plan: Plan, passed: DeadlinePassed) -> TidegateError:
    """Return the error of a job that missed its deadline. If Spark was not ready, the pipeline is not at fault."""
    limit = f"within checkpoint {plan.id}'s timeout of {plan.timeout_s:g} s"
    if isinstance(passed, NoTimeLeft):
        return Invalid(
            f"job {job!r} could not begin {limit}, which was over before",
            help="check what delayed it, such as other jobs, failed tries, or a wait for a free slot; if all of that "
            "is needed, raise `timeout`. The next run reads the same input",
            reason="CHECKPOINT_EXPIRED",
        )
    if not isinstance(passed, SparkNeverReady):
        return Invalid(
            f"job {job!r} was not done {limit}",
            help="raise `timeout`, or read less input per checkpoint",
            reason="CHECKPOINT_EXPIRED",
        )
    return Unavailable(
        f"Spark was not ready for job {job!r} {limit}",
        help="check its server (`tidegate doctor`) and the load of the machine; if it needs longer to start, raise "
        "`timeout`. The next run reads the same input",
        reason="SPARK_START",
    )


@contextlib.contextmanager
def deadline(seconds: float, cancel: Callable[[], None], more: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """Cancel Spark's work when time is up, and raise DeadlinePassed in the block.

    more: called when time is up, returns how much longer the block may continue. Only the main thread can be
    interrupted. In another thread, DeadlinePassed replaces the error of the cancelled work.
    """
    if threading.current_thread() is threading.main_thread():
        with _limit_with_alarm(seconds, cancel, more):
            yield
    else:
        with _limit_with_thread(seconds, cancel, more):
            yield


@contextlib.contextmanager
def _limit_with_alarm(seconds: float, cancel: Callable[[], None], more: Callable[[], float]) -> Iterator[None]:
    def on_alarm(number: int, frame: FrameType | None) -> None:
        extensions: list[float] = []
        cancel_in_time(lambda: extensions.append(more()))
        if extensions and extensions[0] > 0:
            signal.setitimer(signal.ITIMER_REAL, extensions[0], END_S)
            return
        cancel_in_time(cancel)
        signal.setitimer(signal.ITIMER_REAL, END_S, END_S)
        raise DeadlinePassed

    began = seams.monotonic()
    previous_handler = signal.signal(signal.SIGALRM, on_alarm)
    # The alarm repeats until the block has ended: Python ignores exceptions in a finalizer, and may miss the signal if
    # another thread takes the interpreter's lock at that moment.
    previous_delay, previous_interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), END_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        if previous_delay > 0:  # such as the time limit of a test
            remaining = previous_delay - (seams.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.001), previous_interval)


@contextlib.contextmanager
def _limit_with_thread(seconds: float, cancel: Callable[[], None], more: Callable[[], float]) -> Iterator[None]:
    ended, passed = threading.Event(), threading.Event()

    def watch() -> None:
        pause = max(seconds, 0.001)
        while not ended.wait(pause):
            pause = 0.0
            if not passed.is_set():
                with contextlib.suppress(TidegateError):
                    pause = more()
            if pause <= 0:
                passed.set()
                cancel()
                pause = END_S

    thread = threading.Thread(target=watch, daemon=True, name="deadline")
    thread.start()
    try:
        yield
    except Exception as error:
        if passed.is_set():
            raise DeadlinePassed from error
        raise
    finally:
        ended.set()


def cancel_in_time(cancel: Callable[[], None]) -> None:
    """Cancel in another thread: the signal may have interrupted the client that has to send the request."""
    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(CANCEL_S)
