"""What Spark does is counted by step, from what a client sends; and nothing breaks where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate import seams
from tidegate.records.records import SparkWork, work_of
from tidegate.spark import work
from tidegate.spark.work import metered


class Client:
    """As pyspark's: two ways to execute a plan, one to ask about it."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.fails = False

    def _analyze(self, method: str, **plan: Any) -> str:
        self.clock += 0.25
        return method

    def _execute(self, request: Any) -> None:
        request.operation_id = request.name
        self.clock += 1
        if self.fails:
            raise RuntimeError("refused")

    def _execute_and_fetch_as_iterator(self, request: Any, observations: Any) -> Iterator[int]:
        request.operation_id = request.name
        for number in range(observations):
            self.clock += 2
            yield number


class Session:
    """On a server, as far as one can see."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self) -> None:
        self.client = Client()


def request(name: str) -> Any:
    return SimpleNamespace(name=name, operation_id="")


@pytest.fixture
def session() -> Iterator[Any]:
    session = Session()
    with seams.installed(seams.Seams(monotonic=lambda: session.client.clock)):
        yield session


def test_requests_count_for_the_step_that_is_open(session: Any) -> None:
    client = session.client
    with metered(session) as meter:
        assert client._analyze("schema") == "schema"
        meter.enter(0)
        client._execute(request("a"))
        client._analyze("schema")
        meter.enter(1)
        for _ in client._execute_and_fetch_as_iterator(request("b"), 3):
            client.clock += 100  # the reader's own time
        meter.enter(None)
        assert meter.collect_work() == {
            None: SparkWork(queries=0, query_s=0.0, analyses=1, analysis_s=0.25),
            0: SparkWork(queries=1, query_s=1.0, analyses=1, analysis_s=0.25),
            1: SparkWork(queries=1, query_s=6.0, analyses=0, analysis_s=0.0),
        }
    assert not {"_analyze", "_execute", "_execute_and_fetch_as_iterator"} & vars(client).keys()


def test_what_fails_and_what_is_not_read_to_its_end_count_too(session: Any) -> None:
    client = session.client
    client.fails = True
    with metered(session) as meter:
        with pytest.raises(RuntimeError, match="refused"):
            client._execute(request("a"))
        responses = client._execute_and_fetch_as_iterator(request("b"), 3)
        assert next(responses) == 0
        responses.close()
        assert meter.collect_work()[None].queries == 2


def test_what_the_server_has_counted_is_found_by_operation(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "a 1 900 100 2 3 8 700 1500 400 9 5 7\nof-another 1 1 1 1 1 1 1 1 1 1 1 1\nc 1 50 40 0 0 0 0 0 600 0 1 0\n"
    monkeypatch.setattr(work, "_server_work", lambda client: work._lines(lines))
    with metered(session) as meter:
        meter.enter(0)
        for name in "abc":
            session.client._execute(request(name))
        taken = meter.collect_work()
    assert taken[0] == SparkWork(
        queries=3,
        query_s=3.0,
        analyses=0,
        analysis_s=0.0,
        planning_s=0.14,
        jobs=2,
        stages=3,
        tasks=8,
        running_s=0.7,
        task_s=1.5,
        slowest_task_s=0.6,
        spilled_bytes=9,
        read_bytes=6,
        written_bytes=7,
    )
    assert (taken[None].jobs, taken[None].task_s) == (0, 0.0), "known to be none"


def test_the_server_of_an_earlier_version_has_counted_less(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_server_work", lambda client: work._lines("a 1 900 100 2 3 8 700 1500\n"))
    with metered(session) as meter:
        meter.enter(0)
        session.client._execute(request("a"))
        taken = meter.collect_work()[0]
    assert (taken.tasks, taken.task_s, taken.slowest_task_s, taken.read_bytes) == (8, 1.5, None, None)


def test_the_slowest_task_of_several_parts_is_that_of_one_of_them() -> None:
    total = work_of([SparkWork(slowest_task_s=0.5, spilled_bytes=1), SparkWork(slowest_task_s=0.25, spilled_bytes=2)])
    assert (total.slowest_task_s, total.spilled_bytes) == (0.5, 3)


class Changed:
    """A session of a pyspark that has changed."""

    __module__ = "pyspark.sql.connect.session"
    client = SimpleNamespace()


@pytest.mark.parametrize("spark", [None, object(), Changed()])
def test_a_spark_that_does_not_fit_is_not_known_and_works(spark: Any) -> None:
    with metered(spark) as meter:
        meter.enter(0)
        assert meter.collect_work() == {}


def test_pyspark_has_what_is_counted() -> None:
    """If this fails, all figures of Connect are unknown: see what sends the requests now."""
    from pyspark.sql.connect.client import SparkConnectClient

    for name in ("_analyze", "_execute", "_execute_and_fetch_as_iterator"):
        assert callable(getattr(SparkConnectClient, name))


def test_a_total_knows_what_all_of_its_parts_know() -> None:
    known, partly = SparkWork(queries=1, query_s=0.1, jobs=2), SparkWork(queries=2, query_s=0.2)
    assert work_of([known, partly]) == SparkWork(queries=3, query_s=0.3)
    assert work_of([known, None]) == work_of([]) == SparkWork()
