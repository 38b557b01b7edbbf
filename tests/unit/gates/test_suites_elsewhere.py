"""Suites that Great Expectations has written: read unchanged, strictly, and without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.suites import GX_CONFIG, NULL, RANGE, gx_project, gx_rule, gx_suite
from tidegate.errors import Invalid
from tidegate.gates import Expectations, GateContext
from tidegate.gates.expectations.origin import suites_of_context
from tidegate.gates.expectations.suite import Suite
from tidegate.records.place import Place


def project(folder: Path, text: str, name: str = "orders", config: str = GX_CONFIG) -> Place:
    gx_project(folder, text, name, config)
    return Place(str(folder))


def load(place: Place, name: str = "orders", context: str = "gx") -> Suite:
    return Expectations(name, context=context).load(place)


def refused(place: Place, name: str = "orders", context: str = "gx") -> Invalid:
    with pytest.raises(Invalid) as told:
        Expectations(name, context=context).check(GateContext("p", "g", place))
    assert told.value.reason == "BAD_SUITE"
    return told.value


def test_a_suite_of_a_context_is_read_as_it_is_written(tmp_path):
    loaded = "great_expectations" in sys.modules
    condition = {"type": "comparison", "column": {"name": "country"}, "operator": "==", "parameter": "DE"}
    between = gx_rule(RANGE, kwargs={"column": "amount", "min_value": 0, "mostly": 0.9, "row_condition": condition})
    place = project(tmp_path, gx_suite(gx_rule(NULL, severity="warning", notes="never"), between))
    suite = load(place)
    assert suite.name == "orders"
    assert [each.name for each in suite.rules] == [f"{NULL}(amount)", f"{RANGE}(amount)"], "an id says nothing"
    assert [each.severity for each in suite.rules] == ["warning", "critical"]
    assert suite.rules[1].kwargs == between["kwargs"]
    assert suite.rules[1].mostly == 0.9
    assert suite.rules[0].written["notes"] == "never"
    assert suites_of_context(place, "gx") == ["orders"]
    assert ("great_expectations" in sys.modules) == loaded, "reading needs no import of six seconds"


def test_dots_in_a_name_are_folders_as_in_the_file_store(tmp_path):
    place = project(tmp_path, gx_suite(gx_rule(NULL)), name="shop.orders")
    assert len(load(place, "shop.orders").rules) == 1
    assert suites_of_context(place, "gx") == ["shop.orders"]


def test_the_contexts_own_file_says_where_suites_are(tmp_path):
    place = project(tmp_path, gx_suite(gx_rule(NULL)), config=GX_CONFIG.replace("expectations/", "rules/"))
    refused(place)
    (tmp_path / "gx" / "expectations").rename(tmp_path / "gx" / "rules")
    assert len(load(place).rules) == 1


def test_mistakes_are_told_with_the_line_of_the_json(tmp_path):
    text = gx_suite(gx_rule(NULL), gx_rule("expect_column_values_to_be_polite"), gx_rule(NULL, severity="fatal"))
    what = refused(project(tmp_path, text)).what
    lines = text.splitlines()
    for word, told in (
        ("polite", "expectation 'expect_column_values_to_be_polite' is not known"),
        ("fatal", "severity 'fatal' is not known"),
    ):
        number = next(number for number, line in enumerate(lines, start=1) if word in line)
        assert f"gx/expectations/orders.json:{number}: {told}" in what


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1: this is not JSON: a value is missing"),
        ('{"name": "a",\n "expectations": [}', "2: this is not JSON: a value is missing"),
        ('{"name": "a"} x', "this is not JSON: something follows its end"),
        ("{'name': 'a'}", "this is not JSON: a key in double quotes is missing"),
        ('{"name": "a" "b"}', "this is not JSON: expected ',' or '}'"),
        ('{"name": "a\nb"}', "this is not JSON: Invalid control character"),
        ('{"name": NaN}', "this is not JSON: a value is missing"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "a",\n "name": "b", "expectations": []}', "2: key 'name' is there twice"),
        ('{"name": "a", "expectations": []}', "expectations is empty: the suite would pass everything"),
        (gx_suite(), "expectations is empty: the suite would pass everything"),
        (
            gx_suite({"expectation_type": NULL, "kwargs": {}}, version="0.18.21"),
            "Great Expectations 0.18.21 has written it; this reads what 1.x writes: save it again with 1.x",
        ),
        (gx_suite(gx_rule(NULL), version="2.0.0"), "Great Expectations 2.0.0 has written it"),
        (
            gx_suite(gx_rule(RANGE, kwargs={"column": "a", "min_value": {"$PARAMETER": "low"}})),
            "min_value is a parameter, which is never filled in",
        ),
        (
            gx_suite(gx_rule(NULL, kwargs={"column": "a", "row_condition": "b > 1", "condition_parser": "pandas"})),
            "condition_parser is 'pandas', not spark or great_expectations",
        ),
    ],
)
def test_what_great_expectations_would_drop_or_pass_over_is_refused(tmp_path, text, told):
    assert told in refused(project(tmp_path, text)).what


def test_json_is_read_as_json(tmp_path):
    """YAML would take half of a surrogate pair, and 1e5 or a date for something else."""
    values = ["😀", "1e5", "2026-01-31", "NO", "a\\/b\u2028", ""]
    text = gx_suite(gx_rule("expect_column_values_to_be_in_set", kwargs={"column": "a", "value_set": values}))
    assert "\\ud83d" in text
    assert load(project(tmp_path, text)).rules[0].kwargs["value_set"] == values


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("TupleFilesystemStoreBackend", "TupleS3StoreBackend"), "keeps its suites in a TupleS3StoreBackend"),
        (("TupleFilesystemStoreBackend", "GXCloudStoreBackend"), "keeps its suites in a GXCloudStoreBackend"),
        (("TupleFilesystemStoreBackend", "InMemoryStoreBackend"), "keeps its suites in a InMemoryStoreBackend"),
        (("directory: expectations/", "directory: ${SUITES}/"), "keeps suites under base_directory '${SUITES}/'"),
        (("base_directory", "filepath_template: x{0}\n      base_directory"), "keeps suites under filepath_template"),
        (("config_version: 4.0", "config_version: 2.0"), "has config_version 2.0"),
        (("config_version: 4.0", "config_version: 5.0"), "has config_version 5.0"),
        (("config_version: 4.0", "config_version: ["), "is not YAML"),
    ],
)
def test_a_context_that_keeps_suites_elsewhere_is_refused(tmp_path, change, told):
    """No network is asked for a suite."""
    place = project(tmp_path, gx_suite(gx_rule(NULL)), config=GX_CONFIG.replace(*change))
    assert told in refused(place).what


def test_what_is_not_there_is_told_with_what_is(tmp_path):
    place = project(tmp_path, gx_suite(gx_rule(NULL)))
    missing = refused(place, "order")
    assert "has no suite 'order'" in missing.what
    assert missing.expected == "one of orders"
    assert "there is no context" in refused(place, context="nowhere").what
    assert refused(place, context=".").expected == 'context="./gx"', "the folder above it"
    assert "would be read from s3://" in refused(Place("s3://bucket")).what


def test_a_suite_that_was_edited_judges_what_is_planned_next(tmp_path):
    """And an attempt at what was planned before still gets the one that its plan has."""
    place = project(tmp_path, gx_suite(gx_rule(NULL)))
    gate = Expectations("orders", context="gx")
    before = gate.origin.read(place)
    (tmp_path / "gx" / "expectations" / "orders.json").write_text(
        gx_suite(gx_rule(NULL), gx_rule(RANGE, kwargs=KWARGS))
    )
    assert len(gate.load(place).rules) == 2
    (tmp_path / "gx" / "great_expectations.yml").unlink()
    assert len(gate.origin.parse(before, place).rules) == 1, "a plan's text needs no context any more"


KWARGS = {"column": "amount", "min_value": 0}


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (Expectations("", context="gx"), "suite '' is not a suite's name"),
        (Expectations("orders", context=" "), "context is ' ': name the folder of a file context"),
        (Expectations(5), "suite 5 is not a suite's name, and no ExpectationSuite"),  # type: ignore[arg-type]
        (Expectations("orders", context=7), "7 is not a context"),  # type: ignore[arg-type]
    ],
)
def test_a_declaration_of_no_suite_is_told(gate, told):
    assert any(told in problem for problem in gate.problems())


def test_the_context_is_part_of_the_gates_description():
    assert Expectations("orders", context="gx").describe()["context"] == "gx"
    assert "context" not in Expectations("orders").describe()
