"""A few of the values that broke a rule, taken from a verdict's results: they help to find the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.records.records import Json

__all__ = ["examples_of", "examples_text"]

MAX_EXAMPLES = 3
"""Different values that are shown for each rule."""
MAX_LENGTH = 60
"""Characters of each."""


def examples_of(results: Json) -> dict[str, list[str]]:
    """Return the first few different values that broke each rule, by rule. Results of other shapes have none."""
    return {rule: values for rule, values in map(_examples_of_rule, _failed_findings(results)) if values}


def examples_text(values: list[str]) -> str:
    """Return the values as a text to append to a message: ", for example '-5.00', 'null'"."""
    return f", for example {', '.join(values)}" if values else ""


def _failed_findings(results: Json) -> Iterator[Json]:
    findings = results.get("results")
    for finding in findings if isinstance(findings, list) else ():
        if isinstance(finding, dict) and not finding.get("success"):
            yield finding


def _examples_of_rule(finding: Json) -> tuple[str, list[str]]:
    config, result = finding.get("expectation_config") or {}, finding.get("result") or {}
    values = result.get("partial_unexpected_list") or []
    texts = list(dict.fromkeys(_short(value) for value in values))
    return str(config.get("id", "")), texts[:MAX_EXAMPLES]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
