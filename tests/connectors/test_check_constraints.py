"""CHECK constraints of PostgreSQL in Spark: what is translated is kept by exactly the rows that the server takes."""

from __future__ import annotations

import itertools

import pytest

from tests.kit.postgres import Server
from tests.kit.postgres_sinks import CONNECTION
from tests.kit.sampling import in_turn
from tidegate.connectors.check_constraints import translated
from tidegate.connectors.postgres import Database, TableName, find_table
from tidegate.records.place import Place

pytestmark = in_turn(seconds=30)

COLUMNS = {
    "i": "integer",
    "b": "bigint",
    "d": "numeric(10,2)",
    "x": "double precision",
    "t": "text",
    "v": "varchar(5)",
    "f": "boolean",
    "day": "date",
    "other": "date",
}
SPARK_TYPES = "i int, b long, d decimal(10,2), x double, t string, v string, f boolean, day date, other date"
EXACT = [
    "i > 0",
    "i >= 0 AND i < 5",
    "NOT (i = 3 OR b <> 4)",
    "i BETWEEN 1 AND 3",
    "i IN (1, 2)",
    "i NOT IN (1, 2)",
    "i IS NULL OR b IS NOT NULL",
    "b > 3000000000",
    "b > -2147483649",
    "d > 0.5",
    "d <= b",
    "d = 1",
    "i = '-1'::integer",
    "d <> -0.01",
    "x > 0",
    "x < x",
    "x = 1.5",
    "t = 'a'",
    "t <> ''",
    "t IN ('a', 'é', 'it''s', E'\\\\')",
    "v = 'a' OR v = 'é'",
    "v IN ('a', 'b ')",
    "v <> ALL (ARRAY['a', 'b'])",
    "t = v",
    "length(t) > 1",
    "char_length(v) <= 2 AND length(v) >= 1",
    "f",
    "NOT f",
    "f OR i > 0",
    "f = (i > 0)",
    "day >= DATE '2020-02-29'",
    "day < other",
    "(i, b) = (1, 4)",
    "true",
]
INEXACT = [
    "i + 1 > 0",
    "i / 2 = 1",
    "b % 2 = 0",
    "t > 'a'",
    "t LIKE 'a%'",
    "t ~ '^a'",
    "upper(t) = t",
    "octet_length(t) < 3",
    "coalesce(i, 0) > 0",
    "CASE WHEN f THEN i > 0 END",
    "i::text = t",
    "d::integer = i",
    "x > i",
    "day > '2020-01-01'::timestamp",
    "day > CURRENT_DATE - 5",
    "num_nonnulls(i, b) = 1",
    "v::char(1) = 'a'",
    "f IS TRUE",
    "i IS DISTINCT FROM b",
    "t COLLATE \"C\" > 'a'",
    "i = ANY ('{1,2}'::int[])",
    "b > 99999999999999999999999999999999999999",
]
VALUES = [
    ["NULL", "0", "1", "3", "-1"],
    ["NULL", "4", "3000000001", "-2147483648", "-9223372036854775808"],
    ["NULL", "0.50", "0.51", "1.00", "-0.01"],
    ["NULL", "0", "1.5", "'NaN'", "'Infinity'"],
    ["NULL", "''", "'a'", "'é'", "'it''s'", "E'\\\\'", "'𝄞x'"],
    ["NULL", "'a'", "'é'", "'b '", "'abcde'"],
    ["NULL", "true", "false"],
    ["NULL", "DATE '2020-02-29'", "DATE '1999-12-31'"],
    ["NULL", "DATE '2020-03-01'", "DATE '0001-01-01'"],
]


def rows() -> list[str]:
    """Rows with each value of a column beside each of the next one."""
    length = max(map(len, VALUES))
    found = []
    for shift, number in itertools.product(range(length), range(length)):
        values = [each[(number + shift * place) % len(each)] for place, each in enumerate(VALUES)]
        found.append(f"({', '.join(values)})")
    return list(dict.fromkeys(found))


def written(postgres: Server, place: Place, condition: str) -> tuple[str, dict[str, str]]:
    """The constraint as the server writes it, and the columns' types."""
    definitions = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    postgres.run("DROP TABLE IF EXISTS checked", f"CREATE TABLE checked ({definitions}, CHECK ({condition}))")
    with Database.resolve(place, CONNECTION).session("looking at the table") as session:
        table = find_table(session.cursor(), TableName.parse("checked"))
    assert table is not None
    return table.checks[0].expression, {name: column.type for name, column in table.columns.items()}


def test_a_translated_constraint_is_kept_by_the_rows_that_the_server_takes(postgres, place, spark):
    made = rows()
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    postgres.run(f"CREATE TABLE every ({columns})", f"INSERT INTO every VALUES {', '.join(made)}")
    stored = postgres.run("SELECT * FROM every")
    assert len(stored) == len(made)
    frame = spark.createDataFrame(stored, SPARK_TYPES).cache()
    conditions, not_translated = {}, []
    for condition in EXACT:
        expression, types = written(postgres, place, condition)
        conditions[condition] = translated(expression, types)
        if conditions[condition] is None:
            not_translated.append(f"{condition}, written {expression}")
    assert not_translated == []
    sums = [f"count_if(NOT coalesce(({sql}), true)) AS n{n}" for n, sql in enumerate(conditions.values())]
    counted = frame.selectExpr(*sums).first()
    for condition, refused in zip(EXACT, counted, strict=True):
        ((by_server,),) = postgres.run(f"SELECT count(*) FROM every WHERE NOT coalesce(({condition}), true)")
        assert refused == by_server, condition


@pytest.mark.parametrize("condition", INEXACT)
def test_what_may_mean_something_else_in_spark_is_not_translated(postgres, place, condition):
    expression, types = written(postgres, place, condition)
    assert translated(expression, types) is None, expression


def test_texts_that_may_be_equal_although_they_differ_are_not_compared(postgres, place):
    expression, types = written(postgres, place, "t = 'a'")
    assert translated(expression, {name: kind for name, kind in types.items() if name != "t"}) is None
