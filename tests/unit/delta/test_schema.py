"""What cannot become a Delta table is said all at once, and how an output differs from its table."""

from __future__ import annotations

import pytest

from tests.kit.delta import schema
from tidegate.delta import differences, from_spark, schema_problems
from tidegate.delta.log.schema import collations, schema_parts


def _field(name: str, kind: object, nullable: bool = False, **metadata: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def test_everything_becomes_nullable_and_only_comments_stay():
    inner = {"type": "struct", "fields": [_field("x", "long")]}
    listed = {"type": "array", "elementType": inner, "containsNull": False}
    found = from_spark({"type": "struct", "fields": [_field("a", listed, comment="hi", other=1)]})
    field = found["fields"][0]
    assert field["nullable"] is True
    assert field["metadata"] == {"comment": "hi"}
    assert field["type"]["containsNull"] is True
    assert field["type"]["elementType"]["fields"][0]["nullable"] is True


@pytest.mark.parametrize(
    ("columns", "partition_by", "said"),
    [
        (schema(a="void"), (), "the type void"),
        (schema(a="interval day"), (), "the type interval day"),
        (schema(a="variant"), (), "the type variant"),
        (schema(a="decimal(39,0)"), (), "decimal(39,0)"),
        (schema(a={"type": "udt", "class": "x"}), (), "the type udt"),
        (schema(a={"type": "array", "elementType": "void", "containsNull": True}), (), "a.element"),
        (schema(a={"type": "struct", "fields": []}), (), "without fields"),
        (schema(a="long", A="long"), (), "upper and lower case"),
        (schema(s={"type": "struct", "fields": schema(x="long", X="long")["fields"]}), (), "'s.X'"),
        (schema(a="long"), ("b",), "'b' is not in the output"),
        (schema(a="long", b="binary"), ("b",), "cannot name a folder"),
        (schema(a="long", b={"type": "struct", "fields": schema(x="long")["fields"]}), ("b",), "cannot name"),
        (schema(a="long"), ("a",), "no column remains"),
        (schema(), (), "no columns"),
    ],
)
def test_outputs_that_are_no_delta_table(columns, partition_by, said):
    problems = schema_problems(columns, partition_by)
    assert any(said in problem for problem in problems), problems


def test_a_collation_is_found_however_deep_the_text_is():
    """Spark notes it in the metadata of the field that is nearest above."""
    inner = {"type": "struct", "fields": [_field("x", "string", __COLLATIONS={"x": "icu.UNICODE_CI"})]}
    columns = {
        "type": "struct",
        "fields": [
            _field("a", "string", __COLLATIONS={"a": "spark.UTF8_LCASE"}),
            _field("l", {"type": "array", "elementType": "string"}, __COLLATIONS={"l.element": "spark.UTF8_LCASE"}),
            _field("s", {"type": "array", "elementType": inner}),
            _field("plain", "string"),
        ],
    }
    assert collations(columns) == {"a": "UTF8_LCASE", "l": "UTF8_LCASE", "s": "UNICODE_CI"}


def test_all_problems_are_told_at_once():
    assert len(schema_problems(schema(a="void", b="interval day", B="long"), ("c",))) == 4


def test_differences_name_each_column():
    output = schema(a="long", B="string", c="decimal(10,2)", new="date")
    table = schema(a="long", b="string", c="decimal(12,2)", gone="date")
    found = {each.kind: each.text for each in differences(output, table)}
    assert set(found) == {"case", "type", "new", "missing"}
    assert "decimal(10,2)" in found["type"]
    assert "decimal(12,2)" in found["type"]
    assert "'gone'" in found["missing"]


def test_order_comments_and_nullability_are_no_difference():
    output = {"type": "struct", "fields": [_field("b", "long", comment="x"), _field("a", "long")]}
    assert differences(output, schema(a="long", b="long")) == []


def test_a_field_within_a_struct_is_a_difference():
    inner = {"type": "struct", "fields": schema(x="long", y="long")["fields"]}
    outer = {"type": "struct", "fields": schema(x="long")["fields"]}
    assert [each.kind for each in differences(schema(s=inner), schema(s=outer))] == ["type"]


def test_each_part_of_a_schema_has_a_path_and_says_whether_it_may_be_null():
    line = {"type": "struct", "fields": [_field("sku", "string", comment="of the shop")]}
    lines = {"type": "array", "elementType": line, "containsNull": False}
    prices = {"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True}
    fields = [_field("id", "long"), _field("lines", lines, True), _field("prices", prices, True)]
    parts = list(schema_parts({"type": "struct", "fields": fields}))
    assert [(part.subject, part.is_nested, part.is_required) for part in parts] == [
        ("column 'id'", False, True),
        ("column 'lines'", False, False),
        ("the elements of 'lines'", True, True),
        ("the nested field 'lines.element.sku'", True, True),
        ("column 'prices'", False, False),
        ("the keys of 'prices'", True, False),
        ("the values of 'prices'", True, False),
    ]
    assert [part.path for part in parts if part.metadata] == ["lines.element.sku"]
    assert [part.path for part in parts if part.type == "variant"] == ["prices.value"]
