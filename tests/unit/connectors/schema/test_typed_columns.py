"""Which types of a table fit a declared schema, and what is said of those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.connectors.schema.ddl import Column
from tidegate.connectors.source import SourceContext
from tidegate.errors import Invalid
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.sources import DeltaTable


def source(**options: Any) -> DeltaTable:
    return DeltaTable("upstream", schema=options.pop("schema", "id bigint, n int"), **options)


@pytest.mark.parametrize(
    ("declared", "actual"),
    [
        ("bigint", "int"),
        ("double", "int"),
        ("double", "float"),
        ("string", "varchar(20)"),
        ("decimal(12,2)", "decimal(10,2)"),
        ("decimal(12,2)", "int"),
        ("timestamp_ntz", "date"),
        ("struct<a:int>", "struct<a:int>"),
    ],
)
def test_a_type_fits_one_that_holds_all_of_its_values(declared: str, actual: str) -> None:
    assert source(schema=f"c {declared}", on_type="rescue").survey_counts([Column("c", actual)], no_query).is_clean


@pytest.mark.parametrize(
    ("declared", "actual", "condition"),
    [
        ("int", "bigint", "`c` NOT BETWEEN -2147483648 AND 2147483647"),
        ("tinyint", "int", "`c` NOT BETWEEN -128 AND 127"),
        ("double", "bigint", "`c` IS NOT NULL"),
        ("int", "string", "`c` IS NOT NULL"),
        ("decimal(12,2)", "decimal(12,3)", "`c` IS NOT NULL"),
        ("decimal(12,2)", "bigint", "`c` IS NOT NULL"),
        ("date", "timestamp", "`c` IS NOT NULL"),
    ],
)
def test_of_other_types_the_values_are_counted(declared: str, actual: str, condition: str) -> None:
    asked: list[str] = []

    def count(conditions: list[str]) -> list[int]:
        asked.extend(conditions[1:])
        return [3, 2]

    survey = source(schema=f"c {declared}", on_type="rescue").survey_counts([Column("c", actual)], count)
    assert asked == [condition]
    assert survey.drift is not None
    assert [(each.path, each.kind, each.type, each.records) for each in survey.drift.found] == [
        ("c", "type", actual, 2)
    ]


def test_names_that_differ_in_case_only_are_one_column_and_the_other_is_rescued() -> None:
    actual = [Column("ID", "bigint"), Column("N", "int"), Column("n", "int")]
    survey = source(on_new_column="rescue").survey_counts(actual, lambda conditions: [1] * len(conditions))
    assert survey.drift is not None
    assert [(each.path, each.kind) for each in survey.drift.found] == [("N", "case")]


def test_a_type_that_no_schema_can_declare_becomes_text() -> None:
    actual = [Column("id", "bigint"), Column("n", "int"), Column("v", "variant")]
    survey = source(on_new_column="evolve").survey_counts(actual, lambda conditions: [1] * len(conditions))
    assert survey.drift is not None
    assert [each.type for each in survey.drift.found] == ["string"]


def test_all_that_does_not_fit_is_refused_at_once(tmp_path: Any) -> None:
    context = SourceContext("p", "orders", Place("/"), Ledger(LocalStore(tmp_path), "p"))
    with pytest.raises(Invalid) as refused:
        source(on_new_column="refuse").refuse_unfit([Column("n", "string"), Column("vip", "boolean")], context)
    assert refused.value.what == (
        "source 'orders': its table does not fit the schema: column 'id' is gone; column 'vip' (boolean) is not in the "
        "schema; column 'n' is string, and int is declared"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schema": None, "on_new_column": "evolve"}, "need a schema to compare with"),
        ({"schema": "id lonk"}, "schema type 'lonk'"),
        ({"on_new_column": "keep"}, "on_new_column is 'keep'"),
        ({"missing_columns": "drop"}, "missing_columns is 'drop'"),
    ],
)
def test_a_wrong_declaration_of_columns_is_told(options: dict[str, Any], told: str) -> None:
    assert any(told in problem for problem in source(**options).problems())


def no_query(conditions: list[str]) -> list[int]:
    raise AssertionError("nothing is to be counted")
