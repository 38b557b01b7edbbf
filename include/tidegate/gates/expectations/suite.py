"""Suites of expectations: YAML or JSON in Great Expectations' own form, read strictly.

    name: orders
    expectations:
      - type: expect_column_values_to_not_be_null
        kwargs: {column: order_id}
        severity: critical

Great Expectations ignores keys that it does not understand. Here every mistake is an error that names the file and the
line, and all of them are reported together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tidegate.gates import declared_files
from tidegate.gates.expectations.catalogue import ColumnSource, Kind
from tidegate.gates.expectations.checking import Problems, ValueOnLine, check_rule
from tidegate.gates.expectations.custom import kinds_with
from tidegate.gates.expectations.json_lines import load_json
from tidegate.gates.expectations.sql_rows import row_condition_of
from tidegate.gates.expectations.yaml_lines import load_yaml
from tidegate.records.codec import fingerprint
from tidegate.records.records import Json

__all__ = ["GIVEN_ID", "Rule", "Severity", "Suite", "read_suite", "read_text", "rules_from"]

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Rule:
    """One expectation of a suite."""

    name: str
    """Its unique name in the suite, in verdicts and in quarantine: its `id`, or type and columns. The ids that Great
    Expectations itself gives mean nothing to a person, so they are no names."""
    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    meta: Mapping[str, Any]
    line: int
    kind: Kind = field(repr=False, compare=False)
    """What its type says about it, and how it is judged."""
    written: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that the suite says about it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is about."""
        names = [self.kwargs.get(key) for key in ("column", "column_A", "column_B")]
        names += self.kwargs.get("column_list") or ()
        return tuple(name for name in names if isinstance(name, str))

    @property
    def mostly(self) -> float:
        """The share of rows that must satisfy it."""
        return float(self.kwargs.get("mostly", 1.0))


@dataclass(frozen=True)
class Suite:
    """The rules of one file, in its order."""

    name: str
    path: str
    rules: tuple[Rule, ...] = field(repr=False)
    modules: tuple[str, ...] = ()
    """The modules that define expectations of its user's own. They are imported when rows are judged."""

    @property
    def fingerprint(self) -> str:
        """A hash of the suite's content."""
        return fingerprint(self.describe())

    def describe(self) -> Json:
        """Return its content, without path and lines."""
        rules = [[r.name, r.type, dict(r.kwargs), r.severity] for r in self.rules]
        return {"name": self.name, "rules": rules}

    def check_columns(self, columns: Iterable[str]) -> None:
        """Raise Invalid if a rule is about a column that does not exist."""
        names = list(columns)
        problems = Problems(self.path)
        for rule in self.rules:
            if rule.type in ("expect_column_to_exist", "expect_table_columns_to_match_ordered_list"):
                continue  # these rules check whether columns exist
            for column in rule.columns:
                if column not in names and column.split(".")[0] not in names:
                    problems.unknown(rule.line, f"{rule.type}: there is no column {column!r}", column, names)
        problems.raise_if_any()


def read_text(path: Path) -> str:
    """Return the text of a suite's file. Raise Invalid if it cannot be read."""
    return declared_files.read_text(
        path,
        "suite",
        expected="a YAML file with expectations",
        help="correct the name, or write the file",
        reason="BAD_SUITE",
    )


def read_suite(text: str, path: str, name: str, *, is_json: bool = False, modules: Sequence[str] = ()) -> Suite:
    """Read a suite from a text. Messages call it by `path`; `name` is its name if the text has none.

    modules: those that define expectations of the user's own.
    """
    problems = Problems(path)
    loaded = load_json(text, problems) if is_json else load_yaml(text, problems)
    rules: list[Rule] = []
    if not problems:
        rules = _read_rules(loaded, problems, kinds_with(modules))
    problems.raise_if_any()
    own_name = loaded.value.get("name") if isinstance(loaded.value, dict) else None
    return Suite(own_name.value if own_name else name, path, tuple(rules), tuple(modules))


GIVEN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""The ids that Great Expectations gives."""
_SUITE_KEYS = ("name", "expectations", "id", "meta", "notes", "suite_parameters")
_RULE_KEYS = (
    *("type", "kwargs", "severity", "id", "meta", "description", "notes", "rendered_content"),
    "expectation_context",
)
_VERSION_KEYS = ("great_expectations_version", "great_expectations.__version__")
_MAJOR = "1"


def _read_rules(loaded: ValueOnLine, problems: Problems, kinds: Mapping[str, Kind]) -> list[Rule]:
    if _is_of_another_version(loaded, problems):
        return []
    suite = problems.mapping(loaded, "the suite", _SUITE_KEYS)
    if suite is None:
        return []
    if "name" in suite and not isinstance(suite["name"].value, str):
        problems.add(suite["name"].line, f"name is {suite['name'].plain()!r}, not a text")
    if "expectations" not in suite:
        problems.add(loaded.line, "it has no expectations: it would pass everything")
        return []
    listed = suite["expectations"]
    if not isinstance(listed.value, list):
        problems.add(listed.line, "expectations is not a list: begin each with '- type: …'")
        return []
    if not listed.value:
        problems.add(listed.line, "expectations is empty: the suite would pass everything")
    return rules_from(listed.value, problems, kinds)


def rules_from(written: Iterable[ValueOnLine], problems: Problems, kinds: Mapping[str, Kind]) -> list[Rule]:
    """Read expectations. What is wrong with them is added to `problems`."""
    rules: list[Rule] = []
    for item in written:
        rule = _read_rule(item, problems, rules, kinds)
        if rule is not None:
            rules.append(rule)
    return rules


def _is_of_another_version(loaded: ValueOnLine, problems: Problems) -> bool:
    """Add the problem that another major version of Great Expectations has written the suite."""
    meta = loaded.value.get("meta") if isinstance(loaded.value, dict) else None
    if meta is None or not isinstance(meta.value, dict):
        return False
    for key in _VERSION_KEYS:
        version = meta.value[key].plain() if key in meta.value else None
        if isinstance(version, str) and version.split(".")[0] != _MAJOR:
            what = f"Great Expectations {version} has written it; this reads what {_MAJOR}.x writes"
            problems.add(meta.value[key].line, f"{what}: save it again with {_MAJOR}.x")
            return True
    return False


def _read_rule(item: ValueOnLine, problems: Problems, before: list[Rule], kinds: Mapping[str, Kind]) -> Rule | None:
    parts = problems.mapping(item, "an expectation", _RULE_KEYS)
    if parts is None:
        return None
    checked = check_rule(item, parts, problems, kinds)
    severity = parts["severity"].value if "severity" in parts else "critical"
    if severity not in SEVERITIES:
        problems.unknown(parts["severity"].line, f"severity {severity!r} is not known", severity, SEVERITIES)
    meta = parts["meta"].plain() if "meta" in parts else {}
    if not isinstance(meta, dict | None):
        problems.add(parts["meta"].line, f"meta is {meta!r}, not a mapping")
    if checked is None or severity not in SEVERITIES:
        return None
    type, kwargs = checked
    for previous in before:
        if (previous.type, previous.kwargs) == (type, kwargs):
            problems.add(item.line, f"{type} says the same as line {previous.line}: remove one")
    kind = kinds[type]
    if row_condition_of(kwargs.get("unexpected_rows_query")) is not None:
        kind = replace(kind, how=ColumnSource.ROWS)
    rule = Rule("", type, kwargs, severity, meta or {}, item.line, kind, item.plain())
    id = parts["id"].plain() if "id" in parts else None
    return replace(rule, name=_unique_name(id, rule, before))


def _unique_name(id: object, rule: Rule, before: list[Rule]) -> str:
    name = str(id) if id and not GIVEN_ID.fullmatch(str(id)) else f"{rule.type}({', '.join(rule.columns)})"
    names = {previous.name for previous in before}
    number = 2
    unique = name
    while unique in names:
        unique, number = f"{name}#{number}", number + 1
    return unique
