"""Work that is done at once: results in order, and no failure before everything has ended."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from functools import partial

import pytest

from tidegate.execution.at_once import all_at_once

MOOD: ContextVar[str] = ContextVar("MOOD", default="unknown")


def test_results_come_in_the_order_of_the_works_though_each_waits_for_the_next() -> None:
    done = [threading.Event() for _ in range(4)]
    done[3].set()

    def work(number: int) -> int:
        if number < 3:
            assert done[number + 1].wait(30), "they are not at work at once"
        done[number].set()
        return number

    assert all_at_once([partial(work, number) for number in range(4)]) == [0, 1, 2, 3]


def test_a_failure_is_raised_when_nothing_is_at_work_any_more() -> None:
    has_failed, ended = threading.Event(), []

    def fail() -> None:
        has_failed.set()
        raise ValueError("no")

    def work_on() -> None:
        assert has_failed.wait(30)
        ended.append(True)

    with pytest.raises(ValueError, match="no"):
        all_at_once([work_on, fail])
    assert ended


def test_each_sees_the_context_of_its_caller() -> None:
    token = MOOD.set("calm")
    try:
        assert all_at_once([MOOD.get, MOOD.get]) == ["calm", "calm"]
    finally:
        MOOD.reset(token)
