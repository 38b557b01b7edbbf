"""The one deadline of a job: its checkpoint's timeout, under Airflow, in `tidegate run`, and for a change by hand.

All attempts of a job share it. Once it is over, Spark is told to drop its work, and the attempt ends wherever it is,
unless the checkpoint need not wait for the job (unaligned checkpoints).
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
    "seconds_left",
]

CANCEL_S = 3.0
"""The time that Spark has to cancel. Airflow sends SIGKILL 5 s after SIGTERM."""

LOOK_AGAIN_S = 30.0
"""The interval at which a job past its checkpoint's timeout checks whether it may continue."""

END_S = 30.0
"""How long after the deadline an attempt that has not ended is ended once more."""


class DeadlinePassed(KeyboardInterrupt):
    """The checkpoint's timeout is over."""


class NoTimeLeft(DeadlinePassed):
    """The same, before an attempt began."""


class SparkNeverReady(DeadlinePassed):
    """The same, and there was no Spark to work with by then."""


@contextlib.contextmanager
def job_deadline(context: PipelineContext, plan: Plan, job: str, cancel: Callable[[], None]) -> Iterator[None]:
    """End the block with DeadlinePassed once the checkpoint's timeout is over, and do not begin it if it is over
    already. cancel: has Spark drop its work."""
    left = seconds_left(context, plan, job)
    if left is None:
        yield
        return
    if left <= 0:
        raise NoTimeLeft
    with deadline(left, cancel, lambda: more_time(context, plan, job)):
        yield


def seconds_left(context: PipelineContext, plan: Plan, job: str) -> float | None:
    """Return for how long a job may work before it is asked again whether its checkpoint waits for it; 0 or less: no
    longer.

    None: as long as it takes. A backfill's checkpoints and changes by hand may be as large as a person asks for.
    """
    if plan.by_hand is not None or not context.limits_jobs:
        return None
    left = plan.timeout_s - context.ledger.age(plan)
    return left if left > 0 else more_time(context, plan, job)


def more_time(context: PipelineContext, plan: Plan, job: str) -> float:
    """Return for how long a job may continue when its checkpoint's time is over: as long as that need not wait for
    it."""
    entry = context.ledger.entry(plan.id)
    if entry is None or entry.aborted or job not in entry.overtakable:
        return 0.0
    return LOOK_AGAIN_S if entry.completed or job not in jobs_without_ack(context.ledger, entry) else 0.0


def opened(sessions: Callable[[str | None], SparkSession], job: str) -> SparkSession:
    """Return the job's Spark session. Raise SparkNeverReady if the deadline passes before there is one."""
    try:
        return sessions(job)
    except DeadlinePassed:
        raise SparkNeverReady from None


def job_is_late(job: str, plan: Plan, passed: DeadlinePassed) -> TidegateError:
    """Return the error of a job that is not done in its checkpoint's time. Without Spark that is not the pipeline's
    fault."""
    limit = f"within checkpoint {plan.id}'s timeout of {plan.timeout_s:g} s"
    if isinstance(passed, NoTimeLeft):
        return Invalid(
            f"job {job!r} could not begin {limit}: that was over before",
            help="look at what came before it, such as other jobs, failed tries, or a wait for a free slot; if all "
            "of that needs so long, raise `timeout`. The next run takes the same input",
            reason="CHECKPOINT_EXPIRED",
        )
    if not isinstance(passed, SparkNeverReady):
        return Invalid(
            f"job {job!r} was not done {limit}",
            help="raise `timeout`, or take less input per checkpoint",
            reason="CHECKPOINT_EXPIRED",
        )
    return Unavailable(
        f"Spark was not ready for job {job!r} {limit}",
        help="look at its server (`tidegate doctor`) and at what the machine is busy with; if it takes longer to "
        "start, raise `timeout`. The next run takes the same input",
        reason="SPARK_START",
    )


@contextlib.contextmanager
def deadline(seconds: float, cancel: Callable[[], None], more: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """Have the block end with DeadlinePassed once time is up, and Spark let go of its work.

    more: asked then for how much longer it may continue all the same. Off the main thread, which alone can be
    interrupted, the block ends as soon as the cancelled work does.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    with _by_signal(seconds, cancel, more) if on_main_thread else _by_thread(seconds, cancel, more):
        yield


@contextlib.contextmanager
def _by_signal(seconds: float, cancel: Callable[[], None], more: Callable[[], float]) -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        left: list[float] = []
        cancel_in_time(lambda: left.append(more()))
        if left and left[0] > 0:
            signal.setitimer(signal.ITIMER_REAL, left[0], END_S)
            return
        cancel_in_time(cancel)
        signal.setitimer(signal.ITIMER_REAL, END_S, END_S)
        raise DeadlinePassed

    began = seams.monotonic()
    before = signal.signal(signal.SIGALRM, over)
    # Again and again until the block has ended: in a finalizer Python ignores what is raised, and a thread that takes
    # the interpreter's lock just then can make it overlook the signal.
    others_delay, others_interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), END_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if others_delay > 0:  # such as the time limit of a test
            remaining = others_delay - (seams.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(remaining, 0.001), others_interval)


@contextlib.contextmanager
def _by_thread(seconds: float, cancel: Callable[[], None], more: Callable[[], float]) -> Iterator[None]:
    ended, passed = threading.Event(), threading.Event()

    def watch() -> None:
        left = max(seconds, 0.001)
        while not ended.wait(left):
            left = 0.0
            with contextlib.suppress(TidegateError):
                left = more() if not passed.is_set() else 0.0
            if left <= 0:
                passed.set()
                cancel()
                left = END_S

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
    """Cancel in a thread: the signal may have interrupted the very client that has to send the request."""
    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(CANCEL_S)
