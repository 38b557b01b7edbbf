"""Contracts are read strictly: what is not understood, or cannot be judged, is an error with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.gates import Contract, GateContext, Volume
from tidegate.gates.contracts.changes import changes_between
from tidegate.gates.contracts.document import read_contract
from tidegate.gates.contracts.gate import ContractGate, described_gate
from tidegate.gates.contracts.origin import ReadContract, read_for_table
from tidegate.gates.contracts.types import schema_mismatches
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

HEAD = "apiVersion: v3.1.0\nkind: DataContract\nid: o\nversion: 1.0.0\nstatus: active\n"
"""Five lines."""


def contract(properties: str, more: str = "") -> str:
    """One table. Its first property is on line 9."""
    return f"{HEAD}schema:\n  - name: orders\n    properties:\n{properties}{more}"


def column(text: str) -> str:
    return contract(f"      - {{name: a, {text}}}\n")


def rule(text: str) -> str:
    """One quality rule of a column, on line 12."""
    return contract(f"      - name: a\n        logicalType: string\n        quality:\n          - {{{text}}}\n")


def of_table(text: str) -> str:
    """One quality rule of the table, on line 11."""
    return contract("      - {name: a, logicalType: string}\n", f"    quality:\n      - {{{text}}}\n")


BROKEN: dict[str, tuple[str, int, str]] = {
    # what: (text, line, message)
    "empty file": ("", 1, "the file is empty"),
    "no YAML": ("schema: [\n", 2, "this is not YAML"),
    "a list": ("- a\n", 1, "it is no contract"),
    "no apiVersion": ("kind: DataContract\n", 1, "it has no apiVersion"),
    "another specification": ("dataContractSpecification: 1.1.0\n", 1, "it is of the Data Contract Specification"),
    "the old version": ("kind: DataContract\napiVersion: v2.2.2\n", 2, "the old form, with `dataset` and `columns`"),
    "a version to come": ("apiVersion: v4.0.0\n", 1, "apiVersion 'v4.0.0' is not read here; known are v3.0.0"),
    "no status": (HEAD.replace("status: active\n", ""), 1, "it has no status, which the standard requires"),
    "another kind": (HEAD.replace("kind: DataContract", "kind: Data"), 2, "kind is 'Data', not DataContract"),
    "version as a number": (HEAD.replace("1.0.0", "1.0"), 4, "version is 1.0, not a text: put it in quotes"),
    "a misspelt section": (f"{HEAD}shema: []\n", 6, "the contract has no key 'shema'; did you mean 'schema'?"),
    "key twice": (f"{HEAD}id: p\n", 6, "key 'id' is there twice"),
    "a misspelt key": (column("logicaltype: string"), 9, "no key 'logicaltype'; did you mean 'logicalType'?"),
    "an unknown type": (column("logicalType: text"), 9, "logicalType 'text' is not known"),
    "no name": (contract("      - {logicalType: string}\n"), 9, "a property has no name"),
    "a property twice": (contract("      - {name: a}\n      - {name: A}\n"), 10, "property 'A' is there twice: line 9"),
    "a table twice": (contract("      - {name: a}\n", "  - {name: orders}\n"), 10, "'orders' is there twice: line 7"),
    "required as text": (column("required: 'yes'"), 9, "required is 'yes', not true or false"),
    "an option of another type": (
        column("logicalType: date, logicalTypeOptions: {maxLength: 3}"),
        9,
        "no key 'maxLeng",
    ),
    "options without a type": (column("logicalTypeOptions: {maxLength: 3}"), 9, "logicalTypeOptions, but no logicalT"),
    "a negative length": (column("logicalType: string, logicalTypeOptions: {maxLength: -3}"), 9, "maxLength is -3"),
    "a limit as text": (
        column("logicalType: integer, logicalTypeOptions: {minimum: '1'}"),
        9,
        "minimum is '1', not a number",
    ),
    "a multiple of nothing": (
        column("logicalType: number, logicalTypeOptions: {multipleOf: 0}"),
        9,
        "multipleOf is 0, not a number above 0",
    ),
    "an infinite bound": (
        column("logicalType: number, logicalTypeOptions: {maximum: .inf}"),
        9,
        "maximum is inf, not a number",
    ),
    "a pattern that is no text": (
        column("logicalType: string, logicalTypeOptions: {pattern: 5}"),
        9,
        "pattern is 5, not a text",
    ),
    "unique items as text": (
        column("logicalType: array, logicalTypeOptions: {uniqueItems: 'yes'}"),
        9,
        "uniqueItems is 'yes', not true or false",
    ),
    "a bound that is no date": (
        column("logicalType: date, logicalTypeOptions: {minimum: soon}"),
        9,
        "minimum is 'soon', which is no date",
    ),
    "items of a text": (column("logicalType: string, items: {logicalType: string}"), 9, "has items, but logicalType"),
    "fields of a text": (column("logicalType: string, properties: [{name: b}]"), 9, "has properties, but logicalType"),
    "an unknown metric": (
        rule("metric: nullValue, mustBe: 0"),
        12,
        "metric 'nullValue' is not known; did you mean 'n",
    ),
    "no metric": (rule("mustBe: 0"), 12, "a quality rule of property a has no metric"),
    "no operator": (rule("metric: nullValues"), 12, "nullValues of property a is compared with nothing"),
    "two operators": (rule("metric: nullValues, mustBe: 0, mustNotBe: 1"), 12, "has mustBe and mustNotBe"),
    "a bound as text": (rule("metric: nullValues, mustBe: none"), 12, "mustBe is 'none', not a number"),
    "a range the wrong way": (rule("metric: nullValues, mustBeBetween: [2, 1]"), 12, "two numbers, the smaller first"),
    "a table's metric of a column": (rule("metric: rowCount, mustBe: 1"), 12, "only for a table"),
    "a column's metric of a table": (of_table("metric: nullValues, mustBe: 0"), 11, "only for a property"),
    "no valid values": (rule("metric: invalidValues, mustBe: 0"), 12, "needs validValues or pattern"),
    "no value is valid": (rule("metric: invalidValues, mustBe: 0, arguments: {validValues: []}"), 12, "needs validV"),
    "an unknown argument": (
        rule("metric: invalidValues, mustBe: 0, arguments: {validValue: [a]}"),
        12,
        "takes no argument 'validValue'; did you mean 'validValues'?",
    ),
    "a pattern beside its arguments": (
        rule("metric: invalidValues, mustBe: 0, arguments: {validValues: [x]}, pattern: a"),
        12,
        "has no key 'pattern'",
    ),
    "duplicates of nothing": (of_table("metric: duplicateValues, mustBe: 0"), 11, "needs the argument properties"),
    "duplicates of an unknown column": (
        of_table("metric: duplicateValues, mustBe: 0, arguments: {properties: [a, bb]}"),
        11,
        "there is no property 'bb'",
    ),
    "SQL without a query": (rule("type: sql, mustBe: 0"), 12, "has type sql, but no query"),
    "SQL that is compared with nothing": (rule("type: sql, query: 'select 1'"), 12, "compares its result with nothing"),
    "SQL that is compared with a text": (
        rule("type: sql, query: 'select max({column}) from {table}', mustBe: x"),
        12,
        "mustBe is 'x', not a number, true or false",
    ),
    "SQL in a range of one": (
        rule("type: sql, query: 'select max({column}) from {table}', mustBeBetween: [1]"),
        12,
        "mustBeBetween is [1], not two numbers",
    ),
    "valid values that are lists": (
        rule("metric: invalidValues, mustBe: 0, arguments: {validValues: [[a]]}"),
        12,
        "validValues is not a list of plain values",
    ),
    "arguments of an expectation as a list": (
        rule("type: custom, engine: gx, implementation: {type: expect_column_to_exist, kwargs: [a]}"),
        12,
        "its kwargs are not a mapping",
    ),
    "a column in a table's SQL": (
        of_table("type: sql, query: 'select max({column}) from {table}', mustBe: 0"),
        11,
        "{column} is for rules of a property",
    ),
    "an expectation without a type": (
        rule("type: custom, engine: greatExpectations, implementation: {kwargs: {}}"),
        12,
        "its implementation has no type",
    ),
    "an unknown expectation": (
        rule("type: custom, engine: greatExpectations, implementation: {type: expect_column_value_to_be_null}"),
        12,
        "expectation 'expect_column_value_to_be_null' is not known",
    ),
}


def read(text: str, **options: list[str]) -> ReadContract:
    found = read_for_table(text, "orders.odcs.yaml", None, **options)
    found.suite("all")
    return found


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_contract_is_refused_with_the_line_and_the_mistake(what):
    text, line, message = BROKEN[what]
    with pytest.raises(Invalid) as refused:
        read(text)
    assert refused.value.reason in ("BAD_CONTRACT", "BAD_SUITE")
    told = refused.value.what.splitlines()
    assert any(each.startswith(f"orders.odcs.yaml:{line}: ") and message in each for each in told), told


CANNOT_BE_JUDGED: dict[str, tuple[str, str, str]] = {
    # what: (text, name, reason)
    "a foreign type": (column("physicalType: hstore"), "type(a)", "physicalType 'hstore' is not one of Spark's types"),
    "a name that Great Expectations cannot read": (
        contract("      - {name: a.b, logicalType: string, required: true}\n"),
        "rules(a.b)",
        "Great Expectations cannot read a column with ` or . in its name",
    ),
    "times of day": (column("logicalType: time"), "type(a)", "no Delta table has a type for times of day"),
    "numbers of 128 bits": (
        column("logicalType: integer, logicalTypeOptions: {format: u128}"),
        "format(a)",
        "no type of Spark holds all numbers of the format 'u128'",
    ),
    "the number of fields": (
        column("logicalType: object, logicalTypeOptions: {maxProperties: 3}"),
        "maxProperties(a)",
        "a struct always has all of its fields",
    ),
    "another engine": (rule("id: s, type: custom, engine: soda, implementation: x"), "s", "engine 'soda' is not here"),
    "another severity": (rule("metric: nullValues, mustBe: 0, severity: p1"), "nullValues(a)", "severity 'p1' says"),
    "another unit": (rule("metric: nullValues, mustBe: 0, unit: kg"), "nullValues(a)", "unit 'kg' is neither rows nor"),
    "a share of a number of rows": (
        of_table("metric: rowCount, mustBe: 1, unit: percent"),
        "rowCount(orders)",
        "a number of rows has no share of the rows",
    ),
    "SQL about something else": (of_table("id: q, type: sql, query: 'select 1', mustBe: 1"), "q", "the query does not"),
    "SQL with another placeholder": (
        of_table("id: q, type: sql, query: 'select 1 from {catalog}.t', mustBe: 1"),
        "q",
        "nothing here fills {catalog}",
    ),
    "SQL that changes something": (
        of_table("id: q, type: sql, query: 'delete from {object}', mustBe: 1"),
        "q",
        "the query is not a single SELECT",
    ),
    "unique fields in a column": (
        column("logicalType: object, properties: [{name: b, logicalType: string, unique: true}]"),
        "unique(a.b)",
        "only columns can be unique",
    ),
}


@pytest.mark.parametrize("what", CANNOT_BE_JUDGED)
def test_what_cannot_be_judged_is_refused_by_name_and_can_be_left_out_by_it(what):
    text, name, why = CANNOT_BE_JUDGED[what]
    with pytest.raises(Invalid, match="cannot be judged") as refused:
        read(text)
    assert f"{name} cannot be judged: {why}" in refused.value.what
    assert f"without=[{name!r}]" in refused.value.what
    left_out = read(text, without=[name])
    assert (name, "it is left out by without=[…]") in left_out.rules.told_only


def test_leaving_out_what_is_not_there_is_refused():
    with pytest.raises(Invalid, match=r"the contract has no rule 'unique\(b\)'; did you mean 'unique\(a\)'"):
        read(column("unique: true"), without=["unique(b)"])


def test_a_table_that_the_contract_does_not_have_is_told_with_those_that_it_has():
    document = read_contract(contract("      - {name: a}\n", "  - {name: items}\n"), "o.yaml")
    with pytest.raises(Invalid, match="no schema object 'order'") as refused:
        document.schema("order")
    assert refused.value.expected == "one of orders, items"
    with pytest.raises(Invalid, match="has 2 schema objects"):
        document.schema(None)


def names(text: str) -> dict[str, bool]:
    """The rules, and whether each is about all rows."""
    return {rule.name: rule.about_all_rows for rule in read(text).rules.rules}


def test_rules_that_a_single_row_breaks_are_told_from_those_of_the_table():
    assert names(column("required: true, unique: true")) == {"required(a)": False, "unique(a)": True}
    assert names(rule("metric: nullValues, mustBe: 0")) == {"nullValues(a)": False}
    assert names(rule("metric: nullValues, mustBeLessThan: 1")) == {"nullValues(a)": False}, "none is less than one"
    assert names(rule("metric: nullValues, mustBeLessThan: 2")) == {"nullValues(a)": True}
    assert names(rule("metric: nullValues, mustBeLessThan: 1, unit: percent")) == {"nullValues(a)": True}
    assert names(rule("metric: duplicateValues, mustBe: 0")) == {"duplicateValues(a)": True}
    only_rows = "type: sql, query: 'SELECT count(*) FROM {object} WHERE {property} = 7', mustBe: 0"
    assert names(rule(only_rows)) == {"sql(a)": False}
    grouped = "type: sql, query: 'SELECT count(*) FROM {object} WHERE {property} = 7 GROUP BY a', mustBe: 0"
    assert names(rule(grouped)) == {"sql(a)": True}


def test_a_rule_that_says_what_the_schema_says_is_judged_once():
    text = contract("      - name: a\n        required: true\n        quality: [{metric: nullValues, mustBe: 0}]\n")
    assert names(text) == {"required(a)": False}


def test_rules_about_all_rows_are_refused_where_only_a_checkpoints_rows_are_seen(tmp_path):
    (tmp_path / "o.odcs.yaml").write_text(column("required: true, unique: true"))
    context = GateContext("p", "g", Place(str(tmp_path), project=str(tmp_path)))
    with pytest.raises(Invalid, match=r"o.odcs.yaml:9: unique\(a\) is about all rows of the table") as refused:
        Contract("o.odcs.yaml").check(context)
    assert 'over="tables/…"' in refused.value.help
    Contract("o.odcs.yaml", without=["unique(a)"]).check(context)
    Contract("o.odcs.yaml", per_checkpoint=True).check(context)
    gate = Contract("o.odcs.yaml", over="tables/o")
    gate.check(context)
    assert gate.followed_by is not None


def test_a_gate_is_declared_again_from_what_a_verdict_records_of_it():
    options = {"without": ["unique(*)"], "extra": "refuse", "private": ["a"]}
    gate = Contract("o.yaml", schema="orders", over="tables/o", keys=["a"], **options).with_unique_keys(["a"])  # type: ignore[arg-type]
    for each in (gate, gate.followed_by):
        assert isinstance(each, ContractGate)
        again = described_gate(each.describe())
        assert again is not None
        assert (type(again), again.describe()) == (type(each), each.describe())
    assert described_gate({"suite": "orders", "on_failure": {}, "private": []}) is None


def test_a_declaration_that_says_two_things_is_refused():
    gate = Contract("o.csv", per_checkpoint=True, over="t", extra="drop")  # type: ignore[arg-type]
    assert gate.problems() == [
        "contract 'o.csv' is not a path that ends in .yaml",
        'extra is \'drop\': write "allow" or "refuse"',
        "over and per_checkpoint are two ways to judge the rules about all rows: leave one out",
    ]


# -- types ------------------------------------------------------------------------------------------------------


def frame(**types: object) -> Json:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": type, "nullable": True} for name, type in types.items()],
    }


FITS: dict[str, list[object]] = {
    "logicalType: string": ["string"],
    "logicalType: integer": ["long", "byte", "decimal(20,0)"],
    "logicalType: number": ["double", "float", "decimal(12,2)", "long"],
    "logicalType: timestamp": ["timestamp", "timestamp_ntz"],
    "logicalType: timestamp, logicalTypeOptions: {timezone: false}": ["timestamp_ntz"],
    "logicalType: boolean": ["boolean"],
    "logicalType: date": ["date"],
    "logicalType: array": [{"type": "array", "elementType": "string", "containsNull": True}],
    "logicalType: object": [frame(b="long"), {"type": "map", "keyType": "string", "valueType": "string"}],
    "physicalType: BIGINT": ["long"],
    "physicalType: varchar(18)": ["string"],
    "physicalType: 'DECIMAL(12, 2)'": ["decimal(12,2)"],
    "physicalType: numeric": ["decimal(12,2)", "decimal(3,0)"],
    "physicalType: timestamptz": ["timestamp"],
    "physicalType: double precision": ["double"],
    "physicalType: 'NUMBER(10,0)'": ["decimal(10,0)"],
    "physicalType: array<int>": [{"type": "array", "elementType": "integer", "containsNull": True}],
}
DOES_NOT: dict[str, list[object]] = {
    "logicalType: string": ["long", "date"],
    "logicalType: integer": ["double", "decimal(12,2)", "string"],
    "logicalType: number": ["string"],
    "logicalType: timestamp": ["date", "string"],
    "logicalType: timestamp, logicalTypeOptions: {timezone: true}": ["timestamp_ntz"],
    "logicalType: object": ["string"],
    "logicalType: object, properties: [{name: c, logicalType: date}]": [frame(b="long"), frame(c="long")],
    "logicalType: array, items: {logicalType: integer}": [{"type": "array", "elementType": "string"}],
    "physicalType: BIGINT": ["integer"],
    "physicalType: 'DECIMAL(12, 2)'": ["decimal(12,3)"],
}


@pytest.mark.parametrize("kind", FITS)
def test_a_column_of_the_contracts_type_fits(kind):
    schema = read(column(kind)).schema
    for type in FITS[kind]:
        assert schema_mismatches(schema, frame(a=type)) == [], type


@pytest.mark.parametrize("kind", DOES_NOT)
def test_a_column_of_another_type_does_not_fit(kind):
    schema = read(column(kind)).schema
    for type in DOES_NOT[kind]:
        assert len(schema_mismatches(schema, frame(a=type))) == 1, type


def test_columns_that_the_contract_does_not_have_are_refused_only_if_asked():
    schema = read(column("logicalType: string")).schema
    assert schema_mismatches(schema, frame(a="string", b="long")) == []
    refused = schema_mismatches(schema, frame(a="string", b="long"), extra="refuse")
    assert refused == ["column 'b' is not in the contract"]
    assert schema_mismatches(schema, frame(A="string")) == ["column 'a' is written 'A' in the rows"]
    assert schema_mismatches(schema, frame(b="string")) == ["column 'a' is missing"]


# -- changes ----------------------------------------------------------------------------------------------------


def effects(before: str, after: str) -> dict[str, str]:
    changes = changes_between(read_contract(before, "a.yaml"), read_contract(after, "b.yaml"))
    return {change.path: change.effect for change in changes}


def test_what_breaks_is_told_from_what_does_not():
    two = contract("      - {name: a}\n      - {name: b}\n")
    one = contract("      - {name: a}\n")
    assert effects(two, one) == {"orders.b": "breaking"}
    assert effects(one, two) == {"orders.b": "info"}
    assert effects(one, HEAD) == {"orders": "breaking"}
    assert effects(one, one) == {}
    assert effects(column("logicalType: integer"), column("logicalType: string")) == {
        "orders.a.logicalType": "breaking"
    }
    assert effects(column("required: false"), column("required: true")) == {"orders.a.required": "breaking"}
    assert effects(column("description: x"), column("required: false")) == {"orders.a.description": "info"}
    limits = column("logicalType: string, logicalTypeOptions: {maxLength: 9}")
    assert effects(column("logicalType: string"), limits) == {"orders.a.maxLength": "warning"}
    assert effects(limits, limits.replace("9", "8")) == {"orders.a.maxLength": "breaking"}
    assert effects(rule("metric: nullValues, mustBe: 0"), rule("metric: nullValues, mustBeLessThan: 9")) == {
        "orders.a.quality.nullValues": "warning"
    }
    nested = "logicalType: array, items: {logicalType: object, properties: [{name: b, logicalType: string}]}"
    assert effects(column(nested), column(nested.replace("name: b", "name: c"))) == {
        "orders.a[].b": "breaking",
        "orders.a[].c": "info",
    }
    level = f"{one}slaProperties: [{{property: latency, value: 1, unit: h}}]\n"
    assert effects(level, level.replace("value: 1", "value: 2")) == {"slaProperties.latency": "warning"}


# -- service levels ---------------------------------------------------------------------------------------------


def fresh(levels: str, more: str = "") -> float | None:
    text = contract("      - {name: a, logicalType: string}\n", more)
    return read_for_table(f"{text}slaProperties: [{levels}]\n", "orders.odcs.yaml", "orders").fresh_s


def test_the_least_latency_of_the_table_is_what_is_promised():
    assert fresh("{property: latency, value: 4, unit: d}") == 4 * 86400
    assert fresh("{property: ly, value: '90', unit: min, element: orders.a}, {property: freshness, value: 2}") == 5400
    assert fresh("{property: Latency, value: 1, unit: h, element: a}") == 3600, "a column of the only table"
    assert fresh("{property: retention, value: 3, unit: y}") is None
    assert fresh("{property: latency, value: 4, unit: d, element: items.a}", "  - {name: items}\n") is None


def test_service_levels_that_are_not_measured_are_told():
    text = f"{column('logicalType: string')}slaProperties: [{{property: retention, value: 3, unit: y}}]\n"
    assert ("retention", "nothing here measures it: it is documentation") in read(text).rules.told_only


@pytest.mark.parametrize("level", ["value: soon", "value: 0, unit: h", "value: 3, unit: moons", "value: true, unit: h"])
def test_a_latency_that_is_no_time_is_refused(level):
    text = f"{column('logicalType: string')}slaProperties:\n  - {{property: latency, {level}}}\n"
    with pytest.raises(
        Invalid, match=r"orders.odcs.yaml:11: latency is .*: write a number above 0, and one of the unit"
    ):
        read(text)


CONTRACT_OF_TWO_HOURS = f"{column('logicalType: string')}slaProperties: [{{property: latency, value: 2, unit: h}}]\n"


def declared(root: Path, **promise: str) -> Pipeline:
    (root / "o.odcs.yaml").write_text(CONTRACT_OF_TWO_HOURS)
    pipeline = Pipeline("p")
    rows = pipeline.source("in", Files("landing/*.json", schema="a string"))
    rows.sink("out", DeltaAppend("tables/out"), contract=Contract("o.odcs.yaml"))
    if promise:
        pipeline.promise("out", **promise)  # type: ignore[arg-type]
    return pipeline


def test_a_pipeline_may_promise_more_than_the_contract_of_its_sink_and_never_less(tmp_path):
    place = Place(str(tmp_path), project=str(tmp_path))
    assert declared(tmp_path).graph(place).promises == {"out": 7200}
    assert declared(tmp_path, fresh="1 hour").graph(place).promises == {"out": 3600}
    with pytest.raises(Invalid, match="fresh within 3 h, and its contract says 2 h"):
        declared(tmp_path, fresh="3 hours").graph(place)


def test_a_contract_of_a_sink_must_be_one():
    rows = Pipeline("p").source("in", Files("landing/*.json", schema="a string"))
    with pytest.raises(Invalid, match="sink 'out' has the contract 'o.odcs.yaml'"):
        rows.sink("out", DeltaAppend("tables/out"), contract="o.odcs.yaml")  # type: ignore[arg-type]


# -- columns that sources add -----------------------------------------------------------------------------------


def behind_a_source(root: Path, *, between: bool = False, extra: str = "refuse", **policy: str) -> Pipeline:
    (root / "o.odcs.yaml").write_text(column("logicalType: string"))
    pipeline = Pipeline("p")
    files = Files("landing/*.json", schema="a string", **policy)  # type: ignore[arg-type]
    rows = pipeline.source("in", files).gate(Volume(), name="volume")
    if between:
        rows = rows.select("a")
    rows.sink("out", DeltaAppend("t"), contract=Contract("o.odcs.yaml", extra=extra))  # type: ignore[arg-type]
    return pipeline


def test_a_source_whose_columns_evolve_does_not_agree_with_a_contract_that_refuses_others(tmp_path):
    place = Place(str(tmp_path), project=str(tmp_path))
    with pytest.raises(Invalid, match="gate 'out-contract' refuses columns .* source 'in' gets new ones"):
        behind_a_source(tmp_path, on_new_column="evolve").graph(place)
    with pytest.raises(Invalid, match="source 'in' adds the column '_rescued': add it to the contract"):
        behind_a_source(tmp_path, on_type="rescue").graph(place)
    behind_a_source(tmp_path, on_new_column="refuse").graph(place)
    behind_a_source(tmp_path, on_new_column="evolve", extra="allow").graph(place)
    behind_a_source(tmp_path, on_new_column="evolve", between=True).graph(place)
