"""A few of the values that broke a rule, as a verdict's results have them: for people who look for the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.records.records import Json

__all__ = ["examples_of", "examples_text"]

SHOWN = 3
"""So many different values are told of each rule."""
LONGEST = 60
"""Characters of each."""


def examples_of(results: Json) -> dict[str, list[str]]:
    """By rule, the first few different values that broke it. Results of other shapes have none."""
    return {rule: values for rule, values in map(_example, _broken(results)) if values}


def examples_text(values: list[str]) -> str:
    """ " for example '-5.00', 'null'", to be put behind what is said of a rule."""
    return f", for example {', '.join(values)}" if values else ""


def _broken(results: Json) -> Iterator[Json]:
    each = results.get("results")
    yield from (
        (one for one in each if isinstance(one, dict) and not one.get("success")) if isinstance(each, list) else ()
    )


def _example(one: Json) -> tuple[str, list[str]]:
    config, result = one.get("expectation_config") or {}, one.get("result") or {}
    found = result.get("partial_unexpected_list") or []
    texts = list(dict.fromkeys(_short(value) for value in found))
    return str(config.get("id", "")), texts[:SHOWN]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
