"""A good suite of expectations, a broken one, and a project of Great Expectations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANGE = "expect_column_values_to_be_between"


NULL = "expect_column_values_to_not_be_null"


def rule(text: str) -> str:
    return f"expectations:\n  - {text}\n"


def kwargs(type: str, text: str) -> str:
    return rule(f"{{type: {type}, kwargs: {{{text}}}}}")


BROKEN: dict[str, tuple[str, int, str]] = {
    # what: (text, line, message)
    "empty file": ("", 1, "the file is empty"),
    "only comments": ("# later\n", 1, "the file is empty"),
    "no YAML": ("expectations: [\n", 2, "this is not YAML"),
    "a tab": ("expectations:\n\t- type: x\n", 2, "this is not YAML"),
    "a list": ("- a\n- b\n", 1, "the suite is ['a', 'b'], not a mapping"),
    "no expectations": ("name: s\n", 1, "it has no expectations: it would pass everything"),
    "empty list": ("name: s\nexpectations: []\n", 2, "expectations is empty: the suite would pass everything"),
    "null list": ("name: s\nexpectations:\n", 2, "expectations is not a list"),
    "a mapping of expectations": ("expectations: {type: x}\n", 1, "expectations is not a list"),
    "misspelt expectations": ("expectation: []\n", 1, "no key 'expectation'; did you mean 'expectations'?"),
    "key twice": ("name: a\nname: b\nexpectations: []\n", 2, "key 'name' is there twice"),
    "number as key": ("1: a\n", 1, "key 1 is not a text: put it in quotes"),
    "name is a number": (f"name: 7\n{kwargs(NULL, 'column: a')}", 1, "name is 7, not a text"),
    "expectation is a text": (rule(NULL), 2, f"an expectation is '{NULL}', not a mapping"),
    "no type": (rule("{kwargs: {column: a}}"), 2, "an expectation has no type"),
    "unknown type": (
        kwargs("expect_column_values_to_not_be_nul", "column: a"),
        2,
        f"expectation 'expect_column_values_to_not_be_nul' is not known; did you mean '{NULL}'?",
    ),
    "class name": (kwargs("ExpectColumnValuesToNotBeNull", "column: a"), 2, f"did you mean '{NULL}'?"),
    "type is null": (rule("{type: , kwargs: {}}"), 2, "expectation None is not known"),
    "refused type": (
        kwargs("expect_column_values_to_be_increasing", "column: a"),
        2,
        "is not supported: the rows of a checkpoint have no order",
    ),
    "expectation_type": (
        rule(f"{{expectation_type: {NULL}, kwargs: {{column: a}}}}"),
        2,
        "an expectation has no key 'expectation_type'",
    ),
    "bad severity": (
        rule(f"{{type: {NULL}, severity: critcal, kwargs: {{column: a}}}}"),
        2,
        "severity 'critcal' is not known; did you mean 'critical'?",
    ),
    "severity as an argument": (kwargs(NULL, "column: a, severity: info"), 2, f"{NULL} takes no 'severity'"),
    "meta is a text": (rule(f"{{type: {NULL}, meta: x, kwargs: {{column: a}}}}"), 2, "meta is 'x', not a mapping"),
    "kwargs is a list": (rule(f"{{type: {NULL}, kwargs: [a]}}"), 2, "kwargs is ['a'], not a mapping"),
    "no kwargs": (rule(f"{{type: {NULL}}}"), 2, f"{NULL} lacks 'column'"),
    "unknown argument": (kwargs(NULL, "colum: a"), 2, f"{NULL} takes no 'colum'; did you mean 'column'?"),
    "argument outside kwargs": (
        f"expectations:\n  - type: {NULL}\n    column: a\n",
        3,
        "an expectation has no key 'column'",
    ),
    "column is null": (kwargs(NULL, "column: "), 2, "column is empty"),
    "column is a number": (kwargs(NULL, "column: 3"), 2, "column is 3, not a text"),
    "column is a truth value": (kwargs(NULL, "column: false"), 2, "column is False, not a text"),
    "octal": (kwargs(RANGE, "column: a, min_value: 0123"), 2, "0123 is a different number to some YAML parsers"),
    "octal as a text": (kwargs(NULL, "column: 010"), 2, "010 is a different number to some YAML parsers"),
    "in groups": (kwargs(RANGE, "column: a, min_value: 1_000"), 2, "1_000 is a different number to some YAML parsers"),
    "mostly as percent": (kwargs(NULL, "column: a, mostly: 95"), 2, "mostly is 95, not a share from 0 to 1: did you"),
    "mostly as text": (kwargs(NULL, "column: a, mostly: '0.9'"), 2, "mostly is '0.9', not a share from 0 to 1"),
    "mostly negative": (kwargs(NULL, "column: a, mostly: -0.1"), 2, "mostly is -0.1, not a share from 0 to 1"),
    "no bounds": (kwargs(RANGE, "column: a"), 2, f"{RANGE} has neither min_value nor max_value"),
    "bounds the wrong way": (
        kwargs(RANGE, "column: a, min_value: 5, max_value: 1"),
        2,
        "min_value 5 is above max_value 1: nothing lies between",
    ),
    "bound is not a number": (kwargs(RANGE, "column: a, min_value: .nan"), 2, "min_value is not a number"),
    "bound is a list": (kwargs(RANGE, "column: a, min_value: [1]"), 2, "min_value is [1], not a value to compare with"),
    "strict is a text": (
        kwargs(RANGE, "column: a, min_value: 1, strict_min: 'yes'"),
        2,
        "strict_min is 'yes', not true or false",
    ),
    "empty set": (
        kwargs("expect_column_values_to_be_in_set", "column: a, value_set: []"),
        2,
        "value_set is an empty list: it would say nothing",
    ),
    "set is a text": (
        kwargs("expect_column_values_to_be_in_set", "column: a, value_set: DE"),
        2,
        "value_set is 'DE', not a list",
    ),
    "column twice": (
        kwargs("expect_compound_columns_to_be_unique", "column_list: [a, a]"),
        2,
        "which names a column twice",
    ),
    "pairs are no pairs": (
        kwargs("expect_column_pair_values_to_be_in_set", "column_A: a, column_B: b, value_pairs_set: [[1, 2, 3]]"),
        2,
        "value_pairs_set is [[1, 2, 3]], not a list of pairs",
    ),
    "unknown ignore_row_if": (
        kwargs("expect_column_pair_values_to_be_equal", "column_A: a, column_B: b, ignore_row_if: both"),
        2,
        "ignore_row_if is 'both', not one of both_values_are_missing,",
    ),
    "condition without parser": (
        kwargs(NULL, "column: a, row_condition: b > 1"),
        2,
        "row_condition is a text, so it needs condition_parser: spark",
    ),
    "parser of pandas": (
        kwargs(NULL, "column: a, row_condition: b > 1, condition_parser: pandas"),
        2,
        "condition_parser is 'pandas', not spark or great_expectations",
    ),
    "parser without condition": (
        kwargs(NULL, "column: a, condition_parser: spark"),
        2,
        "condition_parser without a row_condition",
    ),
    "parameter": (
        kwargs(RANGE, "column: a, min_value: {$PARAMETER: low}"),
        2,
        "min_value is a parameter, which is never filled in",
    ),
    "result format": (
        kwargs(NULL, "column: a, result_format: COMPLETE"),
        2,
        "'result_format' cannot be set: tidegate chooses what results hold",
    ),
    "the same twice": (
        f"expectations:\n  - {{type: {NULL}, kwargs: {{column: a}}}}\n  - {{type: {NULL}, kwargs: {{column: a}}}}\n",
        3,
        f"{NULL} says the same as line 2: remove one",
    ),
    "impossible date": (
        kwargs(RANGE, "column: a, min_value: 2026-02-30"),
        2,
        "'2026-02-30' cannot be read: day is out of range",
    ),
}


GOOD = """
name: orders
expectations:
  - type: expect_column_values_to_not_be_null
    kwargs: {column: order_id}
  - type: expect_column_values_to_not_be_null
    kwargs: {column: order_id, mostly: 0.5}
    severity: warning
    meta: {why: late}
  - type: expect_compound_columns_to_be_unique
    kwargs: {column_list: [order_id, at]}
    id: once
"""

GX_CONFIG = """# Welcome to Great Expectations!
config_version: 4.0
config_variables_file_path: uncommitted/config_variables.yml
plugins_directory: plugins/
stores:
  expectations_store:
    class_name: ExpectationsStore
    store_backend:
      class_name: TupleFilesystemStoreBackend
      base_directory: expectations/
expectations_store_name: expectations_store
"""
"""The part of great_expectations.yml that says where suites are, as Great Expectations 1.24 writes it."""
GX_ID = "9d5c0bd2-6f2e-4f8e-9a5b-0d3a4f6d6a11"


def gx_rule(type: str, id: str = GX_ID, **others: Any) -> dict[str, Any]:
    """An expectation as Great Expectations writes it."""
    written = {"id": id, "kwargs": {"column": "amount"}, "meta": {}, "severity": "critical", "type": type}
    return {**written, **others}


def gx_suite(*rules: dict[str, Any], name: str = "orders", version: str = "1.24.1") -> str:
    """A suite as its file store writes it."""
    meta = {"great_expectations_version": version}
    document = {"expectations": list(rules), "id": GX_ID, "meta": meta, "name": name, "notes": None}
    return json.dumps(document, indent=2, sort_keys=True)


def gx_project(folder: Path, text: str, name: str = "orders", config: str = GX_CONFIG) -> None:
    """Write a file context, gx/, with one suite."""
    root = folder / "gx"
    path = root.joinpath("expectations", *name.split("."))
    path.parent.mkdir(parents=True)
    (root / "great_expectations.yml").write_text(config)
    path.with_name(f"{path.name}.json").write_text(text)
    (root / "expectations" / ".ge_store_backend_id").write_text("store_backend_id = 1")
