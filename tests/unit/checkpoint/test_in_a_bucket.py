"""Ledger and tables in a bucket, without Spark: what a checkpoint asks, and what it does when nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.bench.scale_worlds import ack, stage, ticking, triggered
from tests.kit.limits import Limits
from tests.kit.s3 import BUCKET, SECRET, S3Server, s3
from tests.kit.sampling import only_with_all, some_of
from tidegate.checkpoint.publishing import table_hints
from tidegate.coordinator import Coordinator
from tidegate.delta import Location
from tidegate.delta.log import snapshot
from tidegate.errors import Corrupt, TidegateError
from tidegate.spark.storage.worker_writes import work_on_store

FOLDERS = count(1)
TEN = [f"table{number}" for number in range(10)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as server:
        yield server


def at(server: S3Server, folder: int, tables: list[str]) -> Coordinator:
    return ticking(f"s3://{BUCKET}/{folder}", tables, server.options)


def checkpoint(control: Coordinator, number: int) -> None:
    staged = {name: stage(control, name, number) for name in control.graph.sinks}
    finish(control, staged)


def finish(control: Coordinator, staged: dict[str, object]) -> None:
    plan = triggered(control)
    ack(control.ledger, plan, staged)  # type: ignore[arg-type]
    assert control.complete(plan.id).state == "completed"
    assert not control.publish().stuck


def as_in_a_new_process() -> None:
    snapshot._cache.clear()
    table_hints._publications.clear()


def heads(control: Coordinator) -> set[int | None]:
    return {node.sink.head(control.context(name)).last_entry for name, node in control.graph.sinks.items()}


def test_one_job_and_ten_tables_make_at_most_sixty_requests(server: S3Server) -> None:
    control = at(server, next(FOLDERS), TEN)
    for number in (1, 2):
        checkpoint(control, number)
    staged = {name: stage(control, name, 3) for name in TEN}
    with server.asked() as requests:
        finish(control, staged)
    assert len(requests) <= 60, "\n".join(requests)
    assert heads(control) == {3}
    control.settings = Limits(num_retained=2)
    with server.asked() as requests:
        assert control.retire() == [1]
    assert len(requests) <= 70, "\n".join(requests)


def test_each_step_in_a_process_of_its_own_reads_no_tables_log_from_the_beginning(server: S3Server) -> None:
    folder, tables = next(FOLDERS), TEN[:3]
    for number in range(1, 6):
        as_in_a_new_process()
        checkpoint(at(server, folder, tables), number)
    staged = {name: stage(at(server, folder, tables), name, 6) for name in tables}
    with server.asked() as requests:
        for step in ("trigger", "ack", "complete", "publish"):
            as_in_a_new_process()
            control = at(server, folder, tables)
            if step == "trigger":
                plan = triggered(control)
            elif step == "ack":
                ack(control.ledger, plan, staged)
            elif step == "complete":
                assert control.complete(plan.id).state == "completed"
            else:
                assert not control.publish().stuck
    reads = [request for request in requests if request.startswith("GET") and ".json" in request.partition("?")[0]]
    assert [read for read in reads if "_delta_log" in read] == []
    assert heads(at(server, folder, tables)) == {6}


@only_with_all
def test_a_table_that_was_dropped_is_not_published_to_though_the_trigger_did_not_look(server: S3Server) -> None:
    control = at(server, next(FOLDERS), TEN[:2])
    for number in (1, 2):
        checkpoint(control, number)
    staged = {name: stage(control, name, 3) for name in TEN[:2]}
    table = control.graph.sinks[TEN[0]].sink.delta_table(control.context(TEN[0]))
    assert table is not None
    table.remove_folder("_delta_log")
    plan = triggered(control)
    ack(control.ledger, plan, staged)
    assert control.complete(plan.id).state == "completed"
    with pytest.raises(Corrupt, match="is missing: checkpoint 2 was published there"):
        control.publish()
    assert control.graph.sinks[TEN[1]].sink.head(control.context(TEN[1])).last_entry == 3, "the other table has it"
    with pytest.raises(Corrupt, match="is missing: checkpoint 2 was published there"):
        triggered(control)


@pytest.mark.parametrize(
    "fault",
    [pytest.param({"fail_every": 13}, marks=only_with_all), {"lose_every": 9}, {"lag": 8}],
    ids=lambda fault: str(next(iter(fault))),
)
def test_checkpoints_are_made_once_on_a_store_that_is_busy_breaks_off_or_lags(
    server: S3Server, fault: dict[str, int]
) -> None:
    """A request that is answered 503, one that counts and whose answer is lost, a listing that lacks the last puts."""
    folder, tables, last = next(FOLDERS), TEN[:2], 4
    server.treat(**fault)
    try:
        for number in range(1, last + 1):
            if number % 2:
                as_in_a_new_process()
            control = at(server, folder, tables)
            control.settings = Limits(num_retained=1)
            checkpoint(control, number)
            control.retire()
    finally:
        server.treat()
    as_in_a_new_process()
    control = at(server, folder, tables)
    assert not control.publish().stuck, "what a listing did not show is published by the next one"
    assert heads(control) == {last}
    for name in tables:
        table = control.graph.sinks[name].sink.delta_table(control.context(name))
        assert table is not None
        rows = DeltaTable(table.url, storage_options=server.options).to_pyarrow_table()
        assert sorted(rows["id"].to_pylist()) == [*range(1, last + 1)]


@pytest.mark.parametrize("step", ["trigger", "publish", *some_of(["complete"], 1, 1)])
def test_a_login_that_expires_stops_a_step_and_nothing_is_lost(server: S3Server, step: str) -> None:
    folder = next(FOLDERS)
    control = at(server, folder, TEN[:2])
    for number in (1, 2):
        checkpoint(control, number)
    staged = {name: stage(control, name, 3) for name in TEN[:2]}

    def done(now: str) -> None:
        nonlocal plan
        if now == "trigger":
            plan = triggered(control)
            ack(control.ledger, plan, staged)
        elif now == "complete":
            assert control.complete(plan.id).state == "completed"
        else:
            assert not control.publish().stuck

    plan = None  # type: ignore[assignment]
    for now in ("trigger", "complete", "publish"):
        if now == step:
            server.treat(expired=True)
            try:
                with pytest.raises(TidegateError, match="ExpiredToken") as refused:
                    done(now)
            finally:
                server.treat()
            assert SECRET not in str(refused.value)
        done(now)
    assert heads(at(server, folder, TEN[:2])) == {3}


class WorkersHere:
    """A session of Spark whose tasks run in this process, a row each."""

    def range(self, start: int, end: int, step: int, tasks: int) -> WorkersHere:
        self.batches = [pa.record_batch([pa.array([number])], names=["id"]) for number in range(start, end, step)]
        return self

    def mapInArrow(self, function: Any, schema: str) -> WorkersHere:
        self.batches = [*function(iter(self.batches))]
        return self

    def collect(self) -> list[pa.RecordBatch]:
        return self.batches


def test_workers_are_found_to_work_on_a_store_whose_listing_lags(server: S3Server) -> None:
    """If not, Spark writes itself, and its committer cannot do without listings."""
    folder = str(next(FOLDERS))
    server.treat(lag=20)
    try:
        assert work_on_store(WorkersHere(), Location(f"s3://{BUCKET}/{folder}", server.options))  # type: ignore[arg-type]
    finally:
        server.treat()
    assert server.objects(f"{folder}/") == {}, "nothing is left of it"
