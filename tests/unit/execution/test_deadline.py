"""The deadline of a job: it ends whatever runs, also where Python ignores it, unless nobody waits for the job."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.kit.slow_jobs import busy, toy_channels
from tidegate.execution.deadline import DeadlinePassed, deadline, more_time


def test_the_deadline_ends_what_runs_and_cancels_its_spark_work():
    cancelled = []

    def work() -> None:
        with deadline(0.01, lambda: cancelled.append(True)):
            while True:
                pass

    with pytest.raises(DeadlinePassed):
        work()
    assert cancelled


def test_a_deadline_whose_signal_nobody_noticed_comes_again(monkeypatch: pytest.MonkeyPatch):
    """As in a finalizer, where Python ignores what is raised; or if the interpreter overlooks a signal, as it may."""
    monkeypatch.setattr("tidegate.execution.deadline.END_S", 0.01)
    cancelled = []

    def work() -> None:
        with deadline(0.01, lambda: cancelled.append(True)):
            real = signal.signal(signal.SIGALRM, lambda *_: signal.signal(signal.SIGALRM, real))  # the first is lost
            began = time.monotonic()
            while time.monotonic() < began + 60:
                pass

    with pytest.raises(DeadlinePassed):
        work()
    assert cancelled


def test_who_may_continue_beyond_the_deadline_is_asked_again_and_again():
    told, cancelled = [0.01, 0.01, 0.0], []

    def work() -> None:
        with deadline(0.01, lambda: cancelled.append(list(told)), lambda: told.pop(0)):
            while True:
                pass

    with pytest.raises(DeadlinePassed):
        work()
    assert cancelled == [[]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_deadline_that_python_ignores_comes_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tidegate.execution.deadline.END_S", 0.05)
    cancelled: list[str] = []

    class Finalized:
        def __del__(self) -> None:
            while not cancelled:
                pass

    def work() -> None:
        with deadline(0.01, lambda: cancelled.append("once")):
            Finalized()
            while True:
                pass

    with pytest.raises(DeadlinePassed):
        work()
    assert len(cancelled) >= 2, "a busy machine may ask once more before it is told that it has come"


def test_a_job_may_continue_beyond_its_checkpoints_timeout_once_that_does_not_wait_for_it(tmp_path: Path):
    with toy_channels():
        story, _ = busy(tmp_path)
        second, third = story.ledger.plan(2), story.planned()
        now = story.coordinator()
        assert more_time(now, second, "slow") == 0, "it is waited for"
        story.refused(third)
        assert more_time(now, second, "slow") > 0, "the next one has gone past it"
        assert more_time(now, second, "main") == 0, "it reads the source"
        story.completed(2)
        assert more_time(now, second, "slow") > 0
        story.coordinator().abort(third, "TEST")
        assert more_time(now, story.ledger.plan(third), "slow") == 0
