"""Which columns of sources a column is made of: told where the declaration tells, and never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.pipeline.graph.column_lineage import ColumnLineage
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

ORDERS = "id long, customer long, Amount double, country string, at timestamp, extra struct<vip: boolean>"


def lineage(build: Any, traced: Any = None) -> Any:
    """A function that answers for the columns of the stream that `build` makes of orders and customers."""
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Files("o/*.json", schema=ORDERS), event_time="at", watermark="1 h")
    customers = pipeline.source("customers", Files("c/*.json", schema="customer long, name string"))
    stream = build(orders, customers)
    customers.select("customer", name="spare").sink("spare", DeltaAppend("t/spare"))
    stream.sink("out", DeltaUpsert("t/out", keys=["id"]))
    graph = pipeline.graph(Place("/data"))
    columns = {name: node.source.column_names() for name, node in graph.sources.items()}
    found = ColumnLineage(graph, columns, traced)
    stream_name = graph.sinks["out"].input

    def of(column: str) -> list[tuple[str, str]]:
        return [(f"{origin.source}.{origin.column}", origin.how) for origin in found.origins_of(stream_name, column)]

    return of


def test_a_selection_is_traced_by_its_sql():
    of = lineage(
        lambda orders, _: orders.select(
            "id",
            "amount * 1.2 AS `gross amount`",
            "extra.vip AS vip",
            "country AS land",
            "concat(country, ' customer ''id'' ') AS text",
            "cast(customer AS string) AS at",
            "upper(country)",
            "1 AS one",
        )
    )
    assert of("id") == [("orders.id", "identity")]
    assert of("gross amount") == [("orders.Amount", "transformation")]
    assert of("vip") == [("orders.extra", "transformation")]
    assert of("land") == [("orders.country", "identity")]
    assert of("text") == [("orders.country", "transformation")]
    assert of("at") == [("orders.customer", "transformation")]
    assert of("one") == []
    assert of("upper(country)") == [], "Spark names it"


def test_conditions_and_unions_pass_columns():
    of = lineage(
        lambda orders, _: (
            orders.where("amount > 0")
            .select("id", "customer", name="a")
            .union(orders.select("id", "country AS customer", name="b"))
        )
    )
    assert of("id") == [("orders.id", "identity")]
    assert of("customer") == [("orders.country", "identity"), ("orders.customer", "identity")]


def test_results_are_aggregated_and_keys_pass():
    of = lineage(
        lambda orders, _: orders.select("id", "amount * 2 AS twice", "country", name="priced").aggregate(
            by="id", spent="sum(twice)", last="max_by(country, twice)", n="count(*)", uid="totals"
        )
    )
    assert of("id") == [("orders.id", "identity")]
    assert of("spent") == [("orders.Amount", "aggregation")]
    assert of("last") == [("orders.Amount", "aggregation"), ("orders.country", "aggregation")]
    assert of("n") == []


def test_a_column_of_a_join_comes_from_the_side_that_has_it():
    of = lineage(lambda orders, customers: orders.join(customers, on="customer", how="left", uid="named"))
    assert of("name") == [("customers.name", "identity")]
    assert of("Amount") == [("orders.Amount", "identity")]
    assert of("customer") == [("customers.customer", "identity"), ("orders.customer", "identity")]


def test_operators_that_choose_rows_pass_their_columns():
    of = lineage(lambda orders, _: orders.latest(by="id", order_by="at", uid="latest"))
    assert of("country") == [("orders.country", "identity")]
    of = lineage(lambda orders, _: orders.over(by="id", running="sum(amount)", uid="running"))
    assert of("running") == [("orders.Amount", "aggregation")]
    assert of("country") == [("orders.country", "identity")]


def test_a_join_tells_the_sides_apart_by_its_prefix():
    def build(orders: Any, customers: Any) -> Any:
        named = customers.select("customer AS number", "name", "name AS country", name="named")
        return orders.join(named, on={"customer": "number"}, prefix="its_", uid="both")

    of = lineage(build)
    assert of("customer") == [("customers.customer", "identity"), ("orders.customer", "identity")]
    assert of("country") == [("orders.country", "identity")]
    assert of("its_country") == [("customers.name", "identity")]
    assert of("name") == [("customers.name", "identity")]
    assert of("number") == of("its_id") == of("its_name") == []


def test_a_window_begins_and_ends_by_event_time():
    of = lineage(lambda orders, _: orders.window(tumbling="1 min", by="country", spent="sum(amount)", uid="minutes"))
    assert of("window_start") == of("window_end") == [("orders.at", "transformation")]
    assert of("country") == [("orders.country", "identity")]
    assert of("spent") == [("orders.Amount", "aggregation")]


def priced(orders: Any, customers: Any) -> Any:
    @orders.pipeline.stage(orders, customers, outputs=["good", "bad"])
    def priced(orders: Any, customers: Any) -> Any:
        return orders, customers

    return priced["good"].select("id", "amount + 1 AS more", name="chosen")


def test_behind_a_function_nothing_is_known_that_no_job_has_traced():
    assert lineage(priced)("id") == []


def test_a_function_is_followed_as_its_job_has_traced_it():
    amount = [["orders", "Amount", "aggregation"], ["customers", "name", "identity"]]
    good = {"id": [["orders", "id", "identity"]], "amount": amount, "one": [], "who": None}
    of = lineage(priced, {"priced": {"priced.good": good}})
    assert of("id") == [("orders.id", "identity")]
    assert of("more") == [("customers.name", "transformation"), ("orders.Amount", "aggregation")]
    assert lineage(lambda o, c: priced(o, c), {"priced": {"priced.bad": good}})("id") == [], "of the other stream"


def test_a_column_is_unknown_if_a_part_of_it_is():
    good = {"id": [["orders", "id", "identity"]], "amount": None}
    assert lineage(priced, {"priced": {"priced.good": good}})("more") == []


@pytest.mark.parametrize("known", [True, False])
def test_of_a_source_whose_columns_are_unknown_only_single_names_are_traced(known: bool):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Files("o/*.json", schema=ORDERS))
    orders.select("id", "amount + id AS more").sink("out", DeltaAppend("t/out"))
    graph = pipeline.graph(Place("/data"))
    found = ColumnLineage(graph, {"orders": ["id", "amount"]} if known else {})
    stream = graph.sinks["out"].input
    assert [origin.column for origin in found.origins_of(stream, "id")] == ["id"]
    assert [origin.column for origin in found.origins_of(stream, "more")] == (["amount", "id"] if known else [])


def test_sql_is_traced_as_a_whole():
    pipeline = Pipeline("shop")
    pipeline.source("orders", Files("o/*.json", schema=ORDERS), event_time="at", watermark="1 h")
    pipeline.source("customers", Files("c/*.json", schema="customer long, name string"))
    totals = pipeline.sql(
        "SELECT upper(customers.name) AS who, sum(orders.amount * 2) AS spent FROM orders JOIN customers "
        "ON orders.customer = customers.customer WHERE orders.id > 0 GROUP BY upper(customers.name)",
        name="totals",
    )
    totals.sink("out", DeltaUpsert("t/out", keys=["who"]))
    graph = pipeline.graph(Place("/data"))
    found = ColumnLineage(graph, {name: node.source.column_names() for name, node in graph.sources.items()})
    stream = graph.sinks["out"].input
    assert [(origin.column, origin.how) for origin in found.origins_of(stream, "who")] == [("name", "transformation")]
    assert [(origin.column, origin.how) for origin in found.origins_of(stream, "spent")] == [("Amount", "aggregation")]
