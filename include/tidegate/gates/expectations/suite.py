"""Suites of expectations: YAML in Great Expectations' own form, read strictly.

    name: orders
    expectations:
      - type: expect_column_values_to_not_be_null
        kwargs: {column: order_id}
        severity: critical

Great Expectations drops what it does not understand and passes what is left. Here everything that is wrong is an
error that names the file and the line, and all of them are told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tidegate.errors import Invalid
from tidegate.gates.expectations.catalogue import CATALOGUE, Kind
from tidegate.gates.expectations.checking import Problems, YamlLine, check_rule
from tidegate.gates.expectations.yaml_lines import load_yaml
from tidegate.records.codec import fingerprint
from tidegate.records.records import Json

__all__ = ["Rule", "Severity", "Suite", "load_suite", "read_suite", "read_text"]

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Rule:
    """One expectation of a suite."""

    name: str
    """Tells it from the suite's other rules, in verdicts and in quarantine: its `id`, or type and columns."""
    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    meta: Mapping[str, Any]
    line: int

    @property
    def kind(self) -> Kind:
        """What the catalogue says of its type."""
        return CATALOGUE[self.type]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it speaks of."""
        given = [self.kwargs.get(key) for key in ("column", "column_A", "column_B")]
        listed = self.kwargs.get("column_list")
        return tuple(name for name in [*given, *(listed or ())] if isinstance(name, str))

    @property
    def mostly(self) -> float:
        """The share of rows that must keep it."""
        return float(self.kwargs.get("mostly", 1.0))


@dataclass(frozen=True)
class Suite:
    """The rules of one file, in its order."""

    name: str
    path: str
    rules: tuple[Rule, ...] = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """Changes when what the suite says changes."""
        return fingerprint(self.describe())

    def describe(self) -> Json:
        """What it says, without where it is written."""
        rules = [[r.name, r.type, dict(r.kwargs), r.severity] for r in self.rules]
        return {"name": self.name, "rules": rules}

    def check_columns(self, columns: Iterable[str]) -> None:
        """Invalid if a rule speaks of a column that is not there."""
        known = list(columns)
        problems = Problems(self.path)
        for rule in self.rules:
            if rule.type in ("expect_column_to_exist", "expect_table_columns_to_match_ordered_list"):
                continue  # whether it is there is what they ask
            for column in rule.columns:
                if column not in known and column.split(".")[0] not in known:
                    problems.unknown(rule.line, f"{rule.type}: there is no column {column!r}", column, known)
        problems.raise_if_any()


def load_suite(path: Path) -> Suite:
    """The suite in a file; Invalid with everything that is wrong with it."""
    return read_suite(read_text(path), str(path), path.stem)


def read_text(path: Path) -> str:
    """What a suite's file says; Invalid if it cannot be read."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        near = sorted(other.name for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise Invalid(
            f"there is no suite {path}",
            expected=f"one of {', '.join(near)}" if near else "a YAML file with expectations",
            help="correct the name, or write the file",
            reason="BAD_SUITE",
        ) from None
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not UTF-8: {error}", help="save it as UTF-8", reason="BAD_SUITE") from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", help="check the path", reason="BAD_SUITE") from error


def read_suite(text: str, path: str, name: str) -> Suite:
    """The suite in a text; `path` is what messages call it, `name` what it is called if it does not say."""
    problems = Problems(path)
    loaded = load_yaml(text, problems)
    rules: list[Rule] = []
    if not problems:
        rules = _rules(loaded, problems)
    problems.raise_if_any()
    given = loaded.value.get("name") if isinstance(loaded.value, dict) else None
    return Suite(given.value if given else name, path, tuple(rules))


_SUITE_KEYS = ("name", "expectations", "id", "meta", "notes")
_RULE_KEYS = ("type", "kwargs", "severity", "id", "meta", "description", "notes", "rendered_content")


def _rules(loaded: YamlLine, problems: Problems) -> list[Rule]:
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
    rules: list[Rule] = []
    for item in listed.value:
        rule = _rule(item, problems, rules)
        if rule is not None:
            rules.append(rule)
    return rules


def _rule(item: YamlLine, problems: Problems, before: list[Rule]) -> Rule | None:
    parts = problems.mapping(item, "an expectation", _RULE_KEYS)
    if parts is None:
        return None
    checked = check_rule(item, parts, problems)
    severity = parts["severity"].value if "severity" in parts else "critical"
    if severity not in SEVERITIES:
        problems.unknown(parts["severity"].line, f"severity {severity!r} is not known", severity, SEVERITIES)
    meta = parts["meta"].plain() if "meta" in parts else {}
    if not isinstance(meta, dict | None):
        problems.add(parts["meta"].line, f"meta is {meta!r}, not a mapping")
    if checked is None or severity not in SEVERITIES:
        return None
    type, kwargs = checked
    for other in before:
        if (other.type, other.kwargs) == (type, kwargs):
            problems.add(item.line, f"{type} says the same as line {other.line}: remove one")
    rule = Rule("", type, kwargs, severity, meta or {}, item.line)
    id = parts["id"].plain() if "id" in parts else None
    return Rule(_name(id, rule, before), type, kwargs, severity, meta or {}, item.line)


def _name(id: object, rule: Rule, before: list[Rule]) -> str:
    name = str(id) if id else f"{rule.type}({', '.join(rule.columns)})"
    taken = {other.name for other in before}
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}#{number}", number + 1
    return unique
