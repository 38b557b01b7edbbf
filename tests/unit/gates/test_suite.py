"""Suites are read strictly: whatever is not understood is an error that names the file and the line."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.kit.suites import BROKEN, GOOD, NULL, RANGE, kwargs
from tidegate.errors import Invalid
from tidegate.gates.expectations.catalogue import CATALOGUE, ColumnSource
from tidegate.gates.expectations.origin import FileSuite
from tidegate.gates.expectations.suite import Suite, read_suite
from tidegate.gates.expectations.yaml_lines import dump_yaml
from tidegate.records.place import Place

SET = "expect_column_values_to_be_in_set"


def suite_at(path: Path) -> Suite:
    return FileSuite(str(path)).load(Place(str(path.parent)))


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_suite_is_refused_with_the_line_and_the_mistake(what):
    text, line, message = BROKEN[what]
    with pytest.raises(Invalid) as refused:
        read_suite(text, "include/expectations/s.yaml", "s")
    assert refused.value.reason == "BAD_SUITE"
    told = refused.value.what.splitlines()
    assert any(each.startswith(f"include/expectations/s.yaml:{line}: ") and message in each for each in told), told


def test_there_are_at_least_forty_broken_suites():
    assert len(BROKEN) >= 40


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file():
    text = f"nam: s\n{kwargs(NULL, 'column: a, mostly: 2')}  - {{type: {RANGE}, kwargs: {{min_value: 1}}}}\n"
    with pytest.raises(Invalid) as refused:
        read_suite(text, "s.yaml", "s")
    assert [each.split(": ")[0] for each in refused.value.what.splitlines()] == ["s.yaml:1", "s.yaml:3", "s.yaml:4"]


def test_a_suite_names_its_rules_and_keeps_where_they_are_written(tmp_path):
    (tmp_path / "o.yaml").write_text(GOOD)
    suite = suite_at(tmp_path / "o.yaml")
    assert suite.name == "orders"
    assert [rule.name for rule in suite.rules] == [f"{NULL}(order_id)", f"{NULL}(order_id)#2", "once"]
    assert [rule.severity for rule in suite.rules] == ["critical", "warning", "critical"]
    assert [(rule.line, rule.mostly) for rule in suite.rules] == [(4, 1.0), (6, 0.5), (10, 1.0)]
    assert suite.fingerprint == read_suite(f"# a comment\n{GOOD}", "elsewhere.yaml", "x").fingerprint
    assert suite.fingerprint != read_suite(GOOD.replace("0.5", "0.6"), "o.yaml", "x").fingerprint


def test_an_unknown_column_is_told_with_its_line_and_the_nearest_one():
    suite = read_suite(GOOD, "o.yaml", "o")
    suite.check_columns(["order_id", "at"])
    with pytest.raises(Invalid, match=r"o.yaml:10: .*there is no column 'at'; did you mean 'ate'\?"):
        suite.check_columns(["order_id", "ate"])


def test_a_suite_that_is_not_there_is_told_with_those_that_are(tmp_path):
    (tmp_path / "orders.yaml").write_text(GOOD)
    with pytest.raises(Invalid, match="there is no suite") as refused:
        suite_at(tmp_path / "order.yaml")
    assert "orders.yaml" in refused.value.expected
    (tmp_path / "latin.yaml").write_bytes("name: \xe9".encode("latin-1"))
    with pytest.raises(Invalid, match="is not UTF-8"):
        suite_at(tmp_path / "latin.yaml")


def test_whatever_is_refused_or_run_through_has_a_reason():
    assert [
        name
        for name, kind in CATALOGUE.items()
        if kind.how in (ColumnSource.REFUSED, ColumnSource.THROUGH) and not kind.why
    ] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("[NO, SE]", ["NO", "SE"]),
        ("[yes, on, y, off]", ["yes", "on", "y", "off"]),
        ("[12:30:00, 1:30]", ["12:30:00", "1:30"]),
        ("[1e3, .5, -0.25]", [1000.0, 0.5, -0.25]),
        ("[12, 0x1F, 0o17]", [12, 31, 15]),
        ("['0123', \"010\"]", ["0123", "010"]),
        ("[true, False]", [True, False]),
        ("[2024-01-31]", [date(2024, 1, 31)]),
    ],
)
def test_what_is_written_is_what_is_meant(written, meant):
    """Not as YAML 1.1 has it, where Norway is false, half past twelve is 45000, and 010 is 8."""
    text = f"expectations:\n  - {{type: {SET}, kwargs: {{column: a, value_set: {written}}}}}\n"
    assert read_suite(text, "s.yaml", "s").rules[0].kwargs["value_set"] == meant


def test_what_a_proposed_suite_says_is_read_as_it_was_meant():
    values = ["NO", "1e3", "0123", "1_000", "0o17", "12:30:00", "true", "~", "", "2024-01-31", ".5", 7, 1.5e-7, True]
    rules = [{"type": SET, "kwargs": {"column": "a", "value_set": values}}]
    assert read_suite(dump_yaml({"expectations": rules}), "s.yaml", "s").rules[0].kwargs["value_set"] == values


def test_what_means_the_opposite_is_not_suggested():
    wrong = GOOD.replace("expect_column_values_to_not_be_null", "expect_column_values_to_be_not_null", 1)
    assert wrong != GOOD
    with pytest.raises(Invalid, match=r"did you mean 'expect_column_values_to_not_be_null'\?"):
        read_suite(wrong, "o.yaml", "o")
