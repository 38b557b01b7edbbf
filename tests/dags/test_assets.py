"""Which assets a pipeline's DAG has, and what their events say; `test_asset_events` has them sent by a real Airflow."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from tests.dags import by_hand
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyIntervals
from tidegate import Pipeline
from tidegate.dag import asset, build_dag
from tidegate.dag.tasks.asset_events import send_events, unannounced_changes
from tidegate.errors import Invalid
from tidegate.gates import Volume
from tidegate.ledger.ledger import stamp
from tidegate.records.interval import Interval
from tidegate.records.place import Place
from tidegate.records.records import Ack, JobStats, Payload, Published, PublishedTable, Verdict
from tidegate.seams import new_id
from tidegate.sinks import DeltaAppend, DeltaUpsert, FileExport, IcebergAppend, KafkaTopic, PostgresAppend, Sink
from tidegate.sources import DeltaTable, Files, Generator, Kafka, PostgresChanges, PostgresTable, Source

SHOP = {"shop.host": "db.example.com,standby", "shop.port": "5433,5432", "shop.dbname": "sales", "shop.password": "pw"}
PLACE = Place(
    "/data",
    connections={**SHOP, "events.bootstrap.servers": "one,two:9093", "socket.host": "/run/pg", "socket.dbname": "x"},
)


# -- addresses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "uri"),
    [
        (DeltaAppend("tables/revenue"), "file:///data/tables/revenue"),
        (DeltaUpsert("/tables/./revenue/", keys=["id"]), "file:///tables/revenue"),
        (DeltaAppend("s3a://lake/revenue/"), "s3://lake/revenue"),
        (DeltaAppend("abfss://box@lake.dfs.core.windows.net/revenue"), "abfss://box@lake.dfs.core.windows.net/revenue"),
        (FileExport("gs://lake/out"), "gs://lake/out"),
        (KafkaTopic("orders", servers="broker:9094,other:9092"), "kafka://broker:9094/orders"),
        (KafkaTopic("orders", connection="events"), "kafka://one:9092/orders"),
        (PostgresAppend("revenue", connection="shop"), "postgres://db.example.com:5433/sales/public/revenue"),
        (PostgresAppend("web.revenue", connection="socket"), None),
        (IcebergAppend("shop.orders", connection="lake"), None),
        (Files("landing/*/orders-*.json", schema="id long"), "file:///data/landing"),
        (Files("landing/{start:%Y-%m-%d}/*.json", schema="id long"), "file:///data/landing"),
        (DeltaTable("s3://lake/orders"), "s3://lake/orders"),
        (Kafka("orders", connection="events", schema="id long"), "kafka://one:9092/orders"),
        (
            PostgresTable("web.orders", connection="shop", xid_column="x"),
            "postgres://db.example.com:5433/sales/web/orders",
        ),
        (
            PostgresChanges("orders", connection="shop", slot="s", publication="p"),
            "postgres://db.example.com:5433/sales/public/orders",
        ),
        (Generator(), None),
    ],
    ids=lambda part: getattr(part, "kind", None),
)
def test_a_place_has_the_address_that_others_give_it(part: Sink | Source, uri: str | None):
    assert part.shared_uri(PLACE) == uri
    assert uri is None or Asset(uri=uri).uri == uri, "Airflow writes it in the same way"


def shop(**settings: Any) -> Pipeline:
    pipeline = Pipeline("shop", data="/data", **settings)
    orders = pipeline.source("orders", Files("landing/*.json", schema="id long"))
    orders.sink("orders", DeltaAppend("tables/orders"))
    orders.job("aside").sink("copied", DeltaAppend("tables/copied"))
    return pipeline


def uris(assets: Any) -> list[str]:
    return [each.uri for each in assets]


def test_the_dag_has_an_asset_by_name_and_by_address_for_each_sink_and_one_for_each_source():
    dag = build_dag(shop())
    assert uris(dag.task_dict["complete"].outlets) == [
        "tidegate://shop/orders",
        "tidegate://shop/copied",
        "file:///data/tables/orders",
        "file:///data/tables/copied",
    ]
    assert uris(dag.task_dict["job_main"].inlets) == ["file:///data/landing"]
    assert dag.task_dict["complete"].outlets[0] == asset("shop", "orders")


def test_two_sinks_of_one_table_share_its_asset_and_a_place_that_airflow_cannot_write_has_none():
    connections = {"one": {"host": "db", "dbname": "sales"}, "same": {"host": "db", "dbname": "sales"}}
    pipeline = Pipeline("shop", data="/data", connections=connections)
    rows = pipeline.source("rows", Files("landing#1/*.json", schema="id long"))
    rows.sink("first", PostgresAppend("orders", connection="one"))
    rows.sink("second", PostgresAppend("orders", connection="same"))
    rows.sink("third", PostgresAppend("orders", connection="nowhere"))
    dag = build_dag(pipeline)
    assert uris(dag.task_dict["complete"].outlets) == [
        "tidegate://shop/first",
        "tidegate://shop/second",
        "tidegate://shop/third",
        "postgres://db:5432/sales/public/orders",
    ]
    assert dag.task_dict["job_main"].inlets == []


@pytest.mark.parametrize("broker", ["ann:canary@broker:9092", "SASL_SSL://ann:can/ary@broker", "ann@broker:9092"])
def test_an_address_with_a_login_in_it_is_no_asset(broker: str):
    pipeline = Pipeline("shop", data="/data", connections={"events": {"bootstrap.servers": broker}})
    rows = pipeline.source("rows", Files("landing/*.json", schema="id long"))
    rows.sink("out", KafkaTopic("orders", connection="events"))
    assert uris(build_dag(pipeline).task_dict["complete"].outlets) == ["tidegate://shop/out"]


def test_a_task_has_no_assets_while_it_runs_so_that_none_can_keep_it_from_running():
    """Airflow fails a task with an asset that another DAG has made inactive, before it begins."""
    dag = build_dag(shop())
    for name in ("complete", "job_main"):
        running = dag.task_dict[name].prepare_for_execution()
        assert (running.inlets, running.outlets) == ([], [])
    assert dag.task_dict["complete"].outlets


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"asset_events": "never"}, "asset_events is 'never'.*\n.*'rows' or 'always'"),
        ({"asset_partitions": True}, "a continuous pipeline"),
        ({"asset_partitions": "yes"}, "asset_partitions is 'yes'"),
    ],
)
def test_arguments_about_assets_that_have_no_meaning_are_refused(arguments: dict[str, Any], told: str):
    with pytest.raises(Invalid, match=told):
        build_dag(shop(), **arguments)


# -- what events say -----------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> ToyWorld:
    return ToyWorld(tmp_path)


def task_of(world: ToyWorld, states: dict[str, str] | None = None) -> Any:
    """The task `complete`, at its end. states: what Airflow knows of the tasks of other runs."""
    ti = by_hand.Ti("shop", "now")
    ti.states = states or {"complete": "success"}
    ti.returned = {"complete": {"checkpoint": 0}, "swap": {"entry": 0}}
    events: dict[Any, Any] = defaultdict(SimpleNamespace)
    return SimpleNamespace(
        coordinator=world.coordinator(), context={"ti": ti, "outlet_events": events}, run="airflow:shop:now"
    )


class Event(SimpleNamespace):
    """What Airflow takes for one asset."""

    partitions: list[str]

    def add_partitions(self, keys: list[str]) -> None:
        self.partitions = keys


def run(number: int) -> str:
    return f"airflow:shop:run {number}"


def causes(task: Any, id: int, *when: Any) -> dict[str, tuple[str, int, int]]:
    found = unannounced_changes(task, id, *when)
    return {sink: (change.cause, change.entry, change.rows) for sink, change in found.items()}


def test_only_sinks_that_have_got_rows_are_told_of_unless_all_are_wanted(world: ToyWorld):
    first = world.checkpoint(run(1), rows=2)
    empty = world.checkpoint(run(2))
    task = task_of(world)
    assert causes(task, first) == {"a": ("checkpoint", 1, 2), "b": ("checkpoint", 1, 2)}
    assert causes(task, empty) == {}
    assert causes(task, empty, "always") == {"a": ("checkpoint", 2, 0), "b": ("checkpoint", 2, 0)}
    operator: Any = SimpleNamespace(outlets=["whatever was there"])
    send_events(operator, task, empty, "rows", by_partition=False)
    assert operator.outlets == []


def test_events_name_what_has_happened_and_no_version_of_a_target_that_has_none(world: ToyWorld):
    task, id = task_of(world), world.checkpoint(run(1), rows=1)
    found = unannounced_changes(task, id)["a"]
    tables = {
        "good": PublishedTable(uri="/tables/good", version=7, log_hash="ab"),
        "copied": PublishedTable(uri="sqlite:/out.db#orders", version=3, log_hash=""),
    }
    published = Published(**stamp(new_id()), id=3, tables=tables)
    known = {"cause": "checkpoint", "checkpoint": 1, "rows": 1}
    assert found.extra("good", published) == known | {"version": 7, "table": "/tables/good"}
    assert found.extra("copied", published) == known | {"table": "sqlite:/out.db#orders"}


@pytest.mark.parametrize(
    ("by", "states", "told"),
    [
        (run(2), {"complete": "success"}, 1),
        (run(2), {"complete": "running"}, 1),
        (run(2), {"complete": "failed"}, 3),
        (run(2), {"complete": "skipped"}, 3),
        (run(2), {}, 1),
        ("local:of a command", {"complete": "success"}, 3),
    ],
)
def test_what_nobody_was_told_of_is_told_with_the_next_checkpoint(
    world: ToyWorld, by: str, states: dict[str, str], told: int
):
    """A run that failed at its very end, was marked by hand, or was no run of Airflow's."""
    world.checkpoint(by, rows=2)
    id = world.checkpoint(run(3), rows=1)
    task = task_of(world, states)
    task.context["ti"].states = states
    assert causes(task, id)["a"] == ("checkpoint", 2, told)


def test_what_was_marked_as_done_by_hand_was_told_nobody(world: ToyWorld):
    world.checkpoint(run(1), rows=2)
    id = world.checkpoint(run(2), rows=1)
    task = task_of(world)
    task.context["ti"].returned = {}
    assert causes(task, id)["a"] == ("checkpoint", 2, 3)


def test_intervals_that_nobody_was_told_of_are_told_as_the_partitions_that_they_are(world: ToyWorld):
    world.source = ToyIntervals(world.feed)
    hours = [(datetime(2026, 1, 1, hour, tzinfo=UTC), datetime(2026, 1, 1, hour + 1, tzinfo=UTC)) for hour in (9, 10)]
    for hour in hours:
        world.feed.intervals[Interval.between(*hour)] = [hour[0].hour]
    first, second = (world.checkpoint(run(number), interval=hour) for number, hour in enumerate(hours))
    task = task_of(world, {"complete": "failed"})
    task.context["outlet_events"] = defaultdict(Event)
    operator: Any = SimpleNamespace(outlets=[])
    send_events(operator, task, second, "rows", by_partition=True)
    told = list(task.context["outlet_events"].values())
    assert [(event.extra["checkpoint"], event.partitions) for event in told] == [
        (second, ["2026-01-01T09:00:00", "2026-01-01T10:00:00"])
    ] * len(world.sinks), f"also that of checkpoint {first}"


def test_if_airflow_does_not_answer_what_may_be_untold_is_told_again(world: ToyWorld):
    """An event that comes twice names the same entry; one that never comes leaves somebody's table behind."""
    world.checkpoint(run(1), rows=2)
    id = world.checkpoint(run(2), rows=1)
    task = task_of(world)

    def away(**asked: Any) -> None:
        raise ConnectionError

    task.context["ti"].get_task_states = away
    assert causes(task, id)["a"] == ("checkpoint", 2, 3)


def test_a_rollback_by_command_is_the_cause_even_if_rows_have_come_since(world: ToyWorld):
    first = world.checkpoint(run(1), rows=2)
    world.checkpoint(run(2), rows=2)
    world.coordinator().roll_back(first, run="local:of a command", by="ann")
    id = world.checkpoint(run(3), rows=1)
    change = unannounced_changes(task_of(world), id)["a"]
    assert (change.cause, change.entry, change.back_to, change.rows) == ("rollback", 4, first, 3)


def test_rows_that_were_released_from_quarantine_are_a_cause_of_their_own(world: ToyWorld):
    world.gates = {"checked": Volume(least=0)}
    id = world.trigger(run(1))
    verdict = Verdict(outcome="pass", rows=2, quarantined=0, released=2, broken=[], policy={}, results=Payload(data={}))
    attempt = f"{world.ledger.plan(id).attempt}-by-hand"
    stats = JobStats(rows={"a": 2})
    ack = Ack(**stamp(attempt), id=id, job="main", prev=None, sinks={}, gates={"checked": verdict}, stats=stats)
    world.ledger.create_ack(ack)
    world.complete(id)
    change = unannounced_changes(task_of(world), id)["a"]
    assert (change.cause, change.extra("a", None)["released"]) == ("release", 2)


def test_two_sinks_of_one_table_send_one_event_with_the_rows_of_both(world: ToyWorld, monkeypatch: pytest.MonkeyPatch):
    id = world.checkpoint(run(1), rows=2)
    task = task_of(world)
    monkeypatch.setattr("tests.kit.toys.ToySink.shared_uri", lambda sink, place: "postgres://db:5432/sales/public/a")
    operator: Any = SimpleNamespace(outlets=[])
    send_events(operator, task, id, "rows", by_partition=False)
    sent = task.context["outlet_events"].items()
    events = {getattr(key, "name", None) or key.uri: event.extra["rows"] for key, event in sent}
    assert events == {"orders/a": 2, "orders/b": 2, "postgres://db:5432/sales/public/a": 4}
    assert len(operator.outlets) == 3


def test_an_asset_that_has_both_the_name_and_the_address_is_told_the_rows_once(
    world: ToyWorld, monkeypatch: pytest.MonkeyPatch
):
    world.sinks = {"a": 0}
    id = world.checkpoint(run(1), rows=2)
    task = task_of(world)
    both = SimpleNamespace()
    task.context["outlet_events"] = defaultdict(lambda: both)
    monkeypatch.setattr("tests.kit.toys.ToySink.shared_uri", lambda sink, place: "file:///a")
    operator: Any = SimpleNamespace(outlets=[])
    send_events(operator, task, id, "rows", by_partition=False)
    assert (both.extra["rows"], len(operator.outlets)) == (2, 1)
