"""Texts with a collation are no keys: Spark takes some for equal that states, files and other engines tell apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import tidegate.testing
from tests.kit.sampling import in_turn
from tests.kit.sinks import Published
from tidegate import Pipeline
from tidegate.connectors.sink import Staging
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert, KafkaTopic, PostgresUpsert
from tidegate.testing import TestSource

pytestmark = in_turn(seconds=30)

FIRST, SECOND = [{"id": 1, "name": "A", "v": 1}], [{"id": 2, "name": "a", "v": 2}]
COLLATED = "name COLLATE UTF8_LCASE AS name"
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "aggregate": lambda rows: rows.aggregate(by="name", total="sum(v)", uid="o"),
    "distinct keys": lambda rows: rows.aggregate(by="name", kinds="count(distinct v)", uid="o"),
    "distinct values": lambda rows: rows.aggregate(by="id", kinds="count(distinct name)", uid="o"),
    "distinct values and more": lambda rows: rows.aggregate(
        by="id", kinds="count(distinct v, name)", least="min(v)", state_ttl="1 day", uid="o"
    ),
    "least": lambda rows: rows.aggregate(by="id", least="min(name)", uid="o"),
    "deduplicate": lambda rows: rows.deduplicate(by="name", uid="o"),
    "latest": lambda rows: rows.latest(by="name", order_by="v", uid="o"),
    "top_n": lambda rows: rows.top_n(1, by="id", order_by="name", uid="o"),
    "latest by order": lambda rows: rows.latest(by="id", order_by="name", uid="o"),
    "join": lambda rows: rows.join(rows.select("name", "v AS w", name="other"), on="name", uid="o", state_ttl="1 day"),
}


def run_with(tmp_path: Any, spark: Any, name: str, operator: Callable[[Any], Any]) -> Any:
    pipeline = Pipeline("names")
    rows = pipeline.source("rows", TestSource("id int, name string, v int", FIRST, SECOND))
    operator(rows.select("id", name, "v", name="named")).sink("sink", DeltaAppend("sink", changelog=True))
    return tidegate.testing.run(pipeline, tmp_path, spark=spark)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_that_would_remember_such_texts_is_refused_by_check_and_in_its_first_checkpoint(
    spark, tmp_path, operator
):
    with run_with(tmp_path, spark, COLLATED, OPERATORS[operator]) as running:
        assert any("operator 'o'" in error and "UTF8_LCASE" in error for error in running.errors())
        with pytest.raises(Invalid, match="UTF8_LCASE") as refused:
            running.checkpoint()
        assert "COLLATION" in f"{refused.value.reason}: {refused.value.what}", "beside what is wrong with the sink"
        assert "operator 'o'" in refused.value.what
        assert "COLLATE UTF8_BINARY" in refused.value.help
        assert "_value" not in str(refused.value), "only names that the user has given"
        assert running.rows("sink") == []


@pytest.mark.parametrize(("name", "keys"), [("lower(name) COLLATE UTF8_BINARY AS name", 1), ("name", 2)])
def test_what_the_refusal_says_to_write_makes_one_key_in_all_checkpoints(spark, tmp_path, name, keys):
    with run_with(tmp_path, spark, name, OPERATORS["distinct keys"]) as running:
        assert len(running.until_idle()) == 2
        assert len({row["name"] for row in running.rows("sink")}) == keys


def test_no_delta_table_gets_such_a_column(spark, tmp_path):
    for sink in (DeltaAppend("t"), DeltaUpsert("t", keys=["name"])):
        world = Published(tmp_path, sink)
        for column in ("'A' COLLATE UTF8_LCASE AS name", "array('A' COLLATE UNICODE_CI) AS name"):
            frame = spark.range(1).selectExpr("id", column)
            with pytest.raises(Invalid, match="'name' has the collation") as refused:
                world.sink.prepare(frame, world.context, Staging(1, "a"))
            assert refused.value.reason == "BAD_OUTPUT"
            assert "COLLATE UTF8_BINARY" in refused.value.what


def test_no_key_of_another_system_is_such_a_text(spark):
    schema = json.loads(spark.sql("SELECT 'A' COLLATE UTF8_LCASE AS name, 'x' COLLATE UNICODE AS other").schema.json())
    upsert = PostgresUpsert("t", keys=["name"], connection="c")
    (problem,) = upsert.key_problems(schema)
    assert "'name' has the collation UTF8_LCASE" in problem
    (problem,) = KafkaTopic("t", servers="s:1", key="name").form.problems(schema)
    assert "lower(`name`) COLLATE UTF8_BINARY" in problem
    assert KafkaTopic("t", servers="s:1").form.problems(schema) == []


def test_a_column_named_as_the_distinct_values_are_kept_is_refused_by_its_name(spark, tmp_path):
    """In the second checkpoint the values that are kept meet the rows: Spark could not tell the two apart."""
    pipeline = Pipeline("names")
    rows = pipeline.source("rows", TestSource("id int, name string, v int", FIRST, SECOND))
    named = rows.select("name", "v AS _value0", "id AS _value1", name="named")
    named.aggregate(by="name", kinds="count(distinct _value0)", uid="o").sink("sink", DeltaAppend("s", changelog=True))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        with pytest.raises(Invalid, match="its input has '_value0', names that tidegate reserves") as refused:
            running.checkpoint()
        assert refused.value.reason == "RESERVED_COLUMN"
