"""The columns that a source gets from its input: which, of what type, and when."""

from __future__ import annotations

import pytest

from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.connectors.schema.drift import (
    MAX_KNOWN_COLUMNS,
    MAX_NEW_COLUMNS,
    SchemaPolicy,
    common_type,
    evolved_schema,
    policy_problems,
    select_new_columns,
    type_of_variant,
    why_no_column,
)
from tidegate.connectors.schema.widening import is_wider, wider_type
from tidegate.records.records import Drift, FoundColumn, SourceSchema

EVOLVE = SchemaPolicy("evolve")
DECLARED = parse_ddl("id long, name string")


def drift(*found: tuple[str, str], kind: str = "new", more: int = 0) -> Drift:
    columns = [FoundColumn(path=path, kind=kind, type=type, records=1, file="a.json") for path, type in found]  # type: ignore[arg-type]
    return Drift(found=columns, records=1, more=more)


def columns_after(*drifts: Drift | None, policy: SchemaPolicy = EVOLVE, ddl: str = "id long, name string") -> list[str]:
    schema = evolved_schema(parse_ddl(ddl), policy, None, list(enumerate(drifts, 1)))
    return [f"{column.name} {column.type}" for column in parse_ddl(schema.ddl)][len(parse_ddl(ddl)) :]


def test_columns_come_in_the_order_in_which_they_were_found():
    assert columns_after(drift(("vip", "boolean")), None, drift(("age", "bigint"))) == ["vip boolean", "age bigint"]


def test_only_evolve_makes_columns():
    assert columns_after(drift(("vip", "boolean")), policy=SchemaPolicy("rescue")) == []


def test_it_does_not_matter_in_how_many_plans_the_findings_come():
    found = [drift(("a", "void")), drift(("b", "string")), drift(("a", "double"))]
    at_once = evolved_schema(DECLARED, EVOLVE, None, list(enumerate(found, 1)))
    step: SourceSchema | None = None
    for number, one in enumerate(found, 1):
        step = evolved_schema(DECLARED, EVOLVE, step, [(number, one)])
    assert step == at_once
    assert step.through == 3


def test_a_column_keeps_its_type_when_a_checkpoint_that_overlaps_finds_another():
    before = evolved_schema(DECLARED, EVOLVE, None, [(1, drift(("a", "bigint")))])
    after = evolved_schema(DECLARED, EVOLVE, before, [(2, drift(("a", "string")))])
    assert (after.ddl, after.known, after.through) == (before.ddl, before.known, 2)


def test_a_column_that_is_declared_later_is_the_declared_one():
    assert columns_after(drift(("vip", "boolean")), ddl="id long, VIP string") == []


def test_of_two_keys_that_differ_in_case_the_first_becomes_a_column():
    assert columns_after(drift(("Vip", "boolean"), ("vip", "boolean"))) == ["Vip boolean"]


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a;b", "a=b", "a\tb", "a.b", "`", "a" * 256, "_rescued"])
def test_a_key_that_no_table_can_name_does_not_become_a_column(name):
    assert columns_after(drift((name, "string"))) == []


@pytest.mark.parametrize("name", ["_offset", "_key", "_Deleted", "_tidegate_reason", "_"])
def test_a_key_that_could_be_a_column_of_tidegate_does_not_become_one(name):
    assert columns_after(drift((name, "string"), ("vip", "boolean"))) == ["vip boolean"]
    assert why_no_column(name, "string").startswith("it begins with an underscore")


def test_a_key_that_was_only_null_waits_for_a_value():
    nothing = evolved_schema(DECLARED, EVOLVE, None, [(1, drift(("x", "void")))])
    assert nothing.ddl == "`id` bigint, `name` string"
    assert evolved_schema(DECLARED, EVOLVE, nothing, [(2, drift(("x", "date")))]).known["x"].type == "date"
    assert why_no_column("x", "void") == "it has been null so far, so its type is unknown"


def test_data_that_is_used_as_keys_does_not_become_columns():
    many = [(f"k{number}", "bigint") for number in range(MAX_NEW_COLUMNS + 1)]
    assert columns_after(drift(*many)) == []
    assert len(columns_after(drift(*many[1:]))) == MAX_NEW_COLUMNS
    assert columns_after(drift(("a", "bigint"), more=1)) == []


def test_columns_that_a_source_has_got_stay_when_too_many_others_come():
    got = evolved_schema(DECLARED, EVOLVE, None, [(1, drift(("vip", "boolean")))])
    many = [(f"k{number}", "bigint") for number in range(MAX_NEW_COLUMNS + 1)]
    assert evolved_schema(DECLARED, EVOLVE, got, [(2, drift(*many))]).ddl == got.ddl
    assert evolved_schema(DECLARED, EVOLVE, got, [(2, drift(("a", "bigint"), more=1))]).ddl == got.ddl


def test_no_more_is_remembered_than_a_plan_can_hold():
    many = [(f"k{number}", "bigint") for number in range(MAX_KNOWN_COLUMNS + 7)]
    schema = evolved_schema(DECLARED, EVOLVE, None, [(1, drift(*many))])
    assert (len(schema.known), schema.more) == (MAX_KNOWN_COLUMNS, 7)


def test_values_of_another_type_make_no_columns():
    assert columns_after(drift(("id", "string"), kind="type")) == []


WIDEN = SchemaPolicy("evolve", "widen")


def misfit(path: str, wider: str) -> Drift:
    column = FoundColumn(path=path, kind="type", type="string", records=1, file="a.json", wider=wider)
    return Drift(found=[column], records=1)


def types_after(*drifts: Drift, policy: SchemaPolicy = WIDEN, ddl: str = "id int, name string") -> dict[str, str]:
    schema = evolved_schema(parse_ddl(ddl), policy, None, list(enumerate(drifts, 1)))
    return {column.name: column.type for column in parse_ddl(schema.ddl)}


def test_a_column_becomes_as_wide_as_its_values_need():
    assert types_after(misfit("id", "bigint")) == {"id": "bigint", "name": "string"}
    assert types_after(drift(("n", "bigint")), misfit("n", "double")) == {
        "id": "int",
        "name": "string",
        "n": "bigint",
    }, "not every bigint is a double"
    assert types_after(misfit("id", "bigint"), misfit("id", "double"))["id"] == "bigint", "the first counts"
    assert types_after(misfit("id", "bigint"), policy=SchemaPolicy("evolve", "rescue"))["id"] == "int"


def test_what_is_declared_anew_counts_unless_it_is_narrower_again():
    found = [misfit("d", "decimal(8,4)")]
    assert types_after(*found, ddl="d decimal(6,2)")["d"] == "decimal(8,4)"
    assert types_after(*found, ddl="d decimal(12,4)")["d"] == "decimal(12,4)"
    assert types_after(*found, ddl="d string")["d"] == "string"


@pytest.mark.parametrize(
    ("column", "found", "wider"),
    [
        ("int", "bigint", "bigint"),
        ("bigint", "int", None),
        ("tinyint", "smallint", "smallint"),
        ("int", "double", "double"),
        ("bigint", "double", None),
        ("float", "double", "double"),
        ("float", "int", "double"),
        ("float", "bigint", None),
        ("decimal(6,2)", "decimal(5,3)", "decimal(7,3)"),
        ("decimal(6,2)", "decimal(3,1)", None),
        ("decimal(6,2)", "bigint", "decimal(21,2)"),
        ("decimal(30,2)", "decimal(30,20)", None),
        ("int", "decimal(6,2)", None),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("date", "timestamp", None),
        ("int", "string", None),
        ("array<int>", "array<bigint>", None),
    ],
)
def test_a_wider_type_holds_each_value_of_the_narrower_one(column, found, wider):
    assert wider_type(column, found) == wider
    assert wider is None or is_wider(column, wider)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("void", "boolean", "boolean"),
        ("bigint", "double", "double"),
        ("bigint", "decimal(38,0)", "decimal(38,0)"),
        ("decimal(38,0)", "double", "double"),
        ("boolean", "bigint", "string"),
        ("array<bigint>", "array<double>", "array<double>"),
        ("array<bigint>", "bigint", "string"),
    ],
)
def test_the_type_of_a_column_holds_all_its_values(one, other, common):
    assert common_type(one, other) == common_type(other, one) == common


@pytest.mark.parametrize(
    ("variant", "column"),
    [
        ("BIGINT", "bigint"),
        ("INTEGER", "decimal(38,0)"),
        ("FRACTION", "double"),
        ("OBJECT", "string"),
        ("ARRAY<STRING>", "array<string>"),
        ("ARRAY<FRACTION>", "array<double>"),
        ("ARRAY<VOID>", "string"),
        ("DATE", "string"),
    ],
)
def test_types_as_the_survey_names_them(variant, column):
    assert type_of_variant(variant) == column


def test_bad_policies_are_named():
    problems = policy_problems(SchemaPolicy("drop", "cast", "a b"), {"id": "bigint"})  # type: ignore[arg-type]
    assert [problem.split(" is ")[0] for problem in problems] == ["on_new_column", "on_type", "rescue_column"]
    assert "which the source adds itself" in policy_problems(SchemaPolicy("rescue"), {"_Rescued": "string"})[0]
    assert "use string" in policy_problems(SchemaPolicy("rescue"), {"a": "array<varchar(9)>"})[0]
    assert policy_problems(SchemaPolicy(), {"a": "char(9)"}) == []


def test_a_key_is_not_seen_before_until_a_plan_knows_its_type():
    schema = evolved_schema(DECLARED, EVOLVE, None, [(1, drift(("vip", "boolean"), ("n", "void")))])
    found = drift(("vip", "boolean"), ("n", "bigint"), ("nothing", "void"), ("x", "string"))
    assert [key.path for key in select_new_columns(schema, found)] == ["n", "x"]
    assert select_new_columns(schema, drift(("id", "string"), kind="type")) == []
    forgetful = evolved_schema(DECLARED, EVOLVE, None, [(1, drift(("vip", "boolean"), more=3))])
    assert select_new_columns(forgetful, drift(("x", "string"))) == [], "it may be one of those that nobody remembers"
