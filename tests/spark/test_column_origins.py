"""Which input columns a function's columns are made of, read off Spark's analysed plan: node by node, never a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tidegate.spark.plans.column_origins import find_column_origins, make_probes

pytestmark = in_turn(seconds=40)

ORDERS = "id long, customer long, amount double, country string, at timestamp, items array<string>"
CUSTOMERS = "customer long, name string"

Found = dict[str, str]
Function = Callable[[Any, Any], Any]


def traced(function: Function, spark: Any) -> Found:
    """By column, where it comes from: `o.amount+` is computed from the orders' amount, `o.amount*` aggregated.

    `?`: that is unknown.
    """
    inputs = [spark.createDataFrame([], schema) for schema in (ORDERS, CUSTOMERS)]
    found = find_column_origins(function(*make_probes(inputs)), [frame.columns for frame in inputs])
    marks = {"identity": "", "transformation": "+", "aggregation": "*"}
    texts = {}
    for name, origins in found.items():
        parts = [f"{'oc'[each.input]}.{each.column}{marks[each.how]}" for each in sorted(origins or ())]
        texts[name] = " ".join(parts) if origins is not None else "?"
    return texts


def by_sql(text: str) -> Function:
    """A function that asks in SQL, for `o` and `c`."""
    return lambda o, c: o.sparkSession.sql(text, o=o, c=c)


def ranked(o: Any, c: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy("customer").orderBy("at")
    return o.select("id", F.sum("amount").over(window).alias("so_far"), F.row_number().over(window).alias("place"))


def through_python(o: Any, c: Any) -> Any:
    from pyspark.sql import functions as F

    return o.select("id", F.udf(lambda text: text, "string")("country").alias("land"))


def as_pandas(o: Any, c: Any) -> Any:
    return o.mapInPandas(lambda batches: batches, "id long")


def beside_unknown_rows(o: Any, c: Any) -> Any:
    """`sum(amount)` is a column of rows whose origins are unknown: its name ends as what a Python function returns."""
    sums = o.sparkSession.sql(
        "WITH t AS (SELECT customer, sum(amount) FROM {o} GROUP BY customer) SELECT * FROM t", o=o
    )
    return o.join(sums, "customer").selectExpr("amount / `sum(amount)` AS share")


def named_like_an_expression(o: Any, c: Any) -> Any:
    return o.selectExpr("CAST(amount AS INT) AS `sum(CAST(amount AS INT))`").selectExpr(
        "`sum(CAST(amount AS INT))` + 1 AS more"
    )


def two_of_three(o: Any, c: Any) -> Any:
    return o.select("id", "customer").unionByName(c.selectExpr("customer", "customer * 2 AS id"))


CASES: dict[str, tuple[Function, Found]] = {
    "a projection": (
        lambda o, c: o.selectExpr(
            "id", "amount * 2 AS `gross, amount`", "country AS land", "'a, b' AS text", "1 AS one"
        ),
        {"id": "o.id", "gross, amount": "o.amount+", "land": "o.country", "text": "", "one": ""},
    ),
    "values that look like columns": (
        lambda o, c: o.selectExpr("'x#1' AS a", "concat(country, ' #2') AS b", "'a\nb' AS c", "id"),
        {"a": "?", "b": "?", "c": "", "id": "o.id"},
    ),
    "a value that looks like a plan": (lambda o, c: o.selectExpr("id", "'x\n+- Project [z#3]\n   +- x' AS d"), {}),
    "projections on each other": (
        lambda o, c: o.withColumn("a", o.amount + o.id).selectExpr("a AS b", "a * customer AS c").selectExpr("b", "c"),
        {"b": "o.amount+ o.id+", "c": "o.amount+ o.customer+ o.id+"},
    ),
    "what only chooses rows": (
        lambda o, c: o.where("amount > 2").dropDuplicates(["country"]).orderBy("at").limit(3).alias("x").select("id"),
        {"id": "o.id"},
    ),
    "a lambda": (by_sql("SELECT transform(items, x -> upper(x)) AS loud FROM {o}"), {"loud": "o.items+"}),
    "an aggregate": (
        by_sql(
            "SELECT country, upper(country) AS land, sum(amount) AS spent, count(*) AS n, max(amount) + 1 AS more "
            "FROM {o} GROUP BY country, upper(country)"
        ),
        {"country": "o.country", "land": "o.country+", "spent": "o.amount*", "n": "", "more": "o.amount*"},
    ),
    "an aggregate of all rows, with a name of Spark's": (
        lambda o, c: o.agg({"amount": "sum"}).selectExpr("`sum(amount)` + 1 AS more"),
        {"more": "o.amount*"},
    ),
    "a join by a name": (
        lambda o, c: o.select("id", "customer").join(c, "customer", "left"),
        {"customer": "o.customer", "id": "o.id", "name": "c.name"},
    ),
    "a full join by a name": (
        lambda o, c: o.select("id", "customer").join(c, "customer", "full"),
        {"customer": "o.customer+ c.customer+", "id": "o.id", "name": "c.name"},
    ),
    "a semi join": (
        lambda o, c: o.select("id", "customer").join(c, "customer", "semi"),
        {"customer": "o.customer", "id": "o.id"},
    ),
    "a join with itself": (
        lambda o, c: o.select("id").join(o.selectExpr("id", "country AS land"), "id"),
        {"id": "o.id", "land": "o.country"},
    ),
    "a join with rows from elsewhere": (
        lambda o, c: o.select("id").join(o.sparkSession.createDataFrame([(1, "x")], "id long, tag string"), "id"),
        {"id": "o.id", "tag": "?"},
    ),
    "a union by place": (
        lambda o, c: o.select("id", "country").union(c),
        {"id": "o.id c.customer", "country": "o.country c.name"},
    ),
    "a union by name": (two_of_three, {"id": "o.id c.customer+", "customer": "o.customer c.customer"}),
    "windows": (ranked, {"id": "o.id", "so_far": "o.amount*", "place": ""}),
    "a generator": (
        by_sql("SELECT id, item, upper(item) AS loud FROM {o} LATERAL VIEW explode(items) AS item"),
        {"id": "o.id", "item": "o.items+", "loud": "o.items+"},
    ),
    "a name like an expression": (named_like_an_expression, {"more": "o.amount+"}),
    "a column of unknown rows that is named like a function": (beside_unknown_rows, {"share": "?"}),
    "a function of Python": (through_python, {"id": "o.id", "land": "o.country+"}),
    "a subquery": (by_sql("SELECT id, (SELECT max(name) FROM {c}) AS last FROM {o}"), {"id": "o.id", "last": "?"}),
    "a rollup": (
        by_sql("SELECT country, sum(amount) AS s FROM {o} GROUP BY ROLLUP (country)"),
        {"country": "?", "s": "?"},
    ),
    "rows that Python makes": (as_pandas, {}),
    "rows of its own": (lambda o, c: o.sparkSession.range(3), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_column_has_the_origins_that_the_plan_tells(case: str, spark: Any) -> None:
    function, expected = CASES[case]
    assert traced(function, spark) == expected


def test_a_server_tells_the_same(connect_spark: Any) -> None:
    cases = {case: CASES[case] for case in CASES if case != "a join with rows from elsewhere"}
    found = {case: traced(function, connect_spark) for case, (function, _) in cases.items()}
    assert found == {case: expected for case, (_, expected) in cases.items()}
